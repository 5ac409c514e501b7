// A vector of floats or doubles as wide as the instruction set.
// Written with the compiler's vector types, so the same source serves SSE2, AVX2, AVX-512 and NEON.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__AVX2__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"  // what GCC 12 says of its own shuffles
#include <immintrin.h>
#pragma GCC diagnostic pop
#endif

#define GATEWISE_ALWAYS __attribute__((always_inline))  // for lambdas: a call for each vector costs as much as its maths
#define GATEWISE_INLINE inline GATEWISE_ALWAYS

#if defined(__AVX512F__)
#define GATEWISE_VECTOR_BYTES 64
#define GATEWISE_VECTOR_REGISTERS 32
#elif defined(__AVX2__)
#define GATEWISE_VECTOR_BYTES 32
#define GATEWISE_VECTOR_REGISTERS 16
#elif defined(__aarch64__)
#define GATEWISE_VECTOR_BYTES 16
#define GATEWISE_VECTOR_REGISTERS 32
#else
#define GATEWISE_VECTOR_BYTES 16
#define GATEWISE_VECTOR_REGISTERS 16
#endif

namespace gatewise {
namespace GATEWISE_ISA {

template <class T>
struct Integer;
template <>
struct Integer<float> {
  using type = int32_t;
};
template <>
struct Integer<double> {
  using type = int64_t;
};

template <class T>
struct Vec {
  static constexpr int lanes = GATEWISE_VECTOR_BYTES / sizeof(T);
  typedef T Native __attribute__((vector_size(GATEWISE_VECTOR_BYTES)));
  typedef typename Integer<T>::type Mask __attribute__((vector_size(GATEWISE_VECTOR_BYTES)));

  Native v;

  Vec() = default;
  GATEWISE_INLINE Vec(Native native) : v(native) {}
  GATEWISE_INLINE Vec(double scalar) {
    for (int i = 0; i < lanes; ++i) v[i] = static_cast<T>(scalar);
  }

  // Of the elements' type: the compiler need not fear that a store has changed anything else, and read it again.
  typedef T Anywhere __attribute__((vector_size(GATEWISE_VECTOR_BYTES), aligned(sizeof(T))));
  static GATEWISE_INLINE Vec load(const T* from) { return Vec(Native(*reinterpret_cast<const Anywhere*>(from))); }
  GATEWISE_INLINE void store(T* to) const { *reinterpret_cast<Anywhere*>(to) = v; }

  // The first `count` lanes only, 0 < count <= lanes: the others read as 0 and are not written.
  static GATEWISE_INLINE Vec load_part(const T* from, int64_t count) {
#if defined(__AVX512F__)
    if constexpr (sizeof(T) == 4) {
      return Vec((Native)_mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << count) - 1), from));
    } else {
      return Vec((Native)_mm512_maskz_loadu_pd(static_cast<__mmask8>((1u << count) - 1), from));
    }
#else
    T some[lanes] = {};
    for (int64_t i = 0; i < count; ++i) some[i] = from[i];
    return load(some);
#endif
  }
  // All but the first `count` lanes, 0 <= count < lanes: those read as 0.
  static GATEWISE_INLINE Vec load_after(const T* from, int64_t count) {
#if defined(__AVX512F__)
    if constexpr (sizeof(T) == 4) {
      return Vec((Native)_mm512_maskz_loadu_ps(static_cast<__mmask16>(~0u << count), from));
    } else {
      return Vec((Native)_mm512_maskz_loadu_pd(static_cast<__mmask8>(~0u << count), from));
    }
#else
    T some[lanes] = {};
    for (int64_t i = count; i < lanes; ++i) some[i] = from[i];
    return load(some);
#endif
  }
  GATEWISE_INLINE void store_part(T* to, int64_t count) const {
#if defined(__AVX512F__)
    if constexpr (sizeof(T) == 4) {
      _mm512_mask_storeu_ps(to, static_cast<__mmask16>((1u << count) - 1), (__m512)v);
    } else {
      _mm512_mask_storeu_pd(to, static_cast<__mmask8>((1u << count) - 1), (__m512d)v);
    }
#else
    T some[lanes];
    store(some);
    for (int64_t i = 0; i < count; ++i) to[i] = some[i];
#endif
  }

  friend GATEWISE_INLINE Vec operator+(const Vec& a, const Vec& b) { return Vec(a.v + b.v); }
  friend GATEWISE_INLINE Vec operator-(const Vec& a, const Vec& b) { return Vec(a.v - b.v); }
  friend GATEWISE_INLINE Vec operator*(const Vec& a, const Vec& b) { return Vec(a.v * b.v); }
  friend GATEWISE_INLINE Vec operator/(const Vec& a, const Vec& b) { return Vec(a.v / b.v); }
  friend GATEWISE_INLINE Mask operator<(const Vec& a, const Vec& b) { return a.v < b.v; }
};

GATEWISE_INLINE Vec<float> select(const Vec<float>::Mask& condition, const Vec<float>& a, const Vec<float>& b) {
  return Vec<float>(condition ? a.v : b.v);
}
GATEWISE_INLINE Vec<double> select(const Vec<double>::Mask& condition, const Vec<double>& a, const Vec<double>& b) {
  return Vec<double>(condition ? a.v : b.v);
}

// Not more than a bound, and not less than one; NaN passes through: of two operands that have no order the instructions give the
// second.
GATEWISE_INLINE Vec<float> at_most(const Vec<float>& x, float high) {
  using V = Vec<float>;
#if defined(__AVX512F__)
  return V((V::Native)_mm512_min_ps(_mm512_set1_ps(high), (__m512)x.v));
#elif defined(__AVX2__)
  return V((V::Native)_mm256_min_ps(_mm256_set1_ps(high), (__m256)x.v));
#else
  return select(V(high) < x, V(high), x);
#endif
}
GATEWISE_INLINE Vec<float> at_least(const Vec<float>& x, float low) {
  using V = Vec<float>;
#if defined(__AVX512F__)
  return V((V::Native)_mm512_max_ps(_mm512_set1_ps(low), (__m512)x.v));
#elif defined(__AVX2__)
  return V((V::Native)_mm256_max_ps(_mm256_set1_ps(low), (__m256)x.v));
#else
  return select(x < V(low), V(low), x);
#endif
}
GATEWISE_INLINE Vec<float> clamp(const Vec<float>& x, float low, float high) { return at_most(at_least(x, low), high); }

// c - a * b; in one rounding where there is an instruction for it, at every level of optimisation.
GATEWISE_INLINE Vec<float> less_product(const Vec<float>& c, const Vec<float>& a, const Vec<float>& b) {
#if defined(__AVX512F__)
  return Vec<float>((Vec<float>::Native)_mm512_fnmadd_ps((__m512)a.v, (__m512)b.v, (__m512)c.v));
#elif defined(__FMA__)
  return Vec<float>((Vec<float>::Native)_mm256_fnmadd_ps((__m256)a.v, (__m256)b.v, (__m256)c.v));
#else
  return c - a * b;
#endif
}

}  // namespace GATEWISE_ISA
}  // namespace gatewise
