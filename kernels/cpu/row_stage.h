// Row operations: everything that computes a row from the same row. A run of them is one stage: each chunk takes a
// range of rows through all of them while they are in the cache.
#pragma once
#include "executor.h"

namespace sf {

class RowOp {
 public:
  virtual ~RowOp() = default;
  virtual void run(const Step& step, int64_t row) const noexcept = 0;
  virtual double cost() const = 0;  // rough cycles a row, to size chunks
};

class RowStage : public Stage {
 public:
  RowStage(const Kernels& kernels, bool of_logits) : kernels(kernels), of_logits_(of_logits) {}
  void add(std::unique_ptr<RowOp> op);
  int chunks(const Step& step, int threads) override;
  void run(const Step& step, int chunk, int worker) noexcept override;
  const Kernels& kernels;

 private:
  const bool of_logits_;
  std::vector<std::unique_ptr<RowOp>> ops_;
  double cost_ = 0;
  int rows_per_chunk_ = 1;
};

// Router scores of a row: the chosen experts in ascending id, and their weights.
struct Routing {
  Routing(int64_t rows, int experts, int top_k)
      : experts(experts),
        top_k(top_k),
        ids(size_t(rows * top_k)),
        weights(ids.size()),
        scores(size_t(rows * experts)) {}
  const int experts, top_k;
  std::vector<int32_t> ids;    // [rows][top_k]
  std::vector<float> weights;  // [rows][top_k]
  std::vector<float> scores;   // [rows][experts]
};
struct RouteRule {
  bool sigmoid, renormalise;
  float scale;
  std::shared_ptr<Vector> selection_bias;
};

std::unique_ptr<RowOp> embed_op(const Kernels& k, RowBuffer& out, std::shared_ptr<Matrices> table, float scale);
std::unique_ptr<RowOp> angles_op(const Kernels& k, RopeAngles& angles);
std::unique_ptr<RowOp> norm_op(const Kernels& k, RowBuffer& out, RowBuffer& src, std::shared_ptr<Vector> weight,
                               float eps, int64_t groups);
std::unique_ptr<RowOp> add_op(const Kernels& k, RowBuffer& out, RowBuffer& a, RowBuffer& b);
std::unique_ptr<RowOp> gate_op(const Kernels& k, RowBuffer& out, RowBuffer& gate, RowBuffer& up, Act act);
std::unique_ptr<RowOp> rope_op(const Kernels& k, RowBuffer& buffer, RopeAngles& angles, int64_t heads, bool neox);
std::unique_ptr<RowOp> kv_write_op(const Kernels& k, RowBuffer& key, RowBuffer& value, std::shared_ptr<KvPool> pool,
                                   int layer);
std::unique_ptr<RowOp> select_op(RowBuffer& out, RowBuffer& src);
std::unique_ptr<RowOp> scale_cap_op(const Kernels& k, RowBuffer& buffer, float scale, float cap);
std::unique_ptr<RowOp> tap_op(RowBuffer& out, RowBuffer& src, int tap);
std::unique_ptr<RowOp> quantise_op(const Kernels& k, RowBuffer& buffer);
std::unique_ptr<RowOp> route_op(const Kernels& k, RowBuffer& logits, std::shared_ptr<Routing> routing, RouteRule rule);

}  // namespace sf
