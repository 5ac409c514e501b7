// One launch runs all steps: R stays on the chip, the state goes from block to block (exchange.cuh).
#include "block.cuh"

namespace gatewise {

struct ForwardBlock : Block {
  using Block::Block;

  template <int PHASE>
  __device__ __forceinline__ Storage<E>* operand_array() const {
    return PHASE == 0 ? a.operand0 : a.operand1;
  }

  template <int PHASE>
  __device__ __forceinline__ void hand_pair(const Pair& pair, i64 pass, i64 t, i64 step, V first, V second) const {
    const int unit = p * U + pair.unit();
    const int row = int(pass) * PASS_ROWS + pair.row();
    hand_on<true>(first, second, lane, unit, [&](int which, int k, u32 word) {
      const i64 n = first_row + row + which;
      if (n < a.N) hand_over<PHASE>(operand_array<PHASE>(), ((t * a.N + n) * a.D + d) * HP + k, step, row + which, k, word);
    });
  }

  __device__ __forceinline__ void start() {
    const i64 t = time_of(a, d, 0);
    for (i64 pass = 0; pass < a.passes; ++pass) {
#pragma unroll
      for (int i = 0; i < PAIRS; ++i) {
        const Pair pair(i);
        if (!pair.exists) continue;
        V operand[2];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const i64 n = first_row + pass * PASS_ROWS + pair.row() + r;
          const int unit = p * U + pair.unit();
          const bool real = n < a.N && unit < H;
          const V h = real ? initial(a, a.init_state, d, n, unit) : V(0);
          carry(pass, i, 0, r) = h;
          if constexpr (Cell::has_cell) carry(pass, i, 1, r) = real ? initial(a, a.init_cell, d, n, unit) : V(0);
          operand[r] = real ? (reset_at(a, t, n) ? V(0) : h) * mask_at(a, t, n, d, unit) : V(0);
        }
        hand_pair<0>(pair, pass, t, 0, operand[0], operand[1]);
      }
    }
    step_barrier();
  }

  template <int PHASE>
  __device__ __forceinline__ void phase(ForwardPoint (&points)[PAIRS][2], i64 t, i64 step, i64 pass) {
    Sums<PHASE> sums;
    const float2* room = multiply<PHASE>(sums, operands<PHASE>(operand_array<PHASE>(), t, step, int(pass), HP, 0));
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
      for (int r = 0; r < 2; ++r) {
        if constexpr (PHASE == 0) {
          points[i][r].prepare(t, carry(pass, i, 0, r), Cell::has_cell ? carry(pass, i, CARRIED - 1, r) : V(0));
        }
        Cell::template forward<PHASE>(Activations{}, points[i][r].v);
      }
      if constexpr (PHASE < LAST) hand_pair<LAST>(pair, pass, t, step, points[i][0].v.operand, points[i][1].v.operand);
    }
    if constexpr (PHASE < LAST) step_barrier();
  }

  __device__ __forceinline__ void pass_of_step(i64 step, i64 pass) {
    const i64 t = time_of(a, d, step);
    const i64 t_next = step + 1 < a.T ? time_of(a, d, step + 1) : -1;
    ForwardPoint points[PAIRS][2];
#pragma unroll
    for (int i = 0; i < PAIRS; ++i) {
      const Pair pair(i);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const i64 n = first_row + pass * PASS_ROWS + pair.row() + r;
        const int unit = p * U + pair.unit();
        points[i][r] = {};
        if (pair.exists && n < a.N && unit < H) points[i][r].fetch(a, d, t, t_next < 0 ? t : t_next, n, unit);
      }
    }
    phase<0>(points, t, step, pass);
    if constexpr (PHASES == 2) phase<LAST>(points, t, step, pass);
#pragma unroll
    for (int i = 0; i < PAIRS; ++i) {
      const Pair pair(i);
      if (!pair.exists) continue;
      V operand[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        V h = carry(pass, i, 0, r), c = Cell::has_cell ? carry(pass, i, CARRIED - 1, r) : V(0);
        operand[r] = points[i][r].advance(h, c);
        if (p * U + pair.unit() >= H) operand[r] = V(0);
        carry(pass, i, 0, r) = h;
        if constexpr (Cell::has_cell) carry(pass, i, 1, r) = c;
      }
      if (t_next >= 0) hand_pair<0>(pair, pass, t_next, step + 1, operand[0], operand[1]);
    }
#pragma unroll
    for (int i = 0; i < PAIRS; ++i) {
      const Pair pair(i);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const i64 n = first_row + pass * PASS_ROWS + pair.row() + r;
        const int unit = p * U + pair.unit();
        if (pair.exists && n < a.N && unit < H) points[i][r].write_results(a, d, t, n, unit);
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
  gatewise::ForwardBlock block(a, memory);
  block.start();
  for (gatewise::i64 step = 0; step < a.T; ++step) {
    for (gatewise::i64 pass = 0; pass < a.passes; ++pass) block.pass_of_step(step, pass);
    gatewise::step_barrier();
  }
}
