// Exposes runtime, pools and executors to Python. `lower.py` builds an executor stage by stage; after that one call
// runs a step without the GIL.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "attend_stage.h"
#include "bind_step.h"
#include "expert_stage.h"
#include "probe.h"
#include "product_stage.h"
#include "row_stage.h"
#include "unlocked.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace sf {
namespace {

using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using FloatRows = nb::ndarray<nb::numpy, float, nb::ndim<2>>;
constexpr auto kInternal = nb::rv_policy::reference_internal;

FloatRows view(const RowBuffer& b, int rows, nb::handle owner) {
  return FloatRows(b.data, {size_t(rows), size_t(b.width)}, owner, {b.stride, 1});
}

void bind_runtime(nb::module_& m) {
  nb::class_<Matrices>(m, "Matrices")
      .def_prop_ro(
          "shape",
          [](const Matrices& w) { return std::make_tuple(int64_t(w.parts.size()), w.only().out, w.only().in); })
      .def_prop_ro("is_quantised", [](const Matrices& w) { return is_quantised(w.only().format); })
      .def_prop_ro("nbytes", [](const Matrices& w) {
        return int64_t(w.parts.size()) * w.only().tiles() * int64_t(w.only().tile_bytes);
      });
  nb::class_<Vector>(m, "Vector");
  nb::class_<ProbeResult>(m, "ProbeResult")
      .def_ro("seconds", &ProbeResult::seconds)
      .def_ro("runs", &ProbeResult::runs)
      .def_ro("out_of_order", &ProbeResult::out_of_order)
      .def_ro("by_worker", &ProbeResult::by_worker)
      .def_ro("completed", &ProbeResult::completed);
  nb::class_<Runtime>(m, "Runtime")
      .def(nb::init<const std::string&, int>(), "isa"_a, "threads"_a)
      .def_prop_ro("threads", [](const Runtime& r) { return r.pool.threads(); })
      .def_prop_ro("native_time", [](const Runtime& r) { return std::make_tuple(r.time.running, r.time.waiting); })
      .def(
          "probe",
          [](Runtime& r, const std::vector<int>& chunks, double chunk_microseconds, int cancel_after) {
            nb::gil_scoped_release release;
            return probe(r.pool, chunks, chunk_microseconds, cancel_after);
          },
          "chunks"_a, "chunk_microseconds"_a = 0., "cancel_after"_a = -1)
      .def(
          "pack",
          [](Runtime& r, int format, int64_t parts, int64_t out, int64_t in, Bytes data) {
            if (parts < 1 || out < 1 || in < 1 || data.size() != size_t(parts * out) * row_bytes(Format(format), in))
              throw nb::value_error("data does not have the size that the shape asks for");
            nb::gil_scoped_release release;
            return pack(r, Format(format), parts, out, in, data.data());
          },
          "type_id"_a, "parts"_a, "out"_a, "in_"_a, "data"_a)
      .def(
          "widen",
          [](const Runtime& r, int format, Bytes data) {
            return widen(r, Format(format), int64_t(data.size() / row_bytes(Format(format), 1)), data.data());
          },
          "type_id"_a, "data"_a);
}

void bind_pool(nb::module_& m) {
  m.def("block_bytes", [](int format, int64_t key_dim, int64_t value_dim, int layers, int heads) {
    return KvPool::block_bytes(KvLayout{KvFormat(format), key_dim, value_dim}, layers, heads);
  });
  nb::class_<KvPool>(m, "KvPool")
      .def("__init__",
           [](KvPool* p, int format, int64_t key_dim, int64_t value_dim, int layers, int heads, int64_t blocks,
              int64_t slots, int64_t max_blocks) {
             new (p) KvPool(KvLayout{KvFormat(format), key_dim, value_dim}, layers, heads, blocks, slots, max_blocks);
           })
      .def_prop_ro("num_blocks", [](const KvPool& p) { return p.num_blocks; })
      .def_prop_ro("block_bytes", [](const KvPool& p) { return p.block_bytes(); })
      .def_prop_ro("block_table",
                   [](nb::handle_t<KvPool> self) {
                     KvPool& p = nb::cast<KvPool&>(self);
                     return nb::ndarray<nb::numpy, int32_t, nb::ndim<2>>(p.table.data(),
                                                                         {size_t(p.slots), size_t(p.max_blocks)}, self);
                   })
      .def("fill", [](KvPool& p, const Runtime& r, int64_t block, float value) {
        if (block < 0 || block >= p.num_blocks) throw nb::index_error("no such block");
        for (int l = 0; l < p.layers; ++l)
          for (int h = 0; h < p.heads; ++h) r.kernels.rows->kv_fill(p.layout, value, p.part(block, l, h));
      });
}

using Bias = std::shared_ptr<Vector>;
using Weights = std::shared_ptr<Matrices>;

void bind_stages(nb::module_& m) {
  nb::class_<RowBuffer>(m, "RowBuffer").def_ro("width", &RowBuffer::width);
  nb::class_<RopeAngles>(m, "RopeAngles");
  nb::class_<ExpertRows>(m, "ExpertRows");
  nb::class_<RowStage>(m, "RowStage")
      .def("embed", [](RowStage& s, RowBuffer& out, Weights table,
                       float scale) { s.add(embed_op(s.kernels, out, table, scale)); })
      .def("angles", [](RowStage& s, RopeAngles& a) { s.add(angles_op(s.kernels, a)); })
      .def(
          "norm",
          [](RowStage& s, RowBuffer& out, RowBuffer& src, Bias w, float eps, int64_t groups) {
            s.add(norm_op(s.kernels, out, src, w, eps, groups));
          },
          "out"_a, "src"_a, "weight"_a.none(), "eps"_a, "groups"_a)
      .def("add", [](RowStage& s, RowBuffer& out, RowBuffer& a, RowBuffer& b) { s.add(add_op(s.kernels, out, a, b)); })
      .def("gate", [](RowStage& s, RowBuffer& out, RowBuffer& g, RowBuffer& up,
                      int act) { s.add(gate_op(s.kernels, out, g, up, Act(act))); })
      .def("rope", [](RowStage& s, RowBuffer& b, RopeAngles& a, int64_t heads,
                      bool neox) { s.add(rope_op(s.kernels, b, a, heads, neox)); })
      .def("kv_write", [](RowStage& s, RowBuffer& k, RowBuffer& v, std::shared_ptr<KvPool> pool,
                          int layer) { s.add(kv_write_op(s.kernels, k, v, pool, layer)); })
      .def("select", [](RowStage& s, RowBuffer& out, RowBuffer& src) { s.add(select_op(out, src)); })
      .def("scale_cap",
           [](RowStage& s, RowBuffer& b, float scale, float cap) { s.add(scale_cap_op(s.kernels, b, scale, cap)); })
      .def("tap",
           [](RowStage& s, Executor& e, RowBuffer& src) {
             const int tap = e.add_tap(src);
             s.add(tap_op(e.tap(tap), src, tap));
             return tap;
           })
      .def("quantise", [](RowStage& s, RowBuffer& b) { s.add(quantise_op(s.kernels, b)); })
      .def(
          "route",
          [](RowStage& s, RowBuffer& logits, ExpertRows& e, bool sigmoid, bool renormalise, float scale, Bias bias) {
            s.add(route_op(s.kernels, logits, e.routing, RouteRule{sigmoid, renormalise, scale, bias}));
          },
          "logits"_a, "experts"_a, "sigmoid"_a, "renormalise"_a, "scale"_a, "selection_bias"_a.none())
      .def(
          "combine",
          [](RowStage& s, RowBuffer& out, RowBuffer* residual, std::shared_ptr<ExpertRows> e) {
            s.add(combine_op(s.kernels, out, residual, e));
          },
          "out"_a, "residual"_a.none(), "experts"_a);
  nb::class_<ProductStage>(m, "ProductStage")
      .def(
          "add",
          [](ProductStage& s, RowBuffer& out, Weights w, Bias bias, RowBuffer* residual) {
            s.add({&out, w, bias, residual});
          },
          "out"_a, "weight"_a, "bias"_a.none(), "residual"_a.none());
}

template <class S, class... Args>
S& append(Executor& e, const std::string& label, Args&&... args) {
  auto stage = std::make_unique<S>(std::forward<Args>(args)...);
  stage->label = label;
  S& ref = *stage;
  e.add_stage(std::move(stage));
  return ref;
}

void bind_building(nb::class_<Executor>& c) {
  c.def("buffer", &Executor::add_buffer, kInternal, "width"_a, "of_logits"_a)
      .def("rope", &Executor::add_rope, kInternal, "inv_freq"_a, "magnitude"_a)
      .def("bind_pool", &Executor::add_pool, "pool"_a, "window"_a)
      .def("set_logits", &Executor::set_logits)
      .def("limit_tokens", &Executor::limit_tokens)
      .def(
          "rows",
          [](Executor& e, const std::string& label, bool of_logits) -> RowStage& {
            return append<RowStage>(e, label, e.kernels(), of_logits);
          },
          kInternal)
      .def(
          "products",
          [](Executor& e, const std::string& label, RowBuffer& src) -> ProductStage& {
            return append<ProductStage>(e, label, e.kernels(), src);
          },
          kInternal)
      .def(
          "gated",
          [](Executor& e, const std::string& label, RowBuffer& src, Weights gate, Bias gate_bias, Weights up,
             Bias up_bias, RowBuffer& out, int act, bool quantise, bool floats) {
            append<GatedStage>(e, label, e.runtime(),
                               GatedOp{&src, gate, up, gate_bias, up_bias, &out, Act(act), quantise, floats});
          },
          "label"_a, "src"_a, "gate"_a, "gate_bias"_a.none(), "up"_a, "up_bias"_a.none(), "out"_a, "act"_a,
          "quantise"_a, "floats"_a)
      .def(
          "attend",
          [](Executor& e, const std::string& label, RowBuffer& out, RowBuffer& query, std::shared_ptr<KvPool> pool,
             int layer, int heads, float scale, int64_t window, float softcap, Bias sinks, bool quantise) {
            append<AttendStage>(e, label, e.runtime(),
                                AttendOp{&out, &query, pool, layer, heads, scale, softcap, window, sinks, quantise},
                                e.limits.max_rows);
          },
          "label"_a, "out"_a, "query"_a, "pool"_a, "layer"_a, "heads"_a, "scale"_a, "window"_a, "softcap"_a,
          "sinks"_a.none(), "quantise"_a)
      .def(
          "expert_rows",
          [](Executor& e, RowBuffer& src, int experts, int top_k, int64_t hidden, int64_t out) {
            return std::make_shared<ExpertRows>(std::make_shared<Routing>(e.limits.max_rows, experts, top_k), src,
                                                hidden, out, e.limits.max_rows);
          },
          nb::keep_alive<0, 1>(), "src"_a, "experts"_a, "top_k"_a, "hidden"_a, "out"_a)
      .def("experts", [](Executor& e, const std::string& label, std::shared_ptr<ExpertRows> rows, Weights gate,
                         Weights up, Weights down, int act) {
        const bool q = is_quantised(gate->only().format), qu = is_quantised(up->only().format),
                   qd = is_quantised(down->only().format);
        if (q || qu) rows->gathered.add_quantised();
        append<GatherStage>(e, label + ".gather", rows, !q || !qu);
        append<ExpertStage>(e, label + ".gated", e.kernels(), rows, gate, up, Act(act), qd);
        append<ExpertStage>(e, label + ".down", e.kernels(), rows, down);
      });
}

void bind_running(nb::class_<Executor>& c) {
  c.def("step",
        [](Executor& e, nb::object token_ids, nb::object positions, nb::object row_offsets, nb::object slots,
           nb::object logits_rows, const std::vector<int>& taps) {
          Step step = make_step(token_ids, positions, row_offsets, slots, logits_rows, taps, e.num_taps());
          const Unlocked unlocked(e.runtime().time);
          return int(e.step(std::move(step)));
        })
      .def("cancel", &Executor::cancel)
      .def("copy_input", &Executor::copy_input)
      .def("logits",
           [](nb::handle_t<Executor> self) {
             const Executor& e = nb::cast<const Executor&>(self);
             return view(e.logits(), int(e.last().logits_rows.size()), self);
           })
      .def("output",
           [](nb::handle_t<Executor> self, int tap) {
             const Executor& e = nb::cast<const Executor&>(self);
             return view(e.tap(tap), e.last().count(e.tap(tap).of_logits), self);
           })
      .def("has_output", [](const Executor& e, int tap) { return e.valid() && e.last().taps[size_t(tap)] != 0; })
      .def_prop_ro("valid", &Executor::valid)
      .def_ro("error", &Executor::error)
      .def_ro("last_seconds", &Executor::last_seconds)
      .def_rw("profiling", &Executor::profiling)
      .def("profile", [](const Executor& e) {
        std::vector<std::tuple<std::string, double>> rows;
        for (size_t i = 0; i < e.stages().size(); ++i) rows.emplace_back(e.stages()[i]->label, e.stage_seconds[i]);
        return rows;
      });
}

}  // namespace

void bind_executor(nb::module_& m) {
  nb::set_leak_warnings(false);  // an executor that a global still holds at exit is no leak
  bind_runtime(m);
  bind_pool(m);
  bind_stages(m);
  nb::class_<Executor> executor(m, "Executor");
  executor.def("__init__",
               [](Executor* e, std::shared_ptr<Runtime> runtime, int64_t rows, int64_t logits_rows, int64_t sequences) {
                 new (e) Executor(std::move(runtime), {rows, logits_rows, sequences});
               });
  bind_building(executor);
  bind_running(executor);
}

}  // namespace sf
