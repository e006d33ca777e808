#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include "ngram.h"

namespace nb = nanobind;

namespace sf {
namespace {

// Calls fn(id) for ids[start:stop] of any Python sequence, without copying a list.
template <class Fn>
void each(nb::handle ids, Py_ssize_t start, Py_ssize_t stop, Fn fn) {
  nb::object fast = nb::steal(PySequence_Fast(ids.ptr(), "token ids must be a sequence"));
  if (!fast.is_valid()) throw nb::python_error();
  const Py_ssize_t size = PySequence_Fast_GET_SIZE(fast.ptr());
  if (start < 0 || stop > size || start > stop) throw nb::index_error("no such range of token ids");
  PyObject** items = PySequence_Fast_ITEMS(fast.ptr());
  for (Py_ssize_t i = start; i < stop; ++i) {
    const long id = PyLong_AsLong(items[i]);
    if (id == -1 && PyErr_Occurred()) throw nb::python_error();
    if (id < INT32_MIN || id > INT32_MAX) throw nb::value_error("token id out of range");
    fn(int32_t(id));
  }
}

nb::tuple draft(const NgramIndex& index, int limit) {
  const NgramIndex::Match match = index.match();
  int32_t out[NgramIndex::kMaxDraft];
  const int n = index.draft(match, limit, out);
  nb::list ids = nb::steal<nb::list>(PyList_New(n));
  for (int j = 0; j < n; ++j) PyList_SET_ITEM(ids.ptr(), j, PyLong_FromLong(out[j]));
  return nb::make_tuple(ids, match.length, int(match.vote));
}

nb::list take_scores(NgramIndex& index) {
  std::vector<NgramIndex::Score> scores;
  index.take_scores(scores);
  nb::list result;
  for (const auto& s : scores) result.append(nb::make_tuple(s.grade, s.trials, s.hits));
  return result;
}

}  // namespace

void bind_ngram(nb::module_& m) {
  nb::class_<NgramIndex>(m, "NgramIndex")
      .def(nb::init<int32_t>(), nb::arg("capacity"))
      .def("__len__", &NgramIndex::size)
      .def_prop_ro("capacity", &NgramIndex::capacity)
      .def_prop_ro("room", &NgramIndex::room)
      .def("restart", &NgramIndex::restart, nb::arg("capacity"))
      .def_prop_ro("num_bytes", &NgramIndex::bytes)
      .def("extend", [](NgramIndex& index, nb::handle ids, Py_ssize_t start, Py_ssize_t stop) {
        each(ids, start, stop, [&](int32_t id) { index.append(id); });
      }, nb::arg("ids"), nb::arg("start"), nb::arg("stop"))
      .def("advance", [](NgramIndex& index, nb::handle ids, Py_ssize_t start, Py_ssize_t stop) {
        each(ids, start, stop, [&](int32_t id) { index.advance(id); });
        return index.match().distance > 0;
      }, nb::arg("ids"), nb::arg("start"), nb::arg("stop"))
      .def("follow", [](NgramIndex& index, nb::handle ids, Py_ssize_t size) {
        if (size != index.size()) throw nb::value_error("the token does not follow those of the index");
        each(ids, size, size + 1, [&](int32_t id) { index.advance(id); });
        return index.match().distance > 0;
      }, nb::arg("ids"), nb::arg("size"))
      .def("truncate", &NgramIndex::truncate, nb::arg("size"))
      .def("draft", &draft, nb::arg("limit"))
      .def("take_scores", &take_scores);
}

}  // namespace sf
