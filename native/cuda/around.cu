// What comes before and after the steps of a gradient call, in parallel over time.
#include "points.cuh"

using namespace gatewise;

// The state a step left, from what the forward call saved. A template, so that only cells that can restore it do.
template <class C>
__device__ __forceinline__ V state_after(const Arguments& a, i64 row, int d, int unit) {
  if constexpr (C::restores_state) {
    Gradient<V, G> v;
#pragma unroll
    for (int g = 0; g < G; ++g) v.gate[g] = read<E>(a.z_state, at_gate(a, row, d, g, unit));
    if constexpr (C::has_cell) v.c_next = read<E>(a.cell, at_unit(a, row, d, unit));
    C::restore(Activations{}, v);
    return v.h_next;
  } else {
    return read<E>(a.state, at_unit(a, row, d, unit));
  }
}

// Fills operand0, and operand1 for cells of two phases: what multiplied R at every step, zero where a row takes no part.
extern "C" __global__ void __launch_bounds__(256) operands(const __grid_constant__ Arguments a) {
  const i64 total = a.T * a.N * a.D * HP;
  const i64 stride = i64(gridDim.x) * blockDim.x;
  for (i64 i = i64(blockIdx.x) * blockDim.x + threadIdx.x; i < total; i += stride) {
    const int unit = i % HP, d = i / HP % a.D;
    const i64 row = i / HP / a.D, n = row % a.N, t = row / a.N;
    V first = V(0), second = V(0);
    const i64 length = length_of(a, n);
    if (unit < H && t < length) {
      const bool backwards = (a.backwards >> d) & 1;
      const i64 t_before = backwards ? t + 1 : t - 1;
      const bool came = t_before >= 0 && t_before < length;
      V h = V(0);
      if (!reset_at(a, t, n)) {
        if (!came) {
          h = initial(a, a.init_state, d, n, unit);
        } else {
          h = state_after<Cell>(a, t_before * a.N + n, d, unit);
        }
      }
      const V m = mask_at(a, t, n, d, unit);
      first = h * m;
      if constexpr (PHASES == 2) {  // the first phase's gradient gives the second one's operand again
        GradientPoint point;
        point.v = {};
#pragma unroll
        for (int g = 0; g < G; ++g) point.v.gate[g] = read<E>(a.z_state, at_gate(a, row, d, g, unit));
        point.v.h = h;
        point.v.m = m;
        Cell::template gradient<0>(Activations{}, point.v);
        second = point.v.operand;
      }
    }
    write<E>(a.operand0, i, first);
    if constexpr (PHASES == 2) write<E>(a.operand1, i, second);
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
  const i64 rows = a.T * a.N;
  V bias = V(0), peephole = V(0), second = V(0);
  if (column < columns) {
    for (i64 row = i64(blockIdx.y) * 8 + threadIdx.x / 32; row < rows; row += i64(gridDim.y) * 8) {
      const V du = E::load(a.du[((row * a.D + d) * G + slot) * HP + unit]);
      if (which & 1) bias += a.dx != nullptr ? E::load(a.dx[row * columns + column]) : du;
      if ((which & 4) && slot == SLOT[G - 1]) second += du;
      if constexpr (Cell::peephole) {
        if (which & 2) {
          const i64 n = row % a.N, t = row / a.N;
          const i64 length = length_of(a, n);
          V seen = V(0);
          if (t < length) {
            if (Cell::output_sees_new_cell && slot == SLOT[G - 1]) {
              seen = read<E>(a.cell, at_unit(a, row, d, unit));
            } else if (!reset_at(a, t, n)) {
              const i64 t_before = (a.backwards >> d) & 1 ? t + 1 : t - 1;
              const bool came = t_before >= 0 && t_before < length;
              seen = came ? read<E>(a.cell, at_unit(a, t_before * a.N + n, d, unit)) : initial(a, a.init_cell, d, n, unit);
            }
          }
          peephole += du * seen;
        }
      }
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
