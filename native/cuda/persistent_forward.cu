// One launch runs all steps: R stays on the chip, the state goes from block to block (exchange.cuh).
#include "block.cuh"

namespace gatewise {

struct ForwardBlock : Block {
  using Block::Block;
  ForwardInputs inputs[PAIRS][2];  // of the next pass

  template <int PHASE>
  __device__ __forceinline__ void hand_pair(const Pair& pair, int pass, int step, V first, V second) const {
    const int row = pass * PASS_ROWS + pair.row();
    hand_on(first, second, lane, p * U + pair.unit(), [&](int which, int k, u32 word) {
      if (first_row + row + which < int(a.N)) hand_over<PHASE>(step, row + which, k, word);
    });
  }

  // Padding units hand on zeros: they meet zero weights, and must not be NaN.
  __device__ __forceinline__ V padded(const Pair& pair, V operand) const {
    return HP == H || p * U + pair.unit() < H ? operand : V(0);
  }

  __device__ __forceinline__ void fetch(int step, int pass) {
    const Moment now(a, time(step));
    const int t_next = time(step + 1 < int(a.T) ? step + 1 : step);
#pragma unroll
    for (int i = 0; i < PAIRS; ++i) {
      const Pair pair(i);
      if (!pair.exists) continue;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const Spot at = spot(pair, pass, r);
        inputs[i][r].fetch(a, at, now, t_next, length(pair, pass, r));
        inputs[i][r].constants.fetch(a, at);
      }
    }
  }

  // On the chip a step is short, and this goes before the maths; elsewhere it must not delay what others wait for.
  __device__ __forceinline__ void fetch_next(int step, int pass) {
    const bool goes_on = pass + 1 < PASSES;
    if (goes_on || step + 1 < int(a.T)) fetch(goes_on ? step : step + 1, goes_on ? pass + 1 : 0);
  }

  __device__ __forceinline__ void start() {
    step_barrier();  // no block may write into the shared memory of one that has not begun
    const int t = time(0);
    for (int pass = 0; pass < PASSES; ++pass) {
#pragma unroll
      for (int i = 0; i < PAIRS; ++i) {
        const Pair pair(i);
        if (!pair.exists) continue;
        V operand[2];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const Spot at = spot(pair, pass, r);
          Part part;
          part.fetch(a, at, t, length(pair, pass, r));
          const V h = initial(a.init_state, at);
          carry(pass, i, 0, r) = h;
          if constexpr (Cell::has_cell) carry(pass, i, 1, r) = initial(a.init_cell, at);
          operand[r] = padded(pair, (part.reset != 0 ? V(0) : h) * part.mask[0]);
        }
        hand_pair<0>(pair, pass, 0, operand[0], operand[1]);
      }
    }
    fetch(0, 0);
    step_barrier();
    if constexpr (AHEAD) ahead.start(operands<0>(0, 0));
  }

  template <int PHASE>
  __device__ __forceinline__ void phase(ForwardPoint (&points)[PAIRS][2], int t, int step, int pass) {
    Sums<PHASE> sums;
    const bool goes_on = pass + 1 < PASSES || step + 1 == int(a.T);  // in this step
    const float2* room = multiply<PHASE>(sums, operands<PHASE>(step, pass),
                                         operands<PHASE>(goes_on ? step : step + 1, (pass + 1) % PASSES));
    if constexpr (PHASE == 0) {
#pragma unroll
      for (int i = 0; i < PAIRS; ++i) {
        if (!Pair(i).exists) continue;
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const V c = Cell::has_cell ? carry(pass, i, CARRIED - 1, r) : V(0);
          points[i][r].prepare(inputs[i][r], t, carry(pass, i, 0, r), c);
        }
      }
      if constexpr (ON_CHIP) fetch_next(step, pass);
    }
#pragma unroll
    for (int i = 0; i < PAIRS; ++i) {
      const Pair pair(i);
      if (!pair.exists) continue;
#pragma unroll
      for (int g = 0; g < Shape<PHASE>::gates; ++g) {
        const float2 u = total<PHASE>(sums, room, pair, i, g);
        points[i][0].v.u[Cell::first_gate[PHASE] + g] = u.x;
        points[i][1].v.u[Cell::first_gate[PHASE] + g] = u.y;
      }
#pragma unroll
      for (int r = 0; r < 2; ++r) Cell::template forward<PHASE>(Activations{}, points[i][r].v);
      if constexpr (PHASE < LAST) {
        const V first = padded(pair, points[i][0].v.operand), second = padded(pair, points[i][1].v.operand);
        hand_pair<LAST>(pair, pass, step, first, second);
      }
    }
    if constexpr (PHASE < LAST) {
      step_barrier();
      handed_on();
    }
  }

  __device__ __forceinline__ void pass_of_step(int step, int pass) {
    const Moment now(a, time(step));
    const bool is_last = step + 1 == int(a.T);
    ForwardPoint points[PAIRS][2];
    phase<0>(points, now.t, step, pass);
    if constexpr (PHASES == 2) phase<LAST>(points, now.t, step, pass);
#pragma unroll
    for (int i = 0; i < PAIRS; ++i) {
      const Pair pair(i);
      if (!pair.exists) continue;
      V operand[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        V h = carry(pass, i, 0, r), c = Cell::has_cell ? carry(pass, i, CARRIED - 1, r) : V(0);
        operand[r] = padded(pair, points[i][r].advance(h, c));
        carry(pass, i, 0, r) = h;
        if constexpr (Cell::has_cell) carry(pass, i, 1, r) = c;
      }
      if (!is_last) hand_pair<0>(pair, pass, step + 1, operand[0], operand[1]);
    }
    handed_on();
#pragma unroll
    for (int i = 0; i < PAIRS; ++i) {
      const Pair pair(i);
      if (!pair.exists) continue;
#pragma unroll
      for (int r = 0; r < 2; ++r) write_results(a, spot(pair, pass, r), now, &points[i][r]);
    }
    if constexpr (!ON_CHIP) fetch_next(step, pass);
  }
};

}  // namespace gatewise

extern "C" __global__ void __launch_bounds__(256) pack(const __grid_constant__ gatewise::Arguments a) {
  gatewise::pack_phase<0>(a);
  if constexpr (gatewise::PHASES == 2) gatewise::pack_phase<gatewise::LAST>(a);
}

extern "C" __global__ void __launch_bounds__(gatewise::THREADS, 1) run(const __grid_constant__ gatewise::Arguments a) {
  extern __shared__ __align__(16) char memory[];
  gatewise::ForwardBlock block(a, memory);
  block.start();
  for (int step = 0; step < int(a.T); ++step) {
    for (int pass = 0; pass < gatewise::PASSES; ++pass) block.pass_of_step(step, pass);
    gatewise::step_barrier();
  }
}
