#include "product_stage.h"

#include <algorithm>
#include <cmath>

namespace sf {
namespace {

constexpr int64_t kRowBytes = 400 * 1024;

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
  const int64_t most = std::clamp<int64_t>(kRowBytes / in / 8 * 8, 16, 64), wanted_parts = (rows + most - 1) / most;
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

void multiply(const Kernels& k, const Product& p, const ActivationRows& a, const Rectangle& r) {
  Epilogue e;
  e.bias = p.bias ? p.bias->data() : nullptr;
  e.residual = p.residual ? p.residual->data : nullptr;
  e.residual_stride = p.residual ? p.residual->stride : 0;
  k.linear->matmul(p.weight->only(), a, r.row_begin, r.row_end, r.tile_begin, r.tile_end, e, p.out->data,
                   p.out->stride);
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
  multiply(kernels_, products_[i], src_.activations(version_), cuts_[i].at(chunk));
}

GatedStage::GatedStage(const Kernels& kernels, RowBuffer& src, Product gate, Product up, RowBuffer& out, Act act,
                       bool quantise)
    : kernels_(kernels),
      src_(src),
      gate_(std::move(gate)),
      up_(std::move(up)),
      out_(out),
      act_(act),
      quantise_(quantise) {
  if (quantise) out_.add_quantised();
}

int GatedStage::chunks(const Step& step, int threads) {
  version_ = next_rows_version();
  const int rows = step.count(src_.of_logits);
  const PackedMatrix &g = gate_.weight->only(), &u = up_.weight->only();
  const double tile_ns = tile_nanoseconds(g, rows) + tile_nanoseconds(u, rows);
  cut_ = Cut(rows, g.tiles(), g.in, tile_ns, chunk_budget(tile_ns * double(g.tiles()), threads), 2);  // 2: blocks of 32
  return cut_.chunks();
}

void GatedStage::run(const Step&, int chunk, int) noexcept {
  const Rectangle r = cut_.at(chunk);
  multiply(kernels_, gate_, src_.activations(version_), r);
  multiply(kernels_, up_, src_.activations(version_), r);
  const int64_t begin = r.tile_begin * kTile, n = std::min(out_.width, r.tile_end * kTile) - begin, width = out_.width;
  for (int64_t i = r.row_begin; i < r.row_end; ++i) {
    float* out = out_.row(i) + begin;
    kernels_.rows->gate(act_, gate_.out->row(i) + begin, up_.out->row(i) + begin, n, out);
    if (quantise_)
      kernels_.linear->quantise_row(out, n, out_.q + i * width + begin, out_.d + (i * width + begin) / 32,
                                    out_.sums + (i * width + begin) / 16);
  }
}

}  // namespace sf
