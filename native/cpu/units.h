// Reading and writing runs of units in any dtype: the full-width native case inline, tails and conversions apart.
#pragma once

#include <algorithm>
#include <type_traits>

#include "cpu/call.h"
#include "cpu/vec.h"

namespace gatewise {
namespace GATEWISE_ISA {

inline float half_to_float(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  uint32_t bits = static_cast<uint32_t>(half & 0x7fffu) << 13;
  float value;
  std::memcpy(&value, &bits, 4);
  value *= 5.192296858534828e33f;  // 2^112: moves the exponent's bias, subnormals included
  std::memcpy(&bits, &value, 4);
  if ((half & 0x7c00u) == 0x7c00u) bits |= 0x7f800000u;
  bits |= sign;
  std::memcpy(&value, &bits, 4);
  return value;
}

inline uint16_t float_to_half(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  bits &= 0x7fffffffu;
  if (bits > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);
  if (bits >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);
  if (bits < 0x38800000u) {  // subnormal: let a float addition do the rounding
    float magnitude;
    std::memcpy(&magnitude, &bits, 4);
    magnitude += 0.5f;
    std::memcpy(&bits, &magnitude, 4);
    return static_cast<uint16_t>(sign | (bits - 0x3f000000u));
  }
  bits += 0xfffu + ((bits >> 13) & 1u);
  return static_cast<uint16_t>(sign | ((bits - 0x38000000u) >> 13));
}

inline float bfloat_to_float(uint16_t brain) {
  const uint32_t bits = static_cast<uint32_t>(brain) << 16;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

inline uint16_t float_to_bfloat(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  bits += 0x7fffu + ((bits >> 16) & 1u);
  return static_cast<uint16_t>(bits >> 16);
}

template <class Real>
struct Native;
template <>
struct Native<float> {
  static constexpr DType dtype = DType::float32;
};
template <>
struct Native<double> {
  static constexpr DType dtype = DType::float64;
};

// to[0..count) = from[index..index+count) in dtype.
template <class Real>
inline void read_run(Real* to, const void* from, DType dtype, int64_t index, int64_t count) {
  if (dtype == Native<Real>::dtype) {
    std::memcpy(to, static_cast<const Real*>(from) + index, count * sizeof(Real));
  } else if (dtype == DType::float16) {
    const uint16_t* half = static_cast<const uint16_t*>(from) + index;
    for (int64_t i = 0; i < count; ++i) to[i] = static_cast<Real>(half_to_float(half[i]));
  } else {
    const uint16_t* brain = static_cast<const uint16_t*>(from) + index;
    for (int64_t i = 0; i < count; ++i) to[i] = static_cast<Real>(bfloat_to_float(brain[i]));
  }
}

template <class Real>
inline void write_run(void* to, DType dtype, int64_t index, const Real* from, int64_t count) {
  if (dtype == Native<Real>::dtype) {
    std::memcpy(static_cast<Real*>(to) + index, from, count * sizeof(Real));
  } else if (dtype == DType::float16) {
    uint16_t* half = static_cast<uint16_t*>(to) + index;
    for (int64_t i = 0; i < count; ++i) half[i] = float_to_half(static_cast<float>(from[i]));
  } else {
    uint16_t* brain = static_cast<uint16_t*>(to) + index;
    for (int64_t i = 0; i < count; ++i) brain[i] = float_to_bfloat(static_cast<float>(from[i]));
  }
}

// How packed weights of a dtype are kept: as they came where vectors of them are widened in one go, else as Real.
template <class Real>
constexpr DType panel_dtype(DType dtype) {
#if defined(__F16C__) || defined(__AVX512F__)
  return dtype;
#else
  return dtype == DType::float16 ? Native<Real>::dtype : dtype;
#endif
}

// A vector of numbers kept in a dtype known when compiling, widened to Real.
template <class Real, DType STORED>
GATEWISE_INLINE typename Vec<Real>::Native load_as(const char* from) {
  if constexpr (STORED == Native<Real>::dtype) {
    return Vec<Real>::load(reinterpret_cast<const Real*>(from)).v;
#if defined(__AVX512F__)
  } else if constexpr (STORED == DType::float16) {
    return (typename Vec<Real>::Native)_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
#elif defined(__F16C__)
  } else if constexpr (STORED == DType::float16) {
    return (typename Vec<Real>::Native)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
#endif
  } else {
    typedef uint16_t Short __attribute__((vector_size(GATEWISE_VECTOR_BYTES / 2)));
    typedef uint32_t Long __attribute__((vector_size(GATEWISE_VECTOR_BYTES)));
    Short half;
    std::memcpy(&half, from, sizeof half);
    const Long bits = __builtin_convertvector(half, Long) << 16;
    typename Vec<Real>::Native result;
    std::memcpy(&result, &bits, sizeof bits);
    return result;
  }
}

// The reverse: a vector of floats kept in 16 bits, rounded to nearest, ties to even.
template <DType STORED>
GATEWISE_INLINE void store_as(char* to, const Vec<float>& value) {
#if defined(__AVX512F__)
  if constexpr (STORED == DType::float16) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtps_ph((__m512)value.v, _MM_FROUND_TO_NEAREST_INT));
    return;
  }
#elif defined(__F16C__)
  if constexpr (STORED == DType::float16) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_cvtps_ph((__m256)value.v, _MM_FROUND_TO_NEAREST_INT));
    return;
  }
#endif
  for (int i = 0; i < Vec<float>::lanes; ++i) {
    const uint16_t word = STORED == DType::float16 ? float_to_half(value.v[i]) : float_to_bfloat(value.v[i]);
    std::memcpy(to + 2 * i, &word, 2);
  }
}

template <class Real>
__attribute__((noinline)) Vec<Real> load_slow(const void* from, DType dtype, int64_t index, int64_t count) {
  if constexpr (std::is_same_v<Real, float>) {
    const char* at = static_cast<const char*>(from) + 2 * index;
    if (dtype == DType::bfloat16 && count >= Vec<Real>::lanes) return Vec<Real>(load_as<Real, DType::bfloat16>(at));
    if (dtype == panel_dtype<Real>(DType::float16) && count >= Vec<Real>::lanes) {
      return Vec<Real>(load_as<Real, panel_dtype<Real>(DType::float16)>(at));
    }
  }
  alignas(64) Real lanes[Vec<Real>::lanes] = {};
  read_run(lanes, from, dtype, index, std::min<int64_t>(count, Vec<Real>::lanes));
  return Vec<Real>::load(lanes);
}

template <class Real>
__attribute__((noinline)) void store_slow(void* to, DType dtype, int64_t index, const Vec<Real>& value, int64_t count) {
  if constexpr (std::is_same_v<Real, float>) {
    char* at = static_cast<char*>(to) + 2 * index;
    if (count >= Vec<Real>::lanes) {
      if (dtype == DType::bfloat16) return store_as<DType::bfloat16>(at, value);
      return store_as<DType::float16>(at, value);
    }
  }
  alignas(64) Real lanes[Vec<Real>::lanes];
  value.store(lanes);
  write_run(to, dtype, index, lanes, std::min<int64_t>(count, Vec<Real>::lanes));
}

// A vector of units whose first `count` > 0 exist; the others read as 0 and are not written.
template <class Real>
GATEWISE_INLINE Vec<Real> load_units(const void* from, DType dtype, int64_t index, int64_t count) {
  if (__builtin_expect(dtype == Native<Real>::dtype, 1)) {
    const Real* at = static_cast<const Real*>(from) + index;
    return count >= Vec<Real>::lanes ? Vec<Real>::load(at) : Vec<Real>::load_part(at, count);
  }
  return load_slow<Real>(from, dtype, index, count);
}

template <class Real>
GATEWISE_INLINE void store_units(void* to, DType dtype, int64_t index, const Vec<Real>& value, int64_t count) {
  if (__builtin_expect(dtype == Native<Real>::dtype, 1)) {
    Real* at = static_cast<Real*>(to) + index;
    count >= Vec<Real>::lanes ? value.store(at) : value.store_part(at, count);
  } else {
    store_slow<Real>(to, dtype, index, value, count);
  }
}

// The units that exist; the others become 0, whatever they were.
template <class Real>
GATEWISE_INLINE Vec<Real> only_units(const Vec<Real>& value, int64_t count) {
  using Mask = typename Vec<Real>::Mask;
  Mask number;
  for (int i = 0; i < Vec<Real>::lanes; ++i) number[i] = i;
  return select(number < Mask{} + static_cast<typename Integer<Real>::type>(count), value, Vec<Real>(0.0));
}

// load_units and store_units with what is known when compiling: the dtype is Real and all lanes exist, or the first `count` of
// them and not all; or nothing.
enum class Lanes { all, some, any };
template <class Real, Lanes LANES>
struct Access {
  static GATEWISE_INLINE Vec<Real> load(const void* from, DType dtype, int64_t index, int64_t count) {
    if constexpr (LANES == Lanes::any) return load_units<Real>(from, dtype, index, count);
    const Real* at = static_cast<const Real*>(from) + index;
    return LANES == Lanes::all ? Vec<Real>::load(at) : Vec<Real>::load_part(at, count);
  }
  static GATEWISE_INLINE void store(void* to, DType dtype, int64_t index, const Vec<Real>& value, int64_t count) {
    if constexpr (LANES == Lanes::any) return store_units<Real>(to, dtype, index, value, count);
    Real* at = static_cast<Real*>(to) + index;
    LANES == Lanes::all ? value.store(at) : value.store_part(at, count);
  }
};

// Calls work(lanes, row, at) for each vector of the first `count` units of some rows, `lanes` being a constant of type Lanes. All
// whole vectors are done in one loop: what the work needs time and again is then fetched once. BY_ROWS: a row may have several,
// which are better written one after the other.
template <class Real, bool BY_ROWS, class Work>
GATEWISE_INLINE void each_vector(DType dtype, int64_t rows, int64_t count, Work work) {
  constexpr int lanes = Vec<Real>::lanes;
  constexpr std::integral_constant<Lanes, Lanes::all> all;
  constexpr std::integral_constant<Lanes, Lanes::some> some;
  constexpr std::integral_constant<Lanes, Lanes::any> any;
  if (dtype != Native<Real>::dtype) {
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t at = 0; at < count; at += lanes) work(any, row, at);
    }
    return;
  }
  const int64_t whole = count / lanes * lanes;
  if constexpr (BY_ROWS) {
    for (int64_t row = 0, at = 0; whole > 0 && row < rows;) {
      work(all, row, at);
      at += lanes;
      if (at == whole) at = 0, ++row;
    }
  } else {
    for (int64_t at = 0; at < whole; at += lanes) {
      for (int64_t row = 0; row < rows; ++row) work(all, row, at);
    }
  }
  for (int64_t row = 0; whole < count && row < rows; ++row) work(some, row, whole);
}

// The recurrent mask at (t, n, unit), whose unit axis may be broadcast.
template <class Real, Lanes LANES = Lanes::any>
GATEWISE_INLINE Vec<Real> load_mask(const Call& call, int64_t t, int64_t n, int64_t unit, int64_t count) {
  const int64_t row = t * call.mask_stride[0] + n * call.mask_stride[1];
  if (call.mask_stride[2] == 1) return Access<Real, LANES>::load(call.mask, call.dtype, row + unit, count);
  Real one;
  read_run(&one, call.mask, LANES == Lanes::any ? call.dtype : Native<Real>::dtype, row, 1);
  return Vec<Real>(static_cast<double>(one));
}

}  // namespace GATEWISE_ISA
}  // namespace gatewise
