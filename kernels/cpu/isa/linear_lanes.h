// What the matrix products need from an instruction set: `kLanes` output columns at a time, as bytes (4 inputs per
// lane), integers and floats. All sets compute the same exact integers and the same float operations.
#pragma once
#include "formats.h"
#include "vec.h"

#if defined(__GNUC__) && !defined(__clang__)
// GCC warns of its own _mm512_undefined_*, wherever these are inlined.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

namespace sf::SF_ISA {

// How far ahead of their use weights are fetched into the second-level cache. Hardware alone reaches a third of the
// memory's bandwidth here: it follows a stream by a few lines only.
constexpr int64_t kPrefetchBytes = 16 * 1024;
inline void prefetch(const uint8_t* p) { __builtin_prefetch(p, 0, 2); }

#if defined(SF_ISA_avx512)

constexpr int kLanes = 16;
constexpr int kMaxRows = 8;  // rows that share one pass over the weights of a tile
using Bytes = __m512i;
using Ints = __m512i;
using Floats = __m512;

inline Bytes load_bytes(const uint8_t* p) { return _mm512_loadu_si512(p); }
inline void store_bytes(uint8_t* p, Bytes v) { _mm512_storeu_si512(p, v); }
inline Bytes splat_byte(int b) { return _mm512_set1_epi8(char(b)); }
inline Bytes and_bytes(Bytes a, Bytes b) { return _mm512_and_si512(a, b); }
inline Bytes or_masked(Bytes a, Bytes b, Bytes mask) {
  return _mm512_ternarylogic_epi32(a, b, mask, 0xf8);
}  // a | (b & mask)
// Shifts that let bits of neighbouring bytes in: mask afterwards. N > 0 is left.
template <int N> inline Bytes shift(Bytes v) {
  if constexpr (N > 0) return _mm512_slli_epi16(v, N);
  else if constexpr (N < 0) return _mm512_srli_epi16(v, -N);
  else return v;
}
inline Bytes load_table(const uint8_t* t) { return _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i*)t)); }
inline Bytes lookup(Bytes table, Bytes index) { return _mm512_shuffle_epi8(table, index); }

inline Ints splat_int(const int32_t* p) { return _mm512_set1_epi32(*p); }
inline Ints int_value(int x) { return _mm512_set1_epi32(x); }
inline Ints zero_ints() { return _mm512_setzero_si512(); }
inline Floats to_floats(Ints v) { return _mm512_cvtepi32_ps(v); }
inline Floats splat_float(const float* p) { return _mm512_set1_ps(*p); }
inline Floats splat_value(float x) { return _mm512_set1_ps(x); }
inline Floats zero_floats() { return _mm512_setzero_ps(); }
inline Floats load_floats(const float* p) { return _mm512_loadu_ps(p); }
inline void store_floats(float* p, Floats v) { _mm512_storeu_ps(p, v); }
inline Floats load_halves(const uint8_t* p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p)); }
inline Ints load_ints(const uint8_t* p) { return _mm512_loadu_si512(p); }
inline Ints load_u8(const uint8_t* p) { return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)p)); }
inline Ints load_s8(const uint8_t* p) { return _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p)); }
template <int N> inline Ints shr_int(Ints v) { return _mm512_srli_epi32(v, N); }
template <int N> inline Ints shl_int(Ints v) { return _mm512_slli_epi32(v, N); }
inline Ints and_int(Ints v, int mask) { return _mm512_and_si512(v, _mm512_set1_epi32(mask)); }
inline Ints sub_int(Ints a, Ints b) { return _mm512_sub_epi32(a, b); }
inline Floats floats_of(Ints bits) { return _mm512_castsi512_ps(bits); }
inline Ints bits_of(Floats v) { return _mm512_castps_si512(v); }
inline Ints select_below(Ints v, int bound, Ints a, Ints b) {  // v < bound ? a : b
  return _mm512_mask_blend_epi32(_mm512_cmplt_epi32_mask(v, _mm512_set1_epi32(bound)), b, a);
}
inline Ints shl_ints(Ints v, Ints n) { return _mm512_sllv_epi32(v, n); }
inline Floats add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
inline Floats mul(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
inline Floats fma(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
inline Floats fnma(Floats a, Floats b, Floats c) { return _mm512_fnmadd_ps(a, b, c); }

// The codes of one group, ready to be multiplied.
struct Codes { Bytes code; };
template <bool Wide> inline Codes prepare(Bytes code) { return {code}; }
constexpr bool kSignsWideCodes = false;

// The exact sum of code * activation over Count groups of 4 inputs, lane by lane.
template <int Run> struct Sum {
  Ints total;
  template <int G, int Count> void add(const Codes& w, const int8_t* a) {
    int32_t word;
    std::memcpy(&word, a, 4);
    total = _mm512_dpbusd_epi32(total, w.code, _mm512_set1_epi32(word));
  }
};
constexpr int sum_run(int) { return 1; }

#elif defined(SF_ISA_avx2)

constexpr int kLanes = 8;
constexpr int kMaxRows = 4;
using Bytes = __m256i;
using Ints = __m256i;
using Floats = __m256;

inline Bytes load_bytes(const uint8_t* p) { return _mm256_loadu_si256((const __m256i*)p); }
inline void store_bytes(uint8_t* p, Bytes v) { _mm256_storeu_si256((__m256i*)p, v); }
inline Bytes splat_byte(int b) { return _mm256_set1_epi8(char(b)); }
inline Bytes and_bytes(Bytes a, Bytes b) { return _mm256_and_si256(a, b); }
inline Bytes or_masked(Bytes a, Bytes b, Bytes mask) { return _mm256_or_si256(a, _mm256_and_si256(b, mask)); }
template <int N> inline Bytes shift(Bytes v) {
  if constexpr (N > 0) return _mm256_slli_epi16(v, N);
  else if constexpr (N < 0) return _mm256_srli_epi16(v, -N);
  else return v;
}
inline Bytes load_table(const uint8_t* t) { return _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i*)t)); }
inline Bytes lookup(Bytes table, Bytes index) { return _mm256_shuffle_epi8(table, index); }

inline Ints splat_int(const int32_t* p) { return _mm256_set1_epi32(*p); }
inline Ints int_value(int x) { return _mm256_set1_epi32(x); }
inline Ints zero_ints() { return _mm256_setzero_si256(); }
inline Floats to_floats(Ints v) { return _mm256_cvtepi32_ps(v); }
inline Floats splat_float(const float* p) { return _mm256_set1_ps(*p); }
inline Floats splat_value(float x) { return _mm256_set1_ps(x); }
inline Floats zero_floats() { return _mm256_setzero_ps(); }
inline Floats load_floats(const float* p) { return _mm256_loadu_ps(p); }
inline void store_floats(float* p, Floats v) { _mm256_storeu_ps(p, v); }
inline Floats load_halves(const uint8_t* p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)); }
inline Ints load_ints(const uint8_t* p) { return _mm256_loadu_si256((const __m256i*)p); }
inline Ints load_u8(const uint8_t* p) { return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)p)); }
inline Ints load_s8(const uint8_t* p) { return _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)p)); }
template <int N> inline Ints shr_int(Ints v) { return _mm256_srli_epi32(v, N); }
template <int N> inline Ints shl_int(Ints v) { return _mm256_slli_epi32(v, N); }
inline Ints and_int(Ints v, int mask) { return _mm256_and_si256(v, _mm256_set1_epi32(mask)); }
inline Ints sub_int(Ints a, Ints b) { return _mm256_sub_epi32(a, b); }
inline Floats floats_of(Ints bits) { return _mm256_castsi256_ps(bits); }
inline Ints bits_of(Floats v) { return _mm256_castps_si256(v); }
inline Ints select_below(Ints v, int bound, Ints a, Ints b) {
  return _mm256_blendv_epi8(b, a, _mm256_cmpgt_epi32(_mm256_set1_epi32(bound), v));
}
inline Ints shl_ints(Ints v, Ints n) { return _mm256_sllv_epi32(v, n); }
inline Floats add(Floats a, Floats b) { return _mm256_add_ps(a, b); }
inline Floats mul(Floats a, Floats b) { return _mm256_mul_ps(a, b); }
inline Floats fma(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
inline Floats fnma(Floats a, Floats b, Floats c) { return _mm256_fnmadd_ps(a, b, c); }

// maddubs saturates at 32767: two products of a code and an activation (at most 127 in size) must fit, so codes above
// 128 are made signed and multiplied as |w| x (a with the sign of w).
struct Codes { Bytes code; Bytes sign; bool is_signed; };
template <bool Wide> inline Codes prepare(Bytes code) {
  if constexpr (Wide) {
    Bytes w = _mm256_xor_si256(code, _mm256_set1_epi8(char(0x80)));
    return {_mm256_abs_epi8(w), w, true};
  } else {
    return {code, code, false};
  }
}
constexpr bool kSignsWideCodes = true;  // 128 is then subtracted from the codes, not corrected for

// Run: how many groups 16 bits can hold.
template <int Run> struct Sum {
  Ints total;
  __m256i pairs;
  template <int G, int Count> void add(const Codes& w, const int8_t* a) {
    int32_t word;
    std::memcpy(&word, a, 4);
    __m256i x = _mm256_set1_epi32(word);
    if (w.is_signed) x = _mm256_sign_epi8(x, w.sign);
    __m256i products = _mm256_maddubs_epi16(w.code, x);
    pairs = G % Run == 0 ? products : _mm256_add_epi16(pairs, products);
    if (G % Run == Run - 1 || G == Count - 1)
      total = _mm256_add_epi32(total, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
  }
};
constexpr int sum_run(int max_code) {
  int run = 32767 / (2 * 127 * (max_code > 128 ? 128 : max_code));
  return run > 8 ? 8 : run;
}

#else  // portable

constexpr int kLanes = 16;
constexpr int kMaxRows = 4;
struct Bytes { uint8_t v[64]; };
struct Ints { int32_t v[16]; };
struct Floats { float v[16]; };
#define SF_BYTES for (int i = 0; i < 64; ++i)
#define SF_LANES for (int i = 0; i < 16; ++i)

inline Bytes load_bytes(const uint8_t* p) { Bytes r; std::memcpy(r.v, p, 64); return r; }
inline void store_bytes(uint8_t* p, const Bytes& v) { std::memcpy(p, v.v, 64); }
inline Bytes splat_byte(int b) { Bytes r; SF_BYTES r.v[i] = uint8_t(b); return r; }
inline Bytes and_bytes(Bytes a, const Bytes& b) { SF_BYTES a.v[i] &= b.v[i]; return a; }
inline Bytes or_masked(Bytes a, const Bytes& b, const Bytes& mask) { SF_BYTES a.v[i] |= b.v[i] & mask.v[i]; return a; }
template <int N> inline Bytes shift(Bytes v) {
  if constexpr (N > 0) SF_BYTES v.v[i] = uint8_t(v.v[i] << N);
  else if constexpr (N < 0) SF_BYTES v.v[i] = uint8_t(v.v[i] >> -N);
  return v;
}
inline Bytes load_table(const uint8_t* t) { Bytes r; SF_BYTES r.v[i] = t[i % 16]; return r; }
inline Bytes lookup(const Bytes& table, Bytes index) { SF_BYTES index.v[i] = table.v[index.v[i]]; return index; }

inline Ints splat_int(const int32_t* p) { Ints r; SF_LANES r.v[i] = *p; return r; }
inline Ints int_value(int x) { Ints r; SF_LANES r.v[i] = x; return r; }
inline Ints zero_ints() { return Ints{}; }
inline Floats to_floats(const Ints& v) { Floats r; SF_LANES r.v[i] = float(v.v[i]); return r; }
inline Floats splat_float(const float* p) { Floats r; SF_LANES r.v[i] = *p; return r; }
inline Floats splat_value(float x) { Floats r; SF_LANES r.v[i] = x; return r; }
inline Floats zero_floats() { return Floats{}; }
inline Floats load_floats(const float* p) { Floats r; std::memcpy(r.v, p, 64); return r; }
inline void store_floats(float* p, const Floats& v) { std::memcpy(p, v.v, 64); }
inline Floats load_halves(const uint8_t* p) {
  uint16_t half[16];
  std::memcpy(half, p, 32);
  Floats r;
  SF_LANES r.v[i] = f16_to_f32(half[i]);
  return r;
}
inline Ints load_ints(const uint8_t* p) { Ints r; std::memcpy(r.v, p, 64); return r; }
inline Ints load_u8(const uint8_t* p) { Ints r; SF_LANES r.v[i] = p[i]; return r; }
inline Ints load_s8(const uint8_t* p) { Ints r; SF_LANES r.v[i] = int8_t(p[i]); return r; }
template <int N> inline Ints shr_int(Ints v) { SF_LANES v.v[i] = int32_t(uint32_t(v.v[i]) >> N); return v; }
template <int N> inline Ints shl_int(Ints v) { SF_LANES v.v[i] = int32_t(uint32_t(v.v[i]) << N); return v; }
inline Ints and_int(Ints v, int mask) { SF_LANES v.v[i] &= mask; return v; }
inline Ints sub_int(Ints a, const Ints& b) { SF_LANES a.v[i] -= b.v[i]; return a; }
inline Floats floats_of(const Ints& bits) { Floats r; std::memcpy(r.v, bits.v, 64); return r; }
inline Ints bits_of(const Floats& v) { Ints r; std::memcpy(r.v, v.v, 64); return r; }
inline Ints select_below(const Ints& v, int bound, Ints a, const Ints& b) {
  SF_LANES a.v[i] = v.v[i] < bound ? a.v[i] : b.v[i];
  return a;
}
inline Ints shl_ints(Ints v, const Ints& n) {
  SF_LANES v.v[i] = n.v[i] < 0 || n.v[i] > 31 ? 0 : int32_t(uint32_t(v.v[i]) << n.v[i]);
  return v;
}
inline Floats add(Floats a, const Floats& b) { SF_LANES a.v[i] = a.v[i] + b.v[i]; return a; }
inline Floats mul(Floats a, const Floats& b) { SF_LANES a.v[i] = a.v[i] * b.v[i]; return a; }
inline Floats fma(const Floats& a, const Floats& b, Floats c) {
  SF_LANES c.v[i] = std::fma(a.v[i], b.v[i], c.v[i]);
  return c;
}
inline Floats fnma(const Floats& a, const Floats& b, Floats c) {
  SF_LANES c.v[i] = std::fma(-a.v[i], b.v[i], c.v[i]);
  return c;
}

struct Codes { Bytes code; };
template <bool Wide> inline Codes prepare(const Bytes& code) { return {code}; }
constexpr bool kSignsWideCodes = false;

template <int Run> struct Sum {
  Ints total;
  template <int G, int Count> void add(const Codes& w, const int8_t* a) {
    SF_LANES {
      const uint8_t* c = w.code.v + 4 * i;
      total.v[i] += c[0] * a[0] + c[1] * a[1] + c[2] * a[2] + c[3] * a[3];
    }
  }
};
constexpr int sum_run(int) { return 1; }
#undef SF_BYTES
#undef SF_LANES

#endif

}  // namespace sf::SF_ISA
