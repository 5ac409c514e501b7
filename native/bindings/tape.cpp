// `_native.Tape`: built by gatewise.engines.cuda.tape, run with the GIL released.
#include "bindings/tape.h"

#include <nanobind/stl/array.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <tuple>

#include "replay/tape.h"

namespace nb = nanobind;
using namespace nb::literals;
using gatewise::Address;
using gatewise::Tape;

namespace {

using Where = std::pair<size_t, int64_t>;

gatewise::Place place(const Where& where) { return {where.first, where.second}; }

void make(Tape* tape, const std::array<Address, 15>& f, Address context) {
  const gatewise::GraphFunctions graphs{f[6], f[7], f[8], f[9], f[10], f[11], f[12], f[13], f[14]};
  new (tape) Tape({f[0], f[1], f[2], f[3], f[4], f[5], graphs}, context);
}

size_t row(Tape& tape, const std::vector<int64_t>& values, const std::vector<std::tuple<size_t, size_t, int64_t>>& moving) {
  std::vector<gatewise::Moving> places;
  for (const auto& [index, region, offset] : moving) places.push_back({index, {region, offset}});
  return tape.add_row(values, places);
}

void launch(Tape& tape, Address function, const std::array<unsigned, 3>& grid, unsigned threads, unsigned shared_bytes,
            bool cooperative, unsigned cluster, std::vector<size_t> rows) {
  tape.add(gatewise::Launch{function, grid, threads, shared_bytes, cooperative, cluster, std::move(rows)});
}

void set(Tape& tape, bool words, unsigned value, const Where& where, size_t count) {
  tape.add(gatewise::Set{words, value, place(where), count});
}

void product(Tape& tape, const std::array<Address, 4>& objects, const std::array<uint64_t, 8>& algorithm,
             const std::array<int64_t, 3>& sizes, bool wide, const std::array<Where, 3>& places) {
  tape.add(gatewise::Multiply{objects[0], objects[1], objects[2], objects[3], algorithm, sizes, wide, place(places[0]),
                              place(places[1]), place(places[2])});
}

// None, or what failed: whether cuBLAS failed, with what code, at what.
nb::object run(const Tape& tape, const std::vector<Address>& bases, Address stream, Address handle) {
  gatewise::Failure failure;
  {
    nb::gil_scoped_release released;
    failure = tape.run(bases, stream, handle);
  }
  if (failure.code == 0) return nb::none();
  return nb::make_tuple(failure.of_cublas, failure.code, failure.what);
}

}  // namespace

void bind_tape(nb::module_& module) {
  nb::class_<Tape>(module, "Tape")
      .def("__init__", &make, "functions"_a, "context"_a)
      .def("row", &row, "values"_a, "moving"_a)
      .def("launch", &launch, "function"_a, "grid"_a, "threads"_a, "shared_bytes"_a, "cooperative"_a, "cluster"_a, "rows"_a)
      .def("set", &set, "words"_a, "value"_a, "where"_a, "count"_a)
      .def("product", &product, "objects"_a, "algorithm"_a, "sizes"_a, "wide"_a, "places"_a)
      .def("workspace", [](Tape& tape, const Where& where, size_t size) { tape.set_workspace(place(where), size); })
      .def("run", &run);
}
