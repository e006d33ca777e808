// Drives the tile kernels over a rectangle of rows and tiles. Tiles are the outer loop and row groups the inner one, so
// a tile is read from memory once; rows go in blocks whose panels stay in the second-level cache. (Unpacking a tile to
// bytes once for all row groups was measured: it is slower. The kernels are bound by multiplications, so unpacking is
// free, and a packed tile needs half the cache.)
#include <algorithm>

#include "linear_float.h"
#include "linear_panel.h"
#include "linear_rectangle.h"
#include "linear_row.h"

namespace sf::SF_ISA {
namespace {

// Rows whose panels are used against every tile: 128 KiB of them, but so many that reading the weights anew for each block
// of rows costs little.
constexpr int64_t kPanelBudget = 128 * 1024, kMinBlockRows = 64;

// Starts the stream that the kernels then keep ahead of themselves.
void prefetch_start(const Rectangle& o) {
  const uint8_t* begin = o.tile(o.tile_begin);
  const uint8_t* end = std::min(begin + kPrefetchBytes, o.tile(o.tile_end));
  for (const uint8_t* p = begin; p < end; p += 64) prefetch(p);
}

void quantised_block(const QuantisedKernels& k, const Rectangle& o, const RowGroups& groups) {
  prefetch_start(o);
  const RowPanel* panels = panel_cache().quantised(o.a, o.w.in, k.kind, k.zero, groups);
  for (int64_t t = o.tile_begin; t < o.tile_end; ++t) {
    for (int64_t g = 0; g < groups.count; ++g) {
      alignas(64) float y[kMaxRows * kTile];
      const uint8_t* end = g == 0 ? o.tile(o.tile_end) : o.tile(t);  // one pass over a tile fetches what follows
      prefetch_rows(o, t, groups.start(g), groups.size(g));
      k.tile_rows[groups.size(g) - 1](o.tile(t), end, o.w.in, panels[g], y);
      finish(o, t, groups.start(g), groups.size(g), y);
    }
  }
}

void float_block(const FloatKernels& k, const Rectangle& o, const RowGroups& groups) {
  prefetch_start(o);
  const float* const* panels = panel_cache().floats(o.a, o.w.in, groups);
  const uint8_t* end = o.tile(o.tile_end);
  const int64_t together =
      k.several[groups.size(0) - 1].tiles;  // for every group, so that tiles are read from memory once
  for (int64_t t = o.tile_begin; t < o.tile_end; t += together) {
    const int64_t last = std::min(t + together, o.tile_end);
    for (int64_t g = 0; g < groups.count; ++g) {
      const int rows = groups.size(g);
      for (int64_t i = t; i < last;) {
        const FloatTileFunction& several = k.several[rows - 1];
        const FloatTileFunction& f = several.tiles <= last - i ? several : k.single[rows - 1];
        alignas(64) float y[kMaxFloatTiles * kMaxRows * kTile];
        f.run(o.tile(i), end, o.w.tile_bytes, o.w.in, panels[g], y);
        for (int j = 0; j < f.tiles; ++j) finish(o, i + j, groups.start(g), rows, y + j * rows * kTile);
        i += f.tiles;
      }
    }
  }
}

void matmul(const PackedMatrix& w, const ActivationRows& a, int64_t row_begin, int64_t row_end, int64_t tile_begin,
            int64_t tile_end, const Epilogue& e, float* out, int64_t out_stride) {
  const Rectangle o{w, a, row_begin, row_end, tile_begin, tile_end, e, out, out_stride};
  const int64_t row_bytes = is_quantised(w.format) ? w.in * 5 / 4 : w.in * 4;
  const int64_t step = std::max(kPanelBudget / row_bytes / kMaxRows * kMaxRows, kMinBlockRows);
  for (int64_t first = row_begin; first < row_end; first += step) {
    const RowGroups groups(first, std::min(first + step, row_end));
    if (!is_quantised(w.format)) {
      float_block(float_kernels(w.format), o, groups);
      continue;
    }
    visit_quantised(w.format,
                    [&](auto tag) { quantised_block(quantised_kernels<decltype(tag)::format>(), o, groups); });
  }
}

}  // namespace

const LinearKernels& linear_kernels() {
  static constexpr LinearKernels kernels{quantise_row, matmul, expand_row};
  return kernels;
}

}  // namespace sf::SF_ISA
