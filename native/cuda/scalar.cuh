// Element types, their conversion to the type the maths runs in, and the functions the emitted cells call.
// No header of CUDA or of the standard library is needed, so a kernel compiles in well under a second.
#pragma once

namespace gatewise {

using i64 = long long;
using u32 = unsigned int;

__device__ __forceinline__ u32 tf32(float v) {
  u32 w;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(w) : "f"(v));
  return w;
}

// An element type: how it is stored, what the maths runs in, and how many fit the 32-bit words the tensor cores take.
struct Float {
  using Storage = float;
  using Value = float;
  static constexpr int per_word = 1;
  static __device__ __forceinline__ float load(float s) { return s; }
  static __device__ __forceinline__ float store(float v) { return v; }
  static __device__ __forceinline__ u32 word(float v, float) { return tf32(v); }  // a word holds one
};

struct Bfloat16 {
  using Storage = unsigned short;
  using Value = float;
  static constexpr int per_word = 2;
  static __device__ __forceinline__ float load(Storage s) { return __uint_as_float(u32(s) << 16); }
  static __device__ __forceinline__ Storage store(float v) {
    Storage s;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(s) : "f"(v));
    return s;
  }
  static __device__ __forceinline__ u32 word(float low, float high) {
    u32 w;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(w) : "f"(high), "f"(low));
    return w;
  }
};

struct Float16 {
  using Storage = unsigned short;
  using Value = float;
  static constexpr int per_word = 2;
  static __device__ __forceinline__ float load(Storage s) {
    float v;
    asm("cvt.f32.f16 %0, %1;" : "=f"(v) : "h"(s));
    return v;
  }
  static __device__ __forceinline__ Storage store(float v) {
    Storage s;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(s) : "f"(v));
    return s;
  }
  static __device__ __forceinline__ u32 word(float low, float high) {
    u32 w;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(w) : "f"(high), "f"(low));
    return w;
  }
};

struct Double {
  using Storage = double;
  using Value = double;
  static constexpr int per_word = 1;  // never given to the tensor cores
  static __device__ __forceinline__ double load(double s) { return s; }
  static __device__ __forceinline__ double store(double v) { return v; }
};

template <class E>
using Storage = typename E::Storage;

// Element `index` of an array no kernel running now writes to.
template <class E>
__device__ __forceinline__ typename E::Value read(const Storage<E>* array, i64 index) {
  return E::load(__ldg(array + index));
}

template <class E>
__device__ __forceinline__ void write(Storage<E>* array, i64 index, typename E::Value value) {
  array[index] = E::store(value);
}

// An element of an array of integers. `type` is their size in bytes, plus 16 if they are unsigned.
__device__ __forceinline__ i64 read_integer(const void* array, i64 type, i64 index) {
  switch (type) {
    case 1: return static_cast<const signed char*>(array)[index];
    case 2: return static_cast<const short*>(array)[index];
    case 4: return static_cast<const int*>(array)[index];
    case 8: return static_cast<const i64*>(array)[index];
    case 17: return static_cast<const unsigned char*>(array)[index];
    case 18: return static_cast<const unsigned short*>(array)[index];
    case 20: return static_cast<const unsigned int*>(array)[index];
    default: return static_cast<const i64*>(array)[index] < 0 ? 0x7fffffffffffffff : static_cast<const i64*>(array)[index];
  }
}

// What the emitted activations are written with. Products of 16-bit or tf32 numbers need no more
// than the fast forms give.
__device__ __forceinline__ float select(bool condition, float a, float b) { return condition ? a : b; }
__device__ __forceinline__ double select(bool condition, double a, double b) { return condition ? a : b; }
__device__ __forceinline__ double tanh(double x) { return ::tanh(x); }
__device__ __forceinline__ double sigmoid(double x) { return 1.0 / (1.0 + ::exp(-x)); }
#ifdef GATEWISE_FAST_EXP
__device__ __forceinline__ float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// log2(e) = 1.4426950408889634. Both reach their limits at infinity and keep NaN; tanh is within 2e-7.
__device__ __forceinline__ float sigmoid(float x) { return reciprocal(1.0f + exp2(-1.44269504f * x)); }
__device__ __forceinline__ float tanh(float x) { return 1.0f - 2.0f * reciprocal(1.0f + exp2(2.88539008f * x)); }
#else
__device__ __forceinline__ float sigmoid(float x) { return __fdiv_rn(1.0f, 1.0f + expf(-x)); }
__device__ __forceinline__ float tanh(float x) { return ::tanhf(x); }
#endif

}  // namespace gatewise
