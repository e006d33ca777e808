// Drives the tile kernels over a rectangle of rows and tiles. Tiles are the outer loop and row groups the inner one, so a
// tile is read from memory once; rows go in blocks whose panels stay in the second-level cache.
#include <algorithm>
#include <new>

#include "linear_float.h"
#include "linear_row.h"
#include "linear_tile.h"

namespace sf::SF_ISA {
namespace {

constexpr size_t kPanelBudget = 512 * 1024;  // bytes of row panels that are used against every tile
constexpr int kExpandFrom = 3;               // row groups from which unpacking a tile to bytes first pays

// Grows, never shrinks; one per thread and purpose.
class Scratch {
 public:
  ~Scratch() { ::operator delete(data_, std::align_val_t(64)); }
  uint8_t* reserve(size_t bytes) {
    if (bytes > size_) {
      ::operator delete(data_, std::align_val_t(64));
      data_ = nullptr;
      size_ = 0;
      data_ = static_cast<uint8_t*>(::operator new(bytes, std::align_val_t(64)));
      size_ = bytes;
    }
    return data_;
  }

 private:
  uint8_t* data_ = nullptr;
  size_t size_ = 0;
};
thread_local Scratch panel_scratch, tile_scratch;

// Rows [begin, end) cut into groups of at most kMaxRows of nearly equal size.
struct Groups {
  int64_t begin, rows, count;
  Groups(int64_t first, int64_t last) : begin(first), rows(last - first), count((rows + kMaxRows - 1) / kMaxRows) {}
  int64_t start(int64_t g) const { return begin + rows * g / count; }
  int size(int64_t g) const { return int(start(g + 1) - start(g)); }
};

struct Output {
  const PackedMatrix& w;
  const Epilogue& e;
  float* out;
  int64_t stride;
};

void finish(const Output& o, int64_t tile, int64_t row, int rows, const float* y) {
  int64_t column = tile * kTile;
  int columns = int(std::min<int64_t>(kTile, o.w.out - column));
  for (int r = 0; r < rows; ++r, y += kTile) {
    float* out = o.out + (row + r) * o.stride + column;
    const float* bias = o.e.bias ? o.e.bias + column : nullptr;
    const float* residual = o.e.residual ? o.e.residual + (row + r) * o.e.residual_stride + column : nullptr;
    if (columns == kTile) {
      f32x16 v = load(y);
      if (bias) v = v + load(bias);
      if (residual) v = v + load(residual);
      store(out, v);
      continue;
    }
    for (int c = 0; c < columns; ++c) {
      float v = y[c];
      if (bias) v = v + bias[c];
      if (residual) v = v + residual[c];
      out[c] = v;
    }
  }
}

void fill_panel(const QuantisedKernels& k, const ActivationRows& a, int64_t in, int64_t row, int rows, uint8_t* panel) {
  int64_t blocks = in / 32;
  int parts = k.kind.parts();
  for (int64_t b = 0; b < blocks; ++b) {
    for (int r = 0; r < rows; ++r) std::memcpy(panel + 32 * r, a.q + (row + r) * in + 32 * b, 32);
    float* scalars = reinterpret_cast<float*>(panel + 32 * rows);
    for (int r = 0; r < rows; ++r) scalars[r] = a.d[(row + r) * blocks + b];
    scalars += rows;
    for (int r = 0; r < rows; ++r) {
      const int32_t* s = a.sums + ((row + r) * blocks + b) * 2;
      int32_t sums[2] = {k.kind.halves ? s[0] : s[0] + s[1], s[1]};
      float* at = scalars + r;
      for (int p = 0; k.kind.zeroed && p < parts; ++p, at += rows) {
        int32_t start = -k.zero * sums[p];
        std::memcpy(at, &start, 4);
      }
      for (int p = 0; k.kind.minimum && p < parts; ++p, at += rows) *at = float(sums[p]);
    }
    panel += panel_block_bytes(k.kind, rows);
  }
}

// Starts the stream that the kernels then keep ahead of themselves.
void prefetch_start(const uint8_t* begin, const uint8_t* end) {
  for (const uint8_t* p = begin; p < std::min(begin + kPrefetchBytes, end); p += 64) prefetch(p);
}

void matmul_quantised(const QuantisedKernels& k, const PackedMatrix& w, const ActivationRows& a, int64_t row_begin,
                      int64_t row_end, int64_t tile_begin, int64_t tile_end, const Output& o) {
  int64_t blocks = w.in / 32;
  size_t row_panel = size_t(blocks) * size_t(panel_block_bytes(k.kind, 1));  // panels are linear in rows
  int64_t step = std::max<int64_t>(int64_t(kPanelBudget / row_panel) / kMaxRows * kMaxRows, kMaxRows);
  const uint8_t* end = w.data + size_t(tile_end) * w.tile_bytes;
  for (int64_t first = row_begin; first < row_end; first += step) {
    prefetch_start(w.data + size_t(tile_begin) * w.tile_bytes, end);
    Groups groups(first, std::min(first + step, row_end));
    uint8_t* panels = panel_scratch.reserve(row_panel * size_t(groups.rows));
    for (int64_t g = 0; g < groups.count; ++g)
      fill_panel(k, a, w.in, groups.start(g), groups.size(g), panels + row_panel * size_t(groups.start(g) - first));
    bool expand = groups.count >= kExpandFrom;
    uint8_t* expanded = expand ? tile_scratch.reserve(size_t(blocks) * size_t(k.expanded_block_bytes)) : nullptr;
    for (int64_t t = tile_begin; t < tile_end; ++t) {
      const uint8_t* tile = w.data + size_t(t) * w.tile_bytes;
      if (expand) k.expand(tile, end, w.in, expanded);
      for (int64_t g = 0; g < groups.count; ++g) {
        alignas(64) float y[kMaxRows * kTile];
        int rows = groups.size(g);
        const uint8_t* panel = panels + row_panel * size_t(groups.start(g) - first);
        (expand ? k.expanded : k.packed)[rows - 1](expand ? expanded : tile, end, w.in, panel, y);
        finish(o, t, groups.start(g), rows, y);
      }
    }
  }
}

void matmul_float(const PackedMatrix& w, const ActivationRows& a, int64_t row_begin, int64_t row_end, int64_t tile_begin,
                  int64_t tile_end, const Output& o) {
  const FloatKernels& k = float_kernels(w.format);
  size_t row_panel = size_t(w.in) * 4;
  int64_t step = std::max<int64_t>(int64_t(kPanelBudget / row_panel) / kMaxRows * kMaxRows, kMaxRows);
  const uint8_t* end = w.data + size_t(tile_end) * w.tile_bytes;
  for (int64_t first = row_begin; first < row_end; first += step) {
    prefetch_start(w.data + size_t(tile_begin) * w.tile_bytes, end);
    Groups groups(first, std::min(first + step, row_end));
    float* panels = reinterpret_cast<float*>(panel_scratch.reserve(row_panel * size_t(groups.rows)));
    for (int64_t g = 0; g < groups.count; ++g) {
      float* panel = panels + w.in * (groups.start(g) - first);
      int rows = groups.size(g);
      for (int r = 0; r < rows; ++r) {
        const float* x = a.x + (groups.start(g) + r) * a.stride;
        for (int64_t i = 0; i < w.in; ++i) panel[i * rows + r] = x[i];
      }
    }
    for (int64_t t = tile_begin; t < tile_end;) {
      // every group takes the same tiles, so that they are read from memory once
      int64_t count = std::min<int64_t>(k.several[groups.size(0) - 1].tiles, tile_end - t);
      for (int64_t g = 0; g < groups.count; ++g) {
        int rows = groups.size(g);
        const float* panel = panels + w.in * (groups.start(g) - first);
        for (int64_t i = 0; i < count;) {
          const FloatTileFunction& several = k.several[rows - 1];
          const FloatTileFunction& f = several.tiles <= count - i ? several : k.single[rows - 1];
          alignas(64) float y[kMaxFloatTiles * kMaxRows * kTile];
          f.run(w.data + size_t(t + i) * w.tile_bytes, end, w.tile_bytes, w.in, panel, y);
          for (int j = 0; j < f.tiles; ++j) finish(o, t + i + j, groups.start(g), rows, y + j * rows * kTile);
          i += f.tiles;
        }
      }
      t += count;
    }
  }
}

void matmul(const PackedMatrix& w, const ActivationRows& a, int64_t row_begin, int64_t row_end, int64_t tile_begin,
            int64_t tile_end, const Epilogue& e, float* out, int64_t out_stride) {
  Output o{w, e, out, out_stride};
  if (!is_quantised(w.format)) return matmul_float(w, a, row_begin, row_end, tile_begin, tile_end, o);
  visit_quantised(w.format, [&](auto tag) {
    matmul_quantised(quantised_kernels<decltype(tag)::format>(), w, a, row_begin, row_end, tile_begin, tile_end, o);
  });
}

}  // namespace

const LinearKernels& linear_kernels() {
  static constexpr LinearKernels kernels{quantise_row, matmul, expand_row};
  return kernels;
}

}  // namespace sf::SF_ISA
