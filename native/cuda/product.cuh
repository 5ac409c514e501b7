// The recurrent product of a block on the tensor cores: weights from registers, shared memory and L2, operands from the
// exchange, sums in float32, added over warps in a fixed order.
#pragma once
#include "exchange.cuh"

namespace gatewise {

template <class Element>
struct TensorCore;

#define GATEWISE_MMA(ELEMENT, INSTRUCTION)                                                                            \
  template <>                                                                                                         \
  struct TensorCore<ELEMENT> {                                                                                        \
    static __device__ __forceinline__ void multiply(float (&acc)[4], const uint4& a, u32 b0, u32 b1) {                \
      asm volatile(INSTRUCTION " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"                               \
                   : "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[2]), "+f"(acc[3])                                           \
                   : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));                                       \
    }                                                                                                                 \
  };
GATEWISE_MMA(Bfloat16, "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32")
GATEWISE_MMA(Float16, "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32")
GATEWISE_MMA(Float, "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32")
#undef GATEWISE_MMA

// A warp's weights of one phase.
template <int PHASE>
struct Weights {
  using S = Shape<PHASE>;
  uint4 held[S::held ? S::held : 1][S::tiles][2];
  const uint4* shared;    // this lane's, [chunk][tile][half] 32 apart
  const uint4* streamed;  // the same for the chunks that follow

  // Copies the block's share in; `room` is the warp's place in shared memory.
  __device__ __forceinline__ void load(const Arguments& a, int d, int p, int warp, int lane, uint4* room) {
    const uint4* from = a.weights + weights_at<PHASE>(d, p) + i64(warp) * S::chunks * S::per_chunk + lane;
#pragma unroll
    for (int c = 0; c < S::held; ++c) {
#pragma unroll
      for (int i = 0; i < S::tiles * 2; ++i) held[c][i / 2][i % 2] = from[(c * S::tiles * 2 + i) * 32];
    }
    from += S::held * S::per_chunk;
    shared = room + lane;
    for (int i = 0; i < S::shared * S::tiles * 2; ++i) room[i * 32 + lane] = from[i * 32];
    streamed = from + S::shared * S::per_chunk;
  }

  __device__ __forceinline__ uint4 get(int c, int tile, int half) const {
    const int at = (tile * 2 + half) * 32;
    if (c < S::held) return held[c < S::held ? c : 0][tile][half];
    if (c < S::held + S::shared) return shared[(c - S::held) * S::per_chunk + at];
    return __ldg(streamed + (c - S::held - S::shared) * S::per_chunk + at);
  }
};

template <int PHASE>
using Sums = float[Shape<PHASE>::tiles][NT][4];

template <int PHASE>
__device__ __forceinline__ void clear(Sums<PHASE>& sums) {
#pragma unroll
  for (int i = 0; i < Shape<PHASE>::tiles * NT * 4; ++i) sums[i / (NT * 4)][i / 4 % NT][i % 4] = 0.0f;
}

// Adds the warp's chunk c times its operands.
template <int PHASE>
__device__ __forceinline__ void multiply_chunk(Sums<PHASE>& sums, const Weights<PHASE>& weights, int c, const uint4 (&operands)[NT]) {
#pragma unroll
  for (int i = 0; i < Shape<PHASE>::tiles * 2; ++i) {
    const uint4 w = weights.get(c, i / 2, i % 2);
#pragma unroll
    for (int n = 0; n < NT; ++n) {
      const uint4& o = operands[n];
      TensorCore<E>::multiply(sums[i / 2][n], w, i % 2 ? o.z : o.x, i % 2 ? o.w : o.y);
    }
  }
}

// Operands are read in rounds of DEPTH chunks, STAGES rounds in flight.
constexpr int DEPTH = NT >= 3 ? 1 : NT == 2 ? 2 : 4;
constexpr int STAGES = NT >= 3 ? 3 : 2;
// Where a block has several passes, the first operands of a pass are read before the pass before it has ended.
constexpr bool AHEAD = !ON_CHIP && PASSES > 1 && PHASES == 1;

template <int PHASE>
struct OperandRounds {
  using S = Shape<PHASE>;
  static constexpr int rounds = (S::chunks + DEPTH - 1) / DEPTH;
  uint4 b[STAGES][DEPTH][NT];

  __device__ __forceinline__ void fetch(const Operands& operands, int round) {
#pragma unroll
    for (int i = 0; i < DEPTH * NT; ++i) {
      const int c = round * DEPTH + i / NT;
      if (c < S::chunks) b[round % STAGES][i / NT][i % NT] = operands.template load<PHASE>(c, i % NT);
    }
  }
  // The rounds that are started before the first is looked at.
  __device__ __forceinline__ void start(const Operands& operands) {
#pragma unroll
    for (int round = 0; round < STAGES - 1; ++round) fetch(operands, round);
  }
  // Waits until a round's words are there. What was too early is read again together, and with it what is in flight of
  // the rounds after: read again one by one, each would cost a trip to L2.
  __device__ __forceinline__ void complete(const Operands& operands, int round) {
    if constexpr (!ON_CHIP) {
      for (u32 tries = 0;; ++tries) {
        bool missing = false;
#pragma unroll
        for (int i = 0; i < DEPTH * NT; ++i) {
          if (round * DEPTH + i / NT < S::chunks) missing |= is_empty(b[round % STAGES][i / NT][i % NT]);
        }
        if (!__any_sync(0xffffffffu, missing)) break;
        if (tries == PATIENCE) __trap();
#pragma unroll
        for (int i = 0; i < STAGES * DEPTH * NT; ++i) {
          const int r = round + i / (DEPTH * NT), c = r * DEPTH + i / NT % DEPTH;
          uint4& w = b[r % STAGES][i / NT % DEPTH][i % NT];
          if (c < S::chunks && is_empty(w)) w = operands.template load<PHASE>(c, i % NT);
        }
      }
    }
  }
};

// The sums of a warp, from operands that have been started.
template <int PHASE>
__device__ __forceinline__ void multiply_all(Sums<PHASE>& sums, const Weights<PHASE>& weights, const Operands& operands,
                                             OperandRounds<PHASE>& in) {
  using S = Shape<PHASE>;
  clear<PHASE>(sums);
#pragma unroll
  for (int round = 0; round < in.rounds; ++round) {
    if (round + STAGES - 1 < in.rounds) in.fetch(operands, round + STAGES - 1);
    in.complete(operands, round);
#pragma unroll
    for (int j = 0; j < DEPTH; ++j) {
      const int c = round * DEPTH + j;
      if (c < S::chunks) multiply_chunk<PHASE>(sums, weights, c, in.b[round % STAGES][j]);
    }
  }
}

// A thread works on *pairs*: one unit and two neighbouring rows of the batch, which is how sums come out.
constexpr int PAIRS_OF_BLOCK = UT * NT * 64;
constexpr int PAIRS = WK == 1 ? UTW * NT * 2 : (PAIRS_OF_BLOCK + THREADS - 1) / THREADS;

struct Pair {
  int unit_tile, column_tile, half, lane;
  bool exists;

  __device__ __forceinline__ explicit Pair(int i) {
    if constexpr (WK == 1) {
      unit_tile = threadIdx.x / 32 * UTW + i / (2 * NT);
      column_tile = i / 2 % NT;
      half = i % 2;
      lane = threadIdx.x % 32;
      exists = true;
    } else {
      const int q = threadIdx.x + i * THREADS;
      lane = q % 32;
      half = q / 32 % 2;
      column_tile = q / 64 % NT;
      unit_tile = q / (64 * NT);
      exists = q < PAIRS_OF_BLOCK;  // the same for a whole warp
    }
  }
  __device__ __forceinline__ int unit() const { return unit_tile * 16 + half * 8 + lane / 4; }    // of the block
  __device__ __forceinline__ int row() const { return column_tile * 8 + 2 * (lane % 4); }         // of the pass
};

// float2 [part][tile][column tile][half][lane], for each of the WM.
template <int PHASE>
constexpr int reduction_size() {
  return WK == 1 ? 0 : WM * PARTS * Shape<PHASE>::tiles * NT * 64;
}

template <int PHASE>
__device__ __forceinline__ void share_sums(const Sums<PHASE>& sums, float2* room) {
  if constexpr (WK > 1) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, part = warp / WK * PARTS + warp % PARTS;
    float2* to = room + part * Shape<PHASE>::tiles * NT * 64 + lane;
    const auto put = [&](bool add) {
#pragma unroll
      for (int i = 0; i < Shape<PHASE>::tiles * NT * 2; ++i) {
        const auto& sum = sums[i / (2 * NT)][i / 2 % NT];
        float2 value = make_float2(sum[i % 2 * 2], sum[i % 2 * 2 + 1]);
        if (add) value.x += to[i * 32].x, value.y += to[i * 32].y;
        to[i * 32] = value;
      }
    };
    const bool adds = FOLDED && warp % WK < PARTS;  // to what the other warp of its part has written
    if (!adds) put(false);
    if constexpr (FOLDED) {
      __syncthreads();
      if (adds) put(true);
    }
    __syncthreads();
  }
}

// The total of a pair for the gate at place `gate` of the phase.
template <int PHASE>
__device__ __forceinline__ float2 total(const Sums<PHASE>& sums, const float2* room, const Pair& pair, int i, int gate) {
  constexpr int per_unit_tile = BACKWARD ? 1 : Shape<PHASE>::gates;
  if constexpr (WK == 1) {
    const int tile = i / (2 * NT) * per_unit_tile + gate, n = i / 2 % NT;
    return make_float2(sums[tile][n][i % 2 * 2], sums[tile][n][i % 2 * 2 + 1]);
  } else {
    const int wm = pair.unit_tile / UTW, tile = pair.unit_tile % UTW * per_unit_tile + gate;
    constexpr int per_warp = Shape<PHASE>::tiles * NT * 64;
    const float2* from = room + wm * PARTS * per_warp + ((tile * NT + pair.column_tile) * 2 + pair.half) * 32 + pair.lane;
    float2 sum = from[0];
#pragma unroll
    for (int part = 1; part < PARTS; ++part) {
      const float2 more = from[part * per_warp];
      sum.x += more.x;
      sum.y += more.y;
    }
    return sum;
  }
}

}  // namespace gatewise
