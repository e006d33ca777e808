// Attention of all sequences of a step: tasks of (sequence, KV head, tile of rows), or of one split of it each where
// there would be too few tasks for the threads.
#pragma once
#include <atomic>

#include "executor.h"

namespace sf {

struct AttendOp {
  RowBuffer *out, *query;
  std::shared_ptr<KvPool> pool;
  int layer, heads;
  float scale, softcap;
  int64_t window;
  std::shared_ptr<Vector> sinks;  // [heads] or null
  bool quantise;                  // the output, for the product that follows
};

class AttendStage : public Stage {
 public:
  AttendStage(Runtime& runtime, AttendOp op, int64_t max_rows);
  int chunks(const Step& step, int threads) override;
  void run(const Step& step, int chunk, int worker) noexcept override;

 private:
  struct Task {
    int first_row, rows, kv_head, slot;
    int64_t position, first_split;
    int num_splits;
    int64_t records_at;  // of its first split in the workspace
  };
  struct Chunk {
    int task, split;  // split -1: the whole task
  };
  void add_tasks(const Step& step);
  AttendTask describe(const Task& t) const;
  float* records_of(const Task& t, int split) const;
  void fold(const Task& t);
  void quantise(const Task& t) const;

  const Kernels& kernels_;
  Workspace& workspace_;
  const AttendOp op_;
  const AttendShape shape_;
  const int rows_per_task_;
  std::vector<Task> tasks_;
  std::vector<Chunk> chunks_;
  std::unique_ptr<std::atomic<int>[]> open_;  // by task: splits not yet done
  size_t open_capacity_ = 0;
};

}  // namespace sf
