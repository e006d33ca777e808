// The packed layout of every weight format: what a tile of 16 output columns looks like in memory. Pure constants,
// shared by packing (compiled once) and the kernels (compiled once per instruction set). Knows no arithmetic.
//
// A quantised tile is   [scale groups | padding to 64 bytes | code blocks]   along the input, 32 inputs per block.
// A "vector" is 64 bytes = 16 columns x 4 consecutive inputs (a group); a block of 32 inputs has 8 groups:
//
//     byte 4 * column + k  of group g   belongs to input  4 * g + k  of that column
//
//   base 8 bits: 8 vectors, group g in vector g
//   base 4 bits: 4 vectors, vector j holds group j in its low nibbles and group j + 4 in its high nibbles
//   base 2 bits: 2 vectors, vector h holds groups 4h .. 4h+3 at bits 0, 2, 4, 6
//   then the bits above the base ("plane"):
//   plane 1 bit:  1 vector, bit g of a byte belongs to group g
//   plane 2 bits: 2 vectors, vector h holds groups 4h .. 4h+3 at bits 0, 2, 4, 6
//
// Codes are unsigned; a weight is scale * (code - zero) - minimum, or scale * (table[code] - zero) - minimum.
#pragma once
#include <cstddef>
#include <cstdint>

#include "linear.h"

namespace sf {

enum class Table { none, iq4, mxfp4 };

// Tables shifted so that their entries are unsigned: value = entry - zero.
constexpr uint8_t kIq4Table[16] = {1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241};
constexpr uint8_t kMxfp4Table[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};

struct Layout {
  int base;         // bits of a code in the base vectors
  int plane;        // bits of a code in the plane vectors
  int zero;         // subtracted from a code (or table entry)
  bool halves;      // one scale (and minimum) per 16 inputs instead of per 32
  bool minimum;     // a minimum besides the scale
  int group;        // blocks per scale group: 1, or 8 for super-blocks of 256
  int scale_bytes;  // bytes of a scale group: see LayoutOf
  int file_block;   // inputs per block of the file
  int file_bytes;   // bytes per block of the file
  Table table = Table::none;

  constexpr int code_bytes() const { return 64 * (base + plane); }  // of a block of 32 inputs x 16 columns
  constexpr int max_code() const {
    return table == Table::iq4 ? 241 : table == Table::mxfp4 ? 24 : (1 << (base + plane)) - 1;
  }
};

template <Format F> inline constexpr Layout layout_of{};
// scale group: d[16] f16
template <> inline constexpr Layout layout_of<Format::Q4_0>{4, 0, 8, false, false, 1, 32, 32, 18};
template <> inline constexpr Layout layout_of<Format::Q5_0>{4, 1, 16, false, false, 1, 32, 32, 22};
template <> inline constexpr Layout layout_of<Format::Q8_0>{8, 0, 128, false, false, 1, 32, 32, 34};
template <> inline constexpr Layout layout_of<Format::IQ4_NL>{4, 0, 128, false, false, 1, 32, 32, 18, Table::iq4};
// d[16] f16, m[16] f16 (added, not subtracted)
template <> inline constexpr Layout layout_of<Format::Q4_1>{4, 0, 0, false, true, 1, 64, 32, 20};
template <> inline constexpr Layout layout_of<Format::Q5_1>{4, 1, 0, false, true, 1, 64, 32, 24};
// e[16] u8
template <> inline constexpr Layout layout_of<Format::MXFP4>{4, 0, 12, false, false, 1, 16, 32, 17, Table::mxfp4};
// d[16] f16, dmin[16] f16, then per block scale[16] u8, minimum[16] u8
template <> inline constexpr Layout layout_of<Format::Q4_K>{4, 0, 0, false, true, 8, 320, 256, 144};
template <> inline constexpr Layout layout_of<Format::Q5_K>{4, 1, 0, false, true, 8, 320, 256, 176};
// d[16] f16, dmin[16] f16, then per half block (scale | minimum << 4)[16] u8
template <> inline constexpr Layout layout_of<Format::Q2_K>{2, 0, 0, true, true, 8, 320, 256, 84};
// d[16] f16, then per half block scale[16] s8
template <> inline constexpr Layout layout_of<Format::Q3_K>{2, 1, 4, true, false, 8, 288, 256, 110};
template <> inline constexpr Layout layout_of<Format::Q6_K>{4, 2, 32, true, false, 8, 288, 256, 210};
// d[16] f16, then per block scale[16] s8
template <> inline constexpr Layout layout_of<Format::IQ4_XS>{4, 0, 128, false, false, 8, 160, 256, 136, Table::iq4};

// Bytes from the start of a quantised tile to its code blocks.
constexpr size_t codes_offset(const Layout& l, int64_t in) {
  return (size_t(in / (32 * l.group)) * size_t(l.scale_bytes) + 63) / 64 * 64;
}

// Float tiles: F32 [in][16] f32; F16 [in][16] f16; BF16 [(in + 1) / 2][16][2] bf16, so that one 64-byte vector holds
// the even input in the low halves of its lanes and the odd input in the high halves.

// Calls visit(std::integral_constant) with the format as a constant.
template <Format F> struct FormatTag { static constexpr Format format = F; };
#define SF_FOR_QUANTISED(X) \
  X(Q4_0) X(Q4_1) X(Q5_0) X(Q5_1) X(Q8_0) X(Q2_K) X(Q3_K) X(Q4_K) X(Q5_K) X(Q6_K) X(IQ4_NL) X(IQ4_XS) X(MXFP4)

template <class Visitor> decltype(auto) visit_quantised(Format f, Visitor&& visit) {
  switch (f) {
#define SF_CASE(name) case Format::name: return visit(FormatTag<Format::name>{});
    SF_FOR_QUANTISED(SF_CASE)
#undef SF_CASE
    default: __builtin_unreachable();  // float formats have no codes
  }
}

}  // namespace sf
