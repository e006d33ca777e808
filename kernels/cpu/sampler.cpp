#include "sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace sf {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLargest = std::numeric_limits<float>::max();

// Entries of a row in one order: by value, ties to the lower id.
struct BestFirst {
  const float* x;
  bool operator()(int32_t a, int32_t b) const { return x[a] > x[b] || (x[a] == x[b] && a < b); }
};

struct Ids {
  int32_t* begin;
  int64_t count;
  int32_t* end() const { return begin + count; }
};

// The k best entries of a row, in no order; fewer where fewer are above minus infinity.
Ids collect_best(const SamplerKernels& kernels, const float* x, int64_t n, int64_t k, DrawScratch& scratch) {
  const int64_t capacity = k + std::max<int64_t>(k, 1024);
  Ids ids{scratch.ids.reserve(capacity), 0};
  float threshold = -kInfinity;
  for (int64_t next = 0; next < n;) {
    next = kernels.collect(x, next, n, threshold, kInfinity, ids.begin, capacity, &ids.count);
    if (ids.count <= k) continue;
    std::nth_element(ids.begin, ids.begin + k - 1, ids.end(), BestFirst{x});
    ids.count = k;
    threshold = x[ids.begin[k - 1]];  // later entries of this value have higher ids and lose the tie
  }
  return ids;
}

// A row about to be drawn from.
struct Scaled {
  const SamplerKernels& kernels;
  const float* x;
  int64_t n;
  float best;
  double temperature;
  float inverse() const { return temperature > 1e-30 ? float(1 / temperature) : 1e30f; }
};

constexpr double kMassUnit = 0x1p40;

// Entries with their weights; ids null: the whole row.
struct Weighed {
  const float* x;
  const float* weights;
  const int32_t* ids;
  int64_t count;
};

// Entries of a row, and the mass of everything better than them.
struct Candidates {
  Candidate* begin;
  int64_t count;
  uint64_t before;
};

Candidates candidates_of(const Weighed& entries, DrawScratch& scratch) {
  Candidates all{scratch.candidates.reserve(entries.count), entries.count, 0};
  for (int64_t i = 0; i < entries.count; ++i)
    all.begin[i] = {entries.x[i], entries.ids[i], uint64_t(double(entries.weights[i]) * kMassUnit)};
  return all;
}

// The last entry of the shortest run of best entries that holds `target` of mass; the last of all if none does.
Candidate last_within(const Candidates& all, double target) {
  uint64_t before = all.before;
  Candidate *begin = all.begin, *end = all.begin + all.count;
  while (end - begin > 32) {
    Candidate* middle = begin + (end - begin) / 2;
    std::nth_element(begin, middle, end);
    uint64_t half = 0;
    for (const Candidate* i = begin; i != middle; ++i) half += i->mass;
    if (double(before + half) >= target) {
      end = middle;
    } else {
      before += half;
      begin = middle;
    }
  }
  std::sort(begin, end);
  for (; begin + 1 != end; ++begin) {
    before += begin->mass;
    if (double(before) >= target) break;
  }
  return *begin;
}

// Top-p over the whole row, without sorting it: narrows (lower, upper], between which the sum of weights above passes the
// target, to a few entries.
class TopP {
 public:
  TopP(const Scaled& row, double top_p, DrawScratch& scratch) : row_(row), scratch_(scratch) {
    float* weights = scratch.row_weights.reserve(row.n);
    target_ = top_p * row.kernels.weigh(row.x, row.n, row.best, row.inverse(), weights);
    entries_ = {row.x, weights, nullptr, row.n};
    upper_ = {row.best, 0};
    lower_ = row.best == kInfinity ? kLargest : -kInfinity;
  }

  Candidate last() {
    constexpr double kDepths[2][kLevels] = {{0.5, 1, 2, 3, 4, 6, 9, 14}, {17, 20, 24, 30, 40, 50, 70, 90}};
    for (const auto& depths : kDepths)  // beyond the deepest, weights are zero
      if (lower_ == -kInfinity) narrow([&](int l) { return double(row_.best) - row_.temperature * depths[l]; });
    while (!shrink(std::max(kFew, entries_.count / 8)) || entries_.count > kFew) {
      const double top = upper_.threshold, step = (top - double(lower_)) / (kLevels + 1);
      if (narrow([&](int l) { return top - step * (l + 1); })) continue;
      shrink(entries_.count);  // nothing but equal values is left
      break;
    }
    Candidates all = candidates_of(entries_, scratch_);
    all.before = uint64_t(upper_.sum * kMassUnit);
    return last_within(all, target_ * kMassUnit);
  }

 private:
  static constexpr int64_t kFew = 1024;

  // Tries kLevels descending thresholds. False if none lies strictly inside the interval.
  template <class Threshold>
  bool narrow(Threshold threshold) {
    Level levels[kLevels];
    int inside = 0;
    for (int l = 0; l < kLevels; ++l) {
      const double t = threshold(l);
      levels[l].threshold = t > -double(kLargest) ? float(t) : -kLargest;
      inside += is_inside(levels[l]);
    }
    if (!inside) return false;
    row_.kernels.levels(entries_.x, entries_.weights, entries_.count, levels);
    for (Level& level : levels) {
      if (!is_inside(level)) continue;
      level.sum += left_out_;
      if (level.sum >= target_) {
        lower_ = level.threshold;
        break;
      }
      upper_ = level;
    }
    return true;
  }

  bool is_inside(const Level& l) const { return l.threshold < upper_.threshold && l.threshold > lower_; }

  // Goes on with the interval's entries only, unless they are more than `limit`.
  bool shrink(int64_t limit) {
    int32_t *at = scratch_.ids.reserve(row_.n + 32), *ids = scratch_.kept_ids.reserve(row_.n + 32);
    int64_t count = 0;
    if (row_.kernels.collect(entries_.x, 0, entries_.count, lower_, upper_.threshold, at, limit + 16, &count) <
        entries_.count)
      return false;
    float *x = scratch_.values.reserve(row_.n), *weights = scratch_.weights.reserve(row_.n);
    for (int64_t i = 0; i < count; ++i) {  // in place once the entries are a selection: i <= at[i]
      ids[i] = entries_.ids ? ids[at[i]] : at[i];
      x[i] = entries_.x[at[i]];
      weights[i] = entries_.weights[at[i]];
    }
    entries_ = {x, weights, ids, count};
    left_out_ = upper_.sum;
    return true;
  }

  const Scaled& row_;
  DrawScratch& scratch_;
  Weighed entries_{};
  double target_, left_out_ = 0;  // the sum above the entries
  Level upper_{};
  float lower_;
};

Candidate top_k_of_row(const Scaled& row, const SamplingSpec& spec, DrawScratch& scratch) {
  const Ids ids = collect_best(row.kernels, row.x, row.n, spec.top_k, scratch);
  if (spec.top_p < 1) {
    float* values = scratch.values.reserve(ids.count);
    float* weights = scratch.weights.reserve(ids.count);
    for (int64_t i = 0; i < ids.count; ++i) values[i] = row.x[ids.begin[i]];
    row.kernels.weigh(values, ids.count, row.best, row.inverse(), weights);
    const Candidates all = candidates_of({values, weights, ids.begin, ids.count}, scratch);
    uint64_t total = 0;
    for (int64_t i = 0; i < all.count; ++i) total += all.begin[i].mass;
    return last_within(all, spec.top_p * double(total));
  }
  const int32_t worst = *std::max_element(ids.begin, ids.end(), BestFirst{row.x});
  return {row.x[worst], worst, 0};
}

Kept filter(const Scaled& row, const SamplingSpec& spec, DrawScratch& scratch) {
  Kept kept{-kInfinity, std::numeric_limits<int32_t>::max(), -std::numeric_limits<double>::infinity()};
  if (spec.min_p > 0) kept.min_scaled = row.kernels.log(spec.min_p);
  const bool top_k = spec.top_k > 0 && spec.top_k < row.n;
  if (!top_k && spec.top_p >= 1) return kept;
  const Candidate last = top_k ? top_k_of_row(row, spec, scratch) : TopP(row, spec.top_p, scratch).last();
  kept.cut = last.x;
  kept.cut_id = last.id;
  return kept;
}

double distance(float x, float best) {
  if (!(x < best)) return 0;
  return best == kInfinity ? -std::numeric_limits<double>::infinity() : double(x) - double(best);
}

enum class Choice { Made, Lifted };  // lifted: every token that the mask leaves may be drawn

// The row as it is drawn from: itself, or a copy with bias, penalties, suppressed ids, mask and choice.
const float* adjusted(const SamplerKernels& kernels, const DrawTask& task, size_t j, const float* row, Choice choice,
                      DrawScratch& scratch) {
  const SamplerState& state = *task.state;
  const int64_t position = task.position + int64_t(j);
  if (!task.masks && !state.adjusts(position, task.history + j)) return row;
  float* x = scratch.row.reserve(state.vocab_size);
  std::copy(row, row + state.vocab_size, x);
  state.adjust(row, task.output.data(), task.history + j, position, x);
  if (task.masks) kernels.mask(task.masks + int64_t(j) * task.mask_words, state.vocab_size, x);
  if (choice == Choice::Made) state.choose(x);
  return x;
}

DrawFailure draw_row(const SamplerKernels& kernels, const DrawTask& task, size_t j, DrawScratch& scratch,
                     DrawnToken& out) {
  const SamplingSpec& spec = task.state->spec;
  const int64_t n = task.state->vocab_size;
  const float* row = task.rows + int64_t(j) * task.stride;
  float best;
  if (!kernels.best(row, n, &best, &out.id)) return DrawFailure::NotANumber;
  const float* x = adjusted(kernels, task, j, row, Choice::Made, scratch);
  if (x != row) kernels.best(x, n, &best, &out.id);
  if (best == -kInfinity && task.state->bans()) {  // nothing but banned tokens is left
    x = adjusted(kernels, task, j, row, Choice::Lifted, scratch);
    kernels.best(x, n, &best, &out.id);
  }
  if (best == -kInfinity) return DrawFailure::NothingAllowed;
  if (spec.temperature > 0) {
    const Kept kept = filter({kernels, x, n, best, spec.temperature}, spec, scratch);
    const Noise noise{spec.seed, uint32_t(task.position + int64_t(j))};
    out.id = kernels.gumbel_argmax(x, n, best, out.id, spec.temperature, kept, noise);
  }
  if (spec.num_logprobs) out = log_probabilities(kernels, row, n, out.id, *spec.num_logprobs, scratch);
  return DrawFailure::None;
}

}  // namespace

SamplerState::SamplerState(SamplingSpec s, const int32_t* prompt_ids, size_t prompt_size, int64_t vocab)
    : spec(std::move(s)), vocab_size(vocab) {
  for (const auto& [id, bias] : spec.bias)
    if (std::isinf(bias)) (bias > 0 ? wanted_ : banned_).push_back(id);
  if (!reads_prompt() && !reads_output()) return;
  index_.assign(size_t(vocab_size), -1);
  if (reads_prompt())
    for (size_t i = 0; i < prompt_size; ++i) seen(prompt_ids[i]);
}

SamplerState::Seen& SamplerState::seen(int32_t id) {
  int32_t& at = index_[size_t(id)];
  if (at < 0) {
    at = int32_t(seen_.size());
    seen_.push_back({id, 0});
  }
  return seen_[size_t(at)];
}

void SamplerState::commit(const int32_t* ids, size_t count) {
  if (index_.empty()) return;
  for (size_t i = 0; i < count; ++i) ++seen(ids[i]).outputs;
}

float SamplerState::biased(float logit, int32_t id) const {
  const auto at = std::lower_bound(spec.bias.begin(), spec.bias.end(), std::pair{id, -kInfinity});
  if (at == spec.bias.end() || at->first != id || std::isinf(at->second)) return logit;
  return logit + at->second;
}

// Of a token that prompt or output holds.
float SamplerState::penalised(float x, int64_t outputs) const {
  x = x > 0 ? x / spec.repetition_penalty : x * spec.repetition_penalty;
  x = x - spec.frequency_penalty * float(outputs);
  return outputs > 0 ? x - spec.presence_penalty : x;
}

bool SamplerState::adjusts(int64_t position, size_t num_drafted) const {
  const bool suppresses = position < spec.suppress_until && !spec.suppress_ids.empty();
  return suppresses || !spec.bias.empty() || !seen_.empty() || (!index_.empty() && num_drafted > 0);
}

void SamplerState::adjust(const float* row, const int32_t* drafted, size_t num_drafted, int64_t position,
                          float* x) const {
  for (const auto& [id, bias] : spec.bias) x[id] = biased(row[id], id);
  for (const Seen& s : seen_) x[s.id] = penalised(x[s.id], s.outputs);
  if (!index_.empty())
    for (size_t i = 0; i < num_drafted; ++i) {  // again from the start, with the whole count
      const int32_t id = drafted[i], at = index_[size_t(id)];
      const int64_t outputs = (at < 0 ? 0 : seen_[size_t(at)].outputs) + std::count(drafted, drafted + num_drafted, id);
      x[id] = penalised(biased(row[id], id), outputs);
    }
  if (position < spec.suppress_until)
    for (int32_t id : spec.suppress_ids) x[id] = -kInfinity;
}

void SamplerState::choose(float* x) const {
  std::vector<std::pair<int32_t, float>> left;
  for (int32_t id : wanted_)
    if (x[id] > -kInfinity) left.emplace_back(id, x[id]);
  if (left.empty()) {
    for (int32_t id : banned_) x[id] = -kInfinity;
    return;
  }
  std::fill(x, x + vocab_size, -kInfinity);
  for (const auto& [id, value] : left) x[id] = value;
}

void draw(const SamplerKernels& kernels, DrawTask& task, DrawScratch& scratch) {
  for (size_t j = 0; j <= task.num_drafts(); ++j) {
    DrawnToken token;
    const DrawFailure failure = draw_row(kernels, task, j, scratch, token);
    if (failure != DrawFailure::None) {
      if (task.draws.empty()) task.failure = failure;
      return;
    }
    task.draws.push_back(std::move(token));
    if (j < task.num_drafts() && task.draws.back().id != task.output[task.history + j]) return;
  }
}

DrawnToken log_probabilities(const SamplerKernels& kernels, const float* row, int64_t n, int32_t id, int num_top,
                             DrawScratch& scratch) {
  DrawnToken out;
  out.id = id;
  float best;
  int32_t best_id;
  if (!kernels.best(row, n, &best, &best_id)) {
    out.logprob = std::numeric_limits<double>::quiet_NaN();
    return out;
  }
  const double log_sum = kernels.log(kernels.weigh(row, n, best, 1.f, nullptr));
  out.logprob = distance(row[id], best) - log_sum;
  if (num_top <= 0) return out;
  const Ids ids = collect_best(kernels, row, n, std::min<int64_t>(num_top, n), scratch);
  std::sort(ids.begin, ids.end(), BestFirst{row});
  for (int64_t i = 0; i < ids.count; ++i) {
    const double d = distance(row[ids.begin[i]], best);
    if (std::isfinite(d)) out.top.emplace_back(ids.begin[i], d - log_sum);
  }
  return out;
}

}  // namespace sf
