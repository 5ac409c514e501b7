// How the blocks of a group hand each other the operands of the next product.
//
// Through device memory, `Arguments::exchange`. The operands of a step lie in *pieces* of 8 rows times a chunk, which a warp
// reads at once: whole lines side by side come several times as fast as parts of many. (With fewer rows in all, all of them
// are in one smaller piece.) The contract:
// - Before the kernel starts, on the same stream (so also in a captured graph, at every replay), the engine fills the array
//   with EMPTY words. Its memory is this call's alone until the kernel has ended.
// - Every 32-bit word of the rows that exist, padding units included, is written exactly once, by one thread, with one
//   store. A block owns multiples of 16 units, so no word is shared between blocks.
// - No result is stored as EMPTY: it is a NaN in every element type, and `not_empty` stores another NaN for it.
// - A reader takes a word when it is no longer EMPTY. A 16-byte load may find some of its words written and others not:
//   each word is looked at by itself, so order among words does not matter and no fence is needed. Both sides are
//   relaxed at the scope of the GPU, so a word is never torn and never kept in L1.
// - Words that are read too early are read again, a whole trip to L2 later, and the reads of many blocks hold up the writes they
//   wait for. All blocks hand on at about the same time, so a block first looks a while after it has handed on itself
//   (`Arguments::look_after`): when is a matter of speed, never of results.
// - Nothing else that one block writes is read by another in the same kernel.
// - Readers of rows past the last read the last one's, which their own group writes. All blocks run at once, since the
//   launch is cooperative; if a word still never comes, PATIENCE ends the kernel.
//
// On the chip. Every block writes its words into the shared memory of all blocks of its cluster:
// - A barrier of the cluster comes before the first of these writes, since a block may begin after another, and after the
//   last of them before a block ends, since its memory ends with it.
// - A barrier lies between the writes of a step's words and their reads. There are two buffers for each phase: a step's
//   words overwrite those of two steps before, whose readers have since passed the barrier of the step between.
// - Rows past the last are never written and may hold anything; each reaches only its own column of sums, which nobody uses.
#pragma once
#include "tiles.cuh"
#include "words.cuh"

namespace gatewise {

__device__ __forceinline__ u32 cycles() {
  u32 now;
  asm volatile("mov.u32 %0, %%clock;" : "=r"(now)::"memory");
  return now;
}

constexpr int LAST = PHASES - 1;
constexpr u32 PIECE_ROWS = GATEWISE_PIECE_ROWS;
constexpr u32 PIECE = PIECE_ROWS * WORDS;  // words

// Of a row's operands.
template <int PHASE>
constexpr u32 chunks_of() {
  return (Shape<PHASE>::k + CHUNK - 1) / CHUNK;
}

// Of a direction: as many as have a piece for each chunk.
__device__ __forceinline__ u32 row_sets(const Arguments& a) { return (u32(a.N) + PIECE_ROWS - 1) / PIECE_ROWS; }

// The operands of a phase at an input time, and the place of a word in them: [direction][set of rows][chunk][row][word].
template <int PHASE>
__device__ __forceinline__ u32* exchanged(const Arguments& a, int t) {
  constexpr u32 whole = chunks_of<0>() + (PHASES == 2 ? chunks_of<LAST>() : 0), before = PHASE == 0 ? 0 : chunks_of<0>();
  return a.exchange + i64(t) * (u32(a.D) * row_sets(a) * (whole * PIECE)) + u32(a.D) * row_sets(a) * (before * PIECE);
}
template <int PHASE>
__device__ __forceinline__ u32 word_at(const Arguments& a, int d, u32 n, u32 k) {
  const u32 set = d * row_sets(a) + n / PIECE_ROWS;
  return (set * chunks_of<PHASE>() + k / CHUNK) * PIECE + n % PIECE_ROWS * WORDS + k % CHUNK / E::per_word;
}

// Bytes between rows in shared memory: 64 more than a multiple of 128, so that two rows' chunks lie in different banks.
template <int PHASE>
constexpr int shared_pitch() {
  const int bytes = ((Shape<PHASE>::k + CHUNK - 1) / CHUNK) * 64;
  return bytes % 128 == 64 ? bytes : bytes + 64;
}

#if GATEWISE_EXCHANGE_ON_CHIP
__device__ __forceinline__ void store_everywhere(u32 address, u32 word) {
  if constexpr (P == 1) {
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(word) : "memory");
  } else {
#pragma unroll
    for (int rank = 0; rank < P; ++rank) {
      u32 there;
      asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
      asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(there), "r"(word) : "memory");
    }
  }
}

__device__ __forceinline__ void exchange_barrier() {
  if constexpr (P == 1) {
    __syncthreads();
  } else {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
  }
}
#endif

// The operands of one product as one lane reads them: chunk `c` of the warp, column tile `n`.
struct Operands {
  const u32* from;  // the lane's first words in device memory, or null
  u32 address;      // the same in shared memory
  u32 tile_pitch;   // words, or bytes in shared memory, between column tiles
  u32 last;         // device memory: words from the first row to the last that exists; column tiles past it read that one again
  int k;            // the lane's first operand element

  // Those of a direction at an input time, from row n on.
  template <int PHASE>
  __device__ __forceinline__ void read_from(const Arguments& a, int t, int d, u32 n) {
    const u32 end = u32(a.N) - 1, at = word_at<PHASE>(a, d, n < end ? n : end, k);
    from = exchanged<PHASE>(a, t) + at;
    address = 0;
    tile_pitch = chunks_of<PHASE>() * PIECE;
    last = word_at<PHASE>(a, d, end, k) - at;
  }

  template <int PHASE>
  __device__ __forceinline__ uint4 load(int c, int n) const {
    // Only the last warp can reach past the end of the sums, and only if they are no multiple of all its chunks.
    constexpr bool has_tail = Shape<PHASE>::chunks * WK * CHUNK != Shape<PHASE>::k;
    if (has_tail && k + c * CHUNK >= Shape<PHASE>::k) return make_uint4(0, 0, 0, 0);
    if constexpr (ON_CHIP) {
      uint4 w;
      asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
                   : "=r"(w.x), "=r"(w.y), "=r"(w.z), "=r"(w.w)
                   : "r"(address + n * tile_pitch + c * 64)
                   : "memory");
      return w;
    } else {
      const u32 at = n * tile_pitch;
      return load_relaxed(from + (at < last ? at : last) + c * PIECE);
    }
  }
};

// A word as the tensor cores take it.
__device__ __forceinline__ u32 rounded(u32 word) { return E::per_word == 1 ? tf32(__uint_as_float(word)) : word; }

// Stores a word of a phase where the blocks of its group will read it; `to` is `exchanged`.
template <int PHASE>
__device__ __forceinline__ void exchange_word(u32* to, const Arguments& a, int d, u32 n, u32 k, u32 word) {
  store_relaxed(to + word_at<PHASE>(a, d, n, k), not_empty(rounded(word)));
}

// Hands on two values of one unit, for rows n and n + 1, calling store(row (0 or 1), first unit of the word, word).
// Words of two elements need the neighbouring unit, which lane ^ 4 holds; all lanes of the warp must come here.
template <class Store>
__device__ __forceinline__ void hand_on(V first, V second, int lane, int unit, Store store) {
  if constexpr (E::per_word == 1) {
    store(0, unit, __float_as_uint(first));
    store(1, unit, __float_as_uint(second));
  } else {
    const bool odd = (lane >> 2) & 1;
    const float got = __shfl_xor_sync(0xffffffffu, odd ? first : second, 4);
    store(odd ? 1 : 0, unit & ~1, odd ? E::word(got, second) : E::word(first, got));
  }
}

}  // namespace gatewise
