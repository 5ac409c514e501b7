// Weights that never change, as Python sees them: a NumPy array whose memory belongs to an object that lets nobody write to it.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include "bindings/numpy_arrays.h"
#include "cpu/constant.h"

namespace gatewise {

class ConstantArray : public Constant {
 public:
  using Memory = nanobind::ndarray<nanobind::ro, nanobind::c_contig, nanobind::device::cpu>;
  // Nobody else may have the array.
  explicit ConstantArray(Memory array) : Constant(array.data(), array.nbytes()), array_(std::move(array)) {}

  // The constant that an array of so many bytes an item is, or null. A part of one is none.
  static Constant* of(nanobind::handle array, size_t item) {
    if (!Numpy::get().is_array(array)) return nullptr;
    const NumpyArray& given = NumpyArray::of(array);
    if (given.base == nullptr) return nullptr;
    const nanobind::handle owner = Numpy::get().owner_of(array);
    if (!owner.is_valid() || !owner.type().is(nanobind::type<ConstantArray>())) return nullptr;
    auto* constant = nanobind::inst_ptr<ConstantArray>(owner);
    return given.data == constant->data() && given.count() * item == constant->bytes() ? constant : nullptr;
  }

  // The protocol by which numpy.asarray makes an array of its bytes. One that may not be written to stays so: NumPy would have to
  // find memory to write to in the owner.
  static void bind(nanobind::module_& module) {
    namespace nb = nanobind;
    nb::class_<ConstantArray>(module, "Constant")
        .def(nb::init<Memory>())
        .def_prop_ro("__array_interface__", [](const ConstantArray& constant) {
          nb::dict found;
          found["version"] = 3;
          found["typestr"] = "|u1";
          found["shape"] = nb::make_tuple(constant.bytes());
          found["data"] = nb::make_tuple(reinterpret_cast<uintptr_t>(constant.data()), true);
          return found;
        })
        .def_prop_ro("kept", &ConstantArray::kept, "How many arrangements of it are kept.");
  }

 private:
  Memory array_;
};

}  // namespace gatewise
