// Rows arranged for the tile kernels, kept per thread as long as the caller says that they are the same.
#pragma once
#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "linear_tile.h"

namespace sf::SF_ISA {

// Rows [begin, end) cut into groups: as few of at most kMaxRows as it takes, nearly equal in size; or all of `whole` rows
// but the last.
struct RowGroups {
  int64_t begin, rows, whole, count;
  RowGroups(int64_t first, int64_t last, int64_t whole_rows = 0)
      : begin(first), rows(last - first), whole(whole_rows) {
    const int64_t most = whole ? whole : kMaxRows;
    count = (rows + most - 1) / most;
  }
  int64_t start(int64_t g) const {
    return whole ? begin + std::min(g * whole, rows) : begin + rows * g / count;
  }
  int size(int64_t g) const { return int(start(g + 1) - start(g)); }
  int panel_rows(int64_t g) const { return whole ? int(whole) : size(g); }  // zeros after those of the group
};

// 64-byte aligned memory that grows and never shrinks.
class Scratch {
 public:
  uint8_t* reserve(size_t bytes);

 private:
  struct Free { void operator()(uint8_t* p) const; };
  std::unique_ptr<uint8_t, Free> data_;
  size_t size_ = 0;
};

// What decides how rows are arranged.
struct PanelKey {
  uint64_t version;
  const void* rows;
  int64_t in;
  Kind kind;
  int zero;
  bool operator==(const PanelKey&) const = default;
};

class PanelCache {
 public:
  // Panels of the groups of rows [begin, end), valid until the next call.
  const RowPanel* quantised(const ActivationRows& a, int64_t in, Kind kind, int zero, const RowGroups& groups);
  // Interleaved float rows, [in][rows of the group], of each group.
  const float* const* floats(const ActivationRows& a, int64_t in, const RowGroups& groups);

 private:
  struct Entry {
    int64_t begin = -1, rows = 0, whole = 0;
    Scratch memory;
    std::vector<RowPanel> quantised;
    std::vector<const float*> floats;
  };
  Entry& entry(const PanelKey& key, const RowGroups& groups, bool& found);

  PanelKey key_{};
  std::vector<Entry> entries_;  // of one key, by range of rows; the first `used_` are valid
  size_t used_ = 0;
};
PanelCache& panel_cache();  // this thread's

}  // namespace sf::SF_ISA
