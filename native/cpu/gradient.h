// The gradient run. Steps are taken from the end, in chunks. Per chunk: the operands of the recurrent products are
// rebuilt; step by step the cell's gradient gives du, and its product with R what reaches the step before; then the
// large products are made.
#pragma once

#include "cpu/gradient_sums.h"

namespace gatewise {
namespace GATEWISE_ISA {

template <class Real>
struct GradientRun : GradientSums<Real> {
  using Base = GradientSums<Real>;
  using Base::call, Base::cell, Base::arena, Base::units, Base::depth, Base::du_stride, Base::stride, Base::du, Base::operand,
      Base::chunks, Base::q, Base::watch, Base::own_units, Base::own_place, Base::part_of, Base::chunk_row, Base::sections,
      Base::crews, Base::crew_size, Base::crew, Base::grid, Base::everyone, Base::group, Base::back_panel,
      Base::product_panels, Base::has_input, Base::plain, Base::before, Base::pack, Base::packs_for_others, Base::packed,
      Base::weight_row, Base::lanes, Base::unpacked_products, Base::weight_gradients, Base::bias_gradients,
      Base::source_gradients, Base::clear_sums, Base::add_sections, Base::hand_over_sums;
  using Base::Base;

  void keep_constants() const {}  // gradients pack them anew

  // Gradients that arrive at the final state and cell.
  void start(const GradientPart<Real>& own, int d) const {
    each_vector(own, [&](int64_t n, int64_t unit) {
      const int64_t count = call.H - unit, index = (n * call.D + d) * call.H + unit, at = own_place(own, n, unit);
      Vec<Real> state(0.0), cell_value(0.0);
      if (call.state_gradient != nullptr) state = load_units<Real>(call.state_gradient, call.dtype, index, count);
      if (call.cell_gradient != nullptr) cell_value = load_units<Real>(call.cell_gradient, call.dtype, index, count);
      state.store(own.dh + at);
      cell_value.store(own.dc + at);
    });
  }

  void finish(const GradientPart<Real>& own, int d) const {
    each_vector(own, [&](int64_t n, int64_t unit) {
      const int64_t count = call.H - unit, index = (n * call.D + d) * call.H + unit, at = own_place(own, n, unit);
      const auto hand_over = [&](void* to, const Real* from) {
        if (to != nullptr) store_units<Real>(to, call.dtype, index, Vec<Real>::load(from + at), count);
      };
      hand_over(call.d_init_state, own.dh);
      hand_over(call.d_init_cell, own.dc);
    });
  }

  template <class Do>
  void each_vector(const GradientPart<Real>& own, Do something) const {
    const int64_t end = std::min(own.blocks.end * units.width, call.H);
    for (int64_t n = own.rows.begin; n < own.rows.end; ++n) {
      for (int64_t unit = own.blocks.begin * units.width; unit < end; unit += lanes) something(n, unit);
    }
  }

  // e = du R for a thread's rows and blocks of one phase, each block handed to `then(block, first row, rows, e)`.
  template <class Then>
  void back_product(const GradientPart<Real>& own, int phase, int d, int64_t slot, Then then) const {
    const Range &rows = own.rows, &blocks = own.blocks;
    const Real* A = du[phase].in(arena, own.crew) + chunk_row(own, slot, rows.begin) * du_stride[phase];
    if (!packed) {
      const Range columns{blocks.begin * units.width, std::min(blocks.end * units.width, call.H)};
      unpacked_products(phase, d, false, rows.size(), columns, A, own.e, own_units, false);
      for (int64_t n = rows.begin; n < rows.end; ++n) {
        for (int64_t block = blocks.begin; block < blocks.end; ++block) {
          then(block, n, 1, own.e + own_place(own, n, block * units.width));
        }
      }
      return;
    }
    const Groups groups(rows.size(), tile_rows(units.vectors));
    for (int64_t block = blocks.begin; block < blocks.end; ++block) {
      const Panel<Real> panel = back_panel(phase, d, block);
      for (int64_t g = 0; g < groups.count; ++g) {
        const int64_t first = groups.begin(g), count = groups.begin(g + 1) - first;
        const auto product = tile_function<Real>(units.vectors, static_cast<int>(count), panel.stored);
        product(depth[phase], A + first * du_stride[phase], du_stride[phase], panel.at, own.e, units.width, false, nullptr);
        then(block, rows.begin + first, count, own.e);
      }
    }
  }

  // What the step before reads of what was saved or given, for a block.
  Ahead<Real> saved_ahead(const GradientStep<Real>& step, int64_t block) const {
    const int64_t row = step.before * call.N + step.own->rows.begin, H = call.H, earlier = before(step.direction, step.before);
    const Real *gates = static_cast<const Real*>(call.z_given), *given = static_cast<const Real*>(call.source_gradient) + row * H;
    if (cell.gates == 1) {  // one or two vectors of each row
      given += block * units.width;
      return {step.own->rows.size(), gates + row * H + block * units.width, H, lanes, given, given + lanes, H};
    }
    const Real* cells = given;
    if (cell.has_cell && earlier >= 0) {
      cells = static_cast<const Real*>(call.cell_given) + (earlier * call.N + step.own->rows.begin) * H;
    }
    // Gates lie H apart, so that all rows' gates are rows here; a row of the others is shared out among them and the blocks.
    return {step.own->rows.size() * cell.gates, gates + row * cell.gates * H + block * units.width, H, lanes,
            given + block * lanes, cells + block * lanes, H / cell.gates};
  }

  // The same for phase 0, to what the cell passed on to the state before: where that takes all of it.
  void add_back_product(const GradientStep<Real>& step) const {
    const GradientPart<Real>& own = *step.own;
    const Real* A = du[0].in(arena, own.crew) + chunk_row(own, step.slot, own.rows.begin) * du_stride[0];
    const bool fetch = step.before >= 0 && call.D == 1 && far_gates(call, cell.gates);
    for (int64_t block = own.blocks.begin; block < own.blocks.end; ++block) {
      Real* to = own.dh + own_place(own, own.rows.begin, block * units.width);
      const auto product = [&](const auto&... ahead) {
        panel_product(own.rows.size(), depth[0], A, du_stride[0], back_panel(0, step.direction, block), units.vectors, to,
                      own_units, true, ahead...);
      };
      fetch ? product(saved_ahead(step, block)) : product();
    }
  }

  // What reaches the state before the step: what the cell passed on directly plus mask * e, nothing across a reset.
  void pass_on(const GradientStep<Real>& step, int64_t block, int64_t first_row, int64_t rows, const Real* e) const {
    const int64_t t = step.t, first = block * units.width, exist = std::min(units.width, call.H - first);
    for (int64_t n = first_row; n < first_row + rows; ++n, e += units.width) {
      if (!call.active(t, n)) continue;
      const int64_t place = own_place(*step.own, n, first);
      const bool reset = call.reset(t, n);
      for (int64_t at = 0; at < exist; at += lanes) {
        Vec<Real> reaches = Vec<Real>::load(e + at);
        if (call.mask != nullptr) {
          reaches = reaches * load_mask<Real>(call, t, n, step.direction * call.H + first + at, exist - at);
        }
        Real* kept = step.own->dh + place + at;
        (reset ? Vec<Real>(0.0) : Vec<Real>::load(kept) + reaches).store(kept);
        if (cell.has_cell && reset) Vec<Real>(0.0).store(step.own->dc + place + at);
      }
    }
  }

  // q = operand R_o^T for every row of the chunk.
  void products_again(const GradientPart<Real>& own, int d, int64_t steps) const {
    const bool together = grid.row_parts == 1;  // then the rows of all steps lie one after the other
    const int64_t all = own.rows.size() * (together ? steps : 1), at_once = std::min<int64_t>(all, 48);
    for (int64_t slot = 0; slot < (together ? 1 : steps); ++slot) {
      const int64_t first = chunk_row(own, slot, own.rows.begin);
      for (int64_t r = 0; r < all; r += at_once) products_of(own, d, first + r, std::min(at_once, all - r));
    }
  }
  void products_of(const GradientPart<Real>& own, int d, int64_t row, int64_t rows) const {
    const Real* A = operand[0].in(arena, own.crew) + row * stride;
    for (int64_t block = own.blocks.begin; block < own.blocks.end; ++block) {
      Real* to = q.in(arena, own.crew) + row * units.padded + block * units.width;
      if (packed) {
        const Panel<Real> panel = product_panels.in(arena) + (d * units.blocks + block) * units.width * call.H;
        panel_product(rows, call.H, A, stride, panel, units.vectors, to, units.padded, false);
      } else {
        const int64_t unit = block * units.width, first = weight_row(d, cell.gates - 1) + unit, row = call.H * sizeof(Real);
        with_numbers<Real>(call.recurrent_weight, call.dtype, first * call.H, [&](const auto* B) {
          dot_products(rows, std::min(units.width, call.H - unit), call.H, A, stride, B, 0, rows_abreast(call.H * row), to,
                       units.padded);
        });
      }
    }
  }

  void thread(int id) {
    Pulse pulse(watch, call.N * call.H);
    for (int d = 0; d < call.D; ++d) pack(part_of(id, 0), d);
    if (packs_for_others() && !everyone.wait(watch.stop)) return;
    for (int d = 0; d < call.D; ++d) {
      const Range own = part(sections, crews, id / crew_size);  // side by side: crews write to few pages in common
      for (int64_t number = own.begin; number < own.end; ++number) {
        if (!section(part_of(id, static_cast<int>(number)), d, pulse)) return;
      }
      if (sections > 1) {
        if (!everyone.wait(watch.stop)) return;
        add_sections(id, d);
      }
      hand_over_sums(id, d);
      if (sections > 1 && !everyone.wait(watch.stop)) return;
    }
  }

  // All steps of one section in one direction; false when the call was stopped.
  bool section(const GradientPart<Real>& own, int d, Pulse& pulse) {
    const auto time = [&](int64_t place) { return call.backwards[d] ? call.T - 1 - place : place; };
    const bool in_grid = own.member < grid.size();
    Barrier& meet = group[own.crew * grid.row_parts + (in_grid ? own.member / grid.unit_parts : 0)];
    Barrier& crew_meets = crews > 1 ? crew[own.crew] : everyone;
    start(own, d);
    clear_sums(own);
    for (int64_t number = chunks; number-- > 0;) {
      const int64_t begin = number * call.T / chunks, end = (number + 1) * call.T / chunks, steps = end - begin;
      const int64_t t0 = std::min(time(begin), time(end - 1));
      if (in_grid && !chunk_steps(own, d, begin, end, t0, meet, pulse)) return false;
      if (!crew_meets.wait(watch.stop)) return false;
      weight_gradients(own, d, t0, steps, end < call.T);
      bias_gradients(own, d, t0, steps);
      if (has_input()) source_gradients(own, d, t0, steps);
      if (!crew_meets.wait(watch.stop)) return false;
    }
    finish(own, d);
    return true;
  }

  // The recurrent part of a chunk; false when the call was stopped.
  bool chunk_steps(const GradientPart<Real>& own, int d, int64_t begin, int64_t end, int64_t t0, Barrier& meet,
                   Pulse& pulse) {
    const Range &rows = own.rows, &blocks = own.blocks;
    // A step whose cell gives its state makes the operand of the step after it by the way; only the first is left. With
    // lengths, rows start and end at different steps: then all are rebuilt.
    const bool by_the_way = cell.restores_state && call.lengths == nullptr;
    const auto time = [&](int64_t place) { return call.backwards[d] ? call.T - 1 - place : place; };
    const auto step_at = [&](int64_t place) {
      const int64_t t = time(place);
      return GradientStep<Real>{this, &own, d, t, before(d, t), t - t0, by_the_way && place + 1 < end ? time(place + 1) : -1};
    };
    for (int64_t place = begin; place < (by_the_way ? begin + 1 : end); ++place) {
      cell.rebuild(step_at(place), blocks, rows.begin, rows.size());
    }
    if (cell.needs_product) {
      if (!meet.wait(watch.stop)) return false;
      products_again(own, d, end - begin);
    }
    for (int64_t place = end - 1; place >= begin; --place) {
      const GradientStep<Real> step = step_at(place);
      const int last = cell.phases - 1;
      cell.pointwise[last](step, blocks, rows.begin, rows.size(), nullptr);
      if (!meet.wait(watch.stop)) return false;
      if (last == 1) {
        back_product(own, 1, d, step.slot, [&](int64_t block, int64_t n, int64_t count, const Real* e) {
          cell.pointwise[0](step, {block, block + 1}, n, count, e);
        });
        if (!meet.wait(watch.stop)) return false;
      }
      if (plain() && packed) {
        add_back_product(step);
      } else {
        back_product(own, 0, d, step.slot, [&](int64_t block, int64_t n, int64_t count, const Real* e) {
          pass_on(step, block, n, count, e);
        });
      }
      if (pulse.stopped(own.thread == 0)) return false;
    }
    return true;
  }
};

}  // namespace GATEWISE_ISA
}  // namespace gatewise
