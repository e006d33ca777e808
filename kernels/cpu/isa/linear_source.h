// Reads a packed tile block by block: codes as bytes, and the block's scales as floats.
#pragma once
#include "linear_lanes.h"

namespace sf::SF_ISA {

// The shape of a block's arithmetic (linear_tile.h). Formats of one kind can share row panels.
struct Kind {
  bool halves;   // two integer sums, one per 16 inputs, each with its scale
  bool minimum;  // minus minimum * (sum of activations)
  bool zeroed;   // integer sums start at -zero * (sum of activations)
  bool wide;     // codes above 128, on a set that multiplies these as signed
  int run;       // see Sum
  constexpr int parts() const { return halves ? 2 : 1; }
  bool operator==(const Kind&) const = default;
};
constexpr bool is_wide(const Layout& l) { return kSignsWideCodes && l.max_code() > 128; }
constexpr int zero_of(const Layout& l) { return is_wide(l) ? l.zero - 128 : l.zero; }
constexpr Kind kind_of(const Layout& l) {
  return {l.halves, l.minimum, zero_of(l) != 0, is_wide(l), sum_run(l.max_code())};
}

// A part's weights are scale * (code - zero) - minimum.
struct Scales {
  Floats scale[2];
  Floats minimum[2];
};

inline Floats exponent_scale(const uint8_t* p) {  // 2^(e - 128); a subnormal number for e < 2
  Ints e = load_u8(p);
  Ints subnormal = shl_ints(int_value(1 << 21), e);
  return floats_of(select_below(e, 2, subnormal, shl_int<23>(sub_int(e, int_value(1)))));
}
inline Floats negate(Floats v) { return mul(v, splat_value(-1.0f)); }

template <Format F> struct Packed {
  static constexpr Layout layout = layout_of<F>;
  static constexpr Kind kind = kind_of(layout);
  static constexpr int group = layout.group;

  const uint8_t* scale_group;
  const uint8_t* codes;
  const uint8_t* ahead;  // to be prefetched next
  const uint8_t* end;    // of what will be read: nothing beyond is prefetched
  unsigned blocks_read = 0;
  int lane;
  Floats d, dmin;
  Bytes table;

  Packed(const uint8_t* tile, const uint8_t* last, int64_t in, int first_lane)
      : scale_group(tile),
        codes(tile + codes_offset(layout, in) + 4 * first_lane),
        ahead(first_lane == 0 ? tile + kPrefetchBytes : last),
        end(last),
        lane(first_lane) {
    if constexpr (layout.table == Table::iq4) table = load_table(kIq4Table);
    if constexpr (layout.table == Table::mxfp4) table = load_table(kMxfp4Table);
  }
  void begin_group() {
    if constexpr (group == 1) return;
    d = load_halves(scale_group + 2 * lane);
    if constexpr (layout.minimum) dmin = load_halves(scale_group + 32 + 2 * lane);
  }
  void end_group() { scale_group += layout.scale_bytes; }
  void end_block() { codes += layout.code_bytes(); }
  // In bursts of about 2 KiB, which the memory serves better than a line now and then. With many rows the arithmetic
  // takes longer than the memory and a burst would hold up the loads behind it: evenly.
  template <int R> void prefetch_ahead() {
    constexpr int block_bytes = layout.code_bytes() + layout.scale_bytes / group;
    constexpr int burst = R >= 6 ? 1 : block_bytes <= 300 ? 8 : block_bytes <= 600 ? 4 : 2;  // blocks
    if (blocks_read++ % burst != 0 || ahead >= end) return;
    for (int i = 0; i < burst * block_bytes; i += 64) prefetch(ahead + i);
    ahead += burst * block_bytes;
  }

  Scales scales(int block) const {
    Scales s;
    if constexpr (F == Format::MXFP4) {
      s.scale[0] = exponent_scale(scale_group + lane);
    } else if constexpr (group == 1) {
      s.scale[0] = load_halves(scale_group + 2 * lane);
      if constexpr (layout.minimum) s.minimum[0] = negate(load_halves(scale_group + 32 + 2 * lane));  // file: added
    } else if constexpr (F == Format::Q4_K || F == Format::Q5_K) {
      const uint8_t* p = scale_group + 64 + 32 * block + lane;
      s.scale[0] = mul(d, to_floats(load_u8(p)));
      s.minimum[0] = mul(dmin, to_floats(load_u8(p + 16)));
    } else if constexpr (F == Format::Q2_K) {
      for (int h = 0; h < 2; ++h) {
        Ints both = load_u8(scale_group + 64 + 32 * block + 16 * h + lane);
        s.scale[h] = mul(d, to_floats(and_int(both, 15)));
        s.minimum[h] = mul(dmin, to_floats(shr_int<4>(both)));
      }
    } else {
      for (int h = 0; h < kind.parts(); ++h)
        s.scale[h] = mul(d, to_floats(load_s8(scale_group + 32 + 16 * (kind.parts() * block + h) + lane)));
    }
    return s;
  }

  template <int G> Bytes group_codes() const {
    Bytes v;
    if constexpr (layout.base == 8) {
      v = load_bytes(codes + 64 * G);
    } else if constexpr (layout.base == 4) {
      v = and_bytes(shift<G < 4 ? 0 : -4>(load_bytes(codes + 64 * (G % 4))), splat_byte(15));
    } else {
      v = and_bytes(shift<-2 * (G % 4)>(load_bytes(codes + 64 * (G / 4))), splat_byte(3));
    }
    if constexpr (layout.plane == 1) {
      v = or_masked(v, shift<layout.base - G>(load_bytes(codes + 64 * layout.base)), splat_byte(1 << layout.base));
    } else if constexpr (layout.plane == 2) {
      Bytes plane = load_bytes(codes + 64 * (layout.base + G / 4));
      v = or_masked(v, shift<layout.base - 2 * (G % 4)>(plane), splat_byte(3 << layout.base));
    }
    if constexpr (layout.table != Table::none) v = lookup(table, v);
    return v;
  }
};

}  // namespace sf::SF_ISA
