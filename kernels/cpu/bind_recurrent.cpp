// Exposes state pools to Python, and what `lower.py` appends to an executor for recurrent ops.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include "recurrent_stage.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace sf {
namespace {

void check_block(const StatePool& p, int64_t block) {
  if (block < 1 || block >= p.num_blocks) throw nb::index_error("no such block, or the one that is no sequence's");
}

}  // namespace

void bind_recurrent(nb::module_& m) {
  nb::class_<StateLayout>(m, "StateLayout")
      .def("__init__",
           [](StateLayout* l, int64_t kernel, int64_t key_heads, int64_t value_heads, int64_t key_dim,
              int64_t value_dim) { new (l) StateLayout{kernel, key_heads, value_heads, key_dim, value_dim}; },
           "kernel"_a, "key_heads"_a, "value_heads"_a, "key_dim"_a, "value_dim"_a);
  m.def("state_bytes", &StatePool::state_bytes, "layout"_a, "layers"_a);
  m.def("log_bytes", &StatePool::log_bytes, "layout"_a, "layers"_a, "log_rows"_a);
  nb::class_<StatePool>(m, "StatePool")
      .def(nb::init<const StateLayout&, int, int64_t, int64_t, int64_t>(), "layout"_a, "layers"_a, "num_blocks"_a,
           "slots"_a, "log_rows"_a)
      .def_prop_ro("num_blocks", [](const StatePool& p) { return p.num_blocks; })
      .def_prop_ro("log_rows", [](const StatePool& p) { return p.log_rows; })
      .def_prop_ro("table",
                   [](nb::handle_t<StatePool> self) {
                     StatePool& p = nb::cast<StatePool&>(self);
                     return nb::ndarray<nb::numpy, int32_t, nb::ndim<2>>(
                         p.table.data(), {size_t(p.slots), size_t(kStateColumns)}, self);
                   })
      .def("open",
           [](StatePool& p, int64_t slot) {
             if (slot < 0 || slot >= p.slots) throw nb::index_error("no such slot");
             p.open(slot);
           })
      .def("forget",
           [](StatePool& p, int64_t block) {
             check_block(p, block);
             p.forget(block);
           })
      .def("fill", [](StatePool& p, int64_t block, float value) {
        check_block(p, block);
        p.fill(block, value);
      });
  nb::class_<DeltaRows>(m, "DeltaRows").def("__init__", [](DeltaRows* d, const Executor& e, const StatePool& p) {
    new (d) DeltaRows(p.layout, e.limits.max_rows);
  });
  m.def("bind_states", [](Executor& e, std::shared_ptr<StatePool> pool) { e.bind_states(std::move(pool)); });
  m.def("add_short_conv", [](Executor& e, const std::string& label, RowBuffer& out, RowBuffer& src,
                             std::shared_ptr<Vector> weight, std::shared_ptr<StatePool> pool, int layer) {
    auto stage = std::make_unique<ShortConvStage>(e.kernels(), e.limits.max_sequences, out, src, *weight, pool, layer);
    stage->label = label;
    e.add_stage(std::move(stage));
  });
  m.def("add_delta_rows", [](RowStage& s, std::shared_ptr<DeltaRows> rows, std::shared_ptr<StatePool> pool,
                             RowBuffer& mixed, RowBuffer& alpha, RowBuffer& beta, std::shared_ptr<Vector> rate,
                             std::shared_ptr<Vector> dt, float eps) {
    s.add(delta_rows_op(s.kernels, pool->layout, std::move(rows), {&mixed, &alpha, &beta, rate, dt, eps}));
  });
  m.def("add_delta", [](Executor& e, const std::string& label, RowBuffer& out, RowBuffer& mixed,
                        std::shared_ptr<DeltaRows> rows, std::shared_ptr<StatePool> pool, int layer) {
    auto stage =
        std::make_unique<DeltaStage>(e.runtime(), e.limits.max_sequences, out, mixed, std::move(rows), pool, layer);
    stage->label = label;
    e.add_stage(std::move(stage));
  });
}

}  // namespace sf
