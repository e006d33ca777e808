// Products with F32, F16 and BF16 weights and float activations: y = fma(weight, x, y), input after input.
#include "linear_float.h"

#include <utility>

namespace sf::SF_ISA {
namespace {

// Parity: inputs go in pairs (2 * pair + Parity), because one BF16 vector holds two inputs.
template <Format F, int Parity> Floats weight(const uint8_t* tile, int64_t pair, int lane) {
  if constexpr (F == Format::F32) {
    return load_floats(reinterpret_cast<const float*>(tile) + (2 * pair + Parity) * kTile + lane);
  } else if constexpr (F == Format::F16) {
    return load_halves(tile + ((2 * pair + Parity) * kTile + lane) * 2);
  } else {
    Ints both = load_ints(tile + (pair * kTile + lane) * 4);
    return floats_of(Parity == 0 ? shl_int<16>(both) : and_int(both, int(0xffff0000u)));
  }
}

// The next tiles, at the same place: several streams at once, each too short for the hardware to find its pace.
template <Format F, int T>
void prefetch_pair(const uint8_t* tile, const uint8_t* end, size_t tile_bytes, int64_t pair) {
  constexpr int pair_bytes = F == Format::F32 ? 128 : 64;
  for (int t = 0; t < T; ++t) {
    const uint8_t* ahead = tile + size_t(T + t) * tile_bytes + pair * pair_bytes;
    if (ahead >= end) return;
    for (int i = 0; i < pair_bytes; i += 64) prefetch(ahead + i);
  }
}

template <Format F, int R, int T>
void float_tiles(const uint8_t* tile, const uint8_t* end, size_t tile_bytes, int64_t in, const float* x, float* y_out) {
  for (int lane = 0; lane < kTile; lane += kLanes) {
    Floats y[T][R];
    for (int t = 0; t < T; ++t)
      for (int r = 0; r < R; ++r) y[t][r] = zero_floats();
    auto step = [&]<int Parity>(std::integral_constant<int, Parity>, int64_t pair) {
      const float* inputs = x + (2 * pair + Parity) * R;
      Floats w[T];
      for (int t = 0; t < T; ++t) w[t] = weight<F, Parity>(tile + size_t(t) * tile_bytes, pair, lane);
      for (int r = 0; r < R; ++r) {
        Floats value = splat_float(inputs + r);
        for (int t = 0; t < T; ++t) y[t][r] = fma(w[t], value, y[t][r]);
      }
    };
    int64_t pairs = in / 2;
    for (int64_t p = 0; p < pairs; ++p) {
      if (lane == 0) prefetch_pair<F, T>(tile, end, tile_bytes, p);
      step(std::integral_constant<int, 0>{}, p);
      step(std::integral_constant<int, 1>{}, p);
    }
    if (in & 1) step(std::integral_constant<int, 0>{}, pairs);
    for (int t = 0; t < T; ++t)
      for (int r = 0; r < R; ++r) store_floats(y_out + (t * R + r) * kTile + lane, y[t][r]);
  }
}

template <Format F> constexpr FloatKernels make_float_kernels() {
  FloatKernels k{};
  [&]<int... I>(std::integer_sequence<int, I...>) {
    constexpr auto tiles = [](int rows) { return rows <= 2 ? kMaxFloatTiles : rows <= 4 ? 2 : 1; };
    ((k.several[I] = {tiles(I + 1), float_tiles<F, I + 1, tiles(I + 1)>}, k.single[I] = {1, float_tiles<F, I + 1, 1>}),
     ...);
  }(std::make_integer_sequence<int, kMaxRows>{});
  return k;
}

}  // namespace

const FloatKernels& float_kernels(Format f) {
  static constexpr FloatKernels f32 = make_float_kernels<Format::F32>();
  static constexpr FloatKernels f16 = make_float_kernels<Format::F16>();
  static constexpr FloatKernels bf16 = make_float_kernels<Format::BF16>();
  return f == Format::F32 ? f32 : f == Format::F16 ? f16 : bf16;
}

}  // namespace sf::SF_ISA
