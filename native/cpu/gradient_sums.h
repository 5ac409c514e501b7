// The large products and sums of a gradient run, over all rows of a chunk and in a fixed order: the gradients of the
// weights, the biases, the peephole and the source.
#pragma once

#include "cpu/gradient_plan.h"

namespace gatewise {
namespace GATEWISE_ISA {

template <class Real>
struct GradientSums : GradientPlan<Real> {
  using Base = GradientPlan<Real>;
  using Base::call, Base::cell, Base::arena, Base::units, Base::team, Base::sections, Base::crew_size, Base::wide, Base::depth,
      Base::du_stride, Base::stride, Base::state_columns, Base::input_columns, Base::du, Base::operand, Base::turned,
      Base::packed_b, Base::scratch, Base::source_panel, Base::dx_rows, Base::d_recurrent, Base::d_input, Base::d_bias,
      Base::d_peephole, Base::d_secondary_bias, Base::has_input, Base::phase_of, Base::du_column,
      Base::apart_depth, Base::shared_depth, Base::input_shift, Base::run_width, Base::tiles_of, Base::dx_apart,
      Base::in_place, Base::before, Base::lanes, Base::k_block, Base::n_block, Base::vectors_at, Base::packed, Base::row_of,
      Base::source_once, Base::source_depth, Base::source_tiles, Base::pack_source;
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
    bias_gradients(own, d, t0, steps);
  }

  // to[] += the sum of some rows of du, eight at a time.
  static void add_rows(Real* to, const Real* from, int64_t from_stride, int64_t rows, int64_t columns) {
    for (int64_t k = 0; k < rows; k += 8, from += 8 * from_stride) {
      const int64_t count = std::min<int64_t>(8, rows - k);
      for (int64_t at = 0; at < columns; at += lanes) {
        Vec<Real> sum = Vec<Real>::load(to + at);
        for (int64_t i = 0; i < count; ++i) sum = sum + Vec<Real>::load(from + i * from_stride + at);
        sum.store(to + at);
      }
    }
  }

  // Sums over rows for the bias, the peephole and the secondary bias of some blocks. They lie [gate][padded], with anything in the
  // padding. Rows that take no part hold zeros.
  void bias_gradients(const GradientPart<Real>& own, int d, int64_t t0, int64_t steps) const {
    const Range blocks = part(units.blocks, crew_size, own.member);
    const int64_t first = blocks.begin * units.width, columns = blocks.size() * units.width, rows = steps * own.section.size();
    for (int g = 0; g < cell.gates; ++g) {
      const int phase = phase_of(g);
      const int64_t column = du_column(g, blocks.begin);
      add_rows(d_bias.in(arena, own.number) + g * units.padded + first,
               du[phase].in(arena, own.crew) + column + input_shift(phase, column), du_stride[phase], rows, columns);
      if (g == cell.gates - 1 && cell.needs_product) {
        add_rows(d_secondary_bias.in(arena, own.number) + first, du[phase].in(arena, own.crew) + column, du_stride[phase], rows,
                 columns);
      }
    }
    if (cell.peephole) peephole_gradients(own, {first, std::min(first + columns, call.H)}, d, t0, steps);
  }

  void peephole_gradients(const GradientPart<Real>& own, const Range& range, int d, int64_t t0, int64_t steps) const {
    const int64_t last = cell.gates - 1;
    for (ChunkRow row(own, t0, 0); row.k < steps * own.section.size(); row.advance()) {
      const int64_t k = row.k, t = row.t, n = row.n;
      if (!call.active(t, n)) continue;
      // The cell that the gates' peepholes multiplied at this step, and the output gate's.
      const Earlier old = this->earlier(call.cell_given, call.init_cell, d, t, before(d, t), n);
      const Earlier made{call.cell_given, ((t * call.N + n) * call.D + d) * call.H};
      for (int64_t unit = range.begin; unit < range.end; unit += lanes) {
        const auto seen = [&](const Earlier& cells) {
          if (cells.from == nullptr) return Vec<Real>(0.0);
          return load_units<Real>(cells.from, call.dtype, cells.index + unit, call.H - unit);
        };
        const Vec<Real> before_step = seen(old), by_output = cell.output_sees_new_cell ? seen(made) : before_step;
        for (int g = 0; g < cell.gates; ++g) {
          Real* to = d_peephole.in(arena, own.number) + g * units.padded + unit;
          const Vec<Real> u = Vec<Real>::load(du[0].in(arena, own.crew) + k * du_stride[0] + du_column(g, 0) + unit);
          (Vec<Real>::load(to) + u * (g == last ? by_output : before_step)).store(to);
        }
      }
    }
  }

  // C = du R, or du W, with some columns of the weight as the caller gave it.
  void unpacked_products(int phase, int d, bool of_input, int64_t rows, const Range& columns, const Real* A, Real* C, int64_t ldc,
                         bool add) const {
    const Real* weight = static_cast<const Real*>(of_input ? call.input_weight : call.recurrent_weight);
    const int64_t width = of_input ? call.I : call.H;
    for (int64_t k = 0; k < depth[phase]; k += call.H) {
      row_products(rows, columns.size(), call.H, A + k + (of_input ? input_shift(phase, k) : 0), du_stride[phase],
                   weight + row_of(phase, d, k) * width + columns.begin, width, C, ldc, add || k > 0);
    }
  }

  // The source's gradient for this thread's share of the chunk's rows, or of their columns where rows are few.
  void source_gradients(const GradientPart<Real>& own, int d, int64_t t0, int64_t steps) const {
    if (!packed) {
      const Range vectors = part(input_columns / lanes, crew_size, own.member);
      const Range columns{vectors.begin * lanes, std::min(vectors.end * lanes, call.I)};
      for (int phase = 0; phase < cell.phases; ++phase) {
        unpacked_products(phase, d, true, steps * call.N, columns, du[phase].in(arena, own.crew),
                          static_cast<Real*>(call.d_source) + t0 * call.N * call.I + columns.begin, call.I, phase > 0 || d > 0);
      }
      return;
    }
    const int64_t section = own.section.size(), I = call.I;
    const Range rows = source_once ? Range{0, steps * section} : part(steps * section, crew_size, own.member);
    const Range tiles = source_tiles(own.thread);
    const int64_t at_once = source_once ? rows.size() : 48;
    for (int64_t r = rows.begin, here = 0; r < rows.end; r += here) {
      here = std::min(at_once, rows.end - r);
      if (sections > 1) here = std::min(here, section - r % section);  // the next step's rows do not lie beside these
      const int64_t first = (t0 + r / section) * call.N + own.section.begin + r % section;
      Real* out = static_cast<Real*>(call.d_source) + first * I;
      if (dx_apart()) out = call.D == 2 ? dx_rows.in(arena, 0) + first * I : dx_rows.in(arena, own.crew) + r * I;
      for (int phase = 0; phase < cell.phases; ++phase) {
        const Real* A = du[phase].in(arena, own.crew) + r * du_stride[phase];
        const int64_t most = source_once ? source_depth : depth[phase], shared = shared_depth(phase);
        for (int64_t k = 0, end = 0; k < depth[phase]; k = end) {
          end = std::min(k + most, k < shared ? shared : depth[phase]);
          if (source_once) pack_source(own.thread, phase, d, {k, end});
          for (int64_t tile = tiles.begin; tile < tiles.end; ++tile) {
            source_tile(own.thread, d, phase, tile, {k, end}, A, here, out, phase > 0 || d > 0 || k > 0);
          }
        }
      }
      const int64_t begin = tiles.begin * wide * lanes, end = std::min(tiles.end * wide * lanes, I);
      for (int64_t i = 0; dx_apart() && d == call.D - 1 && begin < end && i < here; ++i) {
        write_run(call.d_source, call.dtype, (first + i) * I + begin, out + i * I + begin, end - begin);
      }
    }
  }

  // out (+)= some columns of du, from row A on, times the panel of one tile of W's columns.
  void source_tile(int thread, int d, int phase, int64_t number, const Range& depth_here, const Real* A, int64_t rows, Real* out,
                   bool add) const {
    const int64_t I = call.I, i = number * wide * lanes, lda = du_stride[phase];
    const int vectors = vectors_at(i, input_columns);
    const int64_t tile = vectors * lanes, K = depth_here.size();
    const Panel<Real> panel = source_panel(thread, phase, d, number) + (source_once ? 0 : depth_here.begin * tile);
    A += depth_here.begin + input_shift(phase, depth_here.begin);
    Real* tail = scratch.in(arena, thread);
    const Groups groups(rows, tile_rows(wide));
    for (int64_t g = 0; g < groups.count; ++g) {
      const int64_t row = groups.begin(g), count = groups.begin(g + 1) - row;
      Real* to = out + row * I + i;
      const auto product = tile_function<Real>(vectors, static_cast<int>(count), panel.stored);
      if (i + tile <= I) {
        product(K, A + row * lda, lda, panel.at, to, I, add, nullptr);
        continue;
      }
      for (int64_t j = 0; add && j < count; ++j) pack_row(tail + j * tile, tile, to + j * I, Native<Real>::dtype, 0, I - i);
      product(K, A + row * lda, lda, panel.at, tail, tile, add, nullptr);
      for (int64_t j = 0; j < count; ++j) std::memcpy(to + j * I, tail + j * tile, (I - i) * sizeof(Real));
    }
  }

  // The sums over rows of this thread's share of the blocks.
  void clear_sums(const GradientPart<Real>& own) const {
    const Range blocks = part(units.blocks, crew_size, own.member);
    const auto clear = [&](const Pieces<Real>& sums, int gates) {
      for (int g = 0; g < gates; ++g) {
        Real* row = sums.in(arena, own.number) + g * units.padded;
        std::fill(row + blocks.begin * units.width, row + blocks.end * units.width, Real(0));
      }
    };
    clear(d_bias, cell.gates);
    if (cell.peephole) clear(d_peephole, cell.gates);
    clear(d_secondary_bias, 1);
  }

  // Adds the sums of the other sections to those of the first, for this thread's share of them.
  void add_sections(int thread, int d) const {
    const auto add = [](const Sums& to, const Sums& from, int64_t rows, int64_t columns) {
      for (int64_t i = 0; i < rows; ++i) add_rows(to.at + i * to.stride, from.at + i * from.stride, 0, 1, columns);
    };
    const Range blocks = part(units.blocks, team, thread);
    const int64_t first = blocks.begin * units.width, count = blocks.size() * units.width;
    for (int section = 1; section < sections; ++section) {
      for (int phase = 0; phase < cell.phases; ++phase) {
        const Share share = share_of(phase, team, thread);
        for (int64_t run = share.runs.begin; run < share.runs.end; ++run) {
          const int64_t rows = run_rows(phase, run);
          const Range states = columns_of(share, state_columns), inputs = columns_of(share, input_columns);
          add(recurrent_sums(0, phase, d, run) + states.begin, recurrent_sums(section, phase, d, run) + states.begin, rows,
              states.size());
          if (!has_input()) continue;
          add(input_sums(0, phase, d, run) + inputs.begin, input_sums(section, phase, d, run) + inputs.begin, rows, inputs.size());
        }
      }
      const auto add_gates = [&](const Pieces<Real>& sums, int gates) {
        add({sums.in(arena, 0) + first, units.padded}, {sums.in(arena, section) + first, units.padded}, gates, count);
      };
      add_gates(d_bias, cell.gates);
      if (cell.peephole) add_gates(d_peephole, cell.gates);
      add_gates(d_secondary_bias, 1);
    }
  }

  // Some columns of a run's sums to a result with `columns` of them, unless they are made there.
  void hand_over(void* result, int phase, int d, int64_t run, const Sums& from, const Range& own, int64_t columns) const {
    const int64_t begin = run_begin(phase, run), count = std::min(own.end, columns) - own.begin;
    for (int64_t k = 0; !in_place(columns) && count > 0 && k < run_rows(phase, run); ++k) {
      const int64_t place = row_of(phase, d, begin + k) * columns + own.begin;
      write_run(result, call.dtype, place, from.at + k * from.stride + own.begin, count);
    }
  }

  void hand_over_sums(int thread, int d) const {
    const int64_t H = call.H, GH = cell.gates * H, width = units.width;
    for (int phase = 0; phase < cell.phases; ++phase) {
      const Share share = share_of(phase, team, thread);  // what this thread has added up
      for (int64_t run = share.runs.begin; run < share.runs.end; ++run) {
        hand_over(call.d_recurrent_weight, phase, d, run, recurrent_sums(0, phase, d, run), columns_of(share, state_columns), H);
        if (!has_input()) continue;
        hand_over(call.d_input_weight, phase, d, run, input_sums(0, phase, d, run), columns_of(share, input_columns), call.I);
      }
    }
    const Range blocks = part(units.blocks, team, thread);
    for (int64_t block = blocks.begin; block < blocks.end; ++block) {
      const int64_t count = std::min(width, H - block * width);
      for (int g = 0; g < cell.gates; ++g) {
        const int64_t to = d * GH + call.slot[g] * H + block * width, from = g * units.padded + block * width;
        if (call.d_bias != nullptr) write_run(call.d_bias, call.dtype, to, d_bias.in(arena, 0) + from, count);
        if (call.d_peephole != nullptr) write_run(call.d_peephole, call.dtype, to, d_peephole.in(arena, 0) + from, count);
      }
      if (call.d_secondary_bias != nullptr) {
        write_run(call.d_secondary_bias, call.dtype, d * H + block * width, d_secondary_bias.in(arena, 0) + block * width, count);
      }
    }
  }
};

}  // namespace GATEWISE_ISA
}  // namespace gatewise
