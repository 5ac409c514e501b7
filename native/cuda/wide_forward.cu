// One launch runs all steps, with the products of wide.cuh.
#include "wide.cuh"

namespace gatewise {

struct ForwardBlock : WideBlock {
  using WideBlock::WideBlock;
  ForwardInputsOf<WIDTH> inputs[POINTS / WIDTH];  // of the next step
  V h[POINTS], c[POINTS];  // carried

  __device__ __forceinline__ void hand_on_operands(u32 turn, const V (&operand)[POINTS]) const {
    hand_on(turn, [&](int i, int) { return pads(i) ? V(0) : operand[i]; });
  }

  __device__ __forceinline__ void fetch(int step) {
    const Moment now(a, time(step));
    const int t_next = time(step + 1 < int(a.T) ? step + 1 : step);
#pragma unroll
    for (int i = 0; i < POINTS; i += WIDTH) inputs[i / WIDTH].fetch(a, spot(i), now, t_next, length(i));
  }

  __device__ __forceinline__ void start() {
    V operand[POINTS];
#pragma unroll
    for (int i = 0; i < POINTS; ++i) {
      const Spot at = spot(i);
      Part part;
      part.fetch(a, at, time(0), length(i));
      h[i] = initial(a.init_state, at);
      c[i] = Cell::has_cell ? initial(a.init_cell, at) : V(0);
      operand[i] = (part.reset != 0 ? V(0) : h[i]) * part.mask[0];
    }
    hand_on_operands(0, operand);
    fetch(0);
  }

  __device__ __forceinline__ void run_step(int step) {
    const Moment now(a, time(step));
    multiply(step);
    take_constants(inputs);
    ForwardPoint points[POINTS];
#pragma unroll
    for (int i = 0; i < POINTS; ++i) points[i].prepare(inputs[i / WIDTH], now.t, h[i], c[i], i % WIDTH);
    float sums[GATE_SUMS][POINTS];
    collect(step, sums);
    V operand[POINTS];
#pragma unroll
    for (int i = 0; i < POINTS; ++i) {
#pragma unroll
      for (int g = 0; g < G; ++g) points[i].v.u[g] = sums[g][i];
      Cell::template forward<0>(Activations{}, points[i].v);
      operand[i] = points[i].advance(h[i], c[i]);
    }
    const bool goes_on = step + 1 < int(a.T);
    if (goes_on) hand_on_operands(step + 1, operand);
    // Asked anew: else the compiler would keep results apart from what is carried, and there are no registers for both.
#pragma unroll
    for (int i = 0; i < POINTS; ++i) points[i].active = takes(i, now.t);
#pragma unroll
    for (int i = 0; i < POINTS; i += WIDTH) write_results<WIDTH>(a, spot(i), now, points + i);
    if (goes_on) fetch(step + 1);
  }
};

}  // namespace gatewise

extern "C" __global__ void __launch_bounds__(256) pack(const __grid_constant__ gatewise::Arguments a) {
  gatewise::pack_weights(a);
}

extern "C" __global__ void __launch_bounds__(gatewise::THREADS, 1) run(const __grid_constant__ gatewise::Arguments a) {
  extern __shared__ __align__(128) char memory[];
  if (!gatewise::begin(a, memory, a.T)) return;
  gatewise::ForwardBlock block(a, memory);
  block.start();
  for (int step = 0; step < int(a.T); ++step) block.run_step(step);
}
