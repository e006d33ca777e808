// One row of a packed matrix as floats: embedding lookup. The float operations are those that define the file's formats
// (every product of scales, codes and table values is exact; only adding the minimum rounds), then times `scale`.
#include "formats.h"
#include "linear_row.h"
#include "vec.h"

namespace sf::SF_ISA {
namespace {

struct Part { float scale, minimum; };  // of 16 or 32 inputs

uint16_t half_at(const uint8_t* p) { uint16_t h; std::memcpy(&h, p, 2); return h; }

template <Format F> Part part_scales(const uint8_t* group, int part, int c) {
  constexpr Layout l = layout_of<F>;
  if constexpr (F == Format::MXFP4) {
    uint32_t e = group[c];
    return {float_of(e < 2 ? 0x00200000u << e : (e - 1) << 23), 0.0f};
  } else {
    float d = f16_to_f32(half_at(group + 2 * c));
    if constexpr (l.minimum) {
      float m = f16_to_f32(half_at(group + 32 + 2 * c));
      if constexpr (l.group == 1) return {d, -m};
      const uint8_t* s = group + 64 + (l.halves ? 16 : 32) * part + c;
      if constexpr (l.halves) return {d * float(s[0] & 15), m * float(s[0] >> 4)};
      return {d * float(s[0]), m * float(s[16])};
    } else if constexpr (l.group == 1) {
      return {d, 0.0f};
    } else {
      return {d * float(int8_t(group[32 + 16 * part + c])), 0.0f};
    }
  }
}

// The 32 codes of column c, as 8 dwords of 4 inputs.
template <Format F> void column_codes(const uint8_t* block, int c, uint32_t* codes) {
  constexpr Layout l = layout_of<F>;
  auto lane = [&](int vector) { uint32_t v; std::memcpy(&v, block + 64 * vector + 4 * c, 4); return v; };
  for (int g = 0; g < 8; ++g) {
    uint32_t v;
    if constexpr (l.base == 8) v = lane(g);
    else if constexpr (l.base == 4) v = lane(g % 4) >> (g < 4 ? 0 : 4) & 0x0f0f0f0fu;
    else v = lane(g / 4) >> (2 * (g % 4)) & 0x03030303u;
    if constexpr (l.plane == 1) v |= (lane(l.base) >> g & 0x01010101u) << l.base;
    if constexpr (l.plane == 2) v |= (lane(l.base + g / 4) >> (2 * (g % 4)) & 0x03030303u) << l.base;
    codes[g] = v;
  }
}

template <Format F> void expand_column(const uint8_t* tile, int64_t in, int c, float scale, float* out) {
  constexpr Layout l = layout_of<F>;
  constexpr int parts = l.halves ? 2 : 1;
  const uint8_t* codes = tile + codes_offset(l, in);
  for (int64_t b = 0; b < in / 32; ++b, codes += l.code_bytes(), out += 32) {
    const uint8_t* group = tile + b / l.group * l.scale_bytes;
    uint32_t dwords[8];
    uint8_t bytes[32];
    column_codes<F>(codes, c, dwords);
    std::memcpy(bytes, dwords, 32);
    for (int p = 0; p < parts; ++p) {
      Part s = part_scales<F>(group, int(b % l.group) * parts + p, c);
      for (int i = p * 16; i < (parts == 1 ? 32 : p * 16 + 16); ++i) {
        int code = bytes[i];
        if constexpr (l.table == Table::iq4) code = kIq4Table[code];
        if constexpr (l.table == Table::mxfp4) code = kMxfp4Table[code];
        float value = s.scale * float(code - l.zero);
        if constexpr (l.minimum) value = value - s.minimum;
        out[i] = value * scale;
      }
    }
  }
}

}  // namespace

void expand_row(const PackedMatrix& w, int64_t row, float scale, float* out) {
  const uint8_t* tile = w.data + size_t(row / kTile) * w.tile_bytes;
  int c = int(row % kTile);
  switch (w.format) {
    case Format::F32:
      for (int64_t i = 0; i < w.in; ++i) {
        float value;
        std::memcpy(&value, tile + (i * kTile + c) * 4, 4);
        out[i] = value * scale;
      }
      return;
    case Format::F16:
      for (int64_t i = 0; i < w.in; ++i) out[i] = f16_to_f32(half_at(tile + (i * kTile + c) * 2)) * scale;
      return;
    case Format::BF16:
      for (int64_t i = 0; i < w.in; ++i)
        out[i] = bf16_to_f32(half_at(tile + ((i / 2 * kTile + c) * 2 + (i & 1)) * 2)) * scale;
      return;
    default:
      visit_quantised(w.format, [&](auto tag) { expand_column<decltype(tag)::format>(tile, w.in, c, scale, out); });
  }
}

}  // namespace sf::SF_ISA
