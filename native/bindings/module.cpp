// The Python module: takes checked, contiguous arrays, verifies their sizes once more, and runs a call with the GIL
// released.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>

#include "bindings/known_calls.h"
#include "bindings/memory.h"
#include "bindings/tape.h"
#include "cells/cells.h"
#include "cpu/engine.h"
#include "cpu/team.h"

namespace nb = nanobind;
using namespace nb::literals;
using gatewise::Call;
using gatewise::DType;

namespace {

using Array = nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>;
using Result = nb::ndarray<nb::c_contig, nb::device::cpu>;

// An optional array's memory, after a check that it holds exactly `count` items of `size` bytes.
template <class Kind>
auto memory(nb::handle object, int64_t count, int64_t size, const char* name) {
  using Pointer = decltype(nb::cast<Kind>(object).data());
  if (object.is_none()) return static_cast<Pointer>(nullptr);
  Kind array = nb::cast<Kind>(object);
  if (static_cast<int64_t>(array.size()) != count || static_cast<int64_t>(array.itemsize()) != size) {
    throw nb::value_error((std::string("native engine: size of ") + name).c_str());
  }
  return array.data();
}

// Keeps `data` valid while a call runs: the arrays are owned by the dict that was passed in.
struct Reader {
  nb::dict arrays;
  int64_t size;

  const void* input(const char* name, int64_t count) const { return memory<Array>(get(name), count, size, name); }
  void* result(const char* name, int64_t count) const { return memory<Result>(get(name), count, size, name); }
  nb::object get(const char* name) const {
    return arrays.contains(name) ? nb::object(arrays[name]) : nb::object(nb::none());
  }
};

bool interrupted() {
  nb::gil_scoped_acquire held;
  return PyErr_CheckSignals() != 0;
}

Call read_call(bool gradient, int cell, const std::vector<int>& activations, const std::vector<int>& order, int dtype,
               const std::vector<int64_t>& sizes, const std::vector<int>& backwards, const std::vector<int64_t>& mask_stride,
               nb::dict arrays) {
  const Reader reader{arrays, gatewise::size_of(static_cast<DType>(dtype))};
  Call call;
  call.gradient = gradient;
  if (cell < 0 || cell >= GATEWISE_CELL_COUNT || dtype < 0 || dtype > 3 || sizes.size() != 4 || backwards.empty() ||
      backwards.size() > 2 || activations.size() > 5 || order.size() > 4 || mask_stride.size() != 3) {
    throw nb::value_error("native engine: malformed call");
  }
  for (const int64_t size : sizes) {
    if (size < 0) throw nb::value_error("native engine: malformed call");
  }
  call.cell = cell;
  call.dtype = static_cast<DType>(dtype);
  for (size_t k = 0; k < activations.size(); ++k) call.activation[k] = activations[k];
  for (size_t g = 0; g < order.size(); ++g) call.slot[g] = order[g];
  call.T = sizes[0], call.N = sizes[1], call.I = sizes[2], call.H = sizes[3];
  call.D = static_cast<int>(backwards.size());
  for (int d = 0; d < call.D; ++d) call.backwards[d] = backwards[d] != 0;

  const int64_t G = static_cast<int64_t>(order.size()), D = call.D, TN = call.T * call.N, DH = D * call.H;
  call.source = reader.input("source", TN * call.I);
  call.recurrent_weight = reader.input("recurrent_weight", G * DH * call.H);
  call.input_weight = reader.input("input_weight", G * DH * call.I);
  const auto constant = [&](const char* name) { return gatewise::ConstantArray::of(reader.get(name), reader.size); };
  call.recurrent_constant = constant("recurrent_weight");
  call.input_constant = constant("input_weight");
  call.bias = reader.input("bias", G * DH);
  call.init_state = reader.input("init_state", call.N * DH);
  call.init_cell = reader.input("init_cell", call.N * DH);
  call.peephole = reader.input("peephole", G * DH);
  call.secondary_bias = reader.input("secondary_bias", DH);
  call.lengths = static_cast<const int64_t*>(memory<Array>(reader.get("lengths"), call.N, 8, "lengths"));
  call.resets = static_cast<const uint8_t*>(memory<Array>(reader.get("resets"), TN, 1, "resets"));
  int64_t mask_size = 1;
  const int64_t extents[3] = {call.T, call.N, DH};
  for (int axis = 0; axis < 3; ++axis) {
    call.mask_stride[axis] = mask_stride[axis];
    if (mask_stride[axis] != 0) mask_size *= extents[axis];
  }
  call.mask = reader.input("mask", mask_size);
  if (gradient) {
    call.source_gradient = reader.input("source_gradient", TN * DH);
    call.state_gradient = reader.input("state_gradient", call.N * DH);
    call.cell_gradient = reader.input("cell_gradient", call.N * DH);
    call.z_given = reader.input("z_state", TN * G * DH);
    call.cell_given = reader.input("cell_output", TN * DH);
    call.output_given = reader.input("output", TN * DH);
    call.cell_sequence_gradient = reader.input("cell_sequence_gradient", TN * DH);
    call.z_state_gradient = reader.input("z_state_gradient", TN * G * DH);
    call.d_source = reader.result("d_source", TN * call.I);
    call.d_recurrent_weight = reader.result("d_recurrent_weight", G * DH * call.H);
    call.d_input_weight = reader.result("d_input_weight", G * DH * call.I);
    call.d_bias = reader.result("d_bias", G * DH);
    call.d_peephole = reader.result("d_peephole", G * DH);
    call.d_init_state = reader.result("d_init_state", call.N * DH);
    call.d_init_cell = reader.result("d_init_cell", call.N * DH);
    call.d_secondary_bias = reader.result("d_secondary_bias", DH);
  } else {
    call.state = reader.result("state", TN * DH);
    call.cell_out = reader.result("cell", TN * DH);
    call.z_state = reader.result("z_state", TN * G * DH);
  }
  return call;
}

void run(const Call& call) {
  gatewise::Watch watch;
  watch.interrupted = interrupted;
  {
    nb::gil_scoped_release released;
    const gatewise::Kernels& kernels = gatewise::current_kernels();
    (call.gradient ? kernels.gradients : kernels.forward)(call, watch);
  }
  if (watch.stop) throw nb::python_error();
}

gatewise::KnownCalls& known_calls() {
  static auto* known = new gatewise::KnownCalls;  // never destroyed: it holds Python objects
  return *known;
}

// c = a b, plus a row if there is one; a and b with any strides, the others contiguous, all float32 or all float64.
using Matrix = nb::ndarray<nb::ro, nb::ndim<2>, nb::device::cpu>;
void product(Matrix a, Matrix b, nb::ndarray<nb::ndim<2>, nb::c_contig, nb::device::cpu> c,
             std::optional<nb::ndarray<nb::ro, nb::ndim<1>, nb::c_contig, nb::device::cpu>> row) {
  const bool single = c.dtype() == nb::dtype<float>();
  if ((!single && c.dtype() != nb::dtype<double>()) || a.dtype() != c.dtype() || b.dtype() != c.dtype() ||
      a.shape(0) != c.shape(0) || b.shape(1) != c.shape(1) || a.shape(1) != b.shape(0) || a.size() == 0 || b.size() == 0 ||
      (row && (row->dtype() != c.dtype() || row->size() != c.shape(1)))) {
    throw nb::value_error("native engine: malformed product");
  }
  gatewise::Product call;
  call.dtype = single ? DType::float32 : DType::float64;
  call.M = static_cast<int64_t>(a.shape(0)), call.K = static_cast<int64_t>(a.shape(1));
  call.N = static_cast<int64_t>(b.shape(1));
  call.a = a.data(), call.b = b.data(), call.row = row ? row->data() : nullptr, call.c = c.data();
  call.a_row = a.stride(0), call.a_column = a.stride(1), call.b_row = b.stride(0), call.b_column = b.stride(1);
  nb::gil_scoped_release released;
  gatewise::current_kernels().product(call);
}

using Floats = nb::ndarray<const float, nb::c_contig, nb::device::cpu>;
using FloatResult = nb::ndarray<float, nb::c_contig, nb::device::cpu>;
using Numbers = nb::ndarray<const int64_t, nb::c_contig, nb::device::cpu>;

void need(bool fits) {
  if (!fits) throw nb::value_error("native engine: sizes differ");
}
bool all_below(const Numbers& numbers, size_t limit) {
  const int64_t* number = numbers.data();
  bool fits = true;
  for (size_t i = 0; i < numbers.size(); ++i) fits &= static_cast<uint64_t>(number[i]) < limit;
  return fits;
}

// Those that read numbers of classes or rows do nothing and give false where one is out of range.

bool cross_entropy(Floats source, Numbers labels, size_t classes, FloatResult losses, std::optional<FloatResult> soft_max) {
  need(classes > 0 && source.size() == labels.size() * classes && losses.size() == labels.size());
  need(!soft_max || soft_max->size() == source.size());
  if (!all_below(labels, classes)) return false;
  gatewise::Classes call{static_cast<int64_t>(labels.size()), static_cast<int64_t>(classes), source.data(), labels.data(),
                         losses.data(), soft_max ? soft_max->data() : nullptr};
  nb::gil_scoped_release released;
  gatewise::current_kernels().cross_entropy(call);
  return true;
}

bool cross_entropy_gradient(Floats soft_max, Numbers labels, size_t classes, Floats gradients, FloatResult result) {
  need(classes > 0 && soft_max.size() == labels.size() * classes && result.size() == soft_max.size());
  need(gradients.size() == 1 || gradients.size() == labels.size());
  if (!all_below(labels, classes)) return false;
  gatewise::ClassGradients call{static_cast<int64_t>(labels.size()), static_cast<int64_t>(classes), soft_max.data(),
                                labels.data(), gradients.data(), gradients.size() == 1 ? 0 : 1, result.data()};
  nb::gil_scoped_release released;
  gatewise::current_kernels().cross_entropy_gradient(call);
  return true;
}

// Any number of variables: values, momentum, velocity and gradient of each in `arrays`, the new three of each in `results`.
void adam(double beta1, double beta2, double epsilon, double step, double scale, const std::vector<Floats>& arrays,
          const std::vector<FloatResult>& results) {
  need(arrays.size() % 4 == 0 && results.size() == arrays.size() / 4 * 3);
  gatewise::Adam call{beta1, beta2, epsilon, step, scale, {}};
  for (size_t each = 0; each < arrays.size() / 4; ++each) {
    const Floats* given = &arrays[4 * each];
    const FloatResult* made = &results[3 * each];
    const size_t count = given[0].size();
    for (int i = 1; i < 4; ++i) need(given[i].size() == count && made[i - 1].size() == count);
    call.all.push_back({static_cast<int64_t>(count), given[0].data(), given[1].data(), given[2].data(), given[3].data(),
                        made[0].data(), made[1].data(), made[2].data()});
  }
  nb::gil_scoped_release released;
  gatewise::current_kernels().adam(call);
}

// `width` is the size of a row.
bool add_rows(Floats rows, Numbers index, size_t width, FloatResult sums) {
  need(width > 0 && rows.size() == index.size() * width && sums.size() % width == 0);
  if (!all_below(index, sums.size() / width)) return false;
  gatewise::Rows call{static_cast<int64_t>(index.size()), static_cast<int64_t>(width), rows.data(), index.data(), sums.data()};
  nb::gil_scoped_release released;
  gatewise::current_kernels().add_rows(call);
  return true;
}

bool take_rows(Array from, Numbers index, size_t width, Result to) {
  need(width > 0 && from.size() % width == 0 && to.size() == index.size() * width && from.itemsize() == to.itemsize());
  if (!all_below(index, from.size() / width)) return false;
  gatewise::TakenRows call{static_cast<int64_t>(index.size()), static_cast<int64_t>(width * from.itemsize()),
                           static_cast<const char*>(from.data()), index.data(), static_cast<char*>(to.data())};
  nb::gil_scoped_release released;
  gatewise::current_kernels().take_rows(call);
  return true;
}

// Sums of the columns, as many as there are results; of their squares if wanted.
void sums(Floats source, bool squares, FloatResult result) {
  need(result.size() > 0 && source.size() % result.size() == 0);
  gatewise::Sums call{static_cast<int64_t>(source.size() / result.size()), static_cast<int64_t>(result.size()), squares,
                      source.data(), result.data()};
  nb::gil_scoped_release released;
  gatewise::current_kernels().sums(call);
}

void maths(const std::string& function, nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu> from,
           nb::ndarray<float, nb::ndim<1>, nb::c_contig, nb::device::cpu> to) {
  if (from.size() != to.size()) throw nb::value_error("native engine: sizes differ");
  gatewise::current_kernels().maths(function == "tanh" ? 0 : 1, from.data(), to.data(), static_cast<int64_t>(from.size()));
}

}  // namespace

NB_MODULE(_native, module) {
  nb::set_leak_warnings(false);  // calls that are kept to be run again live until the process ends
  gatewise::ConstantArray::bind(module);
  nb::class_<Call>(module, "Call");  // holds no references: the caller keeps the arrays
  module.def("read_call", &read_call);
  module.def("run", &run);
  module.def("keep", [](const char* operation, nb::handle descriptor, const nb::dict& given, const Call& call,
                        const nb::list& results) { known_calls().keep(operation, descriptor, given, call, results); },
             "operation"_a, "descriptor"_a.none(), "given"_a, "call"_a, "results"_a);
  module.def("again", [](const char* operation, nb::handle descriptor, const nb::dict& given) {
    return known_calls().again(operation, descriptor, given, run);
  }, "operation"_a, "descriptor"_a.none(), "given"_a);
  module.def("product", &product, "a"_a, "b"_a, "result"_a, "row"_a.none() = nb::none());
  module.def("cross_entropy", &cross_entropy, "source"_a, "labels"_a, "classes"_a, "losses"_a, "soft_max"_a.none());
  module.def("adam", &adam);
  module.def("cross_entropy_gradient", &cross_entropy_gradient);
  module.def("add_rows", &add_rows);
  module.def("take_rows", &take_rows);
  module.def("sums", &sums);
  module.def("use_kept_memory", &gatewise::use_kept_memory);
  module.def("kept_bytes", &gatewise::kept_bytes);
  module.def("most_kept_bytes", &gatewise::most_kept_bytes);
  module.def("use_memory", &gatewise::use_memory);
  module.def("maths", &maths);
  module.def("threads", &gatewise::threads);
  module.def("set_threads", &gatewise::set_threads);
  module.def("round_trip", &gatewise::round_trip, nb::call_guard<nb::gil_scoped_release>());
  module.def("instruction_sets", &gatewise::instruction_sets);
  module.def("instruction_set", [] { return std::string(gatewise::current_kernels().name); });
  module.def("use_instruction_set", &gatewise::use_instruction_set);
  bind_tape(module);
}
