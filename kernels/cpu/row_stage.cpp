#include "row_stage.h"

#include <algorithm>
#include <cstring>

namespace sf {
namespace {

constexpr double kChunkCycles = 8000;  // below this, handing a chunk to another thread costs more than it saves

// A row operation from a lambda (step, row) and its cost.
template <class F>
class LambdaOp : public RowOp {
 public:
  LambdaOp(F f, double cost) : f_(std::move(f)), cost_(cost) {}
  void run(const Step& step, int64_t row) const noexcept override { f_(step, row); }
  double cost() const override { return cost_; }

 private:
  F f_;
  double cost_;
};
template <class F>
std::unique_ptr<RowOp> op(double cost, F f) {
  return std::make_unique<LambdaOp<F>>(std::move(f), cost);
}

// Indices of the best `top_k` of `score`, ties to the lower index, in ascending order.
void choose(const float* score, int n, int top_k, int32_t* chosen) {
  int count = 0;
  for (int i = 0; i < n; ++i) {
    int at = count;
    while (at > 0 && score[i] > score[chosen[at - 1]]) --at;
    if (at >= top_k) continue;
    count = std::min(count + 1, top_k);
    for (int j = count - 1; j > at; --j) chosen[j] = chosen[j - 1];
    chosen[at] = i;
  }
  std::sort(chosen, chosen + top_k);
}

}  // namespace

void RowStage::add(std::unique_ptr<RowOp> op) {
  cost_ += op->cost();
  ops_.push_back(std::move(op));
}

int RowStage::chunks(const Step& step, int) {
  const int rows = step.count(of_logits_);
  rows_per_chunk_ = std::max(1, int(kChunkCycles / cost_));
  if (rows <= 2 * rows_per_chunk_) rows_per_chunk_ = std::max(1, rows);
  return (rows + rows_per_chunk_ - 1) / rows_per_chunk_;
}

void RowStage::run(const Step& step, int chunk, int) noexcept {
  const int begin = chunk * rows_per_chunk_, end = std::min(step.count(of_logits_), begin + rows_per_chunk_);
  for (int r = begin; r < end; ++r)
    for (const auto& op : ops_) op->run(step, r);
}

std::unique_ptr<RowOp> embed_op(const Kernels& k, RowBuffer& out, std::shared_ptr<Matrices> table, float scale) {
  auto expand = k.linear->expand_row;
  return op(double(out.width), [expand, &out, table, scale](const Step& step, int64_t r) {
    expand(table->only(), step.token_ids[size_t(r)], scale, out.row(r));
  });
}

std::unique_ptr<RowOp> angles_op(const Kernels& k, RopeAngles& a) {
  auto angles = k.rows->rope_angles;
  return op(40. * double(a.pairs()), [angles, &a](const Step& step, int64_t r) {
    float *cos = a.cos.data() + r * a.pairs(), *sin = a.sin.data() + r * a.pairs();
    angles(a.inv_freq.data(), a.pairs(), a.magnitude, step.positions[size_t(r)], cos, sin);
  });
}

std::unique_ptr<RowOp> norm_op(const Kernels& k, RowBuffer& out, RowBuffer& src, std::shared_ptr<Vector> weight,
                               float eps, int64_t groups) {
  auto norm = k.rows->rms_norm;
  const int64_t part = src.width / groups;
  return op(0.6 * double(src.width), [=, &out, &src](const Step&, int64_t r) {
    for (int64_t g = 0; g < groups; ++g)
      norm(src.row(r) + g * part, weight ? weight->data() : nullptr, eps, part, out.row(r) + g * part);
  });
}

std::unique_ptr<RowOp> add_op(const Kernels& k, RowBuffer& out, RowBuffer& a, RowBuffer& b) {
  auto add = k.rows->add;
  return op(0.3 * double(out.width),
            [=, &out, &a, &b](const Step&, int64_t r) { add(a.row(r), b.row(r), out.width, out.row(r)); });
}

std::unique_ptr<RowOp> gate_op(const Kernels& k, RowBuffer& out, RowBuffer& gate, RowBuffer& up, Act act) {
  auto apply = k.rows->gate;
  return op(2. * double(out.width), [=, &out, &gate, &up](const Step&, int64_t r) {
    apply(act, gate.row(r), up.row(r), out.width, out.row(r));
  });
}

std::unique_ptr<RowOp> rope_op(const Kernels& k, RowBuffer& buffer, RopeAngles& a, int64_t heads, bool neox) {
  auto rope = k.rows->rope;
  return op(double(heads * a.pairs()), [=, &buffer, &a](const Step&, int64_t r) {
    const float *cos = a.cos.data() + r * a.pairs(), *sin = a.sin.data() + r * a.pairs();
    rope(buffer.row(r), heads, buffer.width / heads, a.pairs(), neox, cos, sin);
  });
}

std::unique_ptr<RowOp> kv_write_op(const Kernels& k, RowBuffer& key, RowBuffer& value, std::shared_ptr<KvPool> pool,
                                   int layer) {
  auto store = k.rows->kv_store;
  return op(1.5 * double(key.width + value.width), [=, &key, &value](const Step& step, int64_t r) {
    const KvLayout& l = pool->layout;
    const int position = step.positions[size_t(r)];
    const int64_t block = pool->blocks_of(step.row_slots[size_t(r)])[position / kBlock];
    for (int h = 0; h < pool->heads; ++h)
      store(l, key.row(r) + h * l.key_dim, value.row(r) + h * l.value_dim, position % kBlock,
            pool->part(block, layer, h));
  });
}

std::unique_ptr<RowOp> select_op(RowBuffer& out, RowBuffer& src) {
  return op(0.2 * double(out.width), [&out, &src](const Step& step, int64_t r) {
    std::memcpy(out.row(r), src.row(step.logits_rows[size_t(r)]), size_t(out.width) * 4);
  });
}

std::unique_ptr<RowOp> scale_cap_op(const Kernels& k, RowBuffer& buffer, float scale, float cap) {
  auto apply = k.rows->scale_cap;
  return op((cap > 0 ? 2. : 0.2) * double(buffer.width),
            [=, &buffer](const Step&, int64_t r) { apply(buffer.row(r), buffer.width, scale, cap); });
}

std::unique_ptr<RowOp> tap_op(RowBuffer& out, RowBuffer& src, int tap) {
  return op(0.2 * double(out.width), [=, &out, &src](const Step& step, int64_t r) {
    if (step.taps[size_t(tap)]) std::memcpy(out.row(r), src.row(r), size_t(out.width) * 4);
  });
}

std::unique_ptr<RowOp> quantise_op(const Kernels& k, RowBuffer& b) {
  b.add_quantised();
  auto quantise = k.linear->quantise_row;
  return op(0.6 * double(b.width), [=, &b](const Step&, int64_t r) {
    quantise(b.row(r), b.width, b.q + r * b.width, b.d + r * (b.width / 32), b.sums + r * (b.width / 16));
  });
}

std::unique_ptr<RowOp> route_op(const Kernels& k, RowBuffer& logits, std::shared_ptr<Routing> routing, RouteRule rule) {
  auto score = rule.sigmoid ? k.rows->sigmoid : k.rows->softmax;
  const int n = routing->experts, top_k = routing->top_k;
  return op(4. * n + 20. * top_k, [=, &logits](const Step&, int64_t r) {
    float* scores = routing->scores.data() + r * n;
    score(logits.row(r), n, scores);
    thread_local std::vector<float> biased;
    const float* selection = scores;
    if (rule.selection_bias) {
      biased.assign(scores, scores + n);
      for (int i = 0; i < n; ++i) biased[size_t(i)] += rule.selection_bias->values[size_t(i)];
      selection = biased.data();
    }
    int32_t* ids = routing->ids.data() + r * top_k;
    float* weights = routing->weights.data() + r * top_k;
    choose(selection, n, top_k, ids);
    float sum = 0;
    for (int i = 0; i < top_k; ++i) sum += scores[ids[i]];
    const float divisor = rule.renormalise ? std::max(sum, 0x1p-14f) : 1.f;
    for (int i = 0; i < top_k; ++i) weights[i] = scores[ids[i]] / divisor * rule.scale;
  });
}

}  // namespace sf
