// One launch runs all steps, with the products of wide.cuh.
#include "wide.cuh"

namespace gatewise {

struct ForwardBlock : WideBlock {
  using WideBlock::WideBlock;
  ForwardInputs inputs[POINTS];  // of the next step
  V h[POINTS], c[POINTS];        // carried

  // Padding units hand on zeros: they meet zero weights, and must not be NaN.
  __device__ __forceinline__ V padded(V operand) const { return pads() ? V(0) : operand; }

  __device__ __forceinline__ void fetch(int step) {
    const Moment now(a, time(step));
    const int t_next = time(step + 1 < int(a.T) ? step + 1 : step);
#pragma unroll
    for (int i = 0; i < POINTS; ++i) inputs[i].fetch(a, spot(i), now, t_next, length(i));
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
      operand[i] = padded((part.reset != 0 ? V(0) : h[i]) * E::load(part.mask));
    }
    hand_on(0, operand);
    fetch(0);
  }

  __device__ __forceinline__ void run_step(int step) {
    const Moment now(a, time(step));
    multiply(step);
    ForwardPoint points[POINTS];
    V operand[POINTS];
#pragma unroll
    for (int i = 0; i < POINTS; ++i) {
      points[i].prepare(inputs[i], now.t, h[i], c[i]);
#pragma unroll
      for (int g = 0; g < G; ++g) points[i].v.u[g] = sum(i, g);
      Cell::template forward<0>(Activations{}, points[i].v);
      operand[i] = padded(points[i].advance(h[i], c[i]));
    }
    const bool goes_on = step + 1 < int(a.T);
    if (goes_on) hand_on(step + 1, operand);
#pragma unroll
    for (int i = 0; i < POINTS; ++i) points[i].write_results(a, spot(i), now);
    if (goes_on) fetch(step + 1);
  }
};

}  // namespace gatewise

extern "C" __global__ void __launch_bounds__(256) pack(const __grid_constant__ gatewise::Arguments a) {
  gatewise::pack_weights(a);
}

// There are registers for 384 threads of 168; the workers take the bringer's.
extern "C" __global__ void __launch_bounds__(gatewise::THREADS, 1) run(const __grid_constant__ gatewise::Arguments a) {
  extern __shared__ __align__(128) char memory[];
  const gatewise::Ring ring(memory);
  ring.init();
  if (threadIdx.x >= gatewise::WORKERS) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
    if (threadIdx.x < gatewise::WORKERS + 32) gatewise::bring(a, ring);
    return;
  }
  asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
  gatewise::ForwardBlock block(a, memory);
  block.start();
  for (int step = 0; step < int(a.T); ++step) block.run_step(step);
}
