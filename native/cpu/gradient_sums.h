// The other sums of a gradient run, over all rows of a chunk and in a fixed order: the gradients of the biases, the peephole and
// the source; and what is done with the sums of all sections in the end.
#pragma once

#include "cpu/gradient_weights.h"

namespace gatewise {
namespace GATEWISE_ISA {

template <class Real>
struct GradientSums : GradientWeights<Real> {
  using Base = GradientWeights<Real>;
  using Share = typename Base::Share;
  using Sums = typename Base::Sums;
  using ChunkRow = typename Base::ChunkRow;
  using Base::call, Base::cell, Base::arena, Base::units, Base::team, Base::sections, Base::crew_size, Base::wide, Base::depth,
      Base::du_stride, Base::state_columns, Base::input_columns, Base::du, Base::scratch, Base::source_panel, Base::dx_rows,
      Base::d_bias, Base::d_peephole, Base::d_secondary_bias, Base::has_input, Base::phase_of, Base::du_column,
      Base::shared_depth, Base::input_shift, Base::dx_apart, Base::in_place, Base::before, Base::lanes, Base::vectors_at,
      Base::packed, Base::row_of, Base::source_once, Base::source_depth, Base::source_tiles, Base::pack_source,
      Base::run_begin, Base::run_rows, Base::columns_of, Base::share_of, Base::recurrent_sums, Base::input_sums;
  using Base::Base;

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
    const int64_t width = of_input ? call.I : call.H;
    for (int64_t k = 0; k < depth[phase]; k += call.H) {
      const int64_t index = row_of(phase, d, k) * width + columns.begin;
      with_numbers<Real>(of_input ? call.input_weight : call.recurrent_weight, call.dtype, index, [&](const auto* B) {
        row_products(rows, columns.size(), call.H, A + k + (of_input ? input_shift(phase, k) : 0), du_stride[phase], B, width, C, ldc,
                     add || k > 0);
      });
    }
  }

  // Where the source's gradient is summed from row `first` of the source on, which is row r of the chunk.
  Real* source_sums(const GradientPart<Real>& own, int64_t first, int64_t r) const {
    if (!dx_apart()) return static_cast<Real*>(call.d_source) + first * call.I;
    return call.D == 2 ? dx_rows.in(arena, 0) + first * call.I : dx_rows.in(arena, own.crew) + r * call.I;
  }
  // Some columns of some rows of that to the result, unless they are made there.
  void hand_over_source(int64_t first, int64_t rows, const Range& columns, const Real* from) const {
    for (int64_t i = 0; dx_apart() && columns.size() > 0 && i < rows; ++i) {
      const int64_t at = i * call.I + columns.begin;
      write_run(call.d_source, call.dtype, first * call.I + at, from + at, columns.size());
    }
  }

  // The source's gradient for this thread's share of the chunk's rows, or of their columns where rows are few.
  void source_gradients(const GradientPart<Real>& own, int d, int64_t t0, int64_t steps) const {
    if (!packed) {
      const Range vectors = part(input_columns / lanes, crew_size, own.member);
      const Range columns{vectors.begin * lanes, std::min(vectors.end * lanes, call.I)};
      const int64_t first = t0 * call.N, rows = steps * call.N;
      Real* out = source_sums(own, first, 0);
      for (int phase = 0; phase < cell.phases; ++phase) {
        unpacked_products(phase, d, true, rows, columns, du[phase].in(arena, own.crew), out + columns.begin, call.I,
                          phase > 0 || d > 0);
      }
      if (d == call.D - 1) hand_over_source(first, rows, columns, out);
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
      Real* out = source_sums(own, first, r);
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
      const Range columns{tiles.begin * wide * lanes, std::min(tiles.end * wide * lanes, I)};
      if (d == call.D - 1) hand_over_source(first, here, columns, out);
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
