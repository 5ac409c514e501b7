// Products for calls too short to pay for packing their weights: with the rows of a weight as the caller gave it (dot_products,
// forward), with its columns (row_products, gradients), and of one row with another (outer_product). Every sum has an order of its
// own that does not depend on how the work is divided.
#pragma once

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "cpu/product.h"

namespace gatewise {
namespace GATEWISE_ISA {

// Adds up the lanes of COUNT vectors in one, so that vector i's sums are in the lanes whose number divided by STEP is i modulo
// COUNT. Of two vectors, the first's are added in the lanes where they belong, the second's in the others; one operand of that is
// a blend, which costs next to nothing. STEP lanes have been added up before.
template <class Real, int COUNT, int STEP>
GATEWISE_INLINE typename Vec<Real>::Native added_lanes(const typename Vec<Real>::Native* vectors) {
  using Native = typename Vec<Real>::Native;
  if constexpr (COUNT == 1) {
    return vectors[0];
  } else {
    constexpr int lanes = Vec<Real>::lanes;
    typename Vec<Real>::Mask kept, moved;
    for (int j = 0; j < lanes; ++j) kept[j] = j + (j & STEP ? lanes : 0), moved[j] = kept[j] ^ STEP;
    Native half[COUNT / 2];
#pragma GCC unroll 8
    for (int i = 0; i < COUNT / 2; ++i) {
      const Native &a = vectors[2 * i], &b = vectors[2 * i + 1];
      half[i] = __builtin_shuffle(a, b, kept) + __builtin_shuffle(a, b, moved);
    }
    return added_lanes<Real, COUNT / 2, 2 * STEP>(half);
  }
}

// A number of a weight of 16 bits; else it is a Real.
template <DType STORED>
struct Word {
  uint16_t bits;
};

// A vector of such numbers, and one whose first `count` exist: the others read as 0.
template <class Real>
GATEWISE_INLINE Vec<Real> numbers(const Real* from) {
  return Vec<Real>::load(from);
}
template <class Real, DType STORED>
GATEWISE_INLINE Vec<Real> numbers(const Word<STORED>* from) {
  return Vec<Real>(load_as<Real, STORED>(reinterpret_cast<const char*>(from)));
}
template <class Real>
GATEWISE_INLINE Vec<Real> some_numbers(const Real* from, int64_t count) {
  return Vec<Real>::load_part(from, count);
}
template <class Real, DType STORED>
GATEWISE_INLINE Vec<Real> some_numbers(const Word<STORED>* from, int64_t count) {
  return load_units<Real>(from, STORED, 0, count);
}

// Calls run(numbers) with those of a weight from `index` on; its dtype is Real's or one that is widened in one go, since weights of
// others are packed.
template <class Real, class Run>
void with_numbers(const void* weight, DType dtype, int64_t index, Run run) {
  if constexpr (std::is_same_v<Real, float>) {
    if (dtype == DType::bfloat16) return run(static_cast<const Word<DType::bfloat16>*>(weight) + index);
    if constexpr (widens<Real>(DType::float16)) {
      if (dtype == DType::float16) return run(static_cast<const Word<DType::float16>*>(weight) + index);
    }
  }
  run(static_cast<const Real*>(weight) + index);
}

// The dot products of MR rows of A with JR rows of B, lanes not added up yet.
template <class Real, int MR, int JR, class Number>
GATEWISE_INLINE void dots(int64_t K, const Real* A, int64_t lda, const Number* B, typename Vec<Real>::Native (&sum)[MR][JR]) {
  using Native = typename Vec<Real>::Native;
  constexpr int lanes = Vec<Real>::lanes;
#pragma GCC unroll 8
  for (int i = 0; i < MR; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < JR; ++j) sum[i][j] = Native{};
  }
  int64_t k = 0;
  const auto add = [&](auto load) {
    Native b[JR];
#pragma GCC unroll 4
    for (int j = 0; j < JR; ++j) b[j] = load(B + j * K + k).v;
#pragma GCC unroll 8
    for (int i = 0; i < MR; ++i) {
      const Native a = load(A + i * lda + k).v;
#pragma GCC unroll 4
      for (int j = 0; j < JR; ++j) sum[i][j] += a * b[j];
    }
  };
  for (; k + lanes <= K; k += lanes) add([](const auto* from) { return numbers<Real>(from); });
  if (k < K) add([&](const auto* from) { return some_numbers<Real>(from, K - k); });
}

// C[i * ldc + j] = sum over k of A[i * lda + k] * B[j * K + k] for MR rows of A: neither is packed, for calls too short to
// pay for that. The order of a sum does not depend on MR. C has room for whole vectors; beyond `columns` it becomes 0.
template <class Real, int MR, class Number>
void dot_rows(int64_t columns, int64_t K, const Real* A, int64_t lda, const Number* B, Real* C, int64_t ldc) {
  using Native = typename Vec<Real>::Native;
  constexpr int lanes = Vec<Real>::lanes, wide = std::min(lanes, 4), groups = lanes / wide;
  for (int64_t column = 0; column < columns; column += lanes) {
    Native parts[MR][groups];
    for (int g = 0; g < groups; ++g) {
      const int64_t first = column + g * wide;
      if (first + wide <= columns) {
        Native sum[MR][wide];
        dots<Real, MR, wide>(K, A, lda, B + first * K, sum);
#pragma GCC unroll 8
        for (int i = 0; i < MR; ++i) parts[i][g] = added_lanes<Real, wide, 1>(sum[i]);
        continue;
      }
      Native sum[MR][wide] = {};
      for (int64_t j = 0; first + j < columns; ++j) {
        Native one[MR][1];
        dots<Real, MR, 1>(K, A, lda, B + (first + j) * K, one);
        for (int i = 0; i < MR; ++i) sum[i][j] = one[i][0];
      }
      for (int i = 0; i < MR; ++i) parts[i][g] = added_lanes<Real, wide, 1>(sum[i]);
    }
    for (int i = 0; i < MR; ++i) Vec<Real>(added_lanes<Real, groups, wide>(parts[i])).store(C + i * ldc + column);
  }
}

// By how many numbers the rows of B, of length K, begin after a cache line, where that is the same for all of them and a vector
// fills a line. Vectors that lie on two lines take twice as long to read: few rows of A are multiplied with whole lines, without
// what is before and after the row of B. To be read the same way, they have to begin as far after a line.
template <class Real>
int64_t after_line(const Real* B, int64_t K) {
  constexpr int lanes = Vec<Real>::lanes;
  const auto after = static_cast<int64_t>(reinterpret_cast<uintptr_t>(B) / sizeof(Real) % lanes);
  return GATEWISE_VECTOR_BYTES == 64 && K % lanes == 0 && after % 4 == 0 ? after : 0;  // fours: see dot_lines
}

// Rows of an unpacked weight that are read side by side where A has few. A line of A is then read once for all of them, which costs
// as much as a line of the weight. But Zen 5 gives its second-level cache twice as fast where it is read from end to end, and weights
// that come from memory are slower so too.
inline int rows_abreast(int64_t weight_bytes) {
#if defined(__x86_64__)
  static const bool zen5 = [] {
    unsigned a = 0, b = 0, c = 0, d = 0;
    return __builtin_cpu_is("amd") && __get_cpuid(1, &a, &b, &c, &d) && (a >> 8 & 15) + (a >> 20 & 255) == 26;
  }();
#else
  const bool zen5 = false;
#endif
  return zen5 || weight_bytes > (16 << 20) ? 1 : 4;
}

// The same for few rows of A and LINES rows of B at once. The sums are those of dot_rows to the bit, in lanes `after` further on:
// since these are fours, lanes may be added up within fours before they are put back.
template <class Real, int MR, int LINES>
void dot_lines(int64_t columns, int64_t K, const Real* A, int64_t lda, const Real* B, int64_t after, Real* C, int64_t ldc) {
  using V = Vec<Real>;
  using Native = typename V::Native;
  constexpr int lanes = V::lanes, wide = std::min(lanes, 4), groups = lanes / wide;
  typename V::Mask back;
  for (int j = 0; j < lanes; ++j) back[j] = (j + after) % lanes;
  // From here on counted from the first line on.
  const Real* row = B - after;
  A -= after;
  const int64_t last = (after + K - 1) / lanes * lanes, left = after + K - last;
  Native first[MR], end[MR];
  for (int i = 0; i < MR; ++i) first[i] = V::load_after(A + i * lda, after).v, end[i] = V::load_part(A + i * lda + last, left).v;
  for (int64_t column = 0; column < columns; column += lanes) {
    const int64_t count = std::min<int64_t>(lanes, columns - column);
    Native sum[MR][lanes];
    const auto some = [&](int64_t j, auto number) GATEWISE_ALWAYS {
      constexpr int L = number.value;
      Native one[MR][L], b[L];
      const auto multiply = [&](const Native* a) GATEWISE_ALWAYS {
#pragma GCC unroll 4
        for (int i = 0; i < MR; ++i) {
#pragma GCC unroll 4
          for (int l = 0; l < L; ++l) one[i][l] += a[i] * b[l];
        }
      };
#pragma GCC unroll 4
      for (int l = 0; l < L; ++l) {
        b[l] = V::load_after(row + l * K, after).v;
        for (int i = 0; i < MR; ++i) one[i][l] = Native{};
      }
      multiply(first);
#pragma GCC unroll 4
      for (int64_t k = lanes; k < last; k += lanes) {
        Native a[MR];
#pragma GCC unroll 4
        for (int l = 0; l < L; ++l) b[l] = V::load(row + l * K + k).v;
#pragma GCC unroll 4
        for (int i = 0; i < MR; ++i) a[i] = V::load(A + i * lda + k).v;
        multiply(a);
      }
#pragma GCC unroll 4
      for (int l = 0; l < L; ++l) b[l] = V::load_part(row + l * K + last, left).v;
      multiply(end);
#pragma GCC unroll 4
      for (int l = 0; l < L; ++l) {
        for (int i = 0; i < MR; ++i) sum[i][j + l] = one[i][l];
      }
      row += L * K;
    };
    int64_t j = 0;
    for (; LINES > 1 && j + LINES <= count; j += LINES) some(j, std::integral_constant<int, LINES>{});
    for (; j < count; ++j) some(j, std::integral_constant<int, 1>{});
    for (int i = 0; i < MR; ++i) {
      Native parts[groups];
      for (int64_t j = count; j < lanes; ++j) sum[i][j] = Native{};
      for (int g = 0; g < groups; ++g) parts[g] = __builtin_shuffle(added_lanes<Real, wide, 1>(sum[i] + g * wide), back);
      V(added_lanes<Real, groups, wide>(parts)).store(C + i * ldc + column);
    }
  }
}
// With more rows, or with short vectors, of which a row has more, the core does not look ahead far enough.
constexpr int64_t line_rows = GATEWISE_VECTOR_BYTES == 64 ? 3 : 0;

// The same for any number of rows; `after` is 0 for more than line_rows.
template <class Real, class Number>
void dot_products(int64_t rows, int64_t columns, int64_t K, const Real* A, int64_t lda, const Number* B, int64_t after, int abreast,
                  Real* C, int64_t ldc) {
  constexpr int lanes = Vec<Real>::lanes;
  if constexpr (std::is_same_v<Number, Real>) {
    if (rows <= line_rows && K % lanes == 0 && K > lanes) {
      const auto run = [&](auto one, auto four) { (abreast == 1 ? one : four)(columns, K, A, lda, B, after, C, ldc); };
      switch (rows) {
        case 1: return run(dot_lines<Real, 1, 1>, dot_lines<Real, 1, 4>);
        case 2: return run(dot_lines<Real, 2, 1>, dot_lines<Real, 2, 4>);
        default: return run(dot_lines<Real, 3, 1>, dot_lines<Real, 3, 4>);
      }
    }
  }
  const Groups groups(rows, GATEWISE_VECTOR_REGISTERS == 32 ? 6 : 3);
  for (int64_t g = 0; g < groups.count; ++g) {
    const int64_t i = groups.begin(g);
    const auto run = [&](auto function) { function(columns, K, A + i * lda, lda, B, C + i * ldc, ldc); };
    switch (groups.begin(g + 1) - i) {
      case 1: run(dot_rows<Real, 1, Number>); break;
      case 2: run(dot_rows<Real, 2, Number>); break;
      case 3: run(dot_rows<Real, 3, Number>); break;
#if GATEWISE_VECTOR_REGISTERS == 32
      case 4: run(dot_rows<Real, 4, Number>); break;
      case 5: run(dot_rows<Real, 5, Number>); break;
      default: run(dot_rows<Real, 6, Number>); break;
#endif
    }
  }
}

// C[i * ldc + j] (+)= sum over k of A[i * lda + k] * B[k * ldb + j] for MR rows of A and NV vectors of columns: B is read
// where it is. `load` and `store` move one vector.
template <class Real, int MR, int NV, class Number, class Load, class Store>
GATEWISE_INLINE void strip(int64_t K, const Real* A, int64_t lda, const Number* B, int64_t ldb, Real* C, int64_t ldc, bool add,
                           Load load, Store store) {
  using Native = typename Vec<Real>::Native;
  constexpr int lanes = Vec<Real>::lanes;
  Native sum[MR][NV];
#pragma GCC unroll 4
  for (int i = 0; i < MR; ++i) {
#pragma GCC unroll 16
    for (int j = 0; j < NV; ++j) sum[i][j] = add ? load(C + i * ldc + j * lanes).v : Native{};
  }
  for (int64_t k = 0; k < K; ++k, B += ldb) {
#pragma GCC unroll 16
    for (int j = 0; j < NV; ++j) {
      const Native b = load(B + j * lanes).v;
#pragma GCC unroll 4
      for (int i = 0; i < MR; ++i) sum[i][j] += b * A[i * lda + k];
    }
  }
#pragma GCC unroll 4
  for (int i = 0; i < MR; ++i) {
#pragma GCC unroll 16
    for (int j = 0; j < NV; ++j) store(C + i * ldc + j * lanes, Vec<Real>(sum[i][j]));
  }
}

// The same for any number of columns.
template <class Real, int MR, class Number>
void strips(int64_t columns, int64_t K, const Real* A, int64_t lda, const Number* B, int64_t ldb, Real* C, int64_t ldc, bool add) {
  using V = Vec<Real>;
  constexpr int wide = GATEWISE_VECTOR_REGISTERS / 2 / MR;
  const auto load = [](const auto* from) { return numbers<Real>(from); };
  const auto store = [](Real* to, const V& value) { value.store(to); };
  int64_t j = 0;
  for (; j + wide * V::lanes <= columns; j += wide * V::lanes) {
    strip<Real, MR, wide>(K, A, lda, B + j, ldb, C + j, ldc, add, load, store);
  }
  for (; j + wide / 2 * V::lanes <= columns; j += wide / 2 * V::lanes) {
    strip<Real, MR, wide / 2>(K, A, lda, B + j, ldb, C + j, ldc, add, load, store);
  }
  for (; j + V::lanes <= columns; j += V::lanes) strip<Real, MR, 1>(K, A, lda, B + j, ldb, C + j, ldc, add, load, store);
  if (j < columns) {
    strip<Real, MR, 1>(K, A, lda, B + j, ldb, C + j, ldc, add, [&](const auto* from) { return some_numbers<Real>(from, columns - j); },
                       [&](Real* to, const V& value) { value.store_part(to, columns - j); });
  }
}

// The same for any number of rows.
template <class Real, class Number>
void row_products(int64_t rows, int64_t columns, int64_t K, const Real* A, int64_t lda, const Number* B, int64_t ldb, Real* C,
                  int64_t ldc, bool add) {
  const Groups groups(rows, 4);
  for (int64_t g = 0; g < groups.count; ++g) {
    const int64_t i = groups.begin(g);
    const auto run = [&](auto function) { function(columns, K, A + i * lda, lda, B, ldb, C + i * ldc, ldc, add); };
    switch (groups.begin(g + 1) - i) {
      case 1: run(strips<Real, 1, Number>); break;
      case 2: run(strips<Real, 2, Number>); break;
      case 3: run(strips<Real, 3, Number>); break;
      default: run(strips<Real, 4, Number>); break;
    }
  }
}

// C[i * ldc + j] = a[i] * b[j] for whole vectors of columns: a strip of b stays in registers while the rows of C are written.
template <class Real, int NV>
void outer_strip(int64_t rows, const Real* a, const Real* b, Real* C, int64_t ldc) {
  constexpr int lanes = Vec<Real>::lanes;
  typename Vec<Real>::Native kept[NV];
#pragma GCC unroll 16
  for (int j = 0; j < NV; ++j) kept[j] = Vec<Real>::load(b + j * lanes).v;
  for (int64_t i = 0; i < rows; ++i, C += ldc) {
#pragma GCC unroll 16
    for (int j = 0; j < NV; ++j) Vec<Real>(kept[j] * a[i]).store(C + j * lanes);
  }
}
template <class Real>
void outer_product(int64_t rows, int64_t columns, const Real* a, const Real* b, Real* C, int64_t ldc) {
  constexpr int lanes = Vec<Real>::lanes, wide = GATEWISE_VECTOR_REGISTERS / 2;
  int64_t j = 0;
  for (; j + wide * lanes <= columns; j += wide * lanes) outer_strip<Real, wide>(rows, a, b + j, C + j, ldc);
  for (; j + wide / 4 * lanes <= columns; j += wide / 4 * lanes) outer_strip<Real, wide / 4>(rows, a, b + j, C + j, ldc);
  for (; j < columns; j += lanes) outer_strip<Real, 1>(rows, a, b + j, C + j, ldc);
}

}  // namespace GATEWISE_ISA
}  // namespace gatewise
