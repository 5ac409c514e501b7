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
  if (bits > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u | (bits >> 13 & 0x3ffu));  // as the instruction does
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

// How packed weights of a dtype are kept: as they came where vectors of them are widened in one go, else as Real.
template <class Real>
constexpr DType panel_dtype(DType dtype) {
#if defined(__F16C__) || defined(__AVX512F__)
  return dtype;
#else
  return dtype == DType::float16 ? Native<Real>::dtype : dtype;
#endif
}

// Whether vectors of numbers of this dtype, which is not Real, are widened in one go.
template <class Real>
constexpr bool widens(DType dtype) {
  return std::is_same_v<Real, float> && panel_dtype<Real>(dtype) == dtype;
}

#if defined(__AVX512F__)
// A vector of floats from one of 16 bits, and the reverse: rounded to nearest, ties to even.
template <DType STORED>
GATEWISE_INLINE __m512 widened(const __m256i& words) {
  if constexpr (STORED == DType::float16) return _mm512_cvtph_ps(words);
  return (__m512)_mm512_slli_epi32(_mm512_cvtepu16_epi32(words), 16);
}
#elif defined(__F16C__)
template <DType STORED>
GATEWISE_INLINE __m256 widened(const __m128i& words) {
  if constexpr (STORED == DType::float16) return _mm256_cvtph_ps(words);
  return (__m256)_mm256_slli_epi32(_mm256_cvtepu16_epi32(words), 16);
}
#endif

// The bits of bfloat16 numbers, each in 32.
GATEWISE_INLINE Vec<float>::Mask bfloat_words(const Vec<float>& value) {
  typedef uint32_t Long __attribute__((vector_size(GATEWISE_VECTOR_BYTES)));
  const Long bits = (Long)value.v, high = bits >> 16, rounded = (bits + 0x7fffu + (high & 1u)) >> 16;
  return (Vec<float>::Mask)((bits & 0x7fffffffu) > 0x7f800000u ? high | 0x40u : rounded);
}
#if defined(__AVX512F__)
template <DType STORED>
GATEWISE_INLINE __m256i narrowed(const Vec<float>& value) {
  if constexpr (STORED == DType::float16) return _mm512_cvtps_ph((__m512)value.v, _MM_FROUND_TO_NEAREST_INT);
  return _mm512_cvtepi32_epi16((__m512i)bfloat_words(value));
}
#endif

// A vector of numbers kept in a dtype known when compiling, widened to Real.
template <class Real, DType STORED>
GATEWISE_INLINE typename Vec<Real>::Native load_as(const char* from) {
  if constexpr (STORED == Native<Real>::dtype) {
    return Vec<Real>::load(reinterpret_cast<const Real*>(from)).v;
#if defined(__AVX512F__)
  } else if constexpr (std::is_same_v<Real, float>) {
    return (typename Vec<Real>::Native)widened<STORED>(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
#elif defined(__F16C__)
  } else if constexpr (std::is_same_v<Real, float>) {
    return (typename Vec<Real>::Native)widened<STORED>(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
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
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), narrowed<STORED>(value));
#else
  if constexpr (STORED == DType::bfloat16) {
    typedef uint16_t Short __attribute__((vector_size(GATEWISE_VECTOR_BYTES / 2)));
    const Short words = __builtin_convertvector(bfloat_words(value), Short);
    std::memcpy(to, &words, sizeof words);
    return;
  }
#if defined(__F16C__)
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_cvtps_ph((__m256)value.v, _MM_FROUND_TO_NEAREST_INT));
#else
  for (int i = 0; i < Vec<float>::lanes; ++i) {
    const uint16_t word = float_to_half(value.v[i]);
    std::memcpy(to + 2 * i, &word, 2);
  }
#endif
#endif
}

// Some numbers of 16 bits as Real, and the reverse.
template <class Real, DType STORED>
inline void read_words(Real* to, const uint16_t* from, int64_t count) {
  int64_t i = 0;
  if constexpr (widens<Real>(STORED)) {
    for (; i + Vec<Real>::lanes <= count; i += Vec<Real>::lanes) {
      Vec<Real>(load_as<Real, STORED>(reinterpret_cast<const char*>(from + i))).store(to + i);
    }
  }
  for (; i < count; ++i) to[i] = static_cast<Real>(STORED == DType::float16 ? half_to_float(from[i]) : bfloat_to_float(from[i]));
}
template <class Real, DType STORED>
inline void write_words(uint16_t* to, const Real* from, int64_t count) {
  int64_t i = 0;
  if constexpr (widens<Real>(STORED)) {
    for (; i + Vec<Real>::lanes <= count; i += Vec<Real>::lanes) {
      store_as<STORED>(reinterpret_cast<char*>(to + i), Vec<Real>::load(from + i));
    }
  }
  for (; i < count; ++i) {
    const float value = static_cast<float>(from[i]);
    to[i] = STORED == DType::float16 ? float_to_half(value) : float_to_bfloat(value);
  }
}

// to[0..count) = from[index..index+count) in dtype.
template <class Real>
inline void read_run(Real* to, const void* from, DType dtype, int64_t index, int64_t count) {
  const uint16_t* words = static_cast<const uint16_t*>(from) + index;
  if (dtype == Native<Real>::dtype) {
    std::memcpy(to, static_cast<const Real*>(from) + index, count * sizeof(Real));
  } else if (dtype == DType::float16) {
    read_words<Real, DType::float16>(to, words, count);
  } else {
    read_words<Real, DType::bfloat16>(to, words, count);
  }
}

template <class Real>
inline void write_run(void* to, DType dtype, int64_t index, const Real* from, int64_t count) {
  uint16_t* words = static_cast<uint16_t*>(to) + index;
  if (dtype == Native<Real>::dtype) {
    std::memcpy(static_cast<Real*>(to) + index, from, count * sizeof(Real));
  } else if (dtype == DType::float16) {
    write_words<Real, DType::float16>(words, from, count);
  } else {
    write_words<Real, DType::bfloat16>(words, from, count);
  }
}

template <class Real>
__attribute__((noinline)) Vec<Real> load_slow(const void* from, DType dtype, int64_t index, int64_t count) {
  alignas(64) Real lanes[Vec<Real>::lanes] = {};
  read_run(lanes, from, dtype, index, std::min<int64_t>(count, Vec<Real>::lanes));
  return Vec<Real>::load(lanes);
}

template <class Real>
__attribute__((noinline)) void store_slow(void* to, DType dtype, int64_t index, const Vec<Real>& value, int64_t count) {
  alignas(64) Real lanes[Vec<Real>::lanes];
  value.store(lanes);
  write_run(to, dtype, index, lanes, std::min<int64_t>(count, Vec<Real>::lanes));
}

#if defined(__AVX512F__)
// The same where it takes a few instructions.
GATEWISE_INLINE __mmask16 first_words(int64_t count) { return static_cast<__mmask16>(count < 16 ? (1u << count) - 1 : 0xffffu); }
GATEWISE_INLINE Vec<float> load_words(const void* from, DType dtype, int64_t index, int64_t count) {
  const __m256i words = _mm256_maskz_loadu_epi16(first_words(count), static_cast<const uint16_t*>(from) + index);
  return Vec<float>((Vec<float>::Native)(dtype == DType::bfloat16 ? widened<DType::bfloat16>(words) : widened<DType::float16>(words)));
}
GATEWISE_INLINE void store_words(void* to, DType dtype, int64_t index, const Vec<float>& value, int64_t count) {
  const __m256i words = dtype == DType::bfloat16 ? narrowed<DType::bfloat16>(value) : narrowed<DType::float16>(value);
  _mm256_mask_storeu_epi16(static_cast<uint16_t*>(to) + index, first_words(count), words);
}
#endif

// A vector of units whose first `count` > 0 exist; the others read as 0 and are not written.
template <class Real>
GATEWISE_INLINE Vec<Real> load_units(const void* from, DType dtype, int64_t index, int64_t count) {
  if (__builtin_expect(dtype == Native<Real>::dtype, 1)) {
    const Real* at = static_cast<const Real*>(from) + index;
    return count >= Vec<Real>::lanes ? Vec<Real>::load(at) : Vec<Real>::load_part(at, count);
  }
#if defined(__AVX512F__)
  if constexpr (std::is_same_v<Real, float>) return load_words(from, dtype, index, count);
#endif
  return load_slow<Real>(from, dtype, index, count);
}

template <class Real>
GATEWISE_INLINE void store_units(void* to, DType dtype, int64_t index, const Vec<Real>& value, int64_t count) {
  if (__builtin_expect(dtype == Native<Real>::dtype, 1)) {
    Real* at = static_cast<Real*>(to) + index;
    count >= Vec<Real>::lanes ? value.store(at) : value.store_part(at, count);
    return;
  }
#if defined(__AVX512F__)
  if constexpr (std::is_same_v<Real, float>) return store_words(to, dtype, index, value, count);
#endif
  store_slow<Real>(to, dtype, index, value, count);
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
