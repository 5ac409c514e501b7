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

// What will be needed after a tile, fetched while it is made: some rows of an array, as many vectors of each as a tile is wide,
// and of two others a line (of one where the tile is turned). A row at a time, since too much at once would be waited for.
constexpr int64_t ahead_steps = 8;  // from row to row
template <class Real>
struct Ahead {
  int64_t rows = 0;
  const Real* wide = nullptr;
  int64_t wide_row = 0, wide_vector = 0;  // from row to row, and from vector to vector
  const Real *line = nullptr, *other_line = nullptr;
  int64_t line_row = 0;

  Ahead part(int64_t first, int64_t count) const {
    const int64_t lines = first * line_row;
    return {count, wide + first * wide_row, wide_row, wide_vector, line + lines, other_line + lines, line_row};
  }
};

// How a tile is made. Only some fetch ahead: the others would pay for what that needs in registers.
enum class Tile { plain, fetching, turned, turned_fetching };

// C[i][:] (+)= sum over k of A(i, k) * B[k][:]. A(i, k) is A[i * lda + k], or A[k * lda + i] when turned.
template <class Real, DType STORED, int MR, int NV, Tile KIND>
void tile(int64_t K, const Real* A, int64_t lda, const char* B, Real* C, int64_t ldc, bool add, const Ahead<Real>* ahead) {
  using Native = typename Vec<Real>::Native;
  constexpr int lanes = Vec<Real>::lanes, size = size_of(STORED);
  constexpr bool TURNED = KIND == Tile::turned || KIND == Tile::turned_fetching;
  Native sum[MR][NV];
#pragma GCC unroll 16
  for (int i = 0; i < MR; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < NV; ++j) sum[i][j] = add ? Vec<Real>::load(C + i * ldc + j * lanes).v : Native{};
  }
  // Rows from two places: the offsets of twelve from one do not fit the registers.
  constexpr int half = MR > 8 ? MR / 2 : MR;
  const Real* lower = TURNED ? A : A + half * lda;
  asm("" : "+r"(lower));
  const auto add_product = [&](int64_t k) GATEWISE_ALWAYS {
    Native b[NV];
#pragma GCC unroll 4
    for (int j = 0; j < NV; ++j) b[j] = load_as<Real, STORED>(B + j * lanes * size);
    B += NV * lanes * size;
#pragma GCC unroll 16
    for (int i = 0; i < MR; ++i) {
      const Real a = TURNED ? A[k * lda + i] : i < half ? A[i * lda + k] : lower[(i - half) * lda + k];
#pragma GCC unroll 4
      for (int j = 0; j < NV; ++j) sum[i][j] += b[j] * a;
    }
  };
  int64_t k = 0;
  if constexpr (KIND == Tile::fetching || KIND == Tile::turned_fetching) {
    const Real *wide = ahead->wide, *line = ahead->line, *other_line = ahead->other_line;
    for (int64_t row = 0; row < ahead->rows && k + ahead_steps <= K; ++row) {
#pragma GCC unroll 4
      for (int j = 0; j < NV; ++j) __builtin_prefetch(wide + j * ahead->wide_vector);
      __builtin_prefetch(line);
      if (!TURNED) __builtin_prefetch(other_line);
      wide += ahead->wide_row, line += ahead->line_row, other_line += ahead->line_row;
      for (int64_t i = 0; i < ahead_steps; ++i) add_product(k++);
    }
  }
  for (; k < K; ++k) add_product(k);
#pragma GCC unroll 16
  for (int i = 0; i < MR; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < NV; ++j) Vec<Real>(sum[i][j]).store(C + i * ldc + j * lanes);
  }
}

template <class Real>
using TileFunction = void (*)(int64_t, const Real*, int64_t, const char*, Real*, int64_t, bool, const Ahead<Real>*);

template <class Real, DType STORED, int NV, Tile KIND, int... ROWS>
TileFunction<Real> tile_for_rows(int rows, std::integer_sequence<int, ROWS...>) {
  static constexpr TileFunction<Real> table[] = {tile<Real, STORED, ROWS + 1, NV, KIND>...};
  return table[rows - 1];
}

template <class Real, DType STORED, Tile KIND>
TileFunction<Real> tile_stored(int vectors, int rows) {
  switch (vectors) {
    case 1: return tile_for_rows<Real, STORED, 1, KIND>(rows, std::make_integer_sequence<int, tile_rows(1)>());
    case 2: return tile_for_rows<Real, STORED, 2, KIND>(rows, std::make_integer_sequence<int, tile_rows(2)>());
    case 3: return tile_for_rows<Real, STORED, 3, KIND>(rows, std::make_integer_sequence<int, tile_rows(3)>());
    default: return tile_for_rows<Real, STORED, 4, KIND>(rows, std::make_integer_sequence<int, tile_rows(4)>());
  }
}

// The tile for panels of this width and kind.
template <class Real>
TileFunction<Real> tile_function(int vectors, int rows, DType stored) {
  if constexpr (std::is_same_v<Real, float>) {
    if (stored == DType::bfloat16) return tile_stored<Real, DType::bfloat16, Tile::plain>(vectors, rows);
    if (stored == panel_dtype<Real>(DType::float16)) {
      return tile_stored<Real, panel_dtype<Real>(DType::float16), Tile::plain>(vectors, rows);
    }
  }
  return tile_stored<Real, Native<Real>::dtype, Tile::plain>(vectors, rows);
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
    const auto tile = tile_function<Real>(vectors, static_cast<int>(count), panel.stored);
    tile(K, A + i * lda, lda, panel.at, C + i * ldc, ldc, add, nullptr);
  }
}
// The same for a panel of Real. `ahead`, as many rows for each of C's, is fetched on the way.
template <class Real>
inline void panel_product(int64_t rows, int64_t K, const Real* A, int64_t lda, const Panel<Real>& panel, int vectors, Real* C,
                          int64_t ldc, bool add, const Ahead<Real>& ahead) {
  const Groups groups(rows, tile_rows(vectors));
  for (int64_t g = 0; g < groups.count; ++g) {
    const int64_t i = groups.begin(g), count = groups.begin(g + 1) - i;
    const Ahead<Real> next = ahead.part(i * (ahead.rows / rows), count * (ahead.rows / rows));
    const auto tile = tile_stored<Real, Native<Real>::dtype, Tile::fetching>(vectors, static_cast<int>(count));
    tile(K, A + i * lda, lda, panel.at, C + i * ldc, ldc, add, &next);
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

// A vector of four floats each from as many rows, K apart, as there is room for.
GATEWISE_INLINE Transposed<float>::Vector quarters(const float* from, int64_t K) {
  Transposed<float>::Vector joined;
#if defined(__AVX2__)
  const auto pair = [&](int64_t row, int64_t other) {
    return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(from + row * K)), _mm_loadu_ps(from + other * K), 1);
  };
#if defined(__AVX512F__)
  joined = (Transposed<float>::Vector)_mm512_insertf32x8(_mm512_castps256_ps512(pair(0, 4)), pair(8, 12), 1);
#else
  joined = (Transposed<float>::Vector)pair(0, 4);
#endif
#else
  (void)K;
  std::memcpy(&joined, from, sizeof joined);
#endif
  return joined;
}

// to[k * stride + row] = from[row * K + k] for a square as wide as a vector: loads put four numbers of each of several rows side
// by side, so that only the small transposes of four by four are left, which need not cross the parts of a vector.
inline void transpose_square(float* to, int64_t stride, const float* from, int64_t K) {
  using Vector = Transposed<float>::Vector;
  constexpr int lanes = sizeof(Vector) / sizeof(float);
  Transposed<float>::Mask low, high, front, back;  // of two vectors: single numbers by turns, and pairs
  for (int j = 0; j < lanes; ++j) {
    low[j] = j / 4 * 4 + j % 4 / 2 + j % 2 * lanes;
    high[j] = low[j] + 2;
    front[j] = j / 4 * 4 + j % 2 + j % 4 / 2 * lanes;
    back[j] = front[j] + 2;
  }
  for (int k = 0; k < lanes; k += 4) {
    Vector rows[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) rows[i] = quarters(from + i * K + k, K);
    const auto store = [&](int j, const Vector& column) { std::memcpy(to + (k + j) * stride, &column, sizeof column); };
    const auto join = [&](int j, const Vector& a, const Vector& b) {
      store(j, __builtin_shuffle(a, b, front));
      store(j + 1, __builtin_shuffle(a, b, back));
    };
    join(0, __builtin_shuffle(rows[0], rows[1], low), __builtin_shuffle(rows[2], rows[3], low));
    join(2, __builtin_shuffle(rows[0], rows[1], high), __builtin_shuffle(rows[2], rows[3], high));
  }
}

// Packs rows of a row-major matrix as columns of a panel: to[k * stride + lane] = from[lane * K + k]. Lanes beyond
// `count` become 0. As many rows from `next` on are fetched by the way, since they will be packed soon and may come from far.
template <class Element>
void transpose_into(Element* to, int64_t stride, const Element* from, int64_t K, int64_t count, const Element* next) {
  using Vector = typename Transposed<Element>::Vector;
  constexpr int lanes = sizeof(Vector) / sizeof(Element);
  int64_t k = 0;
  if (count >= lanes) {
    for (; k + lanes <= K; k += lanes) {
      for (int lane = 0; lane < lanes; ++lane) __builtin_prefetch(next + lane * K + k, 0, 2);
      if constexpr (std::is_same_v<Element, float>) {
        transpose_square(to + k * stride, stride, from + k, K);
        continue;
      }
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

// Packs as many rows of a matrix of dtype as a vector has lanes, from row `first`; those from row `next` on come after them.
template <class Real>
void pack_transposed(const Panel<Real>& to, int64_t stride, const void* from, DType dtype, int64_t first, int64_t K,
                     int64_t count, int64_t next) {
  const auto transpose = [&](auto* place) {
    const auto* rows = static_cast<decltype(place)>(const_cast<void*>(from));
    transpose_into(place, stride, rows + first * K, K, count, rows + next * K);
  };
  if (dtype == Native<Real>::dtype) {
    transpose(reinterpret_cast<Real*>(to.at));
  } else if (to.stored == dtype) {
    transpose(reinterpret_cast<uint16_t*>(to.at));
  } else {  // widened on the way, some columns at a time
    constexpr int lanes = Vec<Real>::lanes;
    constexpr int64_t at_once = 64;
    Real wide[lanes * at_once] = {};
    for (int64_t k0 = 0; k0 < K; k0 += at_once) {
      const int64_t columns = std::min(at_once, K - k0);
      for (int64_t lane = 0; lane < std::min<int64_t>(lanes, count); ++lane) {
        read_run(wide + lane * at_once, from, dtype, (first + lane) * K + k0, columns);
      }
      Real* place = reinterpret_cast<Real*>(to.at) + k0 * stride;
      int64_t k = 0;
      if constexpr (std::is_same_v<Real, float>) {
        for (; k + lanes <= columns; k += lanes) transpose_square(place + k * stride, stride, wide + k, at_once);
      }
      for (; k < columns; ++k) {
        for (int64_t lane = 0; lane < lanes; ++lane) place[k * stride + lane] = wide[lane * at_once + k];
      }
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
