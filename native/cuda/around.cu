// What comes before and after the steps of a gradient call, in parallel over time. A thread takes WIDTH neighbouring units at a
// time, 16 bytes of every array, where H allows.
#include "points.cuh"

using namespace gatewise;

constexpr int WIDTH = GATEWISE_UNITS_AT_ONCE;
static_assert(HP % WIDTH == 0);
using Several = Units<E, WIDTH>;

struct Values {
  V at[WIDTH];

  Values() = default;
  __device__ __forceinline__ Values(const Several& s) {
#pragma unroll
    for (int j = 0; j < WIDTH; ++j) at[j] = s[j];
  }
};

// What a step found: `after` of the step before it, or what the row began with.
template <class Result, class After>
__device__ __forceinline__ Result found_by(const Arguments& a, const Spot& spot, int t, const PartOf<WIDTH>& part,
                                           const Storage<E>* start, After after) {
  const int t_before = (a.backwards >> spot.d) & 1 ? t + 1 : t - 1;
  if (t_before >= 0 && part.takes(t_before)) return after(Moment(a, t_before));
  return start == nullptr ? Several::fill(V(0)) : Several::read(start + spot.unit_at);
}

// The state a step left, from what the forward call saved. A template, so that only cells that can restore it do.
template <class C>
__device__ __forceinline__ Values state_after(const Arguments& a, const Spot& spot, const Moment& then) {
  if constexpr (C::restores_state) {
    Several gates[G], cells;
    Values states;
#pragma unroll
    for (int g = 0; g < G; ++g) gates[g] = Several::read(a.z_state + then.gates + spot.gate_at + SLOT[g] * H);
    if constexpr (C::has_cell) cells = Several::read(a.cell + then.units + spot.unit_at);
#pragma unroll
    for (int j = 0; j < WIDTH; ++j) {
      Gradient<V, G> v;
#pragma unroll
      for (int g = 0; g < G; ++g) v.gate[g] = gates[g][j];
      if constexpr (C::has_cell) v.c_next = cells[j];
      C::restore(Activations{}, v);
      states.at[j] = v.h_next;
    }
    return states;
  } else {
    return Several::read(a.state + then.units + spot.unit_at);
  }
}

// `Index` is as narrow as the size allows: divisions of 64-bit numbers would take longer than all the rest.
template <class Index>
__device__ __forceinline__ void fill_operands(const Arguments& a) {
  constexpr int PER_ROW = HP / WIDTH;
  const Index total = a.T * a.N * a.D * PER_ROW, stride = Index(gridDim.x) * blockDim.x, rows = a.N;
  for (Index i = Index(blockIdx.x) * blockDim.x + threadIdx.x; i < total; i += stride) {
    const Index place = i / PER_ROW, row = a.D == 2 ? place >> 1 : place, t = row / rows;
    const Spot spot(a, a.D == 2 ? place & 1 : 0, row - t * rows, i % PER_ROW * WIDTH, WIDTH);
    PartOf<WIDTH> part;
    part.fetch(a, spot, t, length_of(a, spot.n));
    Several first = Several::fill(V(0)), second = first;
    if (spot.real && part.takes(t)) {
      Values h(first);
      if (part.reset == 0) {
        h = found_by<Values>(a, spot, t, part, a.init_state,
                             [&](const Moment& then) { return state_after<Cell>(a, spot, then); });
      }
      const Several m = part.mask;
#pragma unroll
      for (int j = 0; j < WIDTH; ++j) first.at[j] = E::store(h.at[j] * m[j]);
      if constexpr (PHASES == 2) {  // the first phase's gradient gives the second one's operand again
        const Moment now(a, t);
        Several gates[G];
#pragma unroll
        for (int g = 0; g < G; ++g) gates[g] = Several::read(a.z_state + now.gates + spot.gate_at + SLOT[g] * H);
#pragma unroll
        for (int j = 0; j < WIDTH; ++j) {
          Gradient<V, G> v = {};
#pragma unroll
          for (int g = 0; g < G; ++g) v.gate[g] = gates[g][j];
          v.h = h.at[j];
          v.m = m[j];
          Cell::template gradient<0>(Activations{}, v);
          second.at[j] = E::store(v.operand);
        }
      }
    }
    first.write(a.operand0 + i64(i) * WIDTH);
    if constexpr (PHASES == 2) second.write(a.operand1 + i64(i) * WIDTH);
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

// The cells that a row's peepholes saw in a slot; zero where it takes no part.
__device__ __forceinline__ Several seen_cells(const Arguments& a, const Spot& spot, int t, int slot) {
  PartOf<WIDTH> part;
  part.fetch(a, spot, t, length_of(a, spot.n));
  if (!part.takes(t)) return Several::fill(V(0));
  if (Cell::output_sees_new_cell && slot == SLOT[G - 1]) return Several::read(a.cell + Moment(a, t).units + spot.unit_at);
  if (part.reset != 0) return Several::fill(V(0));
  return found_by<Several>(a, spot, t, part, a.init_cell,
                           [&](const Moment& then) { return Several::read(a.cell + then.units + spot.unit_at); });
}

constexpr int WARPS = 8, AHEAD = 4;  // warps of a block; rows whose values a thread requests before it adds any

// Columns of the three sums: bias [D, G, H], peephole [D, G, H], secondary bias [D, H]. Each block adds up the rows of its
// share for 32 * WIDTH columns, a row for each warp at a time; `partial` is [gridDim.y, 2 * D*G*H + D*H]. Fixed order: the
// same bits every time.
extern "C" __global__ void __launch_bounds__(32 * WARPS)
    column_sums(const __grid_constant__ Arguments a, float* partial_float, i64 which) {
  V* partial = reinterpret_cast<V*>(partial_float);
  __shared__ V sums[3][WARPS][32 * WIDTH];
  const int columns = int(a.D) * G * H, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int column = (blockIdx.x * 32 + lane) * WIDTH;
  const int d = column / (G * H), slot = column / H % G, unit = column % H;
  const bool wants_bias = which & 1, wants_second = (which & 4) && slot == SLOT[G - 1];
  // Row (t, n) and how far it is to the thread's next.
  const i64 rows = a.T * a.N, first = i64(blockIdx.y) * WARPS + warp, stride = i64(gridDim.y) * WARPS;
  int t = first / a.N, n = first % a.N;
  const int more_t = stride / a.N, more_n = stride % a.N;
  V bias[WIDTH] = {}, peephole[WIDTH] = {}, second[WIDTH] = {};
  for (i64 start = first; column < columns && start < rows; start += AHEAD * stride) {
    Several du[AHEAD], dx[AHEAD], seen[AHEAD];
#pragma unroll
    for (int k = 0; k < AHEAD; ++k) {
      const i64 row = start + k * stride;
      if (row >= rows) {
        du[k] = dx[k] = seen[k] = Several::fill(V(0));
        continue;
      }
      du[k] = Several::read(a.du + ((row * a.D + d) * G + slot) * HP + unit);
      dx[k] = a.dx != nullptr ? Several::read(a.dx + row * columns + column) : du[k];
      if constexpr (Cell::peephole) seen[k] = seen_cells(a, Spot(a, d, n, unit), t, slot);
      t += more_t, n += more_n;
      if (n >= int(a.N)) n -= int(a.N), ++t;
    }
#pragma unroll
    for (int k = 0; k < AHEAD; ++k) {
#pragma unroll
      for (int j = 0; j < WIDTH; ++j) {
        if (wants_bias) bias[j] += dx[k][j];
        if (wants_second) second[j] += du[k][j];
        if constexpr (Cell::peephole) peephole[j] += du[k][j] * seen[k][j];
      }
    }
  }
#pragma unroll
  for (int j = 0; j < WIDTH; ++j) {
    sums[0][warp][lane * WIDTH + j] = bias[j];
    sums[1][warp][lane * WIDTH + j] = peephole[j];
    sums[2][warp][lane * WIDTH + j] = second[j];
  }
  __syncthreads();
  V* to = partial + i64(blockIdx.y) * (2 * columns + a.D * H);
  for (int i = threadIdx.x; i < 32 * WIDTH && blockIdx.x * 32 * WIDTH + i < columns; i += blockDim.x) {
    const int mine = blockIdx.x * 32 * WIDTH + i;
#pragma unroll
    for (int s = 0; s < 3; ++s) {
      V sum = V(0);
      for (int w = 0; w < WARPS; ++w) sum += sums[s][w][i];
      if (s < 2) to[s * columns + mine] = sum;
      if (s == 2 && mine / H % G == SLOT[G - 1]) to[2 * columns + mine / (G * H) * H + mine % H] = sum;
    }
  }
}

// Adds the partial sums of `shares` blocks and writes the three results. A block has 32 columns, its warps divide the shares.
extern "C" __global__ void __launch_bounds__(32 * WARPS)
    finish_sums(const __grid_constant__ Arguments a, const float* partial_float, i64 shares, Storage<E>* bias,
                Storage<E>* peephole, Storage<E>* second) {
  __shared__ V sums[WARPS][32];
  const V* partial = reinterpret_cast<const V*>(partial_float);
  const i64 columns = a.D * G * H, width = 2 * columns + a.D * H;
  const i64 i = i64(blockIdx.x) * 32 + threadIdx.x % 32;
  V sum = V(0);
  for (i64 s = threadIdx.x / 32; i < width && s < shares; s += WARPS) sum += partial[s * width + i];
  sums[threadIdx.x / 32][threadIdx.x % 32] = sum;
  __syncthreads();
  if (threadIdx.x >= 32 || i >= width) return;
  for (int w = 1; w < WARPS; ++w) sum += sums[w][threadIdx.x];
  if (i < columns) {
    if (bias != nullptr) write<E>(bias, i, sum);
  } else if (i < 2 * columns) {
    if (peephole != nullptr) write<E>(peephole, i - columns, sum);
  } else if (second != nullptr) {
    write<E>(second, i - 2 * columns, sum);
  }
}
