// What the forward and the gradient kernel of the persistent family have in common: a block's place and its memory.
#pragma once
#include "product.cuh"

namespace gatewise {

// Shared memory, in this order; the planner computes the total (tiling.py, shared_bytes):
// - weights: each lane reads only what it wrote itself;
// - reduction: two buffers by turns. A product's sums are written, a barrier of the block, then read (product.cuh); they are
//   overwritten two products later, after the barrier of the product between. If FOLDED, one buffer: it is overwritten by the
//   next product, after the barrier of `handed_on`;
// - lengths: written once, before a barrier of the block;
// - carried values: each thread has its own;
// - buffers of the exchange on the chip (exchange.cuh).
// Barriers stand where all threads of the block come: no condition around one differs between threads.
constexpr int CARRIED = Cell::has_cell ? 2 : 1;  // values a unit carries from step to step

template <int PHASE>
constexpr int weights_room() {
  return WM * WK * Shape<PHASE>::shared * Shape<PHASE>::per_chunk * 16;
}
constexpr int WEIGHTS_BYTES = weights_room<0>() + (PHASES == 2 ? weights_room<LAST>() : 0);
constexpr int REDUCTION = reduction_size<0>() > reduction_size<LAST>() ? reduction_size<0>() : reduction_size<LAST>();
constexpr int REDUCTION_BYTES = (FOLDED ? 1 : 2) * REDUCTION * 8;
constexpr int LENGTHS_BYTES = PASSES * PASS_ROWS * 4;  // read at every step, from where it takes no time
constexpr bool CARRY_HELD = FOLDED && PAIRS == 1;  // in registers
constexpr int CARRY_BYTES = CARRY_HELD ? 0 : PAIRS * THREADS * 2 * CARRIED * 4;  // of a pass
template <int PHASE>
constexpr int exchange_room() {
  return ON_CHIP ? 2 * PASSES * PASS_ROWS * shared_pitch<PHASE>() : 0;
}
constexpr int EXCHANGE_BYTES = exchange_room<0>() + (PHASES == 2 ? exchange_room<LAST>() : 0);
static_assert(PHASES <= 2);
static_assert(WEIGHTS_BYTES + REDUCTION_BYTES + LENGTHS_BYTES + PASSES * CARRY_BYTES + EXCHANGE_BYTES == GATEWISE_SHARED_BYTES);

struct Block : Position {
  const Arguments& a;
  int warp, lane;
  int first_row;  // of the group
  char* room;
  float2* reduction;
  int* lengths;  // of the group's rows
  int parity;  // which of the two reduction buffers is next
  mutable float carried[CARRIED][2];  // if CARRY_HELD
  u32 handed;  // when the block last handed something on, in cycles
  Weights<0> first;
  Weights<LAST> last;  // the same as `first`, and unused, in a cell of one phase
  OperandRounds<0> ahead;  // of the next pass, if AHEAD

  __device__ __forceinline__ Block(const Arguments& arguments, char* memory)
      : Position(arguments, P), a(arguments), room(memory), parity(0), handed(0) {
    first_row = group * (PASSES * PASS_ROWS);
    warp = threadIdx.x / 32;
    lane = threadIdx.x % 32;
    uint4* own = reinterpret_cast<uint4*>(room) + warp * Shape<0>::shared * Shape<0>::per_chunk;
    first.load(a, d, p, warp, lane, own);
    if constexpr (PHASES == 2) {
      own = reinterpret_cast<uint4*>(room + weights_room<0>()) + warp * Shape<LAST>::shared * Shape<LAST>::per_chunk;
      last.load(a, d, p, warp, lane, own);
    }
    reduction = reinterpret_cast<float2*>(room + WEIGHTS_BYTES);
    lengths = reinterpret_cast<int*>(room + WEIGHTS_BYTES + REDUCTION_BYTES);
    if (given<LENGTHS>(a.lengths)) {
      for (int row = threadIdx.x; row < PASSES * PASS_ROWS; row += THREADS) {
        lengths[row] = first_row + row < int(a.N) ? length_of(a, first_row + row) : 0;
      }
      __syncthreads();
    }
  }

  template <int PHASE>
  __device__ __forceinline__ const auto& weights() const {
    if constexpr (PHASE == 0) {
      return first;
    } else {
      return last;
    }
  }

  // Carried value `which` of row `row` (0 or 1) of the thread's pair i.
  __device__ __forceinline__ float& carry(int pass, int i, int which, int row) const {
    if constexpr (CARRY_HELD) return carried[which][row];
    float* planes = reinterpret_cast<float*>(room + WEIGHTS_BYTES + REDUCTION_BYTES + LENGTHS_BYTES);
    return planes[(((pass * PAIRS + i) * CARRIED + which) * 2 + row) * THREADS + threadIdx.x];
  }

  // Shared memory of the on-chip exchange: two buffers of a group's rows for each phase.
  template <int PHASE>
  __device__ __forceinline__ u32 on_chip(int step) const {
    const u32 start = shared_address(room) + WEIGHTS_BYTES + REDUCTION_BYTES + LENGTHS_BYTES + PASSES * CARRY_BYTES;
    const u32 rows = u32(PASSES) * PASS_ROWS;
    const u32 before = PHASE == 0 ? 0 : 2 * rows * shared_pitch<0>();
    return start + before + u32(step & 1) * rows * shared_pitch<PHASE>();
  }

  // The operands of a phase's product in one pass.
  template <int PHASE>
  __device__ __forceinline__ Operands operands(int step, int pass) const {
    Operands o;
    const int row = pass * PASS_ROWS + lane / 4;
    o.k = (warp % WK) * Shape<PHASE>::chunks * CHUNK + lane % 4 * (4 * E::per_word);
    if constexpr (ON_CHIP) {
      o.from = nullptr;
      o.last = 0;
      o.address = on_chip<PHASE>(step) + row * shared_pitch<PHASE>() + o.k * 4 / E::per_word;
      o.tile_pitch = 8 * shared_pitch<PHASE>();
    } else {
      o.read_from<PHASE>(a, time(step), d, first_row + row);
    }
    return o;
  }

  // Hands over an operand word to this block and the others: row `row` of the group, element `k` of the phase's sums.
  template <int PHASE>
  __device__ __forceinline__ void hand_over(int step, int row, int k, u32 word) const {
    if constexpr (ON_CHIP) {
#if GATEWISE_EXCHANGE_ON_CHIP
      store_everywhere(on_chip<PHASE>(step) + row * shared_pitch<PHASE>() + k * 4 / E::per_word, rounded(word));
#endif
    } else {
      exchange_word<PHASE>(exchanged<PHASE>(a, time(step)), a, d, first_row + row, k, word);
    }
  }

  __device__ __forceinline__ int length(const Pair& pair, int pass, int row) const {
    return given<LENGTHS>(a.lengths) ? lengths[pass * PASS_ROWS + pair.row() + row] : int(a.T);
  }

  // Where row `row` of the thread's pair i is in a pass.
  __device__ __forceinline__ Spot spot(const Pair& pair, int pass, int row) const {
    return Spot(a, d, first_row + pass * PASS_ROWS + pair.row() + row, p * U + pair.unit());
  }

  // All of the block's words of a phase are on their way.
  __device__ __forceinline__ void handed_on() {
    if constexpr (!ON_CHIP && !AHEAD) {
      __syncthreads();
      handed = cycles();
    }
  }

  // Multiplies and leaves the warp's sums where `total` finds them. `next` are the operands of the next product.
  template <int PHASE>
  __device__ __forceinline__ const float2* multiply(Sums<PHASE>& sums, const Operands& o, const Operands& next) {
    if constexpr (AHEAD) {
      multiply_all<PHASE>(sums, weights<PHASE>(), o, ahead);
      ahead.start(next);
    } else {
      OperandRounds<PHASE> in;
      if constexpr (!ON_CHIP) {
        while (cycles() - handed < u32(a.look_after)) {
        }
      }
      in.start(o);
      multiply_all<PHASE>(sums, weights<PHASE>(), o, in);
    }
    float2* to = reduction + parity * REDUCTION;
    share_sums<PHASE>(sums, to);
    if constexpr (!FOLDED) parity ^= 1;
    return to;
  }
};

__device__ __forceinline__ void step_barrier() {
#if GATEWISE_EXCHANGE_ON_CHIP
  exchange_barrier();
#endif
}

}  // namespace gatewise
