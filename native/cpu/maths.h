// The functions the emitted cells need, on vectors. Some look up numbers by each lane's own index, where one instruction does it.
#pragma once

#include "cpu/tables.h"
#include "cpu/vec.h"

namespace gatewise {
namespace GATEWISE_ISA {

// a / b for b from 1 up, to about 1 ulp; exactly 1 where they are equal.
GATEWISE_INLINE Vec<float> quotient(const Vec<float>& a, const Vec<float>& b) {
#if defined(__AVX512F__)
  const Vec<float> r((Vec<float>::Native)_mm512_rcp14_ps((__m512)b.v)), q = a * r;
  return r * less_product(a, q, b) + q;
#else
  return a / b;
#endif
}

// The bits of a vector as whole numbers, whose sums may wrap around, and the reverse.
typedef uint32_t Bits __attribute__((vector_size(GATEWISE_VECTOR_BYTES)));
GATEWISE_INLINE Bits bits_of(const Vec<float>& x) { return (Bits)x.v; }
GATEWISE_INLINE Vec<float> from_bits(const Bits& bits) { return Vec<float>((Vec<float>::Native)bits); }

// e^x, or e^-x, as (1 + part) * power: x = n ln 2 + r, and a polynomial in r. From -87.3 to 88.3.
struct Exponential {
  Vec<float> part, power;
};

// x = n ln 2 + r with n a multiple of 2^-FRACTION; n also as the last bits of `shifted`.
template <bool NEGATIVE, int FRACTION>
struct Reduced {
  Vec<float> shifted, r, exact;
  GATEWISE_INLINE explicit Reduced(const Vec<float>& x) {
    using V = Vec<float>;
    const V magic(1.5f * static_cast<float>(1 << (23 - FRACTION)));  // adding it rounds to a multiple
    shifted = NEGATIVE ? magic - x * V(1.44269504088896f) : x * V(1.44269504088896f) + magic;
    const V n = shifted - magic;
    // ln 2 in two parts. The first has few bits, so that n times it is exact; where that and subtracting it is one rounding it
    // may have all, and then the second is so small that only the last sum need have it.
#if defined(__FMA__)
    const V most(0.6931471824645996f), rest(-1.904654299957764e-9f);
#else
    const V most(0.693359375f), rest(-2.12194440e-4f);
#endif
    r = less_product(NEGATIVE ? V(-x.v) : x, n, most);
    exact = r - n * rest;
#if !defined(__FMA__)
    r = exact;
#endif
  }
};

// With a power of two: near 0 it is 1 and nothing cancels.
template <bool NEGATIVE = false>
GATEWISE_INLINE Exponential exponential(const Vec<float>& x) {
  using V = Vec<float>;
  const Reduced<NEGATIVE, 0> reduced(x);
  const V &r = reduced.r, square = r * r;
  V p = V(0.008368780836462975f) * r + V(0.04166839271783829f);
  p = V(0.0013814466074109077f) * square + p;
  p = p * square + (V(0.1666651964187622f) * r + V(0.4999999403953552f));
  // The magic number's own bits fall off the top.
  return {p * square + reduced.exact, from_bits((bits_of(reduced.shifted) + 127) << 23)};
}

#if defined(__AVX2__)
// e^-x with a power of 2^(1/lanes), from the table: a shorter polynomial does.
GATEWISE_INLINE Exponential exponential_by_table(const Vec<float>& x) {
  using V = Vec<float>;
  constexpr int fraction = V::lanes == 16 ? 4 : 3;
  const Reduced<true, fraction> reduced(x);
#if defined(__AVX512F__)
  const V first((V::Native)_mm512_permutexvar_epi32((__m512i)reduced.shifted.v, _mm512_load_si512(powers)));
  const V third(0.1666703075170517f), second(0.5000162124633789f);
#else
  constexpr int32_t even[] = {powers[0], powers[2], powers[4], powers[6], powers[8], powers[10], powers[12], powers[14]};
  const __m256i table = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(even));
  const V first((V::Native)_mm256_permutevar8x32_epi32(table, (__m256i)reduced.shifted.v));
  const V third(0.16668182611465454f), second(0.5000647306442261f);
#endif
  const V& r = reduced.r;
  return {(third * r + second) * (r * r) + reduced.exact,
          from_bits((bits_of(reduced.shifted) << (23 - fraction)) + bits_of(first))};
}
#else  // no instruction looks them up
GATEWISE_INLINE Exponential exponential_by_table(const Vec<float>& x) { return exponential<true>(x); }
#endif

// exp to about 1 ulp; beyond -87.3 and 88.3 it stays as it is there. NaN passes through.
GATEWISE_INLINE Vec<float> exp(const Vec<float>& x) {
  const Exponential e = exponential(clamp(x, -87.3f, 88.3f));
  return e.part * e.power + e.power;
}

// sigmoid x = 1 / (e^-x + 1); exactly 0 where it is next to nothing, since 0 times infinity is not, and whatever e^-x becomes.
GATEWISE_INLINE Vec<float> sigmoid(const Vec<float>& x) {
  using V = Vec<float>;
  const Exponential e = exponential_by_table(at_most(x, 87.3f));
  return select(x < V(-88.0f), V(0.0f), quotient(V(1.0f), e.part * e.power + (e.power + V(1.0f))));
}

#if defined(__AVX512F__)
// tanh x by one of sixteen polynomials; beyond the last it is 1.
GATEWISE_INLINE Vec<float> tanh(const Vec<float>& x) {
  using V = Vec<float>;
  const V y = at_most(from_bits(bits_of(x) & 0x7fffffff), 9.2f);
  const __m512i place = (__m512i)(bits_of(y * V(tanh_scale) + V(2.0f)) >> 21);
  const auto at = [&](int row) GATEWISE_ALWAYS {
    return V((V::Native)_mm512_permutexvar_ps(place, _mm512_load_ps(tanh_table[row])));
  };
  const V b = y - at(0);
  V p = at(6);
#pragma GCC unroll 5
  for (int k = 5; k > 0; --k) p = p * b + at(k);
  return from_bits(bits_of(p) | (bits_of(x) & 0x80000000u));
}
#else
// tanh x = (e^2x - 1) / (e^2x + 1).
GATEWISE_INLINE Vec<float> tanh(const Vec<float>& x) {
  using V = Vec<float>;
  const Exponential e = exponential(clamp(x + x, -20.0f, 20.0f));
  return quotient(e.part * e.power + (e.power - V(1.0f)), e.part * e.power + (e.power + V(1.0f)));
}
#endif

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
