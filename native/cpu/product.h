// The packed matrix product. Every element is one sum over k in ascending order, whatever the tile, so results do not
// depend on how the work is divided.
//
// A packed operand is a list of panels, each [K][NV * lanes]: the columns of one tile for every k.
#pragma once

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

// C[i][:] (+)= sum over k of A(i, k) * B[k][:]. A(i, k) is A[i * lda + k], or A[k * lda + i] when PACKED.
template <class Real, int MR, int NV, bool PACKED>
void tile(int64_t K, const Real* A, int64_t lda, const Real* B, Real* C, int64_t ldc, bool add) {
  using Native = typename Vec<Real>::Native;
  constexpr int lanes = Vec<Real>::lanes;
  Native sum[MR][NV];
#pragma GCC unroll 16
  for (int i = 0; i < MR; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < NV; ++j) sum[i][j] = add ? Vec<Real>::load(C + i * ldc + j * lanes).v : Native{};
  }
  for (int64_t k = 0; k < K; ++k) {
    Native b[NV];
#pragma GCC unroll 4
    for (int j = 0; j < NV; ++j) b[j] = Vec<Real>::load(B + j * lanes).v;
    B += NV * lanes;
#pragma GCC unroll 16
    for (int i = 0; i < MR; ++i) {
      const Real a = PACKED ? A[k * lda + i] : A[i * lda + k];
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
using TileFunction = void (*)(int64_t, const Real*, int64_t, const Real*, Real*, int64_t, bool);

template <class Real, int NV, bool PACKED, int MR>
constexpr TileFunction<Real> tile_or_null() {
  if constexpr (MR <= tile_rows(NV)) {
    return tile<Real, MR, NV, PACKED>;
  } else {
    return nullptr;
  }
}

template <class Real, int NV, bool PACKED>
TileFunction<Real> tile_for_rows(int rows) {
  static constexpr TileFunction<Real> table[] = {
      nullptr,
      tile_or_null<Real, NV, PACKED, 1>(),  tile_or_null<Real, NV, PACKED, 2>(),  tile_or_null<Real, NV, PACKED, 3>(),
      tile_or_null<Real, NV, PACKED, 4>(),  tile_or_null<Real, NV, PACKED, 5>(),  tile_or_null<Real, NV, PACKED, 6>(),
      tile_or_null<Real, NV, PACKED, 7>(),  tile_or_null<Real, NV, PACKED, 8>(),  tile_or_null<Real, NV, PACKED, 9>(),
      tile_or_null<Real, NV, PACKED, 10>(), tile_or_null<Real, NV, PACKED, 11>(), tile_or_null<Real, NV, PACKED, 12>()};
  return table[rows];
}

template <class Real, bool PACKED = false>
TileFunction<Real> tile_function(int vectors, int rows) {
  switch (vectors) {
    case 1: return tile_for_rows<Real, 1, PACKED>(rows);
    case 2: return tile_for_rows<Real, 2, PACKED>(rows);
    case 3: return tile_for_rows<Real, 3, PACKED>(rows);
    default: return tile_for_rows<Real, 4, PACKED>(rows);
  }
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
inline void panel_product(int64_t rows, int64_t K, const Real* A, int64_t lda, const Real* panel, int vectors, Real* C,
                          int64_t ldc, bool add) {
  const Groups groups(rows, tile_rows(vectors));
  for (int64_t g = 0; g < groups.count; ++g) {
    const int64_t i = groups.begin(g);
    tile_function<Real>(vectors, static_cast<int>(groups.begin(g + 1) - i))(K, A + i * lda, lda, panel, C + i * ldc, ldc,
                                                                          add);
  }
}

// The sum of a vector's lanes, in a fixed order.
template <class Real>
GATEWISE_INLINE Real sum_of_lanes(const typename Vec<Real>::Native& v) {
  typedef Real Quarter __attribute__((vector_size(16)));
  constexpr int parts = GATEWISE_VECTOR_BYTES / 16, lanes = 16 / sizeof(Real);
  Quarter part[parts];
  std::memcpy(part, &v, sizeof v);
  Quarter sum = part[0];
#pragma GCC unroll 4
  for (int i = 1; i < parts; ++i) sum += part[i];
  return lanes == 2 ? sum[0] + sum[1] : (sum[0] + sum[lanes - 2]) + (sum[1] + sum[lanes - 1]);
}

// C[i * ldc + j] = sum over k of A[i * lda + k] * B[j * K + k] for MR rows of A and JR of B, neither of them packed: for
// calls too short to pay for packing.
template <class Real, int MR, int JR>
void dots(int64_t K, const Real* A, int64_t lda, const Real* B, Real* C, int64_t ldc) {
  using Native = typename Vec<Real>::Native;
  constexpr int lanes = Vec<Real>::lanes;
  Native sum[MR][JR] = {};
  int64_t k = 0;
  const auto add = [&](auto load) {
    Native b[JR];
#pragma GCC unroll 4
    for (int j = 0; j < JR; ++j) b[j] = load(B + j * K + k).v;
#pragma GCC unroll 4
    for (int i = 0; i < MR; ++i) {
      const Native a = load(A + i * lda + k).v;
#pragma GCC unroll 4
      for (int j = 0; j < JR; ++j) sum[i][j] += a * b[j];
    }
  };
  for (; k + lanes <= K; k += lanes) add([](const Real* from) { return Vec<Real>::load(from); });
  if (k < K) add([&](const Real* from) { return Vec<Real>::load_part(from, K - k); });
#pragma GCC unroll 4
  for (int i = 0; i < MR; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < JR; ++j) C[i * ldc + j] = sum_of_lanes<Real>(sum[i][j]);
  }
}

// The same for any number of rows and columns.
template <class Real>
void dot_products(int64_t rows, int64_t columns, int64_t K, const Real* A, int64_t lda, const Real* B, Real* C, int64_t ldc) {
  constexpr int most = GATEWISE_VECTOR_REGISTERS == 32 ? 4 : 2;
  for (int64_t j = 0; j < columns; j += 4) {
    const int64_t wide = std::min<int64_t>(columns - j, 4);
    for (int64_t i = 0; i < rows; i += most) {
      const int64_t tall = std::min<int64_t>(rows - i, most);
      const Real* a = A + i * lda;
      const Real* b = B + j * K;
      Real* c = C + i * ldc + j;
      if (wide == 4 && tall == 4) {
        dots<Real, 4, 4>(K, a, lda, b, c, ldc);
      } else if (wide == 4 && tall == 2) {
        dots<Real, 2, 4>(K, a, lda, b, c, ldc);
      } else {
        for (int64_t r = 0; r < tall; ++r) {
          if (wide == 4) {
            dots<Real, 1, 4>(K, a + r * lda, lda, b, c + r * ldc, ldc);
          } else {
            for (int64_t s = 0; s < wide; ++s) dots<Real, 1, 1>(K, a + r * lda, lda, b + s * K, c + r * ldc + s, ldc);
          }
        }
      }
    }
  }
}

// Packs rows of a row-major matrix as columns of a panel: to[k * stride + lane] = from[(first + lane) * K + k].
// Lanes beyond `count` become 0.
template <class Real>
void pack_transposed(Real* to, int64_t stride, const void* from, DType dtype, int64_t first, int64_t K, int64_t count) {
  constexpr int lanes = Vec<Real>::lanes;
  constexpr int64_t step = 64;
  alignas(64) Real block[lanes][step];
  for (int64_t k = 0; k < K; k += step) {
    const int64_t run = std::min(step, K - k);
    for (int lane = 0; lane < lanes; ++lane) {
      if (lane < count) {
        read_run(block[lane], from, dtype, (first + lane) * K + k, run);
      } else {
        std::fill_n(block[lane], run, Real(0));
      }
    }
    for (int64_t j = 0; j < run; ++j) {
      Real* row = to + (k + j) * stride;
      for (int lane = 0; lane < lanes; ++lane) row[lane] = block[lane][j];
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

}  // namespace GATEWISE_ISA
}  // namespace gatewise
