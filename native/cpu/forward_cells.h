// The cells on rows of a block, for the forward run.
#pragma once

#include "cpu/forward.h"

namespace gatewise {
namespace GATEWISE_ISA {

// Where the maths of a block finds its numbers, worked out once for all rows: beside the maths of a vector of units the compiler
// would do it again for each. Places are those of the first row and the block's first unit.
template <class Real, int G>
struct ForwardBlock {
  int64_t unit, left;            // the first unit, and how many there are from it on
  int64_t width, gate_width;     // from gate to gate: of what is kept between phases, and of all else
  Real *h, *c, *operand, *kept;  // kept: gates that an earlier phase made
  Real* next;                    // operand of the step after, null at the end
  int64_t stride;                // from row to row of the operands; of h and c it is `width`
  const Real *x, *bias, *peephole, *b2;
  int64_t row, row_length;  // of the caller's state and cell; where G gates lie together, G times that
  int64_t gate[G];          // from the first gate of a row to each
  bool plain;               // there are products of the source, all is of Real, and no phase but the first sees a mask

  GATEWISE_INLINE ForwardBlock(const ForwardStep<Real>& step, int64_t block, int64_t first_row) {
    const ForwardRun<Real>& run = *step.run;
    const ForwardPart<Real>& own = *step.own;
    const Call& call = run.call;
    const int d = step.direction;
    width = run.units.width, gate_width = run.units.gate_width(block);
    unit = block * width, left = call.H - unit;
    stride = run.stride;
    const int64_t i = first_row - own.rows.begin, mine = run.own_place(own, block, first_row), packed = d * run.columns + unit * G;
    h = own.h + mine * width;
    c = own.c + mine * width;
    operand = own.second_operand + i * stride + unit;
    kept = own.gates + mine * G * width;
    next = step.next < 0 ? nullptr : step.next_operand + i * stride + unit;
    x = step.x_rows == nullptr ? nullptr : step.x_rows + (block - own.blocks.begin) * run.x_block + i * G * width;
    bias = call.bias == nullptr ? nullptr : run.bias.in(run.arena, own.copy) + packed;
    peephole = run.peephole.in(run.arena, own.copy) + packed;
    b2 = run.secondary_bias.in(run.arena, own.copy) + d * run.units.padded + unit;
    row_length = call.D * call.H;
    row = (step.t * call.N + first_row) * row_length + d * call.H;
    for (int g = 0; g < G; ++g) gate[g] = call.slot[g] * call.H + unit;
    plain = x != nullptr && call.dtype == Native<Real>::dtype && (run.cell.phases == 1 || call.mask == nullptr);
  }
};

// A state with a cell is made when the cells of all rows are there: each row would wait for its activation, one after the other.
template <class Cell>
constexpr bool state_apart = Cell::has_cell && Cell::restores_state;

// Until then the gates are in z_state, where that keeps them as they are, else in place of the products.
template <Lanes LANES>
GATEWISE_INLINE bool gates_in_results(const Call& call) {
  return LANES != Lanes::any && call.z_state != nullptr;
}

// Puts the new state of row i where it is wanted.
template <class Real, class Cell, Lanes LANES>
GATEWISE_INLINE void forward_state(const Call& call, const ForwardBlock<Real, Cell::gates>& in, int64_t i, int64_t at,
                                   const Vec<Real>& state) {
  if (Cell::reads_state) state.store(in.h + i * in.width + at);
  if (in.next != nullptr) state.store(in.next + i * in.stride + at);
  Access<Real, LANES>::store(call.state, call.dtype, in.row + i * in.row_length + in.unit + at, state, in.left - at);
}

// One vector of units of row i, which is row n of the batch.
template <class Real, class Cell, class Act, int PHASE, Lanes LANES, bool PLAIN>
GATEWISE_INLINE void forward_vector(const ForwardStep<Real>& step, const ForwardBlock<Real, Cell::gates>& in, const Act& act,
                                    int64_t i, int64_t n, int64_t at, Real* u) {
  using V = Vec<Real>;
  using Units = Access<Real, LANES>;
  const Call& call = step.run->call;
  constexpr int G = Cell::gates, first = Cell::first_gate[PHASE], count = Cell::gate_count[PHASE];
  constexpr bool last_phase = PHASE == Cell::phases - 1;
  const int64_t left = in.left - at, result = in.row + i * in.row_length;
  Real* h = in.h + i * in.width + at;
  Real* c = in.c + i * in.width + at;

  Forward<V, G> v;
  v.h = V::load(h);
  if constexpr (Cell::has_cell) v.c = V::load(c);
  v.b2 = V::load(in.b2 + at);
  for (int k = 0; k < count; ++k) {
    const int g = first + k;
    v.u[g] = V::load(u + k * in.gate_width + at);
    if (PLAIN || in.x != nullptr) {
      v.x[g] = V::load(in.x + i * G * in.width + g * in.gate_width + at);
    } else {
      v.x[g] = Units::load(call.source, call.dtype, result * G + in.gate[g] + at, left);
    }
    if (in.bias != nullptr) v.x[g] = v.x[g] + V::load(in.bias + g * in.gate_width + at);
    if constexpr (Cell::peephole) v.p[g] = V::load(in.peephole + g * in.gate_width + at);
  }
  if constexpr (Cell::phases == 2) {
    const int64_t masked = step.direction * call.H + in.unit + at;
    v.m = PLAIN || call.mask == nullptr ? V(1.0) : load_mask<Real, LANES>(call, step.t, n, masked, left);
    Real* kept = in.kept + i * G * in.width + at;
    for (int g = 0; g < first; ++g) v.gate[g] = V::load(kept + g * in.width);
    Cell::template forward<PHASE>(act, v);
    if constexpr (!last_phase) {
      for (int g = first; g < first + count; ++g) v.gate[g].store(kept + g * in.width);
      v.operand.store(in.operand + i * in.stride + at);
    }
  } else {
    Cell::template forward<PHASE>(act, v);
  }
  if constexpr (last_phase) {
    if constexpr (Cell::has_cell) {
      v.c_next.store(c);
      if (call.cell_out != nullptr) Units::store(call.cell_out, call.dtype, result + in.unit + at, v.c_next, left);
    }
    if (call.z_state != nullptr) {
      for (int g = 0; g < G; ++g) Units::store(call.z_state, call.dtype, result * G + in.gate[g] + at, v.gate[g], left);
    }
    if constexpr (!state_apart<Cell>) {
      forward_state<Real, Cell, LANES>(call, in, i, at, v.h_next);
    } else if (!gates_in_results<LANES>(call)) {
      for (int g = 0; g < G; ++g) {
        if (Cell::restored_from[g]) v.gate[g].store(u + g * in.gate_width + at);
      }
    }
  }
}

// The state of a row whose gates and cell are there.
template <class Real, class Cell, class Act, Lanes LANES>
GATEWISE_INLINE void forward_restored(const Call& call, const ForwardBlock<Real, Cell::gates>& in, const Act& act, int64_t i,
                                      int64_t at, const Real* u) {
  const int64_t gates = (in.row + i * in.row_length) * Cell::gates + at;
  Gradient<Vec<Real>, Cell::gates> v;
  for (int g = 0; g < Cell::gates; ++g) {
    if (!Cell::restored_from[g]) continue;
    v.gate[g] = gates_in_results<LANES>(call)
                    ? Access<Real, LANES>::load(call.z_state, call.dtype, gates + in.gate[g], in.left - at)
                    : Vec<Real>::load(u + g * in.gate_width + at);
  }
  v.c_next = Vec<Real>::load(in.c + i * in.width + at);
  Cell::restore(act, v);
  forward_state<Real, Cell, LANES>(call, in, i, at, v.h_next);
}

// Where a row begins anew, the state and the cell before this step are 0. Apart from the maths, which then asks nothing.
template <class Real, int G>
__attribute__((noinline)) void forget_at_resets(const ForwardStep<Real>& step, int64_t block, int64_t first_row, int64_t rows) {
  const ForwardBlock<Real, G> in(step, block, first_row);
  for (int64_t i = 0; i < rows; ++i) {
    if (!step.run->call.reset(step.t, first_row + i)) continue;
    std::fill_n(in.h + i * in.width, in.width, Real(0));
    std::fill_n(in.c + i * in.width, in.width, Real(0));
  }
}

// What a step's operands are made of: the states themselves, unless these are masked or forgotten.
inline bool operands_are_states(const Call& call) { return call.mask == nullptr && call.resets == nullptr; }

// Makes the next step's operands of the states that were put in their place: masked, 0 at a reset. Rows that end before the others
// keep their state, too.
template <class Real, int G>
__attribute__((noinline)) void make_next_operands(const ForwardStep<Real>& step, int64_t block, int64_t first_row, int64_t rows) {
  const ForwardRun<Real>& run = *step.run;
  const ForwardBlock<Real, G> in(step, block, first_row);
  each_vector<Real, true>(run.call.dtype, rows, std::min(in.width, in.left), [&](auto lanes, int64_t i, int64_t at) {
    Real* place = in.next + i * in.stride + at;
    const Vec<Real> state = Vec<Real>::load(place);
    if (run.call.lengths != nullptr) state.store(in.h + i * in.width + at);
    run.template next_operand<lanes.value>(step.direction, step.next, first_row + i, in.unit + at, state).store(place);
  });
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
    const Real* kept = own.h + run.own_place(own, block, n) * run.units.width + at;
    const V zero(0.0), h = V::load(operands_are_states(call) ? step.operand + i * run.stride + unit : kept);
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

// The cell's maths on `rows` rows of one block, all of which take part, given their recurrent products u: [rows][gates of the
// phase][width].
template <class Real, class Cell, class Act, int PHASE>
__attribute__((noinline)) void forward_rows(const ForwardStep<Real>& step, int64_t block, int64_t first_row, int64_t rows, Real* u) {
  const Call& call = step.run->call;
  const Act act = make_activations<Act>(call);
  const ForwardBlock<Real, Cell::gates> in(step, block, first_row);
  const int64_t columns = Cell::gate_count[PHASE] * in.width, exist = std::min(in.width, in.left);
  constexpr bool by_rows = Cell::gate_count[Cell::phases - 1] == 1;  // else a block is one vector wide or has few rows
  const auto each = [&](auto plain, auto work) GATEWISE_ALWAYS {
    each_vector<Real, by_rows>(call.dtype, rows, exist, [&](auto lanes, int64_t i, int64_t at) GATEWISE_ALWAYS {
      if constexpr (!plain.value || lanes.value != Lanes::any) work(lanes, i, at, u + i * columns);
    });
  };
  const auto all = [&](auto plain) GATEWISE_ALWAYS {
    each(plain, [&](auto lanes, int64_t i, int64_t at, Real* u) GATEWISE_ALWAYS {
      forward_vector<Real, Cell, Act, PHASE, lanes.value, plain.value>(step, in, act, i, first_row + i, at, u);
    });
    if constexpr (state_apart<Cell>) {
      each(plain, [&](auto lanes, int64_t i, int64_t at, Real* u) GATEWISE_ALWAYS {
        forward_restored<Real, Cell, Act, lanes.value>(call, in, act, i, at, u);
      });
    }
  };
  if constexpr (std::is_same_v<Real, float>) {
    if (in.plain) return all(std::true_type{});
  }
  all(std::false_type{});
}

// The same for rows some of which may have ended, a run of those that take part at a time; and what masks and resets do to states
// before and after.
template <class Real, class Cell, class Act, int PHASE>
void forward_pointwise(const ForwardStep<Real>& step, int64_t block, int64_t first_row, int64_t rows, Real* u) {
  constexpr bool last_phase = PHASE == Cell::phases - 1;
  const Call& call = step.run->call;
  if (call.mask == nullptr && call.resets == nullptr && call.lengths == nullptr) {
    return forward_rows<Real, Cell, Act, PHASE>(step, block, first_row, rows, u);
  }
  const int64_t columns = Cell::gate_count[PHASE] * step.run->units.width, end = first_row + rows;
  for (int64_t n = first_row, next = n; n < end; n = next) {
    while (next < end && call.active(step.t, next)) ++next;
    if (next == n) {
      if (last_phase) forward_inactive<Real, Cell>(step, block, n);
      ++next;
      continue;
    }
    if (PHASE == 0 && call.resets != nullptr) forget_at_resets<Real, Cell::gates>(step, block, n, next - n);
    forward_rows<Real, Cell, Act, PHASE>(step, block, n, next - n, u + (n - first_row) * columns);
    if (last_phase && step.next >= 0 && !operands_are_states(call)) make_next_operands<Real, Cell::gates>(step, block, n, next - n);
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
