// Repacks weights from the file's layout into tiles of 16 interleaved columns (isa/formats.h). Runs once, at load:
// every block is decoded to 32 unsigned codes and its scales, then written with dword arithmetic, four inputs at a
// time.
#include <cstring>

#include "isa/formats.h"
#include "pack_decode.h"
#include "pack_memory.h"

namespace sf {

bool is_quantised(Format f) { return f != Format::F32 && f != Format::F16 && f != Format::BF16; }

size_t row_bytes(Format f, int64_t in) {
  switch (f) {
    case Format::F32: return size_t(in) * 4;
    case Format::F16:
    case Format::BF16: return size_t(in) * 2;
    default:
      return visit_quantised(f, [in](auto tag) {
        constexpr Layout l = layout_of<decltype(tag)::format>;
        return size_t(in / l.file_block) * size_t(l.file_bytes);
      });
  }
}

namespace {

size_t tile_bytes(Format f, int64_t in) {
  switch (f) {
    case Format::F32: return size_t(in) * 64;
    case Format::F16: return size_t(in) * 32 + size_t(in & 1) * 32;  // a multiple of 64
    case Format::BF16: return size_t((in + 1) / 2) * 64;
    default:
      return visit_quantised(f, [in](auto tag) {
        constexpr Layout l = layout_of<decltype(tag)::format>;
        return codes_offset(l, in) + size_t(in / 32) * size_t(l.code_bytes());
      });
  }
}

// Writes column `column` of a code block. `codes` are the 32 codes, as 8 dwords of 4 inputs.
template <Layout L> void write_codes(uint8_t* block, int column, const uint32_t* codes) {
  uint32_t* lane = reinterpret_cast<uint32_t*>(block) + column;  // vectors are 16 dwords apart
  if constexpr (L.base == 8) {
    for (int g = 0; g < 8; ++g) lane[16 * g] = codes[g];
    return;
  }
  int vectors = L.base / 1;
  if constexpr (L.base == 4) {
    constexpr uint32_t mask = 0x0f0f0f0fu;
    for (int j = 0; j < 4; ++j) lane[16 * j] = (codes[j] & mask) | (codes[j + 4] & mask) << 4;
  } else {
    constexpr uint32_t mask = 0x03030303u;
    for (int h = 0; h < 2; ++h) {
      uint32_t word = 0;
      for (int g = 0; g < 4; ++g) word |= (codes[4 * h + g] & mask) << (2 * g);
      lane[16 * h] = word;
    }
  }
  if constexpr (L.plane == 1) {
    uint32_t word = 0;
    for (int g = 0; g < 8; ++g) word |= (codes[g] >> L.base & 0x01010101u) << g;
    lane[16 * vectors] = word;
  } else if constexpr (L.plane == 2) {
    for (int h = 0; h < 2; ++h) {
      uint32_t word = 0;
      for (int g = 0; g < 4; ++g) word |= (codes[4 * h + g] >> L.base & 0x03030303u) << (2 * g);
      lane[16 * (vectors + h)] = word;
    }
  }
}

template <Format F> void pack_quantised_tile(uint8_t* tile, const uint8_t* src, size_t row, int64_t in, int columns) {
  constexpr Layout l = layout_of<F>;
  uint8_t* codes = tile + codes_offset(l, in);
  int64_t groups = in / (32 * l.group);
  alignas(64) uint32_t decoded[8 * l.group];
  for (int64_t g = 0; g < groups; ++g) {
    uint8_t* scales = tile + g * l.scale_bytes;
    for (int c = 0; c < columns; ++c) {
      const uint8_t* block = src + size_t(c) * row + size_t(g) * l.file_bytes;
      decode_codes<F>(block, reinterpret_cast<uint8_t*>(decoded));
      write_scales<F>(block, scales, c);
      for (int b = 0; b < l.group; ++b) write_codes<l>(codes + (g * l.group + b) * l.code_bytes(), c, decoded + 8 * b);
    }
  }
}

template <class T>
void pack_float_tile(uint8_t* tile, const uint8_t* src, size_t row, int64_t in, int columns, bool pairs) {
  T* out = reinterpret_cast<T*>(tile);
  for (int c = 0; c < columns; ++c) {
    for (int64_t i = 0; i < in; ++i) {
      T value;
      std::memcpy(&value, src + size_t(c) * row + size_t(i) * sizeof(T), sizeof(T));
      out[pairs ? (i / 2 * kTile + c) * 2 + (i & 1) : i * kTile + c] = value;
    }
  }
}

void pack_tile(const PackedMatrix& m, uint8_t* tile, const uint8_t* src, size_t row, int columns) {
  switch (m.format) {
    case Format::F32: return pack_float_tile<uint32_t>(tile, src, row, m.in, columns, false);
    case Format::F16: return pack_float_tile<uint16_t>(tile, src, row, m.in, columns, false);
    case Format::BF16: return pack_float_tile<uint16_t>(tile, src, row, m.in, columns, true);
    default:
      visit_quantised(m.format,
                      [&](auto tag) { pack_quantised_tile<decltype(tag)::format>(tile, src, row, m.in, columns); });
  }
}

}  // namespace

PackedMatrix::~PackedMatrix() { free_weights(data); }

std::unique_ptr<PackedMatrix> allocate_packed(Format f, int64_t out, int64_t in) {
  auto m = std::make_unique<PackedMatrix>();
  m->format = f;
  m->out = out;
  m->in = in;
  m->tile_bytes = tile_bytes(f, in);
  m->data = allocate_weights(size_t(m->tiles()) * m->tile_bytes);
  return m;
}

void pack_tiles(PackedMatrix& m, const uint8_t* src, int64_t tile_begin, int64_t tile_end) {
  size_t row = row_bytes(m.format, m.in);
  for (int64_t t = tile_begin; t < tile_end; ++t) {
    int64_t first = t * kTile;
    int columns = int(m.out - first < kTile ? m.out - first : kTile);
    uint8_t* tile = m.data + size_t(t) * m.tile_bytes;
    if (columns < kTile) std::memset(tile, 0, m.tile_bytes);
    pack_tile(m, tile, src + size_t(first) * row, row, columns);
  }
}

}  // namespace sf
