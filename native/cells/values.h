// What the emitted cells read and write. A value type V needs + - *, <, construction from double, and the functions
// tanh(V), sigmoid(V) and select(mask, V, V) found by argument lookup or declared in namespace gatewise before use.
// src/gatewise/cells/cell.py says what every field means.
#pragma once

#if defined(__CUDACC__)
#define GATEWISE_CELL __device__ __forceinline__
#else
#define GATEWISE_CELL inline __attribute__((always_inline))
#endif

namespace gatewise {

template <class V, int G>
struct Forward {
  V x[G], u[G], p[G];
  V h, c, m, b2;
  V gate[G], operand, h_next, c_next;
};

template <class V, int G>
struct Gradient {
  V gate[G], dgate[G], p[G];
  V h, c, c_next, m, q, dh, dc, e;
  V du[G], dx[G], h_prev, c_prev, operand, h_next;
};

template <int CODE, class V>
GATEWISE_CELL V activate(const V& x);
template <int CODE, class V>
GATEWISE_CELL V slope(const V& y);

// Activations known when the code is compiled.
template <int... CODES>
struct FixedActivations {
  static constexpr int code[] = {CODES...};
  template <int K, class V>
  GATEWISE_CELL V activate(const V& x) const {
    return gatewise::activate<code[K]>(x);
  }
  template <int K, class V>
  GATEWISE_CELL V slope(const V& y) const {
    return gatewise::slope<code[K]>(y);
  }
};

}  // namespace gatewise
