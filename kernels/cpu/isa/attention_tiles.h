// One block's keys and values, widened as they are read (layout: rowops.h). Included only by isa/attention.cpp.
#pragma once
#include "../rowops.h"
#include "math.h"

namespace sf::SF_ISA {

struct WideTile {  // float32: a block of an f32 cache, or a copy widened once for many vectors
  const float* keys;
  const float* values;
  int64_t value_stride;
  f32x16 key(int64_t d, int half) const { return load(keys + d * kBlock + half * 16); }
  f32x16 value(int j, int64_t c) const { return load(values + j * value_stride + c); }
};

template <f32x16 (*kLoad)(const uint16_t*)>
struct HalfTile {
  const uint16_t* keys;
  const uint16_t* values;
  int64_t value_stride;
  f32x16 key(int64_t d, int half) const { return kLoad(keys + d * kBlock + half * 16); }
  f32x16 value(int j, int64_t c) const { return kLoad(values + j * value_stride + c); }
};

struct ByteTile {
  const int8_t* keys;
  const int8_t* values;
  int64_t value_stride;
  const uint16_t* key_scales;
  const uint16_t* value_scales;
  f32x16 key(int64_t d, int half) const {
    return load_i8(keys + d * kBlock + half * 16) * load_f16(key_scales + d / 32 * kBlock + half * 16);
  }
  f32x16 value(int j, int64_t c) const {
    return load_i8(values + j * value_stride + c) * splat(f16_to_f32(value_scales[c / 32 * kBlock + j]));
  }
};

// Calls use(tile) with the view that fits the cache's format.
template <class Use>
void with_tile(const KvLayout& l, const uint8_t* p, Use use) {
  const uint8_t* v = p + l.values_at();
  switch (l.format) {
    case KvFormat::F32:
      return use(WideTile{(const float*)p, (const float*)v, l.value_dim});
    case KvFormat::F16:
      return use(HalfTile<load_f16>{(const uint16_t*)p, (const uint16_t*)v, l.value_dim});
    case KvFormat::BF16:
      return use(HalfTile<load_bf16>{(const uint16_t*)p, (const uint16_t*)v, l.value_dim});
    case KvFormat::Q8_0:
      return use(ByteTile{(const int8_t*)p, (const int8_t*)v, l.value_dim, (const uint16_t*)(p + l.key_scales_at()),
                          (const uint16_t*)(p + l.value_scales_at())});
  }
}

// The next block's part, asked for line by line while this one is worked on: blocks lie anywhere, so no hardware
// prefetcher finds it, and asking for all of it at once would stall.
struct Ahead {
  const uint8_t* part = nullptr;
  int64_t step = 0;  // bytes for every eight dimensions of a key
  void fetch(int64_t d) const {
    for (const uint8_t *line = part + d / 8 * step, *end = line + step; line < end; line += 64)
      __builtin_prefetch(line, 0, 2);
  }
};

}  // namespace sf::SF_ISA
