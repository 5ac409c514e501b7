// The gradient run. Steps are taken from the end, in chunks. Per chunk: the operands of the recurrent products are
// rebuilt; step by step the cell's gradient gives du, and its product with R what reaches the step before; then the
// weights' and the source's gradients are added up as large products over all rows of the chunk, in a fixed order.
#pragma once

#include "cpu/run.h"

namespace gatewise {
namespace GATEWISE_ISA {

template <class Real>
struct GradientRun;

// One step of one direction, as the pointwise maths sees it.
template <class Real>
struct GradientStep {
  const GradientRun<Real>* run;
  int direction;
  int64_t t;       // input time of this step
  int64_t before;  // input time of the step before it in the order of travel, -1 at the start
  int64_t slot;    // place of this step in the chunk's buffers
};

template <class Real>
using GradientPointwise = void (*)(const GradientStep<Real>&, int64_t block, int64_t first_row, int64_t rows, const Real* e);

template <class Real>
struct GradientCell {
  int gates = 1, phases = 1;
  int first_gate[2] = {0, 0}, gate_count[2] = {1, 0};
  bool has_cell = false, peephole = false, needs_product = false, dx_differs = false, output_sees_new_cell = false;
  GradientPointwise<Real> pointwise[2] = {nullptr, nullptr};
  void (*rebuild)(const GradientStep<Real>&, int64_t block, int64_t first_row, int64_t rows) = nullptr;
};

template <class Real>
struct GradientRun {
  static constexpr int lanes = Vec<Real>::lanes;
  static constexpr int64_t k_block = 256;  // rows of the chunk summed per pass of the weight gradients
  static constexpr int64_t n_block = 512;  // their columns per pass
  // Rows of a packed left operand, in whole vectors: it is read a little past the rows it needs, inside the scratch memory.
  static constexpr int64_t packed_rows = (most_rows + lanes - 1) / lanes * lanes;

  const Call& call;
  const GradientCell<Real>& cell;
  Watch& watch;
  Arena& arena;
  Layout units;
  Grid grid;
  int team = 1;
  int wide = 1;  // vectors per tile of the columns of W and of the weight gradients
  int64_t chunk = 1, stride = 0;
  int64_t depth[2] = {0, 0};                       // columns of du per phase
  int64_t du_stride[2] = {0, 0};                   // and its row length
  int64_t state_columns = 0, input_columns = 0;    // H and I rounded up to whole tiles
  Piece<Real> back_panels[2], source_panels[2], product_panels, peephole, secondary_bias;
  Piece<Real> du[2], dx, operand[2], q, dh, dc, dx_rows;
  Piece<Real> d_recurrent[2], d_input[2];  // only where the result cannot take the sums itself
  Piece<Real> d_bias, d_peephole, d_secondary_bias;
  Piece<Real> scratch, packed_a, packed_b;
  Barrier everyone, group[256];

  GradientRun(const Call& call, const GradientCell<Real>& cell, Watch& watch, Arena& arena)
      : call(call), cell(cell), watch(watch), arena(arena) {}

  bool has_input() const { return call.input_weight != nullptr; }
  int64_t block_columns() const { return cell.gates * units.width; }
  int phase_of(int gate) const { return cell.phases == 2 && gate >= cell.first_gate[1] ? 1 : 0; }
  // du of a gate's block within its phase's row.
  int64_t du_column(int gate, int64_t block) const {
    const int phase = phase_of(gate);
    return (block * cell.gate_count[phase] + gate - cell.first_gate[phase]) * units.width;
  }
  // The rows whose product with W is the source's gradient: du, or dx where they differ.
  Piece<Real> source_rows(int phase) const { return cell.dx_differs ? dx : du[phase]; }
  // A 16-bit source's gradient is summed over two directions in Real; else it goes straight to the result.
  bool dx_apart() const { return call.dtype != Native<Real>::dtype; }
  int64_t dx_apart_rows() const { return call.D == 2 ? call.T * call.N : chunk * call.N; }

  // Whether a weight gradient with this many columns is summed in the result itself: whole tiles of Real, no padding.
  bool in_place(int64_t columns) const {
    return call.dtype == Native<Real>::dtype && call.H % units.width == 0 && columns % (wide * lanes) == 0;
  }

  void plan(int threads) {
    const int most = 2;
    units = Layout::make<Real>(call.H, vectors_per_block<Real>(call.H, most));
    wide = most;
    const int64_t N = call.N, H = call.H;
    const double R = static_cast<double>(cell.gates * units.padded * H);
    grid = choose_grid(threads, N, units.blocks, 2.0 * static_cast<double>(N) * R, R * sizeof(Real), cell.phases,
                       tile_rows(units.vectors));
    const int64_t tile = wide * lanes;
    state_columns = (H + tile - 1) / tile * tile;
    input_columns = (call.I + tile - 1) / tile * tile;
    stride = spread<Real>(units.padded);
    chunk = std::clamp<int64_t>(512 / std::max<int64_t>(N, 1), 1, call.T);
    team = std::min(threads, 256);

    arena.begin();
    for (int phase = 0; phase < cell.phases; ++phase) {
      depth[phase] = units.blocks * cell.gate_count[phase] * units.width;
      du_stride[phase] = spread<Real>(depth[phase]);
      back_panels[phase].reserve(arena, call.D * units.padded * depth[phase]);
      du[phase].reserve(arena, chunk * N * du_stride[phase]);
      operand[phase].reserve(arena, chunk * N * stride);
      if (!in_place(H)) d_recurrent[phase].reserve(arena, depth[phase] * state_columns);
      if (has_input()) {
        source_panels[phase].reserve(arena, call.D * input_columns * depth[phase]);
        if (!in_place(call.I)) d_input[phase].reserve(arena, depth[phase] * input_columns);
      }
    }
    if (cell.dx_differs) dx.reserve(arena, chunk * N * du_stride[0]);
    if (cell.needs_product) {
      product_panels.reserve(arena, call.D * units.padded * H);
      q.reserve(arena, chunk * N * units.padded);
    }
    if (cell.peephole) {
      peephole.reserve(arena, call.D * units.blocks * block_columns());
      d_peephole.reserve(arena, units.blocks * block_columns());
    }
    secondary_bias.reserve(arena, call.D * units.padded);
    d_secondary_bias.reserve(arena, units.padded);
    d_bias.reserve(arena, units.blocks * block_columns());
    dh.reserve(arena, N * units.padded);
    dc.reserve(arena, N * units.padded);
    if (has_input() && dx_apart()) dx_rows.reserve(arena, dx_apart_rows() * call.I);
    scratch.reserve(arena, team * most_rows * std::max(units.width, tile));
    packed_a.reserve(arena, team * packed_rows * k_block);
    packed_b.reserve(arena, team * k_block * std::min(std::max(state_columns, input_columns), n_block));
    arena.allocate();
    everyone.reset(team);
    for (int i = 0; i < grid.row_parts; ++i) group[i].reset(grid.unit_parts);
  }

  // --- packing ---

  // Row k of the packed R and W is unit `lane` of gate g of a block; their columns are H or I in tiles.
  void pack(int d, int64_t block) const {
    const int64_t H = call.H, GH = cell.gates * H, width = units.width;
    for (int g = 0; g < cell.gates; ++g) {
      const int phase = phase_of(g);
      const int64_t row = d * GH + call.slot[g] * H + block * width;
      for (int64_t lane = 0; lane < width; ++lane) {
        const int64_t k = du_column(g, block) + lane;
        const bool exists = block * width + lane < H;
        Real* panel = back_panels[phase].in(arena) + d * units.padded * depth[phase] + k * width;
        for (int64_t b = 0; b < units.blocks; ++b, panel += depth[phase] * width) {
          pack_row(panel, width, call.recurrent_weight, call.dtype, (row + lane) * H + b * width, exists ? H - b * width : 0);
        }
        if (!has_input()) continue;
        const int64_t tile = wide * lanes;
        panel = source_panels[phase].in(arena) + d * input_columns * depth[phase] + k * tile;
        for (int64_t i = 0; i < input_columns; i += tile, panel += depth[phase] * tile) {
          pack_row(panel, tile, call.input_weight, call.dtype, (row + lane) * call.I + i, exists ? call.I - i : 0);
        }
      }
      if (cell.peephole) {
        Real* to = peephole.in(arena) + (d * units.blocks + block) * block_columns() + g * width;
        pack_row(to, width, call.peephole, call.dtype, row, H - block * width);
      }
    }
    if (cell.needs_product) {
      const int64_t row = d * GH + call.slot[cell.gates - 1] * H + block * width;
      Real* panel = product_panels.in(arena) + (d * units.blocks + block) * width * H;
      for (int v = 0; v < units.vectors; ++v) {
        pack_transposed(panel + v * lanes, width, call.recurrent_weight, call.dtype, row + v * lanes, H,
                        H - block * width - v * lanes);
      }
    }
    Real* to = secondary_bias.in(arena) + d * units.padded + block * width;
    pack_row(to, width, call.secondary_bias, call.dtype, d * H + block * width,
             call.secondary_bias == nullptr ? 0 : H - block * width);
  }

  // --- the parts of a chunk ---

  // Gradients that arrive at the final state and cell.
  void start(int d, const Range& rows, const Range& blocks) const {
    for (int64_t n = rows.begin; n < rows.end; ++n) {
      const int64_t end = std::min(blocks.end * units.width, call.H);
      for (int64_t unit = blocks.begin * units.width; unit < end; unit += lanes) {
        const int64_t count = call.H - unit, index = (n * call.D + d) * call.H + unit, at = n * units.padded + unit;
        Vec<Real> state(0.0), cell_value(0.0);
        if (call.state_gradient != nullptr) state = load_units<Real>(call.state_gradient, call.dtype, index, count);
        if (call.cell_gradient != nullptr) cell_value = load_units<Real>(call.cell_gradient, call.dtype, index, count);
        state.store(dh.in(arena) + at);
        cell_value.store(dc.in(arena) + at);
      }
    }
  }

  void finish(int d, const Range& rows, const Range& blocks) const {
    for (int64_t n = rows.begin; n < rows.end; ++n) {
      const int64_t end = std::min(blocks.end * units.width, call.H);
      for (int64_t unit = blocks.begin * units.width; unit < end; unit += lanes) {
        const int64_t count = call.H - unit, index = (n * call.D + d) * call.H + unit, at = n * units.padded + unit;
        if (call.d_init_state != nullptr) {
          store_units<Real>(call.d_init_state, call.dtype, index, Vec<Real>::load(dh.in(arena) + at), count);
        }
        if (call.d_init_cell != nullptr) {
          store_units<Real>(call.d_init_cell, call.dtype, index, Vec<Real>::load(dc.in(arena) + at), count);
        }
      }
    }
  }

  // e = du R for some rows and blocks of one phase, each block handed to `then(block, first row, rows, e)`.
  template <class Then>
  void back_product(int thread, int phase, int d, int64_t slot, const Range& rows, const Range& blocks, Then then) const {
    Real* e = scratch.in(arena) + thread * most_rows * std::max<int64_t>(units.width, wide * lanes);
    const Real* A = du[phase].in(arena) + slot * call.N * du_stride[phase];
    const Groups groups(rows.size(), tile_rows(units.vectors));
    for (int64_t block = blocks.begin; block < blocks.end; ++block) {
      const Real* panel = back_panels[phase].in(arena) + (d * units.padded + block * units.width) * depth[phase];
      for (int64_t g = 0; g < groups.count; ++g) {
        const int64_t n = rows.begin + groups.begin(g), count = groups.begin(g + 1) - groups.begin(g);
        tile_function<Real>(units.vectors, static_cast<int>(count))(depth[phase], A + n * du_stride[phase], du_stride[phase],
                                                                   panel, e, units.width, false);
        then(block, n, count, e);
      }
    }
  }

  // What reaches the state before the step: what the cell passed on directly plus mask * e, nothing across a reset.
  void pass_on(int d, int64_t t, int64_t block, int64_t first_row, int64_t rows, const Real* e) const {
    for (int64_t i = 0; i < rows; ++i) {
      const int64_t n = first_row + i;
      if (!call.active(t, n)) continue;
      for (int64_t at = 0; at < units.width; at += lanes) {
        const int64_t unit = block * units.width + at, left = call.H - unit;
        if (left <= 0) break;
        Real* kept = dh.in(arena) + n * units.padded + unit;
        Vec<Real> reaches = Vec<Real>::load(e + i * units.width + at);
        if (call.mask != nullptr) reaches = reaches * load_mask<Real>(call, t, n, d * call.H + unit, left);
        const Vec<Real> sum = Vec<Real>::load(kept) + reaches;
        (call.reset(t, n) ? Vec<Real>(0.0) : sum).store(kept);
        if (cell.has_cell && call.reset(t, n)) Vec<Real>(0.0).store(dc.in(arena) + n * units.padded + unit);
      }
    }
  }

  // q = operand R_o^T + b2 for every row of the chunk.
  void products_again(int d, int64_t steps, const Range& rows, const Range& blocks) const {
    for (int64_t slot = 0; slot < steps; ++slot) {
      const int64_t row = slot * call.N + rows.begin;
      for (int64_t block = blocks.begin; block < blocks.end; ++block) {
        const Real* panel = product_panels.in(arena) + (d * units.blocks + block) * units.width * call.H;
        Real* to = q.in(arena) + row * units.padded + block * units.width;
        panel_product(rows.size(), call.H, operand[0].in(arena) + row * stride, stride, panel, units.vectors, to, units.padded,
                      false);
        const Real* b2 = secondary_bias.in(arena) + d * units.padded + block * units.width;
        for (int64_t n = 0; n < rows.size(); ++n) {
          for (int64_t at = 0; at < units.width; at += lanes) {
            (Vec<Real>::load(to + n * units.padded + at) + Vec<Real>::load(b2 + at)).store(to + n * units.padded + at);
          }
        }
      }
    }
  }

  // Where the sums of one run of `width` weight rows are, and the length of a row.
  struct Sums {
    Real* at;
    int64_t stride;
  };
  Sums sums_of(int phase, int d, int64_t run, const Piece<Real>* apart, void* result, int64_t columns, int64_t padded) const {
    if (!in_place(columns)) return {apart[phase].in(arena) + run * units.width * padded, padded};
    const int gate = cell.first_gate[phase] + static_cast<int>(run % cell.gate_count[phase]);
    const int64_t row = (d * cell.gates + call.slot[gate]) * call.H + run / cell.gate_count[phase] * units.width;
    return {static_cast<Real*>(result) + row * columns, columns};
  }

  // sums(run)[m][n] (+)= sum over the chunk's rows k of left[k][m] * right(k)[n], for some runs of `width` rows m.
  // `right` packs a tile of one row.
  template <class SumsOf, class Right>
  void weight_gradient(int thread, const Real* left, int64_t left_stride, const Range& runs, int64_t rows, bool begun,
                       int64_t columns, SumsOf sums, Right right) const {
    const int64_t tile = wide * lanes;
    Real* A = packed_a.in(arena) + thread * packed_rows * k_block;
    Real* B = packed_b.in(arena) + thread * k_block * std::min(std::max(state_columns, input_columns), n_block);
    const Groups groups(units.width, tile_rows(wide));
    for (int64_t n0 = 0; n0 < columns; n0 += n_block) {
      const int64_t n1 = std::min(n0 + n_block, columns);
      for (int64_t k0 = 0; k0 < rows; k0 += k_block) {
        const int64_t depth_here = std::min(k_block, rows - k0);
        for (int64_t k = 0; k < depth_here; ++k) {
          for (int64_t n = n0; n < n1; n += tile) right(k0 + k, n, B + (n - n0) * depth_here + k * tile);
        }
        for (int64_t run = runs.begin; run < runs.end; ++run) {
          const Sums to = sums(run);
          for (int64_t g = 0; g < groups.count; ++g) {
            const int64_t m = groups.begin(g), count = groups.begin(g + 1) - m;
            for (int64_t k = 0; k < depth_here; ++k) {
              const Real* from = left + (k0 + k) * left_stride + run * units.width + m;
              for (int64_t i = 0; i < packed_rows; i += lanes) Vec<Real>::load(from + i).store(A + k * packed_rows + i);
            }
            const auto product = tile_function<Real, true>(wide, static_cast<int>(count));
            for (int64_t n = n0; n < n1; n += tile) {
              product(depth_here, A, packed_rows, B + (n - n0) * depth_here, to.at + m * to.stride + n, to.stride, begun || k0 > 0);
            }
          }
        }
      }
    }
  }

  void weight_gradients(int thread, int d, int64_t t0, int64_t steps, bool begun) const {
    const int64_t rows = steps * call.N, tile = wide * lanes, I = call.I;
    for (int phase = 0; phase < cell.phases; ++phase) {
      const Range runs = part(depth[phase] / units.width, team, thread);
      if (runs.size() == 0) continue;
      const Real* operands = operand[phase].in(arena);
      weight_gradient(
          thread, du[phase].in(arena), du_stride[phase], runs, rows, begun, state_columns,
          [&](int64_t run) { return sums_of(phase, d, run, d_recurrent, call.d_recurrent_weight, call.H, state_columns); },
          [&](int64_t k, int64_t n, Real* to) {
            pack_row(to, tile, operands, Native<Real>::dtype, k * stride + n, call.H - n);
          });
      if (!has_input()) continue;
      weight_gradient(
          thread, source_rows(phase).in(arena), du_stride[phase], runs, rows, begun, input_columns,
          [&](int64_t run) { return sums_of(phase, d, run, d_input, call.d_input_weight, I, input_columns); },
          [&](int64_t k, int64_t n, Real* to) {
            // a row past its end adds nothing, whatever it holds
            const bool active = call.active(t0 + k / call.N, k % call.N);
            pack_row(to, tile, call.source, call.dtype, (t0 * call.N + k) * I + n, active ? I - n : 0);
          });
    }
    bias_gradients(thread, d, t0, steps);
  }

  // Sums over rows for the bias, the peephole and the secondary bias of some blocks.
  void bias_gradients(int thread, int d, int64_t t0, int64_t steps) const {
    const Range blocks = part(units.blocks, team, thread);
    const auto add = [](Real* to, const Vec<Real>& value) { (Vec<Real>::load(to) + value).store(to); };
    for (int64_t k = 0; k < steps * call.N; ++k) {
      const int64_t t = t0 + k / call.N, n = k % call.N;
      if (!call.active(t, n)) continue;
      for (int64_t block = blocks.begin; block < blocks.end; ++block) {
        for (int g = 0; g < cell.gates; ++g) {
          const int phase = phase_of(g);
          const bool output = g == cell.gates - 1;
          const int64_t row = k * du_stride[phase] + du_column(g, block);
          const Real* u = du[phase].in(arena) + row;
          const Real* x = source_rows(phase).in(arena) + row;
          const int64_t place = block * block_columns() + g * units.width;
          for (int64_t at = 0; at < units.width; at += lanes) {
            const int64_t unit = block * units.width + at;
            add(d_bias.in(arena) + place + at, Vec<Real>::load(x + at));
            if (output && cell.needs_product) add(d_secondary_bias.in(arena) + unit, Vec<Real>::load(u + at));
            if (cell.peephole && unit < call.H) {
              add(d_peephole.in(arena) + place + at, Vec<Real>::load(u + at) * seen_cell(d, t, n, unit, output));
            }
          }
        }
      }
    }
  }

  // The cell value a gate's peephole multiplied at step t.
  Vec<Real> seen_cell(int d, int64_t t, int64_t n, int64_t unit, bool output) const {
    if (output && cell.output_sees_new_cell) {
      return load_units<Real>(call.cell_given, call.dtype, ((t * call.N + n) * call.D + d) * call.H + unit, call.H - unit);
    }
    return previous<false>(call.cell_given, call.init_cell, d, t, before(d, t), n, unit);
  }

  int64_t before(int d, int64_t t) const {
    if (call.backwards[d]) return t + 1 < call.T ? t + 1 : -1;
    return t - 1;
  }

  // The state or cell a row had before step t: 0 at a reset, the initial one where the row starts, else the result at
  // the step before.
  template <bool FULL>
  GATEWISE_INLINE Vec<Real> previous(const void* results, const void* initial, int d, int64_t t, int64_t before, int64_t n,
                                     int64_t unit) const {
    if (call.reset(t, n)) return Vec<Real>(0.0);
    const int64_t left = call.H - unit;
    if (before >= 0 && call.active(before, n)) {
      return Access<Real, FULL>::load(results, call.dtype, ((before * call.N + n) * call.D + d) * call.H + unit, left);
    }
    if (initial == nullptr) return Vec<Real>(0.0);
    return Access<Real, FULL>::load(initial, call.dtype, (n * call.D + d) * call.H + unit, left);
  }

  // The source's gradient for this thread's share of the chunk's rows.
  void source_gradients(int thread, int d, int64_t t0, int64_t steps) const {
    const Range rows = part(steps * call.N, team, thread);
    if (rows.size() == 0) return;
    const int64_t tile = wide * lanes, I = call.I, first = t0 * call.N + rows.begin;
    Real* out = dx_apart() ? dx_rows.in(arena) + (call.D == 2 ? first : rows.begin) * I : static_cast<Real*>(call.d_source) + first * I;
    Real* tail = scratch.in(arena) + thread * most_rows * std::max(units.width, tile);
    constexpr int64_t at_once = 48;
    for (int64_t r = 0; r < rows.size(); r += at_once) {
      const Groups groups(std::min(at_once, rows.size() - r), tile_rows(wide));
      for (int phase = 0; phase < cell.phases; ++phase) {
        const Real* A = source_rows(phase).in(arena) + (rows.begin + r) * du_stride[phase];
        const Real* panel = source_panels[phase].in(arena) + d * input_columns * depth[phase];
        const bool add = phase > 0 || d > 0;
        for (int64_t i = 0; i < I; i += tile, panel += depth[phase] * tile) {
          for (int64_t g = 0; g < groups.count; ++g) {
            const int64_t row = groups.begin(g), count = groups.begin(g + 1) - row;
            Real* to = out + (r + row) * I + i;
            const auto product = tile_function<Real>(wide, static_cast<int>(count));
            if (i + tile <= I) {
              product(depth[phase], A + row * du_stride[phase], du_stride[phase], panel, to, I, add);
            } else {
              for (int64_t j = 0; add && j < count; ++j) pack_row(tail + j * tile, tile, to + j * I, Native<Real>::dtype, 0, I - i);
              product(depth[phase], A + row * du_stride[phase], du_stride[phase], panel, tail, tile, add);
              for (int64_t j = 0; j < count; ++j) std::memcpy(to + j * I, tail + j * tile, (I - i) * sizeof(Real));
            }
          }
        }
      }
    }
    if (dx_apart() && d == call.D - 1) write_run(call.d_source, call.dtype, first * I, out, rows.size() * I);
  }

  // The sums of this thread's share of the blocks: set to 0, and handed over at the end.
  void clear_sums(int thread) const {
    const Range blocks = part(units.blocks, team, thread);
    const Range columns{blocks.begin * block_columns(), blocks.end * block_columns()};
    std::fill(d_bias.in(arena) + columns.begin, d_bias.in(arena) + columns.end, Real(0));
    if (cell.peephole) std::fill(d_peephole.in(arena) + columns.begin, d_peephole.in(arena) + columns.end, Real(0));
    std::fill(d_secondary_bias.in(arena) + blocks.begin * units.width, d_secondary_bias.in(arena) + blocks.end * units.width,
              Real(0));
  }

  void hand_over_sums(int thread, int d) const {
    const int64_t H = call.H, GH = cell.gates * H, width = units.width;
    for (int phase = 0; phase < cell.phases; ++phase) {
      const Range runs = part(depth[phase] / width, team, thread);
      for (int64_t run = runs.begin; run < runs.end; ++run) {
        const int64_t unit = run / cell.gate_count[phase] * width;
        const int gate = cell.first_gate[phase] + static_cast<int>(run % cell.gate_count[phase]);
        for (int64_t i = 0; i < std::min(width, H - unit); ++i) {
          const int64_t row = d * GH + call.slot[gate] * H + unit + i, k = run * width + i;
          if (!in_place(H)) {
            write_run(call.d_recurrent_weight, call.dtype, row * H, d_recurrent[phase].in(arena) + k * state_columns, H);
          }
          if (has_input() && !in_place(call.I)) {
            write_run(call.d_input_weight, call.dtype, row * call.I, d_input[phase].in(arena) + k * input_columns, call.I);
          }
        }
      }
    }
    const Range blocks = part(units.blocks, team, thread);
    for (int64_t block = blocks.begin; block < blocks.end; ++block) {
      const int64_t count = std::min(width, H - block * width);
      for (int g = 0; g < cell.gates; ++g) {
        const int64_t to = d * GH + call.slot[g] * H + block * width, from = block * block_columns() + g * width;
        if (call.d_bias != nullptr) write_run(call.d_bias, call.dtype, to, d_bias.in(arena) + from, count);
        if (call.d_peephole != nullptr) write_run(call.d_peephole, call.dtype, to, d_peephole.in(arena) + from, count);
      }
      if (call.d_secondary_bias != nullptr) {
        write_run(call.d_secondary_bias, call.dtype, d * H + block * width, d_secondary_bias.in(arena) + block * width, count);
      }
    }
  }

  // --- the thread ---

  void thread(int id) {
    Pulse pulse(watch, call.N * call.H);
    for (int64_t item = id; item < call.D * units.blocks; item += team) {
      pack(static_cast<int>(item / units.blocks), item % units.blocks);
    }
    clear_sums(id);
    if (!everyone.wait(watch.stop)) return;
    const bool in_grid = id < grid.size();  // the others only help with the large products
    const int row_part = in_grid ? id / grid.unit_parts : 0;
    const Range rows = in_grid ? part(call.N, grid.row_parts, row_part) : Range{};
    const Range blocks = in_grid ? part(units.blocks, grid.unit_parts, id % grid.unit_parts) : Range{};
    Barrier& meet = group[row_part];

    for (int d = 0; d < call.D; ++d) {
      const auto time = [&](int64_t place) { return call.backwards[d] ? call.T - 1 - place : place; };
      start(d, rows, blocks);
      for (int64_t end = call.T; end > 0; end -= std::min(end, chunk)) {
        const int64_t begin = std::max<int64_t>(end - chunk, 0), steps = end - begin;
        const int64_t t0 = std::min(time(begin), time(end - 1));
        if (in_grid && !chunk_steps(id, d, begin, end, t0, rows, blocks, meet, pulse)) return;
        if (!everyone.wait(watch.stop)) return;
        weight_gradients(id, d, t0, steps, end < call.T);
        if (has_input()) source_gradients(id, d, t0, steps);
        if (!everyone.wait(watch.stop)) return;
      }
      finish(d, rows, blocks);
      hand_over_sums(id, d);
      clear_sums(id);
    }
  }

  // The recurrent part of a chunk; false when the call was stopped.
  bool chunk_steps(int id, int d, int64_t begin, int64_t end, int64_t t0, const Range& rows, const Range& blocks,
                   Barrier& meet, Pulse& pulse) {
    const auto step_at = [&](int64_t place) {
      const int64_t t = call.backwards[d] ? call.T - 1 - place : place;
      return GradientStep<Real>{this, d, t, before(d, t), t - t0};
    };
    for (int64_t place = begin; place < end; ++place) {
      for (int64_t block = blocks.begin; block < blocks.end; ++block) {
        cell.rebuild(step_at(place), block, rows.begin, rows.size());
      }
    }
    if (cell.needs_product) {
      if (!meet.wait(watch.stop)) return false;
      products_again(d, end - begin, rows, blocks);
    }
    for (int64_t place = end - 1; place >= begin; --place) {
      const GradientStep<Real> step = step_at(place);
      const int last = cell.phases - 1;
      for (int64_t block = blocks.begin; block < blocks.end; ++block) {
        cell.pointwise[last](step, block, rows.begin, rows.size(), nullptr);
      }
      if (!meet.wait(watch.stop)) return false;
      if (last == 1) {
        back_product(id, 1, d, step.slot, rows, blocks, [&](int64_t block, int64_t n, int64_t count, const Real* e) {
          cell.pointwise[0](step, block, n, count, e);
        });
        if (!meet.wait(watch.stop)) return false;
      }
      back_product(id, 0, d, step.slot, rows, blocks, [&](int64_t block, int64_t n, int64_t count, const Real* e) {
        pass_on(d, step.t, block, n, count, e);
      });
      if (pulse.stopped(id == 0)) return false;
    }
    return true;
  }
};

}  // namespace GATEWISE_ISA
}  // namespace gatewise
