// What only Hopper has (sm_90a): barriers in shared memory that count bytes, copies by the copy engine, products of a warp group.
#pragma once
#include "problem.cuh"

namespace gatewise {

using u64 = unsigned long long;

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

__device__ __forceinline__ void copy_in(u32 to, const void* from, int bytes, u32 barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from),
               "r"(bytes), "r"(barrier)
               : "memory");
}
// Between what threads write, or have acquired, in device memory and what the copy engine reads.
__device__ __forceinline__ void before_copies() { asm volatile("fence.proxy.async.global;" ::: "memory"); }

// Products. A matrix in shared memory is made of pieces of 8 rows of 16 bytes; `along_k` and 128 are the bytes
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
#define GATEWISE_FIRST_16 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define GATEWISE_FIRST_32 GATEWISE_FIRST_16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
GATEWISE_ELEMENTS(32, GATEWISE_FIRST_16, "16", "17", "18", "19", "20", "21", GATEWISE_16(0))
GATEWISE_ELEMENTS(64, GATEWISE_FIRST_32, "32", "33", "34", "35", "36", "37", GATEWISE_16(0), GATEWISE_16(16))
#undef GATEWISE_WARP_GROUP
#undef GATEWISE_ELEMENTS
#undef GATEWISE_4
#undef GATEWISE_16
#undef GATEWISE_FIRST_16
#undef GATEWISE_FIRST_32

}  // namespace gatewise
