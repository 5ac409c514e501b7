// What each instruction set's build of the kernels offers.
#pragma once

#include "cpu/call.h"

namespace gatewise {

struct Kernels {
  const char* name;
  int vector_bytes;
  // Run one call to its end, or until watch.stop. May throw std::bad_alloc before any work.
  void (*forward)(const Call&, Watch&);
  void (*gradients)(const Call&, Watch&);
  void (*product)(const Product&);  // M, N and K above 0
  void (*cross_entropy)(const Classes&);
  void (*cross_entropy_gradient)(const ClassGradients&);
  void (*adam)(const Adam&);
  void (*add_rows)(const Rows&);
  void (*take_rows)(const TakenRows&);
  void (*sums)(const Sums&);
  // to[i] = function(from[i]) in float32, for the tests of the vector maths: 0 tanh, 1 sigmoid.
  void (*maths)(int function, const float* from, float* to, int64_t count);
};

namespace baseline {
const Kernels& kernels();
}
namespace avx2 {
const Kernels& kernels();
}
namespace avx512 {
const Kernels& kernels();
}

}  // namespace gatewise
