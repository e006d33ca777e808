#include "expert_stage.h"

#include <algorithm>
#include <cstring>

namespace sf {

ExpertRows::ExpertRows(std::shared_ptr<Routing> routing_, RowBuffer& src, int64_t hidden, int64_t out, int64_t max_rows)
    : routing(std::move(routing_)),
      src(src),
      gathered(src.width, false, max_rows * routing->top_k),
      gate(hidden, false, max_rows * routing->top_k),
      up(hidden, false, max_rows * routing->top_k),
      down(out, false, max_rows * routing->top_k),
      sum(out, false, max_rows),
      rows(size_t(max_rows * routing->top_k)),
      ranks(rows.size()),
      offsets(size_t(routing->experts) + 1),
      place(rows.size()) {}

void ExpertRows::group(int num_rows) {
  const int choices = num_rows * routing->top_k;
  std::fill(offsets.begin(), offsets.end(), 0);
  for (int i = 0; i < choices; ++i) ++offsets[size_t(routing->ids[size_t(i)]) + 1];
  for (int e = 0; e < routing->experts; ++e) offsets[size_t(e) + 1] += offsets[size_t(e)];
  std::vector<int32_t> next(offsets.begin(), offsets.end() - 1);
  for (int i = 0; i < choices; ++i) {
    const int a = next[size_t(routing->ids[size_t(i)])]++;
    rows[size_t(a)] = i / routing->top_k;
    ranks[size_t(a)] = i % routing->top_k;
    place[size_t(i)] = a;
  }
}

int GatherStage::chunks(const Step& step, int) {
  experts_->group(step.rows());
  const int n = experts_->count();
  each_ = std::max<int>(1, int(32768 / experts_->src.width));
  if (n <= 2 * each_) each_ = std::max(1, n);
  return (n + each_ - 1) / each_;
}

void GatherStage::run(const Step&, int chunk, int) noexcept {
  const RowBuffer& from = experts_->src;
  RowBuffer& to = experts_->gathered;
  const int64_t width = from.width;
  for (int64_t a = int64_t(chunk) * each_; a < std::min<int64_t>(experts_->count(), int64_t(chunk + 1) * each_); ++a) {
    const int64_t r = experts_->rows[size_t(a)];
    if (floats_) std::memcpy(to.row(a), from.row(r), size_t(width) * 4);
    if (!to.q) continue;
    std::memcpy(to.q + a * width, from.q + r * width, size_t(width));
    std::memcpy(to.d + a * (width / 32), from.d + r * (width / 32), size_t(width / 32) * 4);
    std::memcpy(to.sums + a * (width / 16), from.sums + r * (width / 16), size_t(width / 16) * 4);
  }
}

ExpertStage::ExpertStage(const Kernels& kernels, std::shared_ptr<ExpertRows> experts, std::shared_ptr<Matrices> gate,
                         std::shared_ptr<Matrices> up, Act act, bool quantise)
    : kernels_(kernels),
      experts_(std::move(experts)),
      first_(std::move(gate)),
      second_(std::move(up)),
      act_(act),
      quantise_(quantise) {
  if (quantise) experts_->gate.add_quantised();
}

ExpertStage::ExpertStage(const Kernels& kernels, std::shared_ptr<ExpertRows> experts, std::shared_ptr<Matrices> down)
    : kernels_(kernels), experts_(std::move(experts)), first_(std::move(down)) {}

int ExpertStage::chunks(const Step&, int threads) {
  parts_.clear();
  version_ = next_rows_version();
  const PackedMatrix& m = first_->only();
  const double pair = second_ ? 2. : 1.;
  double total = 0;
  for (int e = 0; e < experts_->routing->experts; ++e) {
    const int rows = experts_->offsets[size_t(e) + 1] - experts_->offsets[size_t(e)];
    if (rows) total += pair * tile_nanoseconds(m, rows) * double(m.tiles());
  }
  int n = 0;
  for (int e = 0; e < experts_->routing->experts; ++e) {
    const int rows = experts_->offsets[size_t(e) + 1] - experts_->offsets[size_t(e)];
    if (!rows) continue;
    const Cut cut(rows, m.tiles(), m.in, pair * tile_nanoseconds(m, rows), chunk_budget(total, threads),
                  second_ ? 2 : 1);
    parts_.push_back({e, cut, n});
    n += cut.chunks();
  }
  return n;
}

void ExpertStage::multiply_part(const PackedMatrix& m, const RowBuffer& from, RowBuffer& into,
                                const Rectangle& r) const {
  kernels_.linear->matmul(m, from.activations(version_), r.row_begin, r.row_end, r.tile_begin, r.tile_end, Epilogue{},
                          into.row(r.row_begin) + r.tile_begin * kTile, into.stride);
}

void ExpertStage::run(const Step&, int chunk, int) noexcept {
  const auto after =
      std::upper_bound(parts_.begin(), parts_.end(), chunk, [](int c, const Part& p) { return c < p.first_chunk; });
  const Part& part = *(after - 1);
  Rectangle r = part.cut.at(chunk - part.first_chunk);
  r.row_begin += experts_->offsets[size_t(part.expert)];
  r.row_end += experts_->offsets[size_t(part.expert)];
  const PackedMatrix& first = *first_->parts[size_t(part.expert)];
  if (!second_) return multiply_part(first, experts_->gate, experts_->down, r);
  RowBuffer &gate = experts_->gate, &up = experts_->up;
  multiply_part(first, experts_->gathered, gate, r);
  multiply_part(*second_->parts[size_t(part.expert)], experts_->gathered, up, r);
  const int64_t begin = r.tile_begin * kTile, width = gate.width, n = std::min(width, r.tile_end * kTile) - begin;
  for (int64_t a = r.row_begin; a < r.row_end; ++a) {
    kernels_.rows->gate(act_, gate.row(a) + begin, up.row(a) + begin, n, gate.row(a) + begin);
    if (quantise_) {
      const int64_t at = a * width + begin;
      kernels_.linear->quantise_row(gate.row(a) + begin, n, gate.q + at, gate.d + at / 32, gate.sums + at / 16);
    }
  }
}

std::unique_ptr<RowOp> combine_op(const Kernels& k, RowBuffer& out, RowBuffer* residual,
                                  std::shared_ptr<ExpertRows> experts) {
  class Combine : public RowOp {
   public:
    Combine(const Kernels& k, RowBuffer& out, RowBuffer* residual, std::shared_ptr<ExpertRows> experts)
        : kernels_(k), out_(out), residual_(residual), experts_(std::move(experts)) {}
    void run(const Step&, int64_t r) const noexcept override {
      const int top_k = experts_->routing->top_k;
      for (int i = 0; i < top_k; ++i) {
        const size_t choice = size_t(r * top_k + i);
        const float* row = experts_->down.row(experts_->place[choice]);
        kernels_.rows->accumulate(experts_->routing->weights[choice], row, out_.width, i == 0, experts_->sum.row(r));
      }
      if (residual_)
        kernels_.rows->add(experts_->sum.row(r), residual_->row(r), out_.width, out_.row(r));
      else
        std::memcpy(out_.row(r), experts_->sum.row(r), size_t(out_.width) * 4);
    }
    double cost() const override { return (1 + experts_->routing->top_k) * 0.3 * double(out_.width); }

   private:
    const Kernels& kernels_;
    RowBuffer& out_;
    RowBuffer* residual_;
    std::shared_ptr<ExpertRows> experts_;
  };
  return std::make_unique<Combine>(k, out, residual, std::move(experts));
}

}  // namespace sf
