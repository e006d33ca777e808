// The border between the executor and the arithmetic of recurrences: one table per instruction set, same bits in all.
#pragma once
#include <cstdint>

namespace sf {

constexpr int kDeltaColumns = 64;  // of a state matrix that are carried forward together, and stay in the first-level cache

struct RecurrentKernels {
  // out[r][c] = silu(sum over ascending j of taps[j][c] * rows[r + j][c]) for n rows of `width` channels.
  void (*short_conv)(const float* const* rows, int64_t n, int64_t kernel, const float* taps, int64_t taps_stride,
                     int64_t width, float* out, int64_t out_stride);
  // out = x / max(|x|, eps) * scale
  void (*unit)(const float* x, float eps, float scale, int64_t width, float* out);
  // decay = exp(rate * softplus(alpha + dt)), strength = sigmoid(beta)
  void (*delta_gates)(const float* alpha, const float* beta, const float* rate, const float* dt, int64_t n,
                      float* decay, float* strength);
  // One position of one head, over `columns` (a multiple of 16, at most kDeltaColumns) of its state [key_dim][columns]:
  // S = decay S + k delta^T with delta = strength (v - decay S^T k); if out is not null, out = S^T q.
  void (*delta_step)(float* state, int64_t key_dim, int64_t columns, const float* key, const float* value, float decay,
                     float strength, const float* query, float* out);
};

namespace portable { const RecurrentKernels& recurrent_kernels(); }
#ifdef SF_X86
namespace avx2 { const RecurrentKernels& recurrent_kernels(); }
namespace avx512 { const RecurrentKernels& recurrent_kernels(); }
#endif

}  // namespace sf
