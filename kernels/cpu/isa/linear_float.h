// The border between the driver (linear.cpp) and the products with F32, F16 and BF16 weights.
#pragma once
#include "linear_lanes.h"

namespace sf::SF_ISA {

// y[t][r][16] for `tiles` consecutive tiles; `x` holds R rows interleaved, [in][R].
struct FloatTileFunction {
  int tiles;
  void (*run)(const uint8_t* tile, const uint8_t* end, size_t tile_bytes, int64_t in, const float* x, float* y);
};
struct FloatKernels {
  FloatTileFunction several[kMaxRows];  // by row count - 1: as many tiles at once as hide the latency of the sums
  FloatTileFunction single[kMaxRows];
};
const FloatKernels& float_kernels(Format f);

constexpr int kMaxFloatTiles = 4;

}  // namespace sf::SF_ISA
