// Counter-based noise: Philox4x32-10 (Salmon et al., SC 2011) and the Gumbel transform. kernels/reference/noise.py says
// which counter and word belong to a token id, and computes the same bits. Included only by kernels/cpu/isa/sampler.cpp.
#pragma once
#include <cmath>

#include "../sampler_kernels.h"
#include "../vec.h"

namespace sf::SF_ISA {

constexpr uint32_t kPhiloxMultipliers[2] = {0xD2511F53u, 0xCD9E8D57u};
constexpr uint32_t kPhiloxKeySteps[2] = {0x9E3779B9u, 0xBB67AE85u};
constexpr int kPhiloxRounds = 10;
constexpr int kNoiseRun = 64;  // token ids that share 16 counters

// a * m as 64 bits, split into halves.
inline void multiply_wide(i32x16 a, uint32_t m, i32x16& high, i32x16& low);
inline i32x16 xor_i(i32x16 a, i32x16 b);
template <int N> inline i32x16 shr_logical(i32x16 a);

#if defined(SF_ISA_avx512)
inline void multiply_wide(i32x16 a, uint32_t m, i32x16& high, i32x16& low) {
  const __m512i factor = _mm512_set1_epi64(int64_t(m));
  const __m512i even = _mm512_mul_epu32(a.v, factor), odd = _mm512_mul_epu32(_mm512_srli_epi64(a.v, 32), factor);
  low.v = _mm512_mask_blend_epi32(0xAAAA, even, _mm512_slli_epi64(odd, 32));
  high.v = _mm512_mask_blend_epi32(0xAAAA, _mm512_srli_epi64(even, 32), odd);
}
inline i32x16 xor_i(i32x16 a, i32x16 b) { return {_mm512_xor_si512(a.v, b.v)}; }
template <int N> inline i32x16 shr_logical(i32x16 a) { return {_mm512_srli_epi32(a.v, N)}; }
#elif defined(SF_ISA_avx2)
inline void multiply_half(__m256i a, __m256i factor, __m256i& high, __m256i& low) {
  const __m256i even = _mm256_mul_epu32(a, factor), odd = _mm256_mul_epu32(_mm256_srli_epi64(a, 32), factor);
  low = _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xAA);
  high = _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xAA);
}
inline void multiply_wide(i32x16 x, uint32_t m, i32x16& high, i32x16& low) {
  const __m256i factor = _mm256_set1_epi64x(int64_t(m));
  multiply_half(x.a, factor, high.a, low.a);
  multiply_half(x.b, factor, high.b, low.b);
}
inline i32x16 xor_i(i32x16 x, i32x16 y) { return {_mm256_xor_si256(x.a, y.a), _mm256_xor_si256(x.b, y.b)}; }
template <int N> inline i32x16 shr_logical(i32x16 x) { return {_mm256_srli_epi32(x.a, N), _mm256_srli_epi32(x.b, N)}; }
#else
inline void multiply_wide(i32x16 a, uint32_t m, i32x16& high, i32x16& low) {
  for (int i = 0; i < 16; ++i) {
    const uint64_t product = uint64_t(uint32_t(a.v[i])) * m;
    high.v[i] = int32_t(uint32_t(product >> 32));
    low.v[i] = int32_t(uint32_t(product));
  }
}
inline i32x16 xor_i(i32x16 a, i32x16 b) {
  for (int i = 0; i < 16; ++i) a.v[i] ^= b.v[i];
  return a;
}
template <int N> inline i32x16 shr_logical(i32x16 a) {
  for (int i = 0; i < 16; ++i) a.v[i] = int32_t(uint32_t(a.v[i]) >> N);
  return a;
}
#endif

// The noise words of ids first_id, ..., first_id + 63 (first_id a multiple of 64): words[w] has those from 16 * w on.
inline void noise_words(const Noise& noise, int64_t first_id, i32x16 words[4]) {
  alignas(64) static constexpr int32_t kLanes[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  i32x16 c0 = add_i(load_i(kLanes), splat_i(int32_t(first_id / 4))), c1 = splat_i(int32_t(noise.position));
  i32x16 c2 = splat_i(0), c3 = splat_i(0);
  uint32_t k0 = uint32_t(noise.seed), k1 = uint32_t(noise.seed >> 32);
  for (int round = 0; round < kPhiloxRounds; ++round, k0 += kPhiloxKeySteps[0], k1 += kPhiloxKeySteps[1]) {
    i32x16 high0, low0, high1, low1;
    multiply_wide(c0, kPhiloxMultipliers[0], high0, low0);
    multiply_wide(c2, kPhiloxMultipliers[1], high1, low1);
    c0 = xor_i(xor_i(high1, c1), splat_i(int32_t(k0)));
    c1 = low1;
    c2 = xor_i(xor_i(high0, c3), splat_i(int32_t(k1)));
    c3 = low0;
  }
  words[0] = c0;
  words[1] = c1;
  words[2] = c2;
  words[3] = c3;
}

// Natural logarithm in double, in the operations and the order of noise.py's `log`.
inline double log_exact(double x) {
  int exponent;
  double m = std::frexp(x, &exponent);
  if (m < 0.7071067811865476) {
    m = 2 * m;
    exponent -= 1;
  }
  const double s = (m - 1) / (m + 1), square = s * s;
  double series = 1.0 / 21;
  for (int denominator = 19; denominator > 0; denominator -= 2) series = series * square + 1.0 / denominator;
  return exponent * 0.6931471805599453 + 2 * s * series;
}

// -log(-log(u)) with u = (word + 1/2) / 2^32, so it lies in [-3.13, 22.88].
constexpr double kMaxGumbel = 22.88;
inline double gumbel_exact(uint32_t word) { return -log_exact(-log_exact((word + 0.5) * 0x1p-32)); }

}  // namespace sf::SF_ISA
