// Words in device memory that are their own flags: a reader takes one when it is no longer EMPTY. Both sides are relaxed at the
// scope of the GPU, so a word is never torn and never kept in L1; exchange.cuh and wide.cuh say when that is enough.
#pragma once
#include "problem.cuh"

namespace gatewise {

constexpr u32 EMPTY = 0xffffffffu;

__device__ __forceinline__ u32 not_empty(u32 word) { return word == EMPTY ? 0x7fffffffu : word; }  // one NaN for another
__device__ __forceinline__ uint4 not_empty(const uint4& w) {
  return make_uint4(not_empty(w.x), not_empty(w.y), not_empty(w.z), not_empty(w.w));
}

__device__ __forceinline__ uint4 load_relaxed(const u32* from) {
  uint4 w;
  asm volatile("ld.relaxed.gpu.global.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(w.x), "=r"(w.y), "=r"(w.z), "=r"(w.w)
               : "l"(from)
               : "memory");
  return w;
}

__device__ __forceinline__ void store_relaxed(u32* to, u32 word) {
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(to), "r"(word) : "memory");
}

__device__ __forceinline__ void store_relaxed(u32* to, const uint4& w) {
  asm volatile("st.relaxed.gpu.global.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(to), "r"(w.x), "r"(w.y), "r"(w.z), "r"(w.w)
               : "memory");
}

__device__ __forceinline__ bool is_empty(const uint4& w) {
  return w.x == EMPTY || w.y == EMPTY || w.z == EMPTY || w.w == EMPTY;
}

}  // namespace gatewise
