// One launch runs all steps from the last to the first: R's transpose stays on the chip, the gradients of the gates go
// from block to block (exchange.cuh), through the very array the products after it take them from.
#include "block.cuh"

namespace gatewise {

struct GradientBlock : Block {
  using Block::Block;

  template <int PHASE>
  __device__ __forceinline__ void hand_phase(const GradientPoint (&points)[PAIRS][2], i64 pass, i64 t, i64 step) const {
#pragma unroll
    for (int i = 0; i < PAIRS; ++i) {
      const Pair pair(i);
      if (!pair.exists) continue;
      const int unit = p * U + pair.unit(), row = int(pass) * PASS_ROWS + pair.row();
#pragma unroll
      for (int j = 0; j < Shape<PHASE>::gates; ++j) {
        const int g = Cell::first_gate[PHASE] + j;
        V du[2];
#pragma unroll
        for (int r = 0; r < 2; ++r) du[r] = points[i][r].active && unit < H ? points[i][r].v.du[g] : V(0);
        hand_on<false>(du[0], du[1], lane, unit, [&](int which, int k, u32 word) {
          const i64 n = first_row + row + which;
          if (n >= a.N) return;
          const int slot = SLOT[g] - first_slot<PHASE>();
          hand_over<PHASE>(a.du, at_du(a, t * a.N + n, d, g, k), step, row + which, slot * HP + k, word);
        });
      }
    }
    step_barrier();
#pragma unroll
    for (int i = 0; i < PAIRS; ++i) {
      const Pair pair(i);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const i64 n = first_row + pass * PASS_ROWS + pair.row() + r;
        const int unit = p * U + pair.unit();
        if (pair.exists && n < a.N && unit < H) points[i][r].template write_dx<PHASE>(a, d, t, n, unit);
      }
    }
  }

  template <int PHASE>
  __device__ __forceinline__ Operands gradients_of(i64 t, i64 step, i64 pass) const {
    return operands<PHASE>(a.du, t, step, int(pass), G * HP, first_slot<PHASE>() * HP);
  }

  // Takes the first phase's product of the later step, at time t, and completes the carried gradient with it.
  __device__ __forceinline__ void cross(i64 t, i64 step, i64 pass, V (&dh)[PAIRS][2]) {
    Crossing crossing[PAIRS][2];
#pragma unroll
    for (int i = 0; i < PAIRS; ++i) {
      const Pair pair(i);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const i64 n = first_row + pass * PASS_ROWS + pair.row() + r;
        const int unit = p * U + pair.unit();
        crossing[i][r] = {};
        if (pair.exists && n < a.N && unit < H) crossing[i][r].fetch(a, d, t, n, unit);
      }
    }
    Sums<0> sums;
    const float2* room = multiply<0>(sums, gradients_of<0>(t, step, pass));
#pragma unroll
    for (int i = 0; i < PAIRS; ++i) {
      const Pair pair(i);
      if (!pair.exists) continue;
      const float2 e = total<0>(sums, room, pair, i, 0);
      dh[i][0] = crossing[i][0].finish_state(t, carry(pass, i, 0, 0), e.x);
      dh[i][1] = crossing[i][1].finish_state(t, carry(pass, i, 0, 1), e.y);
    }
  }

  __device__ __forceinline__ void pass_of_step(i64 step, i64 pass) {
    const i64 t = time_of(a, d, step);
    const i64 t_before = step > 0 ? time_of(a, d, step - 1) : -1;
    const bool is_last = step + 1 == a.T;
    GradientPoint points[PAIRS][2];
    V dh[PAIRS][2];
#pragma unroll
    for (int i = 0; i < PAIRS; ++i) {
      const Pair pair(i);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const i64 n = first_row + pass * PASS_ROWS + pair.row() + r;
        const int unit = p * U + pair.unit();
        const bool real = pair.exists && n < a.N && unit < H;
        points[i][r] = {};
        if (real) points[i][r].fetch(a, d, t, t_before, n, unit);
        if (is_last) {
          dh[i][r] = real ? initial(a, a.state_gradient, d, n, unit) : V(0);
          if constexpr (Cell::has_cell) carry(pass, i, 1, r) = real ? initial(a, a.cell_gradient, d, n, unit) : V(0);
        }
      }
    }
    if (!is_last) cross(time_of(a, d, step + 1), step + 1, pass, dh);
#pragma unroll
    for (int i = 0; i < PAIRS; ++i) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        points[i][r].prepare(t, dh[i][r], Cell::has_cell ? carry(pass, i, CARRIED - 1, r) : V(0));
        Cell::template gradient<LAST>(Activations{}, points[i][r].v);
      }
    }
    hand_phase<LAST>(points, pass, t, step);
    if constexpr (PHASES == 2) {
      Sums<LAST> sums;
      const float2* room = multiply<LAST>(sums, gradients_of<LAST>(t, step, pass));
#pragma unroll
      for (int i = 0; i < PAIRS; ++i) {
        const Pair pair(i);
        if (!pair.exists) continue;
        const float2 e = total<LAST>(sums, room, pair, i, 0);
        points[i][0].v.e = e.x;
        points[i][1].v.e = e.y;
#pragma unroll
        for (int r = 0; r < 2; ++r) Cell::template gradient<0>(Activations{}, points[i][r].v);
      }
      hand_phase<0>(points, pass, t, step);
    }
#pragma unroll
    for (int i = 0; i < PAIRS; ++i) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        V dc = Cell::has_cell ? carry(pass, i, CARRIED - 1, r) : V(0);
        points[i][r].retreat(dh[i][r], dc);
        carry(pass, i, 0, r) = dh[i][r];
        if constexpr (Cell::has_cell) carry(pass, i, 1, r) = dc;
      }
    }
  }

  // What is left after the first step reaches the initial state and cell.
  __device__ __forceinline__ void finish(i64 pass) {
    V dh[PAIRS][2];
    cross(time_of(a, d, 0), 0, pass, dh);
#pragma unroll
    for (int i = 0; i < PAIRS; ++i) {
      const Pair pair(i);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const i64 n = first_row + pass * PASS_ROWS + pair.row() + r;
        const int unit = p * U + pair.unit();
        if (!pair.exists || n >= a.N || unit >= H) continue;
        if (a.init_state_gradient != nullptr) write<E>(a.init_state_gradient, at_unit(a, n, d, unit), dh[i][r]);
        if constexpr (Cell::has_cell) {
          if (a.init_cell_gradient != nullptr) write<E>(a.init_cell_gradient, at_unit(a, n, d, unit), carry(pass, i, 1, r));
        }
      }
    }
  }
};

}  // namespace gatewise

extern "C" __global__ void __launch_bounds__(256) pack(const __grid_constant__ gatewise::Arguments a) {
  gatewise::pack_phase<0>(a);
  if constexpr (gatewise::PHASES == 2) gatewise::pack_phase<gatewise::LAST>(a);
}

extern "C" __global__ void __launch_bounds__(gatewise::THREADS, 1) run(const __grid_constant__ gatewise::Arguments a) {
  extern __shared__ __align__(16) char memory[];
  gatewise::GradientBlock block(a, memory);
  for (gatewise::i64 step = a.T - 1; step >= 0; --step) {
    for (gatewise::i64 pass = 0; pass < a.passes; ++pass) block.pass_of_step(step, pass);
  }
  if (a.init_state_gradient != nullptr || a.init_cell_gradient != nullptr) {
    for (gatewise::i64 pass = 0; pass < a.passes; ++pass) block.finish(pass);
  }
  gatewise::step_barrier();  // no block leaves while another may still write into its shared memory
}
