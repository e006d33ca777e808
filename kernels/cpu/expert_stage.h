// Routed experts. Rows are gathered expert by expert, so that each expert's weights are read once for all its rows, run
// through the same kernels as any product, and summed per row in ascending expert id: grouping changes no bit.
#pragma once
#include "executor.h"
#include "product_stage.h"
#include "row_stage.h"

namespace sf {

// The rows of a step gathered by expert: assignment a is row `rows[a]` as its `ranks[a]`-th chosen expert.
class ExpertRows : public std::enable_shared_from_this<ExpertRows> {
 public:
  ExpertRows(std::shared_ptr<Routing> routing, RowBuffer& src, int64_t hidden, int64_t out, int64_t max_rows);
  void group(int rows);
  int count() const { return offsets.back(); }

  std::shared_ptr<Routing> routing;
  RowBuffer& src;
  RowBuffer gathered, gate, up, down;  // [assignments][...]
  RowBuffer sum;                       // [rows][out]
  std::vector<int32_t> rows, ranks;    // [assignments]
  std::vector<int32_t> offsets;        // [experts + 1]
  std::vector<int32_t> place;          // [rows][top_k]: the assignment of each choice
};

class GatherStage : public Stage {
 public:
  GatherStage(std::shared_ptr<ExpertRows> experts, bool floats) : experts_(std::move(experts)), floats_(floats) {}
  int chunks(const Step& step, int threads) override;
  void run(const Step& step, int chunk, int worker) noexcept override;

 private:
  std::shared_ptr<ExpertRows> experts_;
  const bool floats_;
  int each_ = 1;
};

// One product (down) or a gated pair (gate, up) for every expert that has rows.
class ExpertStage : public Stage {
 public:
  ExpertStage(const Kernels& kernels, std::shared_ptr<ExpertRows> experts, std::shared_ptr<Matrices> gate,
              std::shared_ptr<Matrices> up, Act act, bool quantise);  // gated
  ExpertStage(const Kernels& kernels, std::shared_ptr<ExpertRows> experts, std::shared_ptr<Matrices> down);
  int chunks(const Step& step, int threads) override;
  void run(const Step& step, int chunk, int worker) noexcept override;

 private:
  struct Part {
    int expert;
    Cut cut;
    int first_chunk;
  };
  void multiply_part(const PackedMatrix& m, const RowBuffer& from, RowBuffer& into, const Rectangle& r) const;

  const Kernels& kernels_;
  std::shared_ptr<ExpertRows> experts_;
  std::shared_ptr<Matrices> first_, second_;
  Act act_ = Act::Silu;
  bool quantise_ = false;
  uint64_t version_ = 0;  // of the rows that the products read
  std::vector<Part> parts_;
};

// out = sum over chosen experts, ascending (+ residual)
std::unique_ptr<RowOp> combine_op(const Kernels& k, RowBuffer& out, RowBuffer* residual,
                                  std::shared_ptr<ExpertRows> experts);

}  // namespace sf
