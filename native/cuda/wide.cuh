// A persistent forward kernel for steps with much work: the product runs on Hopper's warp group instructions.
//
// A *group* of P blocks holds all of one direction's R and runs ROWS rows of the batch through all steps. A block owns U
// units. Its two warp groups divide the units, or, where R is so large that a block can only own a few, the sums over k.
//
// The weights are the tall operand, 64 rows for a warp group: each of its warps has 16 units of one gate (the fourth has
// nothing to do for cells of three). The batch is the wide operand. The sums go through shared memory; there each thread finds
// those of its own points, neighbouring lanes those of neighbouring units, as all arrays have them.
//
// Weights lie in shared memory, and what does not fit (HELD *fragments* of 16 k) in registers. Operands come from the other
// blocks through device memory, a *chunk* for each of them, laid out as the instructions take it. One more warp, the
// *bringer*, looks for them and has them copied into a ring of *strips* of 64 k in shared memory, while strips before are
// multiplied, and results written.
//
// The contract of the exchange:
// - There are two buffers, by turns, and a counter for every block, zero before the kernel starts. A block writes its chunk, its
//   threads meet, and one of them sets the counter, releasing what all have written. The bringer acquires it.
// - A block hands on the operands of step s + 2, in the buffer of step s, only when it has everybody's of step s + 1: so
//   everybody has multiplied, and read, those of step s.
// - All blocks run at once, since the launch is cooperative; a counter that never comes ends the kernel (PATIENCE).
#pragma once
#include "points.cuh"

namespace gatewise {

using u64 = unsigned long long;

constexpr bool DIVIDES_K = GATEWISE_DIVIDES_K;
constexpr int ROWS = GATEWISE_ROWS;
constexpr int RING = GATEWISE_RING;
constexpr int HELD = GATEWISE_HELD;
constexpr int WORKERS = 256;            // threads of the two warp groups
constexpr int THREADS = WORKERS + 128;  // and of the bringer's, whose other warps leave at once
constexpr int U = DIVIDES_K ? 16 : 32;
constexpr int P = HP / U;
constexpr int NT = ROWS / 8;                // column tiles
constexpr int POINTS = ROWS * U / WORKERS;  // of a thread
constexpr int STRIP = 64;
constexpr int STRIPS = HP / STRIP;
constexpr int CHUNKS = STRIP / U;          // of a strip
constexpr int PARTS = DIVIDES_K ? 2 : 4;   // instructions of a warp group for a strip
constexpr int FRAGMENTS = STRIPS * PARTS;  // of a warp group's weights
constexpr int FRAGMENT_BYTES = 64 * 16 * 2;
constexpr int CHUNK_BYTES = U * ROWS * 2;
constexpr int STRIP_BYTES = STRIP * ROWS * 2;
static_assert(PHASES == 1 && G > 1 && G <= 4 && E::per_word == 2);
static_assert(HP % STRIP == 0 && ROWS * U % WORKERS == 0 && HELD <= FRAGMENTS);

// Shared memory, in this order; the planner computes the total (wide_tiling.py):
// - weights of each warp group that are not held in registers;
// - the ring;
// - sums, [row][gate and unit], for each warp group if they divide k. Written after a product, then the workers meet, then read;
//   they are overwritten after the next product, when the workers have met to hand on;
// - lengths of the rows, written once;
// - barriers: a strip has come, and has been read, for each place in the ring.
constexpr int SHARED = FRAGMENTS - HELD;
constexpr int WEIGHTS_BYTES = 2 * SHARED * FRAGMENT_BYTES;
constexpr int SOURCES = DIVIDES_K ? 2 : 1;
constexpr int SUM_PITCH = 4 * U + 4;  // so that rows 2 apart lie 8 banks apart
constexpr int SUMS_AT = WEIGHTS_BYTES + RING * STRIP_BYTES;
constexpr int LENGTHS_AT = SUMS_AT + SOURCES * ROWS * SUM_PITCH * 4;
constexpr int BARRIERS_AT = LENGTHS_AT + ROWS * 4;
static_assert(BARRIERS_AT + RING * 16 == GATEWISE_SHARED_BYTES);

__device__ __forceinline__ void barrier_init(u32 at, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(count) : "memory");
}
__device__ __forceinline__ void barrier_arrive(u32 at) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at) : "memory");
}
__device__ __forceinline__ void barrier_expect(u32 at, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes) : "memory");
}
// Until the barrier has been passed a number of times of this parity.
__device__ __forceinline__ void barrier_wait(u32 at, u32 parity) {
  for (u32 passed = 0; !passed;) {
    asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
                 : "=r"(passed)
                 : "r"(at), "r"(parity)
                 : "memory");
  }
}
// Of the threads that work.
__device__ __forceinline__ void workers_meet() { asm volatile("bar.sync 1, %0;" ::"n"(WORKERS) : "memory"); }

__device__ __forceinline__ void copy_in(u32 to, const void* from, int bytes, u32 barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from),
               "r"(bytes), "r"(barrier)
               : "memory");
}
// Between what threads write, or have acquired, in device memory and what the copy engine reads.
__device__ __forceinline__ void before_copies() { asm volatile("fence.proxy.async.global;" ::: "memory"); }

__device__ __forceinline__ void await_count(const u32* counter, u32 wanted) {
  for (u32 tries = 0;; ++tries) {
    u32 count;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(count) : "l"(counter) : "memory");
    if (count >= wanted) return;
    if (tries == PATIENCE) __trap();
  }
}

// The instructions. A matrix in shared memory is made of pieces of 8 rows of 16 bytes; `along_k` and 128 are the bytes
// between neighbouring pieces.
__device__ __forceinline__ u64 matrix_at(u32 address, int along_k) {
  return u64((address & 0x3ffff) >> 4) | u64(along_k >> 4) << 16 | u64(128 >> 4) << 32;
}
__device__ __forceinline__ void group_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void group_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING>
__device__ __forceinline__ void group_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

template <class Element, int COLUMNS>
struct WarpGroup;

// sums (+)= rows columns^T over 16 k, rows from registers or from shared memory; `add` is 0 for the first.
#define GATEWISE_WARP_GROUP(ELEMENT, TYPE, COLUMNS, LIST, I0, I1, I2, I3, I4, I5, ...)                                            \
  template <>                                                                                                                     \
  struct WarpGroup<ELEMENT, COLUMNS> {                                                                                            \
    static __device__ __forceinline__ void multiply(float (&d)[COLUMNS / 2], const u32 (&rows)[4], u64 columns, int add) {        \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" I5 ", 0;\n"                                                               \
                   "wgmma.mma_async.sync.aligned.m64n" #COLUMNS "k16.f32." TYPE "." TYPE " {" LIST "}, {%" I0 ",%" I1 ",%" I2     \
                   ",%" I3 "}, %" I4 ", p, 1, 1, 0;\n}"                                                                           \
                   : __VA_ARGS__                                                                                                  \
                   : "r"(rows[0]), "r"(rows[1]), "r"(rows[2]), "r"(rows[3]), "l"(columns), "r"(add));                             \
    }                                                                                                                             \
    static __device__ __forceinline__ void multiply(float (&d)[COLUMNS / 2], u64 rows, u64 columns, int add) {                    \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" I2 ", 0;\n"                                                               \
                   "wgmma.mma_async.sync.aligned.m64n" #COLUMNS "k16.f32." TYPE "." TYPE " {" LIST "}, %" I0 ", %" I1             \
                   ", p, 1, 1, 0, 0;\n}"                                                                                          \
                   : __VA_ARGS__                                                                                                  \
                   : "l"(rows), "l"(columns), "r"(add));                                                                          \
    }                                                                                                                             \
  };
#define GATEWISE_ELEMENTS(...)                               \
  GATEWISE_WARP_GROUP(Bfloat16, "bf16", __VA_ARGS__) \
  GATEWISE_WARP_GROUP(Float16, "f16", __VA_ARGS__)
#define GATEWISE_4(I) "+f"(d[I]), "+f"(d[I + 1]), "+f"(d[I + 2]), "+f"(d[I + 3])
#define GATEWISE_16(I) GATEWISE_4(I), GATEWISE_4(I + 4), GATEWISE_4(I + 8), GATEWISE_4(I + 12)
#define GATEWISE_FIRST_8 "%0,%1,%2,%3,%4,%5,%6,%7"
#define GATEWISE_FIRST_16 GATEWISE_FIRST_8 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define GATEWISE_FIRST_32 GATEWISE_FIRST_16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
GATEWISE_ELEMENTS(16, GATEWISE_FIRST_8, "8", "9", "10", "11", "12", "13", GATEWISE_4(0), GATEWISE_4(4))
GATEWISE_ELEMENTS(32, GATEWISE_FIRST_16, "16", "17", "18", "19", "20", "21", GATEWISE_16(0))
GATEWISE_ELEMENTS(64, GATEWISE_FIRST_32, "32", "33", "34", "35", "36", "37", GATEWISE_16(0), GATEWISE_16(16))
#undef GATEWISE_WARP_GROUP
#undef GATEWISE_ELEMENTS
#undef GATEWISE_4
#undef GATEWISE_16
#undef GATEWISE_FIRST_8
#undef GATEWISE_FIRST_16
#undef GATEWISE_FIRST_32

// Two neighbouring elements of R in the row `row` of a warp group's weights, from k on; zero in the padding.
__device__ __forceinline__ u32 weight_word(const Arguments& a, int d, int p, int warps, int row, int k) {
  const int gate = row / 16, in_warp = row % 8 * 2 + row % 16 / 8;  // a thread's two rows are neighbouring units
  const int unit = p * U + (DIVIDES_K ? 0 : warps * 16) + in_warp;
  V two[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const bool exists = gate < G && unit < H && k + i < H;
    two[i] = exists ? read<E>(a.recurrent_weight, ((i64(d) * G + SLOT[gate < G ? gate : 0]) * H + unit) * H + k + i) : V(0);
  }
  return E::word(two[0], two[1]);
}

// Packed weights: [direction][block][warp group][fragment][128 uint4]. Those to be held, the first, lie as the lanes hold them,
// the others as they lie in shared memory.
__device__ __forceinline__ i64 weights_at(int d, int p, int warps) { return ((i64(d) * P + p) * 2 + warps) * FRAGMENTS * 128; }

__device__ __forceinline__ void pack_weights(const Arguments& a) {
  const i64 total = a.D * P * 2 * FRAGMENTS * 128, stride = i64(gridDim.x) * blockDim.x;
  for (i64 at = i64(blockIdx.x) * blockDim.x + threadIdx.x; at < total; at += stride) {
    const int i = at % 128, fragment = at / 128 % FRAGMENTS;
    const i64 rest = at / (128 * FRAGMENTS);
    const int warps = rest % 2, p = rest / 2 % P, d = rest / (2 * P);
    const int k = fragment / PARTS * STRIP + (DIVIDES_K ? warps * (STRIP / 2) : 0) + fragment % PARTS * 16;
    const auto word = [&](int row, int more) { return weight_word(a, d, p, warps, row, k + more); };
    if (fragment < HELD) {
      const int row = i / 32 * 16 + i % 32 / 4, more = 2 * (i % 4);
      a.weights[at] = make_uint4(word(row, more), word(row + 8, more), word(row, more + 8), word(row + 8, more + 8));
    } else {
      const int row = i % 64, more = i / 64 * 8;
      a.weights[at] = make_uint4(word(row, more), word(row, more + 2), word(row, more + 4), word(row, more + 6));
    }
  }
}

// A block's group: the operands of a step, and how often each block has handed on.
__device__ __forceinline__ u32* operands_of(const Arguments& a, u32 step) {
  const i64 groups = gridDim.x / P;  // of both directions
  return a.exchange + ((step & 1) * groups + blockIdx.x / P) * (HP * ROWS / 2);
}
__device__ __forceinline__ u32* counters_of(const Arguments& a) { return a.counters + blockIdx.x / P * P; }

// The ring in shared memory. Strips are numbered through all steps.
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

// The bringer: 32 lanes, each of which looks for a chunk; one has the strips copied, and must be quick about it.
__device__ __forceinline__ void bring(const Arguments& a, const Ring& ring) {
  constexpr int ROUND = 32 / CHUNKS;  // strips at a time
  const int lane = threadIdx.x % 32;
  const u32* counters = counters_of(a);
  for (u32 step = 0; step < u32(a.T); ++step) {
    const u32* operands = operands_of(a, step);
#pragma unroll
    for (int start = 0; start < STRIPS; start += ROUND) {
      if (start * CHUNKS + lane < P) await_count(counters + start * CHUNKS + lane, step + 1);
      __syncwarp();
      if (lane == 0) {
        before_copies();
#pragma unroll
        for (int strip = start; strip < STRIPS && strip < start + ROUND; ++strip) {
          const u32 number = step * STRIPS + strip;
          if (number >= RING) barrier_wait(ring.was_read(number), (number / RING - 1) & 1);
          barrier_expect(ring.come(number), STRIP_BYTES);
          copy_in(ring.at(number), operands + strip * (STRIP_BYTES / 4), STRIP_BYTES, ring.come(number));
        }
      }
      __syncwarp();
    }
  }
}

// A block's weights, its products, the places of its points.
struct WideBlock {
  const Arguments& a;
  char* room;
  Ring ring;
  int p, d, group;        // which block of which group
  int warps, warp, lane;  // the warp group, and the warp in it
  int start_time, pace;   // time of the first step, and how it changes: 1 or -1
  u32 held[HELD > 0 ? HELD : 1][4];

  __device__ __forceinline__ WideBlock(const Arguments& arguments, char* memory) : a(arguments), room(memory), ring(memory) {
    p = blockIdx.x % P;
    d = blockIdx.x / P % int(a.D);
    group = blockIdx.x / P / int(a.D);
    warps = threadIdx.x / 128;
    warp = threadIdx.x / 32 % 4;
    lane = threadIdx.x % 32;
    const bool backwards = (int(a.backwards) >> d) & 1;
    start_time = backwards ? int(a.T) - 1 : 0;
    pace = backwards ? -1 : 1;
    const uint4* from = a.weights + weights_at(d, p, warps) + threadIdx.x % 128;
#pragma unroll
    for (int i = 0; i < HELD; ++i) {
      const uint4 w = __ldg(from + i * 128);
      held[i][0] = w.x, held[i][1] = w.y, held[i][2] = w.z, held[i][3] = w.w;
    }
    uint4* to = reinterpret_cast<uint4*>(room) + warps * SHARED * 128 + threadIdx.x % 128;
    for (int i = 0; i < SHARED; ++i) to[i * 128] = __ldg(from + (HELD + i) * 128);
    if (given<LENGTHS>(a.lengths)) {
      for (int row = threadIdx.x; row < ROWS; row += WORKERS) {
        const int n = group * ROWS + row;
        lengths()[row] = n < int(a.N) ? length_of(a, n) : 0;
      }
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // the instructions will read the weights
    workers_meet();
  }

  __device__ __forceinline__ int* lengths() const { return reinterpret_cast<int*>(room + LENGTHS_AT); }
  __device__ __forceinline__ int time(int step) const { return start_time + pace * step; }

  // The thread's point i: a unit of the block and a row of the group.
  __device__ __forceinline__ int unit() const { return lane % U; }
  __device__ __forceinline__ int row(int i) const { return int(threadIdx.x) / U * POINTS + i; }
  __device__ __forceinline__ int length(int i) const { return given<LENGTHS>(a.lengths) ? lengths()[row(i)] : int(a.T); }
  __device__ __forceinline__ Spot spot(int i) const { return Spot(a, d, group * ROWS + row(i), p * U + unit()); }
  __device__ __forceinline__ bool pads() const { return HP != H && p * U + unit() >= H; }

  // The product of a step; its sums are in shared memory when all have met.
  __device__ __forceinline__ void multiply(u32 step) const {
    float sums[NT * 4];
    const u32 weights = shared_address(room) + warps * SHARED * FRAGMENT_BYTES;
#pragma unroll
    for (int strip = 0; strip < STRIPS; ++strip) {
      const u32 number = step * STRIPS + strip;
      barrier_wait(ring.come(number), (number / RING) & 1);
      __syncwarp();
      group_begin();
      const u32 at = ring.at(number) + (DIVIDES_K ? warps * (STRIP_BYTES / 2) : 0);
#pragma unroll
      for (int part = 0; part < PARTS; ++part) {
        const int fragment = strip * PARTS + part;
        const u64 columns = matrix_at(at + part * (16 * ROWS * 2), ROWS * 16);
        if (fragment < HELD) {
          WarpGroup<E, ROWS>::multiply(sums, held[fragment < HELD ? fragment : 0], columns, fragment > 0);
        } else {
          const u64 rows = matrix_at(weights + (fragment - HELD) * FRAGMENT_BYTES, 1024);
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
    if (lane == 0) barrier_arrive(ring.was_read(step * STRIPS + STRIPS - 1));
    __syncwarp();
    float* to = reinterpret_cast<float*>(room + SUMS_AT) + (DIVIDES_K ? warps * ROWS * SUM_PITCH : warps * 16) +
                2 * (lane % 4) * SUM_PITCH + warp * U + lane / 4 * 2;
    if (warp < G) {
#pragma unroll
      for (int i = 0; i < NT * 2; ++i) {
        const int from = i / 2 * 4 + i % 2;  // a row of the batch, two neighbouring units
        *reinterpret_cast<float2*>(to + (i / 2 * 8 + i % 2) * SUM_PITCH) = make_float2(sums[from], sums[from + 2]);
      }
    }
    workers_meet();
  }

  // The sum of a gate for the thread's point i.
  __device__ __forceinline__ float sum(int i, int gate) const {
    const float* sums = reinterpret_cast<const float*>(room + SUMS_AT) + row(i) * SUM_PITCH + gate * U + unit();
    return DIVIDES_K ? sums[0] + sums[ROWS * SUM_PITCH] : sums[0];
  }

  // Hands on the operands of a step, put together to pairs of neighbouring units.
  __device__ __forceinline__ void hand_on(u32 step, const V (&values)[POINTS]) const {
    u32* chunk = operands_of(a, step) + p * (CHUNK_BYTES / 4);
    const bool odd = lane % 2;
    const int pair = unit() / 2 * 2;
#pragma unroll
    for (int i = 0; i < POINTS; i += 2) {
      const int next = i + 1 < POINTS ? i + 1 : i;
      const V other = __shfl_xor_sync(0xffffffffu, odd ? values[i] : values[next], 1);
      const u32 word = odd ? E::word(other, values[next]) : E::word(values[i], other);
      const int n = row(odd ? next : i);
      if (next > i || !odd) chunk[((pair / 8 * NT + n / 8) * 8 + n % 8) * 4 + pair % 8 / 2] = word;
    }
    before_copies();
    workers_meet();
    if (threadIdx.x == 0) {
      asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(counters_of(a) + p), "r"(step + 1) : "memory");
    }
  }
};

}  // namespace gatewise
