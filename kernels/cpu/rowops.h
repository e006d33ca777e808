// The border between the executor and the arithmetic that is not a matrix product: one table of row operations and one
// of attention per instruction set, all with the same bits.
#pragma once
#include <cstddef>
#include <cstdint>

namespace sf {

enum class KvFormat : int { F32 = 0, F16 = 1, BF16 = 2, Q8_0 = 3 };
constexpr int kBlock = 32;   // positions of a KV block, and of an attention tile
constexpr int kSplit = 256;  // positions whose attention is summed on its own before partial results are folded

// One KV head of one layer in one block of 32 positions, all parts multiples of 64 bytes:
//   keys   [key_dim][32 positions], so that lanes are positions and a score needs no horizontal sum
//   key scales (q8_0 only)   [ceil(key_dim / 32)][32 positions] f16
//   values [32 positions][value_dim], lanes along value_dim
//   value scales (q8_0 only) [ceil(value_dim / 32)][32 positions] f16
struct KvLayout {
  KvFormat format;
  int64_t key_dim, value_dim;  // multiples of 8
  size_t element() const { return format == KvFormat::F32 ? 4 : format == KvFormat::Q8_0 ? 1 : 2; }
  size_t scales(int64_t dim) const { return format == KvFormat::Q8_0 ? size_t((dim + 31) / 32) * kBlock * 2 : 0; }
  size_t key_scales_at() const { return size_t(key_dim) * kBlock * element(); }
  size_t values_at() const { return key_scales_at() + scales(key_dim); }
  size_t value_scales_at() const { return values_at() + size_t(value_dim) * kBlock * element(); }
  size_t bytes() const { return value_scales_at() + scales(value_dim); }
};

enum class Act : int { Silu = 0, GeluTanh = 1, Sigmoid = 2 };

struct RowKernels {
  // out = x / sqrt(mean(x^2) + eps) (* w, if not null). out may be x.
  void (*rms_norm)(const float* x, const float* w, float eps, int64_t width, float* out);
  void (*add)(const float* a, const float* b, int64_t n, float* out);
  // out = act(gate) * up; out may be either.
  void (*gate)(Act act, const float* gate, const float* up, int64_t n, float* out);
  // x = cap * tanh(scale * x / cap), or scale * x where cap is 0
  void (*scale_cap)(float* x, int64_t n, float scale, float cap);
  // cos and sin of position * inv_freq, times magnitude
  void (*rope_angles)(const double* inv_freq, int64_t pairs, double magnitude, int64_t position, float* cos,
                      float* sin);
  // Rotates the first 2 * pairs dimensions of each head in place.
  void (*rope)(float* x, int64_t heads, int64_t head_dim, int64_t pairs, bool neox, const float* cos, const float* sin);
  void (*softmax)(const float* x, int64_t n, float* out);
  void (*sigmoid)(const float* x, int64_t n, float* out);
  // out = w * x (first) or fma(w, x, out)
  void (*accumulate)(float w, const float* x, int64_t n, bool first, float* out);
  // One head's key and value into position `slot` of its block part `head`.
  void (*kv_store)(const KvLayout& layout, const float* key, const float* value, int slot, uint8_t* head);
  // Every number of a block part set to `value` (q8_0: scales, with quants 1).
  void (*kv_fill)(const KvLayout& layout, float value, uint8_t* head);
  void (*f16_to_f32)(const uint16_t* x, int64_t n, float* out);
};

// What all heads of an attend op share.
struct AttendShape {
  KvLayout layout;
  int group;       // query heads per KV head
  int64_t window;  // 0: none
  float scale, softcap;
};

// Query rows of one sequence and one KV head: rows at consecutive positions, each with `group` adjacent query heads.
struct AttendTask {
  const float* query;  // [rows][query_stride], at this KV head's first query head
  int64_t query_stride;
  float* out;  // [rows][out_stride], likewise
  int64_t out_stride;
  int rows;
  int64_t position;       // of the first row
  const int32_t* blocks;  // the sequence's block table
  const uint8_t* head;    // this layer and head's part of block 0
  size_t block_bytes;
  const float* sinks;  // [group] or null
};

// Record of one query vector: 16 floats (maximum, sum) and the value accumulator, padded to lanes.
constexpr int64_t kRecordHeader = 16;
inline int64_t record_floats(int64_t value_dim) { return kRecordHeader + (value_dim + 15) / 16 * 16; }

struct AttendKernels {
  size_t (*scratch_floats)(const AttendShape& s, int rows);
  // Partial results over the keys of split `split` (positions split*kSplit...) into records[rows * group].
  // Rows that see no key there leave their records alone.
  void (*partial)(const AttendShape& s, const AttendTask& t, int64_t split, float* records, float* scratch);
  // Folds each row's splits in ascending order and writes out. records[i] are those of split first_split + i.
  void (*finish)(const AttendShape& s, const AttendTask& t, int64_t first_split, float* const* records);
  // partial over every split, folded as it goes, then finish.
  void (*attend)(const AttendShape& s, const AttendTask& t, float* scratch);
};

namespace portable {
const RowKernels& row_kernels();
const AttendKernels& attend_kernels();
}  // namespace portable
#ifdef SF_X86
namespace avx2 {
const RowKernels& row_kernels();
const AttendKernels& attend_kernels();
}  // namespace avx2
namespace avx512 {
const RowKernels& row_kernels();
const AttendKernels& attend_kernels();
}  // namespace avx512
#endif

}  // namespace sf
