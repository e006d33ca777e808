// A program in native form: buffers and a list of stages, run over one ragged batch of rows by the pool's threads.
// Knows no Python and no op list; `lower.py` says which stages a program becomes.
#pragma once
#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "kv_pool.h"
#include "memory.h"
#include "runtime.h"
#include "state_pool.h"

namespace sf {

// A float32 buffer of rows, and the same rows quantised for matrix products where some product reads them so.
struct RowBuffer {
  RowBuffer(int64_t width, bool of_logits, int64_t rows);
  RowBuffer(const RowBuffer&) = delete;
  void add_quantised();
  float* row(int64_t r) const { return data + r * stride; }
  ActivationRows activations(uint64_t version) const { return {data, stride, q, d, sums, version}; }

  int64_t width, stride, rows;  // rows: capacity
  bool of_logits;               // one row per row that wants logits
  float* data;
  int8_t* q = nullptr;
  float* d = nullptr;
  int32_t* sums = nullptr;

 private:
  MappedMemory memory_, quantised_;
};

struct RopeAngles {
  std::vector<double> inv_freq;
  double magnitude;
  std::vector<float> cos, sin;  // [rows][pairs], of the present step
  int64_t pairs() const { return int64_t(inv_freq.size()); }
};

// The batch of the present step. Copies, so that nothing the caller does meanwhile can matter.
struct Step {
  std::vector<int32_t> token_ids, positions, row_offsets, slots, logits_rows;
  std::vector<int32_t> row_slots;  // [rows]
  std::vector<uint8_t> taps;       // wanted, by tap
  int rows() const { return int(token_ids.size()); }
  int sequences() const { return int(slots.size()); }
  int count(bool of_logits) const { return of_logits ? int(logits_rows.size()) : rows(); }
};

// Part of a step between two barriers: independent chunks.
class Stage {
 public:
  Stage() = default;
  Stage(const Stage&) = delete;
  virtual ~Stage() = default;
  virtual int chunks(const Step& step, int threads) = 0;  // see Job::chunks
  virtual void run(const Step& step, int chunk, int worker) noexcept = 0;
  std::string label;  // for profiles
};

struct Limits {
  int64_t max_rows, max_logits_rows, max_sequences;
};

enum class StepStatus : int { Done = 0, Cancelled = 1, Refused = 2 };

class Executor : private Job {
 public:
  Executor(std::shared_ptr<Runtime> runtime, Limits limits);

  // --- building, in program order ---
  RowBuffer& add_buffer(int64_t width, bool of_logits);
  RopeAngles& add_rope(std::vector<double> inv_freq, double magnitude);
  int add_tap(RowBuffer& source);
  void add_pool(std::shared_ptr<KvPool> pool, int64_t window);  // window 0: every position stays readable
  void bind_states(std::shared_ptr<StatePool> states);
  void add_stage(std::unique_ptr<Stage> stage);
  void set_logits(RowBuffer& buffer) { logits_ = &buffer; }
  void limit_tokens(int64_t vocabulary) { vocabulary_ = vocabulary < vocabulary_ ? vocabulary : vocabulary_; }

  // --- running ---
  // Validates the batch, then runs all stages. Refused: nothing was touched, `error` says why.
  StepStatus step(Step&& batch);
  void cancel() { cancel_.store(true, std::memory_order_relaxed); }
  // Fills rows of an input buffer from another executor's tap. False if the tap does not hold those rows.
  bool copy_input(RowBuffer& into, const Executor& from, int tap, int64_t start, int64_t count);

  const RowBuffer& logits() const { return *logits_; }
  size_t num_taps() const { return taps_.size(); }
  RowBuffer& tap(int index) const { return *taps_[size_t(index)]; }
  const Step& last() const { return step_; }
  bool valid() const { return valid_; }  // results of the last step may be read

  Runtime& runtime() const { return *runtime_; }
  const Kernels& kernels() const { return runtime_->kernels; }
  const Limits limits;
  std::string error;
  double last_seconds = 0;
  bool profiling = false;
  std::vector<double> stage_seconds;  // accumulated while profiling
  const std::vector<std::unique_ptr<Stage>>& stages() const { return stages_; }

 private:
  struct BoundPool {
    std::shared_ptr<KvPool> pool;
    int64_t window;
  };
  bool check(const Step& batch);
  bool check_sequence(const Step& batch, int s);
  bool check_blocks(const Step& batch, int s, const BoundPool& bound);
  bool check_states(const Step& batch, int s);
  bool refuse(const char* format, ...);

  int chunks(int stage) override;
  void run(int stage, int chunk, int worker) noexcept override;

  std::shared_ptr<Runtime> runtime_;
  std::vector<std::unique_ptr<RowBuffer>> buffers_;
  std::vector<RowBuffer*> taps_;
  std::vector<std::unique_ptr<RopeAngles>> ropes_;
  std::vector<BoundPool> pools_;
  std::shared_ptr<StatePool> states_;  // null: no recurrent ops
  std::vector<std::unique_ptr<Stage>> stages_;
  RowBuffer* logits_ = nullptr;
  int64_t vocabulary_;
  Step step_;
  bool valid_ = false;
  std::atomic<bool> cancel_{false};
  std::vector<uint8_t> slot_used_;
  int timed_stage_ = -1;
  double timed_from_ = 0;
};

}  // namespace sf
