// The quantised product of one tile (16 columns) and R rows. The float operations of a block of 32 inputs, the same for
// every format, row count and instruction set (w: code, z: zero, a: quantised activations, d: their scale):
//
//   i  = sum (w - z) a          exact integer (one per 16 inputs when the format has a scale for each 16: i0, i1)
//   g  = float(i0) * scale0                     float(i) is exact: |i| < 2^24
//   g  = fma(float(i1), scale1, g)              with two scales
//   g  = fnma(minimum0, float(sum0 a), g)       with minimums; also for the second half
//   y  = fma(g, d, y)                           block after block along the input
//
// `scale` and `minimum` are the exact products of the file's numbers (f16 x 6 or 8 bits fits a float).
#pragma once
#include <utility>

#include "linear_source.h"

namespace sf::SF_ISA {

// R rows arranged for the kernels, block after block: q [blocks][R][32], d [blocks][R], and whatever the kind needs of the
// sums of q: extra [blocks][start [parts][R] s32 if zeroed: -zero * sum | sum [parts][R] f32 if minimum].
// One row is its own arrangement of q and d.
struct RowPanel {
  const int8_t* q;
  const float* d;
  const float* extra;
};
constexpr int panel_extras(Kind k) { return k.parts() * (int(k.zeroed) + int(k.minimum)); }

template <Kind K, int R> struct PanelBlock {
  RowPanel p;
  void next() {
    p.q += 32 * R;
    p.d += R;
    p.extra += panel_extras(K) * R;
  }
  const int8_t* q(int r) const { return p.q + 32 * r; }
  const float* d(int r) const { return p.d + r; }
  const int32_t* start(int part, int r) const { return reinterpret_cast<const int32_t*>(p.extra) + part * R + r; }
  const float* sum(int part, int r) const { return p.extra + ((K.zeroed ? K.parts() : 0) + part) * R + r; }
};

template <class Source, int R, int First, int... G>
inline void dot_groups(const Source& source, const PanelBlock<Source::kind, R>& rows, Ints (&sums)[R],
                       std::integer_sequence<int, G...>) {
  (
      [&] {
        Codes w = prepare<Source::kind.wide>(source.template group_codes<First + G>());
        for (int r = 0; r < R; ++r) sums[r] = dot(sums[r], w, rows.q(r) + 4 * (First + G));
      }(),
      ...);
}

template <class Source, int R>
inline void tile_block(const Source& source, const Scales& scales, const PanelBlock<Source::kind, R>& rows, Floats (&y)[R]) {
  constexpr Kind kind = Source::kind;
  constexpr int parts = kind.parts();
  Floats g[R];
  [&]<int... Part>(std::integer_sequence<int, Part...>) {
    (
        [&] {
          Ints sums[R];
          for (int r = 0; r < R; ++r) sums[r] = kind.zeroed ? splat_int(rows.start(Part, r)) : zero_ints();
          dot_groups<Source, R, Part * 4>(source, rows, sums, std::make_integer_sequence<int, 8 / parts>{});
          for (int r = 0; r < R; ++r) {
            Floats i = to_floats(sums[r]);
            g[r] = Part == 0 ? mul(i, scales.scale[0]) : fma(i, scales.scale[Part], g[r]);
          }
        }(),
        ...);
  }(std::make_integer_sequence<int, parts>{});
  if constexpr (kind.minimum)
    for (int part = 0; part < parts; ++part)
      for (int r = 0; r < R; ++r) g[r] = fnma(scales.minimum[part], splat_float(rows.sum(part, r)), g[r]);
  for (int r = 0; r < R; ++r) y[r] = fma(g[r], splat_float(rows.d(r)), y[r]);
}

// y[r][16] of one tile; `panel` holds R rows, `end` bounds what is prefetched.
template <class Source, int R> void tile_rows(const uint8_t* tile, const uint8_t* end, int64_t in, const RowPanel& panel, float* y_out) {
  for (int lane = 0; lane < kTile; lane += kLanes) {
    Source source(tile, end, in, lane);
    Floats y[R];
    for (int r = 0; r < R; ++r) y[r] = zero_floats();
    PanelBlock<Source::kind, R> rows{panel};
    for (int64_t g = in / (32 * Source::group); g > 0; --g) {
      source.begin_group();
      for (int j = 0; j < Source::group; ++j) {
        source.prefetch_ahead(j);
        tile_block<Source, R>(source, source.scales(j), rows, y);
        source.end_block();
        rows.next();
      }
      source.end_group();
    }
    for (int r = 0; r < R; ++r) store_floats(y_out + kTile * r + lane, y[r]);
  }
}

using TileFunction = void (*)(const uint8_t* tile, const uint8_t* end, int64_t in, const RowPanel& panel, float* y);

// What the driver (linear.cpp) knows of a format.
struct QuantisedKernels {
  Kind kind;
  int zero;
  int expanded_block_bytes;
  TileFunction packed[kMaxRows];    // by row count - 1
  TileFunction expanded[kMaxRows];
  void (*expand)(const uint8_t* tile, const uint8_t* end, int64_t in, uint8_t* out);
};

template <Format F> const QuantisedKernels& quantised_kernels();
#define SF_DECLARE(name) template <> const QuantisedKernels& quantised_kernels<Format::name>();
SF_FOR_QUANTISED(SF_DECLARE)
#undef SF_DECLARE

template <Format F> constexpr QuantisedKernels make_quantised_kernels() {
  using Unpacked = Expanded<Packed<F>::kind>;
  QuantisedKernels k{Packed<F>::kind, zero_of(layout_of<F>), Unpacked::block_bytes, {}, {}, expand_tile<F>};
  [&]<int... R>(std::integer_sequence<int, R...>) {
    ((k.packed[R] = tile_rows<Packed<F>, R + 1>, k.expanded[R] = tile_rows<Unpacked, R + 1>), ...);
  }(std::make_integer_sequence<int, kMaxRows>{});
  return k;
}

#define SF_DEFINE_QUANTISED_KERNELS(name)                                             \
  template <> const QuantisedKernels& quantised_kernels<Format::name>() {             \
    static constexpr QuantisedKernels k = make_quantised_kernels<Format::name>();     \
    return k;                                                                         \
  }

}  // namespace sf::SF_ISA
