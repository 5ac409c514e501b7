// One launch runs all steps from the last to the first, with the products of wide.cuh.
#include "wide.cuh"

namespace gatewise {

struct GradientBlock : WideBlock {
  using WideBlock::WideBlock;
  GradientInputsOf<WIDTH> inputs[POINTS / WIDTH];  // of the next step
  V dh[POINTS], dc[POINTS];  // carried

  __device__ __forceinline__ void fetch(int step) {
    const Moment now(a, time(step));
    const int t_before = step > 0 ? time(step - 1) : -1;
    const int t_later = time(step + 1 < int(a.T) ? step + 1 : step);
#pragma unroll
    for (int i = 0; i < POINTS; i += WIDTH) inputs[i / WIDTH].fetch(a, spot(i), now, t_before, t_later, length(i));
  }

  // Adds to the carried gradient what came through the product of the later step, at time t.
  __device__ __forceinline__ void cross(u32 turn, int t) {
    float sums[1][POINTS];
    collect(turn, sums);
#pragma unroll
    for (int i = 0; i < POINTS; ++i) dh[i] = inputs[i / WIDTH].cross(t, dh[i], sums[0][i], i % WIDTH);
  }

  __device__ __forceinline__ void start() {
#pragma unroll
    for (int i = 0; i < POINTS; ++i) {
      dh[i] = initial(a.state_gradient, spot(i));
      dc[i] = Cell::has_cell ? initial(a.cell_gradient, spot(i)) : V(0);
    }
    fetch(int(a.T) - 1);
  }

  __device__ __forceinline__ void run_step(int step) {
    const Moment now(a, time(step));
    const u32 turn = int(a.T) - 1 - step;  // of the product its results go into
    if (turn > 0) {
      multiply(turn - 1);
      cross(turn - 1, time(step + 1));
    }
    take_constants(inputs);
    GradientPoint points[POINTS];
    V du[G][POINTS];
#pragma unroll
    for (int i = 0; i < POINTS; ++i) {
      points[i].prepare(inputs[i / WIDTH], now.t, dh[i], dc[i], i % WIDTH);
      Cell::template gradient<0>(Activations{}, points[i].v);
#pragma unroll
      for (int g = 0; g < G; ++g) du[g][i] = points[i].active && !pads(i) ? points[i].v.du[g] : V(0);
      points[i].retreat(dh[i], dc[i]);
    }
    hand_on(turn, [&](int i, int gate) { return du[gate][i]; });
    Storage<E>* results = a.du + i64(now.t) * (u32(a.N) * u32(a.D) * (G * HP));
#pragma unroll
    for (int i = 0; i < POINTS; i += 2) {
      const u32 n = group * ROWS + row(i);
      if (n >= u32(a.N)) continue;
      Storage<E>* to = results + ((n * u32(a.D) + d) * (G * HP) + p * U + unit(i));
#pragma unroll
      for (int g = 0; g < G; ++g) *reinterpret_cast<u32*>(to + SLOT[g] * HP) = E::word(du[g][i], du[g][i + 1]);
    }
#pragma unroll
    for (int i = 0; i < POINTS; i += WIDTH) write_dx<0, WIDTH>(a, spot(i), now, points + i);
    if (step > 0) fetch(step - 1);
  }

  // What is left after the first step reaches the initial state and cell.
  __device__ __forceinline__ void finish() {
    multiply(int(a.T) - 1);
#pragma unroll
    for (int i = 0; i < POINTS; i += WIDTH) inputs[i / WIDTH].later.fetch(a, spot(i), time(0), length(i));
    cross(int(a.T) - 1, time(0));
#pragma unroll
    for (int i = 0; i < POINTS; ++i) {
      const Spot at = spot(i);
      if (!at.real) continue;
      if (a.init_state_gradient != nullptr) a.init_state_gradient[at.unit_at] = E::store(dh[i]);
      if constexpr (Cell::has_cell) {
        if (a.init_cell_gradient != nullptr) a.init_cell_gradient[at.unit_at] = E::store(dc[i]);
      }
    }
  }
};

}  // namespace gatewise

extern "C" __global__ void __launch_bounds__(256) pack(const __grid_constant__ gatewise::Arguments a) {
  gatewise::pack_weights(a);
}

extern "C" __global__ void __launch_bounds__(gatewise::THREADS, 1) run(const __grid_constant__ gatewise::Arguments a) {
  extern __shared__ __align__(128) char memory[];
  const bool finishes = a.init_state_gradient != nullptr || a.init_cell_gradient != nullptr;
  if (!gatewise::begin(a, memory, a.T - 1 + finishes)) return;
  gatewise::GradientBlock block(a, memory);
  block.start();
  for (int step = int(a.T) - 1; step >= 0; --step) block.run_step(step);
  if (finishes) block.finish();
}
