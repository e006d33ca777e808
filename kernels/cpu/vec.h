// Sixteen float lanes with one meaning on every instruction set: same operations, same order, same bits.
// Included only by kernels/cpu/isa/*.cpp, which are compiled once per set with SF_ISA naming the namespace.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#if defined(SF_ISA_avx512) || defined(SF_ISA_avx2)
#include <immintrin.h>
#endif

namespace sf::SF_ISA {

inline uint32_t bits_of(float x) { uint32_t u; std::memcpy(&u, &x, 4); return u; }
inline float float_of(uint32_t u) { float x; std::memcpy(&x, &u, 4); return x; }

// f16 <-> f32, round to nearest even, as the hardware conversions do (NaN payloads kept, quieted).
inline float f16_to_f32(uint16_t h) {
#if defined(SF_ISA_avx512) || defined(SF_ISA_avx2)
  return _cvtsh_ss(h);
#else
  uint32_t sign = uint32_t(h & 0x8000u) << 16, exp = (h >> 10) & 31u, man = h & 0x3ffu;
  if (exp == 31) return float_of(sign | 0x7f800000u | (man << 13) | (man ? 0x400000u : 0u));
  if (exp == 0) {
    float v = float(man) * 0x1p-24f;
    return (h & 0x8000u) ? -v : v;
  }
  return float_of(sign | ((exp + 112u) << 23) | (man << 13));
#endif
}
inline uint16_t f32_to_f16(float x) {
#if defined(SF_ISA_avx512) || defined(SF_ISA_avx2)
  return _cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT);
#else
  uint32_t u = bits_of(x), sign = (u >> 16) & 0x8000u, mag = u & 0x7fffffffu;
  if (mag > 0x7f800000u) return uint16_t(sign | 0x7c00u | 0x200u | ((mag >> 13) & 0x3ffu));
  if (mag >= 0x477ff000u) return uint16_t(sign | 0x7c00u);  // rounds to infinity
  if (mag < 0x38800000u) {                                  // subnormal half: adding 0.5 aligns and rounds to even
    float v = float_of(mag) + 0.5f;
    return uint16_t(sign | (bits_of(v) - 0x3f000000u));
  }
  return uint16_t(sign | ((mag + 0xc8000000u + 0xfffu + ((mag >> 13) & 1u)) >> 13));
#endif
}
inline float bf16_to_f32(uint16_t h) { return float_of(uint32_t(h) << 16); }
inline uint16_t f32_to_bf16(float x) {
  uint32_t u = bits_of(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) return uint16_t((u >> 16) | 0x40u);
  return uint16_t((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

#if defined(SF_ISA_avx512)

struct f32x16 { __m512 v; };
struct i32x16 { __m512i v; };
inline f32x16 splat(float x) { return {_mm512_set1_ps(x)}; }
inline f32x16 load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline void store(float* p, f32x16 a) { _mm512_storeu_ps(p, a.v); }
inline f32x16 load_f16(const uint16_t* p) { return {_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p))}; }
inline void store_f16(uint16_t* p, f32x16 a) { _mm256_storeu_si256((__m256i*)p, _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT)); }
inline f32x16 load_bf16(const uint16_t* p) { return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)), 16))}; }
inline f32x16 load_i8(const int8_t* p) { return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p)))}; }
inline f32x16 operator+(f32x16 a, f32x16 b) { return {_mm512_add_ps(a.v, b.v)}; }
inline f32x16 operator-(f32x16 a, f32x16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline f32x16 operator*(f32x16 a, f32x16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline f32x16 operator/(f32x16 a, f32x16 b) { return {_mm512_div_ps(a.v, b.v)}; }
inline f32x16 fma(f32x16 a, f32x16 b, f32x16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }    // a*b + c
inline f32x16 fnma(f32x16 a, f32x16 b, f32x16 c) { return {_mm512_fnmadd_ps(a.v, b.v, c.v)}; }  // c - a*b
inline f32x16 max(f32x16 a, f32x16 b) { return {_mm512_max_ps(a.v, b.v)}; }  // b where either is NaN
inline f32x16 min(f32x16 a, f32x16 b) { return {_mm512_min_ps(a.v, b.v)}; }
inline f32x16 round_even(f32x16 a) { return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
inline i32x16 to_i32(f32x16 a) { return {_mm512_cvtps_epi32(a.v)}; }  // of integral values in range
inline f32x16 to_f32(i32x16 a) { return {_mm512_cvtepi32_ps(a.v)}; }
inline i32x16 splat_i(int32_t x) { return {_mm512_set1_epi32(x)}; }
inline i32x16 load_i(const int32_t* p) { return {_mm512_loadu_si512(p)}; }
inline i32x16 add_i(i32x16 a, i32x16 b) { return {_mm512_add_epi32(a.v, b.v)}; }
inline i32x16 sub_i(i32x16 a, i32x16 b) { return {_mm512_sub_epi32(a.v, b.v)}; }
inline i32x16 mul_i(i32x16 a, i32x16 b) { return {_mm512_mullo_epi32(a.v, b.v)}; }
template <int N> inline i32x16 shl_i(i32x16 a) { return {_mm512_slli_epi32(a.v, N)}; }
inline f32x16 as_f32(i32x16 a) { return {_mm512_castsi512_ps(a.v)}; }
inline i32x16 as_i32(f32x16 a) { return {_mm512_castps_si512(a.v)}; }
// a where bit i of mask is set, else b
inline f32x16 select(uint32_t mask, f32x16 a, f32x16 b) { return {_mm512_mask_blend_ps(__mmask16(mask), b.v, a.v)}; }
inline uint32_t less(f32x16 a, f32x16 b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ); }
inline uint32_t is_nan(f32x16 a) { return _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q); }

#elif defined(SF_ISA_avx2)

struct f32x16 { __m256 a, b; };
struct i32x16 { __m256i a, b; };
inline f32x16 splat(float x) { __m256 v = _mm256_set1_ps(x); return {v, v}; }
inline f32x16 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline void store(float* p, f32x16 x) { _mm256_storeu_ps(p, x.a); _mm256_storeu_ps(p + 8, x.b); }
inline f32x16 load_f16(const uint16_t* p) { return {_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)), _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)(p + 8)))}; }
inline void store_f16(uint16_t* p, f32x16 x) {
  _mm_storeu_si128((__m128i*)p, _mm256_cvtps_ph(x.a, _MM_FROUND_TO_NEAREST_INT));
  _mm_storeu_si128((__m128i*)(p + 8), _mm256_cvtps_ph(x.b, _MM_FROUND_TO_NEAREST_INT));
}
inline __m256 bf16_half(const uint16_t* p) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p)), 16)); }
inline f32x16 load_bf16(const uint16_t* p) { return {bf16_half(p), bf16_half(p + 8)}; }
inline __m256 i8_half(const int8_t* p) { return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)p))); }
inline f32x16 load_i8(const int8_t* p) { return {i8_half(p), i8_half(p + 8)}; }
#define SF_PAIR(name, op) inline f32x16 name(f32x16 x, f32x16 y) { return {op(x.a, y.a), op(x.b, y.b)}; }
SF_PAIR(operator+, _mm256_add_ps) SF_PAIR(operator-, _mm256_sub_ps) SF_PAIR(operator*, _mm256_mul_ps) SF_PAIR(operator/, _mm256_div_ps)
SF_PAIR(max, _mm256_max_ps) SF_PAIR(min, _mm256_min_ps)
#undef SF_PAIR
inline f32x16 fma(f32x16 x, f32x16 y, f32x16 z) { return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)}; }
inline f32x16 fnma(f32x16 x, f32x16 y, f32x16 z) { return {_mm256_fnmadd_ps(x.a, y.a, z.a), _mm256_fnmadd_ps(x.b, y.b, z.b)}; }
inline f32x16 round_even(f32x16 x) { constexpr int m = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC; return {_mm256_round_ps(x.a, m), _mm256_round_ps(x.b, m)}; }
inline i32x16 to_i32(f32x16 x) { return {_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b)}; }
inline f32x16 to_f32(i32x16 x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
inline i32x16 splat_i(int32_t x) { __m256i v = _mm256_set1_epi32(x); return {v, v}; }
inline i32x16 load_i(const int32_t* p) { return {_mm256_loadu_si256((const __m256i*)p), _mm256_loadu_si256((const __m256i*)(p + 8))}; }
inline i32x16 add_i(i32x16 x, i32x16 y) { return {_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)}; }
inline i32x16 sub_i(i32x16 x, i32x16 y) { return {_mm256_sub_epi32(x.a, y.a), _mm256_sub_epi32(x.b, y.b)}; }
inline i32x16 mul_i(i32x16 x, i32x16 y) { return {_mm256_mullo_epi32(x.a, y.a), _mm256_mullo_epi32(x.b, y.b)}; }
template <int N> inline i32x16 shl_i(i32x16 x) { return {_mm256_slli_epi32(x.a, N), _mm256_slli_epi32(x.b, N)}; }
inline f32x16 as_f32(i32x16 x) { return {_mm256_castsi256_ps(x.a), _mm256_castsi256_ps(x.b)}; }
inline i32x16 as_i32(f32x16 x) { return {_mm256_castps_si256(x.a), _mm256_castps_si256(x.b)}; }
inline __m256 lane_mask(uint32_t m8) {
  const __m256i bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  return _mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(int(m8)), bit), bit));
}
inline f32x16 select(uint32_t mask, f32x16 x, f32x16 y) { return {_mm256_blendv_ps(y.a, x.a, lane_mask(mask & 255u)), _mm256_blendv_ps(y.b, x.b, lane_mask((mask >> 8) & 255u))}; }
inline uint32_t less(f32x16 x, f32x16 y) { return uint32_t(_mm256_movemask_ps(_mm256_cmp_ps(x.a, y.a, _CMP_LT_OQ))) | uint32_t(_mm256_movemask_ps(_mm256_cmp_ps(x.b, y.b, _CMP_LT_OQ))) << 8; }
inline uint32_t is_nan(f32x16 x) { return uint32_t(_mm256_movemask_ps(_mm256_cmp_ps(x.a, x.a, _CMP_UNORD_Q))) | uint32_t(_mm256_movemask_ps(_mm256_cmp_ps(x.b, x.b, _CMP_UNORD_Q))) << 8; }

#else  // portable

struct f32x16 { float v[16]; };
struct i32x16 { int32_t v[16]; };
#define SF_LANES for (int i = 0; i < 16; ++i)
inline f32x16 splat(float x) { f32x16 r; SF_LANES r.v[i] = x; return r; }
inline f32x16 load(const float* p) { f32x16 r; std::memcpy(r.v, p, 64); return r; }
inline void store(float* p, f32x16 a) { std::memcpy(p, a.v, 64); }
inline f32x16 load_f16(const uint16_t* p) { f32x16 r; SF_LANES r.v[i] = f16_to_f32(p[i]); return r; }
inline void store_f16(uint16_t* p, f32x16 a) { SF_LANES p[i] = f32_to_f16(a.v[i]); }
inline f32x16 load_bf16(const uint16_t* p) { f32x16 r; SF_LANES r.v[i] = bf16_to_f32(p[i]); return r; }
inline f32x16 load_i8(const int8_t* p) { f32x16 r; SF_LANES r.v[i] = float(p[i]); return r; }
inline f32x16 operator+(f32x16 a, f32x16 b) { SF_LANES a.v[i] = a.v[i] + b.v[i]; return a; }
inline f32x16 operator-(f32x16 a, f32x16 b) { SF_LANES a.v[i] = a.v[i] - b.v[i]; return a; }
inline f32x16 operator*(f32x16 a, f32x16 b) { SF_LANES a.v[i] = a.v[i] * b.v[i]; return a; }
inline f32x16 operator/(f32x16 a, f32x16 b) { SF_LANES a.v[i] = a.v[i] / b.v[i]; return a; }
inline f32x16 fma(f32x16 a, f32x16 b, f32x16 c) { SF_LANES c.v[i] = std::fma(a.v[i], b.v[i], c.v[i]); return c; }
inline f32x16 fnma(f32x16 a, f32x16 b, f32x16 c) { SF_LANES c.v[i] = std::fma(-a.v[i], b.v[i], c.v[i]); return c; }
inline f32x16 max(f32x16 a, f32x16 b) { SF_LANES a.v[i] = a.v[i] > b.v[i] ? a.v[i] : b.v[i]; return a; }
inline f32x16 min(f32x16 a, f32x16 b) { SF_LANES a.v[i] = a.v[i] < b.v[i] ? a.v[i] : b.v[i]; return a; }
inline f32x16 round_even(f32x16 a) { SF_LANES a.v[i] = std::nearbyint(a.v[i]); return a; }
inline i32x16 to_i32(f32x16 a) { i32x16 r; SF_LANES r.v[i] = int32_t(a.v[i]); return r; }
inline f32x16 to_f32(i32x16 a) { f32x16 r; SF_LANES r.v[i] = float(a.v[i]); return r; }
inline i32x16 splat_i(int32_t x) { i32x16 r; SF_LANES r.v[i] = x; return r; }
inline i32x16 load_i(const int32_t* p) { i32x16 r; std::memcpy(r.v, p, 64); return r; }
inline i32x16 add_i(i32x16 a, i32x16 b) { SF_LANES a.v[i] = int32_t(uint32_t(a.v[i]) + uint32_t(b.v[i])); return a; }
inline i32x16 sub_i(i32x16 a, i32x16 b) { SF_LANES a.v[i] = int32_t(uint32_t(a.v[i]) - uint32_t(b.v[i])); return a; }
inline i32x16 mul_i(i32x16 a, i32x16 b) { SF_LANES a.v[i] = int32_t(uint32_t(a.v[i]) * uint32_t(b.v[i])); return a; }
template <int N> inline i32x16 shl_i(i32x16 a) { SF_LANES a.v[i] = int32_t(uint32_t(a.v[i]) << N); return a; }
inline f32x16 as_f32(i32x16 a) { f32x16 r; std::memcpy(r.v, a.v, 64); return r; }
inline i32x16 as_i32(f32x16 a) { i32x16 r; std::memcpy(r.v, a.v, 64); return r; }
inline f32x16 select(uint32_t mask, f32x16 a, f32x16 b) { SF_LANES a.v[i] = (mask >> i & 1u) ? a.v[i] : b.v[i]; return a; }
inline uint32_t less(f32x16 a, f32x16 b) { uint32_t m = 0; SF_LANES m |= uint32_t(a.v[i] < b.v[i]) << i; return m; }
inline uint32_t is_nan(f32x16 a) { uint32_t m = 0; SF_LANES m |= uint32_t(a.v[i] != a.v[i]) << i; return m; }
#undef SF_LANES

#endif

// Sum and maximum over lanes in one fixed tree: (i, i+8), (i, i+4), (i, i+2), (0, 1).
#if defined(SF_ISA_avx512) || defined(SF_ISA_avx2)
inline __m256 low_half(f32x16 x) {
#if defined(SF_ISA_avx512)
  return _mm512_castps512_ps256(x.v);
#else
  return x.a;
#endif
}
inline __m256 high_half(f32x16 x) {
#if defined(SF_ISA_avx512)
  return _mm512_extractf32x8_ps(x.v, 1);
#else
  return x.b;
#endif
}
inline float sum_lanes(f32x16 x) {
  const __m256 w8 = _mm256_add_ps(low_half(x), high_half(x));
  const __m128 w4 = _mm_add_ps(_mm256_castps256_ps128(w8), _mm256_extractf128_ps(w8, 1));
  const __m128 w2 = _mm_add_ps(w4, _mm_movehl_ps(w4, w4));
  return _mm_cvtss_f32(_mm_add_ss(w2, _mm_movehdup_ps(w2)));
}
inline float max_lanes(f32x16 x) {
  const __m256 w8 = _mm256_max_ps(low_half(x), high_half(x));
  const __m128 w4 = _mm_max_ps(_mm256_castps256_ps128(w8), _mm256_extractf128_ps(w8, 1));
  const __m128 w2 = _mm_max_ps(w4, _mm_movehl_ps(w4, w4));
  return _mm_cvtss_f32(_mm_max_ss(w2, _mm_movehdup_ps(w2)));
}
#else
inline float sum_lanes(f32x16 a) {
  for (int w = 8; w; w /= 2)
    for (int i = 0; i < w; ++i) a.v[i] = a.v[i] + a.v[i + w];
  return a.v[0];
}
inline float max_lanes(f32x16 a) {
  for (int w = 8; w; w /= 2)
    for (int i = 0; i < w; ++i) a.v[i] = a.v[i] > a.v[i + w] ? a.v[i] : a.v[i + w];
  return a.v[0];
}
#endif

}  // namespace sf::SF_ISA
