#include "product.h"

#include <immintrin.h>

#include <utility>

namespace sf::SF_ISA {
namespace {

struct alignas(64) Sums {
  int32_t of[kGroupRows][kTile];
};

// One part of a block: the three steps of its integer product. Part 0 and 1 have registers of their own.
template <int Part> void load_operands(const int8_t* rows, const int8_t* codes) {
  if constexpr (Part == 0) {
    _tile_loadd(2, rows, 32);
    _tile_loadd(4, codes, 64);
  } else {
    _tile_loadd(3, rows, 32);
    _tile_loadd(5, codes, 64);
  }
}
template <int Part> void multiply() {
  if constexpr (Part == 0) {
    _tile_zero(0);
    _tile_dpbssd(0, 2, 4);
  } else {
    _tile_zero(1);
    _tile_dpbssd(1, 3, 5);
  }
}
template <int Part> void store_sums(int32_t* sums) {
  if constexpr (Part == 0)
    _tile_stored(0, sums, 64);
  else
    _tile_stored(1, sums, 64);
}

// float(i), exact for |i| < 2^22, by additions: only one port multiplies or converts while the tile registers work.
inline Floats small_to_floats(Ints v) {
  const Floats magic = splat_value(0x1.8p23f);
  return _mm512_sub_ps(floats_of(_mm512_add_epi32(v, bits_of(magic))), magic);
}

// What a block's float operations read; the operations themselves are those of linear_tile.h.
template <bool Halves, bool Minimum> struct Block {
  static constexpr int parts = Halves ? 2 : 1;
  const Sums* sums;  // [parts]
  const float *scales, *minimums;  // [2][16]
  const float *d, *extra;

  template <int Begin, int End, int R> [[gnu::always_inline]] inline void add_rows(Floats (&y)[R]) const {
    const Floats scale0 = load_floats(scales), scale1 = load_floats(scales + kTile);
    const Floats minimum0 = load_floats(minimums), minimum1 = load_floats(minimums + kTile);
#pragma GCC unroll 16
    for (int r = Begin; r < End; ++r) {
      Floats g = mul(small_to_floats(_mm512_load_si512(sums[0].of[r])), scale0);
      if constexpr (Halves) g = fma(to_floats(_mm512_load_si512(sums[1].of[r])), scale1, g);
      if constexpr (Minimum) g = fnma(minimum0, splat_float(extra + r), g);
      if constexpr (Minimum && Halves) g = fnma(minimum1, splat_float(extra + kGroupRows + r), g);
      y[r] = fma(g, splat_float(d + r), y[r]);
    }
  }
};

// The integer product of a block takes long to come out of its registers. So while the floats of one block are computed, the
// sums of the next are stored, the one after that is multiplied, and the third is loaded: in between, because each of these
// instructions keeps others from being issued.
template <bool Halves, bool Minimum, int R>
void product(const Unpacked& w, int blocks, const RowPanel& panel, float* y_out) {
  constexpr int parts = Halves ? 2 : 1;
  Floats y[R];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) y[r] = load_floats(y_out + kTile * r);
  Sums sums[2][parts];
  const int8_t *rows = panel.q, *codes = w.codes[0][0];
  auto load = [&] {
    load_operands<0>(rows, codes);
    if constexpr (Halves) load_operands<1>(rows + 16, codes + 256);
    rows += 32 * kGroupRows;
    codes += 512;
  };
  auto dot = [&] {
    multiply<0>();
    if constexpr (Halves) multiply<1>();
  };
  auto save = [&](Sums* to) {
    store_sums<0>(to[0].of[0]);
    if constexpr (Halves) store_sums<1>(to[1].of[0]);
  };
  asm volatile("" ::: "memory");  // the registers' loads name no memory
  load();
  dot();
  save(sums[0]);
  if (blocks > 1) load(), dot();
  if (blocks > 2) load();
  Block<Halves, Minimum> block{sums[0], w.scales[0][0], w.minimums[0][0], panel.d, panel.extra};
  for (int left = blocks - 1; left >= 0; --left) {
    const Sums* next = block.sums == sums[0] ? sums[1] : sums[0];
    if (left > 0) save(const_cast<Sums*>(next));
    block.template add_rows<0, R / 3>(y);
    if (left > 1) dot();
    block.template add_rows<R / 3, R * 2 / 3>(y);
    if (left > 2) load();
    block.template add_rows<R * 2 / 3, R>(y);
    block = {next, block.scales + 2 * kTile, block.minimums + 2 * kTile, block.d + kGroupRows,
             block.extra + parts * kGroupRows};
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) store_floats(y_out + kTile * r, y[r]);
}

struct alignas(64) Configuration {
  uint8_t palette = 1, start = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

}  // namespace

ProductFunction product_function(bool halves, bool minimum, int rows) {
  auto by_rows = [&]<bool H, bool M>(std::bool_constant<H>, std::bool_constant<M>) -> ProductFunction {
    if (rows <= 4) return product<H, M, 4>;
    if (rows <= 8) return product<H, M, 8>;
    return rows <= 12 ? product<H, M, 12> : product<H, M, 16>;
  };
  if (halves)
    return minimum ? by_rows(std::true_type{}, std::true_type{}) : by_rows(std::true_type{}, std::false_type{});
  return minimum ? by_rows(std::false_type{}, std::true_type{}) : by_rows(std::false_type{}, std::false_type{});
}

TileRegisters::TileRegisters(bool halves) {
  Configuration c;
  auto set = [&](int i, int count, int bytes) {
    c.rows[i] = uint8_t(count);
    c.row_bytes[i] = uint16_t(bytes);
  };
  for (int i : {0, 1}) set(i, kGroupRows, 64);
  for (int i : {2, 3}) set(i, kGroupRows, halves ? 16 : 32);
  for (int i : {4, 5}) set(i, halves ? 4 : 8, 64);
  asm volatile("" ::"r"(&c) : "memory");  // GCC's intrinsic reads only the first bytes, as far as GCC knows
  _tile_loadconfig(&c);
}

TileRegisters::~TileRegisters() { _tile_release(); }

}  // namespace sf::SF_ISA
