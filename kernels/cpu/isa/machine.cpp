// The instructions that steps are made of, alone: as fast as this instruction set can go.
#include "../machine.h"

#include <utility>

#include "linear_lanes.h"

namespace sf::SF_ISA {
namespace {

uint64_t read(const uint8_t* data, size_t bytes) {
  constexpr int kPart = 32;
  uint64_t sums[kPart] = {};
  for (size_t at = 0; at < bytes; at += kPart * 8) {
    for (int line = 0; line < kPart * 8; line += 64) prefetch(data + at + line + kPrefetchBytes);  // a hint: may point past the end
    uint64_t part[kPart];
    std::memcpy(part, data + at, sizeof part);
    for (int i = 0; i < kPart; ++i) sums[i] += part[i];
  }
  uint64_t total = 0;
  for (uint64_t s : sums) total += s;
  return total;
}

constexpr int kGroups = 8;  // of 4 inputs: a block of 32
constexpr int kColumns = 2;
constexpr int kRows = kMaxRows == 8 ? 8 : 2;

int64_t dot(int64_t rounds, const int8_t* words, int32_t* sink) {
  constexpr int kRun = sum_run(15);
  const Codes codes[kColumns] = {prepare<false>(splat_byte(3)), prepare<false>(splat_byte(5))};
  Sum<kRun> sums[kColumns][kRows];
  for (auto& column : sums)
    for (auto& s : column) s.total = zero_ints();
  constexpr int kBlocks = kMachineWords / (kGroups * kRows);
  for (int64_t round = 0; round < rounds; ++round) {
    const int8_t* block = words + round % kBlocks * (kGroups * kRows * 4);
    for (int r = 0; r < kRows; ++r)
      for (int c = 0; c < kColumns; ++c)
        [&]<int... G>(std::integer_sequence<int, G...>) {
          (sums[c][r].template add<G, kGroups>(codes[c], block + (r * kGroups + G) * 4), ...);
        }(std::make_integer_sequence<int, kGroups>{});
  }
  Floats total = zero_floats();
  for (auto& column : sums)
    for (auto& s : column) total = add(total, to_floats(s.total));
  float lanes[kLanes];
  store_floats(lanes, total);
  *sink = int32_t(lanes[0] * 0x1p-20f);
  return rounds * kColumns * kRows * kGroups * 4 * kLanes;
}

int64_t multiply_add(int64_t rounds, const float* words, float* sink) {
  constexpr int kSums = 12;
  Floats sums[kSums];
  for (Floats& s : sums) s = zero_floats();
  const Floats weight = splat_value(0x1p-10f);
  for (int64_t round = 0; round < rounds; ++round) {
    const Floats word = splat_float(words + round % kMachineWords);
    for (Floats& s : sums) s = fma(word, weight, s);
  }
  float lanes[kLanes];
  for (int i = 1; i < kSums; ++i) sums[0] = add(sums[0], sums[i]);
  store_floats(lanes, sums[0]);
  *sink = lanes[0];
  return rounds * kSums * kLanes;
}

}  // namespace

const MachineKernels& machine_kernels() {
  static const MachineKernels table = {read, dot, multiply_add};
  return table;
}

}  // namespace sf::SF_ISA
