// The border between sampling and its arithmetic over whole logits rows: one table per instruction set, same bits.
#pragma once
#include <cstdint>

namespace sf {

// The part of a row that a draw is from: best first (ties to the lower id) down to the entry (cut, cut_id), and no
// entry whose scaled distance from the best is below `min_scaled`.
struct Kept {
  float cut;
  int32_t cut_id;
  double min_scaled;
};

constexpr int kLevels = 8;  // thresholds that one pass tries

struct Level {
  float threshold;
  double sum;  // of the weights of entries above the threshold
};

struct Noise {
  uint64_t seed;
  uint32_t position;  // of the draw among the request's output tokens
};

// Rows have no NaN unless said otherwise. The "distance" of x is x - best, and 0 for the best itself even where that is
// infinite.
struct SamplerKernels {
  // The lowest id among the largest entries. False if the row holds a NaN.
  bool (*best)(const float* x, int64_t n, float* value, int32_t* id);
  // out[i] = exp(distance(x[i]) * scale), unless out is null; returns their sum, formed in one fixed order.
  double (*weigh)(const float* x, int64_t n, float best, float scale, float* out);
  // Fills the sums of kLevels levels with descending thresholds, formed in one fixed order.
  void (*levels)(const float* x, const float* weights, int64_t n, Level* levels);
  // Appends to `ids` the indices of entries in (above, up_to] from `begin` on, until 16 more might not fit. Returns where
  // to go on: n once the row is done.
  int64_t (*collect)(const float* x, int64_t begin, int64_t n, float above, float up_to, int32_t* ids, int64_t capacity,
                     int64_t* count);
  // Minus infinity where bit i of `allowed` is clear.
  void (*mask)(const uint32_t* allowed, int64_t n, float* x);
  // The id with the largest distance / temperature + Gumbel noise among the kept; ties to the lower id. The best entry,
  // at `best_id`, is always kept.
  int32_t (*gumbel_argmax)(const float* x, int64_t n, float best, int32_t best_id, double temperature, const Kept& kept,
                           const Noise& noise);
  // Noise words and Gumbel values of ids, and the logarithm that makes them: what the tests compare with Python.
  uint32_t (*noise_word)(const Noise& noise, int32_t id);
  double (*gumbel)(uint32_t word);
  double (*log)(double x);
};
namespace portable { const SamplerKernels& sampler_kernels(); }
#ifdef SF_X86
namespace avx2 { const SamplerKernels& sampler_kernels(); }
namespace avx512 { const SamplerKernels& sampler_kernels(); }
#endif

}  // namespace sf
