#include "executor.h"

#include <algorithm>
#include <chrono>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <limits>

namespace sf {
namespace {

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }
size_t round64(size_t n) { return (n + 63) / 64 * 64; }

}  // namespace

RowBuffer::RowBuffer(int64_t width, bool of_logits, int64_t rows)
    : width(width),
      stride((width + 15) / 16 * 16),
      rows(rows),
      of_logits(of_logits),
      memory_(size_t(rows) * size_t(stride) * 4) {
  data = memory_.as<float>();
}

void RowBuffer::add_quantised() {
  if (q) return;
  const size_t values = round64(size_t(rows * width)), scales = round64(size_t(rows * (width / 32)) * 4);
  quantised_ = MappedMemory(values + scales + size_t(rows * (width / 16)) * 4);
  q = quantised_.as<int8_t>();
  d = reinterpret_cast<float*>(quantised_.data() + values);
  sums = reinterpret_cast<int32_t*>(quantised_.data() + values + scales);
}

Executor::Executor(std::shared_ptr<Runtime> runtime, Limits limits)
    : limits(limits), runtime_(std::move(runtime)), vocabulary_(std::numeric_limits<int64_t>::max()) {}

RowBuffer& Executor::add_buffer(int64_t width, bool of_logits) {
  const int64_t rows = of_logits ? limits.max_logits_rows : limits.max_rows;
  return *buffers_.emplace_back(std::make_unique<RowBuffer>(width, of_logits, rows));
}

RopeAngles& Executor::add_rope(std::vector<double> inv_freq, double magnitude) {
  auto rope = std::make_unique<RopeAngles>();
  rope->cos.resize(size_t(limits.max_rows) * inv_freq.size());
  rope->sin.resize(rope->cos.size());
  rope->inv_freq = std::move(inv_freq);
  rope->magnitude = magnitude;
  return *ropes_.emplace_back(std::move(rope));
}

int Executor::add_tap(RowBuffer& source) {
  taps_.push_back(&add_buffer(source.width, source.of_logits));
  return int(taps_.size()) - 1;
}

void Executor::add_pool(std::shared_ptr<KvPool> pool, int64_t window) {
  slot_used_.resize(std::max(slot_used_.size(), size_t(pool->slots)));
  pools_.push_back({std::move(pool), window});
}

void Executor::bind_states(std::shared_ptr<StatePool> states) {
  slot_used_.resize(std::max(slot_used_.size(), size_t(states->slots)));
  states_ = std::move(states);
}

void Executor::add_stage(std::unique_ptr<Stage> stage) {
  stages_.push_back(std::move(stage));
  stage_seconds.push_back(0);
}

StepStatus Executor::step(Step&& batch) {
  const double start = now();
  valid_ = false;
  if (!check(batch)) return StepStatus::Refused;
  step_ = std::move(batch);
  step_.row_slots.resize(size_t(step_.rows()));
  for (int s = 0; s < step_.sequences(); ++s)
    for (int r = step_.row_offsets[size_t(s)]; r < step_.row_offsets[size_t(s) + 1]; ++r)
      step_.row_slots[size_t(r)] = step_.slots[size_t(s)];
  cancel_.store(false, std::memory_order_relaxed);
  timed_stage_ = -1;
  const bool done = runtime_->pool.run(*this, int(stages_.size()) + 1, &cancel_);
  last_seconds = now() - start;
  valid_ = done;
  return done ? StepStatus::Done : StepStatus::Cancelled;
}

bool Executor::copy_input(RowBuffer& into, const Executor& from, int tap, int64_t start, int64_t count) {
  if (!from.valid() || tap < 0 || size_t(tap) >= from.taps_.size() || !from.step_.taps[size_t(tap)])
    return refuse("the source executor's last step has no such output");
  const RowBuffer& source = from.tap(tap);
  if (source.width != into.width)
    return refuse("an input of width %lld cannot take rows of width %lld", (long long)into.width,
                  (long long)source.width);
  if (start < 0 || count < 0 || count > into.rows || start + count > from.step_.count(source.of_logits))
    return refuse("rows %lld:%lld of the source are not there", (long long)start, (long long)(start + count));
  for (int64_t r = 0; r < count; ++r) std::memcpy(into.row(r), source.row(start + r), size_t(into.width) * 4);
  return true;
}

int Executor::chunks(int stage) {
  if (profiling) {
    const double t = now();
    if (timed_stage_ >= 0) stage_seconds[size_t(timed_stage_)] += t - timed_from_;
    timed_stage_ = stage;
    timed_from_ = t;
  }
  if (size_t(stage) == stages_.size()) return 0;  // one past the end: only the clock is read
  return stages_[size_t(stage)]->chunks(step_, runtime_->pool.threads());
}

void Executor::run(int stage, int chunk, int worker) noexcept { stages_[size_t(stage)]->run(step_, chunk, worker); }

// --- validation ---

bool Executor::refuse(const char* format, ...) {
  char text[256];
  va_list args;
  va_start(args, format);
  std::vsnprintf(text, sizeof text, format, args);
  va_end(args);
  error = text;
  return false;
}

bool Executor::check(const Step& b) {
  const int rows = b.rows(), sequences = b.sequences();
  if (rows < 1 || rows > limits.max_rows) return refuse("%d rows; 1 to %lld allowed", rows, (long long)limits.max_rows);
  if (b.positions.size() != b.token_ids.size()) return refuse("%zu positions for %d rows", b.positions.size(), rows);
  if (sequences < 1 || sequences > limits.max_sequences)
    return refuse("%d sequences; 1 to %lld allowed", sequences, (long long)limits.max_sequences);
  if (b.row_offsets.size() != size_t(sequences) + 1 || b.row_offsets.front() != 0 || b.row_offsets.back() != rows)
    return refuse("row offsets must be %d numbers from 0 to %d", sequences + 1, rows);
  if (int64_t(b.logits_rows.size()) > limits.max_logits_rows)
    return refuse("%zu rows want logits; at most %lld allowed", b.logits_rows.size(),
                  (long long)limits.max_logits_rows);
  for (size_t i = 0; i < b.logits_rows.size(); ++i) {
    const int previous = i ? b.logits_rows[i - 1] : -1;
    if (b.logits_rows[i] <= previous || b.logits_rows[i] >= rows)
      return refuse("logits row %d is out of order or range", b.logits_rows[i]);
  }
  for (int r = 0; r < rows; ++r)
    if (b.token_ids[size_t(r)] < 0 || b.token_ids[size_t(r)] >= vocabulary_)
      return refuse("row %d: no token %d", r, b.token_ids[size_t(r)]);
  std::fill(slot_used_.begin(), slot_used_.end(), 0);
  for (int s = 0; s < sequences; ++s)
    if (!check_sequence(b, s)) return false;
  return true;
}

bool Executor::check_sequence(const Step& b, int s) {
  const int begin = b.row_offsets[size_t(s)], end = b.row_offsets[size_t(s) + 1];
  if (begin == end) return true;
  if (begin > end || end > b.rows()) return refuse("sequence %d has rows %d:%d", s, begin, end);
  if (b.positions[size_t(begin)] < 0) return refuse("row %d: position %d", begin, b.positions[size_t(begin)]);
  for (int r = begin + 1; r < end; ++r)
    if (b.positions[size_t(r)] != b.positions[size_t(r) - 1] + 1)
      return refuse("row %d: position %d does not follow %d", r, b.positions[size_t(r)], b.positions[size_t(r) - 1]);
  for (const BoundPool& bound : pools_)
    if (!check_blocks(b, s, bound)) return false;
  if (states_ && !check_states(b, s)) return false;
  if (!pools_.empty() || states_) {
    uint8_t& used = slot_used_[size_t(b.slots[size_t(s)])];
    if (used) return refuse("slot %d is used twice", b.slots[size_t(s)]);
    used = 1;
  }
  return true;
}

// Every block that a row may read or write must be in the table.
bool Executor::check_blocks(const Step& b, int s, const BoundPool& bound) {
  const KvPool& pool = *bound.pool;
  const int slot = b.slots[size_t(s)];
  if (slot < 0 || slot >= pool.slots) return refuse("no slot %d", slot);
  const int64_t first = b.positions[size_t(b.row_offsets[size_t(s)])],
                last = b.positions[size_t(b.row_offsets[size_t(s) + 1]) - 1];
  if (last / kBlock >= pool.max_blocks) return refuse("position %lld is beyond the block table", (long long)last);
  const int64_t oldest = bound.window > 0 && first >= bound.window ? first - bound.window + 1 : 0;
  const int32_t* blocks = pool.blocks_of(slot);
  for (int64_t i = oldest / kBlock; i <= last / kBlock; ++i)
    if (blocks[i] < 0 || blocks[i] >= pool.num_blocks)
      return refuse("slot %d: entry %lld of the block table is %d", slot, (long long)i, blocks[i]);
  return true;
}

// What the table orders must be possible, and every layer's state where the rows start or within reach of its log.
bool Executor::check_states(const Step& b, int s) {
  StatePool& pool = *states_;
  const int slot = b.slots[size_t(s)];
  if (slot < 0 || slot >= pool.slots) return refuse("no slot %d", slot);
  const StateOrder& order = pool.table[size_t(slot)];
  const int32_t first = b.positions[size_t(b.row_offsets[size_t(s)])],
                stop = b.positions[size_t(b.row_offsets[size_t(s) + 1]) - 1] + 1;
  bool known = true;
  for (int32_t block : {order.source, order.target, order.saves[0].block, order.saves[1].block})
    known = known && block >= 0 && block < pool.num_blocks;
  if (!known) return refuse("slot %d: no such state block", slot);
  if (order.position < first || int64_t(stop) - order.position > pool.log_rows)
    return refuse("slot %d: rows %d:%d with a state before %d", slot, first, stop, order.position);
  if (order.target && order.target == order.source && order.position != first)
    return refuse("slot %d: a state cannot be overwritten by rows that may have to run again", slot);
  for (int layer = 0; layer < pool.layers; ++layer)
    for (StatePart part : {kConv, kDelta}) {
      const int32_t held = pool.position(order.source, layer, part);
      const StatePool::Span log = pool.logged(slot, layer, part);
      if (held == first || (0 <= held && log.first <= held && held < first && first <= log.stop)) continue;
      return refuse("slot %d: block %d holds a state before %d and rows start at %d", slot, order.source, held, first);
    }
  return true;
}

}  // namespace sf
