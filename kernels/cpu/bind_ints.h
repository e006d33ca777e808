// Numbers that Python hands over: lists of ints, as the engine makes them, or int32 arrays.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <limits>
#include <stdexcept>
#include <vector>

namespace sf {

inline int32_t int_of(PyObject* number) {
  const long value = PyLong_AsLong(number);
  if (value == -1 && PyErr_Occurred()) nanobind::raise_python_error();
  if (value < std::numeric_limits<int32_t>::min() || value > std::numeric_limits<int32_t>::max())
    throw std::invalid_argument("a number beyond 32 bits");
  return int32_t(value);
}

// Appends the numbers of a list, a tuple, an array or any other sequence.
inline void append_ints(std::vector<int32_t>& to, nanobind::handle from) {
  using Array = nanobind::ndarray<const int32_t, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;
  if (PyList_Check(from.ptr()) || PyTuple_Check(from.ptr())) {
    PyObject** items = PySequence_Fast_ITEMS(from.ptr());
    const Py_ssize_t count = PySequence_Fast_GET_SIZE(from.ptr());
    for (Py_ssize_t i = 0; i < count; ++i) to.push_back(int_of(items[i]));
    return;
  }
  Array array;
  if (nanobind::try_cast(from, array, false)) {
    to.insert(to.end(), array.data(), array.data() + array.size());
    return;
  }
  for (int32_t number : nanobind::cast<std::vector<int32_t>>(from)) to.push_back(number);
}

inline std::vector<int32_t> ints_of(nanobind::handle from) {
  std::vector<int32_t> numbers;
  append_ints(numbers, from);
  return numbers;
}

}  // namespace sf
