// Persistent kernels for steps with much work: the products run on Hopper's warp group instructions.
//
// A *group* of P blocks holds all of one direction's R and runs ROWS rows of the batch through all steps. R is the tall
// operand: forward its rows are gates of units; for gradients it is transposed, and they are units. The batch is the wide one.
//
// A *slice* is 128 of those rows. PARTS blocks share a slice and divide the sums over k. Each owns U of the slice's units: it
// is sent the parts of their sums that the others have, does the maths, and hands the results on to all as operands of the
// next product. The two warp groups of a block divide the rows. A warp has a *tile* of 16: units, or one gate of 16 units (the
// fourth warp has nothing to do for cells of three gates).
//
// Weights lie in shared memory, and what does not fit (HELD *fragments* of 16 k) in registers. Operands come from the other
// blocks through device memory, laid out as the instructions take them. One more thread, the *bringer*, looks for them and
// has them copied into a ring of *strips* of 64 k in shared memory, while strips before are multiplied, and results written.
//
// The contract of the exchange of operands:
// - Products are numbered; their operands lie in two buffers by turns. A block writes its chunk, its threads meet, and one of
//   them adds to the counter of the part of k that the chunk is in, releasing what all have written. The bringer acquires it
//   when all blocks of that part have. Counters are zero before the kernel starts.
// - A block hands on operands s + 2, in the buffer of s, only after product s + 1. That took everybody's operands s + 1, or
//   sums that others made of them: every block of the slice has some part of k, together they have all. Nobody hands on
//   operands s + 1 before its own product s, so all have read operands s.
// The contract of the exchange of sums, where PARTS > 1:
// - They are words that are their own flags (words.cuh), in two buffers by turns, EMPTY before the kernel starts. Their owner
//   empties them when it has read them, before it hands on, which releases that.
// - A block writes sums s + 2 only after product s + 2, whose operands somebody computed from sums s + 1 of all parts, and they
//   were computed from everybody's operands s + 1: so all have read, and emptied, their sums s. Sums need no fence for that:
//   nothing made of them can be there before them.
// All blocks run at once, since the launch is cooperative; what never comes ends the kernel (PATIENCE).
#pragma once
#include "points.cuh"
#include "warp_groups.cuh"
#include "words.cuh"

namespace gatewise {

constexpr bool BACKWARD = GATEWISE_BACKWARD;
constexpr int ROWS = GATEWISE_ROWS;
constexpr int PARTS = GATEWISE_PARTS;
constexpr int RING = GATEWISE_RING;
constexpr int HELD = GATEWISE_HELD;
constexpr int WORKERS = 256;            // threads of the two warp groups
constexpr int THREADS = WORKERS + 128;  // and of the bringer's, whose other threads leave at once
constexpr int SLICE = BACKWARD ? 128 : 32;  // units
constexpr int SLICES = HP / SLICE;
constexpr int P = SLICES * PARTS;
constexpr int U = SLICE / PARTS;
constexpr int DEPTH = BACKWARD ? G : 1;  // operands of a unit
constexpr int CHUNK = DEPTH * U;         // operands a block hands on for a row, [gate][unit]
constexpr int K = SLICES * CHUNK;        // of a part: so many blocks hand it on
constexpr int STRIP = 64;
constexpr int STRIPS = K / STRIP;
constexpr int FRAGMENTS = K / 16;  // of a warp group's weights
constexpr int FRAGMENT_BYTES = 64 * 16 * 2;
constexpr int STRIP_BYTES = STRIP * ROWS * 2;
constexpr int NT = ROWS / 8;      // column tiles
constexpr int OWN = 8 / PARTS;    // tiles whose sums a block owns
constexpr int GATE_TILES = BACKWARD ? 1 : 4;  // of 16 units
constexpr int GATE_SUMS = BACKWARD ? 1 : G;   // of a unit
constexpr int TILE_QUADS = NT * 32;
constexpr int QUADS = U / 16 * TILE_QUADS / WORKERS;  // of a thread
constexpr int POINTS = 4 * QUADS;
constexpr int WIDTH = H % 2 == 0 ? 2 : 1;  // neighbouring units that are read and written together
static_assert(PHASES == 1 && G > 1 && G <= 4 && E::per_word == 2);
static_assert(HP % SLICE == 0 && K % STRIP == 0 && OWN % GATE_TILES == 0 && QUADS * WORKERS == U / 16 * TILE_QUADS);
static_assert(HELD <= FRAGMENTS);

// Shared memory, in this order; the planner computes the total (wide_tiling.py):
// - weights of each warp group that are not held in registers;
// - the ring;
// - sums, if PARTS is 1. Written after a product, then the workers meet, then read; they are overwritten after the next
//   product, when the workers have met to hand on;
// - constants of the units, and lengths of the rows, written once: registers are scarcer;
// - barriers: a strip has come, and has been read, for each place in the ring.
constexpr int SHARED = FRAGMENTS - HELD;
constexpr int WEIGHTS_BYTES = 2 * SHARED * FRAGMENT_BYTES;
constexpr int SUMS_AT = WEIGHTS_BYTES + RING * STRIP_BYTES;
constexpr int CONSTANTS_AT = SUMS_AT + (PARTS == 1 ? 8 * TILE_QUADS * 16 : 0);
constexpr int LENGTHS_AT = CONSTANTS_AT + ConstantsOf<1>::COUNT * U * 2;
constexpr int BARRIERS_AT = LENGTHS_AT + ROWS * 4;
static_assert(BARRIERS_AT + RING * 16 == GATEWISE_SHARED_BYTES);

// Of the threads that work.
__device__ __forceinline__ void workers_meet() { asm volatile("bar.sync 1, %0;" ::"n"(WORKERS) : "memory"); }

__device__ __forceinline__ void await_count(const u32* counter, u32 wanted) {
  for (u32 tries = 0;; ++tries) {
    u32 count;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(count) : "l"(counter) : "memory");
    if (count >= wanted) return;
    if (tries == PATIENCE) __trap();
  }
}

// The weight of a row of a block's slice (0 to 127) at a k of its part; zero in the padding.
__device__ __forceinline__ V weight(const Arguments& a, int d, int p, int row, int k) {
  const int tile = row / 16, in_tile = row % 8 * 2 + row % 16 / 8;  // a thread's two rows are neighbouring units
  const int of_row = p / PARTS * SLICE + tile / GATE_TILES * 16 + in_tile;
  const int of_k = (p % PARTS * SLICES + k / CHUNK) * U + k % U;
  const int gate = BACKWARD ? k % CHUNK / U : tile % 4;
  if (gate >= G || of_row >= H || of_k >= H) return V(0);
  const i64 first = (i64(d) * G + SLOT[gate < G ? gate : 0]) * H;
  return read<E>(a.recurrent_weight, BACKWARD ? (first + of_k) * H + of_row : (first + of_row) * H + of_k);
}

// How many of the fragments before this one are held: they are spread evenly, since the instructions take them slower.
__host__ __device__ constexpr int held_before(int fragment) { return fragment * HELD / FRAGMENTS; }
__host__ __device__ constexpr bool is_held(int fragment) { return held_before(fragment + 1) > held_before(fragment); }

// Packed weights: [direction][block][warp group][fragment][128 uint4]. Those to be held lie as the lanes hold them, the others
// as they lie in shared memory.
__device__ __forceinline__ i64 weights_at(int d, int p, int warps) { return ((i64(d) * P + p) * 2 + warps) * FRAGMENTS * 128; }

__device__ __forceinline__ void pack_weights(const Arguments& a) {
  const i64 total = a.D * P * 2 * FRAGMENTS * 128, stride = i64(gridDim.x) * blockDim.x;
  for (i64 at = i64(blockIdx.x) * blockDim.x + threadIdx.x; at < total; at += stride) {
    const int i = at % 128, fragment = at / 128 % FRAGMENTS;
    const i64 rest = at / (128 * FRAGMENTS);
    const int warps = rest % 2, p = rest / 2 % P, d = rest / (2 * P);
    const auto word = [&](int row, int more) {
      const int k = fragment * 16 + more;
      return E::word(weight(a, d, p, warps * 64 + row, k), weight(a, d, p, warps * 64 + row, k + 1));
    };
    if (is_held(fragment)) {
      const int row = i / 32 * 16 + i % 32 / 4, more = 2 * (i % 4);
      a.weights[at] = make_uint4(word(row, more), word(row + 8, more), word(row, more + 8), word(row + 8, more + 8));
    } else {
      const int row = i % 64, more = i / 64 * 8;
      a.weights[at] = make_uint4(word(row, more), word(row, more + 2), word(row, more + 4), word(row, more + 6));
    }
  }
}

// A block's group: the operands of a product, [k / 8][row][k % 8], and how many blocks have handed on each part of them.
__device__ __forceinline__ u32* operands_of(const Arguments& a, u32 turn) {
  const i64 groups = gridDim.x / P;  // of both directions
  return a.exchange + ((turn & 1) * groups + blockIdx.x / P) * (PARTS * K * ROWS / 2);
}
__device__ __forceinline__ u32* counter_of(const Arguments& a, int part) { return a.counters + blockIdx.x / P * PARTS + part; }

// The sums that a block is sent: [part][own tile][quad].
__device__ __forceinline__ uint4* sums_of(const Arguments& a, u32 turn, u32 block) {
  return a.parts + ((turn & 1) * i64(gridDim.x) + block) * (8 * TILE_QUADS);
}

// The ring in shared memory. Strips are numbered through all products.
struct Ring {
  u32 slots, barriers;

  __device__ __forceinline__ explicit Ring(char* room) {
    slots = shared_address(room) + WEIGHTS_BYTES;
    barriers = shared_address(room) + BARRIERS_AT;
  }
  __device__ __forceinline__ u32 at(u32 number) const { return slots + number % RING * STRIP_BYTES; }
  __device__ __forceinline__ u32 come(u32 number) const { return barriers + number % RING * 16; }
  __device__ __forceinline__ u32 was_read(u32 number) const { return come(number) + 8; }

  __device__ __forceinline__ void init() const {
    if (threadIdx.x < RING) {
      barrier_init(come(threadIdx.x), 1);
      barrier_init(was_read(threadIdx.x), WORKERS / 32);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    __syncthreads();
  }
};

// The bringer, one thread, for this many products. It must be quick about starting the copies.
__device__ __forceinline__ void bring(const Arguments& a, const Ring& ring, u32 products) {
  const int part = blockIdx.x % PARTS;
  for (u32 turn = 0; turn < products; ++turn) {
    await_count(counter_of(a, part), SLICES * (turn + 1));
    before_copies();
    const u32* operands = operands_of(a, turn) + part * (K * ROWS / 2);
#pragma unroll
    for (int strip = 0; strip < STRIPS; ++strip) {
      const u32 number = turn * STRIPS + strip;
      if (number >= RING) barrier_wait(ring.was_read(number), (number / RING - 1) & 1);
      barrier_expect(ring.come(number), STRIP_BYTES);
      copy_in(ring.at(number), operands + strip * (STRIP_BYTES / 4), STRIP_BYTES, ring.come(number));
    }
  }
}

// A block's weights, its products, the places of its points. Points come in *quads*, as the instructions leave sums: two
// neighbouring units times two neighbouring rows of the batch, the unit changing first.
struct WideBlock : Position {
  const Arguments& a;
  char* room;
  Ring ring;
  int warps, warp, lane;  // the warp group, and the warp in it
  u32 held[HELD > 0 ? HELD : 1][4];

  __device__ __forceinline__ WideBlock(const Arguments& arguments, char* memory)
      : Position(arguments, P), a(arguments), room(memory), ring(memory) {
    warps = threadIdx.x / 128;
    warp = threadIdx.x / 32 % 4;
    lane = threadIdx.x % 32;
    const uint4* from = a.weights + weights_at(d, p, warps) + threadIdx.x % 128;
    uint4* to = reinterpret_cast<uint4*>(room) + warps * SHARED * 128 + threadIdx.x % 128;
#pragma unroll
    for (int i = 0; i < FRAGMENTS; ++i) {
      const uint4 w = __ldg(from + i * 128);
      if (is_held(i)) {
        u32(&kept)[4] = held[held_before(i) < HELD ? held_before(i) : 0];
        kept[0] = w.x, kept[1] = w.y, kept[2] = w.z, kept[3] = w.w;
      } else {
        to[(i - held_before(i)) * 128] = w;
      }
    }
    if (threadIdx.x < U) {
      ConstantsOf<1> one;
      one.fetch(a, Spot(a, d, 0, p * U + threadIdx.x));
      one.template put<U>(constants() + threadIdx.x);
    }
    if (given<LENGTHS>(a.lengths)) {
      for (int row = threadIdx.x; row < ROWS; row += WORKERS) {
        const int n = group * ROWS + row;
        lengths()[row] = n < int(a.N) ? length_of(a, n) : 0;
      }
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // the instructions will read the weights
    workers_meet();
  }

  __device__ __forceinline__ Storage<E>* constants() const { return reinterpret_cast<Storage<E>*>(room + CONSTANTS_AT); }
  __device__ __forceinline__ int* lengths() const { return reinterpret_cast<int*>(room + LENGTHS_AT); }

  // The thread's point i: a unit of the block, which has sets of 16, and a row of the group.
  __device__ __forceinline__ int set(int quad) const { return (quad * WORKERS + int(threadIdx.x)) / TILE_QUADS; }
  __device__ __forceinline__ int in_set(int quad) const { return (quad * WORKERS + int(threadIdx.x)) % TILE_QUADS; }
  __device__ __forceinline__ int unit(int i) const { return set(i / 4) * 16 + lane / 4 * 2 + i % 2; }
  __device__ __forceinline__ int row(int i) const { return in_set(i / 4) / 32 * 8 + lane % 4 * 2 + i % 4 / 2; }
  __device__ __forceinline__ int length(int i) const { return given<LENGTHS>(a.lengths) ? lengths()[row(i)] : int(a.T); }
  __device__ __forceinline__ bool takes(int i, int t) const { return !given<LENGTHS>(a.lengths) || t < length(i); }
  __device__ __forceinline__ Spot spot(int i) const { return Spot(a, d, group * ROWS + row(i), p * U + unit(i), WIDTH); }
  __device__ __forceinline__ bool pads(int i) const { return HP != H && p * U + unit(i) >= H; }
  template <class Inputs>
  __device__ __forceinline__ void take_constants(Inputs (&inputs)[POINTS / WIDTH]) const {
#pragma unroll
    for (int i = 0; i < POINTS; i += WIDTH) inputs[i / WIDTH].constants.template take<U>(constants() + unit(i));
  }

  // A product; its sums are on their way to their owners when it returns.
  __device__ __forceinline__ void multiply(u32 turn) const {
    float sums[NT * 4];
    const u32 weights = shared_address(room) + warps * SHARED * FRAGMENT_BYTES;
#pragma unroll
    for (int strip = 0; strip < STRIPS; ++strip) {
      const u32 number = turn * STRIPS + strip;
      barrier_wait(ring.come(number), (number / RING) & 1);
      __syncwarp();
      group_begin();
#pragma unroll
      for (int part = 0; part < STRIP / 16; ++part) {
        const int fragment = strip * (STRIP / 16) + part;
        const u64 columns = matrix_at(ring.at(number) + part * (16 * ROWS * 2), ROWS * 16);
        const int kept = held_before(fragment);
        if (is_held(fragment)) {
          WarpGroup<E, ROWS>::multiply(sums, held[kept < HELD ? kept : 0], columns, fragment > 0);
        } else {
          const u64 rows = matrix_at(weights + (fragment - kept) * FRAGMENT_BYTES, 1024);
          WarpGroup<E, ROWS>::multiply(sums, rows, columns, fragment > 0);
        }
      }
      group_commit();
      if (strip > 0) {
        group_wait<1>();
        if (lane == 0) barrier_arrive(ring.was_read(number - 1));
      }
    }
    group_wait<0>();
    if (lane == 0) barrier_arrive(ring.was_read(turn * STRIPS + STRIPS - 1));
    __syncwarp();
    if (warp % GATE_TILES < GATE_SUMS) {
      const int tile = warps * 4 + warp;
      uint4* to = PARTS == 1 ? reinterpret_cast<uint4*>(room + SUMS_AT) : sums_of(a, turn, blockIdx.x - p % PARTS + tile / OWN);
      to += (p % PARTS * OWN + tile % OWN) * TILE_QUADS + lane;
#pragma unroll
      for (int i = 0; i < NT; ++i) {
        const uint4 quad = make_uint4(__float_as_uint(sums[4 * i]), __float_as_uint(sums[4 * i + 1]),
                                      __float_as_uint(sums[4 * i + 2]), __float_as_uint(sums[4 * i + 3]));
        if constexpr (PARTS == 1) {
          to[i * 32] = quad;
        } else {
          store_relaxed(&to[i * 32].x, not_empty(quad));
        }
      }
    }
    if constexpr (PARTS == 1) workers_meet();
  }

  // The sums of the thread's points, those of all parts added up in their order.
  __device__ __forceinline__ void collect(u32 turn, float (&sums)[GATE_SUMS][POINTS]) const {
    uint4 words[QUADS][GATE_SUMS][PARTS];
    uint4* from = PARTS == 1 ? reinterpret_cast<uint4*>(room + SUMS_AT) : sums_of(a, turn, blockIdx.x);
    const auto place = [&](int quad, int gate, int part) {
      return from + (part * OWN + set(quad) * GATE_TILES + gate) * TILE_QUADS + in_set(quad);
    };
#pragma unroll
    for (int i = 0; i < QUADS * GATE_SUMS * PARTS; ++i) {
      const int part = i % PARTS, gate = i / PARTS % GATE_SUMS, quad = i / (PARTS * GATE_SUMS);
      uint4* at = place(quad, gate, part);
      words[quad][gate][part] = PARTS == 1 ? *at : load_relaxed(&at->x);
    }
    if constexpr (PARTS > 1) {
      for (u32 tries = 0;; ++tries) {
        bool missing = false;
#pragma unroll
        for (int i = 0; i < QUADS * GATE_SUMS * PARTS; ++i) {
          const int part = i % PARTS, gate = i / PARTS % GATE_SUMS, quad = i / (PARTS * GATE_SUMS);
          if (is_empty(words[quad][gate][part])) {
            missing = true;
            words[quad][gate][part] = load_relaxed(&place(quad, gate, part)->x);
          }
        }
        if (!missing) break;
        if (tries == PATIENCE) __trap();
      }
#pragma unroll
      for (int i = 0; i < QUADS * GATE_SUMS * PARTS; ++i) {
        const int part = i % PARTS, gate = i / PARTS % GATE_SUMS, quad = i / (PARTS * GATE_SUMS);
        store_relaxed(&place(quad, gate, part)->x, make_uint4(EMPTY, EMPTY, EMPTY, EMPTY));
      }
    }
#pragma unroll
    for (int i = 0; i < POINTS; ++i) {
#pragma unroll
      for (int gate = 0; gate < GATE_SUMS; ++gate) {
        float sum = 0;
#pragma unroll
        for (int part = 0; part < PARTS; ++part) {
          const uint4& quad = words[i / 4][gate][part];  // of the first unit: x, y; of the second: z, w
          const float one = __uint_as_float(i % 4 == 0 ? quad.x : i % 4 == 1 ? quad.z : i % 4 == 2 ? quad.y : quad.w);
          sum = part == 0 ? one : sum + one;
        }
        sums[gate][i] = sum;
      }
    }
  }

  // Hands on operands: value(i, gate) for the thread's point i. Padding units must hand on zeros: they meet zero weights.
  template <class Value>
  __device__ __forceinline__ void hand_on(u32 turn, Value value) const {
    u32* chunk = operands_of(a, turn) + p * (CHUNK * ROWS / 2);
#pragma unroll
    for (int i = 0; i < POINTS; i += 2) {
      const u32 k = unit(i), n = row(i);
      u32* to = chunk + ((k / 8 * NT + n / 8) * 8 + n % 8) * 4 + k % 8 / 2;
#pragma unroll
      for (int gate = 0; gate < DEPTH; ++gate) to[gate * (U * ROWS / 2)] = E::word(value(i, gate), value(i + 1, gate));
    }
    before_copies();
    workers_meet();
    if (threadIdx.x == 0) {
      asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(counter_of(a, p / SLICES)) : "memory");
    }
  }
};

// There are registers for 384 threads of 168; the workers take the bringer's. True for workers; for others the work is done.
__device__ __forceinline__ bool begin(const Arguments& a, char* memory, u32 products) {
  const Ring ring(memory);
  ring.init();
  if (threadIdx.x >= WORKERS) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
    if (threadIdx.x == WORKERS) bring(a, ring, products);
    return false;
  }
  asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
  return true;
}

}  // namespace gatewise
