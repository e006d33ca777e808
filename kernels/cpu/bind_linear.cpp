// Exposes packing and the matrix products to Python, for tests and the kernel bench; serving goes through the executor.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "linear.h"

namespace nb = nanobind;

namespace sf {
namespace {

template <class T, int N> using In = nb::ndarray<const T, nb::ndim<N>, nb::c_contig, nb::device::cpu>;
template <class T, int N> using InOut = nb::ndarray<T, nb::ndim<N>, nb::c_contig, nb::device::cpu>;
template <class T> using Result = nb::ndarray<nb::numpy, T>;

template <class T> Result<T> own(std::vector<T>&& values, std::initializer_list<size_t> shape) {
  auto* kept = new std::vector<T>(std::move(values));
  nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  return Result<T>(kept->data(), shape, owner);
}

void require(bool ok, const char* what) {
  if (!ok) throw std::invalid_argument(what);
}

std::unique_ptr<PackedMatrix> pack(int type_id, In<uint8_t, 1> data, int64_t out, int64_t in) {
  Format f = Format(type_id);
  require(data.size() == size_t(out) * row_bytes(f, in), "data does not have out rows of in values");
  auto m = allocate_packed(f, out, in);
  nb::gil_scoped_release release;
  pack_tiles(*m, data.data(), 0, m->tiles());
  return m;
}

nb::tuple quantise_rows(const std::string& isa, In<float, 2> x) {
  size_t rows = x.shape(0), in = x.shape(1);
  require(in % 32 == 0, "rows must be a multiple of 32 wide");
  std::vector<int8_t> q(rows * in);
  std::vector<float> d(rows * in / 32);
  std::vector<int32_t> sums(rows * in / 16);
  const LinearKernels& k = linear_kernels(isa);
  for (size_t r = 0; r < rows; ++r)
    k.quantise_row(x.data() + r * in, int64_t(in), q.data() + r * in, d.data() + r * in / 32,
                   sums.data() + r * in / 16);
  return nb::make_tuple(own(std::move(q), {rows, in}), own(std::move(d), {rows, in / 32}),
                        own(std::move(sums), {rows, in / 16}));
}

// Activations as Python hands them over: x for float weights, the rest for quantised ones.
struct Operands {
  std::optional<In<float, 2>> x;
  std::optional<In<int8_t, 2>> q;
  std::optional<In<float, 2>> d;
  std::optional<In<int32_t, 2>> sums;
};

template <class Array> bool has_shape(const std::optional<Array>& a, int64_t rows, int64_t width) {
  return a && int64_t(a->shape(0)) >= rows && int64_t(a->shape(1)) == width;
}

ActivationRows activations(const PackedMatrix& w, const Operands& o, int64_t rows, uint64_t version) {
  ActivationRows a{};
  a.version = version;
  if (is_quantised(w.format)) {
    require(has_shape(o.q, rows, w.in) && has_shape(o.d, rows, w.in / 32) && has_shape(o.sums, rows, w.in / 16),
            "quantised weights need q, d and sums of their width for every row");
    a.q = o.q->data();
    a.d = o.d->data();
    a.sums = o.sums->data();
  } else {
    require(has_shape(o.x, rows, w.in), "float weights need x of their width for every row");
    a.x = o.x->data();
    a.stride = w.in;
  }
  return a;
}

void matmul(const std::string& isa, const PackedMatrix& w, InOut<float, 2> out, std::optional<In<float, 2>> x,
            std::optional<In<int8_t, 2>> q, std::optional<In<float, 2>> d, std::optional<In<int32_t, 2>> sums,
            std::optional<In<float, 1>> bias, std::optional<In<float, 2>> residual, int64_t row_begin, int64_t row_end,
            int64_t tile_begin, int64_t tile_end, uint64_t version) {
  require(0 <= row_begin && row_begin <= row_end && 0 <= tile_begin && tile_begin <= tile_end && tile_end <= w.tiles(),
          "no such rectangle");
  require(int64_t(out.shape(0)) >= row_end && int64_t(out.shape(1)) == w.out, "out has another shape");
  const ActivationRows a = activations(w, {x, q, d, sums}, row_end, version);
  Epilogue e;
  if (bias) {
    require(int64_t(bias->shape(0)) == w.out, "bias has another width");
    e.bias = bias->data();
  }
  if (residual) {
    require(has_shape(residual, row_end, w.out), "residual has another shape");
    e.residual = residual->data();
    e.residual_stride = w.out;
  }
  const LinearKernels& k = linear_kernels(isa);
  nb::gil_scoped_release release;
  k.matmul(w, a, row_begin, row_end, tile_begin, tile_end, e, out.data() + row_begin * w.out + tile_begin * kTile, w.out);
}

Result<float> expand_row(const std::string& isa, const PackedMatrix& w, int64_t row, float scale) {
  require(row >= 0 && row < w.out, "no such row");
  std::vector<float> values(size_t(w.in));
  linear_kernels(isa).expand_row(w, row, scale, values.data());
  return own(std::move(values), {size_t(w.in)});
}

}  // namespace

void bind_linear(nb::module_& m) {
  nb::class_<PackedMatrix>(m, "PackedMatrix", "A matrix in tiles of 16 interleaved output columns.")
      .def_ro("out", &PackedMatrix::out)
      .def_ro("in_", &PackedMatrix::in)
      .def_prop_ro("tiles", &PackedMatrix::tiles)
      .def_prop_ro("nbytes", [](const PackedMatrix& p) { return size_t(p.tiles()) * p.tile_bytes; });
  m.def("instruction_sets", &instruction_sets, "Names of the sets this machine can run, best first.");
  m.def("pack", &pack, nb::arg("type_id"), nb::arg("data"), nb::arg("out"), nb::arg("in_"));
  m.def("quantise_rows", &quantise_rows, nb::arg("isa"), nb::arg("x"), "(q, d, sums) of rows.");
  m.def("matmul", &matmul, nb::arg("isa"), nb::arg("weight"), nb::arg("out"), nb::kw_only(), nb::arg("x") = nb::none(),
        nb::arg("q") = nb::none(), nb::arg("d") = nb::none(), nb::arg("sums") = nb::none(),
        nb::arg("bias") = nb::none(), nb::arg("residual") = nb::none(), nb::arg("row_begin"), nb::arg("row_end"),
        nb::arg("tile_begin"), nb::arg("tile_end"), nb::arg("version") = 0,
        "A rectangle of out = x @ weight^T (+ bias) (+ residual), in place.");
  m.def("expand_row", &expand_row, nb::arg("isa"), nb::arg("weight"), nb::arg("row"), nb::arg("scale") = 1.0f);
}

}  // namespace sf
