// Activation rows to 8 bits: blocks of 32, q = round_even(x * (127 / amax)), d = amax / 127, sums of q over each 16.
#include "linear_lanes.h"
#include "linear_row.h"

namespace sf::SF_ISA {
namespace {

constexpr uint32_t kInfinity = 0x7f800000u, kNan = 0x7fc00000u;
constexpr uint32_t kNegligible = 27u << 23;  // 2^-100: below, 127 / amax could overflow; such a block counts as zeros

#if defined(SF_ISA_avx512)

uint32_t largest_magnitude(const float* x) {  // as bits, so that NaN is above infinity is above numbers
  __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  __m512i a = _mm512_and_si512(_mm512_loadu_si512(x), magnitude);
  __m512i b = _mm512_and_si512(_mm512_loadu_si512(x + 16), magnitude);
  return _mm512_reduce_max_epu32(_mm512_max_epu32(a, b));
}
int32_t quantise_half(const float* x, float inverse, int8_t* q) {
  __m512i v = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x), _mm512_set1_ps(inverse)));
  _mm_storeu_si128((__m128i*)q, _mm512_cvtepi32_epi8(v));
  return _mm512_reduce_add_epi32(v);
}

// Four blocks at a time, so that sums and maxima over lanes are trees over vectors.
__m512i low_quads(__m512i a, __m512i b) { return _mm512_unpacklo_epi32(a, b); }
__m512i high_quads(__m512i a, __m512i b) { return _mm512_unpackhi_epi32(a, b); }
__m128i fold_max(__m512i a, __m512i b, __m512i c, __m512i d) {  // [max a, max b, max c, max d]
  __m512i ab = _mm512_max_epu32(low_quads(a, b), high_quads(a, b));
  __m512i cd = _mm512_max_epu32(low_quads(c, d), high_quads(c, d));
  __m512i all = _mm512_max_epu32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
  __m256i half = _mm256_max_epu32(_mm512_castsi512_si256(all), _mm512_extracti64x4_epi64(all, 1));
  return _mm_max_epu32(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
}
__m128i fold_sum(const __m512i* v) {  // [sum v[0], .. sum v[3]]
  __m512i ab = _mm512_add_epi32(low_quads(v[0], v[1]), high_quads(v[0], v[1]));
  __m512i cd = _mm512_add_epi32(low_quads(v[2], v[3]), high_quads(v[2], v[3]));
  __m512i all = _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
  __m256i half = _mm256_add_epi32(_mm512_castsi512_si256(all), _mm512_extracti64x4_epi64(all, 1));
  return _mm_add_epi32(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
}
void quantise_four(const float* x, int8_t* q, float* d, int32_t* sums) {
  __m512i magnitude = _mm512_set1_epi32(0x7fffffff), m[4], v[8];
  for (int b = 0; b < 4; ++b)
    m[b] = _mm512_max_epu32(_mm512_and_si512(_mm512_loadu_si512(x + 32 * b), magnitude),
                            _mm512_and_si512(_mm512_loadu_si512(x + 32 * b + 16), magnitude));
  __m128i largest = fold_max(m[0], m[1], m[2], m[3]);
  __mmask8 finite = _mm_cmplt_epu32_mask(largest, _mm_set1_epi32(int(kInfinity)));
  __mmask8 usual = finite & _mm_cmpge_epu32_mask(largest, _mm_set1_epi32(int(kNegligible)));
  __m128 amax = _mm_castsi128_ps(largest), limit = _mm_set1_ps(127.0f);
  alignas(16) float inverse[4];
  _mm_store_ps(inverse, _mm_div_ps(limit, amax));
  __m128 scale = _mm_maskz_div_ps(usual, amax, limit);
  _mm_storeu_ps(d, _mm_mask_blend_ps(finite, _mm_set1_ps(float_of(kNan)), scale));
  for (int h = 0; h < 8; ++h) {
    __mmask16 keep = usual >> (h / 2) & 1 ? 0xffff : 0;
    v[h] = _mm512_maskz_cvtps_epi32(keep, _mm512_mul_ps(_mm512_loadu_ps(x + 16 * h), _mm512_set1_ps(inverse[h / 2])));
    _mm_storeu_si128((__m128i*)(q + 16 * h), _mm512_cvtepi32_epi8(v[h]));
  }
  _mm_storeu_si128((__m128i*)sums, fold_sum(v));
  _mm_storeu_si128((__m128i*)(sums + 4), fold_sum(v + 4));
}

#elif defined(SF_ISA_avx2)

uint32_t largest_magnitude(const float* x) {
  __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
  __m256i m = _mm256_setzero_si256();
  for (int i = 0; i < 32; i += 8)
    m = _mm256_max_epu32(m, _mm256_and_si256(_mm256_loadu_si256((const __m256i*)(x + i)), magnitude));
  __m128i n = _mm_max_epu32(_mm256_castsi256_si128(m), _mm256_extracti128_si256(m, 1));
  n = _mm_max_epu32(n, _mm_shuffle_epi32(n, 0x4e));
  n = _mm_max_epu32(n, _mm_shuffle_epi32(n, 0xb1));
  return uint32_t(_mm_cvtsi128_si32(n));
}
int32_t quantise_half(const float* x, float inverse, int8_t* q) {
  __m256 id = _mm256_set1_ps(inverse);
  __m256i a = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x), id));
  __m256i b = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8), id));
  __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xd8);
  _mm_storeu_si128((__m128i*)q, _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
  __m256i s = _mm256_add_epi32(a, b);
  __m128i n = _mm_add_epi32(_mm256_castsi256_si128(s), _mm256_extracti128_si256(s, 1));
  n = _mm_add_epi32(n, _mm_shuffle_epi32(n, 0x4e));
  n = _mm_add_epi32(n, _mm_shuffle_epi32(n, 0xb1));
  return _mm_cvtsi128_si32(n);
}

#else

uint32_t largest_magnitude(const float* x) {
  uint32_t m = 0;
  for (int i = 0; i < 32; ++i) {
    uint32_t a = bits_of(x[i]) & 0x7fffffffu;
    m = a > m ? a : m;
  }
  return m;
}
int32_t quantise_half(const float* x, float inverse, int8_t* q) {
  int32_t sum = 0;
  for (int i = 0; i < 16; ++i) {
    int32_t v = int32_t(std::nearbyint(x[i] * inverse));
    q[i] = int8_t(v);
    sum += v;
  }
  return sum;
}

#endif

}  // namespace

void quantise_row(const float* x, int64_t in, int8_t* q, float* d, int32_t* sums) {
  int64_t b = 0;
#if defined(SF_ISA_avx512)
  for (; b + 4 <= in / 32; b += 4, x += 128, q += 128, sums += 8) quantise_four(x, q, d + b, sums);
#endif
  for (; b < in / 32; ++b, x += 32, q += 32, sums += 2) {
    uint32_t magnitude = largest_magnitude(x);
    if (magnitude >= kInfinity || magnitude < kNegligible) {
      d[b] = magnitude >= kInfinity ? float_of(kNan) : 0.0f;  // not finite: NaN, for this row's outputs only
      std::memset(q, 0, 32);
      sums[0] = sums[1] = 0;
      continue;
    }
    float amax = float_of(magnitude), inverse = 127.0f / amax;
    d[b] = amax / 127.0f;
    sums[0] = quantise_half(x, inverse, q);
    sums[1] = quantise_half(x + 16, inverse, q + 16);
  }
}

}  // namespace sf::SF_ISA
