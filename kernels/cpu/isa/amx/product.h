// Up to 16 rows times some blocks of one unpacked tile, in the tile registers.
#pragma once
#include "../linear_panel.h"
#include "unpack.h"

namespace sf::SF_ISA {

constexpr int kGroupRows = 16;  // of every panel; sums of all of them are computed, floats of those that are there

// y[rows][16] goes on where it stands. `panel` is at the first block.
using ProductFunction = void (*)(const Unpacked& w, int blocks, const RowPanel& panel, float* y);
ProductFunction product_function(bool halves, bool minimum, int rows);

// This thread's tile registers, configured for one kind of blocks.
class TileRegisters {
 public:
  explicit TileRegisters(bool halves);
  ~TileRegisters();
  TileRegisters(const TileRegisters&) = delete;
};

}  // namespace sf::SF_ISA
