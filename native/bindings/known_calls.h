// Calls that were checked and run before. A call of the same operation and descriptor, whose arguments are plain NumPy arrays
// of the same dtypes and shapes, is run straight from what was kept of the first: nothing is checked again. What a layout does
// not tell, the values of `lengths`, is looked at every time. The GIL guards everything here but the run itself; wherever Python
// code may run, another thread may change what is known, so calls are held by shared pointers.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "bindings/constants.h"
#include "bindings/memory.h"
#include "bindings/numpy_arrays.h"
#include "cpu/call.h"

namespace gatewise {

namespace nb = nanobind;

class KnownCalls {
 public:
  // Notes a call that has been checked. `given` are its arguments by name; `results` are the names of its results, each with
  // the shape and dtype that numpy.empty is to make.
  void keep(const char* operation, nb::handle descriptor, const nb::dict& given, const Call& call, const nb::list& results) {
    Arguments arguments;
    if (!read(operation, descriptor, given, arguments) || find(operation, arguments, descriptor) != nullptr) return;
    Known known{operation, arguments.layout(), call, nb::borrow(descriptor), {}, {}, {}, false};
    for (auto [name, value] : given) {
      if (is_absent(name.ptr(), value.ptr(), descriptor)) continue;
      const int place = place_of(nb::cast<std::string>(name));
      if (get(call, place) != NumpyArray::of(arguments.arrays[known.inputs.size()]).data) return;  // the engine works on a copy
      known.held.push_back(nb::borrow(name));
      known.held.push_back(nb::borrow(NumpyArray::of(value).dtype));
      known.inputs.push_back(place);
    }
    for (nb::handle each : results) {
      known.results.push_back({place_of("=" + nb::cast<std::string>(each[0])), {}, nb::object(each[2])});
      size_t bytes = nb::cast<size_t>(each[2].attr("itemsize"));
      for (nb::handle length : nb::object(each[1])) {
        known.results.back().shape.push_back(nb::cast<Py_ssize_t>(length));
        bytes *= nb::cast<size_t>(length);
      }
      known.large = known.large || bytes >= worth_keeping;
    }
    if (++count_ > most) {
      const auto forgotten = std::exchange(known_, {});
      count_ = 1;
    }
    known_[arguments.hash].push_back(std::make_shared<const Known>(std::move(known)));
  }

  // The results of a call that is known, else None. `run` runs a Call with the GIL released.
  template <class Run>
  nb::object again(const char* operation, nb::handle descriptor, const nb::dict& given, Run run) const {
    Arguments arguments;
    if (!read(operation, descriptor, given, arguments)) return nb::none();
    const std::shared_ptr<const Known> known = find(operation, arguments, descriptor);
    if (known == nullptr) return nb::none();
    Call call = known->call;
    for (size_t i = 0; i < known->inputs.size(); ++i) {
      const int place = known->inputs[i];
      set(call, place, NumpyArray::of(arguments.arrays[i]).data);
      const auto constant = [&] { return ConstantArray::of(arguments.arrays[i], static_cast<size_t>(size_of(call.dtype))); };
      if (place == offsetof(Call, recurrent_weight)) call.recurrent_constant = constant();
      if (place == offsetof(Call, input_weight)) call.input_constant = constant();
    }
    for (int64_t n = 0; call.lengths != nullptr && n < call.N; ++n) {
      if (call.lengths[n] < 0 || call.lengths[n] > call.T) return nb::none();  // the checks will say so
    }
    nb::list results;
    std::optional<KeptMemory> memory;
    if (known->large) memory.emplace();  // a fresh result costs a page fault for every 4 KiB, often more than the call itself
    for (const auto& [place, shape, dtype] : known->results) {
      const nb::object made = Numpy::get().make(shape, dtype);
      set(call, place, NumpyArray::of(made).data);
      results.append(made);
    }
    memory.reset();
    run(call);
    return results;
  }

 private:
  static constexpr int most = 1024;
  // The arguments of a call as they were given. No memory is asked for: that would take longer than to look a call up.
  struct Arguments {
    std::array<int64_t, 192> words;  // name, dtype and shape of each argument
    size_t length = 0, count = 0;
    std::array<nb::handle, 24> arrays;
    uint64_t hash = 0;

    std::vector<int64_t> layout() const { return {words.begin(), words.begin() + static_cast<ptrdiff_t>(length)}; }
    void add(int64_t word) {
      words[length++] = word;
      hash = (hash ^ static_cast<uint64_t>(word)) * 0x9e3779b97f4a7c15u;
      hash ^= hash >> 29;
    }
  };
  struct Made {
    int place;
    std::vector<Py_ssize_t> shape;
    nb::object dtype;
  };
  struct Known {
    std::string operation;
    std::vector<int64_t> layout;
    Call call;
    nb::object descriptor;
    std::vector<nb::object> held;  // the arguments' names and dtypes: a layout knows them by their addresses
    std::vector<int> inputs;       // where in Call each argument's memory goes
    std::vector<Made> results;
    bool large;  // one of the results
  };

  // Whether an entry of the arguments is none: the descriptor may be among them.
  static bool is_absent(PyObject* name, PyObject* value, nb::handle descriptor) {
    return value == Py_None || (value == descriptor.ptr() && PyUnicode_CompareWithASCIIString(name, "descriptor") == 0);
  }

  // Layout of all arguments, and the arrays themselves; false if one is not a whole, aligned array of NumPy's own.
  bool read(const char* operation, nb::handle descriptor, const nb::dict& given, Arguments& to) const {
    for (const char* letter = operation; *letter != 0; ++letter) to.hash = to.hash * 31 + static_cast<unsigned char>(*letter);
    const Numpy& numpy = Numpy::get();
    PyObject *name = nullptr, *value = nullptr;
    for (Py_ssize_t at = 0; PyDict_Next(given.ptr(), &at, &name, &value);) {
      if (is_absent(name, value, descriptor)) continue;
      if (!numpy.is_array(value) || to.count == to.arrays.size()) return false;
      const NumpyArray& array = NumpyArray::of(value);
      if (!array.is_plain() || to.length + static_cast<size_t>(array.axes) + 3 > to.words.size()) return false;
      to.add(reinterpret_cast<intptr_t>(name));
      to.add(reinterpret_cast<intptr_t>(array.dtype));
      for (int axis = 0; axis < array.axes; ++axis) to.add(array.shape[axis]);
      to.add(-1);
      to.arrays[to.count++] = value;
    }
    return true;
  }

  std::shared_ptr<const Known> find(const char* operation, const Arguments& arguments, nb::handle descriptor) const {
    const auto found = known_.find(arguments.hash);
    if (found == known_.end()) return nullptr;
    const auto is_alike = [&](const Known& known) {
      return known.operation == operation && known.layout.size() == arguments.length &&
             std::equal(known.layout.begin(), known.layout.end(), arguments.words.begin());
    };
    for (const auto& known : found->second) {
      if (known->descriptor.is(descriptor) && is_alike(*known)) return known;
    }
    const auto candidates = found->second;
    for (const auto& known : candidates) {
      if (is_alike(*known) && known->descriptor.type().is(descriptor.type()) && known->descriptor.equal(descriptor)) return known;
    }
    return nullptr;
  }

  static const void* get(const Call& call, int place) {
    const void* memory = nullptr;
    std::memcpy(&memory, reinterpret_cast<const char*>(&call) + place, sizeof memory);
    return memory;
  }
  static void set(Call& call, int place, const void* memory) {
    std::memcpy(reinterpret_cast<char*>(&call) + place, &memory, sizeof memory);
  }

  // Where in Call an argument's memory goes, or, with "=" before its name, a result's.
  static int place_of(const std::string& name) {
#define GATEWISE_PLACE(name, member) {name, static_cast<int>(offsetof(Call, member))}
    static const std::unordered_map<std::string, int> places{
        GATEWISE_PLACE("source", source),
        GATEWISE_PLACE("recurrent_weight", recurrent_weight),
        GATEWISE_PLACE("input_weight", input_weight),
        GATEWISE_PLACE("bias", bias),
        GATEWISE_PLACE("init_state", init_state),
        GATEWISE_PLACE("init_cell", init_cell),
        GATEWISE_PLACE("mask", mask),
        GATEWISE_PLACE("peephole", peephole),
        GATEWISE_PLACE("secondary_bias", secondary_bias),
        GATEWISE_PLACE("lengths", lengths),
        GATEWISE_PLACE("resets", resets),
        GATEWISE_PLACE("source_gradient", source_gradient),
        GATEWISE_PLACE("state_gradient", state_gradient),
        GATEWISE_PLACE("cell_gradient", cell_gradient),
        GATEWISE_PLACE("z_state", z_given),
        GATEWISE_PLACE("cell_output_fwd", cell_given),
        GATEWISE_PLACE("output_fwd", output_given),
        GATEWISE_PLACE("cell_sequence_gradient", cell_sequence_gradient),
        GATEWISE_PLACE("z_state_gradient", z_state_gradient),
        GATEWISE_PLACE("=state", state),
        GATEWISE_PLACE("=cell", cell_out),
        GATEWISE_PLACE("=z_state", z_state),
        GATEWISE_PLACE("=d_source", d_source),
        GATEWISE_PLACE("=d_recurrent_weight", d_recurrent_weight),
        GATEWISE_PLACE("=d_input_weight", d_input_weight),
        GATEWISE_PLACE("=d_bias", d_bias),
        GATEWISE_PLACE("=d_peephole", d_peephole),
        GATEWISE_PLACE("=d_init_state", d_init_state),
        GATEWISE_PLACE("=d_init_cell", d_init_cell),
        GATEWISE_PLACE("=d_secondary_bias", d_secondary_bias),
    };
#undef GATEWISE_PLACE
    const auto found = places.find(name);
    if (found == places.end()) throw nb::value_error(("native engine: nothing is called " + name).c_str());
    return found->second;
  }

  std::unordered_map<uint64_t, std::vector<std::shared_ptr<const Known>>> known_;  // by hash
  int count_ = 0;
};

}  // namespace gatewise
