#include "linear_panel.h"

#include <new>

namespace sf::SF_ISA {
namespace {

constexpr size_t kEntries = 16;  // ranges of rows remembered at once

size_t round_up(size_t bytes) { return (bytes + 63) / 64 * 64; }

// `out` walks through columns of a panel: one number per block, `step` apart.
template <class F> void fill_column(int64_t blocks, int64_t step, float* out, F&& value) {
  for (int64_t b = 0; b < blocks; ++b) out[b * step] = value(b);
}

float as_float(int32_t bits) { return float_of(uint32_t(bits)); }

void fill_extras(Kind kind, int zero, const int32_t* sums, int64_t blocks, int rows, float* out) {
  const int64_t step = int64_t(panel_extras(kind)) * rows;
  if (kind.zeroed && kind.halves) {
    for (int p = 0; p < 2; ++p, out += rows)
      fill_column(blocks, step, out, [&](int64_t b) { return as_float(-zero * sums[2 * b + p]); });
  } else if (kind.zeroed) {
    fill_column(blocks, step, out, [&](int64_t b) { return as_float(-zero * (sums[2 * b] + sums[2 * b + 1])); });
    out += rows;
  }
  if (kind.minimum && kind.halves) {
    for (int p = 0; p < 2; ++p, out += rows)
      fill_column(blocks, step, out, [&](int64_t b) { return float(sums[2 * b + p]); });
  } else if (kind.minimum) {
    fill_column(blocks, step, out, [&](int64_t b) { return float(sums[2 * b] + sums[2 * b + 1]); });
  }
}

// Fills memory of `row_bytes` per row with `count` rows, as a panel of `rows`. One row's q and d stay where they are.
RowPanel arrange(const ActivationRows& a, int64_t in, Kind kind, int zero, int64_t row, int count, int rows,
                 uint8_t* memory) {
  const int64_t blocks = in / 32;
  auto* extra = reinterpret_cast<float*>(memory);
  float* d = extra + panel_extras(kind) * blocks * rows;
  auto* q = reinterpret_cast<int8_t*>(d + blocks * rows);
  for (int r = 0; r < count; ++r) fill_extras(kind, zero, a.sums + (row + r) * blocks * 2, blocks, rows, extra + r);
  if (rows == 1) return {a.q + row * in, a.d + row * blocks, extra};
  for (int r = 0; r < count; ++r) {
    const int8_t* from = a.q + (row + r) * in;
    for (int64_t b = 0; b < blocks; ++b) std::memcpy(q + (b * rows + r) * 32, from + b * 32, 32);
    const float* scales = a.d + (row + r) * blocks;
    fill_column(blocks, rows, d + r, [&](int64_t b) { return scales[b]; });
  }
  return {q, d, extra};
}

}  // namespace

void Scratch::Free::operator()(uint8_t* p) const { ::operator delete(p, std::align_val_t(64)); }

uint8_t* Scratch::reserve(size_t bytes) {
  if (bytes > size_) {
    data_.reset();
    size_ = 0;
    data_.reset(static_cast<uint8_t*>(::operator new(bytes, std::align_val_t(64))));
    size_ = bytes;
  }
  return data_.get();
}

PanelCache::Entry& PanelCache::entry(const PanelKey& key, const RowGroups& groups, bool& found) {
  if (key.version == 0 || !(key == key_)) {
    key_ = key;
    used_ = 0;
  }
  for (size_t i = 0; i < used_; ++i) {
    Entry& e = entries_[i];
    found = e.begin == groups.begin && e.rows == groups.rows && e.whole == groups.whole;
    if (found) return e;
  }
  found = false;
  if (used_ == kEntries) used_ = 0;
  if (used_ == entries_.size()) entries_.emplace_back();
  Entry& e = entries_[used_++];
  e.begin = groups.begin;
  e.rows = groups.rows;
  e.whole = groups.whole;
  e.quantised.clear();
  e.floats.clear();
  return e;
}

const RowPanel* PanelCache::quantised(const ActivationRows& a, int64_t in, Kind kind, int zero,
                                      const RowGroups& groups) {
  bool found;
  Entry& e = entry({a.version, a.q, in, kind, zero}, groups, found);
  if (found) return e.quantised.data();
  const size_t row_bytes = round_up(size_t(in / 32) * (36 + 4 * size_t(panel_extras(kind))));
  uint8_t* memory = e.memory.reserve(row_bytes * size_t(groups.whole ? groups.count * groups.whole : groups.rows));
  for (int64_t g = 0; g < groups.count; ++g) {
    const int rows = groups.panel_rows(g);
    if (groups.size(g) < rows) std::memset(memory, 0, row_bytes * size_t(rows));
    e.quantised.push_back(arrange(a, in, kind, zero, groups.start(g), groups.size(g), rows, memory));
    memory += row_bytes * size_t(rows);
  }
  return e.quantised.data();
}

const float* const* PanelCache::floats(const ActivationRows& a, int64_t in, const RowGroups& groups) {
  bool found;
  Entry& e = entry({a.version, a.x, in, Kind{}, 0}, groups, found);
  if (found) return e.floats.data();
  auto* memory = reinterpret_cast<float*>(e.memory.reserve(size_t(in) * 4 * size_t(groups.rows)));
  for (int64_t g = 0; g < groups.count; ++g) {
    const int rows = groups.size(g);
    const float* first = a.x + groups.start(g) * a.stride;
    float* panel = memory + in * (groups.start(g) - groups.begin);
    for (int r = 0; rows > 1 && r < rows; ++r)
      for (int64_t i = 0; i < in; ++i) panel[i * rows + r] = first[r * a.stride + i];
    e.floats.push_back(rows > 1 ? panel : first);
  }
  return e.floats.data();
}

PanelCache& panel_cache() {
  static thread_local PanelCache cache;
  return cache;
}

}  // namespace sf::SF_ISA
