// The packed matrix product. Every element is one sum over k in ascending order, whatever the tile, so results do not
// depend on how the work is divided.
//
// A packed operand is a list of panels, each [K][NV * lanes]: the columns of one tile for every k.
#pragma once

#include <utility>

#include "cpu/units.h"

namespace gatewise {
namespace GATEWISE_ISA {

constexpr int most_vectors = 4;  // per tile row
constexpr int most_rows = GATEWISE_VECTOR_REGISTERS == 32 ? 12 : 8;

// Rows of a tile NV vectors wide, so that its sums fit the registers.
constexpr int tile_rows(int vectors) {
  constexpr int few[] = {0, 8, 6, 4, 2};
  constexpr int many[] = {0, 12, 12, 8, 6};
  return GATEWISE_VECTOR_REGISTERS == 32 ? many[vectors] : few[vectors];
}

// Part of a packed weight, kept as Real or in 16 bits.
template <class Real>
struct Panel {
  char* at = nullptr;
  DType stored = Native<Real>::dtype;
  Panel operator+(int64_t count) const { return {at + count * size_of(stored), stored}; }
};

// C[i][:] (+)= sum over k of A(i, k) * B[k][:]. A(i, k) is A[i * lda + k], or A[k * lda + i] when PACKED.
template <class Real, DType STORED, int MR, int NV, bool PACKED>
void tile(int64_t K, const Real* A, int64_t lda, const char* B, Real* C, int64_t ldc, bool add) {
  using Native = typename Vec<Real>::Native;
  constexpr int lanes = Vec<Real>::lanes, size = size_of(STORED);
  Native sum[MR][NV];
#pragma GCC unroll 16
  for (int i = 0; i < MR; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < NV; ++j) sum[i][j] = add ? Vec<Real>::load(C + i * ldc + j * lanes).v : Native{};
  }
  // Rows from two places: the offsets of twelve from one do not fit the registers.
  constexpr int half = MR > 8 ? MR / 2 : MR;
  const Real* lower = PACKED ? A : A + half * lda;
  asm("" : "+r"(lower));
  for (int64_t k = 0; k < K; ++k) {
    Native b[NV];
#pragma GCC unroll 4
    for (int j = 0; j < NV; ++j) b[j] = load_as<Real, STORED>(B + j * lanes * size);
    B += NV * lanes * size;
#pragma GCC unroll 16
    for (int i = 0; i < MR; ++i) {
      const Real a = PACKED ? A[k * lda + i] : i < half ? A[i * lda + k] : lower[(i - half) * lda + k];
#pragma GCC unroll 4
      for (int j = 0; j < NV; ++j) sum[i][j] += b[j] * a;
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < MR; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < NV; ++j) Vec<Real>(sum[i][j]).store(C + i * ldc + j * lanes);
  }
}

template <class Real>
using TileFunction = void (*)(int64_t, const Real*, int64_t, const char*, Real*, int64_t, bool);

template <class Real, DType STORED, int NV, bool PACKED, int... ROWS>
TileFunction<Real> tile_for_rows(int rows, std::integer_sequence<int, ROWS...>) {
  static constexpr TileFunction<Real> table[] = {tile<Real, STORED, ROWS + 1, NV, PACKED>...};
  return table[rows - 1];
}

template <class Real, DType STORED, bool PACKED>
TileFunction<Real> tile_stored(int vectors, int rows) {
  switch (vectors) {
    case 1: return tile_for_rows<Real, STORED, 1, PACKED>(rows, std::make_integer_sequence<int, tile_rows(1)>());
    case 2: return tile_for_rows<Real, STORED, 2, PACKED>(rows, std::make_integer_sequence<int, tile_rows(2)>());
    case 3: return tile_for_rows<Real, STORED, 3, PACKED>(rows, std::make_integer_sequence<int, tile_rows(3)>());
    default: return tile_for_rows<Real, STORED, 4, PACKED>(rows, std::make_integer_sequence<int, tile_rows(4)>());
  }
}

// The tile for panels of this width and kind.
template <class Real>
TileFunction<Real> tile_function(int vectors, int rows, DType stored) {
  if constexpr (std::is_same_v<Real, float>) {
    if (stored == DType::bfloat16) return tile_stored<Real, DType::bfloat16, false>(vectors, rows);
    if (stored == panel_dtype<Real>(DType::float16)) {
      return tile_stored<Real, panel_dtype<Real>(DType::float16), false>(vectors, rows);
    }
  }
  return tile_stored<Real, Native<Real>::dtype, false>(vectors, rows);
}

// Splits rows into the groups that tiles take: of nearly equal size, or all as large as a tile with the last few two
// rows smaller where that comes out even, since odd tiles are slower.
struct Groups {
  int64_t rows, count;
  int64_t full = 0, size = 0;  // the first `full` groups have `size` rows, the rest two fewer; 0: nearly equal

  Groups(int64_t rows, int most) : rows(rows), count((rows + most - 1) / most) {
    const int64_t missing = count * most - rows;
    if (most > 2 && missing % 2 == 0 && missing / 2 <= count) {
      size = most;
      full = count - missing / 2;
    }
  }
  int64_t begin(int64_t i) const {
    if (size == 0) return i * rows / count;
    return i <= full ? i * size : full * size + (i - full) * (size - 2);
  }
};

// C[rows][columns] (+)= A[rows][K] * B for one panel of B.
template <class Real>
inline void panel_product(int64_t rows, int64_t K, const Real* A, int64_t lda, const Panel<Real>& panel, int vectors, Real* C,
                          int64_t ldc, bool add) {
  const Groups groups(rows, tile_rows(vectors));
  for (int64_t g = 0; g < groups.count; ++g) {
    const int64_t i = groups.begin(g), count = groups.begin(g + 1) - i;
    tile_function<Real>(vectors, static_cast<int>(count), panel.stored)(K, A + i * lda, lda, panel.at, C + i * ldc, ldc, add);
  }
}

// The sums of the lanes of as many vectors as a vector has lanes, lane i being the sum of rows[i]: halves are interleaved
// and added over and over.
template <class Real, int COUNT = Vec<Real>::lanes>
GATEWISE_INLINE typename Vec<Real>::Native sums_of_lanes(const typename Vec<Real>::Native* rows) {
  using Native = typename Vec<Real>::Native;
  if constexpr (COUNT == 1) {
    return rows[0];
  } else {
    constexpr int lanes = Vec<Real>::lanes;
    typename Vec<Real>::Mask low, high;
    for (int j = 0; j < lanes; ++j) low[j] = j / 2 + j % 2 * lanes, high[j] = low[j] + lanes / 2;
    Native half[COUNT / 2];
#pragma GCC unroll 8
    for (int i = 0; i < COUNT / 2; ++i) {
      half[i] = __builtin_shuffle(rows[i], rows[i + COUNT / 2], low) + __builtin_shuffle(rows[i], rows[i + COUNT / 2], high);
    }
    return sums_of_lanes<Real, COUNT / 2>(half);
  }
}

// The dot products of MR rows of A with JR rows of B, lanes not added up yet: sums[i * lanes + j].
template <class Real, int MR, int JR>
GATEWISE_INLINE void dots(int64_t K, const Real* A, int64_t lda, const Real* B, typename Vec<Real>::Native* sums) {
  using Native = typename Vec<Real>::Native;
  constexpr int lanes = Vec<Real>::lanes;
  Native sum[MR][JR] = {};
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
  for (; k + lanes <= K; k += lanes) add([](const Real* from) { return Vec<Real>::load(from); });
  if (k < K) add([&](const Real* from) { return Vec<Real>::load_part(from, K - k); });
#pragma GCC unroll 8
  for (int i = 0; i < MR; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < JR; ++j) sums[i * lanes + j] = sum[i][j];
  }
}

// C[i * ldc + j] = sum over k of A[i * lda + k] * B[j * K + k] for MR rows of A: neither is packed, for calls too short to
// pay for that. The order of a sum does not depend on MR. C has room for whole vectors; beyond `columns` it becomes 0.
template <class Real, int MR>
void dot_rows(int64_t columns, int64_t K, const Real* A, int64_t lda, const Real* B, Real* C, int64_t ldc) {
  constexpr int lanes = Vec<Real>::lanes, wide = std::min(lanes, 4);
  for (int64_t column = 0; column < columns; column += lanes) {
    typename Vec<Real>::Native sums[MR * lanes];
    const int64_t count = std::min<int64_t>(lanes, columns - column);
    if (count < lanes) std::fill_n(sums, MR * lanes, typename Vec<Real>::Native{});
    int64_t j = 0;
    for (; j + wide <= count; j += wide) dots<Real, MR, wide>(K, A, lda, B + (column + j) * K, sums + j);
    for (; j < count; ++j) dots<Real, MR, 1>(K, A, lda, B + (column + j) * K, sums + j);
    for (int i = 0; i < MR; ++i) Vec<Real>(sums_of_lanes<Real>(sums + i * lanes)).store(C + i * ldc + column);
  }
}

// The same for any number of rows.
template <class Real>
void dot_products(int64_t rows, int64_t columns, int64_t K, const Real* A, int64_t lda, const Real* B, Real* C, int64_t ldc) {
  const Groups groups(rows, GATEWISE_VECTOR_REGISTERS == 32 ? 6 : 2);
  for (int64_t g = 0; g < groups.count; ++g) {
    const int64_t i = groups.begin(g);
    const auto run = [&](auto function) { function(columns, K, A + i * lda, lda, B, C + i * ldc, ldc); };
    switch (groups.begin(g + 1) - i) {
      case 1: run(dot_rows<Real, 1>); break;
      case 2: run(dot_rows<Real, 2>); break;
#if GATEWISE_VECTOR_REGISTERS == 32
      case 3: run(dot_rows<Real, 3>); break;
      case 4: run(dot_rows<Real, 4>); break;
      case 5: run(dot_rows<Real, 5>); break;
      default: run(dot_rows<Real, 6>); break;
#endif
    }
  }
}

// C[i * ldc + j] (+)= sum over k of A[i * lda + k] * B[k * ldb + j] for MR rows of A and NV vectors of columns: B is read
// where it is. `load` and `store` move one vector.
template <class Real, int MR, int NV, class Load, class Store>
GATEWISE_INLINE void strip(int64_t K, const Real* A, int64_t lda, const Real* B, int64_t ldb, Real* C, int64_t ldc, bool add,
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
template <class Real, int MR>
void strips(int64_t columns, int64_t K, const Real* A, int64_t lda, const Real* B, int64_t ldb, Real* C, int64_t ldc, bool add) {
  using V = Vec<Real>;
  constexpr int wide = GATEWISE_VECTOR_REGISTERS / 2 / MR;
  const auto load = [](const Real* from) { return V::load(from); };
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
    strip<Real, MR, 1>(K, A, lda, B + j, ldb, C + j, ldc, add, [&](const Real* from) { return V::load_part(from, columns - j); },
                       [&](Real* to, const V& value) { value.store_part(to, columns - j); });
  }
}

// The same for any number of rows.
template <class Real>
void row_products(int64_t rows, int64_t columns, int64_t K, const Real* A, int64_t lda, const Real* B, int64_t ldb, Real* C,
                  int64_t ldc, bool add) {
  const Groups groups(rows, 4);
  for (int64_t g = 0; g < groups.count; ++g) {
    const int64_t i = groups.begin(g);
    const auto run = [&](auto function) { function(columns, K, A + i * lda, lda, B, ldb, C + i * ldc, ldc, add); };
    switch (groups.begin(g + 1) - i) {
      case 1: run(strips<Real, 1>); break;
      case 2: run(strips<Real, 2>); break;
      case 3: run(strips<Real, 3>); break;
      default: run(strips<Real, 4>); break;
    }
  }
}

// Turns `lanes` vectors into their transpose, by interleaving halves over and over.
template <class Vector, class Mask, int LANES>
GATEWISE_INLINE void transpose(Vector (&rows)[LANES]) {
  Mask low, high;
  for (int j = 0; j < LANES; ++j) {
    low[j] = static_cast<decltype(low[0] + 0)>(j / 2 + j % 2 * LANES);
    high[j] = low[j] + LANES / 2;
  }
  for (int stage = 1; stage < LANES; stage *= 2) {
    Vector mixed[LANES];
#pragma GCC unroll 16
    for (int i = 0; i < LANES / 2; ++i) {
      mixed[2 * i] = __builtin_shuffle(rows[i], rows[i + LANES / 2], low);
      mixed[2 * i + 1] = __builtin_shuffle(rows[i], rows[i + LANES / 2], high);
    }
#pragma GCC unroll 16
    for (int i = 0; i < LANES; ++i) rows[i] = mixed[i];
  }
}

template <class Element>
struct Transposed;
template <>
struct Transposed<float> {
  typedef float Vector __attribute__((vector_size(GATEWISE_VECTOR_BYTES)));
  typedef int32_t Mask __attribute__((vector_size(GATEWISE_VECTOR_BYTES)));
};
template <>
struct Transposed<double> {
  typedef double Vector __attribute__((vector_size(GATEWISE_VECTOR_BYTES)));
  typedef int64_t Mask __attribute__((vector_size(GATEWISE_VECTOR_BYTES)));
};
template <>
struct Transposed<uint16_t> {  // as many as there are floats in a vector
  typedef uint16_t Vector __attribute__((vector_size(GATEWISE_VECTOR_BYTES / 2)));
  typedef uint16_t Mask __attribute__((vector_size(GATEWISE_VECTOR_BYTES / 2)));
};

// Packs rows of a row-major matrix as columns of a panel: to[k * stride + lane] = from[lane * K + k]. Lanes beyond
// `count` become 0.
template <class Element>
void transpose_into(Element* to, int64_t stride, const Element* from, int64_t K, int64_t count) {
  using Vector = typename Transposed<Element>::Vector;
  constexpr int lanes = sizeof(Vector) / sizeof(Element);
  int64_t k = 0;
  if (count >= lanes) {
    for (; k + lanes <= K; k += lanes) {
      Vector rows[lanes];
      for (int lane = 0; lane < lanes; ++lane) std::memcpy(&rows[lane], from + lane * K + k, sizeof(Vector));
      transpose<Vector, typename Transposed<Element>::Mask, lanes>(rows);
      for (int j = 0; j < lanes; ++j) std::memcpy(to + (k + j) * stride, &rows[j], sizeof(Vector));
    }
  }
  for (; k < K; ++k) {
    for (int lane = 0; lane < lanes; ++lane) to[k * stride + lane] = lane < count ? from[lane * K + k] : Element(0);
  }
}

// Packs one row of a matrix of dtype as one column of a panel; zeros if `row` is negative.
template <class Real>
void pack_column(const Panel<Real>& to, int64_t stride, const void* from, DType dtype, int64_t row, int64_t K) {
  for (int64_t k = 0; k < K; ++k) {
    if (to.stored != Native<Real>::dtype) {
      const uint16_t* words = static_cast<const uint16_t*>(from);
      reinterpret_cast<uint16_t*>(to.at)[k * stride] = row < 0 ? uint16_t(0) : words[row * K + k];
    } else {
      Real* place = reinterpret_cast<Real*>(to.at) + k * stride;
      *place = 0;
      if (row >= 0) read_run(place, from, dtype, row * K + k, 1);
    }
  }
}

// Packs as many rows of a matrix of dtype as a vector has lanes, from row `first`.
template <class Real>
void pack_transposed(const Panel<Real>& to, int64_t stride, const void* from, DType dtype, int64_t first, int64_t K,
                     int64_t count) {
  if (dtype == Native<Real>::dtype) {
    transpose_into(reinterpret_cast<Real*>(to.at), stride, static_cast<const Real*>(from) + first * K, K, count);
  } else if (to.stored == dtype) {
    transpose_into(reinterpret_cast<uint16_t*>(to.at), stride, static_cast<const uint16_t*>(from) + first * K, K, count);
  } else {
    for (int lane = 0; lane < Vec<Real>::lanes; ++lane) {
      pack_column(to + lane, stride, from, dtype, lane < count ? first + lane : -1, K);
    }
  }
}

// Packs part of one row of a row-major matrix as row k of a panel; columns beyond the matrix become 0. `width` is a
// whole number of vectors.
template <class Real>
GATEWISE_INLINE void pack_row(Real* to, int64_t width, const void* from, DType dtype, int64_t index, int64_t count) {
  for (int64_t at = 0; at < width; at += Vec<Real>::lanes) {
    if (count > at) {
      load_units<Real>(from, dtype, index + at, count - at).store(to + at);
    } else {
      Vec<Real>(0.0).store(to + at);
    }
  }
}

template <class Real>
inline void pack_row(const Panel<Real>& to, int64_t width, const void* from, DType dtype, int64_t index, int64_t count) {
  if (to.stored == Native<Real>::dtype) {
    pack_row(reinterpret_cast<Real*>(to.at), width, from, dtype, index, count);
    return;
  }
  const int64_t given = std::clamp<int64_t>(count, 0, width);
  uint16_t* words = reinterpret_cast<uint16_t*>(to.at);
  if (given > 0) std::memcpy(words, static_cast<const uint16_t*>(from) + index, given * 2);
  std::fill_n(words + given, width - given, uint16_t(0));
}

}  // namespace GATEWISE_ISA
}  // namespace gatewise
