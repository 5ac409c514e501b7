// One matrix product C = A B, plus a row if there is one, on the team: for a graph's ordinary layers, so that no second
// library's threads spin beside ours. Each thread makes a rectangle of C alone. Every element is one sum over k in ascending
// order, so results do not depend on the number of threads.
#pragma once

#include "cpu/run.h"

namespace gatewise {
namespace GATEWISE_ISA {

template <class Real>
struct MatrixRun {
  static constexpr int lanes = Vec<Real>::lanes;
  static constexpr int wide = 2;                 // vectors per tile
  static constexpr int64_t tile = wide * lanes;  // columns per tile
  static constexpr int64_t k_block = 256, n_block = 512;

  const Product& call;
  const Real* a;
  const Real* b;
  const Real* row;
  Real* c;
  Arena& arena;
  int team = 1, row_parts = 1, column_parts = 1;
  int64_t tiles = 0;
  Piece<Real> packed_a, packed_b, tail;

  MatrixRun(const Product& call, Arena& arena)
      : call(call),
        a(static_cast<const Real*>(call.a)),
        b(static_cast<const Real*>(call.b)),
        row(static_cast<const Real*>(call.row)),
        c(static_cast<Real*>(call.c)),
        arena(arena) {}

  // Divides C so that the threads together pack as little as possible.
  void plan(int threads) {
    tiles = (call.N + tile - 1) / tile;
    const double all = static_cast<double>((call.N + lanes - 1) / lanes * lanes);
    double least = 1e300;
    for (int rows = 1; rows <= threads; ++rows) {
      const int columns = static_cast<int>(std::min<int64_t>(threads / rows, tiles));
      const double height = static_cast<double>((call.M + rows - 1) / rows);
      const double width = std::min(static_cast<double>((tiles + columns - 1) / columns * tile), all);
      const double cost = height * width + 8.0 * (height + width);
      if (cost < least) least = cost, row_parts = rows, column_parts = columns;
    }
    team = row_parts * column_parts;
    arena.begin();
    packed_a.reserve(arena, team * most_rows * k_block);
    packed_b.reserve(arena, team * k_block * n_block);
    tail.reserve(arena, team * most_rows * tile);
    arena.allocate();
  }

  // Columns of the tile at n: the last one is a single vector wide where that is enough.
  int64_t width_at(int64_t n) const { return call.N - n <= lanes ? lanes : tile; }

  void pack_b(Real* to, int64_t k0, int64_t depth, int64_t n) const {
    const int64_t width = width_at(n), count = std::min(width, call.N - n);
    const Real* from = b + k0 * call.b_row + n * call.b_column;
    if (call.b_column == 1) {
      for (int64_t k = 0; k < depth; ++k) pack_row(to + k * width, width, from, Native<Real>::dtype, k * call.b_row, count);
      return;
    }
    for (int64_t j = 0; j < width; ++j) {
      for (int64_t k = 0; k < depth; ++k) to[k * width + j] = j < count ? from[k * call.b_row + j * call.b_column] : Real(0);
    }
  }

  void pack_a(Real* to, int64_t first, int64_t count, int64_t k0, int64_t depth) const {
    const Real* from = a + first * call.a_row + k0 * call.a_column;
    if (call.a_row == 1 && first + most_rows <= call.M) {  // some more than asked for, in one go
      for (int64_t k = 0; k < depth; ++k) std::memcpy(to + k * most_rows, from + k * call.a_column, most_rows * sizeof(Real));
      return;
    }
    for (int64_t k = 0; k < depth; ++k) {
      for (int64_t i = 0; i < count; ++i) to[k * most_rows + i] = from[i * call.a_row + k * call.a_column];
    }
  }

  void thread(int id) const {
    const Range rows = part(call.M, row_parts, id / column_parts), columns = part(tiles, column_parts, id % column_parts);
    if (rows.size() == 0 || columns.size() == 0) return;
    Real* A = packed_a.in(arena) + id * most_rows * k_block;
    Real* B = packed_b.in(arena) + id * k_block * n_block;
    Real* last = tail.in(arena) + id * most_rows * tile;
    const Groups groups(rows.size(), tile_rows(wide));
    const bool in_place = call.a_column == 1;  // rows of A can be read where they are
    for (int64_t n0 = columns.begin * tile; n0 < columns.end * tile; n0 += n_block) {
      const int64_t n1 = std::min(n0 + n_block, columns.end * tile);
      for (int64_t k0 = 0; k0 < call.K; k0 += k_block) {
        const int64_t depth = std::min(k_block, call.K - k0);
        for (int64_t n = n0; n < n1; n += tile) pack_b(B + (n - n0) * depth, k0, depth, n);
        for (int64_t g = 0; g < groups.count; ++g) {
          const int64_t first = rows.begin + groups.begin(g), count = groups.begin(g + 1) - groups.begin(g);
          if (!in_place) pack_a(A, first, count, k0, depth);
          const Real* left = in_place ? a + first * call.a_row + k0 : A;
          const int64_t lda = in_place ? call.a_row : most_rows;
          for (int64_t n = n0; n < n1; n += tile) {
            const int64_t width = width_at(n), exist = std::min(width, call.N - n);
            constexpr DType stored = Native<Real>::dtype;
            const int vectors = static_cast<int>(width / lanes), rows_here = static_cast<int>(count);
            const auto product = in_place ? tile_stored<Real, stored, Tile::plain>(vectors, rows_here)
                                          : tile_stored<Real, stored, Tile::turned>(vectors, rows_here);
            Real* to = c + first * call.N + n;
            const char* panel = reinterpret_cast<const char*>(B + (n - n0) * depth);
            const bool whole = exist == width, add = k0 > 0 || row != nullptr;
            for (int64_t i = 0; i < count && add && (k0 == 0 || !whole); ++i) {  // what the product is added to
              pack_row(whole ? to + i * call.N : last + i * tile, width, k0 == 0 ? row + n : to + i * call.N, stored, 0, exist);
            }
            product(depth, left, lda, panel, whole ? to : last, whole ? call.N : tile, add, nullptr);
            for (int64_t i = 0; i < count && !whole; ++i) std::copy_n(last + i * tile, exist, to + i * call.N);
          }
        }
      }
    }
  }
};

}  // namespace GATEWISE_ISA
}  // namespace gatewise
