// How the file stores a block: decode_codes<F> gives its unsigned codes in input order (32, or 256 for super-blocks),
// write_scales<F> copies its scales into column `c` of a packed scale group. Included by pack.cpp only.
#pragma once
#include <cstdint>
#include <cstring>

#include "isa/formats.h"

namespace sf {

inline uint64_t load64(const uint8_t* p) { uint64_t v; std::memcpy(&v, p, 8); return v; }
inline void store64(uint8_t* p, uint64_t v) { std::memcpy(p, &v, 8); }
inline void put16(uint8_t* group, int index, const uint8_t* half) { std::memcpy(group + 2 * index, half, 2); }

// n bytes hold low nibbles for codes[0 .. n) and high nibbles for codes[n .. 2n).
template <int n> inline void split_nibbles(const uint8_t* src, uint8_t* codes) {
  constexpr uint64_t mask = 0x0f0f0f0f0f0f0f0full;
  for (int i = 0; i < n; i += 8) {
    uint64_t v = load64(src + i);
    store64(codes + i, v & mask);
    store64(codes + n + i, v >> 4 & mask);
  }
}

// Adds `bit` to codes[8i + k] where bit k of byte i is set (32 codes).
inline void add_bits(const uint8_t* bits, uint8_t* codes, uint8_t bit) {
  for (int i = 0; i < 4; ++i) {
    // spread the 8 bits of a byte to 8 bytes of 0 or 1
    uint64_t spread = (uint64_t(bits[i]) * 0x0101010101010101ull & 0x8040201008040201ull);
    spread = (spread + 0x7f7f7f7f7f7f7f7full) >> 7 & 0x0101010101010101ull;
    store64(codes + 8 * i, load64(codes + 8 * i) + spread * bit);
  }
}

template <Format F> void decode_codes(const uint8_t* block, uint8_t* codes);
template <Format F> void write_scales(const uint8_t* block, uint8_t* group, int c);

// d f16, 16 bytes of nibbles
template <>
inline void decode_codes<Format::Q4_0>(const uint8_t* b, uint8_t* codes) {
  split_nibbles<16>(b + 2, codes);
}
template <> inline void write_scales<Format::Q4_0>(const uint8_t* b, uint8_t* g, int c) { put16(g, c, b); }
template <>
inline void decode_codes<Format::IQ4_NL>(const uint8_t* b, uint8_t* codes) {
  split_nibbles<16>(b + 2, codes);
}
template <> inline void write_scales<Format::IQ4_NL>(const uint8_t* b, uint8_t* g, int c) { put16(g, c, b); }

// d f16, m f16, nibbles
template <>
inline void decode_codes<Format::Q4_1>(const uint8_t* b, uint8_t* codes) {
  split_nibbles<16>(b + 4, codes);
}
template <> inline void write_scales<Format::Q4_1>(const uint8_t* b, uint8_t* g, int c) {
  put16(g, c, b);
  put16(g, 16 + c, b + 2);
}

// d f16, fifth bits u32, nibbles
template <> inline void decode_codes<Format::Q5_0>(const uint8_t* b, uint8_t* codes) {
  split_nibbles<16>(b + 6, codes);
  add_bits(b + 2, codes, 16);
}
template <> inline void write_scales<Format::Q5_0>(const uint8_t* b, uint8_t* g, int c) { put16(g, c, b); }

// d f16, m f16, fifth bits u32, nibbles
template <> inline void decode_codes<Format::Q5_1>(const uint8_t* b, uint8_t* codes) {
  split_nibbles<16>(b + 8, codes);
  add_bits(b + 4, codes, 16);
}
template <> inline void write_scales<Format::Q5_1>(const uint8_t* b, uint8_t* g, int c) {
  write_scales<Format::Q4_1>(b, g, c);
}

// d f16, 32 signed bytes; stored with 128 added
template <> inline void decode_codes<Format::Q8_0>(const uint8_t* b, uint8_t* codes) {
  for (int i = 0; i < 32; i += 8) store64(codes + i, load64(b + 2 + i) ^ 0x8080808080808080ull);
}
template <> inline void write_scales<Format::Q8_0>(const uint8_t* b, uint8_t* g, int c) { put16(g, c, b); }

// e u8, nibbles
template <>
inline void decode_codes<Format::MXFP4>(const uint8_t* b, uint8_t* codes) {
  split_nibbles<16>(b + 1, codes);
}
template <> inline void write_scales<Format::MXFP4>(const uint8_t* b, uint8_t* g, int c) { g[c] = b[0]; }

// d f16, dmin f16, 12 bytes of 6-bit scales and minimums, [Q5_K: 32 bytes, bit b of byte i = fifth bit of input 32b +
// i], 4 x 32 bytes: low nibbles of one block of 32 inputs, high nibbles of the next
template <> inline void decode_codes<Format::Q4_K>(const uint8_t* b, uint8_t* codes) {
  for (int i = 0; i < 4; ++i) split_nibbles<32>(b + 16 + 32 * i, codes + 64 * i);
}
template <> inline void write_scales<Format::Q4_K>(const uint8_t* b, uint8_t* g, int c) {
  put16(g, c, b);
  put16(g, 16 + c, b + 2);
  const uint8_t* s = b + 4;
  for (int i = 0; i < 4; ++i) {
    uint8_t* low = g + 64 + 32 * i + c;
    uint8_t* high = low + 32 * 4;
    low[0] = s[i] & 63;
    low[16] = s[i + 4] & 63;
    high[0] = uint8_t((s[i + 8] & 15) | (s[i] >> 6) << 4);
    high[16] = uint8_t(s[i + 8] >> 4 | (s[i + 4] >> 6) << 4);
  }
}
template <> inline void decode_codes<Format::Q5_K>(const uint8_t* b, uint8_t* codes) {
  for (int i = 0; i < 4; ++i) split_nibbles<32>(b + 48 + 32 * i, codes + 64 * i);
  for (int i = 0; i < 32; i += 8) {
    uint64_t bits = load64(b + 16 + i);
    for (int k = 0; k < 8; ++k) {
      uint8_t* at = codes + 32 * k + i;
      store64(at, load64(at) | (bits >> k & 0x0101010101010101ull) << 4);
    }
  }
}
template <> inline void write_scales<Format::Q5_K>(const uint8_t* b, uint8_t* g, int c) {
  write_scales<Format::Q4_K>(b, g, c);
}

// 2 x 32 bytes: bits 2j, 2j+1 of byte i of part h belong to input 128h + 32j + i
inline void decode_crumbs(const uint8_t* src, uint8_t* codes) {
  for (int h = 0; h < 2; ++h)
    for (int i = 0; i < 32; i += 8) {
      uint64_t v = load64(src + 32 * h + i);
      for (int j = 0; j < 4; ++j) store64(codes + 128 * h + 32 * j + i, v >> (2 * j) & 0x0303030303030303ull);
    }
}

// 16 x (scale | minimum << 4), crumbs, d f16, dmin f16
template <> inline void decode_codes<Format::Q2_K>(const uint8_t* b, uint8_t* codes) { decode_crumbs(b + 16, codes); }
template <> inline void write_scales<Format::Q2_K>(const uint8_t* b, uint8_t* g, int c) {
  put16(g, c, b + 80);
  put16(g, 16 + c, b + 82);
  for (int i = 0; i < 16; ++i) g[64 + 16 * i + c] = b[i];
}

// 32 bytes, bit k of byte i = third bit of input 32k + i; crumbs; 12 bytes of 6-bit scales (+32); d f16
template <> inline void decode_codes<Format::Q3_K>(const uint8_t* b, uint8_t* codes) {
  decode_crumbs(b + 32, codes);
  for (int i = 0; i < 32; i += 8) {
    uint64_t bits = load64(b + i);
    for (int k = 0; k < 8; ++k) {
      uint8_t* at = codes + 32 * k + i;
      store64(at, load64(at) | (bits >> k & 0x0101010101010101ull) << 2);
    }
  }
}
template <> inline void write_scales<Format::Q3_K>(const uint8_t* b, uint8_t* g, int c) {
  put16(g, c, b + 108);
  const uint8_t* s = b + 96;
  for (int i = 0; i < 16; ++i) {
    int low = i < 8 ? s[i] & 15 : s[i - 8] >> 4;
    int high = s[8 + i % 4] >> (2 * (i / 4)) & 3;
    g[32 + 16 * i + c] = uint8_t((low | high << 4) - 32);
  }
}

// ql: 2 x 64 bytes, low nibbles inputs 0..63 and high nibbles 64..127 of each half; qh: 2 x 32 bytes, bits 2j, 2j+1 of
// byte i of part h are the top bits of input 128h + 32j + i; 16 signed scales; d f16
template <> inline void decode_codes<Format::Q6_K>(const uint8_t* b, uint8_t* codes) {
  for (int h = 0; h < 2; ++h) split_nibbles<64>(b + 64 * h, codes + 128 * h);
  for (int h = 0; h < 2; ++h)
    for (int i = 0; i < 32; i += 8) {
      uint64_t v = load64(b + 128 + 32 * h + i);
      for (int j = 0; j < 4; ++j) {
        uint8_t* at = codes + 128 * h + 32 * j + i;
        store64(at, load64(at) | (v >> (2 * j) & 0x0303030303030303ull) << 4);
      }
    }
}
template <> inline void write_scales<Format::Q6_K>(const uint8_t* b, uint8_t* g, int c) {
  put16(g, c, b + 208);
  for (int i = 0; i < 16; ++i) g[32 + 16 * i + c] = b[192 + i];
}

// d f16, top scale bits u16, 4 bytes of low scale nibbles, 8 x 16 bytes of nibbles; 6-bit scales (+32)
template <> inline void decode_codes<Format::IQ4_XS>(const uint8_t* b, uint8_t* codes) {
  for (int i = 0; i < 8; ++i) split_nibbles<16>(b + 8 + 16 * i, codes + 32 * i);
}
template <> inline void write_scales<Format::IQ4_XS>(const uint8_t* b, uint8_t* g, int c) {
  put16(g, c, b);
  int high = b[2] | b[3] << 8;
  for (int i = 0; i < 8; ++i) {
    int low = b[4 + i / 2] >> (4 * (i % 2)) & 15;
    g[32 + 16 * i + c] = uint8_t((low | (high >> (2 * i) & 3) << 4) - 32);
  }
}

}  // namespace sf
