#include "recurrent_stage.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace sf {
namespace {

constexpr int64_t kConvChannels = 256;  // of a piece: their rows stay in the second-level cache

int pieces_of(int64_t size, int64_t each) { return int((size + each - 1) / each); }

}  // namespace

RecurrentStage::RecurrentStage(std::shared_ptr<StatePool> pool, int layer, StatePart part, int pieces,
                               int64_t max_sequences)
    : pool_(std::move(pool)),
      layout_(pool_->layout),
      layer_(layer),
      part_(part),
      pieces_(pieces),
      open_(std::make_unique<std::atomic<int>[]>(size_t(max_sequences))) {}

int RecurrentStage::chunks(const Step& step, int) {
  visits_.clear();
  for (int s = 0; s < step.sequences(); ++s) {
    const int begin = step.row_offsets[size_t(s)], end = step.row_offsets[size_t(s) + 1];
    if (begin == end) continue;
    const int slot = step.slots[size_t(s)];
    const StateOrder& order = pool_->table[size_t(slot)];
    open_[visits_.size()].store(pieces_, std::memory_order_relaxed);
    visits_.push_back({begin, end - begin, slot, step.positions[size_t(begin)],
                       pool_->position(order.source, layer_, part_), order});
  }
  return int(visits_.size()) * pieces_;
}

void RecurrentStage::run(const Step&, int chunk, int worker) noexcept {
  const size_t visit = size_t(chunk / pieces_);
  const Visit& v = visits_[visit];
  run_piece(v, chunk % pieces_, worker);
  if (open_[visit].fetch_sub(1, std::memory_order_acq_rel) == 1) finish(v);
}

void RecurrentStage::finish(const Visit& v) {
  if (v.logged_rows()) {
    write_log(v);
    pool_->logged(v.slot, layer_, part_) = {v.order.position, v.stop()};
  }
  for (const auto& save : v.order.saves)
    if (save.block && v.held <= save.position && save.position <= v.stop())
      pool_->position(save.block, layer_, part_) = save.position;
  if (v.order.target && v.order.position <= v.stop())
    pool_->position(v.order.target, layer_, part_) = v.order.position;
}

template <class Store>
void RecurrentStage::pass_by(const Visit& v, int32_t position, Store store) const {
  for (const auto& save : v.order.saves)
    if (save.block && save.position == position) store(save.block);
  if (v.order.target && v.order.position == position) store(v.order.target);
}

// --- short convolution ---

ShortConvStage::ShortConvStage(const Kernels& kernels, int64_t max_sequences, RowBuffer& out, RowBuffer& src,
                               const Vector& weight, std::shared_ptr<StatePool> pool, int layer)
    : RecurrentStage(pool, layer, kConv, pieces_of(pool->layout.channels(), kConvChannels), max_sequences),
      kernels_(kernels),
      out_(out),
      src_(src),
      stride_(StateLayout::round16(layout_.channels())) {
  taps_.resize(size_t(layout_.kernel * stride_));
  for (int64_t c = 0; c < layout_.channels(); ++c)
    for (int64_t j = 0; j < layout_.kernel; ++j)
      taps_[size_t(j * stride_ + c)] = weight.values[size_t(c * layout_.kernel + j)];
}

void ShortConvStage::run_piece(const Visit& v, int piece, int) noexcept {
  const int64_t begin = piece * kConvChannels, width = std::min(kConvChannels, layout_.channels() - begin);
  const int64_t history = layout_.history(), replayed = v.first - v.held;
  static constexpr float kZeros[kConvChannels] = {};
  thread_local std::vector<const float*> rows;  // positions held - history .. stop, at this piece's channels
  rows.clear();
  const float* before = part(v.order.source);
  for (int64_t i = 0; i < history; ++i) rows.push_back(before ? before + i * layout_.channels() + begin : kZeros);
  for (int32_t p = v.held; p < v.first; ++p) rows.push_back(logged(v, p) + begin);
  for (int r = 0; r < v.rows; ++r) rows.push_back(src_.row(v.first_row + r) + begin);
  kernels_.recurrent->short_conv(rows.data() + replayed, v.rows, layout_.kernel, taps_.data() + begin, stride_, width,
                                 out_.row(v.first_row) + begin, out_.stride);
  auto store = [&](int32_t block, int32_t position) {
    if (block == v.order.source && position == v.held) return;
    float* into = part(block) + begin;  // ascending: in place, rows move towards the front
    for (int64_t i = 0; i < history; ++i)
      std::memmove(into + i * layout_.channels(), rows[size_t(position - v.held + i)], size_t(width) * 4);
  };
  for (int32_t p = v.held; p <= v.stop(); ++p) pass_by(v, p, [&](int32_t block) { store(block, p); });
}

void ShortConvStage::write_log(const Visit& v) noexcept {
  const int skipped = v.rows - v.logged_rows();
  for (int r = skipped; r < v.rows; ++r)
    std::memcpy(log_row(v, r - skipped), src_.row(v.first_row + r), size_t(layout_.channels()) * 4);
}

// --- gated delta rule ---

std::unique_ptr<RowOp> delta_rows_op(const Kernels& k, const StateLayout& layout, std::shared_ptr<DeltaRows> rows,
                                     DeltaInputs in) {
  class Op : public RowOp {
   public:
    Op(const Kernels& k, const StateLayout& l, std::shared_ptr<DeltaRows> rows, DeltaInputs in)
        : kernels_(*k.recurrent), l_(l), rows_(std::move(rows)), in_(std::move(in)) {}
    void run(const Step&, int64_t r) const noexcept override {
      const float* mixed = in_.mixed->row(r);
      float *out = rows_->query_key.row(r), *gates = rows_->gates.row(r);
      const float scale = 1.f / std::sqrt(float(l_.key_dim));
      for (int64_t h = 0; h < 2 * l_.key_heads; ++h)
        kernels_.unit(mixed + h * l_.key_dim, in_.eps, h < l_.key_heads ? scale : 1.f, l_.key_dim, out + h * l_.key_dim);
      kernels_.delta_gates(in_.alpha->row(r), in_.beta->row(r), in_.rate->values.data(), in_.dt->values.data(),
                           l_.value_heads, gates, gates + l_.value_heads);
    }
    double cost() const override { return double(l_.keys()) + 8. * double(l_.value_heads); }

   private:
    const RecurrentKernels& kernels_;
    const StateLayout l_;
    const std::shared_ptr<DeltaRows> rows_;
    const DeltaInputs in_;
  };
  return std::make_unique<Op>(k, layout, std::move(rows), std::move(in));
}

DeltaStage::DeltaStage(Runtime& runtime, int64_t max_sequences, RowBuffer& out, RowBuffer& mixed,
                       std::shared_ptr<DeltaRows> rows, std::shared_ptr<StatePool> pool, int layer)
    : RecurrentStage(pool, layer, kDelta,
                     int(pool->layout.value_heads) * pieces_of(pool->layout.value_dim, kDeltaColumns), max_sequences),
      kernels_(runtime.kernels),
      workspace_(runtime.workspace),
      out_(out),
      mixed_(mixed),
      rows_(std::move(rows)) {
  workspace_.reserve_scratch(size_t(layout_.key_dim * kDeltaColumns));
}

void DeltaStage::run_piece(const Visit& v, int piece, int worker) noexcept {
  const int slices = pieces_of(layout_.value_dim, kDeltaColumns);
  const int64_t head = piece / slices, begin = piece % slices * kDeltaColumns,
                columns = std::min<int64_t>(kDeltaColumns, layout_.value_dim - begin),
                key_at = head % layout_.key_heads * layout_.key_dim, value_at = head * layout_.value_dim + begin,
                matrix = head * layout_.key_dim * layout_.value_dim + begin;
  float* state = workspace_.scratch[size_t(worker)].data();  // [key_dim][columns]
  const float* before = part(v.order.source);
  for (int64_t i = 0; i < layout_.key_dim; ++i) {
    float* row = state + i * columns;
    if (before)
      std::memcpy(row, before + matrix + i * layout_.value_dim, size_t(columns) * 4);
    else
      std::fill_n(row, columns, 0.f);
  }
  auto stored = [&](int32_t position) {
    pass_by(v, position, [&](int32_t block) {
      if (block == v.order.source && position == v.held) return;
      float* into = part(block) + matrix;
      for (int64_t i = 0; i < layout_.key_dim; ++i)
        std::memcpy(into + i * layout_.value_dim, state + i * columns, size_t(columns) * 4);
    });
  };
  const auto step = kernels_.recurrent->delta_step;
  const int64_t keys = layout_.keys(), heads = layout_.value_heads, gates_at = keys + layout_.values();
  for (int32_t p = v.held; p < v.first; ++p) {
    stored(p);
    const float* row = logged(v, p);
    step(state, layout_.key_dim, columns, row + key_at, row + keys + value_at, row[gates_at + head],
         row[gates_at + heads + head], nullptr, nullptr);
  }
  for (int r = 0; r < v.rows; ++r) {
    stored(v.first + r);
    const int64_t at = v.first_row + r;
    const float *query = rows_->query_key.row(at) + key_at, *gates = rows_->gates.row(at);
    step(state, layout_.key_dim, columns, query + keys, mixed_.row(at) + 2 * keys + value_at, gates[head],
         gates[heads + head], query, out_.row(at) + value_at);
  }
  stored(v.stop());
}

void DeltaStage::write_log(const Visit& v) noexcept {
  const int skipped = v.rows - v.logged_rows();
  const int64_t keys = layout_.keys(), values = layout_.values();
  for (int r = skipped; r < v.rows; ++r) {
    const int64_t at = v.first_row + r;
    float* row = log_row(v, r - skipped);
    std::memcpy(row, rows_->query_key.row(at) + keys, size_t(keys) * 4);
    std::memcpy(row + keys, mixed_.row(at) + 2 * keys, size_t(values) * 4);
    std::memcpy(row + keys + values, rows_->gates.row(at), size_t(2 * layout_.value_heads) * 4);
  }
}

}  // namespace sf
