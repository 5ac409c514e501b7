// What is used here of NumPy's binary interface, which is the same from one version to the next: how an array lies in memory, and
// its functions by their numbers. Asking an array through Python or DLPack takes longer than all else that a short call does.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <functional>
#include <numeric>
#include <vector>

namespace gatewise {

// The beginning of every numpy.ndarray.
struct NumpyArray {
  PyObject head;
  char* data;
  int axes;
  const Py_ssize_t *shape, *strides;
  PyObject *base, *dtype;
  int flags;

  static const NumpyArray& of(nanobind::handle array) { return *reinterpret_cast<const NumpyArray*>(array.ptr()); }
  size_t count() const { return std::accumulate(shape, shape + axes, size_t(1), std::multiplies<size_t>()); }
  // Whether the elements lie one after another, each where its type may be read.
  bool is_plain() const { return (flags & (c_contiguous | aligned)) == (c_contiguous | aligned); }
  static constexpr int c_contiguous = 0x1, aligned = 0x100;  // NPY_ARRAY_C_CONTIGUOUS, NPY_ARRAY_ALIGNED
};

class Numpy {
 public:
  static const Numpy& get() {
    static const auto* const numpy = new Numpy;  // never destroyed: it holds Python objects
    return *numpy;
  }

  bool is_array(nanobind::handle object) const { return known_ && object.type().is(type_); }

  // The object that is not an array itself and owns an array's memory, or none.
  nanobind::handle owner_of(nanobind::handle array) const {
    PyObject* owner = NumpyArray::of(array).base;
    while (owner != nullptr && is_array(owner)) owner = NumpyArray::of(owner).base;
    return owner;
  }

  // numpy.empty
  nanobind::object make(const std::vector<Py_ssize_t>& shape, nanobind::handle dtype) const {
    using Empty = PyObject* (*)(int, const Py_ssize_t*, PyObject*, int);
    dtype.inc_ref();  // the function takes it
    PyObject* made = function<Empty>(empty_number)(static_cast<int>(shape.size()), shape.data(), dtype.ptr(), 0);
    if (made == nullptr) throw nanobind::python_error();
    return nanobind::steal(made);
  }

  // Where arrays of this context get their memory from now on; gives what it was before.
  nanobind::object set_memory_handler(nanobind::handle wanted) const {
    PyObject* before = function<PyObject* (*)(PyObject*)>(set_handler_number)(wanted.ptr());
    if (before == nullptr) throw nanobind::python_error();
    return nanobind::steal(before);
  }

 private:
  static constexpr int empty_number = 184, set_handler_number = 304;  // PyArray_Empty, PyDataMem_SetHandler

  Numpy() {
    namespace nb = nanobind;
    nb::object module;
    try {
      module = nb::module_::import_("numpy._core._multiarray_umath");
    } catch (nb::python_error&) {
      module = nb::module_::import_("numpy.core._multiarray_umath");  // before NumPy 2
    }
    functions_ = static_cast<void**>(PyCapsule_GetPointer(module.attr("_ARRAY_API").ptr(), nullptr));
    if (functions_ == nullptr) throw nb::python_error();
    type_ = module.attr("ndarray");
    known_ = lies_as_known(module.attr("empty")(nb::make_tuple(3, 5)));
  }

  // Whether an array of 3 by 5 is what NumpyArray says. If it ever is not, no object counts as an array.
  static bool lies_as_known(nanobind::object sample) {
    const NumpyArray& array = NumpyArray::of(sample);
    const auto data = nanobind::cast<uintptr_t>(sample.attr("__array_interface__")["data"][0]);
    return reinterpret_cast<uintptr_t>(array.data) == data && array.axes == 2 && array.shape[0] == 3 && array.shape[1] == 5 &&
           array.strides[1] == 8 && array.dtype == nanobind::object(sample.attr("dtype")).ptr() && array.is_plain();
  }

  template <class Function>
  Function function(int number) const {
    return reinterpret_cast<Function>(functions_[number]);
  }

  void** functions_ = nullptr;
  nanobind::object type_;
  bool known_ = false;
};

}  // namespace gatewise
