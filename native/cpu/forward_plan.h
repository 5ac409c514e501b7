// What a forward run works with: the cell as it sees it, the division of work, the buffers, the packed weights.
#pragma once

#include "cpu/run.h"

namespace gatewise {
namespace GATEWISE_ISA {

template <class Real>
struct ForwardRun;

// What one thread works on: some rows and blocks. Its arrays begin with the first of them, the rows of a block together, as they
// are used; no other thread writes to them but those of the group that shares the rows, to the operands.
template <class Real>
struct ForwardPart {
  int thread;
  Range rows, blocks;
  Real *x, *gathered, *gates, *h, *c, *scratch;
  Real *operand[2], *second_operand;
  int copy;  // of what is packed
};

// One step of one direction, as the pointwise maths sees it.
template <class Real>
struct ForwardStep {
  const ForwardRun<Real>* run;
  const ForwardPart<Real>* own;
  int direction;
  int64_t t;           // input time of this step
  int64_t next;        // input time of the step after it, -1 at the end
  const Real* x_rows;  // input products of this step, [rows][block_columns]; x_block further on those of the next block
  const Real* operand;  // phase 0's: [rows][stride]
  Real* next_operand;   // and that of the step after
};

template <class Real>
using ForwardPointwise = void (*)(const ForwardStep<Real>&, int64_t block, int64_t first_row, int64_t rows, Real* u);

template <class Real>
struct ForwardCell {
  int gates = 1, phases = 1;
  int first_gate[2] = {0, 0}, gate_count[2] = {1, 0};
  ForwardPointwise<Real> pointwise[2] = {nullptr, nullptr};
};

// Rows whose products are made before the cell's maths on them: enough that what goes with a block counts little, and few enough
// to stay in the cache. A multiple of the rows of every tile.
constexpr int64_t rows_at_once = 48;
// Rows whose input products are made before their steps: more would not stay in the caches until then, fewer take less memory.
constexpr int64_t input_rows[] = {384, 192, 96, 64, 48};
// Of these, rows multiplied with a thread's part of W at a time: few enough that they stay in its cache, but all of them where that
// part does not. It may come from memory each time, if it shares the last cache with R.
constexpr int64_t few_input_rows = 96;

template <class Real>
struct alignas(page) ForwardPlan {
  const Call call;
  const ForwardCell<Real> cell;
  Watch watch;
  Arena arena;
  Layout units;
  Grid grid;
  int team = 1;
  int copies = 1;  // of what is packed: one for each of two threads that read all of it, where there are rows enough
  bool packed = true, input_packed = true;           // R and W; else they are used where they are: too few rows to repay it
  int abreast = 1;                                   // rows of such a weight that are read side by side
  bool far_results = false;                          // there are gates to be kept, and many
  bool direct_source = false;                        // it is used where it is
  bool far_source = false;                           // it does not stay in the caches from call to call
  bool input_once = false;                           // the input products of all steps are made together
  bool single_step = false;                          // a block's input product is made just before its recurrent one
  int widest_input = 1, widest = 1;                  // vectors per tile at most
  int64_t chunk = 1;                                 // steps whose input products are made together
  int64_t columns = 0;                               // of all blocks
  int64_t own_rows = 0, own_blocks = 0;              // of a thread, at most
  int64_t x_block = 0, stride = 0;                   // from block to block of input products, and the row length of operands
  int64_t a_rows = 0, a_stride = 0;                  // rows of source gathered at a time, and their length
  int64_t input_after = 0, recurrent_after = 0;      // how far after a cache line the operands of unpacked weights begin
  WeightPanels<Real> input_panels, phase_panels[2];
  Pieces<Real> bias, peephole, secondary_bias;     // of each copy
  Pieces<Real> x, gathered, gates, h, c, scratch;  // of each thread
  Pieces<Real> operand[2], second_operand;         // of each group of rows
  Barrier everyone;
  std::unique_ptr<Barrier[]> group;  // one for each group of rows, where there are several

  ForwardPlan(const Call& call, const ForwardCell<Real>& cell, Arena&& arena)
      : call(call), cell(cell), arena(std::move(arena)) {}

  int64_t block_columns() const { return cell.gates * units.width; }
  int64_t phase_columns(int phase) const { return cell.gate_count[phase] * units.width; }
  // Where block b's panels begin in each packed weight.
  Panel<Real> input_panel(const ForwardPart<Real>& own, int d, int64_t b) const {
    return input_panels.in(arena) + ((own.copy * call.D + d) * units.blocks + b) * call.I * block_columns();
  }
  // An input weight that is used once is packed tile by tile, each thread having room for one.
  Panel<Real> once_panel(const ForwardPart<Real>& own) const {
    return input_panels.in(arena) + own.thread * once_columns() * call.I;
  }
  int64_t once_columns() const { return std::min<int64_t>(block_columns(), widest_input * Vec<Real>::lanes); }
  Panel<Real> phase_panel(const ForwardPart<Real>& own, int phase, int d, int64_t b) const {
    return phase_panels[phase].in(arena) + ((own.copy * call.D + d) * units.blocks + b) * call.H * phase_columns(phase);
  }

  // Tiles of the product of some gates with a block's panels: their number and their width in vectors.
  struct Tiles {
    int count, vectors;
  };
  Tiles tiles(int gates, int64_t block, int most) const {
    const int total = units.columns<Real>(gates, block);
    const int vectors = tile_vectors(total, total == 3 ? 3 : most);
    return {total / vectors, vectors};
  }
  Tiles input_tiles(int64_t block) const { return tiles(cell.gates, block, widest_input); }
  Tiles phase_tiles(int phase, int64_t block) const { return tiles(cell.gate_count[phase], block, widest); }

  void plan(int threads) {
    const int64_t column_bytes = cell.gates * call.H * static_cast<int64_t>(sizeof(Real)), R_bytes = column_bytes * call.H;
    abreast = rows_abreast(R_bytes + column_bytes * call.I);
    // An R that comes from far either way, by whole lines: packing it takes as long as one row's steps lose in some 60 without it.
    const bool by_lines = abreast > 1 && line_rows > 0 && call.H % Vec<Real>::lanes == 0 && call.dtype == Native<Real>::dtype;
    const bool far_row = by_lines && call.N == 1 && call.T <= 64 && R_bytes > (2 << 20);
    packed = (repays_packing<Real>(call, true) && !far_row) || call.recurrent_constant != nullptr;
    input_packed = repays_packing<Real>(call, false) || call.input_constant != nullptr;
    const int most = GATEWISE_VECTOR_REGISTERS == 32 ? 4 : 2;
    int least_gates = cell.gate_count[0];
    if (cell.phases == 2) least_gates = std::min(least_gates, cell.gate_count[1]);
    int vectors = vectors_per_block<Real>(call.H, std::max(1, most / least_gates));
    // One or two rows: what goes with a block counts, and its tiles need sums enough under way.
    if (call.N <= 2) vectors = std::max(vectors, vectors_per_block<Real>(call.H, most_vectors, threads));
    units = Layout::make<Real>(call.H, vectors);
    units.narrow_last<Real>(call.H);
    const int64_t N = call.N;
    const double R = static_cast<double>(cell.gates * units.padded * call.H);
    const double handed_on = static_cast<double>(cell.phases * units.padded) * sizeof(Real);
    grid = choose_grid(threads, N, units.blocks, 2.0 * static_cast<double>(N) * R, R * sizeof(Real), handed_on, cell.phases,
                       tile_rows(std::min(most, cell.gates * units.vectors)));
    if (call.T == 1) grid = {1, static_cast<int>(std::min<int64_t>(threads, units.blocks))};  // each weight is read once
    const int64_t rows = (N + grid.row_parts - 1) / grid.row_parts;
    widest = rows <= 2 ? most_vectors : most;  // few rows: wider tiles have more sums under way
    widest_input = std::max(most, 3);
    columns = units.blocks * block_columns();
    own_rows = rows;
    own_blocks = (units.blocks + grid.unit_parts - 1) / grid.unit_parts;
    stride = spread<Real>(units.padded);
    a_stride = spread<Real>(call.I);
    const auto after = [&](const void* weight, int64_t K, bool by_lines) {
      return by_lines && call.dtype == Native<Real>::dtype ? after_line(static_cast<const Real*>(weight), K) : 0;
    };
    recurrent_after = after(call.recurrent_weight, call.H, !packed && rows <= line_rows);
    input_after = after(call.input_weight, call.I, !input_packed && call.T * rows <= line_rows);
    // Rows of the source are used where they are, unless they lie on top of each other in the cache, or other than the weight.
    direct_source = call.dtype == Native<Real>::dtype && grid.row_parts == 1 && call.I * sizeof(Real) % 2048 != 0;
    far_source = call.T * N * call.I * size_of(call.dtype) > (8 << 20);
    far_results = call.z_state != nullptr && call.dtype == Native<Real>::dtype && far_gates(call, cell.gates);
    team = grid.size();
    // To pack again what both have read, lines would be taken from the other's cache one by one: that takes five times as long as
    // packing twice as much. Constants are packed once.
    const bool constant = call.input_constant != nullptr || call.recurrent_constant != nullptr;
    copies = grid.row_parts == 2 && grid.unit_parts == 1 && !constant && 2 * call.T * N >= 3 * (call.I + call.H) ? 2 : 1;
    const int64_t allowed = allowed_bytes<Real>(call, cell.gates);
    const auto fits = [&](int64_t rows_before) {
      reserve(rows_before);
      return call.T == 1 || arena.used() <= allowed;
    };
    if (std::none_of(std::begin(input_rows), std::end(input_rows), fits) && copies > 1) {
      copies = 1;
      std::any_of(std::begin(input_rows), std::end(input_rows), fits);
    }
    arena.allocate(allowed);
    everyone.reset(team);
    if (grid.row_parts > 1) group = std::make_unique<Barrier[]>(grid.row_parts);
    for (int i = 0; i < grid.row_parts && group != nullptr; ++i) group[i].reset(grid.unit_parts);
  }

  // The memory of a call that makes the input products of so many rows before their steps.
  void reserve(int64_t rows_before) {
    const bool has_input = call.input_weight != nullptr;
    const int D = call.D;
    const int64_t rows = own_rows, longest = std::clamp<int64_t>(rows_before / std::max<int64_t>(rows, 1), 1, call.T);
    const int64_t chunks = (call.T + longest - 1) / longest;
    chunk = (call.T + chunks - 1) / chunks;
    x_block = chunk * rows * block_columns();
    const bool large = own_blocks * block_columns() * call.I * static_cast<int64_t>(sizeof(Real)) > (768 << 10);
    a_rows = std::min(chunk * rows, large && rows_before == input_rows[0] ? rows_before : few_input_rows);
    single_step = has_input && call.T == 1 && rows <= a_rows;
    input_once = input_packed && call.input_constant == nullptr && call.T * call.N <= a_rows;
    const bool gathers = has_input && (!direct_source || input_after > 0);
    arena.begin();
    if (has_input && input_packed) {
      const int64_t columns_packed = input_once ? team * once_columns() : copies * D * columns;
      const DType stored = packed_dtype<Real>(call, call.T * call.N);
      input_panels.reserve(arena, columns_packed * call.I, stored, call.input_constant, form(2, call.I, stored));
    }
    for (int phase = 0; packed && phase < cell.phases; ++phase) {
      const DType stored = packed_dtype<Real>(call, rows, cell.gates * call.H * call.H);
      phase_panels[phase].reserve(arena, copies * D * units.blocks * phase_columns(phase) * call.H, stored,
                                  call.recurrent_constant, form(phase, call.H, stored));
    }
    Pieces<Real>::reserve_together(arena, copies, {{&bias, call.bias == nullptr ? 0 : D * columns},
                                                   {&peephole, call.peephole == nullptr ? 0 : D * columns},
                                                   {&secondary_bias, D * units.padded}});
    for (auto& each : operand) each.reserve(arena, grid.row_parts, recurrent_after + rows * stride);
    if (cell.phases == 2) second_operand.reserve(arena, grid.row_parts, recurrent_after + rows * stride);
    const int64_t states = own_blocks * rows * units.width;
    Pieces<Real>::reserve_together(arena, team, {{&x, has_input ? own_blocks * x_block : 0},
                                                 {&gathered, gathers ? input_after + a_rows * a_stride : 0},
                                                 {&gates, cell.phases == 2 ? cell.gates * states : 0},
                                                 {&h, states},
                                                 {&c, states},
                                                 {&scratch, std::min(rows, rows_at_once) * block_columns()}});
  }

  // What the panels of a phase or (2) of the input depend on, K being the length of the weight's rows.
  PackedForm form(int phase, int64_t K, DType stored) const {
    static const char build = 0;  // one for each instruction set
    PackedForm found{reinterpret_cast<intptr_t>(&build), static_cast<int64_t>(stored), phase, call.cell, call.D, call.H, K,
                     units.width, units.last_width, widest, widest_input};
    std::copy_n(call.slot, 4, found.end() - 4);
    return found;
  }

  // After the run, if it was not stopped.
  void keep_constants() const {
    input_panels.keep();
    for (const auto& each : phase_panels) each.keep();
  }

  ForwardPart<Real> part_of(int id) const {
    const int row_part = id / grid.unit_parts;
    ForwardPart<Real> own{};
    own.thread = id;
    own.copy = copies > 1 ? id : 0;
    own.rows = part(call.N, grid.row_parts, row_part);
    own.blocks = part(units.blocks, grid.unit_parts, id % grid.unit_parts);
    own.x = x.in(arena, id);
    own.gathered = gathered.in(arena, id) + input_after;
    own.gates = gates.in(arena, id);
    own.h = h.in(arena, id);
    own.c = c.in(arena, id);
    own.scratch = scratch.in(arena, id);
    for (int i = 0; i < 2; ++i) own.operand[i] = operand[i].in(arena, row_part) + recurrent_after;
    own.second_operand = second_operand.in(arena, row_part) + recurrent_after;
    return own;
  }

  // Where a row of a block begins in the arrays of the thread it belongs to, times the length of such a row.
  int64_t own_place(const ForwardPart<Real>& own, int64_t block, int64_t n) const {
    return (block - own.blocks.begin) * own_rows + n - own.rows.begin;
  }
};

}  // namespace GATEWISE_ISA
}  // namespace gatewise
