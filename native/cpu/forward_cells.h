// The cells on rows of a block, for the forward run.
#pragma once

#include "cpu/forward.h"

namespace gatewise {
namespace GATEWISE_ISA {

// One vector of units of one active row. FULL: the call's dtype is Real and all lanes exist.
template <class Real, class Cell, class Act, int PHASE, bool FULL>
GATEWISE_INLINE void forward_vector(const ForwardStep<Real>& step, const Act& act, int64_t block, int64_t n, int64_t at,
                                    const Real* u) {
  using V = Vec<Real>;
  using Units = Access<Real, FULL>;
  const ForwardRun<Real>& run = *step.run;
  const Call& call = run.call;
  const Arena& arena = run.arena;
  const ForwardPart<Real>& own = *step.own;
  constexpr int G = Cell::gates, first = Cell::first_gate[PHASE], count = Cell::gate_count[PHASE];
  constexpr bool last_phase = PHASE == Cell::phases - 1;
  const int64_t H = call.H, width = run.units.width, padded = run.units.padded;
  const int64_t unit = block * width + at, left = H - unit, gate_width = run.units.gate_width(block);
  const int d = step.direction;
  const int64_t packed = d * run.columns + block * G * width + at;
  const int64_t row = (step.t * call.N + n) * call.D + d, i = n - own.rows.begin;
  const int64_t own_columns = i * run.x_stride + (block - own.blocks.begin) * G * width + at;
  const bool fresh = call.reset(step.t, n);
  Real* h = own.h + i * run.own_units + unit - own.first_unit;
  Real* c = own.c + i * run.own_units + unit - own.first_unit;

  Forward<V, G> v;
  v.h = fresh ? V(0.0) : V::load(h);
  if constexpr (Cell::has_cell) v.c = fresh ? V(0.0) : V::load(c);
  v.b2 = V::load(run.secondary_bias.in(arena) + d * padded + unit);
  for (int k = 0; k < count; ++k) {
    const int g = first + k;
    v.u[g] = V::load(u + k * gate_width + at);
    if (step.x_rows != nullptr) {
      v.x[g] = V::load(step.x_rows + own_columns + g * gate_width);
    } else {
      v.x[g] = Units::load(call.source, call.dtype, row * G * H + call.slot[g] * H + unit, left);
    }
    if (call.bias != nullptr) v.x[g] = v.x[g] + V::load(run.bias.in(arena) + packed + g * gate_width);
    if constexpr (Cell::peephole) v.p[g] = V::load(run.peephole.in(arena) + packed + g * gate_width);
  }
  if constexpr (Cell::phases == 2) {
    v.m = call.mask == nullptr ? V(1.0) : load_mask<Real>(call, step.t, n, d * H + unit, left);
    Real* kept = own.gates + own_columns;
    for (int g = 0; g < first; ++g) v.gate[g] = V::load(kept + g * width);
    Cell::template forward<PHASE>(act, v);
    if constexpr (!last_phase) {
      for (int g = first; g < first + count; ++g) v.gate[g].store(kept + g * width);
      v.operand.store(own.second_operand + i * run.stride + unit);
    }
  } else {
    Cell::template forward<PHASE>(act, v);
  }
  if constexpr (last_phase) {
    v.h_next.store(h);
    if constexpr (Cell::has_cell) v.c_next.store(c);
    if (step.next >= 0) {
      run.next_operand(d, step.next, n, unit, v.h_next).store(step.next_operand + i * run.stride + unit);
    }
    Units::store(call.state, call.dtype, row * H + unit, v.h_next, left);
    if constexpr (Cell::has_cell) {
      if (call.cell_out != nullptr) Units::store(call.cell_out, call.dtype, row * H + unit, v.c_next, left);
    }
    if (call.z_state != nullptr) {
      for (int g = 0; g < G; ++g) {
        Units::store(call.z_state, call.dtype, row * G * H + call.slot[g] * H + unit, v.gate[g], left);
      }
    }
  }
}

// A row that takes no part in this step: its results are 0 and its state goes on.
template <class Real, class Cell>
__attribute__((noinline)) void forward_inactive(const ForwardStep<Real>& step, int64_t block, int64_t n) {
  using V = Vec<Real>;
  const ForwardRun<Real>& run = *step.run;
  const Call& call = run.call;
  const ForwardPart<Real>& own = *step.own;
  const int64_t row = (step.t * call.N + n) * call.D + step.direction, i = n - own.rows.begin;
  for (int64_t at = 0; at < run.units.width; at += V::lanes) {
    const int64_t unit = block * run.units.width + at, left = call.H - unit;
    if (left <= 0) break;
    const V zero(0.0), h = V::load(own.h + i * run.own_units + unit - own.first_unit);
    if (step.next >= 0) {
      run.next_operand(step.direction, step.next, n, unit, h).store(step.next_operand + i * run.stride + unit);
    }
    store_units<Real>(call.state, call.dtype, row * call.H + unit, zero, left);
    if (call.cell_out != nullptr) store_units<Real>(call.cell_out, call.dtype, row * call.H + unit, zero, left);
    for (int g = 0; call.z_state != nullptr && g < Cell::gates; ++g) {
      store_units<Real>(call.z_state, call.dtype, (row * Cell::gates + call.slot[g]) * call.H + unit, zero, left);
    }
  }
}

// The cell's maths on `rows` rows of one block, given their recurrent products u: [rows][gates of the phase][width].
template <class Real, class Cell, class Act, int PHASE>
void forward_pointwise(const ForwardStep<Real>& step, int64_t block, int64_t first_row, int64_t rows, const Real* u) {
  constexpr int lanes = Vec<Real>::lanes;
  const ForwardRun<Real>& run = *step.run;
  const Call& call = run.call;
  const Act act = make_activations<Act>(call);
  const int64_t width = run.units.width, columns = Cell::gate_count[PHASE] * width;
  const int64_t exist = std::min(width, call.H - block * width);
  const int64_t full = call.dtype == Native<Real>::dtype ? exist / lanes * lanes : 0;
  for (int64_t i = 0; i < rows; ++i, u += columns) {
    const int64_t n = first_row + i;
    if (!call.active(step.t, n)) {
      if (PHASE == Cell::phases - 1) forward_inactive<Real, Cell>(step, block, n);
      continue;
    }
    int64_t at = 0;
    for (; at < full; at += lanes) forward_vector<Real, Cell, Act, PHASE, true>(step, act, block, n, at, u);
    for (; at < exist; at += lanes) forward_vector<Real, Cell, Act, PHASE, false>(step, act, block, n, at, u);
  }
}

template <class Real, class Cell, class Act>
ForwardCell<Real> make_forward_cell() {
  ForwardCell<Real> cell;
  cell.gates = Cell::gates;
  cell.phases = Cell::phases;
  for (int phase = 0; phase < Cell::phases; ++phase) {
    cell.first_gate[phase] = Cell::first_gate[phase];
    cell.gate_count[phase] = Cell::gate_count[phase];
  }
  cell.pointwise[0] = forward_pointwise<Real, Cell, Act, 0>;
  if constexpr (Cell::phases == 2) cell.pointwise[1] = forward_pointwise<Real, Cell, Act, 1>;
  return cell;
}

}  // namespace GATEWISE_ISA
}  // namespace gatewise
