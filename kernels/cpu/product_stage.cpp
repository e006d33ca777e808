#include "product_stage.h"

#include <algorithm>
#include <cmath>

namespace sf {
namespace {

constexpr int64_t kRowBytes = 400 * 1024;
constexpr int64_t kMostRows = 64;                       // of a rectangle
constexpr int64_t kBlockTiles = 2, kFourBlocks = 8;     // tiles of one block of 32, and of as many as are quantised best
constexpr int64_t kGatedFloats = kMostRows * kFourBlocks * kTile;  // of each of a gate's products: 32 KiB

}  // namespace

// Only sizes chunks: a tile costs its bytes at about 16 GB/s or its arithmetic at about 100 multiply-adds a nanosecond.
double tile_nanoseconds(const PackedMatrix& m, int64_t rows) {
  return std::max(double(m.tile_bytes) / 16., double(rows * m.in * kTile) / 100.);
}

// The same number of long stretches for every thread, claimed by whoever is awake: a kernel fetches its weights ahead of
// itself, and every border between chunks exposes the memory's latency again (chunks of 2 us double the time of 8
// rows). 1.02: a share must not be cut for a rounding error.
double chunk_budget(double total_ns, int threads) {
  const double share = total_ns / threads;
  return std::max(1.02 * share / std::ceil(share / 80000.), 2000.);
}

// Many rows are cut so that their inputs stay in the second-level cache while several tiles read them: a kernel
// arranges its rows anew for every rectangle, which only pays with enough tiles.
Cut::Cut(int64_t rows, int64_t tiles, int64_t in, double tile_ns, double budget_ns, int64_t unit)
    : rows(rows), tiles(tiles) {
  if (rows == 0) return;
  const int64_t most = std::clamp<int64_t>(kRowBytes / in / 8 * 8, 16, kMostRows), wanted_parts = (rows + most - 1) / most;
  rows_each = ((rows + wanted_parts - 1) / wanted_parts + 7) / 8 * 8;
  row_parts = (rows + rows_each - 1) / rows_each;
  const int64_t units = (tiles + unit - 1) / unit;
  const double unit_ns = tile_ns * double(unit) / double(row_parts);
  const int64_t units_each = std::clamp<int64_t>(int64_t(budget_ns / unit_ns), 1, units);
  tile_parts = (units + units_each - 1) / units_each;
  tiles_each = (units + tile_parts - 1) / tile_parts * unit;  // even shares
  tile_parts = (tiles + tiles_each - 1) / tiles_each;
}

Rectangle Cut::at(int chunk) const {
  const int64_t t = chunk / row_parts, r = chunk % row_parts;  // the same weights for successive chunks
  return {r * rows_each, std::min(rows, (r + 1) * rows_each), t * tiles_each, std::min(tiles, (t + 1) * tiles_each)};
}

int ProductStage::chunks(const Step& step, int threads) {
  version_ = next_rows_version();
  const int rows = step.count(src_.of_logits);
  double total = 0;
  for (const Product& p : products_)
    total += tile_nanoseconds(p.weight->only(), rows) * double(p.weight->only().tiles());
  int n = 0;
  for (size_t i = 0; i < products_.size(); ++i) {
    const PackedMatrix& m = products_[i].weight->only();
    cuts_[i] = Cut(rows, m.tiles(), m.in, tile_nanoseconds(m, rows), chunk_budget(total, threads), 1);
    n += cuts_[i].chunks();
  }
  return n;
}

void ProductStage::run(const Step&, int chunk, int) noexcept {
  size_t i = 0;
  while (chunk >= cuts_[i].chunks()) chunk -= cuts_[i++].chunks();
  const Product& p = products_[i];
  const Rectangle r = cuts_[i].at(chunk);
  Epilogue e;
  e.bias = p.bias ? p.bias->data() : nullptr;
  e.residual = p.residual ? p.residual->data : nullptr;
  e.residual_stride = p.residual ? p.residual->stride : 0;
  kernels_.linear->matmul(p.weight->only(), src_.activations(version_), r.row_begin, r.row_end, r.tile_begin,
                          r.tile_end, e, p.out->row(r.row_begin) + r.tile_begin * kTile, p.out->stride);
}

GatedStage::GatedStage(Runtime& runtime, GatedOp op)
    : kernels_(runtime.kernels), workspace_(runtime.workspace), op_(std::move(op)) {
  if (op_.quantise) op_.out->add_quantised();
  workspace_.reserve_scratch(2 * kGatedFloats);
}

int GatedStage::chunks(const Step& step, int threads) {
  version_ = next_rows_version();
  const int rows = step.count(op_.src->of_logits);
  const PackedMatrix &g = op_.gate->only(), &u = op_.up->only();
  const double tile_ns = tile_nanoseconds(g, rows) + tile_nanoseconds(u, rows);
  unit_ = rows < 16 ? kBlockTiles : kFourBlocks;
  cut_ = Cut(rows, g.tiles(), g.in, tile_ns, chunk_budget(tile_ns * double(g.tiles()), threads), unit_);
  return cut_.chunks();
}

void GatedStage::run(const Step&, int chunk, int worker) noexcept {
  const Rectangle r = cut_.at(chunk);
  const int64_t together = kGatedFloats / ((r.row_end - r.row_begin) * kTile) / unit_ * unit_;
  for (int64_t t = r.tile_begin; t < r.tile_end; t += together)
    run_part({r.row_begin, r.row_end, t, std::min(t + together, r.tile_end)},
             workspace_.scratch[size_t(worker)].data());
}

void GatedStage::run_part(const Rectangle& r, float* scratch) const {
  const int64_t stride = (r.tile_end - r.tile_begin) * kTile;
  float *gate = scratch, *up = scratch + (r.row_end - r.row_begin) * stride;
  multiply(*op_.gate, op_.gate_bias.get(), r, gate);
  multiply(*op_.up, op_.up_bias.get(), r, up);
  const RowBuffer& out = *op_.out;
  const int64_t begin = r.tile_begin * kTile, n = std::min(out.width, r.tile_end * kTile) - begin;
  for (int64_t i = r.row_begin; i < r.row_end; ++i, gate += stride, up += stride) {
    float* result = op_.floats ? out.row(i) + begin : gate;
    kernels_.rows->gate(op_.act, gate, up, n, result);
    const int64_t at = i * out.width + begin;
    if (op_.quantise) kernels_.linear->quantise_row(result, n, out.q + at, out.d + at / 32, out.sums + at / 16);
  }
}

void GatedStage::multiply(const Matrices& weight, const Vector* bias, const Rectangle& r, float* out) const {
  Epilogue e;
  e.bias = bias ? bias->values.data() : nullptr;
  kernels_.linear->matmul(weight.only(), op_.src->activations(version_), r.row_begin, r.row_end, r.tile_begin,
                          r.tile_end, e, out, (r.tile_end - r.tile_begin) * kTile);
}

}  // namespace sf
