// One launch runs all steps, as persistent_forward.cu does, with the same exchange through device memory (exchange.cuh). But some
// warps multiply and others do the maths, and the rows of a group come in two halves that take *turns*: while the operands of
// one half are on their way from block to block, the other half is multiplied.
//
// All warps that multiply take part in every turn, and divide the sums over k. Each half has warps of its own for the maths.
// The parts of the sums go from the ones to the others through shared memory, one turn at a time:
// - parts are written when the sums of the turn before have been `taken` by all who need them;
// - sums are added up, always in the same order, when all their parts are `there`.
// Both are barriers in shared memory; `there` is one for each half, so that nobody waits past a turn of the other half's. Every
// thread arrives for what it wrote or read itself.
//
// Warps that multiply first look for operands some time after their own block `handed` on its part of them (exchange.cuh): a
// third barrier, and the clock. The clock of the next step is written after its readers' parts of this one are `there`.
#include "product.cuh"
#include "warp_groups.cuh"

namespace gatewise {

using S = Shape<0>;
constexpr int HALF = PASS_ROWS;                       // rows
constexpr int HALF_THREADS = GATEWISE_MATHS_THREADS;  // that do the maths of a half
constexpr int PLACES = UT * NT * 2;                   // of 32 pairs: one unit and two neighbouring rows
constexpr int OWN = (PLACES * 32 + HALF_THREADS - 1) / HALF_THREADS;  // pairs of a thread
static_assert(PHASES == 1 && WM == 1 && PASSES == 2 && !ON_CHIP && !FOLDED && !BACKWARD);

// Shared memory, in this order; the planner computes the total (relay_tiling.py):
// - weights: each lane reads only what it wrote itself;
// - parts of the sums, [part][place][two gates][lane][2 gates][2 rows], then those of an odd last gate;
// - barriers and clocks.
constexpr int QUADS = PLACES * (G / 2) * 32;
constexpr int PART_BYTES = QUADS * 16 + PLACES * (G % 2) * 32 * 8;
constexpr int PARTS_AT = WK * S::shared * S::per_chunk * 16;
constexpr int BARRIERS_AT = PARTS_AT + WK * PART_BYTES;
constexpr int CLOCKS_AT = BARRIERS_AT + 5 * 8;
static_assert(CLOCKS_AT + 2 * 4 == GATEWISE_SHARED_BYTES);

struct RelayBlock : Position {
  const Arguments& a;
  char* room;
  int warp, lane;
  int first_row;  // of the group

  __device__ __forceinline__ RelayBlock(const Arguments& arguments, char* memory)
      : Position(arguments, P), a(arguments), room(memory) {
    first_row = group * (2 * HALF);
    warp = threadIdx.x / 32;
    lane = threadIdx.x % 32;
  }

  __device__ __forceinline__ void prepare() const {
    if (threadIdx.x < 2) {
      barrier_init(there(threadIdx.x), THREADS);
      barrier_init(handed(threadIdx.x), 1);
    }
    if (threadIdx.x == 0) barrier_init(taken(), HALF_THREADS);
    __syncthreads();
  }

  __device__ __forceinline__ u32 there(int half) const { return shared_address(room) + BARRIERS_AT + half * 8; }
  __device__ __forceinline__ u32 handed(int half) const { return there(2 + half); }
  __device__ __forceinline__ u32 taken() const { return there(4); }
  __device__ __forceinline__ u32& clock_of(int half) const { return reinterpret_cast<u32*>(room + CLOCKS_AT)[half]; }
  // The sums of two gates, or of the last, of a place: the lane's.
  __device__ __forceinline__ float4& quad(int part, int place, int gates) const {
    return reinterpret_cast<float4*>(room + PARTS_AT + part * PART_BYTES)[(place * (G / 2) + gates) * 32 + lane];
  }
  __device__ __forceinline__ float2& odd(int part, int place) const {
    return reinterpret_cast<float2*>(room + PARTS_AT + part * PART_BYTES + QUADS * 16)[place * 32 + lane];
  }
};

// The warps that multiply.
struct Multiplier : RelayBlock {
  using RelayBlock::RelayBlock;
  Weights<0> weights;

  // Reads the operands when they are there. What was too early is read again together. While they are on their way, the sums of
  // the turn before are taken.
  __device__ __forceinline__ void read(uint4 (&words)[S::chunks][NT], int step, int half) const {
    Operands from;
    from.k = warp * (S::chunks * CHUNK) + lane % 4 * (4 * E::per_word);
    from.read_from<0>(a, time(step), d, first_row + half * HALF + lane / 4);
    barrier_wait(handed(half), step & 1);
    const u32 since = clock_of(half);
    while (cycles() - since < u32(a.look_after)) {
    }
#pragma unroll
    for (int i = 0; i < S::chunks * NT; ++i) words[i / NT][i % NT] = from.load<0>(i / NT, i % NT);
    if (step + half > 0) barrier_wait(taken(), 1 - half);
    for (u32 tries = 0;; ++tries) {
      bool missing = false;
#pragma unroll
      for (int i = 0; i < S::chunks * NT; ++i) missing |= is_empty(words[i / NT][i % NT]);
      if (!__any_sync(0xffffffffu, missing)) return;
      if (tries == PATIENCE) __trap();
#pragma unroll
      for (int i = 0; i < S::chunks * NT; ++i) {
        uint4& w = words[i / NT][i % NT];
        if (is_empty(w)) w = from.load<0>(i / NT, i % NT);
      }
    }
  }

  __device__ __forceinline__ void put(const Sums<0>& sums) const {
#pragma unroll
    for (int place = 0; place < PLACES; ++place) {
      const int first = place / (2 * NT) * G, n = place / 2 % NT, r = place % 2 * 2;  // tiles of the unit tile, column tile, row
#pragma unroll
      for (int g = 0; g < G / 2; ++g) {
        const auto &x = sums[first + 2 * g][n], &y = sums[first + 2 * g + 1][n];
        quad(warp, place, g) = make_float4(x[r], x[r + 1], y[r], y[r + 1]);
      }
      if constexpr (G % 2) odd(warp, place) = make_float2(sums[first + G - 1][n][r], sums[first + G - 1][n][r + 1]);
    }
  }

  __device__ __forceinline__ void turn(int step, int half) const {
    uint4 operands[S::chunks][NT];
    read(operands, step, half);
    Sums<0> sums;
    clear<0>(sums);
#pragma unroll
    for (int c = 0; c < S::chunks; ++c) multiply_chunk<0>(sums, weights, c, operands[c]);
    put(sums);
    barrier_arrive(there(half));
  }

  __device__ __forceinline__ void run() {
    weights.load(a, d, p, warp, lane, reinterpret_cast<uint4*>(room) + warp * S::shared * S::per_chunk);
    for (int step = 0; step < int(a.T); ++step) {
      turn(step, 0);
      turn(step, 1);
    }
  }
};

// The warps that do the maths of one half.
struct Calculator : RelayBlock {
  int half, thread;
  // Of the next step: on their way while the results of this one are written. Lengths stay here too: read from shared memory
  // among these loads, they took 0.4 us of a step.
  ForwardInputs inputs[OWN][2];
  V h[OWN][2], c[OWN][2];  // carried

  __device__ __forceinline__ Calculator(const Arguments& arguments, char* memory) : RelayBlock(arguments, memory) {
    half = (threadIdx.x - THREADS) / HALF_THREADS;
    thread = threadIdx.x % HALF_THREADS;
  }

  // The thread's pair i. Those that do not exist are the same for a whole warp.
  __device__ __forceinline__ int place(int i) const { return thread / 32 + i * (HALF_THREADS / 32); }
  __device__ __forceinline__ bool exists(int i) const { return PLACES % (HALF_THREADS / 32) == 0 || place(i) < PLACES; }
  __device__ __forceinline__ int unit(int i) const { return p * U + place(i) / (2 * NT) * 16 + place(i) % 2 * 8 + lane / 4; }
  __device__ __forceinline__ int row(int i) const { return half * HALF + place(i) / 2 % NT * 8 + lane % 4 * 2; }
  __device__ __forceinline__ Spot spot(int i, int r) const { return Spot(a, d, first_row + row(i) + r, unit(i)); }

  // The operands of a step. Padding units hand on zeros: they meet zero weights, and must not be NaN.
  __device__ __forceinline__ void hand(int step, const V (&operand)[OWN][2]) const {
    u32* to = exchanged<0>(a, time(step));
#pragma unroll
    for (int i = 0; i < OWN; ++i) {
      if (!exists(i)) continue;
      const bool pads = HP != H && unit(i) >= H;
      hand_on(pads ? V(0) : operand[i][0], pads ? V(0) : operand[i][1], lane, unit(i), [&](int which, int k, u32 word) {
        const u32 n = u32(first_row + row(i) + which);
        if (n < u32(a.N)) exchange_word<0>(to, a, d, n, k, word);
      });
    }
    if (thread == 0) {
      clock_of(half) = cycles();
      barrier_arrive(handed(half));
    }
  }

  __device__ __forceinline__ void fetch(int step) {
    const Moment now(a, time(step));
    const int t_next = time(step + 1 < int(a.T) ? step + 1 : step);
#pragma unroll
    for (int i = 0; i < OWN * 2; ++i) {
      if (exists(i / 2)) inputs[i / 2][i % 2].fetch_of_step(a, spot(i / 2, i % 2), now, t_next);
    }
  }

  __device__ __forceinline__ void start() {
    V operand[OWN][2];
#pragma unroll
    for (int i = 0; i < OWN; ++i) {
      if (!exists(i)) continue;
      inputs[i][0].constants.fetch(a, spot(i, 0));
      inputs[i][1] = inputs[i][0];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const Spot at = spot(i, r);
        Part& part = inputs[i][r].next;
        part.fetch(a, at, time(0), length_of(a, at.n));
        h[i][r] = initial(a.init_state, at);
        c[i][r] = Cell::has_cell ? initial(a.init_cell, at) : V(0);
        operand[i][r] = (part.reset != 0 ? V(0) : h[i][r]) * part.mask[0];
      }
    }
    hand(0, operand);
    fetch(0);
  }

  // The sums of a pair, those of all parts added up.
  __device__ __forceinline__ void add_up(int i, ForwardPoint (&points)[2]) const {
    float sums[G][2] = {};
#pragma unroll
    for (int part = 0; part < WK; ++part) {
#pragma unroll
      for (int g = 0; g < G / 2; ++g) {
        const float4 more = quad(part, place(i), g);
        sums[2 * g][0] += more.x, sums[2 * g][1] += more.y, sums[2 * g + 1][0] += more.z, sums[2 * g + 1][1] += more.w;
      }
      if constexpr (G % 2) {
        const float2 more = odd(part, place(i));
        sums[G - 1][0] += more.x, sums[G - 1][1] += more.y;
      }
    }
#pragma unroll
    for (int g = 0; g < 2 * G; ++g) points[g % 2].v.u[g / 2] = sums[g / 2][g % 2];
  }

  __device__ __forceinline__ void run_step(int step) {
    const Moment now(a, time(step));
    ForwardPoint points[OWN][2];
    V operand[OWN][2];
#pragma unroll
    for (int i = 0; i < OWN * 2; ++i) {
      const int pair = i / 2, r = i % 2;
      if (exists(pair)) points[pair][r].prepare(inputs[pair][r], now.t, h[pair][r], c[pair][r]);
    }
    barrier_wait(there(half), step & 1);
#pragma unroll
    for (int i = 0; i < OWN; ++i) {
      if (exists(i)) add_up(i, points[i]);
    }
    barrier_arrive(taken());
#pragma unroll
    for (int i = 0; i < OWN * 2; ++i) {
      const int pair = i / 2, r = i % 2;
      if (!exists(pair)) continue;
      Cell::template forward<0>(Activations{}, points[pair][r].v);
      operand[pair][r] = points[pair][r].advance(h[pair][r], c[pair][r]);
    }
    const bool goes_on = step + 1 < int(a.T);
    if (goes_on) {
      hand(step + 1, operand);
      fetch(step + 1);
    }
#pragma unroll
    for (int i = 0; i < OWN * 2; ++i) {
      if (exists(i / 2)) write_results(a, spot(i / 2, i % 2), now, &points[i / 2][i % 2]);
    }
  }
};

}  // namespace gatewise

extern "C" __global__ void __launch_bounds__(256) pack(const __grid_constant__ gatewise::Arguments a) {
  gatewise::pack_phase<0>(a);
}

extern "C" __global__ void __launch_bounds__(gatewise::THREADS + 2 * gatewise::HALF_THREADS, 1)
    run(const __grid_constant__ gatewise::Arguments a) {
  extern __shared__ __align__(16) char memory[];
  gatewise::RelayBlock(a, memory).prepare();
  // There are registers for 512 threads of 128; those that multiply take some of the others'.
  if (threadIdx.x < gatewise::THREADS) {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 160;");
    gatewise::Multiplier(a, memory).run();
  } else {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 96;");
    gatewise::Calculator block(a, memory);
    block.start();
    for (int step = 0; step < int(a.T); ++step) block.run_step(step);
  }
}
