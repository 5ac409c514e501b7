// One unit of one row at one step: what it reads, the cell's maths, what it writes. Shared by every kernel family.
//
// Points read in two steps. `fetch` only starts the loads, all of them, and looks at none: a single early look would put
// one trip to memory after the other. `prepare` looks. Between the two lies, in the persistent kernels, a whole step.
#pragma once
#include "problem.cuh"

namespace gatewise {

#ifdef GATEWISE_SMALL_STEPS
using Offset = u32;  // within a step; the engine sees to it that it is enough
#else
using Offset = i64;
#endif

// Where a point's values are in the arrays of one step. Points beyond the last row or unit are given a real one's
// place, so that reading needs no conditions; they write nothing.
struct Spot {
  Offset unit_at;  // in [N, D, H]
  Offset gate_at;  // in [N, D, G, H], first gate of the caller's order
  int n, d, unit;
  bool real;

  __device__ __forceinline__ Spot(const Arguments& a, int direction, int row, int unit_) {
    real = row < int(a.N) && unit_ < H;
    n = row < int(a.N) ? row : int(a.N) - 1;
    unit = unit_ < H ? unit_ : H - 1;
    d = direction;
    const Offset row_at = static_cast<Offset>(n) * static_cast<Offset>(a.D) + d;
    unit_at = row_at * H + unit;
    gate_at = row_at * (G * H) + unit;
  }
};

// Where a step starts in arrays over all steps.
struct Moment {
  int t;
  i64 units, gates;

  __device__ __forceinline__ Moment(const Arguments& a, int time) : t(time) {
    const Offset rows = static_cast<Offset>(a.N) * static_cast<Offset>(a.D);
    units = static_cast<i64>(t) * (rows * H);
    gates = static_cast<i64>(t) * (rows * (G * H));
  }
};

template <class S>
__device__ __forceinline__ S fetch_if(bool condition, const S* from, Offset index, S otherwise) {
  return condition ? __ldg(from + index) : otherwise;
}

// What decides whether a row takes part in a step, and with which mask.
struct Part {
  int length;
  Storage<E> mask;
  unsigned char reset;

  __device__ __forceinline__ void fetch(const Arguments& a, const Spot& spot, int t, int row_length) {
    length = row_length;
    mask = E::store(V(1));
    reset = 0;
    if (given<MASK>(a.mask)) {
      mask = __ldg(a.mask + t * a.mask_t + spot.n * a.mask_n + (i64(spot.d) * H + spot.unit) * a.mask_k);
    }
    if (given<RESETS>(a.resets)) reset = __ldg(a.resets + t * a.resets_t + spot.n * a.resets_n);
  }
#ifdef GATEWISE_OPTIONS
  __device__ __forceinline__ bool takes(int t) const { return !given<LENGTHS>(nullptr) || t < length; }
#else
  __device__ __forceinline__ bool takes(int t) const { return t < length; }
#endif
};

__device__ __forceinline__ V initial(const Storage<E>* array, const Spot& spot) {
  return array == nullptr ? V(0) : E::load(__ldg(array + spot.unit_at));
}

struct ForwardInputs {
  Part part, next;
  Storage<X> x[G];
  Storage<E> bias[G], peephole[G], second_bias;

  // `t_next` is the time of the direction's next step; after the last one, any.
  __device__ __forceinline__ void fetch(const Arguments& a, const Spot& spot, const Moment& now, int t_next, int length) {
    const int packed = spot.d * (G * H) + spot.unit;
#pragma unroll
    for (int g = 0; g < G; ++g) {
      x[g] = __ldg(a.x + now.gates + SLOT[g] * H + spot.gate_at);
      bias[g] = fetch_if(given<BIAS>(a.bias), a.bias + SLOT[g] * H, packed, E::store(V(0)));
      if constexpr (Cell::peephole) peephole[g] = __ldg(a.peephole + SLOT[g] * H + packed);
    }
    if constexpr (Cell::needs_product) {
      second_bias = fetch_if(a.secondary_bias != nullptr, a.secondary_bias, spot.d * H + spot.unit, E::store(V(0)));
    }
    part.fetch(a, spot, now.t, length);
    next.fetch(a, spot, t_next, length);
  }
};

struct ForwardPoint {
  Forward<V, G> v;
  bool active, reset_next;
  V mask_next;

  __device__ __forceinline__ void prepare(const ForwardInputs& in, int t, V h, V c) {
#pragma unroll
    for (int g = 0; g < G; ++g) {
      v.x[g] = X::load(in.x[g]) + E::load(in.bias[g]);
      v.p[g] = Cell::peephole ? E::load(in.peephole[g]) : V(0);
    }
    v.b2 = Cell::needs_product ? E::load(in.second_bias) : V(0);
    v.m = E::load(in.part.mask);
    active = in.part.takes(t);
    mask_next = E::load(in.next.mask);
    reset_next = in.next.reset != 0;
    v.h = in.part.reset != 0 ? V(0) : h;
    v.c = in.part.reset != 0 ? V(0) : c;
  }

  // After the last phase: the state and cell to carry on, and the operand of the next step.
  __device__ __forceinline__ V advance(V& h, V& c) const {
    h = active ? v.h_next : h;
    if constexpr (Cell::has_cell) c = active ? v.c_next : c;
    return (reset_next ? V(0) : h) * mask_next;
  }

  __device__ __forceinline__ void write_results(const Arguments& a, const Spot& spot, const Moment& now) const {
    if (!spot.real) return;
    (a.state + now.units)[spot.unit_at] = E::store(active ? v.h_next : V(0));
    if constexpr (Cell::has_cell) {
      if (a.cell != nullptr) (a.cell + now.units)[spot.unit_at] = E::store(active ? v.c_next : V(0));
    }
    if (a.z_state != nullptr) {
#pragma unroll
      for (int g = 0; g < G; ++g) {
        (a.z_state + now.gates + SLOT[g] * H)[spot.gate_at] = E::store(active ? v.gate[g] : V(0));
      }
    }
  }
};

struct GradientInputs {
  Part part, later;
  Storage<E> gate[G], dgate[G], peephole[G], cell_next, cell_before, state_before, product, second_bias, dstate, dcell;

  // `t_before` is the time of the direction's step before this one, -1 at its first; `t_later` that of the one after.
  __device__ __forceinline__ void fetch(const Arguments& a, const Spot& spot, const Moment& now, int t_before, int t_later,
                                        int length) {
    part.fetch(a, spot, now.t, length);
    later.fetch(a, spot, t_later, length);
    const Storage<E> zero = E::store(V(0));
#pragma unroll
    for (int g = 0; g < G; ++g) {
      gate[g] = __ldg(a.z_state + now.gates + SLOT[g] * H + spot.gate_at);
      const Storage<E>* dgates = a.z_state_gradient + now.gates + SLOT[g] * H;
      dgate[g] = fetch_if(given<GATE_GRADIENT>(a.z_state_gradient), dgates, spot.gate_at, zero);
      if constexpr (Cell::peephole) peephole[g] = __ldg(a.peephole + SLOT[g] * H + spot.d * (G * H) + spot.unit);
    }
    const bool came = t_before >= 0 && part.takes(t_before);  // else this is the row's first step
    const i64 before = came ? Moment(a, t_before).units : 0;
    if constexpr (Cell::has_cell) {
      cell_next = __ldg(a.cell + now.units + spot.unit_at);
      const Storage<E>* from = came ? a.cell : a.init_cell;
      cell_before = fetch_if(from != nullptr, from + before, spot.unit_at, zero);
    }
    if constexpr (!Cell::restores_state) {
      const Storage<E>* from = came ? a.state : a.init_state;
      state_before = fetch_if(from != nullptr, from + before, spot.unit_at, zero);
    }
    if constexpr (Cell::needs_product) {
      product = __ldg(a.product + now.units + spot.unit_at);
      second_bias = fetch_if(a.secondary_bias != nullptr, a.secondary_bias, spot.d * H + spot.unit, zero);
    }
    dstate = __ldg(a.source_gradient + now.units + spot.unit_at);
    const Storage<E>* dcells = a.cell_sequence_gradient + now.units;
    dcell = fetch_if(given<CELL_GRADIENT>(a.cell_sequence_gradient), dcells, spot.unit_at, zero);
  }

  // Adds to dh what came through the recurrent product of the later step, at time t.
  __device__ __forceinline__ V cross(int t, V dh, V e) const {
    return later.takes(t) && later.reset == 0 ? dh + e * E::load(later.mask) : dh;
  }
};

struct GradientPoint {
  Gradient<V, G> v;
  bool active, reset;

  // `dh` and `dc` come from the step after this one.
  __device__ __forceinline__ void prepare(const GradientInputs& in, int t, V dh, V dc) {
    active = in.part.takes(t);
    reset = in.part.reset != 0;
#pragma unroll
    for (int g = 0; g < G; ++g) {
      v.gate[g] = E::load(in.gate[g]);
      v.dgate[g] = E::load(in.dgate[g]);
      v.p[g] = Cell::peephole ? E::load(in.peephole[g]) : V(0);
    }
    v.c_next = Cell::has_cell ? E::load(in.cell_next) : V(0);
    v.c = Cell::has_cell && !reset ? E::load(in.cell_before) : V(0);
    v.h = !Cell::restores_state && !reset ? E::load(in.state_before) : V(0);
    v.m = E::load(in.part.mask);
    v.q = Cell::needs_product ? E::load(in.product) + E::load(in.second_bias) : V(0);
    v.e = V(0);
    v.dh = dh + E::load(in.dstate);
    v.dc = dc + E::load(in.dcell);
  }

  // After the last phase: what is carried to the step before. The product is still missing in dh.
  __device__ __forceinline__ void retreat(V& dh, V& dc) const {
    dh = active ? (reset ? V(0) : v.h_prev) : dh;
    if constexpr (Cell::has_cell) dc = active ? (reset ? V(0) : v.c_prev) : dc;
  }

  template <int PHASE>
  __device__ __forceinline__ void write_dx(const Arguments& a, const Spot& spot, const Moment& now) const {
    if (a.dx == nullptr || !spot.real) return;
#pragma unroll
    for (int i = 0; i < Cell::gate_count[PHASE]; ++i) {
      const int g = Cell::first_gate[PHASE] + i;
      const V value = Cell::dx_differs ? v.dx[g] : v.du[g];
      (a.dx + now.gates + SLOT[g] * H)[spot.gate_at] = E::store(active ? value : V(0));
    }
  }
};

}  // namespace gatewise
