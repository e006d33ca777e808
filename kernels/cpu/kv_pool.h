// Storage of one KV group, block after block; in a block layer after layer, head after head (layout: rowops.h).
#pragma once
#include <memory>
#include <vector>

#include "memory.h"
#include "rowops.h"

namespace sf {

class KvPool : public std::enable_shared_from_this<KvPool> {
 public:
  static size_t block_bytes(const KvLayout& layout, int layers, int heads) {
    return layout.bytes() * size_t(layers) * size_t(heads);
  }

  KvPool(const KvLayout& layout, int layers, int heads, int64_t num_blocks, int64_t slots, int64_t max_blocks)
      : layout(layout),
        layers(layers),
        heads(heads),
        num_blocks(num_blocks),
        slots(slots),
        max_blocks(max_blocks),
        table(size_t(slots * max_blocks), -1),
        memory_(block_bytes() * size_t(num_blocks) + 64) {}  // 64: a tail's last load

  size_t block_bytes() const { return block_bytes(layout, layers, heads); }
  const int32_t* blocks_of(int64_t slot) const { return table.data() + slot * max_blocks; }
  uint8_t* part(int64_t block, int layer, int head) const {
    return memory_.data() + size_t(block) * block_bytes() + size_t(layer * heads + head) * layout.bytes();
  }

  const KvLayout layout;
  const int layers, heads;
  const int64_t num_blocks, slots, max_blocks;
  std::vector<int32_t> table;  // [slots][max_blocks], written by the engine

 private:
  MappedMemory memory_;
};

}  // namespace sf
