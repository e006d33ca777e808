// Row operations: norms, gates, rope, router scores. A row's tail goes through a zero-padded copy of sixteen lanes, so
// it gets the same arithmetic as the rest.
#include "../rowops.h"
#include "math.h"
#include "tail.h"

namespace sf::SF_ISA {
namespace {

void rms_norm(const float* x, const float* w, float eps, int64_t width, float* out) {
  f32x16 squares = splat(0.f);
  for (int64_t i = 0; i < width; i += 16) {
    f32x16 v = load_part(x + i, width - i);
    squares = fma(v, v, squares);
  }
  const f32x16 r = splat(1.f / std::sqrt(sum_lanes(squares) / float(width) + eps));
  for (int64_t i = 0; i < width; i += 16) {
    f32x16 v = load_part(x + i, width - i) * r;
    if (w) v = v * load_part(w + i, width - i);
    store_part(out + i, v, width - i);
  }
}

void add(const float* a, const float* b, int64_t n, float* out) {
  for (int64_t i = 0; i < n; i += 16) store_part(out + i, load_part(a + i, n - i) + load_part(b + i, n - i), n - i);
}

f32x16 activate(Act act, f32x16 x) {
  if (act == Act::Silu) return x * sigmoid(x);
  if (act == Act::Sigmoid) return sigmoid(x);
  const f32x16 inner = splat(0.797884561f) * fma(splat(0.044715f) * x * x, x, x);  // sqrt(2 / pi) (x + 0.044715 x^3)
  return splat(0.5f) * x * (splat(1.f) + tanh(inner));
}

void gate(Act act, const float* gate, const float* up, int64_t n, float* out) {
  for (int64_t i = 0; i < n; i += 16)
    store_part(out + i, activate(act, load_part(gate + i, n - i)) * load_part(up + i, n - i), n - i);
}

void scale_cap(float* x, int64_t n, float scale, float cap) {
  for (int64_t i = 0; i < n; i += 16) {
    f32x16 v = load_part(x + i, n - i) * splat(scale);
    if (cap > 0.f) v = splat(cap) * tanh(v / splat(cap));
    store_part(x + i, v, n - i);
  }
}

void rope_angles(const double* inv_freq, int64_t pairs, double magnitude, int64_t position, float* cos, float* sin) {
  for (int64_t i = 0; i < pairs; ++i) {
    double s, c;
    sin_cos(double(position) * inv_freq[i], s, c);
    cos[i] = float(c * magnitude);
    sin[i] = float(s * magnitude);
  }
}

void rotate(float& a, float& b, float c, float s) {
  const float x = a, y = b;
  a = std::fma(-y, s, x * c);
  b = std::fma(x, s, y * c);
}

void rope_neox(float* x, int64_t pairs, const float* cos, const float* sin) {
  int64_t i = 0;
  for (; i + 16 <= pairs; i += 16) {
    f32x16 a = load(x + i), b = load(x + pairs + i), c = load(cos + i), s = load(sin + i);
    store(x + i, fnma(b, s, a * c));
    store(x + pairs + i, fma(a, s, b * c));
  }
  for (; i < pairs; ++i) rotate(x[i], x[pairs + i], cos[i], sin[i]);
}

void rope(float* x, int64_t heads, int64_t head_dim, int64_t pairs, bool neox, const float* cos, const float* sin) {
  for (int64_t h = 0; h < heads; ++h, x += head_dim) {
    if (neox)
      rope_neox(x, pairs, cos, sin);
    else
      for (int64_t i = 0; i < pairs; ++i) rotate(x[2 * i], x[2 * i + 1], cos[i], sin[i]);
  }
}

void softmax(const float* x, int64_t n, float* out) {
  float top = x[0];
  for (int64_t i = 1; i < n; ++i) top = x[i] > top ? x[i] : top;
  f32x16 sums = splat(0.f);
  for (int64_t i = 0; i < n; i += 16) {
    f32x16 e = exp(load_part(x + i, n - i) - splat(top));
    if (n - i < 16) e = select((1u << (n - i)) - 1, e, splat(0.f));
    sums = sums + e;
    store_part(out + i, e, n - i);
  }
  const f32x16 total = splat(sum_lanes(sums));
  for (int64_t i = 0; i < n; i += 16) store_part(out + i, load_part(out + i, n - i) / total, n - i);
}

void sigmoid_row(const float* x, int64_t n, float* out) {
  for (int64_t i = 0; i < n; i += 16) store_part(out + i, sigmoid(load_part(x + i, n - i)), n - i);
}

void accumulate(float w, const float* x, int64_t n, bool first, float* out) {
  for (int64_t i = 0; i < n; i += 16) {
    f32x16 v = load_part(x + i, n - i);
    store_part(out + i, first ? splat(w) * v : fma(splat(w), v, load_part(out + i, n - i)), n - i);
  }
}

void widen_f16(const uint16_t* x, int64_t n, float* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = f16_to_f32(x[i]);
}

}  // namespace

void kv_store(const KvLayout& layout, const float* key, const float* value, int slot, uint8_t* head);
void kv_fill(const KvLayout& layout, float value, uint8_t* head);

const RowKernels& row_kernels() {
  static const RowKernels table{rms_norm, add,         gate,       scale_cap, rope_angles, rope,
                                softmax,  sigmoid_row, accumulate, kv_store,  kv_fill,     widen_f16};
  return table;
}

}  // namespace sf::SF_ISA
