// Recurrences: short convolutions and the gated delta rule. Lanes are channels or columns of a state matrix, which never
// meet, so every sum runs in one order whatever shares the registers.
#include "../recurrent.h"

#include "math.h"
#include "tail.h"

namespace sf::SF_ISA {
namespace {

void short_conv(const float* const* rows, int64_t n, int64_t kernel, const float* taps, int64_t taps_stride,
                int64_t width, float* out, int64_t out_stride) {
  for (int64_t r = 0; r < n; ++r)
    for (int64_t c = 0; c < width; c += 16) {
      f32x16 sum = load_part(taps + c, width - c) * load_part(rows[r] + c, width - c);
      for (int64_t j = 1; j < kernel; ++j)
        sum = fma(load_part(taps + j * taps_stride + c, width - c), load_part(rows[r + j] + c, width - c), sum);
      store_part(out + r * out_stride + c, sum * sigmoid(sum), width - c);
    }
}

void unit(const float* x, float eps, float scale, int64_t width, float* out) {
  f32x16 squares = splat(0.f);
  for (int64_t i = 0; i < width; i += 16) {
    const f32x16 v = load_part(x + i, width - i);
    squares = fma(v, v, squares);
  }
  const float length = std::sqrt(sum_lanes(squares));
  const f32x16 factor = splat(scale / (length > eps ? length : length != length ? length : eps));
  for (int64_t i = 0; i < width; i += 16) store_part(out + i, load_part(x + i, width - i) * factor, width - i);
}

// log(1 + e^x)
f32x16 softplus(f32x16 x) {
  const f32x16 limit = splat(20.f), y = log(splat(1.f) + exp(min(limit, x)));
  return select_less(limit, x, x, y);
}

void delta_gates(const float* alpha, const float* beta, const float* rate, const float* dt, int64_t n, float* decay,
                 float* strength) {
  for (int64_t i = 0; i < n; i += 16) {
    const f32x16 open = softplus(load_part(alpha + i, n - i) + load_part(dt + i, n - i));
    store_part(decay + i, exp(load_part(rate + i, n - i) * open), n - i);
    store_part(strength + i, sigmoid(load_part(beta + i, n - i)), n - i);
  }
}

template <int V>
void step_columns(float* state, int64_t key_dim, int64_t stride, const float* key, const float* value, float decay,
                  float strength, const float* query, float* out) {
  f32x16 sum[V], delta[V];
  const f32x16 kept = splat(decay);
  for (int v = 0; v < V; ++v) sum[v] = splat(0.f);
  for (int64_t i = 0; i < key_dim; ++i) {
    const f32x16 k = splat(key[i]);
    for (int v = 0; v < V; ++v) sum[v] = fma(k, load(state + i * stride + 16 * v), sum[v]);
  }
  for (int v = 0; v < V; ++v) delta[v] = fnma(sum[v], kept, load(value + 16 * v)) * splat(strength);
  for (int v = 0; v < V; ++v) sum[v] = splat(0.f);
  for (int64_t i = 0; i < key_dim; ++i) {
    const f32x16 k = splat(key[i]);
    f32x16 next[V];
    for (int v = 0; v < V; ++v) {
      float* at = state + i * stride + 16 * v;
      next[v] = fma(k, delta[v], load(at) * kept);
      store(at, next[v]);
    }
    if (!out) continue;
    const f32x16 q = splat(query[i]);
    for (int v = 0; v < V; ++v) sum[v] = fma(q, next[v], sum[v]);
  }
  if (out)
    for (int v = 0; v < V; ++v) store(out + 16 * v, sum[v]);
}

void delta_step(float* state, int64_t key_dim, int64_t columns, const float* key, const float* value, float decay,
                float strength, const float* query, float* out) {
#if defined(SF_ISA_avx512)
  constexpr int kTogether = 4;
#else
  constexpr int kTogether = 2;
#endif
  int64_t c = 0;
  for (; c + 16 * kTogether <= columns; c += 16 * kTogether)
    step_columns<kTogether>(state + c, key_dim, columns, key, value + c, decay, strength, query, out ? out + c : out);
  for (; c < columns; c += 16)
    step_columns<1>(state + c, key_dim, columns, key, value + c, decay, strength, query, out ? out + c : out);
}

}  // namespace

const RecurrentKernels& recurrent_kernels() {
  static const RecurrentKernels table{short_conv, unit, delta_gates, delta_step};
  return table;
}

}  // namespace sf::SF_ISA
