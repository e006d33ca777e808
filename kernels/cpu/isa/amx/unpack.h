// Weights of a tile as the tile registers want them: signed bytes, and scales as floats. Exact, so nothing changes.
#pragma once
#include "../linear_source.h"

namespace sf::SF_ISA {

constexpr int kMostBlocks = 32;  // unpacked at once: 20 KiB, which leave room in the first-level cache for the rows

struct alignas(64) Unpacked {
  int8_t codes[kMostBlocks][8][64];     // [block][group of 4 inputs][column and input], code - zero
  float scales[kMostBlocks][2][kTile];  // [block][part]
  float minimums[kMostBlocks][2][kTile];
};

// Blocks [first, first + count) of a tile; `first` is a multiple of kMostBlocks.
using Unpack = void (*)(const uint8_t* tile, int64_t in, int64_t first, int count, Unpacked& out);
struct UnpackedFormat {
  Unpack unpack;
  bool halves, minimum;
};
UnpackedFormat unpacked_format(Format f);

}  // namespace sf::SF_ISA
