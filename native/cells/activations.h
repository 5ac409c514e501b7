// Emitted from src/gatewise/cells by `python -m gatewise.cells.tracer`. Do not edit.
#pragma once
#include "values.h"

namespace gatewise {

template <int CODE, class V>
GATEWISE_CELL V activate(const V& x) {
  if constexpr (CODE == 0) {  // none
    return x;
  } else if constexpr (CODE == 1) {  // relu
    const auto t0 = x < V(0.0);
    const V t1 = select(t0, V(0.0), x);
    return t1;
  } else if constexpr (CODE == 2) {  // tanh
    const V t0 = tanh(x);
    return t0;
  } else if constexpr (CODE == 3) {  // sigmoid
    const V t0 = sigmoid(x);
    return t0;
  } else if constexpr (CODE == 4) {  // hard_sigmoid
    const V t0 = V(0.2) * x;
    const V t1 = t0 + V(0.5);
    const auto t2 = t1 < V(0.0);
    const auto t3 = V(1.0) < t1;
    const V t4 = select(t3, V(1.0), t1);
    const V t5 = select(t2, V(0.0), t4);
    return t5;
  }
}

template <int CODE, class V>
GATEWISE_CELL V slope(const V& y) {
  if constexpr (CODE == 0) {  // none
    return V(1.0);
  } else if constexpr (CODE == 1) {  // relu
    const auto t0 = V(0.0) < y;
    const V t1 = select(t0, V(1.0), V(0.0));
    return t1;
  } else if constexpr (CODE == 2) {  // tanh
    const V t0 = y * y;
    const V t1 = V(1.0) - t0;
    return t1;
  } else if constexpr (CODE == 3) {  // sigmoid
    const V t0 = V(1.0) - y;
    const V t1 = y * t0;
    return t1;
  } else if constexpr (CODE == 4) {  // hard_sigmoid
    const auto t0 = V(0.0) < y;
    const auto t1 = y < V(1.0);
    const V t2 = select(t1, V(0.2), V(0.0));
    const V t3 = select(t0, t2, V(0.0));
    return t3;
  }
}

}  // namespace gatewise
