// Sampling's passes over whole rows. Everything that decides a draw is either exact (comparisons, noise words, the
// scores of the few candidates, in double) or summed in a fixed order, so all instruction sets draw the same token.
#include "../sampler_kernels.h"
#include "../vec.h"
#include "math.h"
#include "sampler_noise.h"

namespace sf::SF_ISA {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr double kLowest = std::numeric_limits<float>::lowest();
constexpr uint32_t kAllLanes = 0xffffu;

// Lanes [begin, begin + 16) of a row; beyond its end, minus infinity.
f32x16 load_row(const float* x, int64_t begin, int64_t n) {
  if (begin + 16 <= n) return load(x + begin);
  float t[16];
  for (int i = 0; i < 16; ++i) t[i] = begin + i < n ? x[begin + i] : -kInfinity;
  return load(t);
}

void store_row(float* x, int64_t begin, int64_t n, f32x16 v) {
  if (begin + 16 <= n) return store(x + begin, v);
  float t[16];
  store(t, v);
  for (int i = 0; begin + i < n; ++i) x[begin + i] = t[i];
}

f32x16 distance(f32x16 x, f32x16 best) { return select(less(x, best), x - best, splat(0.f)); }

bool best(const float* x, int64_t n, float* value, int32_t* id) {
  constexpr int64_t kChunk = 2048;  // only the chunk that holds the best entry is read twice
  float largest = -kInfinity;
  int64_t chunk = 0;
  uint32_t nan = 0;
  for (int64_t begin = 0; begin < n; begin += kChunk) {
    const int64_t end = begin + kChunk < n ? begin + kChunk : n;
    f32x16 m[4] = {splat(-kInfinity), splat(-kInfinity), splat(-kInfinity), splat(-kInfinity)};
    int64_t i = begin;
    for (; i + 64 <= end; i += 64)
      for (int j = 0; j < 4; ++j) {
        const f32x16 v = load(x + i + 16 * j);
        nan |= is_nan(v);
        m[j] = max(v, m[j]);
      }
    for (; i < end; i += 16) {
      const f32x16 v = load_row(x, i, end);
      nan |= is_nan(v);
      m[0] = max(v, m[0]);
    }
    const float here = max_lanes(max(max(m[0], m[1]), max(m[2], m[3])));
    if (here > largest) {
      largest = here;
      chunk = begin;
    }
  }
  if (nan) return false;
  int64_t first = chunk;
  while (x[first] < largest) ++first;
  *value = largest;
  *id = int32_t(first);
  return true;
}

constexpr int64_t kSumChunk = 256;  // entries summed in float lanes before they join the sum in double

double weigh(const float* x, int64_t n, float best, float scale, float* out) {
  const f32x16 b = splat(best), s = splat(scale);
  double total = 0;
  for (int64_t begin = 0; begin < n; begin += kSumChunk) {
    const int64_t end = begin + kSumChunk < n ? begin + kSumChunk : n;
    f32x16 sum = splat(0.f);
    for (int64_t i = begin; i < end; i += 16) {
      const f32x16 w = exp(distance(load_row(x, i, end), b) * s);
      sum = sum + w;
      if (out) store_row(out, i, end, w);
    }
    total += double(sum_lanes(sum));
  }
  return total;
}

void levels(const float* x, const float* weights, int64_t n, Level* levels) {
  const f32x16 zero = splat(0.f);
  f32x16 thresholds[kLevels];
  for (int l = 0; l < kLevels; ++l) {
    thresholds[l] = splat(levels[l].threshold);
    levels[l].sum = 0;
  }
  for (int64_t begin = 0; begin < n; begin += kSumChunk) {
    const int64_t end = begin + kSumChunk < n ? begin + kSumChunk : n;
    f32x16 sums[kLevels];
    for (f32x16& sum : sums) sum = zero;
    bool any = false;
    for (int64_t i = begin; i < end; i += 16) {
      const f32x16 v = load_row(x, i, end);
      if (!less(thresholds[kLevels - 1], v)) continue;
      any = true;
      const f32x16 w = load_row(weights, i, end);
      for (int l = 0; l < kLevels; ++l) sums[l] = sums[l] + select(less(thresholds[l], v), w, zero);
    }
    if (!any) continue;
    for (int l = 0; l < kLevels; ++l) levels[l].sum += double(sum_lanes(sums[l]));
  }
}

int64_t collect(const float* x, int64_t begin, int64_t n, float above, float up_to, int32_t* ids, int64_t capacity,
                int64_t* count) {
  const f32x16 low = splat(above), high = splat(up_to);
  int64_t i = begin, found = *count;
  for (; i < n && found + 16 <= capacity; i += 16) {
    const f32x16 v = load_row(x, i, n);
    for (uint32_t within = less(low, v) & ~less(high, v); within; within &= within - 1)
      ids[found++] = int32_t(i + __builtin_ctz(within));
  }
  *count = found;
  return i < n ? i : n;
}

void mask(const uint32_t* allowed, int64_t n, float* x) {
  for (int64_t i = 0; i < n; i += 16) {
    const uint32_t bits = allowed[i / 32] >> (i % 32) & kAllLanes;
    if (bits == kAllLanes) continue;
    if (i + 16 <= n) {
      store(x + i, select(bits, load(x + i), splat(-kInfinity)));
    } else {
      for (int64_t j = i; j < n; ++j)
        if (!(bits >> (j - i) & 1u)) x[j] = -kInfinity;
    }
  }
}

// The race of gumbel_argmax: the leader, and what an entry must at least be to overtake it.
class Race {
 public:
  Race(float best, int32_t best_id, double temperature, const Kept& kept, const Noise& noise)
      : best_(best), temperature_(temperature), kept_(kept) {
    i32x16 words[4];
    int32_t lanes[16];
    noise_words(noise, best_id / kNoiseRun * kNoiseRun, words);
    std::memcpy(lanes, &words[best_id % kNoiseRun / 16], sizeof lanes);
    lead(gumbel_exact(uint32_t(lanes[best_id % 16])), best_id);
  }

  // Entries below `floor` cannot win: they are cut off, or even the largest possible noise is not enough.
  float floor() const { return floor_; }
  float score() const { return float(score_); }
  int32_t winner() const { return id_; }

  void run(float x, int32_t id, uint32_t word) {
    if (x < kept_.cut || (x == kept_.cut && id > kept_.cut_id)) return;
    double scaled = 0;
    if (x < best_) scaled = best_ == kInfinity ? -kInfinity : (double(x) - double(best_)) / temperature_;
    if (scaled < kept_.min_scaled) return;
    const double score = scaled + gumbel_exact(word);
    if (score > score_ || (score == score_ && id < id_)) lead(score, id);
  }

 private:
  void lead(double score, int32_t id) {
    score_ = score;
    id_ = id;
    // The larger of the two distances that keep an entry in the race, in double, then lowered by more than its
    // rounding to float can raise it.
    const double reach = score - kMaxGumbel > kept_.min_scaled ? score - kMaxGumbel : kept_.min_scaled;
    const double span = -temperature_ * reach, size = span + (best_ < 0 ? -double(best_) : double(best_));
    const double needed = double(best_) - span - 1e-6 * size;
    floor_ = best_ == kInfinity ? kInfinity : needed < kLowest ? -kInfinity : float(needed);
    if (floor_ < kept_.cut) floor_ = kept_.cut;
  }

  const float best_;
  const double temperature_;
  const Kept kept_;
  double score_ = 0;
  int32_t id_ = 0;
  float floor_ = 0;
};

// An entry wins only if its exponential noise E = -log(u) is below exp(scaled - score), and E > 1 - u. That is tested in
// float with room for its rounding; what passes is scored in double.
int32_t gumbel_argmax(const float* x, int64_t n, float best, int32_t best_id, double temperature, const Kept& kept,
                      const Noise& noise) {
  Race race(best, best_id, temperature, kept, noise);
  const float inverse = temperature > 1e-30 ? float(1 / temperature) : 1e30f;
  const f32x16 b = splat(best), scale = splat(inverse), room = splat(1.001f);
  for (int64_t run = 0; run < n; run += kNoiseRun) {
    f32x16 values[4];
    uint32_t in_reach[4];
    for (int w = 0; w < 4; ++w) values[w] = load_row(x, run + 16 * w, n);
    const f32x16 floor = splat(race.floor());
    for (int w = 0; w < 4; ++w) in_reach[w] = ~less(values[w], floor) & kAllLanes;
    if (!(in_reach[0] | in_reach[1] | in_reach[2] | in_reach[3])) continue;
    i32x16 words[4];
    noise_words(noise, run, words);
    for (int w = 0; w < 4; ++w) {
      if (!in_reach[w]) continue;
      const f32x16 threshold = exp(distance(values[w], b) * scale - splat(race.score())) * room;
      const i32x16 complement = xor_i(words[w], splat_i(-1));
      const f32x16 at_least = to_f32(shr_logical<8>(complement)) * splat(0x1p-24f);  // at most 1 - u
      uint32_t may_win = less(at_least, threshold) & in_reach[w];
      if (!may_win) continue;
      int32_t lanes[16];
      std::memcpy(lanes, &words[w], sizeof lanes);
      for (; may_win; may_win &= may_win - 1) {
        const int lane = __builtin_ctz(may_win);
        const int64_t id = run + 16 * w + lane;
        if (id < n) race.run(x[id], int32_t(id), uint32_t(lanes[lane]));
      }
    }
  }
  return race.winner();
}

uint32_t noise_word(const Noise& noise, int32_t id) {
  i32x16 words[4];
  int32_t lanes[16];
  noise_words(noise, id / kNoiseRun * kNoiseRun, words);
  std::memcpy(lanes, &words[id % kNoiseRun / 16], sizeof lanes);
  return uint32_t(lanes[id % 16]);
}

}  // namespace

const SamplerKernels& sampler_kernels() {
  static const SamplerKernels kernels = {best, weigh, levels, collect, mask, gumbel_argmax, noise_word, gumbel_exact, log_exact};
  return kernels;
}

}  // namespace sf::SF_ISA
