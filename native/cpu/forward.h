// The forward run: all steps of a call inside one parallel region.
//
// For a chunk of steps the input products are made first, as one large product; then step by step each thread makes
// the recurrent product of its rows and units, tile by tile, and applies the cell to the tile while it is in cache.
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
  Real* next_operand;  // phase 0's operand of the step after: [rows][stride]
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
struct alignas(page) ForwardRun {
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

  ForwardRun(const Call& call, const ForwardCell<Real>& cell, Arena&& arena)
      : call(call), cell(cell), arena(std::move(arena)) {}

  int64_t block_columns() const { return cell.gates * units.width; }
  int64_t phase_columns(int phase) const { return cell.gate_count[phase] * units.width; }
  // Where block b's panels begin in each packed weight. An input weight that is used once is packed block by block, each
  // thread having room for one.
  Panel<Real> input_panel(const ForwardPart<Real>& own, int d, int64_t b) const {
    const int64_t number = input_once ? own.thread : (own.copy * call.D + d) * units.blocks + b;
    return input_panels.in(arena) + number * call.I * block_columns();
  }
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
      return by_lines ? after_line(static_cast<const Real*>(weight), K) : 0;
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
    arena.begin();
    if (has_input) {
      const int64_t blocks = input_once ? team : copies * D * units.blocks;
      if (input_packed) {
        input_panels.reserve(arena, blocks * block_columns() * call.I, call.dtype, call.input_constant, form(2, call.I));
      }
      x.reserve(arena, team, own_blocks * x_block);
      if (!direct_source || input_after > 0) gathered.reserve(arena, team, input_after + a_rows * a_stride);
    }
    for (int phase = 0; packed && phase < cell.phases; ++phase) {
      phase_panels[phase].reserve(arena, copies * D * units.blocks * phase_columns(phase) * call.H, call.dtype,
                                  call.recurrent_constant, form(phase, call.H));
    }
    if (call.bias != nullptr) bias.reserve(arena, copies, D * columns);
    if (call.peephole != nullptr) peephole.reserve(arena, copies, D * columns);
    secondary_bias.reserve(arena, copies, D * units.padded);
    for (auto& each : operand) each.reserve(arena, grid.row_parts, recurrent_after + rows * stride);
    if (cell.phases == 2) {
      second_operand.reserve(arena, grid.row_parts, recurrent_after + rows * stride);
      gates.reserve(arena, team, own_blocks * rows * block_columns());
    }
    h.reserve(arena, team, own_blocks * rows * units.width);
    c.reserve(arena, team, own_blocks * rows * units.width);
    scratch.reserve(arena, team, std::min(rows, rows_at_once) * block_columns());
  }

  // What the panels of a phase or (2) of the input depend on, K being the length of the weight's rows.
  PackedForm form(int phase, int64_t K) const {
    static const char build = 0;  // one for each instruction set
    PackedForm found{reinterpret_cast<intptr_t>(&build), static_cast<int64_t>(call.dtype), phase, call.cell, call.D, call.H, K,
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

  // Packs some gates' columns of a weight with rows of length K, for one block: tile after tile.
  void pack_weight(const Panel<Real>& panel, const Tiles& tiles, const void* weight, int64_t K, int d, int first_gate,
                   int gates, int64_t block) const {
    constexpr int lanes = Vec<Real>::lanes;
    const int64_t gate_width = units.gate_width(block), wide = tiles.vectors * lanes;
    const auto row_of = [&](int64_t column) {
      const int64_t gate = column / gate_width;
      return (d * cell.gates + call.slot[first_gate + gate]) * call.H + block * units.width + column % gate_width;
    };
    const int64_t last = tiles.count * wide - lanes;
    for (int64_t column = 0; column <= last; column += lanes) {
      const Panel<Real> to = panel + column / wide * (K * wide) + column % wide;
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
  void pack_input(const ForwardPart<Real>& own, int d, int64_t block) const {
    pack_weight(input_panel(own, d, block), input_tiles(block), call.input_weight, call.I, d, 0, cell.gates, block);
  }

  // Packs all that is used step by step, for one block of one direction.
  void pack(const ForwardPart<Real>& own, int d, int64_t block) const {
    if (input_packed && !input_once && call.input_weight != nullptr && !input_panels.ready) pack_input(own, d, block);
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
      dot_products(rows, std::min(units.width, H - unit), K, A, lda, static_cast<const Real*>(weight) + row * K, after,
                   abreast, C + g * units.gate_width(block), ldc);
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

  // Products of some rows of the source with a block of the input weight, from row `first` of the chunk on.
  void input_product(const ForwardPart<Real>& own, int d, int64_t block, const Source& source, int64_t first) const {
    Real* to = own.x + (block - own.blocks.begin) * x_block + first * block_columns();
    if (!input_packed) {
      unpacked_products(call.input_weight, call.I, input_after, d, 0, cell.gates, block, source.count, source.rows, source.stride,
                        to, block_columns());
      return;
    }
    if (input_once) pack_input(own, d, block);
    const Tiles tiles = input_tiles(block);
    for (int tile = 0; tile < tiles.count; ++tile) {
      const int64_t column = tile * tiles.vectors * Vec<Real>::lanes;
      panel_product(source.count, call.I, source.rows, source.stride, input_panel(own, d, block) + call.I * column,
                    tiles.vectors, to + column, block_columns(), false);
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
                                 own.operand[(place + 1) % 2]};
          const bool end = place + 1 == call.T && d + 1 == call.D;  // nobody reads what the last phase leaves
          phase(0, step, own.operand[place % 2]);
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
