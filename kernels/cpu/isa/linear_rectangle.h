// The part of a product that one call computes, and how results get into it.
#pragma once
#include <cstdint>

#include "linear.h"
#include "vec.h"

namespace sf::SF_ISA {

struct Rectangle {
  const PackedMatrix& w;
  const ActivationRows& a;
  int64_t row_begin, row_end, tile_begin, tile_end;
  const Epilogue& e;
  float* out;  // of row_begin and tile_begin
  int64_t stride;

  const uint8_t* tile(int64_t t) const { return w.data + size_t(t) * w.tile_bytes; }
  float* result(int64_t row, int64_t t) const { return out + (row - row_begin) * stride + (t - tile_begin) * kTile; }
};

// What `finish` will read and write: rows lie a whole matrix width apart, so no hardware prefetcher finds them.
inline void prefetch_rows(const Rectangle& o, int64_t tile, int64_t row, int rows) {
  const int64_t column = tile * kTile;
  for (int r = 0; r < rows; ++r) {
    __builtin_prefetch(o.result(row + r, tile), 1);
    if (o.e.residual) __builtin_prefetch(o.e.residual + (row + r) * o.e.residual_stride + column);
  }
}

// The last tile's part that belongs to the matrix.
inline void finish_part(const Rectangle& o, int64_t tile, int64_t row, int rows, int columns, const float* y) {
  const int64_t column = tile * kTile;
  for (int r = 0; r < rows; ++r, y += kTile) {
    float* out = o.result(row + r, tile);
    for (int c = 0; c < columns; ++c) {
      float v = y[c];
      if (o.e.bias) v = v + o.e.bias[column + c];
      if (o.e.residual) v = v + o.e.residual[(row + r) * o.e.residual_stride + column + c];
      out[c] = v;
    }
  }
}

// Adds bias and residual to y[rows][16] of one tile and stores what belongs to the matrix.
inline void finish(const Rectangle& o, int64_t tile, int64_t row, int rows, const float* y) {
  const int64_t column = tile * kTile, columns = o.w.out - column;
  if (columns < kTile) return finish_part(o, tile, row, rows, int(columns), y);
  float* out = o.result(row, tile);
  const float* residual = o.e.residual ? o.e.residual + row * o.e.residual_stride + column : nullptr;
  auto each_row = [&](auto add_bias) {
    if (residual)
      for (int r = 0; r < rows; ++r, y += kTile, out += o.stride, residual += o.e.residual_stride)
        store(out, add_bias(load(y)) + load(residual));
    else
      for (int r = 0; r < rows; ++r, y += kTile, out += o.stride) store(out, add_bias(load(y)));
  };
  if (!o.e.bias) return each_row([](f32x16 v) { return v; });
  const f32x16 bias = load(o.e.bias + column);
  each_row([&](f32x16 v) { return v + bias; });
}

}  // namespace sf::SF_ISA
