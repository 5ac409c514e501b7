// One unit of one row at one step: what it reads, the cell's maths, what it writes. Shared by every kernel family.
#pragma once
#include "problem.cuh"

namespace gatewise {

// Points read in two steps. `fetch` only starts the loads, all of them, and looks at none: it runs before the wait for
// the recurrent product, and a single early look would put one trip to memory after the other. `prepare` looks.

template <class S>
__device__ __forceinline__ S fetch_if(const S* array, i64 index, S otherwise) {
  return array != nullptr ? __ldg(array + index) : otherwise;
}

// What decides whether a row takes part in a step, and with which mask.
struct Part {
  i64 length;
  Storage<E> mask;
  unsigned char reset;

  __device__ __forceinline__ void fetch(const Arguments& a, int d, i64 t, i64 n, int unit) {
    length = length_of(a, n);
    mask = fetch_if(a.mask, t * a.mask_t + n * a.mask_n + (i64(d) * H + unit) * a.mask_k, E::store(V(1)));
    reset = fetch_if(a.resets, t * a.resets_t + n * a.resets_n, static_cast<unsigned char>(0));
  }
};

struct ForwardPoint {
  Forward<V, G> v;
  bool active, reset;
  V mask_next;
  bool reset_next;
  Part part;
  Storage<X> x[G];
  Storage<E> bias[G], peephole[G], second_bias, next_mask;
  unsigned char next_reset;

  // `t_next` is the time of the direction's next step, any other after the last.
  __device__ __forceinline__ void fetch(const Arguments& a, int d, i64 t, i64 t_next, i64 n, int unit) {
    const i64 from = (t * a.N + n) * a.x_pitch + d * (G * H) + unit;
    const i64 packed = d * (G * H) + unit;
#pragma unroll
    for (int g = 0; g < G; ++g) {
      x[g] = __ldg(a.x + from + SLOT[g] * H);
      bias[g] = fetch_if(a.bias, packed + SLOT[g] * H, E::store(V(0)));
      if constexpr (Cell::peephole) peephole[g] = __ldg(a.peephole + packed + SLOT[g] * H);
    }
    if constexpr (Cell::needs_product) second_bias = fetch_if(a.secondary_bias, i64(d) * H + unit, E::store(V(0)));
    part.fetch(a, d, t, n, unit);
    next_mask = fetch_if(a.mask, t_next * a.mask_t + n * a.mask_n + (i64(d) * H + unit) * a.mask_k, E::store(V(1)));
    next_reset = fetch_if(a.resets, t_next * a.resets_t + n * a.resets_n, static_cast<unsigned char>(0));
  }

  __device__ __forceinline__ void prepare(i64 t, V h, V c) {
#pragma unroll
    for (int g = 0; g < G; ++g) {
      v.x[g] = X::load(x[g]) + E::load(bias[g]);
      v.p[g] = Cell::peephole ? E::load(peephole[g]) : V(0);
    }
    v.b2 = Cell::needs_product ? E::load(second_bias) : V(0);
    v.m = E::load(part.mask);
    active = t < part.length;
    reset = part.reset != 0;
    mask_next = E::load(next_mask);
    reset_next = next_reset != 0;
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
  Part part;
  Storage<E> gate[G], dgate[G], peephole[G], cell_next, cell_before, state_before, product, second_bias, dstate, dcell;

  // `t_before` is the time of the direction's step before this one, -1 at its first.
  __device__ __forceinline__ void fetch(const Arguments& a, int d, i64 t, i64 t_before, i64 n, int unit) {
    const i64 row = t * a.N + n;
    part.fetch(a, d, t, n, unit);
    const bool came = t_before >= 0 && t_before < part.length;  // else this is the row's first step
    const i64 before = at_unit(a, came ? t_before * a.N + n : n, d, unit);
    const Storage<E> zero = E::store(V(0));
    const i64 gates = at_gate(a, row, d, 0, unit) - SLOT[0] * H;
#pragma unroll
    for (int g = 0; g < G; ++g) {
      gate[g] = __ldg(a.z_state + gates + SLOT[g] * H);
      dgate[g] = fetch_if(a.z_state_gradient, gates + SLOT[g] * H, zero);
      if constexpr (Cell::peephole) peephole[g] = __ldg(a.peephole + d * (G * H) + SLOT[g] * H + unit);
    }
    const i64 here = at_unit(a, row, d, unit);
    if constexpr (Cell::has_cell) {
      cell_next = __ldg(a.cell + here);
      cell_before = fetch_if(came ? a.cell : a.init_cell, before, zero);
    }
    if constexpr (!Cell::restores_state) state_before = fetch_if(came ? a.state : a.init_state, before, zero);
    if constexpr (Cell::needs_product) {
      product = __ldg(a.product + here);
      second_bias = fetch_if(a.secondary_bias, i64(d) * H + unit, zero);
    }
    dstate = __ldg(a.source_gradient + here);
    dcell = fetch_if(a.cell_sequence_gradient, here, zero);
  }

  // `dh` and `dc` come from the step after this one.
  __device__ __forceinline__ void prepare(i64 t, V dh, V dc) {
    active = t < part.length;
    reset = part.reset != 0;
#pragma unroll
    for (int g = 0; g < G; ++g) {
      v.gate[g] = E::load(gate[g]);
      v.dgate[g] = E::load(dgate[g]);
      v.p[g] = Cell::peephole ? E::load(peephole[g]) : V(0);
    }
    v.c_next = Cell::has_cell ? E::load(cell_next) : V(0);
    v.c = Cell::has_cell && !reset ? E::load(cell_before) : V(0);
    v.h = !Cell::restores_state && !reset ? E::load(state_before) : V(0);
    v.m = E::load(part.mask);
    v.q = Cell::needs_product ? E::load(product) + E::load(second_bias) : V(0);
    v.e = V(0);
    v.dh = dh + E::load(dstate);
    v.dc = dc + E::load(dcell);
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
  Part part;

  __device__ __forceinline__ void fetch(const Arguments& a, int d, i64 t, i64 n, int unit) { part.fetch(a, d, t, n, unit); }

  __device__ __forceinline__ V finish_state(i64 t, V dh, V e) const {
    return t < part.length && part.reset == 0 ? dh + e * E::load(part.mask) : dh;
  }
};

}  // namespace gatewise
