// What a gradient run works with: the cell as it sees it, the buffers, the packed weights.
#pragma once

#include <numeric>

#include "cpu/run.h"

namespace gatewise {
namespace GATEWISE_ISA {

template <class Real>
struct GradientRun;

// What one thread works on step by step: some rows and blocks of a section. Its arrays begin with the first of them.
template <class Real>
struct GradientPart {
  int thread;
  int crew, member;  // which crew it belongs to, and its number there
  int number;        // of the section
  Range section;     // its rows
  Range rows, blocks;
  Real *dh, *dc;  // [rows][own_units]
  Real* e;        // a tile of the product with R, or with few rows all of it: [rows][own_units]
};

// One step of one direction, as the pointwise maths sees it.
template <class Real>
struct GradientStep {
  const GradientRun<Real>* run;
  const GradientPart<Real>* own;
  int direction;
  int64_t t;       // input time of this step
  int64_t before;  // input time of the step before it in the order of travel, -1 at the start
  int64_t slot;    // place of this step in the chunk's buffers
  int64_t after;   // input time of the step after it, whose operand is made here; -1: it is not
};

// A row's state or cell before a step, from unit 0 on: an array of the caller's and a place in it, or null where it is 0.
struct Earlier {
  const void* from;
  int64_t index;
};

template <class Real>
using GradientPointwise = void (*)(const GradientStep<Real>&, const Range& blocks, int64_t first_row, int64_t rows,
                                   const Real* e);

template <class Real>
struct GradientCell {
  int gates = 1, phases = 1;
  int first_gate[2] = {0, 0}, gate_count[2] = {1, 0};
  bool has_cell = false, peephole = false, needs_product = false, dx_differs = false, output_sees_new_cell = false;
  bool restores_state = false;
  GradientPointwise<Real> pointwise[2] = {nullptr, nullptr};
  void (*rebuild)(const GradientStep<Real>&, const Range& blocks, int64_t first_row, int64_t rows) = nullptr;
};

template <class Real>
struct alignas(page) GradientPlan {
  static constexpr int lanes = Vec<Real>::lanes;
  static constexpr int64_t source_piece = 32 << 10;  // numbers of W that a thread packs at a time, where it is used once
  static constexpr int64_t least_columns = 64, least_depth = 64;  // n_block and source_depth at least
  static constexpr int wide = 2;  // vectors per tile of the columns of W and of the weight gradients; the last may be a single one

  const Call call;
  const GradientCell<Real> cell;
  Watch watch;
  Arena arena;
  Layout units;
  // The rows of a call may be divided into sections that have nothing to do with each other: each has sums of its own, which are
  // added up in the end. Their number follows from the call alone, so the bits do not depend on the number of threads. Crews
  // of threads take sections in turn.
  int sections = 1, crews = 1, crew_size = 1;
  Grid grid;  // of a crew
  int team = 1;
  bool packed = true;  // else the weights are used where they are: too few rows to repay it
  bool own_panels = false;   // a thread alone reads the panels of R for its blocks, and packs them
  // Few rows, and so one section and one chunk: W is used once. Threads divide its columns, and pack some of its rows at a time,
  // just before their product.
  bool source_once = false;
  int64_t chunks = 1, chunk = 1;  // of steps: their number, and the length of the longest
  int64_t stride = 0;
  int64_t own_units = 0;                           // row length of what one thread carries from step to step
  int64_t depth[2] = {0, 0};                       // columns of du per phase, [gate][H], that are rows of the weights
  int64_t du_stride[2] = {0, 0};                   // and its row length
  int64_t state_columns = 0, input_columns = 0;    // H and I rounded up to whole vectors
  int64_t run_width = 0;                           // rows of a weight's gradient that are made together
  int64_t k_block = 0, n_block = 0;                // rows of the chunk summed and columns made per pass of the weight gradients
  int64_t source_depth = 0;                        // rows of W that are packed at a time, where it is used once
  Panels<Real> back_panels[2], source_panels[2], product_panels;
  Piece<Real> peephole, secondary_bias;
  Pieces<Real> du[2], operand[2], q;        // of each crew; where vectors of du are added up it is read a little past its end
  Pieces<Real> dx_rows;                     // of each crew, or one of all rows
  Pieces<Real> d_recurrent[2], d_input[2];  // of each section, but for the first where the result itself can take the sums
  Pieces<Real> d_bias, d_peephole, d_secondary_bias;  // of each section
  Pieces<Real> dh, dc, scratch, turned, packed_b;     // of each thread
  Barrier everyone;
  std::unique_ptr<Barrier[]> crew;   // one for each crew, where there are several
  std::unique_ptr<Barrier[]> group;  // one for each group of rows of each crew

  GradientPlan(const Call& call, const GradientCell<Real>& cell, Arena&& arena)
      : call(call), cell(cell), arena(std::move(arena)) {}

  bool has_input() const { return call.input_weight != nullptr; }
  // Every row takes part in every step, with neither a mask nor resets, and nothing is given or wanted for the gates themselves.
  bool plain() const {
    return has_input() && call.mask == nullptr && call.resets == nullptr && call.lengths == nullptr &&
           call.z_state_gradient == nullptr && call.dtype == Native<Real>::dtype;
  }
  int64_t block_columns() const { return cell.gates * units.width; }
  int phase_of(int gate) const { return cell.phases == 2 && gate >= cell.first_gate[1] ? 1 : 0; }
  // du of a gate's block within its phase's row.
  int64_t du_column(int gate, int64_t block) const {
    return (gate - cell.first_gate[phase_of(gate)]) * call.H + block * units.width;
  }
  // Where in R or W the rows of a gate begin.
  int64_t weight_row(int d, int gate) const { return (d * cell.gates + call.slot[gate]) * call.H; }
  // du is the gradient of both products. Where the last gate's differ, that of the input product lies beside it: so many columns
  // further on. The columns before are the shared ones.
  int64_t apart_depth() const { return cell.dx_differs ? call.H : 0; }
  int64_t shared_depth(int phase) const { return depth[phase] - apart_depth(); }
  int64_t input_shift(int phase, int64_t column) const { return column < shared_depth(phase) ? 0 : call.H; }
  // A 16-bit source's gradient is summed over two directions in Real; else it goes straight to the result.
  bool dx_apart() const { return call.dtype != Native<Real>::dtype; }

  // Whether a weight gradient with this many columns is summed in the result itself: whole tiles of Real, no padding.
  bool in_place(int64_t columns) const {
    return call.dtype == Native<Real>::dtype && call.H % units.width == 0 && columns % lanes == 0;
  }
  // Vectors of the tile at column n of so many.
  int vectors_at(int64_t n, int64_t columns) const { return columns - n < wide * lanes ? 1 : wide; }

  // Sections: a thread that has one to itself has no other to wait for or to read from. Their sums cost little beside so many rows,
  // as long as they are not large.
  int choose_sections() const {
    const int64_t columns = call.H + call.I, sums = cell.gates * call.H * columns * static_cast<int64_t>(sizeof(Real));
    const int64_t least = 8, least_of_all_steps = std::max<int64_t>(1536, columns * 3 / 2);  // rows of a section
    int count = 1;
    while (count < 16 && 2 * count * sums <= 32 << 20 && call.N >= 2 * count * least &&
           call.T * call.N >= 2 * count * least_of_all_steps) {
      count *= 2;
    }
    return count;
  }

  void plan(int threads) {
    team = std::min(threads, 256);
    sections = choose_sections();
    crews = sections >= 2 * team ? team : std::gcd(sections, team);
    crew_size = team / crews;
    // One or two rows: wider tiles have more sums under way.
    units = Layout::make<Real>(call.H, vectors_per_block<Real>(call.H, call.N <= 2 ? most_vectors : wide));
    const int64_t N = (call.N + sections - 1) / sections, H = call.H;  // rows of a section
    const double R = static_cast<double>(cell.gates * units.padded * H);
    const double handed_on = static_cast<double>(cell.gates * units.padded) * sizeof(Real);
    grid = choose_grid(crew_size, N, units.blocks, 2.0 * static_cast<double>(N) * R, R * sizeof(Real), handed_on, cell.phases,
                       tile_rows(units.vectors));
    packed = repays_packing<Real>(call, true);
    if (!packed) grid = {1, static_cast<int>(std::min<int64_t>(crew_size, units.blocks))};  // each weight is read once
    const int64_t tile = wide * lanes;
    state_columns = (H + lanes - 1) / lanes * lanes;
    input_columns = (call.I + lanes - 1) / lanes * lanes;
    // The sums are read and written once for so many rows: a chunk's, but half of them where tiles are small, or where several
    // threads read the same rows. What is packed for a pass has to stay in a core's cache.
    const bool all_rows = GATEWISE_VECTOR_REGISTERS == 32 && crew_size <= 2;
    k_block = all_rows ? 576 : 288;
    n_block = all_rows && state_columns + input_columns > 512 ? 256 : 512;
    stride = spread<Real>(units.padded);
    own_units = (units.blocks + grid.unit_parts - 1) / grid.unit_parts * units.width;
    const int64_t rows = (N + grid.row_parts - 1) / grid.row_parts;
    for (int phase = 0; phase < cell.phases; ++phase) {
      depth[phase] = cell.gate_count[phase] * H;
      du_stride[phase] = odd_lines<Real>(depth[phase] + apart_depth());
    }
    source_once = packed && has_input() && call.I > 0 && call.T * call.N <= 128;
    if (source_once) source_depth = std::max<int64_t>(source_piece / (most_source_tiles() * tile), least_depth);
    const int64_t longest = chunk_steps(N);
    chunks = std::max<int64_t>((call.T + longest - 1) / longest, 1);
    chunk = (call.T + chunks - 1) / chunks;
    own_panels = crews == 1 && grid.row_parts == 1;
    // Where sums are made in the result itself, a run has to lie within a gate: some blocks, which come out even for all threads.
    // Else it may have as many rows as suit the tiles.
    run_width = H % units.width == 0 || crew_size > 2 ? units.width : 2 * tile_rows(wide);
    for (int64_t blocks = 2; H % units.width == 0 && blocks * units.width <= 64; ++blocks) {
      if (units.blocks % (blocks * crew_size) == 0) run_width = blocks * units.width;
    }
    const int64_t allowed = most_bytes();
    reserve(N, rows);
    while (packed && arena.used() > allowed) {
      if (n_block > least_columns) n_block /= 2;
      else if (source_once && source_depth > least_depth) source_depth /= 2;
      else break;
      reserve(N, rows);
    }
    arena.allocate(allowed);
    everyone.reset(team);
    if (crews > 1) crew = std::make_unique<Barrier[]>(crews);
    for (int i = 0; crews > 1 && i < crews; ++i) crew[i].reset(crew_size);
    group = std::make_unique<Barrier[]>(crews * grid.row_parts);
    for (int i = 0; i < crews * grid.row_parts; ++i) group[i].reset(grid.unit_parts);
  }

  // What the call may take. Weights of 16 bits cannot take the sums of their gradients.
  int64_t most_bytes() const {
    const int64_t sums = cell.gates * call.H * (call.H + (has_input() ? call.I : 0)) * static_cast<int64_t>(sizeof(Real));
    return allowed_bytes<Real>(call, cell.gates) + (call.dtype == Native<Real>::dtype ? 0 : sums);
  }
  // Steps of a chunk: enough for large products, few enough for the cache and for the memory a call may take. Sums depend on it, so
  // that memory is counted as for two threads, or one for each section, however many there are.
  int64_t chunk_steps(int64_t N) const {
    const int64_t size = sizeof(Real), threads = std::max(sections, 2), H = call.H, I = has_input() ? call.I : 0;
    int64_t row = cell.needs_product ? units.padded : 0, others = (20 * page + 8 * call.N * H * size) / size;
    if (cell.needs_product) others += call.D * units.padded * H;
    for (int phase = 0; phase < cell.phases; ++phase) {
      row += du_stride[phase] + stride;
      others += depth[phase] * (call.D * units.padded + (sections - in_place(H)) * H + (sections - in_place(I)) * I);
      others += source_once ? threads * source_piece / 2 : call.D * depth[phase] * I;
    }
    const int64_t left = most_bytes() / size - others;
    const auto fitting = [&](int64_t columns) { return left / (sections * row + threads * columns); };
    const int64_t many = std::clamp<int64_t>((10 << 20) / size / row, 320, 512);
    int64_t most = fitting(256);
    if (most < std::min<int64_t>(320, call.T * N)) most = fitting(least_columns);
    return std::clamp<int64_t>(std::min(many / N * 9 / 8, most / N), std::max<int64_t>(32 / N, 1), call.T);
  }
  // The memory of a call with so many rows in a section, and some of them for each group of threads.
  void reserve(int64_t N, int64_t rows) {
    const int64_t H = call.H, tile = wide * lanes;
    const DType recurrent_stored = packed_dtype<Real>(call, rows, cell.gates * H * H);
    arena.begin();
    for (int phase = 0; phase < cell.phases; ++phase) {
      if (packed) back_panels[phase].reserve(arena, call.D * units.blocks * (units.width * depth[phase] + gap), recurrent_stored);
      du[phase].reserve(arena, crews, chunk * N * du_stride[phase]);
      operand[phase].reserve(arena, crews, chunk * N * stride);
      d_recurrent[phase].reserve(arena, sections - in_place(H), depth[phase] * state_columns);
      if (has_input()) {
        const int64_t room = source_once ? team * most_source_tiles() * (tile * source_depth + gap)
                                         : call.D * (input_columns * depth[phase] + input_tiles() * gap);
        if (packed) source_panels[phase].reserve(arena, room, packed_dtype<Real>(call, call.T * call.N));
        d_input[phase].reserve(arena, sections - in_place(call.I), depth[phase] * input_columns);
      }
    }
    if (cell.needs_product) {
      if (packed) product_panels.reserve(arena, call.D * units.padded * H, recurrent_stored);
      q.reserve(arena, crews, chunk * N * units.padded);
    }
    if (cell.peephole) {
      peephole.reserve(arena, call.D * cell.gates * units.padded);
      d_peephole.reserve(arena, sections, units.blocks * block_columns());
    }
    secondary_bias.reserve(arena, call.D * units.padded);
    d_secondary_bias.reserve(arena, sections, units.padded);
    d_bias.reserve(arena, sections, units.blocks * block_columns());
    if (has_input() && dx_apart()) {
      dx_rows.reserve(arena, call.D == 2 ? 1 : crews, (call.D == 2 ? call.T * call.N : chunk * N) * call.I);
    }
    const int64_t states = rows * own_units, columns = std::min(state_columns + input_columns, n_block);
    Pieces<Real>::reserve_together(arena, team, {{&dh, states},
                                                 {&dc, states},
                                                 {&scratch, packed ? most_rows * std::max(units.width, tile) : states},
                                                 {&turned, packed ? 0 : run_width * call.T * call.N},
                                                 {&packed_b, std::min(k_block, chunk * N) * columns}});
  }

  // A thread's place in the grid of its crew; those beyond it have no rows and only help with the large products.
  GradientPart<Real> part_of(int id, int number) const {
    const int member = id % crew_size;
    GradientPart<Real> own{};
    own.thread = id;
    own.crew = id / crew_size;
    own.member = member;
    own.number = number;
    own.section = part(call.N, sections, number);
    own.dh = dh.in(arena, id);
    own.dc = dc.in(arena, id);
    own.e = scratch.in(arena, id);
    if (member < grid.size()) {
      const Range rows = part(own.section.size(), grid.row_parts, member / grid.unit_parts);
      own.rows = {own.section.begin + rows.begin, own.section.begin + rows.end};
      own.blocks = part(units.blocks, grid.unit_parts, member % grid.unit_parts);
    }
    return own;
  }
  // A row of the section at a step of the chunk, in the chunk's arrays.
  int64_t chunk_row(const GradientPart<Real>& own, int64_t slot, int64_t n) const {
    return slot * own.section.size() + n - own.section.begin;
  }
  // Where a row's unit is in the arrays of the thread it belongs to.
  int64_t own_place(const GradientPart<Real>& own, int64_t n, int64_t unit) const {
    return (n - own.rows.begin) * own_units + unit - own.blocks.begin * units.width;
  }

  // Panels of R, whose columns are H in blocks, and of W, whose columns are I in tiles; of both, row k belongs to column k of
  // du. A gap after each keeps the same row of all panels from meeting at one place of the cache.
  static constexpr int64_t gap = 3 * lanes;
  int64_t tiles_of(int64_t columns) const { return (columns + wide * lanes - 1) / (wide * lanes); }
  int64_t input_tiles() const { return tiles_of(input_columns); }
  Panel<Real> back_panel(int phase, int d, int64_t block) const {
    return back_panels[phase].in(arena) + (d * units.blocks + block) * (units.width * depth[phase] + gap);
  }
  // The tiles of W's columns that a thread works on.
  Range source_tiles(int thread) const { return source_once ? part(input_tiles(), team, thread) : Range{0, input_tiles()}; }
  int64_t most_source_tiles() const { return (input_tiles() + team - 1) / team; }
  Panel<Real> source_panel(int thread, int phase, int d, int64_t tile) const {
    if (source_once) {
      const int64_t number = thread * most_source_tiles() + tile - source_tiles(thread).begin;
      return source_panels[phase].in(arena) + number * (wide * lanes * source_depth + gap);
    }
    return source_panels[phase].in(arena) + ((d * input_columns + tile * wide * lanes) * depth[phase] +
                                             (d * input_tiles() + tile) * gap);
  }
  // The row of R and W that a column of du belongs to.
  int64_t row_of(int phase, int d, int64_t column) const {
    return weight_row(d, cell.first_gate[phase] + static_cast<int>(column / call.H)) + column % call.H;
  }

  // The same part of a later row, which will be packed soon: it may come from far.
  void fetch_ahead(const void* weight, int64_t index, int64_t length, int64_t count) const {
    const int64_t size = size_of(call.dtype), first = (index + 4 * length) * size;
    for (int64_t at = 0; at < count * size; at += 64) __builtin_prefetch(static_cast<const char*>(weight) + first + at);
  }
  // Some rows of some panels, row by row as they lie in memory.
  void pack_back(int phase, int d, const Range& rows, const Range& blocks) const {
    const int64_t H = call.H, width = units.width;
    for (int64_t k = rows.begin; k < rows.end; ++k) {
      const int64_t row = row_of(phase, d, k) * H;
      fetch_ahead(call.recurrent_weight, row + blocks.begin * width, H, blocks.size() * width);
      for (int64_t b = blocks.begin; b < blocks.end; ++b) {
        pack_row(back_panel(phase, d, b) + k * width, width, call.recurrent_weight, call.dtype, row + b * width, H - b * width);
      }
    }
  }
  void pack_source(int thread, int phase, int d, const Range& rows) const {
    const Range tiles = source_tiles(thread);
    for (int64_t k = rows.begin; k < rows.end; ++k) {
      const int64_t row = row_of(phase, d, k) * call.I, place = source_once ? k - rows.begin : k, tile = wide * lanes;
      fetch_ahead(call.input_weight, row + tiles.begin * tile, call.I, tiles.size() * tile);
      for (int64_t number = tiles.begin; number < tiles.end; ++number) {
        const int64_t i = number * tile, columns = vectors_at(i, input_columns) * lanes;
        pack_row(source_panel(thread, phase, d, number) + place * columns, columns, call.input_weight, call.dtype, row + i,
                 call.I - i);
      }
    }
  }

  // What a thread packs before the steps of a direction: what it alone needs, or its share of what all need.
  void pack(const GradientPart<Real>& own, int d) const {
    const Range blocks = own_panels ? own.blocks : part(units.blocks, team, own.thread);
    for (int phase = 0; packed && phase < cell.phases; ++phase) {
      const Range all{0, depth[phase]}, share = part(depth[phase], team, own.thread);
      pack_back(phase, d, own_panels ? all : share, own_panels ? blocks : Range{0, units.blocks});
      if (has_input() && !source_once) pack_source(own.thread, phase, d, share);
    }
    const int64_t width = units.width, H = call.H;
    for (int64_t unit = blocks.begin * width; unit < blocks.end * width; unit += lanes) {
      for (int g = 0; cell.peephole && g < cell.gates; ++g) {
        pack_row(peephole.in(arena) + (d * cell.gates + g) * units.padded + unit, lanes, call.peephole, call.dtype,
                 weight_row(d, g) + unit, H - unit);
      }
      pack_row(secondary_bias.in(arena) + d * units.padded + unit, lanes, call.secondary_bias, call.dtype, d * H + unit,
               call.secondary_bias == nullptr ? 0 : H - unit);
      if (!packed || !cell.needs_product) continue;
      const Panel<Real> panel = product_panels.in(arena) + (d * units.padded + unit / width * width) * H + unit % width;
      const int64_t row = weight_row(d, cell.gates - 1) + unit;
      pack_transposed(panel, width, call.recurrent_weight, call.dtype, row, H, H - unit, row + lanes);
    }
  }
  // Whether some of that is for other threads.
  bool packs_for_others() const { return !own_panels || (packed && has_input() && !source_once); }

  int64_t before(int d, int64_t t) const {
    if (call.backwards[d]) return t + 1 < call.T ? t + 1 : -1;
    return t - 1;
  }

  // The state or cell a row had before step t: nothing at a reset, the initial one where the row starts, else the result at
  // the step before.
  Earlier earlier(const void* results, const void* initial, int d, int64_t t, int64_t before, int64_t n) const {
    if (call.reset(t, n)) return {nullptr, 0};
    if (before >= 0 && call.active(before, n)) return {results, ((before * call.N + n) * call.D + d) * call.H};
    return {initial, (n * call.D + d) * call.H};
  }
};

}  // namespace GATEWISE_ISA
}  // namespace gatewise
