// The forward run: all steps of a call inside one parallel region.
//
// For a chunk of steps the input products are made first, as one large product; then step by step each thread makes
// the recurrent product of its rows and units, tile by tile, and applies the cell to the tile while it is in cache.
#pragma once

#include "cpu/forward_plan.h"

namespace gatewise {
namespace GATEWISE_ISA {

template <class Real>
struct ForwardRun : ForwardPlan<Real> {
  using Base = ForwardPlan<Real>;
  using Tiles = typename Base::Tiles;
  using Base::call, Base::cell, Base::watch, Base::arena, Base::units, Base::grid, Base::team, Base::copies, Base::packed,
      Base::input_packed, Base::abreast, Base::far_results, Base::direct_source, Base::far_source, Base::input_once,
      Base::single_step, Base::chunk, Base::columns, Base::x_block, Base::stride, Base::a_rows, Base::a_stride,
      Base::input_after, Base::recurrent_after, Base::input_panels, Base::phase_panels, Base::bias, Base::peephole,
      Base::secondary_bias, Base::group, Base::everyone, Base::block_columns, Base::phase_columns, Base::input_panel,
      Base::once_panel, Base::phase_panel, Base::input_tiles, Base::phase_tiles, Base::part_of, Base::own_place;
  using Base::Base;

  // Packs some gates' columns of a weight with rows of length K, for one tile of a block.
  void pack_tile(const Panel<Real>& panel, const Tiles& tiles, int tile, const void* weight, int64_t K, int d, int first_gate,
                 int gates, int64_t block) const {
    constexpr int lanes = Vec<Real>::lanes;
    const int64_t gate_width = units.gate_width(block), wide = tiles.vectors * lanes;
    const auto row_of = [&](int64_t column) {
      const int64_t gate = column / gate_width;
      return (d * cell.gates + call.slot[first_gate + gate]) * call.H + block * units.width + column % gate_width;
    };
    const int64_t first = tile * wide, last = tiles.count * wide - lanes;
    for (int64_t column = first; column < first + wide; column += lanes) {
      const Panel<Real> to = panel + (column - first);
      if (gate_width % lanes == 0) {
        const int64_t next = column < last ? row_of(column + lanes) : row_of(0) + units.width;
        pack_transposed(to, wide, weight, call.dtype, row_of(column), K, call.H - block * units.width - column % gate_width, next);
        continue;
      }
      for (int lane = 0; lane < lanes; ++lane) {  // parts of several gates
        const int64_t at = column + lane, unit = block * units.width + at % gate_width;
        const bool exists = at < gates * gate_width && unit < call.H;
        pack_column(to + lane, wide, weight, call.dtype, exists ? row_of(at) : -1, K);
      }
    }
  }
  // All tiles of the block, one after the other.
  void pack_weight(const Panel<Real>& panel, const Tiles& tiles, const void* weight, int64_t K, int d, int first_gate,
                   int gates, int64_t block) const {
    const int64_t width = tiles.vectors * Vec<Real>::lanes;
    for (int tile = 0; tile < tiles.count; ++tile) {
      pack_tile(panel + tile * K * width, tiles, tile, weight, K, d, first_gate, gates, block);
    }
  }

  // Packs all that is used step by step, for one block of one direction.
  void pack(const ForwardPart<Real>& own, int d, int64_t block) const {
    if (input_packed && !input_once && call.input_weight != nullptr && !input_panels.ready) {
      pack_weight(input_panel(own, d, block), input_tiles(block), call.input_weight, call.I, d, 0, cell.gates, block);
    }
    for (int phase = 0; packed && phase < cell.phases; ++phase) {
      if (phase_panels[phase].ready) continue;
      pack_weight(phase_panel(own, phase, d, block), phase_tiles(phase, block), call.recurrent_weight, call.H, d,
                  cell.first_gate[phase], cell.gate_count[phase], block);
    }
    const int64_t unit = block * units.width, left = call.H - unit;
    for (int g = 0; g < cell.gates; ++g) {
      const int64_t row = (d * cell.gates + call.slot[g]) * call.H + unit;
      const int64_t at = d * columns + block * block_columns() + g * units.gate_width(block);
      if (call.bias != nullptr) pack_row(bias.in(arena, own.copy) + at, units.width, call.bias, call.dtype, row, left);
      if (call.peephole != nullptr) pack_row(peephole.in(arena, own.copy) + at, units.width, call.peephole, call.dtype, row, left);
    }
    pack_row(secondary_bias.in(arena, own.copy) + d * units.padded + unit, units.width, call.secondary_bias, call.dtype,
             d * call.H + unit, call.secondary_bias == nullptr ? 0 : left);
  }

  // Initial carried state and cell, and phase 0's operand of the first step, for a thread's rows and blocks.
  void start(const ForwardPart<Real>& own, int d, int64_t t) const {
    constexpr int lanes = Vec<Real>::lanes;
    const int64_t end = std::min(own.blocks.end * units.width, call.H);
    for (int64_t n = own.rows.begin; n < own.rows.end; ++n) {
      for (int64_t unit = own.blocks.begin * units.width; unit < end; unit += lanes) {
        const int64_t count = call.H - unit, index = (n * call.D + d) * call.H + unit, i = n - own.rows.begin;
        const int64_t at = own_place(own, unit / units.width, n) * units.width + unit % units.width;
        Vec<Real> state(0.0), cell_value(0.0);
        if (call.init_state != nullptr) state = load_units<Real>(call.init_state, call.dtype, index, count);
        if (call.init_cell != nullptr) cell_value = load_units<Real>(call.init_cell, call.dtype, index, count);
        state.store(own.h + at);
        cell_value.store(own.c + at);
        next_operand(d, t, n, unit, state).store(own.operand[0] + i * stride + unit);
      }
    }
  }

  // (reset ? 0 : state) * mask at step t.
  template <Lanes LANES = Lanes::any>
  GATEWISE_INLINE Vec<Real> next_operand(int d, int64_t t, int64_t n, int64_t unit, const Vec<Real>& state) const {
    const Vec<Real> kept = call.reset(t, n) ? Vec<Real>(0.0) : state;
    if (call.mask == nullptr) return kept;
    return kept * load_mask<Real, LANES>(call, t, n, d * call.H + unit, call.H - unit);
  }

  // Products with some gates' rows of a weight as the caller gave it, for one block: C[row][gate][width].
  void unpacked_products(const void* weight, int64_t K, int64_t after, int d, int first_gate, int gates, int64_t block,
                         int64_t rows, const Real* A, int64_t lda, Real* C, int64_t ldc) const {
    const int64_t H = call.H, unit = block * units.width;
    for (int g = 0; g < gates; ++g) {
      const int64_t row = (d * cell.gates + call.slot[first_gate + g]) * H + unit;
      with_numbers<Real>(weight, call.dtype, row * K, [&](const auto* B) {
        dot_products(rows, std::min(units.width, H - unit), K, A, lda, B, after, abreast, C + g * units.gate_width(block), ldc);
      });
    }
  }

  // Rows first..first+count-1 of a thread's source from step t0 on, row (t - t0) * rows.size() + n - rows.begin.
  struct Source {
    const Real* rows;
    int64_t count, stride;
  };
  Source source_rows(const ForwardPart<Real>& own, int64_t t0, int64_t first, int64_t count) const {
    const Range& rows = own.rows;
    const Real* given = static_cast<const Real*>(call.source) + (t0 * call.N + first) * call.I;
    if (direct_source && (input_after == 0 || after_line(given, call.I) == input_after)) return {given, count, call.I};
    const auto index = [&](int64_t i) {
      const int64_t t = t0 + (first + i) / rows.size(), n = rows.begin + (first + i) % rows.size();
      return (t * call.N + n) * call.I;
    };
    for (int64_t i = 0; i < count; ++i) {
      if (far_source) {  // eight rows ahead
        const char* later = static_cast<const char*>(call.source) + index(i + 8) * size_of(call.dtype);
        for (int64_t k = 0; k < call.I * size_of(call.dtype); k += 64) __builtin_prefetch(later + k);
      }
      read_run(own.gathered + i * a_stride, call.source, call.dtype, index(i), call.I);
    }
    return {own.gathered, count, a_stride};
  }

  // The rows of W that the next tile is packed from, each tile being one gate's, for a product of so many rows.
  Ahead<Real> weight_ahead(const ForwardPart<Real>& own, int d, int64_t block, int tile, int64_t rows) const {
    const int64_t line = 64 / sizeof(Real), lines = units.vectors * line;
    const bool here = tile + 1 < cell.gates, end = !here && block + 1 == own.blocks.end;
    const int64_t row = (d * cell.gates + call.slot[here ? tile + 1 : 0]) * call.H + (here ? block : block + 1) * units.width;
    const Real* next = static_cast<const Real*>(call.input_weight) + row * call.I;
    return {end ? 0 : units.width * call.I / lines / rows * rows, next, lines, line, next, next, lines};
  }

  // Products of some rows of the source with a block of the input weight, from row `first` of the chunk on.
  void input_product(const ForwardPart<Real>& own, int d, int64_t block, const Source& source, int64_t first) const {
    Real* to = own.x + (block - own.blocks.begin) * x_block + first * block_columns();
    if (!input_packed) {
      unpacked_products(call.input_weight, call.I, input_after, d, 0, cell.gates, block, source.count, source.rows, source.stride,
                        to, block_columns());
      return;
    }
    const Tiles tiles = input_tiles(block);
    for (int tile = 0; tile < tiles.count; ++tile) {
      const int64_t column = tile * tiles.vectors * Vec<Real>::lanes;
      const Panel<Real> panel = input_once ? once_panel(own) : input_panel(own, d, block) + call.I * column;
      const auto product = [&](const auto&... ahead) {
        panel_product(source.count, call.I, source.rows, source.stride, panel, tiles.vectors, to + column, block_columns(), false,
                      ahead...);
      };
      if (input_once) pack_tile(panel, tiles, tile, call.input_weight, call.I, d, 0, cell.gates, block);
      const bool fetch = input_once && tiles.count == cell.gates && call.dtype == Native<Real>::dtype;
      fetch ? product(weight_ahead(own, d, block, tile, source.count)) : product();
    }
  }

  // Input products of steps t0..t1-1 for a thread's rows and blocks.
  void input_products(const ForwardPart<Real>& own, int d, int64_t t0, int64_t t1) const {
    const int64_t total = (t1 - t0) * own.rows.size();
    for (int64_t first = 0; first < total; first += a_rows) {
      const Source source = source_rows(own, t0, first, std::min(a_rows, total - first));
      for (int64_t block = own.blocks.begin; block < own.blocks.end; ++block) {
        input_product(own, d, block, source, first);
      }
    }
  }

  // Where the results of some rows of a block will be written.
  Ahead<Real> results_ahead(const ForwardStep<Real>& step, int64_t block, int64_t first_row, int64_t rows,
                            int first_vector) const {
    const int64_t row = (step.t * call.N + first_row) * call.D + step.direction, unit = block * units.width, H = call.H;
    const Real *gates = static_cast<const Real*>(call.z_state), *state = static_cast<const Real*>(call.state);
    const Real* cells = call.cell_out == nullptr ? state : static_cast<const Real*>(call.cell_out);
    const int64_t vector = units.vectors == 1 ? H : Vec<Real>::lanes;  // from one of the tile's to the next
    gates += row * cell.gates * H + unit + first_vector * vector;
    return {rows, gates, call.D * cell.gates * H, vector, state + row * H + unit, cells + row * H + unit, call.D * H};
  }

  // One phase of one step for a thread's rows and blocks.
  void phase(int number, const ForwardStep<Real>& step, const Real* A) const {
    const ForwardPart<Real>& own = *step.own;
    const Range &rows = own.rows, &blocks = own.blocks;
    const int64_t ldu = phase_columns(number);
    Real* u = own.scratch;
    const bool with_input = single_step && number == 0;
    const Source source = with_input ? source_rows(own, step.t, 0, rows.size()) : Source{};
    // Fetches what the other threads have just written all at once, if it is not much; the product would wait line by line.
    const int64_t operands = grid.unit_parts > 1 ? rows.size() * stride : 0, few = (24 << 10) / sizeof(Real);
    for (int64_t i = 0; i < (operands <= few ? operands : 0); i += 64 / sizeof(Real)) __builtin_prefetch(A + i);
    // To and fro: what a step read last is still in the cache when the next one begins, be it another call's.
    const bool forth = (step.t + (single_step ? arena.turn() : 0)) % 2 == 0;
    for (int64_t i = 0; i < blocks.size(); ++i) {
      const int64_t block = forth ? blocks.begin + i : blocks.end - 1 - i;
      if (with_input) input_product(own, step.direction, block, source, 0);
      const Tiles tiles = phase_tiles(number, block);
      const int64_t width = tiles.vectors * Vec<Real>::lanes;
      const Panel<Real> panel = packed ? phase_panel(own, number, step.direction, block) : Panel<Real>{};
      for (int64_t first = 0; first < rows.size(); first += rows_at_once) {
        const int64_t count = std::min(rows_at_once, rows.size() - first);
        const Real* from = A + first * stride;
        if (!packed) {
          unpacked_products(call.recurrent_weight, call.H, recurrent_after, step.direction, cell.first_gate[number],
                            cell.gate_count[number], block, count, from, stride, u, ldu);
        }
        for (int j = 0; packed && j < tiles.count; ++j) {
          const int tile = forth ? j : tiles.count - 1 - j;
          const auto product = [&](const auto&... ahead) {
            panel_product(count, call.H, from, stride, panel + tile * call.H * width, tiles.vectors, u + tile * width, ldu, false,
                          ahead...);
          };
          far_results ? product(results_ahead(step, block, rows.begin + first, count, tile * tiles.vectors)) : product();
        }
        cell.pointwise[number](step, block, rows.begin + first, count, u);
      }
    }
  }

  void thread(int id) {
    Pulse pulse(watch, call.N * call.H);
    const ForwardPart<Real> own = part_of(id);
    const Range& blocks = own.blocks;
    if (grid.row_parts == 1 || copies > 1) {
      for (int64_t item = 0; item < call.D * blocks.size(); ++item) {
        pack(own, static_cast<int>(item / blocks.size()), blocks.begin + item % blocks.size());
      }
    } else {  // each block is used by several threads
      for (int64_t item = id; item < call.D * units.blocks; item += team) {
        pack(own, static_cast<int>(item / units.blocks), item % units.blocks);
      }
      if (!everyone.wait(watch.stop)) return;
    }
    Barrier& meet = group == nullptr ? everyone : group[id / grid.unit_parts];
    const bool has_input = call.input_weight != nullptr;

    for (int d = 0; d < call.D; ++d) {
      const auto time = [&](int64_t place) { return call.backwards[d] ? call.T - 1 - place : place; };
      start(own, d, time(0));
      for (int64_t first = 0; first < call.T; first += chunk) {
        const int64_t last = std::min(first + chunk, call.T);
        const int64_t t0 = std::min(time(first), time(last - 1));
        if (has_input && !single_step) input_products(own, d, t0, t0 + last - first);
        if (first == 0 && !meet.wait(watch.stop)) return;
        for (int64_t place = first; place < last; ++place) {
          const int64_t t = time(place);
          ForwardStep<Real> step{this, &own, d, t, place + 1 < call.T ? time(place + 1) : -1,
                                 has_input ? own.x + (t - t0) * own.rows.size() * block_columns() : nullptr,
                                 own.operand[place % 2], own.operand[(place + 1) % 2]};
          const bool end = place + 1 == call.T && d + 1 == call.D;  // nobody reads what the last phase leaves
          phase(0, step, step.operand);
          if (cell.phases == 2) {
            if (!meet.wait(watch.stop)) return;
            phase(1, step, own.second_operand);
          }
          if (!end && !meet.wait(watch.stop)) return;
          if (pulse.stopped(id == 0)) return;
        }
      }
    }
  }
};

}  // namespace GATEWISE_ISA
}  // namespace gatewise
