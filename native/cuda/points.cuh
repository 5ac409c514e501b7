// One unit of one row at one step: what it reads, the cell's maths, what it writes. Shared by every kernel family.
#pragma once
#include "problem.cuh"

namespace gatewise {

struct ForwardPoint {
  Forward<V, G> v;
  bool active, reset;
  V mask_next;
  bool reset_next;

  // Everything that does not depend on the recurrent product, so that it can be read while the product is waited for.
  // `t_next` is the time of the direction's next step, -1 after the last.
  __device__ __forceinline__ void read_inputs(const Arguments& a, int d, i64 t, i64 t_next, i64 n, int unit) {
    const i64 row = t * a.N + n;
#pragma unroll
    for (int g = 0; g < G; ++g) {
      const i64 packed = (i64(d) * G + SLOT[g]) * H + unit;
      v.x[g] = read<X>(a.x, row * a.x_pitch + packed);
      if (a.bias != nullptr) v.x[g] = v.x[g] + read<E>(a.bias, packed);
      v.p[g] = Cell::peephole ? read<E>(a.peephole, packed) : V(0);
    }
    v.b2 = a.secondary_bias != nullptr ? read<E>(a.secondary_bias, i64(d) * H + unit) : V(0);
    v.m = mask_at(a, t, n, d, unit);
    active = t < length_of(a, n);
    reset = reset_at(a, t, n);
    mask_next = t_next < 0 ? V(0) : mask_at(a, t_next, n, d, unit);
    reset_next = t_next >= 0 && reset_at(a, t_next, n);
  }

  __device__ __forceinline__ void take_state(V h, V c) {
    v.h = reset ? V(0) : h;
    v.c = reset ? V(0) : c;
  }

  // After the last phase: the state and cell to carry on, and the operand of the next step.
  __device__ __forceinline__ V advance(V& h, V& c) const {
    h = active ? v.h_next : h;
    if constexpr (Cell::has_cell) c = active ? v.c_next : c;
    return (reset_next ? V(0) : h) * mask_next;
  }

  __device__ __forceinline__ void write_results(const Arguments& a, int d, i64 t, i64 n, int unit) const {
    const i64 row = t * a.N + n;
    write<E>(a.state, at_unit(a, row, d, unit), active ? v.h_next : V(0));
    if constexpr (Cell::has_cell) {
      if (a.cell != nullptr) write<E>(a.cell, at_unit(a, row, d, unit), active ? v.c_next : V(0));
    }
    if (a.z_state != nullptr) {
#pragma unroll
      for (int g = 0; g < G; ++g) write<E>(a.z_state, at_gate(a, row, d, g, unit), active ? v.gate[g] : V(0));
    }
  }
};

__device__ __forceinline__ V initial(const Arguments& a, const Storage<E>* array, int d, i64 n, int unit) {
  return array == nullptr ? V(0) : read<E>(array, at_unit(a, n, d, unit));
}

struct GradientPoint {
  Gradient<V, G> v;
  bool active, reset;
  V dstate, dcell;  // gradients that arrive from outside at this step

  // `t_before` is the time of the direction's step before this one, -1 at its first.
  __device__ __forceinline__ void read_inputs(const Arguments& a, int d, i64 t, i64 t_before, i64 n, int unit) {
    const i64 row = t * a.N + n;
    const i64 length = length_of(a, n);
    active = t < length;
    reset = reset_at(a, t, n);
    const bool came = t_before >= 0 && t_before < length;  // else this is the row's first step
    const i64 before = came ? t_before * a.N + n : 0;
#pragma unroll
    for (int g = 0; g < G; ++g) {
      v.gate[g] = read<E>(a.z_state, at_gate(a, row, d, g, unit));
      v.dgate[g] = a.z_state_gradient != nullptr ? read<E>(a.z_state_gradient, at_gate(a, row, d, g, unit)) : V(0);
      v.p[g] = Cell::peephole ? read<E>(a.peephole, (i64(d) * G + SLOT[g]) * H + unit) : V(0);
    }
    v.c = v.c_next = V(0);
    if constexpr (Cell::has_cell) {
      v.c_next = read<E>(a.cell, at_unit(a, row, d, unit));
      if (!reset) v.c = came ? read<E>(a.cell, at_unit(a, before, d, unit)) : initial(a, a.init_cell, d, n, unit);
    }
    v.h = V(0);
    if constexpr (!Cell::restores_state) {
      if (!reset) v.h = came ? read<E>(a.state, at_unit(a, before, d, unit)) : initial(a, a.init_state, d, n, unit);
    }
    v.m = mask_at(a, t, n, d, unit);
    v.q = V(0);
    if constexpr (Cell::needs_product) {
      v.q = read<E>(a.product, at_unit(a, row, d, unit));
      if (a.secondary_bias != nullptr) v.q = v.q + read<E>(a.secondary_bias, i64(d) * H + unit);
    }
    dstate = read<E>(a.source_gradient, at_unit(a, row, d, unit));
    dcell = a.cell_sequence_gradient != nullptr ? read<E>(a.cell_sequence_gradient, at_unit(a, row, d, unit)) : V(0);
    v.e = V(0);
  }

  __device__ __forceinline__ void take_gradients(V dh, V dc) {
    v.dh = dh + dstate;
    v.dc = dc + dcell;
  }

  // After the last phase: what is carried to the step before. `finish_state` completes dh once the product is known.
  __device__ __forceinline__ void retreat(V& dh, V& dc) const {
    dh = active ? (reset ? V(0) : v.h_prev) : dh;
    if constexpr (Cell::has_cell) dc = active ? (reset ? V(0) : v.c_prev) : dc;
  }

  template <int PHASE>
  __device__ __forceinline__ void write_dx(const Arguments& a, int d, i64 t, i64 n, int unit) const {
    if (a.dx == nullptr) return;
    const i64 row = t * a.N + n;
#pragma unroll
    for (int i = 0; i < Cell::gate_count[PHASE]; ++i) {
      const int g = Cell::first_gate[PHASE] + i;
      const V value = Cell::dx_differs ? v.dx[g] : v.du[g];
      write<E>(a.dx, at_gate(a, row, d, g, unit), active ? value : V(0));
    }
  }
};

// Adds what came through the recurrent product of the step at time t.
struct Crossing {
  bool crosses;
  V mask;

  __device__ __forceinline__ void read_inputs(const Arguments& a, int d, i64 t, i64 n, int unit) {
    crosses = t < length_of(a, n) && !reset_at(a, t, n);
    mask = mask_at(a, t, n, d, unit);
  }

  __device__ __forceinline__ V finish_state(V dh, V e) const { return crosses ? dh + e * mask : dh; }
};

}  // namespace gatewise
