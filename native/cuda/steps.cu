// One launch per phase of a step, for the pointwise maths; the recurrent products lie between the launches and leave their
// sums in `Arguments::sums`. A thread works on one unit of one row.
#include "points.cuh"

namespace gatewise {

constexpr int THREADS = 256;
constexpr bool SPLIT = GATEWISE_SPLIT;  // a gradient product leaves a plane of sums for each of its gates, not added up

// Whether the state, or its gradient, lives from step to step other than through the product.
__device__ __forceinline__ bool carries_state(const Arguments& a) {
  return !Cell::restores_state || given<LENGTHS>(a.lengths);
}

// The thread's point. Neighbouring threads have neighbouring units.
struct Place : Spot {
  __device__ __forceinline__ explicit Place(const Arguments& a) : Place(a, Offset(blockIdx.x) * THREADS + threadIdx.x) {}
  __device__ __forceinline__ Place(const Arguments& a, Offset index)  // in [N, D, H], where D is 1 or 2
      : Spot(a, a.D == 2 ? int(index / H & 1) : 0, int(a.D == 2 ? index / H >> 1 : index / H), int(index % H)) {}

  // Carried plane `which` of [N, D, H].
  __device__ __forceinline__ V& carry(const Arguments& a, int which) const {
    return a.carry[which * a.N * a.D * H + unit_at];
  }

  // What came through the product with the gates' gradients of phase PRODUCT.
  template <int PRODUCT>
  __device__ __forceinline__ V product(const Arguments& a) const {
    V sum = a.sums[unit_at];
#pragma unroll
    for (int part = 1; part < (SPLIT ? Cell::gate_count[PRODUCT] : 1); ++part) sum += a.sums[part * a.N * a.D * H + unit_at];
    return sum;
  }
};

template <int PHASE>
__device__ __forceinline__ void forward_phase(const Arguments& a, int step) {
  constexpr int GATES = Cell::gate_count[PHASE], LAST = PHASES - 1;
  const Place at(a);
  const int t = time_of(a, at.d, step);
  const int t_next = step + 1 < int(a.T) ? time_of(a, at.d, step + 1) : -1;
  if (!at.real) return;
  const Moment now(a, t);
  ForwardInputs inputs;
  inputs.fetch(a, at, now, t_next < 0 ? t : t_next, length_of(a, at.n));
  inputs.constants.fetch(a, at);
  V h = carries_state(a) ? at.carry(a, 0) : V(0), c = Cell::has_cell ? at.carry(a, 1) : V(0);
  ForwardPoint point;
  point.prepare(inputs, t, h, c);
#pragma unroll
  for (int g = 0; g < GATES; ++g) {
    const int gate = Cell::first_gate[PHASE] + g;
    point.v.u[gate] = a.sums[at.gate_at + SLOT[gate] * H];
  }
  if constexpr (PHASE > 0) {  // gates of the phases before
#pragma unroll
    for (int g = 0; g < Cell::first_gate[PHASE]; ++g) point.v.gate[g] = at.carry(a, 2 + g);
  }
  Cell::template forward<PHASE>(Activations{}, point.v);
  if constexpr (PHASE < LAST) {
#pragma unroll
    for (int g = 0; g < Cell::first_gate[LAST]; ++g) at.carry(a, 2 + g) = point.v.gate[g];
    write<E>(a.operand1, at.unit_at, point.v.operand);
  } else {
    const V operand = point.advance(h, c);
    if (carries_state(a)) at.carry(a, 0) = h;
    if constexpr (Cell::has_cell) at.carry(a, 1) = c;
    if (t_next >= 0) write<E>(a.operand0, at.unit_at, operand);
    write_results(a, at, now, &point);
  }
}

template <int PHASE>
__device__ __forceinline__ void gradient_phase(const Arguments& a, int step) {
  constexpr int LAST = PHASES - 1;
  const Place at(a);
  const int t = time_of(a, at.d, step), t_before = step > 0 ? time_of(a, at.d, step - 1) : -1;
  const bool is_last_step = step + 1 == int(a.T);
  if (!at.real) return;
  // Of the phase after this one, or of the later step's first phase.
  const V e = PHASE == LAST && is_last_step ? V(0) : at.product<PHASE == LAST ? 0 : LAST>(a);
  const Moment now(a, t);
  const int t_later = time_of(a, at.d, is_last_step ? step : step + 1);
  GradientInputs inputs;
  inputs.fetch(a, at, now, t_before, t_later, length_of(a, at.n));
  inputs.constants.fetch(a, at);
  const bool starts = PHASE == LAST && is_last_step;
  V dh = starts ? initial(a.state_gradient, at) : PHASE < LAST || carries_state(a) ? at.carry(a, 0) : V(0);
  V dc = !Cell::has_cell ? V(0) : starts ? initial(a.cell_gradient, at) : at.carry(a, 1);
  if (PHASE == LAST && !is_last_step) dh = inputs.cross(t_later, dh, e);
  if constexpr (PHASE > 0) {  // for the phases before
    at.carry(a, 0) = dh;
    if constexpr (Cell::has_cell) at.carry(a, 1) = dc;
  }
  GradientPoint point;
  point.prepare(inputs, t, dh, dc);
  point.v.e = e;
  Cell::template gradient<PHASE>(Activations{}, point.v);
  const i64 row = (t * a.N + at.n) * a.D + at.d;
#pragma unroll
  for (int i = 0; i < Cell::gate_count[PHASE]; ++i) {
    const int g = Cell::first_gate[PHASE] + i;
    write<E>(a.du, (row * G + SLOT[g]) * HP + at.unit, point.active ? point.v.du[g] : V(0));
  }
  write_dx<PHASE>(a, at, now, &point);
  if constexpr (PHASE == 0) {
    point.retreat(dh, dc);
    if (carries_state(a)) at.carry(a, 0) = dh;
    if constexpr (Cell::has_cell) at.carry(a, 1) = dc;
  }
}

}  // namespace gatewise

using namespace gatewise;

// Sets the carried planes and the first step's operand.
extern "C" __global__ void __launch_bounds__(THREADS) forward_start(const __grid_constant__ Arguments a) {
  const Place at(a);
  if (!at.real) return;
  const int t = time_of(a, at.d, 0);
  Part part;
  part.fetch(a, at, t, length_of(a, at.n));
  const V h = initial(a.init_state, at);
  at.carry(a, 0) = h;
  if constexpr (Cell::has_cell) at.carry(a, 1) = initial(a.init_cell, at);
  write<E>(a.operand0, at.unit_at, (part.reset != 0 ? V(0) : h) * part.mask[0]);
}

extern "C" __global__ void __launch_bounds__(THREADS) forward_step0(const __grid_constant__ Arguments a, i64 step) {
  forward_phase<0>(a, int(step));
}

extern "C" __global__ void __launch_bounds__(THREADS) forward_step1(const __grid_constant__ Arguments a, i64 step) {
  if constexpr (PHASES == 2) forward_phase<PHASES - 1>(a, int(step));
}

extern "C" __global__ void __launch_bounds__(THREADS) gradient_step0(const __grid_constant__ Arguments a, i64 step) {
  gradient_phase<0>(a, int(step));
}

extern "C" __global__ void __launch_bounds__(THREADS) gradient_step1(const __grid_constant__ Arguments a, i64 step) {
  if constexpr (PHASES == 2) gradient_phase<PHASES - 1>(a, int(step));
}

// What is left after the first step reaches the initial state and cell.
extern "C" __global__ void __launch_bounds__(THREADS) gradient_end(const __grid_constant__ Arguments a) {
  const Place at(a);
  const int t = time_of(a, at.d, 0);
  if (!at.real) return;
  const V e = at.product<0>(a), dh = carries_state(a) ? at.carry(a, 0) : V(0);
  GradientInputs inputs;
  inputs.later.fetch(a, at, t, length_of(a, at.n));
  if (a.init_state_gradient != nullptr) a.init_state_gradient[at.unit_at] = E::store(inputs.cross(t, dh, e));
  if (Cell::has_cell && a.init_cell_gradient != nullptr) a.init_cell_gradient[at.unit_at] = E::store(at.carry(a, 1));
}
