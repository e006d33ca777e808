// Matrix products that read the same rows, as one parallel region over (output tiles x rows).
#pragma once
#include "executor.h"

namespace sf {

struct Product {
  RowBuffer* out;
  std::shared_ptr<Matrices> weight;
  std::shared_ptr<Vector> bias;  // may be null
  RowBuffer* residual;           // may be null, may be out
};

// A rectangle of a product: output tiles by rows.
struct Rectangle {
  int64_t row_begin, row_end, tile_begin, tile_end;
};

// Cuts rows x tiles into rectangles that take neither too long to balance nor too short to be worth claiming.
struct Cut {
  // `tile_ns`: estimated nanoseconds of one tile for all rows; `budget_ns`: what a chunk should take; `unit`: tiles
  // that must stay together.
  Cut(int64_t rows, int64_t tiles, int64_t in, double tile_ns, double budget_ns, int64_t unit);
  Cut() = default;
  int chunks() const { return int(row_parts * tile_parts); }
  Rectangle at(int chunk) const;
  int64_t rows = 0, tiles = 0, rows_each = 1, tiles_each = 1, row_parts = 0, tile_parts = 0;
};
double tile_nanoseconds(const PackedMatrix& m, int64_t rows);
double chunk_budget(double total_ns, int threads);

class ProductStage : public Stage {
 public:
  ProductStage(const Kernels& kernels, RowBuffer& src) : kernels_(kernels), src_(src) {}
  void add(Product product) {
    products_.push_back(std::move(product));
    cuts_.emplace_back();
  }
  int chunks(const Step& step, int threads) override;
  void run(const Step& step, int chunk, int worker) noexcept override;

 private:
  const Kernels& kernels_;
  RowBuffer& src_;
  uint64_t version_ = 0;  // of the rows in src_
  std::vector<Product> products_;
  std::vector<Cut> cuts_;
};

// act(gate) * up of two products that nobody else reads: they stay in the cache, and where only products of quantised
// weights read the result, so does its float form.
struct GatedOp {
  RowBuffer* src;
  std::shared_ptr<Matrices> gate, up;
  std::shared_ptr<Vector> gate_bias, up_bias;  // may be null
  RowBuffer* out;
  Act act;
  bool quantise, floats;  // which forms of the result are wanted
};

class GatedStage : public Stage {
 public:
  GatedStage(Runtime& runtime, GatedOp op);
  int chunks(const Step& step, int threads) override;
  void run(const Step& step, int chunk, int worker) noexcept override;

 private:
  void run_part(const Rectangle& r, float* scratch) const;
  void multiply(const Matrices& weight, const Vector* bias, const Rectangle& r, float* out) const;

  const Kernels& kernels_;
  Workspace& workspace_;
  const GatedOp op_;
  uint64_t version_ = 0;  // of the rows in src
  int64_t unit_ = 1;      // tiles that stay together
  Cut cut_;
};

}  // namespace sf
