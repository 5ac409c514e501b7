// The gradients of the weights: large products over all rows of a chunk, in a fixed order.
#pragma once

#include "cpu/gradient_plan.h"

namespace gatewise {
namespace GATEWISE_ISA {

template <class Real>
struct GradientWeights : GradientPlan<Real> {
  using Base = GradientPlan<Real>;
  using Base::call, Base::cell, Base::arena, Base::sections, Base::crew_size, Base::wide, Base::depth, Base::du_stride,
      Base::stride, Base::state_columns, Base::input_columns, Base::du, Base::operand, Base::turned, Base::packed_b,
      Base::d_recurrent, Base::d_input, Base::has_input, Base::apart_depth, Base::shared_depth, Base::input_shift,
      Base::run_width, Base::tiles_of, Base::in_place, Base::lanes, Base::k_block, Base::n_block,
      Base::vectors_at, Base::packed, Base::row_of;
  using Base::Base;

  // The columns of du, which are rows of the weights, are taken in runs: those that are shared, then the others.
  int64_t runs_of(int64_t count) const { return (count + run_width - 1) / run_width; }
  int64_t run_count(int phase) const { return runs_of(shared_depth(phase)) + runs_of(apart_depth()); }
  int64_t run_begin(int phase, int64_t run) const {
    const int64_t shared = runs_of(shared_depth(phase));
    return run < shared ? run * run_width : shared_depth(phase) + (run - shared) * run_width;
  }
  int64_t run_rows(int phase, int64_t run) const {
    const int64_t end = run < runs_of(shared_depth(phase)) ? shared_depth(phase) : depth[phase];
    return std::min(run_width, end - run_begin(phase, run));
  }

  // What one of several threads makes of the weights' gradients: some runs of rows, and of each weight some of the columns.
  struct Share {
    Range runs;
    int column_parts, column_part;
  };
  Range columns_of(const Share& share, int64_t columns) const {
    const Range tiles = part(tiles_of(columns), share.column_parts, share.column_part);
    return {tiles.begin * wide * lanes, std::min(tiles.end * wide * lanes, columns)};
  }
  // By runs, unless there are too few of them for all threads: threads that write to the same rows take lines from each other. So
  // short calls and sums of several sections, which are small, are always divided by runs.
  Share share_of(int phase, int parts, int number) const {
    const int64_t runs = run_count(phase);
    const auto most = [](int64_t count, int shares) { return (count + shares - 1) / shares; };
    int best = 1;
    int64_t least = 0;
    for (int across = 1; across <= (packed && sections == 1 ? parts : 1); ++across) {
      if (parts % across != 0) continue;
      const int64_t tiles = most(tiles_of(state_columns), across) + (has_input() ? most(tiles_of(input_columns), across) : 0);
      const int64_t work = most(runs, parts / across) * tiles;  // of the largest share
      if (5 * work < 4 * least || across == 1) best = across, least = work;
    }
    return {part(runs, parts / best, number / best), best, number % best};
  }

  // Where the sums of a run are, and the length of a row.
  struct Sums {
    Real* at;
    int64_t stride;
    Sums operator+(int64_t column) const { return {at + column, stride}; }
  };
  Sums sums_of(int section, int phase, int d, int64_t run, const Pieces<Real>* apart, void* result, int64_t columns,
               int64_t padded) const {
    section -= in_place(columns);
    const int64_t begin = run_begin(phase, run);
    if (section >= 0) return {apart[phase].in(arena, section) + begin * padded, padded};
    return {static_cast<Real*>(result) + row_of(phase, d, begin) * columns, columns};
  }
  Sums recurrent_sums(int section, int phase, int d, int64_t run) const {
    return sums_of(section, phase, d, run, d_recurrent, call.d_recurrent_weight, call.H, state_columns);
  }
  Sums input_sums(int section, int phase, int d, int64_t run) const {
    return sums_of(section, phase, d, run, d_input, call.d_input_weight, call.I, input_columns);
  }

  // One row of a right operand: `count` numbers from `index` on.
  struct RightRow {
    const void* from;
    DType dtype;
    int64_t index, count;
  };
  // A row of a chunk: its place there, and where it comes from.
  struct ChunkRow {
    int64_t k, t, n;
    const Range& section;
    ChunkRow(const GradientPart<Real>& own, int64_t t0, int64_t k)
        : k(k), t(t0 + k / own.section.size()), n(own.section.begin + k % own.section.size()), section(own.section) {}
    void advance() {
      ++k;
      if (++n == section.end) n = section.begin, ++t;
    }
  };

  // A weight whose gradient is wanted: its columns and those that a thread makes, where its sums are, and the rows they come from.
  template <class SumsOf, class Right>
  struct Wanted {
    bool of_input;
    int64_t columns;
    Range own;
    SumsOf sums;  // of a run
    Right right;  // one of the chunk's
  };
  template <class SumsOf, class Right>
  static Wanted<SumsOf, Right> wanted(bool of_input, int64_t columns, const Range& own, SumsOf sums, Right right) {
    return {of_input, columns, own, sums, right};
  }
  // The column of du that a run begins with.
  template <class One>
  int64_t left_column(const One& one, int phase, int64_t run) const {
    const int64_t begin = run_begin(phase, run);
    return begin + (one.of_input ? input_shift(phase, begin) : 0);
  }

  // The sums below for a call of few rows, which is bound by writing them: each row of the result from end to end.
  template <class One>
  void short_weight_gradient(const GradientPart<Real>& own, int64_t t0, int phase, const Real* left, const Range& runs,
                             int64_t rows, const One& one) const {
    Real* A = turned.in(arena, own.thread);
    Real* B = packed_b.in(arena, own.thread);
    for (int64_t n = one.own.begin; n < one.own.end; n += n_block) {
      const int64_t width = std::min(n_block, one.own.end - n);
      for (ChunkRow at(own, t0, 0); at.k < rows; at.advance()) {
        const RightRow row = one.right(at);
        pack_row(B + at.k * width, width, row.from, row.dtype, row.index + n, row.count - n);
      }
      for (int64_t run = runs.begin; run < runs.end; ++run) {
        const Sums to = one.sums(run);
        const int64_t count = run_rows(phase, run);
        const Real* from = left + left_column(one, phase, run);
        if (rows == 1) {
          outer_product(count, width, from, B, to.at + n, to.stride);
          continue;
        }
        for (int64_t m = 0; m < count; ++m) {
          for (int64_t k = 0; k < rows; ++k) A[m * rows + k] = from[k * du_stride[phase] + m];
        }
        row_products(count, width, rows, A, rows, B, width, to.at + n, to.stride, false);
      }
    }
  }

  // Packs some columns of some rows that a gradient comes from, tile after tile; gives where the next may begin.
  template <class One>
  Real* pack_right(const GradientPart<Real>& own, int64_t t0, const One& one, const Range& columns, const Range& rows,
                   Real* B) const {
    constexpr int64_t tile = wide * lanes;
    // Rows of a long call's source come from far, and not in one stream.
    ChunkRow later(own, t0, std::min(rows.begin + 8, rows.end));
    const bool fetch = one.of_input && far_gates(call, cell.gates);
    for (ChunkRow at(own, t0, rows.begin); columns.size() > 0 && at.k < rows.end; at.advance()) {
      const RightRow row = one.right(at);
      if (fetch && later.k < rows.end) {
        const RightRow next = one.right(later);
        const char* from = static_cast<const char*>(next.from) + next.index * size_of(next.dtype);
        for (int64_t n = 0; n < next.count * size_of(next.dtype); n += 64) __builtin_prefetch(from + n);
        later.advance();
      }
      const int64_t whole = row.dtype == Native<Real>::dtype ? std::min(columns.end, row.count) - tile : -1;
      int64_t n = columns.begin;
      Real* to = B + (at.k - rows.begin) * tile;
      for (const Real* from = static_cast<const Real*>(row.from) + row.index; n <= whole; n += tile, to += rows.size() * tile) {
        for (int64_t j = 0; j < tile; j += lanes) Vec<Real>::load(from + n + j).store(to + j);
      }
      for (int64_t width = 0; n < columns.end; n += width) {
        width = vectors_at(n, one.columns) * lanes;
        to = B + (n - columns.begin) * rows.size() + (at.k - rows.begin) * width;
        pack_row(to, width, row.from, row.dtype, row.index + n, row.count - n);
      }
    }
    return B + columns.size() * rows.size();
  }

  // Some rows of a run, as many as a tile takes.
  struct Group {
    int64_t run, m, count;
  };
  // The rows of a group, which are columns of `left`, times what was packed so; gives where what was packed for the next begins.
  // What comes from far is fetched ahead: the sums of the next tile, the `left` of the next group.
  template <class One>
  const Real* add_products(const One& one, int phase, const Group& group, const Group& next, const Range& columns, int64_t K,
                           const Real* left, const Real* B, bool add) const {
    const auto left_of = [&](const Group& which) { return left + left_column(one, phase, which.run) + which.m; };
    const auto sums_at = [&](const Group& which, int64_t n) {
      const Sums sums = one.sums(which.run);
      return Sums{sums.at + which.m * sums.stride + n, sums.stride};
    };
    const Real *from = left_of(group), *next_from = left_of(next);
    const int64_t tile = wide * lanes, tiles = tiles_of(columns.size());
    for (int64_t number = 0; number < tiles; ++number) {
      const int64_t n = columns.begin + number * tile;
      constexpr auto function = tile_stored<Real, Native<Real>::dtype, Tile::turned_fetching>;
      const auto product = function(vectors_at(n, one.columns), static_cast<int>(group.count));
      const char* panel = reinterpret_cast<const char*>(B + (n - columns.begin) * K);
      const Sums to = sums_at(group, n), later = number + 1 < tiles ? sums_at(group, n + tile) : sums_at(next, columns.begin);
      const int64_t k = number * (K / ahead_steps);  // as far as the tiles before have fetched
      const Real* fetched = k < K ? next_from + k * du_stride[phase] + next.count - 1 : from;
      const Ahead<Real> ahead{K, later.at, later.stride, lanes, fetched, fetched, du_stride[phase]};
      product(K, from, du_stride[phase], panel, to.at, to.stride, add, &ahead);
    }
    return B + columns.size() * K;
  }

  // sums(run)[m][n] (+)= sum over the chunk's rows k of left[k][m] * right(k)[n], for some runs of rows m. Gradients whose columns
  // fit into n_block together may be made together: then what was read of `left` is still in the cache.
  template <class... Ones>
  void weight_gradient(const GradientPart<Real>& own, int64_t t0, int phase, const Real* left, const Range& runs, int64_t rows,
                       bool begun, const Ones&... ones) const {
    if (!packed) return (short_weight_gradient(own, t0, phase, left, runs, rows, ones), ...);
    Real* const packed_right = packed_b.in(arena, own.thread);
    for (int64_t n0 = 0; n0 < std::max({ones.own.size()...}); n0 += n_block) {
      const auto columns = [&](const auto& one) {
        return Range{one.own.begin + n0, std::min(one.own.begin + n0 + n_block, one.own.end)};
      };
      const int passes = static_cast<int>((rows + k_block - 1) / k_block);
      for (int pass = 0; pass < passes; ++pass) {
        const Range depth_here = part(rows, passes, pass);
        Real* to = packed_right;
        ((to = pack_right(own, t0, ones, columns(ones), depth_here, to)), ...);
        for (int64_t run = runs.begin; run < runs.end; ++run) {
          const Groups groups(run_rows(phase, run), tile_rows(wide));
          for (int64_t g = 0; g < groups.count; ++g) {
            const int64_t m = groups.begin(g), end = groups.begin(g + 1);
            const Group group{run, m, end - m};
            Group next = group;
            if (g + 1 < groups.count) {
              next = {run, end, groups.begin(g + 2) - end};
            } else if (run + 1 < runs.end) {
              next = {run + 1, 0, std::min<int64_t>(tile_rows(wide), run_rows(phase, run + 1))};
            }
            const Real* B = packed_right;
            ((B = add_products(ones, phase, group, next, columns(ones), depth_here.size(),
                               left + depth_here.begin * du_stride[phase], B, begun || pass > 0)),
             ...);
          }
        }
      }
    }
  }

  void weight_gradients(const GradientPart<Real>& own, int d, int64_t t0, int64_t steps, bool begun) const {
    const int64_t rows = steps * own.section.size(), I = call.I;
    for (int phase = 0; phase < cell.phases; ++phase) {
      const Share share = share_of(phase, crew_size, own.member);
      if (share.runs.size() == 0) continue;
      const Range &runs = share.runs, states = columns_of(share, state_columns), inputs = columns_of(share, input_columns);
      const Real *operands = operand[phase].in(arena, own.crew), *left = du[phase].in(arena, own.crew);
      const auto recurrent = wanted(
          false, state_columns, states, [&](int64_t run) { return recurrent_sums(own.number, phase, d, run); },
          [&](const ChunkRow& at) { return RightRow{operands, Native<Real>::dtype, at.k * stride, state_columns}; });
      const auto input = wanted(
          true, input_columns, inputs, [&](int64_t run) { return input_sums(own.number, phase, d, run); },
          [&](const ChunkRow& at) {  // a row past its end adds nothing, whatever it holds
            return RightRow{call.source, call.dtype, (at.t * call.N + at.n) * I, call.active(at.t, at.n) ? I : 0};
          });
      if (has_input() && states.size() + inputs.size() <= n_block) {
        weight_gradient(own, t0, phase, left, runs, rows, begun, recurrent, input);
        continue;
      }
      weight_gradient(own, t0, phase, left, runs, rows, begun, recurrent);
      if (has_input()) weight_gradient(own, t0, phase, left, runs, rows, begun, input);
    }
  }
};

}  // namespace GATEWISE_ISA
}  // namespace gatewise
