// One launch per phase of a step, on plain arithmetic units: for float64, for exact float32, for anything the persistent
// kernels do not take. A block works on 16 units and 16 rows of one direction, a thread on one unit of one row.
#include "points.cuh"

namespace gatewise {

constexpr int TILE = 16;
constexpr int DEPTH = 32;  // of the tiles the sums are cut into

// The thread's point.
struct Place : Spot {
  __device__ __forceinline__ explicit Place(const Arguments& a)
      : Spot(a, blockIdx.z, i64(blockIdx.y) * TILE + threadIdx.x / TILE, blockIdx.x * TILE + threadIdx.x % TILE) {}

  // Carried plane `which` of [N, D, H].
  __device__ __forceinline__ V& carry(const Arguments& a, int which) const {
    return a.carry[which * a.N * a.D * H + unit_at];
  }
  // In [T, N, D, HP].
  __device__ __forceinline__ i64 operand_at(const Arguments& a, i64 t) const {
    return ((t * a.N + n) * a.D + d) * HP + unit;
  }
};

// sums[g] += sum over k of operand(row of the tile, k) * weight(g, unit of the tile, k), tile by tile through shared memory.
template <int GATES, class Operand, class Weight>
__device__ __forceinline__ void multiply_tiles(V (&sums)[GATES], int length, Operand operand, Weight weight) {
  __shared__ V left[TILE][DEPTH + 1];
  __shared__ V right[GATES][TILE][DEPTH + 1];
  const int column = threadIdx.x % TILE, row = threadIdx.x / TILE;
  for (int start = 0; start < length; start += DEPTH) {
    for (int i = threadIdx.x; i < TILE * DEPTH; i += TILE * TILE) {
      left[i / DEPTH][i % DEPTH] = start + i % DEPTH < length ? operand(i / DEPTH, start + i % DEPTH) : V(0);
    }
    for (int i = threadIdx.x; i < GATES * TILE * DEPTH; i += TILE * TILE) {
      const int k = i % DEPTH, unit = i / DEPTH % TILE, g = i / (DEPTH * TILE);
      right[g][unit][k] = start + k < length ? weight(g, unit, start + k) : V(0);
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < DEPTH; ++k) {
#pragma unroll
      for (int g = 0; g < GATES; ++g) sums[g] += left[row][k] * right[g][column][k];
    }
    __syncthreads();
  }
}

template <int PHASE>
__device__ __forceinline__ void forward_phase(const Arguments& a, i64 step) {
  constexpr int GATES = Cell::gate_count[PHASE], LAST = PHASES - 1;
  const Place at(a);
  const i64 t = time_of(a, at.d, step);
  const i64 t_next = step + 1 < a.T ? time_of(a, at.d, step + 1) : -1;
  const Storage<E>* operands = PHASE == 0 ? a.operand0 : a.operand1;
  V sums[GATES] = {};
  multiply_tiles<GATES>(
      sums, H,
      [&](int row, int k) {
        const i64 n = i64(blockIdx.y) * TILE + row;
        return n < a.N ? E::load(operands[((t * a.N + n) * a.D + at.d) * HP + k]) : V(0);
      },
      [&](int g, int unit, int k) {
        const int u = blockIdx.x * TILE + unit;
        const i64 gate_row = (i64(at.d) * G + SLOT[Cell::first_gate[PHASE] + g]) * H + u;
        return u < H ? read<E>(a.recurrent_weight, gate_row * H + k) : V(0);
      });
  if (!at.real) return;
  const Moment now(a, t);
  ForwardInputs inputs;
  inputs.fetch(a, at, now, t_next < 0 ? t : t_next, length_of(a, at.n));
  V h = at.carry(a, 0), c = Cell::has_cell ? at.carry(a, 1) : V(0);
  ForwardPoint point;
  point.prepare(inputs, t, h, c);
#pragma unroll
  for (int g = 0; g < GATES; ++g) point.v.u[Cell::first_gate[PHASE] + g] = sums[g];
  if constexpr (PHASE > 0) {  // gates of the phases before
#pragma unroll
    for (int g = 0; g < Cell::first_gate[PHASE]; ++g) point.v.gate[g] = at.carry(a, 2 + g);
  }
  Cell::template forward<PHASE>(Activations{}, point.v);
  if constexpr (PHASE < LAST) {
#pragma unroll
    for (int g = 0; g < Cell::first_gate[LAST]; ++g) at.carry(a, 2 + g) = point.v.gate[g];
    write<E>(a.operand1, at.operand_at(a, t), point.v.operand);
  } else {
    const V operand = point.advance(h, c);
    at.carry(a, 0) = h;
    if constexpr (Cell::has_cell) at.carry(a, 1) = c;
    if (t_next >= 0) write<E>(a.operand0, at.operand_at(a, t_next), operand);
    point.write_results(a, at, now);
  }
}

// The product of a phase's du at time t with R: the gradient of the phase's operand.
template <int PHASE>
__device__ __forceinline__ V gradient_product(const Arguments& a, const Place& at, i64 t) {
  constexpr int GATES = Cell::gate_count[PHASE];
  V sum[1] = {};
  multiply_tiles<1>(
      sum, GATES * H,
      [&](int row, int k) {
        const i64 n = i64(blockIdx.y) * TILE + row;
        const i64 du = ((t * a.N + n) * a.D + at.d) * G + first_slot<PHASE>() + k / H;
        return n < a.N ? E::load(a.du[du * HP + k % H]) : V(0);
      },
      [&](int, int unit, int k) {
        const int u = blockIdx.x * TILE + unit;
        const i64 gate_row = (i64(at.d) * G + first_slot<PHASE>() + k / H) * H + k % H;
        return u < H ? read<E>(a.recurrent_weight, gate_row * H + u) : V(0);
      });
  return sum[0];
}

template <int PHASE>
__device__ __forceinline__ void gradient_phase(const Arguments& a, i64 step) {
  constexpr int LAST = PHASES - 1;
  const Place at(a);
  const i64 t = time_of(a, at.d, step), t_before = step > 0 ? time_of(a, at.d, step - 1) : -1;
  const bool is_last_step = step + 1 == a.T;
  V e = V(0);
  if constexpr (PHASE == LAST) {
    if (!is_last_step) e = gradient_product<0>(a, at, time_of(a, at.d, step + 1));
  } else {
    e = gradient_product<PHASE + 1>(a, at, t);
  }
  if (!at.real) return;
  const Moment now(a, t);
  const i64 t_later = time_of(a, at.d, is_last_step ? step : step + 1);
  GradientInputs inputs;
  inputs.fetch(a, at, now, t_before, t_later, length_of(a, at.n));
  if constexpr (PHASE == LAST) {
    if (is_last_step) {
      at.carry(a, 0) = initial(a.state_gradient, at);
      at.carry(a, 1) = initial(a.cell_gradient, at);
    } else {
      at.carry(a, 0) = inputs.cross(t_later, at.carry(a, 0), e);
    }
  }
  V dh = at.carry(a, 0), dc = at.carry(a, 1);
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
  point.write_dx<PHASE>(a, at, now);
  if constexpr (PHASE == 0) {
    point.retreat(dh, dc);
    at.carry(a, 0) = dh;
    at.carry(a, 1) = dc;
  }
}

}  // namespace gatewise

using namespace gatewise;

// Sets the carried planes and the first step's operand.
extern "C" __global__ void __launch_bounds__(TILE * TILE) forward_start(const __grid_constant__ Arguments a) {
  const Place at(a);
  if (!at.real) return;
  const i64 t = time_of(a, at.d, 0);
  Part part;
  part.fetch(a, at, t, length_of(a, at.n));
  const V h = initial(a.init_state, at);
  at.carry(a, 0) = h;
  if constexpr (Cell::has_cell) at.carry(a, 1) = initial(a.init_cell, at);
  write<E>(a.operand0, at.operand_at(a, t), (part.reset != 0 ? V(0) : h) * E::load(part.mask));
}

extern "C" __global__ void __launch_bounds__(TILE * TILE) forward_step0(const __grid_constant__ Arguments a, i64 step) {
  forward_phase<0>(a, step);
}

extern "C" __global__ void __launch_bounds__(TILE * TILE) forward_step1(const __grid_constant__ Arguments a, i64 step) {
  if constexpr (PHASES == 2) forward_phase<PHASES - 1>(a, step);
}

extern "C" __global__ void __launch_bounds__(TILE * TILE) gradient_step0(const __grid_constant__ Arguments a, i64 step) {
  gradient_phase<0>(a, step);
}

extern "C" __global__ void __launch_bounds__(TILE * TILE) gradient_step1(const __grid_constant__ Arguments a, i64 step) {
  if constexpr (PHASES == 2) gradient_phase<PHASES - 1>(a, step);
}

// What is left after the first step reaches the initial state and cell.
extern "C" __global__ void __launch_bounds__(TILE * TILE) gradient_end(const __grid_constant__ Arguments a) {
  const Place at(a);
  const i64 t = time_of(a, at.d, 0);
  const V e = gradient_product<0>(a, at, t);
  if (!at.real) return;
  GradientInputs inputs;
  inputs.later.fetch(a, at, t, length_of(a, at.n));
  if (a.init_state_gradient != nullptr) a.init_state_gradient[at.unit_at] = E::store(inputs.cross(t, at.carry(a, 0), e));
  if (Cell::has_cell && a.init_cell_gradient != nullptr) a.init_cell_gradient[at.unit_at] = E::store(at.carry(a, 1));
}
