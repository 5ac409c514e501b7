// What a call on a GPU asks of the CUDA driver and of cuBLAS, in order, to do on any arrays of the same layout.
//
// A tape is built once, entry by entry, and then only read: many threads may run it at the same time. Memory is named by
// the number of its region (an argument, a result, the scratch memory) and an offset; `run` is told where the regions are.
// CUDA's functions are called by their addresses, so that nothing here is linked with CUDA.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "replay/graphs.h"

namespace gatewise {

struct Place {
  size_t region;
  int64_t offset;
};

// A value of a row that is the pointer to a place.
struct Moving {
  size_t index;
  Place place;
};

// Addresses of functions; that of cublasLtMatmul is 0 where there is no cuBLAS.
struct Functions {
  Address get_context, set_context, launch, set_bytes, set_words, multiply;
  GraphFunctions graphs;
};

// A kernel and everything about its launch but the stream and the values of its parameters.
struct Launch {
  Address function;
  std::array<unsigned, 3> grid;
  unsigned threads, shared_bytes;
  bool cooperative;
  unsigned cluster;
  std::vector<size_t> rows;  // one for each parameter
};

// `count` bytes or 4-byte words set to `value`.
struct Set {
  bool words;
  unsigned value;
  Place where;
  size_t count;
};

// cublasLtMatmul, all but where the matrices are: column-major, c[m, n] = a[m, k] b[k, n].
struct Multiply {
  Address description, a_layout, b_layout, c_layout;  // objects of cuBLASLt
  std::array<uint64_t, 8> algorithm;                  // cublasLtMatmulAlgo_t
  std::array<int64_t, 3> sizes;                       // m, n, k, to tell of a failure
  bool wide;                                          // the factor of the product is a double
  Place a, b, c;
};

struct Failure {
  bool of_cublas = false;
  int code = 0;  // 0: there was none
  std::string what;
};

class Tape {
 public:
  // Throws std::invalid_argument where something cannot be right, as the functions below do.
  Tape(const Functions& functions, Address context);

  // A row of 64-bit values, some of them pointers; returns its number. Several launches may share it.
  size_t add_row(const std::vector<int64_t>& values, const std::vector<Moving>& moving);
  void add(Launch launch);
  void add(const Set& set);
  void add(const Multiply& multiply);
  void set_workspace(Place where, size_t size);  // that products use

  // Puts everything on the stream. `bases` has the address of each region; `handle` is one of cuBLASLt, 0 if nothing is
  // multiplied. After a failure the entries that follow are left out.
  Failure run(const std::vector<Address>& bases, Address stream, Address handle) const;

 private:
  struct Run;
  void note(const Place& place);

  Functions functions_;
  Address context_;
  size_t regions_ = 0;           // that a run must know
  std::vector<int64_t> values_;  // of all rows
  std::vector<size_t> starts_;   // of each row in it
  std::vector<Moving> moving_;   // by the index in it
  std::vector<std::variant<Launch, Set, Multiply>> entries_;
  Place workspace_{};
  size_t workspace_size_ = 0;
  size_t most_parameters_ = 0;
  bool multiplies_ = false;
  std::unique_ptr<Graphs> graphs_;  // of earlier runs
};

}  // namespace gatewise
