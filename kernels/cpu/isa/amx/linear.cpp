// Products of many rows on a machine with tile registers: 16 rows by 16 columns by one block at a time. The registers sum
// exact integers, everything after that is what linear_tile.h says, so every bit is the same. Few rows and float weights
// go the way of AVX-512.
#include <algorithm>

#include "../linear_rectangle.h"
#include "product.h"

namespace sf::SF_ISA {
namespace {

constexpr int64_t kMostGroups = 8;  // whose results are kept at once
constexpr int64_t kFewRows = 12;    // up to these AVX-512 is as fast: unpacking must pay

RowPanel at_block(const RowPanel& p, int64_t block, int extras) {
  return {p.q + block * 32 * kGroupRows, p.d + block * kGroupRows, p.extra + block * kGroupRows * extras};
}

void many_rows(const Rectangle& o) {
  const UnpackedFormat format = unpacked_format(o.w.format);
  const Kind kind{format.halves, format.minimum, false, false, 1};
  const RowGroups groups(o.row_begin, o.row_end, kGroupRows);
  const RowPanel* panels = panel_cache().quantised(o.a, o.w.in, kind, 0, groups);
  const TileRegisters registers(format.halves);
  const ProductFunction most = product_function(format.halves, format.minimum, kGroupRows);
  const ProductFunction last = product_function(format.halves, format.minimum, groups.size(groups.count - 1));
  auto product = [&](int64_t g) { return g == groups.count - 1 ? last : most; };
  const int64_t blocks = o.w.in / 32;
  thread_local Unpacked w;
  alignas(64) float y[kMostGroups][kGroupRows * kTile];
  for (int64_t t = o.tile_begin; t < o.tile_end; ++t) {
    std::memset(y, 0, sizeof(y[0]) * size_t(groups.count));
    for (int64_t first = 0; first < blocks; first += kMostBlocks) {
      const int count = int(std::min<int64_t>(kMostBlocks, blocks - first));
      format.unpack(o.tile(t), o.w.in, first, count, w);
      for (int64_t g = 0; g < groups.count; ++g)
        product(g)(w, count, at_block(panels[g], first, panel_extras(kind)), y[g]);
    }
    for (int64_t g = 0; g < groups.count; ++g) finish(o, t, groups.start(g), groups.size(g), y[g]);
  }
}

void matmul(const PackedMatrix& w, const ActivationRows& a, int64_t row_begin, int64_t row_end, int64_t tile_begin,
            int64_t tile_end, const Epilogue& e, float* out, int64_t out_stride) {
  if (row_end - row_begin <= kFewRows || !is_quantised(w.format))
    return avx512::linear_kernels().matmul(w, a, row_begin, row_end, tile_begin, tile_end, e, out, out_stride);
  constexpr int64_t most = kGroupRows * kMostGroups;
  for (int64_t first = row_begin; first < row_end; first += most)
    many_rows({w, a, first, std::min(first + most, row_end), tile_begin, tile_end, e,
               out + (first - row_begin) * out_stride, out_stride});
}

}  // namespace

const LinearKernels& linear_kernels() {
  const LinearKernels& base = avx512::linear_kernels();
  static const LinearKernels kernels{base.quantise_row, matmul, base.expand_row};
  return kernels;
}

}  // namespace sf::SF_ISA
