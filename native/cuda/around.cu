// What comes before and after the steps of a gradient call, in parallel over time.
#include "points.cuh"

using namespace gatewise;

// The state a step left, from what the forward call saved. A template, so that only cells that can restore it do.
template <class C>
__device__ __forceinline__ V state_after(const Arguments& a, const Spot& spot, const Moment& then) {
  if constexpr (C::restores_state) {
    Gradient<V, G> v;
#pragma unroll
    for (int g = 0; g < G; ++g) v.gate[g] = read<E>(a.z_state, then.gates + spot.gate_at + SLOT[g] * H);
    if constexpr (C::has_cell) v.c_next = read<E>(a.cell, then.units + spot.unit_at);
    C::restore(Activations{}, v);
    return v.h_next;
  } else {
    return read<E>(a.state, then.units + spot.unit_at);
  }
}

// `Index` is as narrow as the size allows: divisions of 64-bit numbers would take longer than all the rest.
template <class Index>
__device__ __forceinline__ void fill_operands(const Arguments& a) {
  const Index total = a.T * a.N * a.D * HP, stride = Index(gridDim.x) * blockDim.x, rows = a.N;
  for (Index i = Index(blockIdx.x) * blockDim.x + threadIdx.x; i < total; i += stride) {
    const Index place = i / HP, row = a.D == 2 ? place >> 1 : place, t = row / rows;
    const Spot spot(a, a.D == 2 ? place & 1 : 0, row - t * rows, i % HP);
    Part part;
    part.fetch(a, spot, t, length_of(a, spot.n));
    V first = V(0), second = V(0);
    if (spot.real && int(t) < part.length) {
      const int t_before = (a.backwards >> spot.d) & 1 ? int(t) + 1 : int(t) - 1;
      const bool came = t_before >= 0 && t_before < part.length;
      V h = V(0);
      if (part.reset == 0) h = came ? state_after<Cell>(a, spot, Moment(a, t_before)) : initial(a.init_state, spot);
      const V m = E::load(part.mask);
      first = h * m;
      if constexpr (PHASES == 2) {  // the first phase's gradient gives the second one's operand again
        Gradient<V, G> v = {};
        const Moment now(a, t);
#pragma unroll
        for (int g = 0; g < G; ++g) v.gate[g] = read<E>(a.z_state, now.gates + spot.gate_at + SLOT[g] * H);
        v.h = h;
        v.m = m;
        Cell::template gradient<0>(Activations{}, v);
        second = v.operand;
      }
    }
    write<E>(a.operand0, i, first);
    if constexpr (PHASES == 2) write<E>(a.operand1, i, second);
  }
}

// Fills operand0, and operand1 for cells of two phases: what multiplied R at every step, zero where a row takes no part.
extern "C" __global__ void __launch_bounds__(256) operands(const __grid_constant__ Arguments a) {
  if (a.T * a.N * a.D * HP < 0x7f000000) {  // and a stride more still fits
    fill_operands<u32>(a);
  } else {
    fill_operands<i64>(a);
  }
}

// Columns of the three sums: bias [D, G, H], peephole [D, G, H], secondary bias [D, H]. Each block adds up the rows of
// its share for 32 columns at a time; `partial` is [gridDim.y, 2 * D*G*H + D*H]. Fixed order: the same bits every time.
extern "C" __global__ void __launch_bounds__(256) column_sums(const __grid_constant__ Arguments a, float* partial_float,
                                                              i64 which) {
  V* partial = reinterpret_cast<V*>(partial_float);
  __shared__ V sums[3][8][33];
  const int columns = int(a.D) * G * H;
  const int column = blockIdx.x * 32 + threadIdx.x % 32;
  const int d = column / (G * H), slot = column / H % G, unit = column % H;
  // Row (t, n) and how far it is to the thread's next.
  const i64 first = i64(blockIdx.y) * 8 + threadIdx.x / 32, stride = i64(gridDim.y) * 8;
  int t = first / a.N, n = first % a.N;
  const int more_t = stride / a.N, more_n = stride % a.N;
  V bias = V(0), peephole = V(0), second = V(0);
  if (column < columns) {
    for (i64 row = first; row < a.T * a.N; row += stride) {
      const V du = E::load(a.du[((row * a.D + d) * G + slot) * HP + unit]);
      if (which & 1) bias += a.dx != nullptr ? E::load(a.dx[row * columns + column]) : du;
      if ((which & 4) && slot == SLOT[G - 1]) second += du;
      if constexpr (Cell::peephole) {
        if (which & 2) {
          const Spot spot(a, d, n, unit);
          Part part;
          part.fetch(a, spot, t, length_of(a, spot.n));
          V seen = V(0);
          if (t < part.length) {
            if (Cell::output_sees_new_cell && slot == SLOT[G - 1]) {
              seen = read<E>(a.cell, Moment(a, t).units + spot.unit_at);
            } else if (part.reset == 0) {
              const int t_before = (a.backwards >> d) & 1 ? t + 1 : t - 1;
              const bool came = t_before >= 0 && t_before < part.length;
              seen = came ? read<E>(a.cell, Moment(a, t_before).units + spot.unit_at) : initial(a.init_cell, spot);
            }
          }
          peephole += du * seen;
        }
      }
      t += more_t, n += more_n;
      if (n >= int(a.N)) n -= int(a.N), ++t;
    }
  }
  sums[0][threadIdx.x / 32][threadIdx.x % 32] = bias;
  sums[1][threadIdx.x / 32][threadIdx.x % 32] = peephole;
  sums[2][threadIdx.x / 32][threadIdx.x % 32] = second;
  __syncthreads();
  if (threadIdx.x >= 32 || column >= columns) return;
  V* to = partial + i64(blockIdx.y) * (2 * columns + a.D * H);
#pragma unroll
  for (int s = 0; s < 3; ++s) {
    V sum = V(0);
    for (int i = 0; i < 8; ++i) sum += sums[s][i][threadIdx.x];
    if (s < 2) to[s * columns + column] = sum;
    if (s == 2 && slot == SLOT[G - 1]) to[2 * columns + d * H + unit] = sum;
  }
}

// Adds the partial sums of `shares` blocks and writes the three results.
extern "C" __global__ void __launch_bounds__(256) finish_sums(const __grid_constant__ Arguments a, const float* partial_float,
                                                              i64 shares, Storage<E>* bias, Storage<E>* peephole,
                                                              Storage<E>* second) {
  const V* partial = reinterpret_cast<const V*>(partial_float);
  const i64 columns = a.D * G * H, width = 2 * columns + a.D * H;
  const i64 i = i64(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= width) return;
  V sum = V(0);
  for (i64 s = 0; s < shares; ++s) sum += partial[s * width + i];
  if (i < columns) {
    if (bias != nullptr) write<E>(bias, i, sum);
  } else if (i < 2 * columns) {
    if (peephole != nullptr) write<E>(peephole, i - columns, sum);
  } else if (second != nullptr) {
    write<E>(second, i - 2 * columns, sum);
  }
}
