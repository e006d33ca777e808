// Attention over the paged cache. A "vector" is one query head of one row. Keys are visited in tiles of 32 absolute
// positions (one block); within a split of kSplit positions the softmax is online, in tile order, from scratch; splits
// are folded in ascending order. Nothing a vector computes depends on which vectors share its registers or its thread.
#include <limits>

#include "attention_tiles.h"

namespace sf::SF_ISA {
namespace {

#if defined(SF_ISA_avx512)
constexpr int kVectors = 8;  // vectors whose scores stay in registers together
#elif defined(SF_ISA_avx2)
constexpr int kVectors = 3;
#else
constexpr int kVectors = 2;
#endif
constexpr int kTilesPerSplit = kSplit / kBlock;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

int64_t round16(int64_t n) { return (n + 15) / 16 * 16; }

// --- one tile against N vectors ---

struct Interval {
  int lo, hi;  // keys [lo, hi) of a tile
};

struct Vectors {
  Ahead ahead;
  const float* query[kVectors];
  float* record[kVectors];  // [0] running maximum, [1..15] unused; then accumulator
  float* sums[kVectors];    // 16 lanes of the running sum
  Interval seen[kVectors];
};

uint32_t lanes_of(Interval seen) {  // one bit for each of 32 keys
  const uint64_t below = (uint64_t(1) << seen.hi) - 1, hidden = (uint64_t(1) << seen.lo) - 1;
  return uint32_t(below & ~hidden);
}

template <int N, class Tile>
void score(const Tile& tile, const AttendShape& s, const Vectors& v, f32x16 (&dots)[N][2]) {
  for (int i = 0; i < N; ++i) dots[i][0] = dots[i][1] = splat(0.f);
  for (int64_t first = 0; first < s.layout.key_dim; first += 8) {
    v.ahead.fetch(first);
    for (int64_t d = first; d < first + 8; ++d) {
      const f32x16 k0 = tile.key(d, 0), k1 = tile.key(d, 1);
      for (int i = 0; i < N; ++i) {
        const f32x16 q = splat(v.query[i][d]);
        dots[i][0] = fma(q, k0, dots[i][0]);
        dots[i][1] = fma(q, k1, dots[i][1]);
      }
    }
  }
}

void cap(float softcap, f32x16* dots, int n) {
  for (int i = 0; i < n; ++i) dots[i] = splat(softcap) * tanh(dots[i] / splat(softcap));
}

void shrink_record(float* record, f32x16 factor, int64_t value_dim) {
  for (int64_t c = kRecordHeader; c < kRecordHeader + value_dim; c += 16) store(record + c, load(record + c) * factor);
}

// Updates maxima and sums with a tile's scores and leaves each vector's 32 weights in `weights`. In passes over all
// vectors, because one vector alone is a single chain of dependent operations.
template <int N>
void weigh(const AttendShape& s, const Vectors& v, f32x16 (&scores)[N][2], float (&weights)[N][kBlock]) {
  const f32x16 hidden = splat(-kInfinity), zero = splat(0.f);
  uint32_t seen[N];
  float top[N];
  for (int i = 0; i < N; ++i) {
    seen[i] = lanes_of(v.seen[i]);
    scores[i][0] = select(seen[i] & 0xffffu, scores[i][0], hidden);
    scores[i][1] = select(seen[i] >> 16, scores[i][1], hidden);
    const float before = v.record[i][0], here = max_lanes(max(scores[i][0], scores[i][1]));
    top[i] = here > before ? here : before;
  }
  for (int i = 0; i < N; ++i) {
    scores[i][0] = select(seen[i] & 0xffffu, exp_below_1(scores[i][0] - splat(top[i])), zero);
    scores[i][1] = select(seen[i] >> 16, exp_below_1(scores[i][1] - splat(top[i])), zero);
    store(weights[i], scores[i][0]);
    store(weights[i] + 16, scores[i][1]);
  }
  for (int i = 0; i < N; ++i) {
    f32x16 sum = load(v.sums[i]);
    if (top[i] != v.record[i][0]) {  // otherwise the factor is exactly 1
      const f32x16 factor = exp_below_1(splat(v.record[i][0] - top[i]));
      sum = sum * factor;
      shrink_record(v.record[i], factor, s.layout.value_dim);
      v.record[i][0] = top[i];
    }
    store(v.sums[i], sum + (scores[i][0] + scores[i][1]));
  }
}

template <int N, int C, class Tile>
void add_values(const Tile& tile, const Vectors& v, const float (&weights)[N][kBlock], int lo, int hi, int64_t c) {
  f32x16 acc[N][C];
  for (int i = 0; i < N; ++i)
    for (int k = 0; k < C; ++k) acc[i][k] = load(v.record[i] + kRecordHeader + c + 16 * k);
  for (int j = lo; j < hi; ++j) {
    f32x16 x[C];
    for (int k = 0; k < C; ++k) x[k] = tile.value(j, c + 16 * k);
    for (int i = 0; i < N; ++i) {
      const f32x16 w = splat(weights[i][j]);
      for (int k = 0; k < C; ++k) acc[i][k] = fma(w, x[k], acc[i][k]);
    }
  }
  for (int i = 0; i < N; ++i)
    for (int k = 0; k < C; ++k) store(v.record[i] + kRecordHeader + c + 16 * k, acc[i][k]);
}

template <int N, class Tile>
void add_all_values(const Tile& tile, const Vectors& v, const float (&weights)[N][kBlock], int64_t value_dim, int lo,
                    int hi) {
  constexpr int C = N == 1 ? 4 : 2;  // enough independent sums to hide the latency of one
  int64_t c = 0;
  for (; c + 16 * C <= round16(value_dim); c += 16 * C) add_values<N, C>(tile, v, weights, lo, hi, c);
  for (; c < value_dim; c += 16) add_values<N, 1>(tile, v, weights, lo, hi, c);
}

template <class Tile>
void add_values_of_one(const Tile& tile, const Vectors& v, const float (&weights)[kBlock], int64_t value_dim, int i,
                       int lo, int hi) {
  if (lo >= hi) return;
  Vectors one;
  one.record[0] = v.record[i];
  add_all_values<1>(tile, one, reinterpret_cast<const float (&)[1][kBlock]>(weights), value_dim, lo, hi);
}

template <int N, class Tile>
void apply(const Tile& tile, const AttendShape& s, const Vectors& v) {
  f32x16 dots[N][2];
  alignas(64) float weights[N][kBlock];
  score<N>(tile, s, v, dots);
  for (int i = 0; i < N; ++i)
    for (f32x16& dot : dots[i]) dot = dot * splat(s.scale);
  if (s.softcap > 0.f) cap(s.softcap, &dots[0][0], 2 * N);
  const int64_t dim = s.layout.value_dim;
  weigh<N>(s, v, dots, weights);
  // The keys that all see together, and before and after them those that only some see: ascending for every vector.
  Interval all{0, kBlock};
  for (int i = 0; i < N; ++i)
    all = {v.seen[i].lo > all.lo ? v.seen[i].lo : all.lo, v.seen[i].hi < all.hi ? v.seen[i].hi : all.hi};
  if (all.hi < all.lo) all.hi = all.lo;
  for (int i = 0; i < N; ++i)
    add_values_of_one(tile, v, weights[i], dim, i, v.seen[i].lo, v.seen[i].hi < all.lo ? v.seen[i].hi : all.lo);
  if (all.lo < all.hi) add_all_values<N>(tile, v, weights, dim, all.lo, all.hi);
  for (int i = 0; i < N; ++i)
    add_values_of_one(tile, v, weights[i], dim, i, v.seen[i].lo > all.hi ? v.seen[i].lo : all.hi, v.seen[i].hi);
}

template <class Tile, int N = kVectors>
void apply_some(const Tile& tile, const AttendShape& s, const Vectors& v, int n) {
  if (n == N) return apply<N>(tile, s, v);
  if constexpr (N > 1) apply_some<Tile, N - 1>(tile, s, v, n);
}

// --- rows of a task against one tile ---

// Keys of the tile that starts at `first` visible from `position`; empty (hi <= lo) where none is.
Interval visible(int64_t window, int64_t position, int64_t first) {
  const int64_t oldest = window > 0 ? position - window + 1 : 0;
  const int64_t lo = oldest - first, hi = position - first + 1;
  return {int(lo < 0 ? 0 : lo > kBlock ? kBlock : lo), int(hi < 0 ? 0 : hi > kBlock ? kBlock : hi)};
}

struct Scratch {
  float* sums;    // [vectors][16]
  float* keys;    // [key_dim][32]
  float* values;  // [32][round16(value_dim)]
};

template <class Tile>
void apply_rows(const Tile& tile, const AttendShape& s, const AttendTask& t, int64_t first, const Ahead& ahead,
                float* records, float* sums) {
  const int64_t stride = record_floats(s.layout.value_dim);
  Vectors v;
  v.ahead = ahead;
  int n = 0;
  for (int r = 0; r < t.rows; ++r) {
    const Interval seen = visible(s.window, t.position + r, first);
    if (seen.lo >= seen.hi) continue;
    for (int g = 0; g < s.group; ++g) {
      const int64_t i = int64_t(r) * s.group + g;
      v.query[n] = t.query + r * t.query_stride + g * s.layout.key_dim;
      v.record[n] = records + i * stride;
      v.sums[n] = sums + i * 16;
      v.seen[n] = seen;
      if (++n < kVectors) continue;
      apply_some(tile, s, v, n);
      v.ahead = {};  // once is enough
      n = 0;
    }
  }
  if (n) apply_some(tile, s, v, n);
}

template <class Tile>
WideTile widen(const Tile& tile, const KvLayout& l, const Scratch& scratch) {
  const int64_t stride = round16(l.value_dim);
  for (int64_t d = 0; d < l.key_dim; ++d)
    for (int half = 0; half < 2; ++half) store(scratch.keys + d * kBlock + half * 16, tile.key(d, half));
  for (int j = 0; j < kBlock; ++j)
    for (int64_t c = 0; c < stride; c += 16) store(scratch.values + j * stride + c, tile.value(j, c));
  return {scratch.keys, scratch.values, stride};
}

Scratch carve(const AttendShape& s, int vectors, float* scratch) {
  float* keys = scratch + int64_t(vectors) * 16;
  return {scratch, keys, keys + s.layout.key_dim * kBlock};
}

size_t scratch_floats(const AttendShape& s, int rows) {
  const int64_t records = int64_t(rows) * s.group * record_floats(s.layout.value_dim) * 2;
  return size_t(records + int64_t(rows) * s.group * 16 + kBlock * (s.layout.key_dim + round16(s.layout.value_dim)));
}

int64_t oldest_key(const AttendShape& s, int64_t position) {
  return s.window > 0 && position >= s.window ? position - s.window + 1 : 0;
}

// The splits [first, last] that a row sees.
struct Splits {
  int64_t first, last;
  bool contains(int64_t split) const { return first <= split && split <= last; }
};
Splits splits_of(const AttendShape& s, int64_t position) {
  return {oldest_key(s, position) / kSplit, position / kSplit};
}

void begin_records(const AttendShape& s, const AttendTask& t, int64_t split, float* records, float* sums) {
  const int64_t stride = record_floats(s.layout.value_dim);
  for (int r = 0; r < t.rows; ++r) {
    if (!splits_of(s, t.position + r).contains(split)) continue;
    float* record = records + int64_t(r) * s.group * stride;
    std::memset(record, 0, size_t(s.group * stride) * 4);
    std::memset(sums + r * s.group * 16, 0, size_t(s.group) * 64);
    for (int g = 0; g < s.group; ++g) record[g * stride] = -kInfinity;
  }
}

void end_records(const AttendShape& s, const AttendTask& t, int64_t split, float* records, const float* sums) {
  const int64_t stride = record_floats(s.layout.value_dim);
  for (int r = 0; r < t.rows; ++r) {
    if (!splits_of(s, t.position + r).contains(split)) continue;
    for (int i = r * s.group; i < (r + 1) * s.group; ++i) records[i * stride + 1] = sum_lanes(load(sums + i * 16));
  }
}

void partial(const AttendShape& s, const AttendTask& t, int64_t split, float* records, float* memory) {
  const int vectors = t.rows * s.group;
  const Scratch scratch = carve(s, vectors, memory);
  begin_records(s, t, split, records, scratch.sums);
  const int64_t oldest = oldest_key(s, t.position) / kBlock, newest = (t.position + t.rows - 1) / kBlock;
  int64_t begin = split * kTilesPerSplit, end = begin + kTilesPerSplit;
  begin = begin < oldest ? oldest : begin;
  end = end > newest + 1 ? newest + 1 : end;
  for (int64_t b = begin; b < end; ++b) {
    Ahead ahead;
    if (b < newest)
      ahead = {t.head + size_t(t.blocks[b + 1]) * t.block_bytes,
               int64_t(s.layout.bytes() * 8 / size_t(s.layout.key_dim))};
    with_tile(s.layout, t.head + size_t(t.blocks[b]) * t.block_bytes, [&](const auto& tile) {
      if (vectors > kVectors && s.layout.format != KvFormat::F32)
        apply_rows(widen(tile, s.layout, scratch), s, t, b * kBlock, ahead, records, scratch.sums);
      else
        apply_rows(tile, s, t, b * kBlock, ahead, records, scratch.sums);
    });
  }
  end_records(s, t, split, records, scratch.sums);
}

// into = into + next, both relative to their maxima.
void fold(float* into, const float* next, int64_t value_dim) {
  const float top = next[0] > into[0] ? next[0] : into[0];
  float factors[16] = {into[0] - top, next[0] - top};
  store(factors, exp_below_1(load(factors)));
  const float a = factors[0], b = factors[1];
  into[0] = top;
  into[1] = into[1] * a + next[1] * b;
  into += kRecordHeader;
  next += kRecordHeader;
  for (int64_t c = 0; c < value_dim; c += 16) store(into + c, fma(load(into + c), splat(a), load(next + c) * splat(b)));
}

void write_out(const AttendShape& s, const AttendTask& t, int row, int g, float* record) {
  if (t.sinks) {  // one more logit in the denominator, without a value
    const float top = t.sinks[g] > record[0] ? t.sinks[g] : record[0];
    float factors[16] = {record[0] - top, t.sinks[g] - top};
    store(factors, exp_below_1(load(factors)));
    const float a = factors[0];
    record[1] = record[1] * a + factors[1];
    for (int64_t c = 0; c < s.layout.value_dim; c += 16)
      store(record + kRecordHeader + c, load(record + kRecordHeader + c) * splat(a));
  }
  const float inverse = 1.f / record[1];
  float* out = t.out + row * t.out_stride + g * s.layout.value_dim;
  for (int64_t c = 0; c < s.layout.value_dim; ++c) out[c] = record[kRecordHeader + c] * inverse;
}

void finish(const AttendShape& s, const AttendTask& t, int64_t first_split, float* const* records) {
  const int64_t stride = record_floats(s.layout.value_dim);
  for (int r = 0; r < t.rows; ++r) {
    const Splits seen = splits_of(s, t.position + r);
    for (int i = r * s.group; i < (r + 1) * s.group; ++i) {
      float* total = records[seen.first - first_split] + i * stride;
      for (int64_t p = seen.first + 1; p <= seen.last; ++p)
        fold(total, records[p - first_split] + i * stride, s.layout.value_dim);
      write_out(s, t, r, i - r * s.group, total);
    }
  }
}

void fold_split(const AttendShape& s, const AttendTask& t, int64_t split, const float* records, float* totals) {
  const int64_t stride = record_floats(s.layout.value_dim);
  for (int r = 0; r < t.rows; ++r) {
    const Splits seen = splits_of(s, t.position + r);
    if (!seen.contains(split)) continue;
    const int64_t at = int64_t(r) * s.group * stride;
    if (seen.first == split)
      std::memcpy(totals + at, records + at, size_t(s.group * stride) * 4);
    else
      for (int g = 0; g < s.group; ++g) fold(totals + at + g * stride, records + at + g * stride, s.layout.value_dim);
  }
}

void attend(const AttendShape& s, const AttendTask& t, float* memory) {
  const int64_t stride = record_floats(s.layout.value_dim), size = int64_t(t.rows) * s.group * stride;
  float *totals = memory, *records = totals + size, *scratch = records + size;
  const int64_t first = splits_of(s, t.position).first, last = splits_of(s, t.position + t.rows - 1).last;
  const bool together = splits_of(s, t.position + t.rows - 1).first == first;
  for (int64_t split = first; split <= last; ++split) {
    const bool direct = together && split == first;  // every row starts here: nothing to copy
    partial(s, t, split, direct ? totals : records, scratch);
    if (!direct) fold_split(s, t, split, records, totals);
  }
  for (int r = 0; r < t.rows; ++r)
    for (int g = 0; g < s.group; ++g) write_out(s, t, r, g, totals + (int64_t(r) * s.group + g) * stride);
}

}  // namespace

const AttendKernels& attend_kernels() {
  static const AttendKernels table{scratch_floats, partial, finish, attend};
  return table;
}

}  // namespace sf::SF_ISA
