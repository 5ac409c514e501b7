// One launch runs all steps from the last to the first: R's transpose stays on the chip, the gradients of the gates go
// from block to block (exchange.cuh), and to du, from where the products after the kernel take them.
#include "block.cuh"

namespace gatewise {

struct GradientBlock : Block {
  using Block::Block;
  GradientInputs inputs[PAIRS][2];  // of the next pass

  template <int PHASE>
  __device__ __forceinline__ void hand_phase(const GradientPoint (&points)[PAIRS][2], const Moment& now, int step, int pass) {
    Storage<E>* to = a.du + i64(now.t) * (u32(a.N) * u32(a.D) * (G * HP));
#pragma unroll
    for (int i = 0; i < PAIRS; ++i) {
      const Pair pair(i);
      if (!pair.exists) continue;
      const int unit = p * U + pair.unit(), row = pass * PASS_ROWS + pair.row();
      const bool pads = HP != H && unit >= H;
#pragma unroll
      for (int j = 0; j < Shape<PHASE>::gates; ++j) {
        const int g = Cell::first_gate[PHASE] + j;
        V du[2];
#pragma unroll
        for (int r = 0; r < 2; ++r) du[r] = points[i][r].active && !pads ? points[i][r].v.du[g] : V(0);
        hand_on(du[0], du[1], lane, unit, [&](int which, int k, u32 word) {
          const u32 n = u32(first_row) + row + which;
          if (n >= u32(a.N)) return;
          hand_over<PHASE>(step, row + which, (SLOT[g] - first_slot<PHASE>()) * HP + k, word);
          *reinterpret_cast<u32*>(to + (n * u32(a.D) + d) * (G * HP) + SLOT[g] * HP + k) = word;
        });
      }
    }
    step_barrier();
    handed_on();
#pragma unroll
    for (int i = 0; i < PAIRS; ++i) {
      const Pair pair(i);
      if (!pair.exists) continue;
#pragma unroll
      for (int r = 0; r < 2; ++r) write_dx<PHASE>(a, spot(pair, pass, r), now, &points[i][r]);
    }
  }

  __device__ __forceinline__ void fetch(int step, int pass) {
    const Moment now(a, time(step));
    const int t_before = step > 0 ? time(step - 1) : -1;
    const int t_later = time(step + 1 < int(a.T) ? step + 1 : step);
#pragma unroll
    for (int i = 0; i < PAIRS; ++i) {
      const Pair pair(i);
      if (!pair.exists) continue;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const Spot at = spot(pair, pass, r);
        inputs[i][r].fetch(a, at, now, t_before, t_later, length(pair, pass, r));
        inputs[i][r].constants.fetch(a, at);
      }
    }
  }

  // On the chip a step is short, and this goes before the maths; elsewhere it must not delay what others wait for.
  __device__ __forceinline__ void fetch_next(int step, int pass) {
    const bool goes_on = pass + 1 < PASSES;
    if (goes_on || step > 0) fetch(goes_on ? step : step - 1, goes_on ? pass + 1 : 0);
  }

  // The carried gradient with what came through the first phase's product of a step.
  __device__ __forceinline__ void cross(int step, int pass, V (&dh)[PAIRS][2]) {
    const int t = time(step);
    Sums<0> sums;
    const bool goes_on = pass + 1 < PASSES || step == 0;  // in this step
    const float2* room = multiply<0>(sums, operands<0>(step, pass),
                                     operands<0>(goes_on ? step : step - 1, (pass + 1) % PASSES));
#pragma unroll
    for (int i = 0; i < PAIRS; ++i) {
      const Pair pair(i);
      if (!pair.exists) continue;
      const float2 e = total<0>(sums, room, pair, i, 0);
      dh[i][0] = inputs[i][0].cross(t, carry(pass, i, 0, 0), e.x);
      dh[i][1] = inputs[i][1].cross(t, carry(pass, i, 0, 1), e.y);
    }
  }

  __device__ __forceinline__ void start() {
    step_barrier();  // no block may write into the shared memory of one that has not begun
    for (int pass = 0; pass < PASSES; ++pass) {
#pragma unroll
      for (int i = 0; i < PAIRS; ++i) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const Spot at = spot(Pair(i), pass, r);
          carry(pass, i, 0, r) = initial(a.state_gradient, at);
          if constexpr (Cell::has_cell) carry(pass, i, 1, r) = initial(a.cell_gradient, at);
        }
      }
    }
    fetch(int(a.T) - 1, 0);
  }

  __device__ __forceinline__ void pass_of_step(int step, int pass) {
    const Moment now(a, time(step));
    GradientPoint points[PAIRS][2];
    V dh[PAIRS][2];
#pragma unroll
    for (int i = 0; i < PAIRS; ++i) {
#pragma unroll
      for (int r = 0; r < 2; ++r) dh[i][r] = carry(pass, i, 0, r);
    }
    if (step + 1 < int(a.T)) cross(step + 1, pass, dh);
#pragma unroll
    for (int i = 0; i < PAIRS; ++i) {
      if (!Pair(i).exists) continue;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const V dc = Cell::has_cell ? carry(pass, i, CARRIED - 1, r) : V(0);
        points[i][r].prepare(inputs[i][r], now.t, dh[i][r], dc);
      }
    }
    if constexpr (ON_CHIP) fetch_next(step, pass);
#pragma unroll
    for (int i = 0; i < PAIRS; ++i) {
      if (!Pair(i).exists) continue;
#pragma unroll
      for (int r = 0; r < 2; ++r) Cell::template gradient<LAST>(Activations{}, points[i][r].v);
    }
    hand_phase<LAST>(points, now, step, pass);
    if constexpr (PHASES == 2) {
      Sums<LAST> sums;
      const float2* room = multiply<LAST>(sums, operands<LAST>(step, pass), operands<LAST>(step, pass));
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
      hand_phase<0>(points, now, step, pass);
    }
#pragma unroll
    for (int i = 0; i < PAIRS; ++i) {
      if (!Pair(i).exists) continue;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        V dc = Cell::has_cell ? carry(pass, i, CARRIED - 1, r) : V(0);
        points[i][r].retreat(dh[i][r], dc);
        carry(pass, i, 0, r) = dh[i][r];
        if constexpr (Cell::has_cell) carry(pass, i, 1, r) = dc;
      }
    }
    if constexpr (!ON_CHIP) fetch_next(step, pass);
    // The first product, which may be that of `finish`, finds its operands started; every later one by the one before it.
    if (AHEAD && step + 1 == int(a.T) && pass + 1 == PASSES) ahead.start(operands<0>(step, 0));
  }

  // What is left after the first step reaches the initial state and cell.
  __device__ __forceinline__ void finish(int pass) {
    const int t = time(0);
    V dh[PAIRS][2];
#pragma unroll
    for (int i = 0; i < PAIRS; ++i) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const Pair pair(i);
        inputs[i][r].later.fetch(a, spot(pair, pass, r), t, pair.exists ? length(pair, pass, r) : 0);
      }
    }
    cross(0, pass, dh);
#pragma unroll
    for (int i = 0; i < PAIRS; ++i) {
      const Pair pair(i);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const Spot at = spot(pair, pass, r);
        if (!pair.exists || !at.real) continue;
        if (a.init_state_gradient != nullptr) a.init_state_gradient[at.unit_at] = E::store(dh[i][r]);
        if constexpr (Cell::has_cell) {
          if (a.init_cell_gradient != nullptr) a.init_cell_gradient[at.unit_at] = E::store(carry(pass, i, 1, r));
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
  block.start();
  for (int step = int(a.T) - 1; step >= 0; --step) {
    for (int pass = 0; pass < gatewise::PASSES; ++pass) block.pass_of_step(step, pass);
  }
  if (a.init_state_gradient != nullptr || a.init_cell_gradient != nullptr) {
    for (int pass = 0; pass < gatewise::PASSES; ++pass) block.finish(pass);
  }
  gatewise::step_barrier();  // no block leaves while another may still write into its shared memory
}
