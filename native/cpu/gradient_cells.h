// The cells' gradients on rows of some blocks, for the gradient run.
#pragma once

#include "cpu/gradient.h"

namespace gatewise {
namespace GATEWISE_ISA {

// Where a row's results at step t begin in the caller's arrays: those as long as the state, and each gate.
template <int G>
struct SavedRow {
  int64_t state, gate[G];
  GATEWISE_INLINE SavedRow(const Call& call, int d, int64_t t, int64_t n) {
    const int64_t row = (t * call.N + n) * call.D + d;
    state = row * call.H;
    for (int g = 0; g < G; ++g) gate[g] = (row * G + call.slot[g]) * call.H;
  }
};

// Where else the maths of a row finds its numbers, from unit 0 on. Worked out once for all units: beside the maths of a vector
// of them the compiler would do it again for each.
template <class Real, class Cell, int PHASE>
struct GradientRow {
  static constexpr int G = Cell::gates;
  SavedRow<G> saved;
  Real *dh, *dc;
  Real* du;       // of the phase's first gate; the others lie H apart
  Real* operand;  // of the second phase
  Real* next;     // of the step after this one; null: it is not made here
  const Real *q, *secondary_bias, *peephole;
  Earlier h, c;
  int64_t padded, row_length;

  GATEWISE_INLINE GradientRow(const GradientStep<Real>& step, int64_t n)
      : saved(step.run->call, step.direction, step.t, n),
        padded(step.run->units.padded),
        row_length(step.run->call.D * step.run->call.H) {
    const GradientRun<Real>& run = *step.run;
    const GradientPart<Real>& own = *step.own;
    const Call& call = run.call;
    const Arena& arena = run.arena;
    const int d = step.direction;
    const int64_t row = run.chunk_row(own, step.slot, n);
    dh = own.dh + run.own_place(own, n, 0);
    dc = own.dc + run.own_place(own, n, 0);
    du = run.du[PHASE].in(arena, own.crew) + row * run.du_stride[PHASE];
    operand = run.operand[1].in(arena, own.crew) + row * run.stride;
    const int64_t after = row + (step.after - step.t) * own.section.size();
    next = step.after < 0 ? nullptr : run.operand[0].in(arena, own.crew) + after * run.stride;
    q = run.q.in(arena, own.crew) + row * padded;
    secondary_bias = run.secondary_bias.in(arena) + d * padded;
    peephole = run.peephole.in(arena) + d * G * padded;
    h = run.earlier(call.output_given, call.init_state, d, step.t, step.before, n);
    c = run.earlier(call.cell_given, call.init_cell, d, step.t, step.before, n);
  }

  // On to the next row, where all are alike.
  GATEWISE_INLINE void advance(const GradientRun<Real>& run) {
    saved.state += row_length, h.index += row_length, c.index += row_length;
    for (int g = 0; g < G; ++g) saved.gate[g] += G * row_length;
    dh += run.own_units, dc += run.own_units;
    du += run.du_stride[PHASE], operand += run.stride, q += padded;
    if (next != nullptr) next += run.stride;
  }
};

// A vector of units as they were before the step.
template <class Real, Lanes LANES>
GATEWISE_INLINE Vec<Real> load_earlier(const Call& call, const Earlier& where, int64_t unit) {
  if (where.from == nullptr) return Vec<Real>(0.0);
  return Access<Real, LANES>::load(where.from, call.dtype, where.index + unit, call.H - unit);
}

// A vector of units of one row: everything that was saved or given.
template <class Real, class Cell, Lanes LANES, bool PLAIN = false>
GATEWISE_INLINE void load_saved(const Call& call, const SavedRow<Cell::gates>& row, int64_t unit,
                                Gradient<Vec<Real>, Cell::gates>& v) {
  using Units = Access<Real, LANES>;
  const int64_t left = call.H - unit;
  for (int g = 0; g < Cell::gates; ++g) {
    v.gate[g] = Units::load(call.z_given, call.dtype, row.gate[g] + unit, left);
    v.dgate[g] = Vec<Real>(0.0);
    if (!PLAIN && call.z_state_gradient != nullptr) {
      v.dgate[g] = Units::load(call.z_state_gradient, call.dtype, row.gate[g] + unit, left);
    }
  }
  if constexpr (Cell::has_cell) v.c_next = Units::load(call.cell_given, call.dtype, row.state + unit, left);
}

// One vector of units of one row; `e` is its own.
template <class Real, class Cell, class Act, int PHASE, Lanes LANES, bool PLAIN>
GATEWISE_INLINE void gradient_vector(const GradientStep<Real>& step, const GradientRow<Real, Cell, PHASE>& in, const Act& act,
                                     int64_t n, int64_t unit, bool active, const Real* e) {
  using V = Vec<Real>;
  using Units = Access<Real, LANES>;
  constexpr int G = Cell::gates, first = Cell::first_gate[PHASE], count = Cell::gate_count[PHASE];
  const GradientRun<Real>& run = *step.run;
  const Call& call = run.call;
  const int d = step.direction;
  const int64_t H = call.H, left = H - unit;
  Gradient<V, G> v;
  if (PLAIN || active) {
    load_saved<Real, Cell, LANES, PLAIN>(call, in.saved, unit, v);
    v.dh = V::load(in.dh + unit) + Units::load(call.source_gradient, call.dtype, in.saved.state + unit, left);
    if constexpr (Cell::has_cell) {
      v.dc = V::load(in.dc + unit);
      if (call.cell_sequence_gradient != nullptr) {
        v.dc = v.dc + Units::load(call.cell_sequence_gradient, call.dtype, in.saved.state + unit, left);
      }
      v.c = load_earlier<Real, LANES>(call, in.c, unit);
      if constexpr (Cell::peephole) {
        for (int g = 0; g < G; ++g) v.p[g] = V::load(in.peephole + g * in.padded + unit);
      }
    }
    if constexpr (!Cell::restores_state) v.h = load_earlier<Real, LANES>(call, in.h, unit);
    if constexpr (Cell::needs_product) v.q = V::load(in.q + unit) + V::load(in.secondary_bias + unit);
    if constexpr (Cell::phases == 2) {
      v.m = PLAIN || call.mask == nullptr ? V(1.0) : load_mask<Real, LANES>(call, step.t, n, d * H + unit, left);
      if constexpr (PHASE < Cell::phases - 1) v.e = V::load(e);
    }
    Cell::template gradient<PHASE>(act, v);
    if constexpr (Cell::restores_state) {
      if (in.next != nullptr) {
        Cell::restore(act, v);
        V operand = !PLAIN && call.reset(step.after, n) ? V(0.0) : v.h_next;
        if (!PLAIN && call.mask != nullptr) operand = operand * load_mask<Real, LANES>(call, step.after, n, d * H + unit, left);
        operand.store(in.next + unit);
      }
    }
    if constexpr (PHASE == 0) {
      v.h_prev.store(in.dh + unit);
      if constexpr (Cell::has_cell) v.c_prev.store(in.dc + unit);
    }
  } else {
    v.operand = V(0.0);
    for (int g = first; g < first + count; ++g) v.du[g] = v.dx[g] = V(0.0);
  }
  if constexpr (Cell::phases == 2 && PHASE == 0) v.operand.store(in.operand + unit);
  for (int g = first; g < first + count; ++g) {
    const int64_t place = (g - first) * H + unit;
    Units::store(in.du, Native<Real>::dtype, place, v.du[g], left);
    if (!PLAIN && !run.has_input()) {
      const V& value = Cell::dx_differs ? v.dx[g] : v.du[g];
      Units::store(call.d_source, call.dtype, in.saved.gate[g] + unit, value, left);
    }
  }
  if constexpr (Cell::dx_differs) Units::store(in.du, Native<Real>::dtype, G * H + unit, v.dx[G - 1], left);
}

// The cell's gradient on some rows and blocks. `e`, for a phase that needs it, belongs to a single block.
template <class Real, class Cell, class Act, int PHASE>
void gradient_pointwise(const GradientStep<Real>& step, const Range& blocks, int64_t first_row, int64_t rows, const Real* e) {
  const GradientRun<Real>& run = *step.run;
  const Call& call = run.call;
  const Act act = make_activations<Act>(call);
  const int64_t width = run.units.width, first = blocks.begin * width, count = std::min(blocks.end * width, call.H) - first;
  const int64_t e_length = e == nullptr ? 0 : width;
  if constexpr (std::is_same_v<Real, float>) {
    if (run.plain()) {
      constexpr int lanes = Vec<Real>::lanes;
      const auto all_rows = [&](auto kind, int64_t begin, int64_t end) GATEWISE_ALWAYS {
        GradientRow<Real, Cell, PHASE> in(step, first_row);
        for (int64_t i = 0; i < rows; ++i, in.advance(run)) {
          for (int64_t at = begin; at < end; at += lanes) {
            const Real* own_e = e == nullptr ? e : e + i * e_length + at;
            gradient_vector<Real, Cell, Act, PHASE, kind.value, true>(step, in, act, first_row + i, first + at, true, own_e);
          }
        }
      };
      const int64_t whole = count / lanes * lanes;
      if (whole > 0) all_rows(std::integral_constant<Lanes, Lanes::all>{}, 0, whole);
      if (whole < count) all_rows(std::integral_constant<Lanes, Lanes::some>{}, whole, count);
      return;
    }
  }
  for (int64_t n = first_row; n < first_row + rows; ++n, e += e_length) {
    const bool active = call.active(step.t, n);
    const GradientRow<Real, Cell, PHASE> in(step, n);
    each_vector<Real, true>(call.dtype, 1, count, [&](auto kind, int64_t, int64_t at) GATEWISE_ALWAYS {
      const Real* own_e = e == nullptr ? e : e + at;
      gradient_vector<Real, Cell, Act, PHASE, kind.value, false>(step, in, act, n, first + at, active, own_e);
    });
  }
}

// Phase 0's operand at this step, (reset ? 0 : previous state) * mask; 0 where the row takes no part.
template <class Real, class Cell, class Act>
void rebuild_operand(const GradientStep<Real>& step, const Range& blocks, int64_t first_row, int64_t rows) {
  using V = Vec<Real>;
  constexpr int G = Cell::gates;
  const GradientRun<Real>& run = *step.run;
  const Call& call = run.call;
  const Act act = make_activations<Act>(call);
  const int d = step.direction;
  const int64_t first = blocks.begin * run.units.width, exist = std::min(blocks.end * run.units.width, call.H) - first;
  for (int64_t n = first_row; n < first_row + rows; ++n) {
    const bool active = call.active(step.t, n);
    Real* to = run.operand[0].in(run.arena, step.own->crew) + run.chunk_row(*step.own, step.slot, n) * run.stride + first;
    const bool restored = Cell::restores_state && !call.reset(step.t, n) && step.before >= 0 && call.active(step.before, n);
    const SavedRow<G> saved(call, d, step.before, n);
    const Earlier earlier =
        run.earlier(call.output_given, call.init_state, d, step.t, Cell::restores_state ? -1 : step.before, n);
    if (run.plain() && !restored && earlier.from != nullptr) {
      std::copy_n(static_cast<const Real*>(earlier.from) + earlier.index + first, exist, to);
      continue;
    }
    each_vector<Real, true>(call.dtype, 1, exist, [&](auto kind, int64_t, int64_t at) GATEWISE_ALWAYS {
      V operand(0.0);
      if (active) {
        if (restored) {
          Gradient<V, G> v;
          load_saved<Real, Cell, kind.value>(call, saved, first + at, v);
          if constexpr (Cell::restores_state) Cell::restore(act, v);
          operand = v.h_next;
        } else {
          operand = load_earlier<Real, kind.value>(call, earlier, first + at);
        }
        if (call.mask != nullptr) {
          operand = operand * load_mask<Real, kind.value>(call, step.t, n, d * call.H + first + at, call.H - first - at);
        }
      }
      operand.store(to + at);
    });
  }
}

template <class Real, class Cell, class Act>
GradientCell<Real> make_gradient_cell() {
  GradientCell<Real> cell;
  cell.gates = Cell::gates;
  cell.phases = Cell::phases;
  for (int phase = 0; phase < Cell::phases; ++phase) {
    cell.first_gate[phase] = Cell::first_gate[phase];
    cell.gate_count[phase] = Cell::gate_count[phase];
  }
  cell.has_cell = Cell::has_cell;
  cell.peephole = Cell::peephole;
  cell.needs_product = Cell::needs_product;
  cell.dx_differs = Cell::dx_differs;
  cell.output_sees_new_cell = Cell::output_sees_new_cell;
  cell.restores_state = Cell::restores_state;
  cell.rebuild = rebuild_operand<Real, Cell, Act>;
  cell.pointwise[0] = gradient_pointwise<Real, Cell, Act, 0>;
  if constexpr (Cell::phases == 2) cell.pointwise[1] = gradient_pointwise<Real, Cell, Act, 1>;
  return cell;
}

}  // namespace GATEWISE_ISA
}  // namespace gatewise
