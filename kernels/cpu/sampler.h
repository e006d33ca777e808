// Draws from logits rows: a request's sampling state, and what one row or one window of rows gives. Knows no Python.
// kernels/sampling.py and DrawRequest in kernels/backend.py are the contract; kernels/reference/sampling.py the oracle.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sampler_kernels.h"

namespace sf {

struct SamplingSpec {
  uint64_t seed;
  double temperature;
  int64_t top_k;
  double top_p, min_p;
  float repetition_penalty, presence_penalty, frequency_penalty;
  std::vector<std::pair<int32_t, float>> bias;  // ascending ids, each once
  std::vector<int32_t> suppress_ids;
  int64_t suppress_until;
  std::optional<int> num_logprobs;
};

// Immutable while rows are drawn; `commit` is the only change.
class SamplerState {
 public:
  // `prompt_ids` may be empty where no penalty reads them (`reads_prompt`).
  SamplerState(SamplingSpec spec, const int32_t* prompt_ids, size_t prompt_size, int64_t vocab_size);
  void commit(const int32_t* ids, size_t count);
  bool counts() const { return !index_.empty(); }  // whether `commit` changes anything

  // Finite bias, penalties, suppressed ids. `x` is the row's copy; `drafted` counts as output.
  void adjust(const float* row, const int32_t* drafted, size_t num_drafted, int64_t position, float* x) const;
  // After the mask: only exclusive tokens (bias plus infinity) where one is left, else no banned one (minus infinity).
  void choose(float* x) const;
  bool bans() const { return !banned_.empty(); }
  bool adjusts(int64_t position, size_t num_drafted) const;  // whether one of these can change anything

  const SamplingSpec spec;
  const int64_t vocab_size;

 private:
  struct Seen {
    int32_t id;
    int32_t outputs;  // times in the output; 0: in the prompt only
  };
  bool reads_output() const { return spec.presence_penalty != 0 || spec.frequency_penalty != 0; }
  bool reads_prompt() const { return spec.repetition_penalty != 1; }
  Seen& seen(int32_t id);
  float biased(float logit, int32_t id) const;
  float penalised(float x, int64_t outputs) const;

  std::vector<int32_t> wanted_, banned_;
  std::vector<Seen> seen_;
  std::vector<int32_t> index_;  // [vocab] into seen_, -1: not there; empty where no penalty is set
};

struct DrawnToken {
  int32_t id = -1;
  std::optional<double> logprob;
  std::vector<std::pair<int32_t, double>> top;
};

// Why a row cannot be drawn from.
enum class DrawFailure { None, NotANumber, NothingAllowed };

// One request's draws from consecutive rows; see DrawRequest.
struct DrawTask {
  const SamplerState* state;
  const float* rows;  // of the first draw; `stride` floats apart
  int64_t stride, position;
  std::vector<int32_t> output;      // uncommitted history, then the drafts
  size_t history = 0;               // how much of it is history
  const uint32_t* masks = nullptr;  // [drafts + 1][mask_words]
  int64_t mask_words = 0;
  size_t num_drafts() const { return output.size() - history; }

  std::vector<DrawnToken> draws;  // result; empty after a failure of the first row
  DrawFailure failure = DrawFailure::None;
};

// Memory that grows and is never cleared: what it held before is lost when it grows.
template <class T>
class GrowingArray {
 public:
  T* reserve(int64_t size) {
    if (size > size_) {
      data_.reset(new T[size_t(size)]);
      size_ = size;
    }
    return data_.get();
  }

 private:
  std::unique_ptr<T[]> data_;
  int64_t size_ = 0;
};

// An entry of a row, and its probability mass relative to the best one in units of 2^-40: an integer, so that sums of
// masses do not depend on their order.
struct Candidate {
  float x;
  int32_t id;
  uint64_t mass;
  bool operator<(const Candidate& o) const { return x > o.x || (x == o.x && id < o.id); }  // best first
};

// Memory that draws reuse; one per thread.
struct DrawScratch {
  GrowingArray<float> row, values, weights, row_weights;
  GrowingArray<int32_t> ids, kept_ids;
  GrowingArray<Candidate> candidates;
};

void draw(const SamplerKernels& kernels, DrawTask& task, DrawScratch& scratch);

// Log-softmax of a raw row at `id`, and at the `num_top` best entries that are possible at all.
DrawnToken log_probabilities(const SamplerKernels& kernels, const float* row, int64_t n, int32_t id, int num_top,
                             DrawScratch& scratch);

}  // namespace sf
