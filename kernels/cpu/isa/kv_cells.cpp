// Writing keys and values into a block, in the cache's format (layout: rowops.h).
#include <algorithm>

#include "../rowops.h"
#include "math.h"

namespace sf::SF_ISA {
namespace {

template <class T, class Convert>
void store_cells(const KvLayout& l, const float* key, const float* value, int slot, uint8_t* head, Convert convert) {
  T* keys = reinterpret_cast<T*>(head);
  T* values = reinterpret_cast<T*>(head + l.values_at()) + slot * l.value_dim;
  for (int64_t d = 0; d < l.key_dim; ++d) keys[d * kBlock + slot] = convert(key[d]);
  for (int64_t d = 0; d < l.value_dim; ++d) values[d] = convert(value[d]);
}

// Quantises up to 32 values: round(x / scale) with scale = amax / 127, which is stored as f16. A NaN makes the scale
// NaN.
uint16_t quantise(const float* x, int64_t n, int8_t* q) {
  float top = 0.f;
  for (int64_t i = 0; i < n; ++i) top = !(std::fabs(x[i]) <= top) ? std::fabs(x[i]) : top;
  for (int64_t i = 0; i < n; ++i) top = x[i] != x[i] ? x[i] : top;
  const float scale = top / 127.f;
  for (int64_t i = 0; i < n; ++i) {
    const float v = scale > 0.f ? std::nearbyint(x[i] / scale) : 0.f;  // false also for a NaN scale
    q[i] = int8_t(std::min(127.f, std::max(-127.f, v)));
  }
  return f32_to_f16(scale);
}

void store_q8(const KvLayout& l, const float* key, const float* value, int slot, uint8_t* head) {
  int8_t* keys = reinterpret_cast<int8_t*>(head);
  int8_t* values = reinterpret_cast<int8_t*>(head + l.values_at()) + slot * l.value_dim;
  auto* key_scales = reinterpret_cast<uint16_t*>(head + l.key_scales_at());
  auto* value_scales = reinterpret_cast<uint16_t*>(head + l.value_scales_at());
  for (int64_t d = 0; d < l.key_dim; d += 32) {
    int8_t q[32];
    const int64_t n = std::min<int64_t>(32, l.key_dim - d);
    key_scales[d / 32 * kBlock + slot] = quantise(key + d, n, q);
    for (int64_t i = 0; i < n; ++i) keys[(d + i) * kBlock + slot] = q[i];
  }
  for (int64_t d = 0; d < l.value_dim; d += 32)
    value_scales[d / 32 * kBlock + slot] = quantise(value + d, std::min<int64_t>(32, l.value_dim - d), values + d);
}

template <class T>
void fill_cells(uint8_t* p, size_t bytes, T value) {
  T* cells = reinterpret_cast<T*>(p);
  for (size_t i = 0; i < bytes / sizeof(T); ++i) cells[i] = value;
}

}  // namespace

void kv_store(const KvLayout& layout, const float* key, const float* value, int slot, uint8_t* head) {
  switch (layout.format) {
    case KvFormat::F32:
      return store_cells<float>(layout, key, value, slot, head, [](float x) { return x; });
    case KvFormat::F16:
      return store_cells<uint16_t>(layout, key, value, slot, head, f32_to_f16);
    case KvFormat::BF16:
      return store_cells<uint16_t>(layout, key, value, slot, head, f32_to_bf16);
    case KvFormat::Q8_0:
      return store_q8(layout, key, value, slot, head);
  }
}

void kv_fill(const KvLayout& layout, float value, uint8_t* head) {
  switch (layout.format) {
    case KvFormat::F32:
      return fill_cells<float>(head, layout.bytes(), value);
    case KvFormat::F16:
      return fill_cells<uint16_t>(head, layout.bytes(), f32_to_f16(value));
    case KvFormat::BF16:
      return fill_cells<uint16_t>(head, layout.bytes(), f32_to_bf16(value));
    case KvFormat::Q8_0:
      fill_cells<int8_t>(head, layout.bytes(), 1);
      fill_cells<uint16_t>(head + layout.key_scales_at(), layout.scales(layout.key_dim), f32_to_f16(value));
      fill_cells<uint16_t>(head + layout.value_scales_at(), layout.scales(layout.value_dim), f32_to_f16(value));
  }
}

}  // namespace sf::SF_ISA
