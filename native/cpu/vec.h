// A vector of floats or doubles as wide as the instruction set, with the functions the emitted cells need.
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

// Between two bounds; NaN passes through: of two operands that have no order the instructions give the second.
GATEWISE_INLINE Vec<float> clamp(const Vec<float>& x, float low, float high) {
  using V = Vec<float>;
#if defined(__AVX512F__)
  return V((V::Native)_mm512_min_ps(_mm512_set1_ps(high), _mm512_max_ps(_mm512_set1_ps(low), (__m512)x.v)));
#elif defined(__AVX2__)
  return V((V::Native)_mm256_min_ps(_mm256_set1_ps(high), _mm256_max_ps(_mm256_set1_ps(low), (__m256)x.v)));
#else
  const V raised = select(x < V(low), V(low), x);
  return select(V(high) < raised, V(high), raised);
#endif
}

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

// a / b for b from 1 up, to about 1 ulp; exactly 1 where they are equal.
GATEWISE_INLINE Vec<float> quotient(const Vec<float>& a, const Vec<float>& b) {
#if defined(__AVX512F__)
  const Vec<float> r((Vec<float>::Native)_mm512_rcp14_ps((__m512)b.v)), q = a * r;
  return r * less_product(a, q, b) + q;
#else
  return a / b;
#endif
}

// e^x, or e^-x, as (1 + part) * power, `power` being a power of two: x = n ln 2 + r, and a polynomial in r. From -87.3 to 88.3.
struct Exponential {
  Vec<float> part, power;
};
template <bool NEGATIVE = false>
GATEWISE_INLINE Exponential exponential(const Vec<float>& x) {
  using V = Vec<float>;
  const V magic(12582912.0f);  // 1.5 * 2^23: adding it rounds to a whole number
  const V shifted = NEGATIVE ? magic - x * V(1.44269504088896f) : x * V(1.44269504088896f) + magic;
  const V n = shifted - magic;
  // ln 2 in two parts. The first has few bits, so that n times it is exact; where that and subtracting it is one rounding it may
  // have all, and then the second is so small that it need not be waited for.
#if defined(__FMA__)
  const V most(0.6931471824645996f), rest(-1.904654299957764e-9f);
#else
  const V most(0.693359375f), rest(-2.12194440e-4f);
#endif
  V r = less_product(NEGATIVE ? V(-x.v) : x, n, most);
  const V all = r - n * rest;
#if !defined(__FMA__)
  r = all;
#endif
  const V square = r * r;
  V p = V(0.008368780836462975f) * r + V(0.04166839271783829f);
  p = V(0.0013814466074109077f) * square + p;
  p = p * square + (V(0.1666651964187622f) * r + V(0.4999999403953552f));
  V::Mask bits;
  std::memcpy(&bits, &shifted.v, sizeof bits);
  bits = (bits + 127) << 23;  // the magic number's own bits fall off the top
  Exponential result;
  result.part = p * square + all;
  std::memcpy(&result.power.v, &bits, sizeof bits);
  return result;
}

// exp to about 1 ulp; beyond -87.3 and 88.3 it stays as it is there. NaN passes through.
GATEWISE_INLINE Vec<float> exp(const Vec<float>& x) {
  const Exponential e = exponential(clamp(x, -87.3f, 88.3f));
  return e.part * e.power + e.power;
}

// sigmoid x = 1 / (e^-x + 1); exactly 0 where it is next to nothing, since 0 times infinity is not.
GATEWISE_INLINE Vec<float> sigmoid(const Vec<float>& x) {
  using V = Vec<float>;
  const Exponential e = exponential<true>(clamp(x, -88.3f, 87.3f));
  return select(x < V(-88.0f), V(0.0f), quotient(V(1.0f), e.part * e.power + (e.power + V(1.0f))));
}

// tanh x = (e^2x - 1) / (e^2x + 1). Near 0 the power is 1 and nothing cancels.
GATEWISE_INLINE Vec<float> tanh(const Vec<float>& x) {
  using V = Vec<float>;
  const Exponential e = exponential(clamp(x + x, -20.0f, 20.0f));
  return quotient(e.part * e.power + (e.power - V(1.0f)), e.part * e.power + (e.power + V(1.0f)));
}

// float64 is for checking: the C library lane by lane.
template <class F>
GATEWISE_INLINE Vec<double> lane_by_lane(const Vec<double>& x, F function) {
  Vec<double> result;
  for (int i = 0; i < Vec<double>::lanes; ++i) result.v[i] = function(x.v[i]);
  return result;
}
GATEWISE_INLINE Vec<double> tanh(const Vec<double>& x) {
  return lane_by_lane(x, [](double a) { return std::tanh(a); });
}
GATEWISE_INLINE Vec<double> sigmoid(const Vec<double>& x) {
  return lane_by_lane(x, [](double a) { return 1.0 / (1.0 + std::exp(-a)); });
}

}  // namespace GATEWISE_ISA
}  // namespace gatewise
