// The cells' gradients on rows of a block, for the gradient run.
#pragma once

#include "cpu/gradient.h"

namespace gatewise {
namespace GATEWISE_ISA {

// Gradient values at one vector of units of one row: everything that was saved or given.
template <class Real, class Cell>
GATEWISE_INLINE void load_saved(const GradientStep<Real>& step, int64_t n, int64_t unit, Gradient<Vec<Real>, Cell::gates>& v) {
  using V = Vec<Real>;
  constexpr int G = Cell::gates;
  const GradientRun<Real>& run = *step.run;
  const Call& call = run.call;
  const int64_t H = call.H, left = H - unit, row = (step.t * call.N + n) * call.D + step.direction;
  for (int g = 0; g < G; ++g) {
    const int64_t index = row * G * H + call.slot[g] * H + unit;
    v.gate[g] = load_units<Real>(call.z_given, call.dtype, index, left);
    v.dgate[g] = V(0.0);
    if (call.z_state_gradient != nullptr) v.dgate[g] = load_units<Real>(call.z_state_gradient, call.dtype, index, left);
  }
  if constexpr (Cell::has_cell) v.c_next = load_units<Real>(call.cell_given, call.dtype, row * H + unit, left);
}

template <class Real, class Cell, class Act, int PHASE>
void gradient_pointwise(const GradientStep<Real>& step, int64_t block, int64_t first_row, int64_t rows, const Real* e) {
  using V = Vec<Real>;
  constexpr int G = Cell::gates, first = Cell::first_gate[PHASE], count = Cell::gate_count[PHASE];
  constexpr bool last_phase = PHASE == Cell::phases - 1;
  const GradientRun<Real>& run = *step.run;
  const Call& call = run.call;
  const Arena& arena = run.arena;
  const Act act = make_activations<Act>(call);
  const int64_t H = call.H, width = run.units.width, padded = run.units.padded;
  const int d = step.direction;
  const Real* peephole =
      Cell::peephole ? run.peephole.in(arena) + (d * run.units.blocks + block) * run.block_columns() : nullptr;

  for (int64_t i = 0; i < rows; ++i) {
    const int64_t n = first_row + i, row = step.t * call.N + n, slot_row = step.slot * call.N + n;
    const bool active = call.active(step.t, n);
    Real* dh_row = run.dh.in(arena) + n * padded;
    Real* dc_row = run.dc.in(arena) + n * padded;
    for (int64_t at = 0; at < width; at += V::lanes) {
      const int64_t unit = block * width + at, left = H - unit;
      Gradient<V, G> v;
      for (int k = 0; k < count; ++k) v.du[first + k] = v.dx[first + k] = V(0.0);
      if (active && left > 0) {
        const int64_t index = (row * call.D + d) * H + unit;
        load_saved<Real, Cell>(step, n, unit, v);
        v.dh = V::load(dh_row + unit) + load_units<Real>(call.source_gradient, call.dtype, index, left);
        if constexpr (Cell::has_cell) {
          v.dc = V::load(dc_row + unit);
          if (call.cell_sequence_gradient != nullptr) {
            v.dc = v.dc + load_units<Real>(call.cell_sequence_gradient, call.dtype, index, left);
          }
          v.c = run.previous(call.cell_given, call.init_cell, d, step.t, step.before, n, unit);
          for (int g = 0; g < G; ++g) {
            v.p[g] = Cell::peephole ? V::load(peephole + g * width + at) : V(0.0);
          }
        }
        if constexpr (!Cell::restores_state) {
          v.h = run.previous(call.output_given, call.init_state, d, step.t, step.before, n, unit);
        }
        if constexpr (Cell::needs_product) v.q = V::load(run.q.in(arena) + slot_row * padded + unit);
        if constexpr (Cell::phases == 2) {
          v.m = call.mask == nullptr ? V(1.0) : load_mask<Real>(call, step.t, n, d * H + unit, left);
          if constexpr (!last_phase) v.e = V::load(e + i * width + at);
        }
        Cell::template gradient<PHASE>(act, v);
        if constexpr (PHASE == 0) {
          v.h_prev.store(dh_row + unit);
          if constexpr (Cell::has_cell) v.c_prev.store(dc_row + unit);
        }
      }
      if constexpr (Cell::phases == 2 && PHASE == 0) {
        V operand = active && left > 0 ? v.operand : V(0.0);
        operand.store(run.operand[1].in(arena) + slot_row * run.stride + unit);
      }
      for (int g = first; g < first + count; ++g) {
        const int64_t place = slot_row * run.depth[PHASE] + run.du_column(g, block) + at;
        v.du[g].store(run.du[PHASE].in(arena) + place);
        if constexpr (Cell::dx_differs) v.dx[g].store(run.dx.in(arena) + place);
        if (!run.has_input()) {
          const V& value = Cell::dx_differs ? v.dx[g] : v.du[g];
          store_units<Real>(call.d_source, call.dtype, (row * call.D + d) * G * H + call.slot[g] * H + unit, value, left);
        }
      }
    }
  }
}

// Phase 0's operand at this step, (reset ? 0 : previous state) * mask; 0 where the row takes no part.
template <class Real, class Cell, class Act>
void rebuild_operand(const GradientStep<Real>& step, int64_t block, int64_t first_row, int64_t rows) {
  using V = Vec<Real>;
  const GradientRun<Real>& run = *step.run;
  const Call& call = run.call;
  const Act act = make_activations<Act>(call);
  (void)act;
  const int64_t H = call.H, width = run.units.width;
  const int d = step.direction;
  for (int64_t n = first_row; n < first_row + rows; ++n) {
    for (int64_t at = 0; at < width; at += V::lanes) {
      const int64_t unit = block * width + at, left = H - unit;
      V operand(0.0);
      if (left > 0 && call.active(step.t, n)) {
        if constexpr (Cell::restores_state) {
          const bool came = step.before >= 0 && call.active(step.before, n);
          if (!call.reset(step.t, n) && came) {
            Gradient<V, Cell::gates> v;
            const GradientStep<Real> earlier{step.run, d, step.before, -1, 0};
            load_saved<Real, Cell>(earlier, n, unit, v);
            Cell::restore(act, v);
            operand = v.h_next;
          } else {
            operand = run.previous(nullptr, call.init_state, d, step.t, -1, n, unit);
          }
        } else {
          operand = run.previous(call.output_given, call.init_state, d, step.t, step.before, n, unit);
        }
        if (call.mask != nullptr) operand = operand * load_mask<Real>(call, step.t, n, d * H + unit, left);
      }
      operand.store(run.operand[0].in(run.arena) + (step.slot * call.N + n) * run.stride + unit);
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
  cell.rebuild = rebuild_operand<Real, Cell, Act>;
  cell.pointwise[0] = gradient_pointwise<Real, Cell, Act, 0>;
  if constexpr (Cell::phases == 2) cell.pointwise[1] = gradient_pointwise<Real, Cell, Act, 1>;
  return cell;
}

}  // namespace GATEWISE_ISA
}  // namespace gatewise
