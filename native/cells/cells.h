// Emitted from src/gatewise/cells by `python -m gatewise.cells.tracer`. Do not edit.
#pragma once
#include "activations.h"

namespace gatewise {

// single_gate_rnn: gates z
struct SingleGate {
  static constexpr int gates = 1;
  static constexpr int phases = 1;
  static constexpr int activations = 1;
  static constexpr bool has_cell = false;
  static constexpr bool peephole = false;
  static constexpr bool needs_product = false;
  static constexpr bool dx_differs = false;
  static constexpr bool output_sees_new_cell = false;
  static constexpr bool reads_state = false;
  static constexpr bool restores_state = true;
  static constexpr int first_gate[] = {0};
  static constexpr int gate_count[] = {1};
  static constexpr bool restored_from[] = {true};
  using Default = FixedActivations<1>;

  template <class V, class Act>
  GATEWISE_CELL static void forward0(const Act& act, Forward<V, 1>& v) {
    const V t0 = v.x[0] + v.u[0];
    const V t1 = act.template activate<0>(t0);
    v.gate[0] = t0;
    v.h_next = t1;
  }
  template <int PHASE, class V, class Act>
  GATEWISE_CELL static void forward(const Act& act, Forward<V, 1>& v) {
    if constexpr (PHASE == 0) forward0(act, v);
  }
  template <class V, class Act>
  GATEWISE_CELL static void gradient0(const Act& act, Gradient<V, 1>& v) {
    const V t0 = act.template activate<0>(v.gate[0]);
    const V t1 = act.template slope<0>(t0);
    const V t2 = v.dh * t1;
    const V t3 = t2 + v.dgate[0];
    v.du[0] = t3;
    v.h_prev = V(0.0);
  }
  template <int PHASE, class V, class Act>
  GATEWISE_CELL static void gradient(const Act& act, Gradient<V, 1>& v) {
    if constexpr (PHASE == 0) gradient0(act, v);
  }
  template <class V, class Act>
  GATEWISE_CELL static void restore(const Act& act, Gradient<V, 1>& v) {
    const V t0 = act.template activate<0>(v.gate[0]);
    v.h_next = t0;
  }
};

// lstm: gates i, f, z, o
struct Lstm {
  static constexpr int gates = 4;
  static constexpr int phases = 1;
  static constexpr int activations = 5;
  static constexpr bool has_cell = true;
  static constexpr bool peephole = false;
  static constexpr bool needs_product = false;
  static constexpr bool dx_differs = false;
  static constexpr bool output_sees_new_cell = false;
  static constexpr bool reads_state = false;
  static constexpr bool restores_state = true;
  static constexpr int first_gate[] = {0};
  static constexpr int gate_count[] = {4};
  static constexpr bool restored_from[] = {false, false, false, true};
  using Default = FixedActivations<3, 3, 2, 3, 2>;

  template <class V, class Act>
  GATEWISE_CELL static void forward0(const Act& act, Forward<V, 4>& v) {
    const V t0 = v.x[0] + v.u[0];
    const V t1 = act.template activate<0>(t0);
    const V t2 = v.x[1] + v.u[1];
    const V t3 = act.template activate<1>(t2);
    const V t4 = v.x[2] + v.u[2];
    const V t5 = act.template activate<2>(t4);
    const V t6 = t3 * v.c;
    const V t7 = t1 * t5;
    const V t8 = t6 + t7;
    const V t9 = v.x[3] + v.u[3];
    const V t10 = act.template activate<3>(t9);
    const V t11 = act.template activate<4>(t8);
    const V t12 = t10 * t11;
    v.gate[0] = t1;
    v.gate[1] = t3;
    v.gate[2] = t5;
    v.gate[3] = t10;
    v.c_next = t8;
    v.h_next = t12;
  }
  template <int PHASE, class V, class Act>
  GATEWISE_CELL static void forward(const Act& act, Forward<V, 4>& v) {
    if constexpr (PHASE == 0) forward0(act, v);
  }
  template <class V, class Act>
  GATEWISE_CELL static void gradient0(const Act& act, Gradient<V, 4>& v) {
    const V t0 = act.template activate<4>(v.c_next);
    const V t1 = v.dh * t0;
    const V t2 = t1 + v.dgate[3];
    const V t3 = act.template slope<3>(v.gate[3]);
    const V t4 = t2 * t3;
    const V t5 = v.dh * v.gate[3];
    const V t6 = act.template slope<4>(t0);
    const V t7 = t5 * t6;
    const V t8 = v.dc + t7;
    const V t9 = t8 * v.gate[2];
    const V t10 = t9 + v.dgate[0];
    const V t11 = act.template slope<0>(v.gate[0]);
    const V t12 = t10 * t11;
    const V t13 = t8 * v.c;
    const V t14 = t13 + v.dgate[1];
    const V t15 = act.template slope<1>(v.gate[1]);
    const V t16 = t14 * t15;
    const V t17 = t8 * v.gate[0];
    const V t18 = t17 + v.dgate[2];
    const V t19 = act.template slope<2>(v.gate[2]);
    const V t20 = t18 * t19;
    const V t21 = t8 * v.gate[1];
    v.du[0] = t12;
    v.du[1] = t16;
    v.du[2] = t20;
    v.du[3] = t4;
    v.c_prev = t21;
    v.h_prev = V(0.0);
  }
  template <int PHASE, class V, class Act>
  GATEWISE_CELL static void gradient(const Act& act, Gradient<V, 4>& v) {
    if constexpr (PHASE == 0) gradient0(act, v);
  }
  template <class V, class Act>
  GATEWISE_CELL static void restore(const Act& act, Gradient<V, 4>& v) {
    const V t0 = act.template activate<4>(v.c_next);
    const V t1 = v.gate[3] * t0;
    v.h_next = t1;
  }
};

// lstm: gates i, f, z, o
struct LstmPeephole {
  static constexpr int gates = 4;
  static constexpr int phases = 1;
  static constexpr int activations = 5;
  static constexpr bool has_cell = true;
  static constexpr bool peephole = true;
  static constexpr bool needs_product = false;
  static constexpr bool dx_differs = false;
  static constexpr bool output_sees_new_cell = false;
  static constexpr bool reads_state = false;
  static constexpr bool restores_state = true;
  static constexpr int first_gate[] = {0};
  static constexpr int gate_count[] = {4};
  static constexpr bool restored_from[] = {false, false, false, true};
  using Default = FixedActivations<3, 3, 2, 3, 2>;

  template <class V, class Act>
  GATEWISE_CELL static void forward0(const Act& act, Forward<V, 4>& v) {
    const V t0 = v.x[0] + v.u[0];
    const V t1 = v.p[0] * v.c;
    const V t2 = t0 + t1;
    const V t3 = act.template activate<0>(t2);
    const V t4 = v.x[1] + v.u[1];
    const V t5 = v.p[1] * v.c;
    const V t6 = t4 + t5;
    const V t7 = act.template activate<1>(t6);
    const V t8 = v.x[2] + v.u[2];
    const V t9 = v.p[2] * v.c;
    const V t10 = t8 + t9;
    const V t11 = act.template activate<2>(t10);
    const V t12 = t7 * v.c;
    const V t13 = t3 * t11;
    const V t14 = t12 + t13;
    const V t15 = v.x[3] + v.u[3];
    const V t16 = v.p[3] * v.c;
    const V t17 = t15 + t16;
    const V t18 = act.template activate<3>(t17);
    const V t19 = act.template activate<4>(t14);
    const V t20 = t18 * t19;
    v.gate[0] = t3;
    v.gate[1] = t7;
    v.gate[2] = t11;
    v.gate[3] = t18;
    v.c_next = t14;
    v.h_next = t20;
  }
  template <int PHASE, class V, class Act>
  GATEWISE_CELL static void forward(const Act& act, Forward<V, 4>& v) {
    if constexpr (PHASE == 0) forward0(act, v);
  }
  template <class V, class Act>
  GATEWISE_CELL static void gradient0(const Act& act, Gradient<V, 4>& v) {
    const V t0 = act.template activate<4>(v.c_next);
    const V t1 = v.dh * t0;
    const V t2 = t1 + v.dgate[3];
    const V t3 = act.template slope<3>(v.gate[3]);
    const V t4 = t2 * t3;
    const V t5 = v.dh * v.gate[3];
    const V t6 = act.template slope<4>(t0);
    const V t7 = t5 * t6;
    const V t8 = v.dc + t7;
    const V t9 = t8 * v.gate[2];
    const V t10 = t9 + v.dgate[0];
    const V t11 = act.template slope<0>(v.gate[0]);
    const V t12 = t10 * t11;
    const V t13 = t8 * v.c;
    const V t14 = t13 + v.dgate[1];
    const V t15 = act.template slope<1>(v.gate[1]);
    const V t16 = t14 * t15;
    const V t17 = t8 * v.gate[0];
    const V t18 = t17 + v.dgate[2];
    const V t19 = act.template slope<2>(v.gate[2]);
    const V t20 = t18 * t19;
    const V t21 = t8 * v.gate[1];
    const V t22 = t12 * v.p[0];
    const V t23 = t21 + t22;
    const V t24 = t16 * v.p[1];
    const V t25 = t23 + t24;
    const V t26 = t20 * v.p[2];
    const V t27 = t25 + t26;
    const V t28 = t4 * v.p[3];
    const V t29 = t27 + t28;
    v.du[0] = t12;
    v.du[1] = t16;
    v.du[2] = t20;
    v.du[3] = t4;
    v.c_prev = t29;
    v.h_prev = V(0.0);
  }
  template <int PHASE, class V, class Act>
  GATEWISE_CELL static void gradient(const Act& act, Gradient<V, 4>& v) {
    if constexpr (PHASE == 0) gradient0(act, v);
  }
  template <class V, class Act>
  GATEWISE_CELL static void restore(const Act& act, Gradient<V, 4>& v) {
    const V t0 = act.template activate<4>(v.c_next);
    const V t1 = v.gate[3] * t0;
    v.h_next = t1;
  }
};

// lstm: gates i, f, z, o
struct LstmPeepholeCurrent {
  static constexpr int gates = 4;
  static constexpr int phases = 1;
  static constexpr int activations = 5;
  static constexpr bool has_cell = true;
  static constexpr bool peephole = true;
  static constexpr bool needs_product = false;
  static constexpr bool dx_differs = false;
  static constexpr bool output_sees_new_cell = true;
  static constexpr bool reads_state = false;
  static constexpr bool restores_state = true;
  static constexpr int first_gate[] = {0};
  static constexpr int gate_count[] = {4};
  static constexpr bool restored_from[] = {false, false, false, true};
  using Default = FixedActivations<3, 3, 2, 3, 2>;

  template <class V, class Act>
  GATEWISE_CELL static void forward0(const Act& act, Forward<V, 4>& v) {
    const V t0 = v.x[0] + v.u[0];
    const V t1 = v.p[0] * v.c;
    const V t2 = t0 + t1;
    const V t3 = act.template activate<0>(t2);
    const V t4 = v.x[1] + v.u[1];
    const V t5 = v.p[1] * v.c;
    const V t6 = t4 + t5;
    const V t7 = act.template activate<1>(t6);
    const V t8 = v.x[2] + v.u[2];
    const V t9 = v.p[2] * v.c;
    const V t10 = t8 + t9;
    const V t11 = act.template activate<2>(t10);
    const V t12 = t7 * v.c;
    const V t13 = t3 * t11;
    const V t14 = t12 + t13;
    const V t15 = v.x[3] + v.u[3];
    const V t16 = v.p[3] * t14;
    const V t17 = t15 + t16;
    const V t18 = act.template activate<3>(t17);
    const V t19 = act.template activate<4>(t14);
    const V t20 = t18 * t19;
    v.gate[0] = t3;
    v.gate[1] = t7;
    v.gate[2] = t11;
    v.gate[3] = t18;
    v.c_next = t14;
    v.h_next = t20;
  }
  template <int PHASE, class V, class Act>
  GATEWISE_CELL static void forward(const Act& act, Forward<V, 4>& v) {
    if constexpr (PHASE == 0) forward0(act, v);
  }
  template <class V, class Act>
  GATEWISE_CELL static void gradient0(const Act& act, Gradient<V, 4>& v) {
    const V t0 = act.template activate<4>(v.c_next);
    const V t1 = v.dh * t0;
    const V t2 = t1 + v.dgate[3];
    const V t3 = act.template slope<3>(v.gate[3]);
    const V t4 = t2 * t3;
    const V t5 = v.dh * v.gate[3];
    const V t6 = act.template slope<4>(t0);
    const V t7 = t5 * t6;
    const V t8 = v.dc + t7;
    const V t9 = t4 * v.p[3];
    const V t10 = t8 + t9;
    const V t11 = t10 * v.gate[2];
    const V t12 = t11 + v.dgate[0];
    const V t13 = act.template slope<0>(v.gate[0]);
    const V t14 = t12 * t13;
    const V t15 = t10 * v.c;
    const V t16 = t15 + v.dgate[1];
    const V t17 = act.template slope<1>(v.gate[1]);
    const V t18 = t16 * t17;
    const V t19 = t10 * v.gate[0];
    const V t20 = t19 + v.dgate[2];
    const V t21 = act.template slope<2>(v.gate[2]);
    const V t22 = t20 * t21;
    const V t23 = t10 * v.gate[1];
    const V t24 = t14 * v.p[0];
    const V t25 = t23 + t24;
    const V t26 = t18 * v.p[1];
    const V t27 = t25 + t26;
    const V t28 = t22 * v.p[2];
    const V t29 = t27 + t28;
    v.du[0] = t14;
    v.du[1] = t18;
    v.du[2] = t22;
    v.du[3] = t4;
    v.c_prev = t29;
    v.h_prev = V(0.0);
  }
  template <int PHASE, class V, class Act>
  GATEWISE_CELL static void gradient(const Act& act, Gradient<V, 4>& v) {
    if constexpr (PHASE == 0) gradient0(act, v);
  }
  template <class V, class Act>
  GATEWISE_CELL static void restore(const Act& act, Gradient<V, 4>& v) {
    const V t0 = act.template activate<4>(v.c_next);
    const V t1 = v.gate[3] * t0;
    v.h_next = t1;
  }
};

// gru: gates z, r, o
struct GruBefore {
  static constexpr int gates = 3;
  static constexpr int phases = 2;
  static constexpr int activations = 3;
  static constexpr bool has_cell = false;
  static constexpr bool peephole = false;
  static constexpr bool needs_product = false;
  static constexpr bool dx_differs = false;
  static constexpr bool output_sees_new_cell = false;
  static constexpr bool reads_state = true;
  static constexpr bool restores_state = false;
  static constexpr int first_gate[] = {0, 2};
  static constexpr int gate_count[] = {2, 1};
  static constexpr bool restored_from[] = {false, false, false};
  using Default = FixedActivations<3, 3, 2>;

  template <class V, class Act>
  GATEWISE_CELL static void forward0(const Act& act, Forward<V, 3>& v) {
    const V t0 = v.x[0] + v.u[0];
    const V t1 = act.template activate<0>(t0);
    const V t2 = v.x[1] + v.u[1];
    const V t3 = act.template activate<1>(t2);
    const V t4 = v.h * t3;
    const V t5 = t4 * v.m;
    v.gate[0] = t1;
    v.gate[1] = t3;
    v.operand = t5;
  }
  template <class V, class Act>
  GATEWISE_CELL static void forward1(const Act& act, Forward<V, 3>& v) {
    const V t0 = v.x[2] + v.u[2];
    const V t1 = act.template activate<2>(t0);
    const V t2 = V(1.0) - v.gate[0];
    const V t3 = v.gate[0] * v.h;
    const V t4 = t2 * t1;
    const V t5 = t3 + t4;
    v.gate[2] = t1;
    v.h_next = t5;
  }
  template <int PHASE, class V, class Act>
  GATEWISE_CELL static void forward(const Act& act, Forward<V, 3>& v) {
    if constexpr (PHASE == 0) forward0(act, v);
    if constexpr (PHASE == 1) forward1(act, v);
  }
  template <class V, class Act>
  GATEWISE_CELL static void gradient0(const Act& act, Gradient<V, 3>& v) {
    const V t0 = v.h - v.gate[2];
    const V t1 = v.dh * t0;
    const V t2 = v.dh * v.gate[0];
    const V t5 = v.e * v.m;
    const V t6 = t1 + v.dgate[0];
    const V t7 = act.template slope<0>(v.gate[0]);
    const V t8 = t6 * t7;
    const V t9 = t5 * v.h;
    const V t10 = t9 + v.dgate[1];
    const V t11 = act.template slope<1>(v.gate[1]);
    const V t12 = t10 * t11;
    const V t13 = t5 * v.gate[1];
    const V t14 = t2 + t13;
    const V t15 = v.h * v.gate[1];
    const V t16 = t15 * v.m;
    v.du[0] = t8;
    v.du[1] = t12;
    v.h_prev = t14;
    v.operand = t16;
  }
  template <class V, class Act>
  GATEWISE_CELL static void gradient1(const Act& act, Gradient<V, 3>& v) {
    const V t2 = v.dh * v.gate[0];
    const V t3 = V(1.0) - v.gate[0];
    const V t4 = v.dh * t3;
    const V t5 = t4 + v.dgate[2];
    const V t6 = act.template slope<2>(v.gate[2]);
    const V t7 = t5 * t6;
    v.du[2] = t7;
    v.h_prev = t2;
  }
  template <int PHASE, class V, class Act>
  GATEWISE_CELL static void gradient(const Act& act, Gradient<V, 3>& v) {
    if constexpr (PHASE == 0) gradient0(act, v);
    if constexpr (PHASE == 1) gradient1(act, v);
  }
};

// gru: gates z, r, o
struct GruBeforeFlipped {
  static constexpr int gates = 3;
  static constexpr int phases = 2;
  static constexpr int activations = 3;
  static constexpr bool has_cell = false;
  static constexpr bool peephole = false;
  static constexpr bool needs_product = false;
  static constexpr bool dx_differs = false;
  static constexpr bool output_sees_new_cell = false;
  static constexpr bool reads_state = true;
  static constexpr bool restores_state = false;
  static constexpr int first_gate[] = {0, 2};
  static constexpr int gate_count[] = {2, 1};
  static constexpr bool restored_from[] = {false, false, false};
  using Default = FixedActivations<3, 3, 2>;

  template <class V, class Act>
  GATEWISE_CELL static void forward0(const Act& act, Forward<V, 3>& v) {
    const V t0 = v.x[0] + v.u[0];
    const V t1 = act.template activate<0>(t0);
    const V t2 = v.x[1] + v.u[1];
    const V t3 = act.template activate<1>(t2);
    const V t4 = v.h * t3;
    const V t5 = t4 * v.m;
    v.gate[0] = t1;
    v.gate[1] = t3;
    v.operand = t5;
  }
  template <class V, class Act>
  GATEWISE_CELL static void forward1(const Act& act, Forward<V, 3>& v) {
    const V t0 = v.x[2] + v.u[2];
    const V t1 = act.template activate<2>(t0);
    const V t2 = V(1.0) - v.gate[0];
    const V t3 = t2 * v.h;
    const V t4 = v.gate[0] * t1;
    const V t5 = t3 + t4;
    v.gate[2] = t1;
    v.h_next = t5;
  }
  template <int PHASE, class V, class Act>
  GATEWISE_CELL static void forward(const Act& act, Forward<V, 3>& v) {
    if constexpr (PHASE == 0) forward0(act, v);
    if constexpr (PHASE == 1) forward1(act, v);
  }
  template <class V, class Act>
  GATEWISE_CELL static void gradient0(const Act& act, Gradient<V, 3>& v) {
    const V t0 = v.gate[2] - v.h;
    const V t1 = v.dh * t0;
    const V t2 = V(1.0) - v.gate[0];
    const V t3 = v.dh * t2;
    const V t5 = v.e * v.m;
    const V t6 = t1 + v.dgate[0];
    const V t7 = act.template slope<0>(v.gate[0]);
    const V t8 = t6 * t7;
    const V t9 = t5 * v.h;
    const V t10 = t9 + v.dgate[1];
    const V t11 = act.template slope<1>(v.gate[1]);
    const V t12 = t10 * t11;
    const V t13 = t5 * v.gate[1];
    const V t14 = t3 + t13;
    const V t15 = v.h * v.gate[1];
    const V t16 = t15 * v.m;
    v.du[0] = t8;
    v.du[1] = t12;
    v.h_prev = t14;
    v.operand = t16;
  }
  template <class V, class Act>
  GATEWISE_CELL static void gradient1(const Act& act, Gradient<V, 3>& v) {
    const V t2 = V(1.0) - v.gate[0];
    const V t3 = v.dh * t2;
    const V t4 = v.dh * v.gate[0];
    const V t5 = t4 + v.dgate[2];
    const V t6 = act.template slope<2>(v.gate[2]);
    const V t7 = t5 * t6;
    v.du[2] = t7;
    v.h_prev = t3;
  }
  template <int PHASE, class V, class Act>
  GATEWISE_CELL static void gradient(const Act& act, Gradient<V, 3>& v) {
    if constexpr (PHASE == 0) gradient0(act, v);
    if constexpr (PHASE == 1) gradient1(act, v);
  }
};

// gru: gates z, r, o
struct GruAfter {
  static constexpr int gates = 3;
  static constexpr int phases = 1;
  static constexpr int activations = 3;
  static constexpr bool has_cell = false;
  static constexpr bool peephole = false;
  static constexpr bool needs_product = true;
  static constexpr bool dx_differs = true;
  static constexpr bool output_sees_new_cell = false;
  static constexpr bool reads_state = true;
  static constexpr bool restores_state = false;
  static constexpr int first_gate[] = {0};
  static constexpr int gate_count[] = {3};
  static constexpr bool restored_from[] = {false, false, false};
  using Default = FixedActivations<3, 3, 2>;

  template <class V, class Act>
  GATEWISE_CELL static void forward0(const Act& act, Forward<V, 3>& v) {
    const V t0 = v.x[0] + v.u[0];
    const V t1 = act.template activate<0>(t0);
    const V t2 = v.x[1] + v.u[1];
    const V t3 = act.template activate<1>(t2);
    const V t4 = v.u[2] + v.b2;
    const V t5 = t3 * t4;
    const V t6 = v.x[2] + t5;
    const V t7 = act.template activate<2>(t6);
    const V t8 = V(1.0) - t1;
    const V t9 = t1 * v.h;
    const V t10 = t8 * t7;
    const V t11 = t9 + t10;
    v.gate[0] = t1;
    v.gate[1] = t3;
    v.gate[2] = t7;
    v.h_next = t11;
  }
  template <int PHASE, class V, class Act>
  GATEWISE_CELL static void forward(const Act& act, Forward<V, 3>& v) {
    if constexpr (PHASE == 0) forward0(act, v);
  }
  template <class V, class Act>
  GATEWISE_CELL static void gradient0(const Act& act, Gradient<V, 3>& v) {
    const V t0 = v.h - v.gate[2];
    const V t1 = v.dh * t0;
    const V t2 = v.dh * v.gate[0];
    const V t3 = V(1.0) - v.gate[0];
    const V t4 = v.dh * t3;
    const V t5 = t4 + v.dgate[2];
    const V t6 = act.template slope<2>(v.gate[2]);
    const V t7 = t5 * t6;
    const V t8 = t1 + v.dgate[0];
    const V t9 = act.template slope<0>(v.gate[0]);
    const V t10 = t8 * t9;
    const V t11 = t7 * v.q;
    const V t12 = t11 + v.dgate[1];
    const V t13 = act.template slope<1>(v.gate[1]);
    const V t14 = t12 * t13;
    const V t15 = t7 * v.gate[1];
    v.du[0] = t10;
    v.du[1] = t14;
    v.du[2] = t15;
    v.dx[0] = t10;
    v.dx[1] = t14;
    v.dx[2] = t7;
    v.h_prev = t2;
  }
  template <int PHASE, class V, class Act>
  GATEWISE_CELL static void gradient(const Act& act, Gradient<V, 3>& v) {
    if constexpr (PHASE == 0) gradient0(act, v);
  }
};

// gru: gates z, r, o
struct GruAfterFlipped {
  static constexpr int gates = 3;
  static constexpr int phases = 1;
  static constexpr int activations = 3;
  static constexpr bool has_cell = false;
  static constexpr bool peephole = false;
  static constexpr bool needs_product = true;
  static constexpr bool dx_differs = true;
  static constexpr bool output_sees_new_cell = false;
  static constexpr bool reads_state = true;
  static constexpr bool restores_state = false;
  static constexpr int first_gate[] = {0};
  static constexpr int gate_count[] = {3};
  static constexpr bool restored_from[] = {false, false, false};
  using Default = FixedActivations<3, 3, 2>;

  template <class V, class Act>
  GATEWISE_CELL static void forward0(const Act& act, Forward<V, 3>& v) {
    const V t0 = v.x[0] + v.u[0];
    const V t1 = act.template activate<0>(t0);
    const V t2 = v.x[1] + v.u[1];
    const V t3 = act.template activate<1>(t2);
    const V t4 = v.u[2] + v.b2;
    const V t5 = t3 * t4;
    const V t6 = v.x[2] + t5;
    const V t7 = act.template activate<2>(t6);
    const V t8 = V(1.0) - t1;
    const V t9 = t8 * v.h;
    const V t10 = t1 * t7;
    const V t11 = t9 + t10;
    v.gate[0] = t1;
    v.gate[1] = t3;
    v.gate[2] = t7;
    v.h_next = t11;
  }
  template <int PHASE, class V, class Act>
  GATEWISE_CELL static void forward(const Act& act, Forward<V, 3>& v) {
    if constexpr (PHASE == 0) forward0(act, v);
  }
  template <class V, class Act>
  GATEWISE_CELL static void gradient0(const Act& act, Gradient<V, 3>& v) {
    const V t0 = v.gate[2] - v.h;
    const V t1 = v.dh * t0;
    const V t2 = V(1.0) - v.gate[0];
    const V t3 = v.dh * t2;
    const V t4 = v.dh * v.gate[0];
    const V t5 = t4 + v.dgate[2];
    const V t6 = act.template slope<2>(v.gate[2]);
    const V t7 = t5 * t6;
    const V t8 = t1 + v.dgate[0];
    const V t9 = act.template slope<0>(v.gate[0]);
    const V t10 = t8 * t9;
    const V t11 = t7 * v.q;
    const V t12 = t11 + v.dgate[1];
    const V t13 = act.template slope<1>(v.gate[1]);
    const V t14 = t12 * t13;
    const V t15 = t7 * v.gate[1];
    v.du[0] = t10;
    v.du[1] = t14;
    v.du[2] = t15;
    v.dx[0] = t10;
    v.dx[1] = t14;
    v.dx[2] = t7;
    v.h_prev = t3;
  }
  template <int PHASE, class V, class Act>
  GATEWISE_CELL static void gradient(const Act& act, Gradient<V, 3>& v) {
    if constexpr (PHASE == 0) gradient0(act, v);
  }
};

}  // namespace gatewise

// Every cell with its number.
#define GATEWISE_CELLS(CELL) CELL(0, SingleGate)  CELL(1, Lstm)  CELL(2, LstmPeephole)  CELL(3, LstmPeepholeCurrent)  CELL(4, GruBefore)  CELL(5, GruBeforeFlipped)  CELL(6, GruAfter)  CELL(7, GruAfterFlipped)
#define GATEWISE_CELL_COUNT 8
