// The last lanes of a row: they go through a zero-padded copy of sixteen, so they get the same arithmetic as the rest.
#pragma once
#include <cstring>

#include "vec.h"

namespace sf::SF_ISA {

// `n` floats are left at `p`; more than sixteen are sixteen.
inline f32x16 load_part(const float* p, int64_t n) {
  if (n >= 16) return load(p);
  float t[16] = {};
  std::memcpy(t, p, size_t(n) * 4);
  return load(t);
}
inline void store_part(float* p, f32x16 x, int64_t n) {
  if (n >= 16) return store(p, x);
  float t[16];
  store(t, x);
  std::memcpy(p, t, size_t(n) * 4);
}

}  // namespace sf::SF_ISA
