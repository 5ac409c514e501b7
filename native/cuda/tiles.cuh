// How a persistent kernel is cut: which units, rows and parts of the sums each warp owns. All of it is known when the
// kernel is compiled; the planner chooses the macros.
//
// A *group* of P blocks holds all of one direction's R and runs some rows of the batch through all steps. A block owns
// U units with all their gates. On the tensor cores the weights are the 16-row operand and the batch is the 8-column
// one, so that small batches waste little. A *unit tile* is 16 units: one 16-row tile for each gate of a phase, so that
// all gates of a unit end in the same place. Warps divide a block's unit tiles (WM ways) and the sums over k (WK ways).
//
// Sums run over *chunks* of 64 bytes: in a chunk each of the 4 lanes that share a column holds 16 contiguous bytes,
// which feed two tensor core instructions. That order of k differs from the instruction's own, and the weights are
// packed to match; so operands are read with plain 16-byte loads and need no staging.
#pragma once
#include "points.cuh"

namespace gatewise {

constexpr bool BACKWARD = GATEWISE_BACKWARD;
constexpr int U = GATEWISE_UNITS;
constexpr int P = GATEWISE_BLOCKS;  // in a group
constexpr int WM = GATEWISE_WARPS_M;
constexpr int WK = GATEWISE_WARPS_K;
constexpr int NT = GATEWISE_COLUMN_TILES;  // of 8 rows of the batch, in one pass
constexpr int PASSES = GATEWISE_PASSES;         // over the rows of a block, in every step
constexpr int THREADS = 32 * WM * WK;
constexpr int UT = U / 16;
constexpr int UTW = UT / WM;  // unit tiles of a warp
constexpr int PASS_ROWS = NT * 8;
constexpr int WORDS = 16;                             // of a chunk
constexpr int CHUNK = WORDS * E::per_word;            // elements of a chunk
constexpr bool ON_CHIP = GATEWISE_EXCHANGE_ON_CHIP;   // operands go through shared memory of the block or the cluster
// Warps add up their sums in two steps, in half the memory and one buffer instead of two: room for more weights.
constexpr bool FOLDED = GATEWISE_FOLDED;
constexpr int PARTS = FOLDED ? WK / 2 : WK;  // of a sum that are left to add when it is used
static_assert(!FOLDED || (WK % 2 == 0 && !ON_CHIP && PASSES == 1));
static_assert(U % 16 == 0 && UT % WM == 0 && HP == P * U);

constexpr int HELD[] = {GATEWISE_HELD_CHUNKS};      // per phase: chunks of a warp's weights kept in registers
constexpr int SHARED[] = {GATEWISE_SHARED_CHUNKS};  // ... in shared memory; the rest streams from L2 at every step

template <int PHASE>
struct Shape {
  static constexpr int gates = Cell::gate_count[PHASE];
  static constexpr int k = BACKWARD ? gates * HP : HP;  // length of the sums
  static constexpr int tiles = BACKWARD ? UTW : UTW * gates;
  static constexpr int chunks = ((k + CHUNK - 1) / CHUNK + WK - 1) / WK;  // of a warp
  static constexpr int held = HELD[PHASE];
  static constexpr int shared = SHARED[PHASE];
  static constexpr int streamed = chunks - held - shared;
  static constexpr int per_chunk = tiles * 2 * 32;  // uint4 of a warp
  static constexpr i64 per_block = i64(WM) * WK * chunks * per_chunk;
  static_assert(streamed >= 0);
};

// Where a block's packed weights of a phase start, in uint4.
template <int PHASE>
__device__ __forceinline__ i64 weights_at(int d, int p) {
  constexpr i64 whole = Shape<0>::per_block + (PHASES == 2 ? Shape<PHASES - 1>::per_block : 0);
  return (i64(d) * P + p) * whole + (PHASE == 0 ? 0 : Shape<0>::per_block);
}

// The element of R that multiplies operand element k in row `row` (0..15) of a warp's tile; zero in the padding.
template <int PHASE>
__device__ __forceinline__ V weight(const Arguments& a, int d, int p, int wm, int tile, int row, int k) {
  constexpr int gates = Shape<PHASE>::gates;
  const int unit = p * U + (wm * UTW + (BACKWARD ? tile : tile / gates)) * 16 + row;
  if (unit >= H || k >= Shape<PHASE>::k) return V(0);
  const int gate_slot = BACKWARD ? first_slot<PHASE>() + k / HP : SLOT[Cell::first_gate[PHASE] + tile % gates];
  const int other = BACKWARD ? k % HP : k;
  if (other >= H) return V(0);
  const i64 from = BACKWARD ? other : unit, to = BACKWARD ? unit : other;
  return read<E>(a.recurrent_weight, ((i64(d) * G + gate_slot) * H + from) * H + to);
}

template <int PHASE>
__device__ __forceinline__ u32 weight_word(const Arguments& a, int d, int p, int wm, int tile, int row, int word) {
  if constexpr (E::per_word == 1) {
    return tf32(weight<PHASE>(a, d, p, wm, tile, row, word));
  } else {
    return E::word(weight<PHASE>(a, d, p, wm, tile, row, 2 * word), weight<PHASE>(a, d, p, wm, tile, row, 2 * word + 1));
  }
}

template <int PHASE>
__device__ void pack_phase(const Arguments& a) {
  using S = Shape<PHASE>;
  const i64 total = a.D * P * S::per_block;
  const i64 stride = i64(gridDim.x) * blockDim.x;
  for (i64 i = i64(blockIdx.x) * blockDim.x + threadIdx.x; i < total; i += stride) {
    i64 rest = i;
    const int lane = rest % 32;
    rest /= 32;
    const int half = rest % 2;
    rest /= 2;
    const int tile = rest % S::tiles;
    rest /= S::tiles;
    const int chunk = rest % S::chunks;
    rest /= S::chunks;
    const int wk = rest % WK;
    rest /= WK;
    const int wm = rest % WM;
    rest /= WM;
    const int p = rest % P, d = rest / P;
    const int row = lane / 4, word = (wk * S::chunks + chunk) * WORDS + 4 * (lane % 4) + 2 * half;
    uint4 packed;
    packed.x = weight_word<PHASE>(a, d, p, wm, tile, row, word);
    packed.y = weight_word<PHASE>(a, d, p, wm, tile, row + 8, word);
    packed.z = weight_word<PHASE>(a, d, p, wm, tile, row, word + 1);
    packed.w = weight_word<PHASE>(a, d, p, wm, tile, row + 8, word + 1);
    a.weights[weights_at<PHASE>(d, p) + i % S::per_block] = packed;
  }
}

}  // namespace gatewise
