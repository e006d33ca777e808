#include "attend_stage.h"

#include <algorithm>

namespace sf {
namespace {

constexpr int kVectorsPerTask = 192;  // query vectors whose running sums stay in the second-level cache

AttendShape shape_of(const AttendOp& op) {
  return {op.pool->layout, op.heads / op.pool->heads, op.window, op.scale, op.softcap};
}

}  // namespace

AttendStage::AttendStage(Runtime& runtime, AttendOp op, int64_t max_rows)
    : kernels_(runtime.kernels),
      workspace_(runtime.workspace),
      op_(std::move(op)),
      shape_(shape_of(op_)),
      rows_per_task_(int(std::min<int64_t>(max_rows, std::max(1, kVectorsPerTask / shape_.group)))) {
  workspace_.reserve_scratch(kernels_.attend->scratch_floats(shape_, rows_per_task_));
  if (op_.quantise) op_.out->add_quantised();
}

void AttendStage::add_tasks(const Step& step) {
  tasks_.clear();
  for (int s = 0; s < step.sequences(); ++s) {
    const int begin = step.row_offsets[size_t(s)], end = step.row_offsets[size_t(s) + 1];
    const int parts = (end - begin + rows_per_task_ - 1) / rows_per_task_;
    for (int p = parts - 1; p >= 0; --p) {  // later rows see more keys: longest first
      Task t{};
      t.first_row = begin + p * rows_per_task_;
      t.rows = std::min(end - t.first_row, rows_per_task_);
      t.slot = step.slots[size_t(s)];
      t.position = step.positions[size_t(t.first_row)];
      const int64_t oldest = op_.window > 0 ? std::max<int64_t>(0, t.position - op_.window + 1) : 0;
      t.first_split = oldest / kSplit;
      t.num_splits = int((t.position + t.rows - 1) / kSplit - t.first_split + 1);
      for (t.kv_head = 0; t.kv_head < op_.pool->heads; ++t.kv_head) tasks_.push_back(t);
    }
  }
}

int AttendStage::chunks(const Step& step, int threads) {
  add_tasks(step);
  chunks_.clear();
  const bool split = int(tasks_.size()) < 2 * threads && threads > 1;
  int64_t records = 0;
  for (int i = 0; i < int(tasks_.size()); ++i) {
    Task& t = tasks_[size_t(i)];
    t.records_at = records;
    if (!split || t.num_splits == 1) {
      chunks_.push_back({i, -1});
      continue;
    }
    for (int p = 0; p < t.num_splits; ++p) chunks_.push_back({i, p});
    records += int64_t(t.num_splits) * t.rows * shape_.group * record_floats(shape_.layout.value_dim);
  }
  workspace_.records.reserve(size_t(records));
  if (tasks_.size() > open_capacity_) {
    open_capacity_ = tasks_.size();
    open_ = std::make_unique<std::atomic<int>[]>(open_capacity_);
  }
  for (size_t i = 0; i < tasks_.size(); ++i) open_[i].store(tasks_[i].num_splits, std::memory_order_relaxed);
  return int(chunks_.size());
}

AttendTask AttendStage::describe(const Task& t) const {
  const KvLayout& l = shape_.layout;
  const int64_t head = int64_t(t.kv_head) * shape_.group;
  AttendTask a;
  a.query = op_.query->row(t.first_row) + head * l.key_dim;
  a.query_stride = op_.query->stride;
  a.out = op_.out->row(t.first_row) + head * l.value_dim;
  a.out_stride = op_.out->stride;
  a.rows = t.rows;
  a.position = t.position;
  a.blocks = op_.pool->blocks_of(t.slot);
  a.head = op_.pool->part(0, op_.layer, t.kv_head);
  a.block_bytes = op_.pool->block_bytes();
  a.sinks = op_.sinks ? op_.sinks->data() + head : nullptr;
  return a;
}

float* AttendStage::records_of(const Task& t, int split) const {
  const int64_t size = int64_t(t.rows) * shape_.group * record_floats(shape_.layout.value_dim);
  return workspace_.records.data() + t.records_at + split * size;
}

void AttendStage::run(const Step&, int chunk, int worker) noexcept {
  const Chunk c = chunks_[size_t(chunk)];
  const Task& t = tasks_[size_t(c.task)];
  float* scratch = workspace_.scratch[size_t(worker)].data();
  if (c.split < 0) {
    kernels_.attend->attend(shape_, describe(t), scratch);
  } else {
    kernels_.attend->partial(shape_, describe(t), t.first_split + c.split, records_of(t, c.split), scratch);
    if (open_[size_t(c.task)].fetch_sub(1, std::memory_order_acq_rel) != 1) return;
    fold(t);
  }
  if (op_.quantise) quantise(t);
}

void AttendStage::fold(const Task& t) {
  thread_local std::vector<float*> records;
  records.resize(size_t(t.num_splits));
  for (int p = 0; p < t.num_splits; ++p) records[size_t(p)] = records_of(t, p);
  kernels_.attend->finish(shape_, describe(t), t.first_split, records.data());
}

void AttendStage::quantise(const Task& t) const {
  const RowBuffer& b = *op_.out;
  const int64_t n = shape_.group * shape_.layout.value_dim, begin = t.kv_head * n;
  for (int64_t r = t.first_row; r < t.first_row + t.rows; ++r) {
    const int64_t at = r * b.width + begin;
    kernels_.linear->quantise_row(b.row(r) + begin, n, b.q + at, b.d + at / 32, b.sums + at / 16);
  }
}

}  // namespace sf
