// The tile registers' own limit for what the formats allow: sums over 32 inputs at a time.
#include "../../machine.h"

#include <immintrin.h>

#include "product.h"

namespace sf::SF_ISA {
namespace {

int64_t dot(int64_t rounds, const int8_t* words, int32_t* sink) {
  const TileRegisters registers(false);
  _tile_loadd(2, words, 32);
  _tile_loadd(3, words + 512, 32);
  _tile_loadd(4, words + 1024, 64);
  for (int64_t round = 0; round < rounds; ++round) {
    _tile_zero(0);
    _tile_dpbssd(0, 2, 4);
    _tile_zero(1);
    _tile_dpbssd(1, 3, 4);
  }
  int32_t sums[kGroupRows][kTile];
  _tile_stored(1, sums, 64);
  *sink = sums[0][0];
  return rounds * 2 * kGroupRows * kTile * 32;
}

}  // namespace

const MachineKernels& machine_kernels() {
  static const MachineKernels table{avx512::machine_kernels().read, dot, avx512::machine_kernels().fma};
  return table;
}

}  // namespace sf::SF_ISA
