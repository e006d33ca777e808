// Recurrent ops of all sequences of a step. A chunk takes some channels, or some columns of one head's state, of one
// sequence through all its positions: logged rows first, then the step's own. What must not be touched while other
// chunks read it (logs, positions) is written by the last chunk of its sequence.
#pragma once
#include <atomic>

#include "executor.h"
#include "row_stage.h"
#include "state_pool.h"

namespace sf {

// What both stages share: one visit per sequence that has rows.
class RecurrentStage : public Stage {
 public:
  RecurrentStage(std::shared_ptr<StatePool> pool, int layer, StatePart part, int pieces, int64_t max_sequences);
  int chunks(const Step& step, int threads) override;
  void run(const Step& step, int chunk, int worker) noexcept override;

 protected:
  struct Visit {
    int first_row, rows, slot;
    int32_t first, held;  // positions: of the first row, and of the state in the source
    StateOrder order;
    int32_t stop() const { return first + rows; }
    int logged_rows() const { return std::max(0, stop() - order.position); }
  };
  // Piece `piece` of a sequence.
  virtual void run_piece(const Visit& v, int piece, int worker) noexcept = 0;
  // All pieces are done: writes the rows from the order's position on to the log.
  virtual void write_log(const Visit& v) noexcept = 0;
  // Calls store(block) for each block that is to hold the state before `position`.
  template <class Store>
  void pass_by(const Visit& v, int32_t position, Store store) const;
  float* part(int32_t block) const { return pool_->part(block, layer_, part_); }
  float* log_row(const Visit& v, int64_t row) const { return pool_->log_row(v.slot, layer_, part_, row); }
  const float* logged(const Visit& v, int32_t position) const {
    return log_row(v, position - pool_->logged(v.slot, layer_, part_).first);
  }

  const std::shared_ptr<StatePool> pool_;
  const StateLayout& layout_;
  const int layer_;

 private:
  void finish(const Visit& v);

  const StatePart part_;
  const int pieces_;
  std::vector<Visit> visits_;
  std::unique_ptr<std::atomic<int>[]> open_;  // by visit: pieces not yet done
};

class ShortConvStage : public RecurrentStage {
 public:
  ShortConvStage(const Kernels& kernels, int64_t max_sequences, RowBuffer& out, RowBuffer& src, const Vector& weight,
                 std::shared_ptr<StatePool> pool, int layer);

 private:
  void run_piece(const Visit& v, int piece, int worker) noexcept override;
  void write_log(const Visit& v) noexcept override;

  const Kernels& kernels_;
  RowBuffer &out_, &src_;
  std::vector<float> taps_;  // [kernel][channels]
  const int64_t stride_;     // of taps
};

// Rows as the delta rule reads them, made by a row operation.
struct DeltaRows {
  DeltaRows(const StateLayout& l, int64_t rows)
      : query_key(2 * l.keys(), false, rows), gates(2 * l.value_heads, false, rows) {}
  RowBuffer query_key, gates;  // unit queries (scaled) and keys; decays and strengths
};
struct DeltaInputs {
  RowBuffer *mixed, *alpha, *beta;
  std::shared_ptr<Vector> rate, dt;
  float eps;
};
std::unique_ptr<RowOp> delta_rows_op(const Kernels& k, const StateLayout& layout, std::shared_ptr<DeltaRows> rows,
                                     DeltaInputs inputs);

class DeltaStage : public RecurrentStage {
 public:
  DeltaStage(Runtime& runtime, int64_t max_sequences, RowBuffer& out, RowBuffer& mixed, std::shared_ptr<DeltaRows> rows,
             std::shared_ptr<StatePool> pool, int layer);

 private:
  void run_piece(const Visit& v, int piece, int worker) noexcept override;
  void write_log(const Visit& v) noexcept override;

  const Kernels& kernels_;
  Workspace& workspace_;
  RowBuffer &out_, &mixed_;
  const std::shared_ptr<DeltaRows> rows_;
};

}  // namespace sf
