// Storage of one recurrent group by the rules of kernels/backend.py: states in blocks, a log of rows per slot, and of
// each layer's two parts (convolution, delta rule) the position that it is before. A part is written by one stage, so a
// step that ends between two stages leaves each either as it was or as it is to be.
#pragma once
#include <algorithm>
#include <array>
#include <memory>
#include <vector>

#include "memory.h"

namespace sf {

struct StateLayout {
  int64_t kernel, key_heads, value_heads, key_dim, value_dim;
  int64_t keys() const { return key_heads * key_dim; }
  int64_t values() const { return value_heads * value_dim; }
  int64_t channels() const { return 2 * keys() + values(); }
  int64_t history() const { return kernel - 1; }
  int64_t conv_floats() const { return round16(history() * channels()); }
  int64_t delta_floats() const { return round16(value_heads * key_dim * value_dim); }
  int64_t conv_row() const { return round16(channels()); }                             // of a log: a row before its convolution
  int64_t delta_row() const { return round16(keys() + values() + 2 * value_heads); }   // keys, values, decays, strengths
  static int64_t round16(int64_t n) { return (n + 15) / 16 * 16; }
};

enum StatePart : int { kConv = 0, kDelta = 1 };
constexpr int kStateSaves = 2;
constexpr int kStateColumns = 3 + 2 * kStateSaves;

// One row of the table.
struct StateOrder {
  int32_t source, target, position;
  struct {
    int32_t block, position;
  } saves[kStateSaves];
};
static_assert(sizeof(StateOrder) == kStateColumns * sizeof(int32_t));

class StatePool : public std::enable_shared_from_this<StatePool> {
 public:
  static size_t state_bytes(const StateLayout& l, int layers) {
    return size_t(l.conv_floats() + l.delta_floats()) * size_t(layers) * 4;
  }
  static size_t log_bytes(const StateLayout& l, int layers, int64_t log_rows) {
    return size_t(l.conv_row() + l.delta_row()) * size_t(layers * log_rows) * 4;
  }

  StatePool(const StateLayout& layout, int layers, int64_t num_blocks, int64_t slots, int64_t log_rows)
      : layout(layout),
        layers(layers),
        num_blocks(num_blocks),
        slots(slots),
        log_rows(log_rows),
        table(size_t(slots)),
        states_(state_bytes(layout, layers) * size_t(std::max<int64_t>(num_blocks - 1, 0))),
        logs_(log_bytes(layout, layers, log_rows) * size_t(slots)),
        positions_(size_t(num_blocks * layers) * 2, -1),
        logged_(size_t(slots * layers) * 2, Span{0, 0}) {
    for (int64_t i = 0; i < std::min<int64_t>(num_blocks, 1) * layers * 2; ++i) positions_[size_t(i)] = 0;
  }

  // Of block 0, which has no memory, null: all zeros.
  float* part(int32_t block, int layer, StatePart part) const {
    if (block == 0) return nullptr;
    const int64_t each = layout.conv_floats() + layout.delta_floats();
    return states_.as<float>() + ((block - 1) * int64_t(layers) + layer) * each + (part == kDelta ? layout.conv_floats() : 0);
  }
  int32_t& position(int32_t block, int layer, StatePart part) {
    return positions_[size_t((block * int64_t(layers) + layer) * 2 + part)];
  }
  struct Span {
    int32_t first, stop;
  };
  Span& logged(int64_t slot, int layer, StatePart part) { return logged_[size_t((slot * layers + layer) * 2 + part)]; }
  float* log_row(int64_t slot, int layer, StatePart part, int64_t row) const {
    const int64_t conv = layout.conv_row() * log_rows, each = conv + layout.delta_row() * log_rows;
    float* log = logs_.as<float>() + (slot * layers + layer) * each;
    return part == kConv ? log + row * layout.conv_row() : log + conv + row * layout.delta_row();
  }

  void open(int64_t slot) {
    for (int64_t i = slot * layers * 2; i < (slot + 1) * layers * 2; ++i) logged_[size_t(i)] = {0, 0};
  }
  void forget(int64_t block) {
    for (int64_t i = block * layers * 2; i < (block + 1) * layers * 2; ++i) positions_[size_t(i)] = -1;
  }
  void fill(int64_t block, float value) {
    forget(block);
    const int64_t floats = int64_t(state_bytes(layout, layers) / 4);
    std::fill_n(part(int32_t(block), 0, kConv), floats, value);
  }

  const StateLayout layout;
  const int layers;
  const int64_t num_blocks, slots, log_rows;
  std::vector<StateOrder> table;  // [slots], written by the engine

 private:
  MappedMemory states_, logs_;
  std::vector<int32_t> positions_;  // [blocks][layers][parts]; -1: holds no state
  std::vector<Span> logged_;        // [slots][layers][parts]: positions of the rows in the log
};

}  // namespace sf
