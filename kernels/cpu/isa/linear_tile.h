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

// R rows arranged for the kernels, block after block: q [blocks][R][32], d [blocks][R], and whatever the kind needs of
// the sums of q: extra [blocks][start [parts][R] s32 if zeroed: -zero * sum | sum [parts][R] f32 if minimum]. One row
// is its own arrangement of q and d.
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

template <class Source, int R>
inline void tile_block(const Source& source, const Scales& scales, const PanelBlock<Source::kind, R>& rows,
                       Floats (&y)[R]) {
  constexpr Kind kind = Source::kind;
  constexpr int parts = kind.parts(), groups = 8 / parts;
  Floats g[R];
  auto part = [&]<int Part, int... G>(std::integral_constant<int, Part>, std::integer_sequence<int, G...>) {
    Sum<kind.run> sums[R];
    for (int r = 0; r < R; ++r) sums[r].total = kind.zeroed ? splat_int(rows.start(Part, r)) : zero_ints();
    auto group = [&]<int I>(std::integral_constant<int, I>) {
      Codes w = prepare<kind.wide>(source.template group_codes<Part * groups + I>());
      for (int r = 0; r < R; ++r) sums[r].template add<I, groups>(w, rows.q(r) + 4 * (Part * groups + I));
    };
    (group(std::integral_constant<int, G>{}), ...);
    for (int r = 0; r < R; ++r) {
      Floats i = to_floats(sums[r].total);
      g[r] = Part == 0 ? mul(i, scales.scale[0]) : fma(i, scales.scale[Part], g[r]);
    }
  };
  part(std::integral_constant<int, 0>{}, std::make_integer_sequence<int, groups>{});
  if constexpr (parts == 2) part(std::integral_constant<int, 1>{}, std::make_integer_sequence<int, groups>{});
  if constexpr (kind.minimum)
    for (int p = 0; p < parts; ++p)
      for (int r = 0; r < R; ++r) g[r] = fnma(scales.minimum[p], splat_float(rows.sum(p, r)), g[r]);
  for (int r = 0; r < R; ++r) y[r] = fma(g[r], splat_float(rows.d(r)), y[r]);
}

// y[r][16] of one tile; `panel` holds R rows, `end` bounds what is prefetched.
template <Format F, int R>
void tile_rows(const uint8_t* tile, const uint8_t* end, int64_t in, const RowPanel& panel, float* y_out) {
  using Source = Packed<F>;
  for (int lane = 0; lane < kTile; lane += kLanes) {
    Source source(tile, end, in, lane);
    Floats y[R];
    for (int r = 0; r < R; ++r) y[r] = zero_floats();
    PanelBlock<Source::kind, R> rows{panel};
    for (int64_t g = in / (32 * Source::group); g > 0; --g) {
      source.begin_group();
      for (int j = 0; j < Source::group; ++j) {
        source.template prefetch_ahead<R>();
        tile_block<Source, R>(source, source.scales(j), rows, y);
        source.end_block();
        rows.next();
      }
      source.end_group();
    }
    for (int r = 0; r < R; ++r) store_floats(y_out + kTile * r + lane, y[r]);
  }
}

// What the driver (linear.cpp) knows of a format.
struct QuantisedKernels {
  Kind kind;
  int zero;
  void (*tile_rows[kMaxRows])(const uint8_t* tile, const uint8_t* end, int64_t in, const RowPanel& panel,
                              float* y);  // by rows - 1
};

template <Format F> const QuantisedKernels& quantised_kernels();
#define SF_DECLARE(name) template <> const QuantisedKernels& quantised_kernels<Format::name>();
SF_FOR_QUANTISED(SF_DECLARE)
#undef SF_DECLARE

template <Format F> constexpr QuantisedKernels make_quantised_kernels() {
  QuantisedKernels k{Packed<F>::kind, zero_of(layout_of<F>), {}};
  [&]<int... R>(std::integer_sequence<int, R...>) {
    ((k.tile_rows[R] = tile_rows<F, R + 1>), ...);
  }(std::make_integer_sequence<int, kMaxRows>{});
  return k;
}

#define SF_DEFINE_QUANTISED_KERNELS(name)                                             \
  template <> const QuantisedKernels& quantised_kernels<Format::name>() {             \
    static constexpr QuantisedKernels k = make_quantised_kernels<Format::name>();     \
    return k;                                                                         \
  }

}  // namespace sf::SF_ISA
