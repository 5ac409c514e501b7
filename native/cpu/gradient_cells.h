// The cells' gradients on rows of a block, for the gradient run.
#pragma once

#include "cpu/gradient.h"

namespace gatewise {
namespace GATEWISE_ISA {

// Gradient values at one vector of units of one row: everything that was saved or given.
template <class Real, class Cell, bool FULL>
GATEWISE_INLINE void load_saved(const GradientStep<Real>& step, int64_t n, int64_t unit, Gradient<Vec<Real>, Cell::gates>& v) {
  using V = Vec<Real>;
  using Units = Access<Real, FULL>;
  constexpr int G = Cell::gates;
  const GradientRun<Real>& run = *step.run;
  const Call& call = run.call;
  const int64_t H = call.H, left = H - unit, row = (step.t * call.N + n) * call.D + step.direction;
  for (int g = 0; g < G; ++g) {
    const int64_t index = row * G * H + call.slot[g] * H + unit;
    v.gate[g] = Units::load(call.z_given, call.dtype, index, left);
    v.dgate[g] = V(0.0);
    if (call.z_state_gradient != nullptr) v.dgate[g] = Units::load(call.z_state_gradient, call.dtype, index, left);
  }
  if constexpr (Cell::has_cell) v.c_next = Units::load(call.cell_given, call.dtype, row * H + unit, left);
}

// One vector of units of one row. FULL: the call's dtype is Real and all lanes exist.
template <class Real, class Cell, class Act, int PHASE, bool FULL>
GATEWISE_INLINE void gradient_vector(const GradientStep<Real>& step, const Act& act, int64_t block, int64_t n, int64_t at,
                                     bool active, const Real* e) {
  using V = Vec<Real>;
  using Units = Access<Real, FULL>;
  constexpr int G = Cell::gates, first = Cell::first_gate[PHASE], count = Cell::gate_count[PHASE];
  const GradientRun<Real>& run = *step.run;
  const Call& call = run.call;
  const Arena& arena = run.arena;
  const int d = step.direction;
  const int64_t H = call.H, width = run.units.width, padded = run.units.padded;
  const int64_t unit = block * width + at, left = H - unit, slot_row = run.chunk_row(*step.own, step.slot, n);
  const int64_t row = (step.t * call.N + n) * call.D + d;
  Gradient<V, G> v;
  if (active) {
    Real* dh = step.own->dh + run.own_place(*step.own, n, unit);
    Real* dc = step.own->dc + run.own_place(*step.own, n, unit);
    load_saved<Real, Cell, FULL>(step, n, unit, v);
    v.dh = V::load(dh) + Units::load(call.source_gradient, call.dtype, row * H + unit, left);
    if constexpr (Cell::has_cell) {
      v.dc = V::load(dc);
      if (call.cell_sequence_gradient != nullptr) {
        v.dc = v.dc + Units::load(call.cell_sequence_gradient, call.dtype, row * H + unit, left);
      }
      v.c = run.template previous<FULL>(call.cell_given, call.init_cell, d, step.t, step.before, n, unit);
      if constexpr (Cell::peephole) {
        const Real* p = run.peephole.in(arena) + (d * run.units.blocks + block) * run.block_columns() + at;
        for (int g = 0; g < G; ++g) v.p[g] = V::load(p + g * width);
      }
    }
    if constexpr (!Cell::restores_state) {
      v.h = run.template previous<FULL>(call.output_given, call.init_state, d, step.t, step.before, n, unit);
    }
    if constexpr (Cell::needs_product) v.q = V::load(run.q.in(arena, step.own->crew) + slot_row * padded + unit);
    if constexpr (Cell::phases == 2) {
      v.m = call.mask == nullptr ? V(1.0) : load_mask<Real>(call, step.t, n, d * H + unit, left);
      if constexpr (PHASE < Cell::phases - 1) v.e = V::load(e + at);
    }
    Cell::template gradient<PHASE>(act, v);
    if constexpr (!FULL) {
      // The products run over the padding too, where 0 * inf must not become a NaN for everybody.
      for (int g = first; g < first + count; ++g) {
        v.du[g] = only_units<Real>(v.du[g], left);
        if constexpr (Cell::dx_differs) v.dx[g] = only_units<Real>(v.dx[g], left);
      }
    }
    if constexpr (Cell::restores_state) {
      if (step.after >= 0) {
        Cell::restore(act, v);
        V operand = call.reset(step.after, n) ? V(0.0) : v.h_next;
        if (call.mask != nullptr) operand = operand * load_mask<Real>(call, step.after, n, d * H + unit, left);
        const int64_t after_row = slot_row + (step.after - step.t) * step.own->section.size();
        operand.store(run.operand[0].in(arena, step.own->crew) + after_row * run.stride + unit);
      }
    }
    if constexpr (PHASE == 0) {
      v.h_prev.store(dh);
      if constexpr (Cell::has_cell) v.c_prev.store(dc);
    }
  } else {
    v.operand = V(0.0);
    for (int g = first; g < first + count; ++g) v.du[g] = v.dx[g] = V(0.0);
  }
  if constexpr (Cell::phases == 2 && PHASE == 0) {
    v.operand.store(run.operand[1].in(arena, step.own->crew) + slot_row * run.stride + unit);
  }
  for (int g = first; g < first + count; ++g) {
    const int64_t place = slot_row * run.du_stride[PHASE] + run.du_column(g, block) + at;
    v.du[g].store(run.du[PHASE].in(arena, step.own->crew) + place);
    if constexpr (Cell::dx_differs) v.dx[g].store(run.dx.in(arena, step.own->crew) + place);
    if (!run.has_input()) {
      const V& value = Cell::dx_differs ? v.dx[g] : v.du[g];
      Units::store(call.d_source, call.dtype, (row * G + call.slot[g]) * H + unit, value, left);
    }
  }
}

// The cell's gradient on some rows and blocks. `e`, for a phase that needs it, belongs to a single block.
template <class Real, class Cell, class Act, int PHASE>
void gradient_pointwise(const GradientStep<Real>& step, const Range& blocks, int64_t first_row, int64_t rows, const Real* e) {
  constexpr int lanes = Vec<Real>::lanes;
  const GradientRun<Real>& run = *step.run;
  const Call& call = run.call;
  const Act act = make_activations<Act>(call);
  const int64_t width = run.units.width;
  for (int64_t n = first_row; n < first_row + rows; ++n, e += e == nullptr ? 0 : width) {
    const bool active = call.active(step.t, n);
    for (int64_t block = blocks.begin; block < blocks.end; ++block) {
      const int64_t exist = std::min(width, call.H - block * width);
      const int64_t full = call.dtype == Native<Real>::dtype ? exist / lanes * lanes : 0;
      int64_t at = 0;
      for (; at < full; at += lanes) gradient_vector<Real, Cell, Act, PHASE, true>(step, act, block, n, at, active, e);
      for (; at < exist; at += lanes) gradient_vector<Real, Cell, Act, PHASE, false>(step, act, block, n, at, active, e);
      // Units that only pad the block give nothing.
      for (; at < width; at += lanes) {
        for (int g = Cell::first_gate[PHASE]; g < Cell::first_gate[PHASE] + Cell::gate_count[PHASE]; ++g) {
          const int64_t row = run.chunk_row(*step.own, step.slot, n);
          const int64_t place = row * run.du_stride[PHASE] + run.du_column(g, block) + at;
          Vec<Real>(0.0).store(run.du[PHASE].in(run.arena, step.own->crew) + place);
          if (Cell::dx_differs) Vec<Real>(0.0).store(run.dx.in(run.arena, step.own->crew) + place);
        }
      }
    }
  }
}

// Phase 0's operand at this step, (reset ? 0 : previous state) * mask; 0 where the row takes no part.
template <class Real, class Cell, class Act, bool FULL>
GATEWISE_INLINE Vec<Real> rebuilt(const GradientStep<Real>& step, const Act& act, int64_t n, int64_t unit) {
  using V = Vec<Real>;
  const GradientRun<Real>& run = *step.run;
  const Call& call = run.call;
  const int d = step.direction;
  V operand;
  if (Cell::restores_state && !call.reset(step.t, n) && step.before >= 0 && call.active(step.before, n)) {
    Gradient<V, Cell::gates> v;
    const GradientStep<Real> earlier{step.run, step.own, d, step.before, -1, 0, -1};
    load_saved<Real, Cell, FULL>(earlier, n, unit, v);
    if constexpr (Cell::restores_state) Cell::restore(act, v);
    operand = v.h_next;
  } else {
    const int64_t before = Cell::restores_state ? -1 : step.before;
    operand = run.template previous<FULL>(call.output_given, call.init_state, d, step.t, before, n, unit);
  }
  if (call.mask != nullptr) operand = operand * load_mask<Real>(call, step.t, n, d * call.H + unit, call.H - unit);
  return operand;
}

template <class Real, class Cell, class Act>
void rebuild_operand(const GradientStep<Real>& step, int64_t block, int64_t first_row, int64_t rows) {
  using V = Vec<Real>;
  const GradientRun<Real>& run = *step.run;
  const Call& call = run.call;
  const Act act = make_activations<Act>(call);
  const int64_t width = run.units.width;
  const int64_t exist = std::min(width, call.H - block * width);
  const int64_t full = call.dtype == Native<Real>::dtype ? exist / V::lanes * V::lanes : 0;
  for (int64_t n = first_row; n < first_row + rows; ++n) {
    const bool active = call.active(step.t, n);
    const int64_t row = run.chunk_row(*step.own, step.slot, n);
    Real* to = run.operand[0].in(run.arena, step.own->crew) + row * run.stride + block * width;
    for (int64_t at = 0; at < exist; at += V::lanes) {
      const int64_t unit = block * width + at;
      V operand(0.0);
      if (active) {
        operand = at < full ? rebuilt<Real, Cell, Act, true>(step, act, n, unit)
                            : rebuilt<Real, Cell, Act, false>(step, act, n, unit);
      }
      operand.store(to + at);
    }
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
