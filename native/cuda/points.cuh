// One unit of one row at one step: what it reads, the cell's maths, what it writes. Shared by every kernel family.
//
// WIDTH neighbouring units of a row may be read and written together, as one word, where H is a multiple of WIDTH.
//
// Points read in two steps. `fetch` only starts the loads, all of them, and looks at none: a single early look would put
// one trip to memory after the other. `prepare` looks. Between the two lies, in the persistent kernels, a whole step.
#pragma once
#include "problem.cuh"

namespace gatewise {

#ifdef GATEWISE_SMALL_STEPS
using Offset = u32;  // within a step; the engine sees to it that it is enough
#else
using Offset = i64;
#endif

template <int BYTES>
struct WordOf;
template <>
struct WordOf<2> { using type = unsigned short; };
template <>
struct WordOf<4> { using type = u32; };
template <>
struct WordOf<8> { using type = uint2; };
template <>
struct WordOf<16> { using type = uint4; };

// The elements of WIDTH neighbouring units.
template <class Element, int WIDTH>
union Units {
  static_assert(H % WIDTH == 0);
  using Word = typename WordOf<WIDTH * sizeof(Storage<Element>)>::type;
  Storage<Element> at[WIDTH];
  Word word;

  static __device__ __forceinline__ Units fill(typename Element::Value value) {
    Units u;
#pragma unroll
    for (int j = 0; j < WIDTH; ++j) u.at[j] = Element::store(value);
    return u;
  }
  static __device__ __forceinline__ Units read(const Storage<Element>* from) {
    Units u;
    if constexpr (WIDTH == 1) {
      u.at[0] = __ldg(from);
    } else {
      u.word = __ldg(reinterpret_cast<const Word*>(from));
    }
    return u;
  }
  // From anywhere.
  static __device__ __forceinline__ Units read(const Storage<Element>* from, i64 stride) {
    if (WIDTH > 1 && stride == 1 && reinterpret_cast<i64>(from) % sizeof(Word) == 0) return read(from);
    Units u;
#pragma unroll
    for (int j = 0; j < WIDTH; ++j) u.at[j] = __ldg(from + j * stride);
    return u;
  }
  // From memory that this kernel writes.
  static __device__ __forceinline__ Units copy(const Storage<Element>* from) {
    Units u;
    if constexpr (WIDTH == 1) {
      u.at[0] = *from;
    } else {
      u.word = *reinterpret_cast<const Word*>(from);
    }
    return u;
  }
  static __device__ __forceinline__ Units read_if(bool condition, const Storage<Element>* from) {
    return condition ? read(from) : fill(0);
  }
  __device__ __forceinline__ void write(Storage<Element>* to) const {
    if constexpr (WIDTH == 1) {
      *to = at[0];
    } else {
      *reinterpret_cast<Word*>(to) = word;
    }
  }
  __device__ __forceinline__ typename Element::Value operator[](int j) const { return Element::load(at[j]); }
};

// Where values of a point, the first of WIDTH, are in the arrays of one step. Points beyond the last row or unit are given a
// real one's place, so that reading needs no conditions; they write nothing.
struct Spot {
  Offset unit_at;  // in [N, D, H]
  Offset gate_at;  // in [N, D, G, H], first gate of the caller's order
  int n, d, unit;
  bool real;

  __device__ __forceinline__ Spot(const Arguments& a, int direction, int row, int unit_, int width = 1) {
    real = row < int(a.N) && unit_ < H;
    n = row < int(a.N) ? row : int(a.N) - 1;
    unit = unit_ < H ? unit_ : H - width;
    d = direction;
    const Offset row_at = static_cast<Offset>(n) * static_cast<Offset>(a.D) + d;
    unit_at = row_at * H + unit;
    gate_at = row_at * (G * H) + unit;
  }
};

// Where a step starts in arrays over all steps.
struct Moment {
  int t;
  i64 units, gates;

  __device__ __forceinline__ Moment(const Arguments& a, int time) : t(time) {
    const Offset rows = static_cast<Offset>(a.N) * static_cast<Offset>(a.D);
    units = static_cast<i64>(t) * (rows * H);
    gates = static_cast<i64>(t) * (rows * (G * H));
  }
};

// What decides whether a row takes part in a step, and with which mask.
template <int WIDTH>
struct PartOf {
  int length;
  Units<E, WIDTH> mask;
  unsigned char reset;

  __device__ __forceinline__ void fetch(const Arguments& a, const Spot& spot, int t, int row_length) {
    length = row_length;
    mask = Units<E, WIDTH>::fill(V(1));
    reset = 0;
    if (given<MASK>(a.mask)) {
      const i64 at = t * a.mask_t + spot.n * a.mask_n + (i64(spot.d) * H + spot.unit) * a.mask_k;
      mask = Units<E, WIDTH>::read(a.mask + at, a.mask_k);
    }
    if (given<RESETS>(a.resets)) reset = __ldg(a.resets + t * a.resets_t + spot.n * a.resets_n);
  }
#ifdef GATEWISE_OPTIONS
  __device__ __forceinline__ bool takes(int t) const { return !given<LENGTHS>(nullptr) || t < length; }
#else
  __device__ __forceinline__ bool takes(int t) const { return t < length; }
#endif
};

using Part = PartOf<1>;

__device__ __forceinline__ V initial(const Storage<E>* array, const Spot& spot) {
  return array == nullptr ? V(0) : E::load(__ldg(array + spot.unit_at));
}

// What is the same at every step. Blocks may keep it in shared memory, in COUNT arrays of their units.
template <int WIDTH>
struct ConstantsOf {
  using Elements = Units<E, WIDTH>;
  static constexpr int COUNT = 2 * G + 1;
  Elements bias[G], peephole[G], second_bias;

  __device__ __forceinline__ void fetch(const Arguments& a, const Spot& spot) {
    const int packed = spot.d * (G * H) + spot.unit;
#pragma unroll
    for (int g = 0; g < G; ++g) {
      bias[g] = Elements::read_if(given<BIAS>(a.bias), a.bias + SLOT[g] * H + packed);
      if constexpr (Cell::peephole) peephole[g] = Elements::read(a.peephole + SLOT[g] * H + packed);
    }
    if constexpr (Cell::needs_product) {
      second_bias = Elements::read_if(a.secondary_bias != nullptr, a.secondary_bias + spot.d * H + spot.unit);
    }
  }
  template <int UNITS>
  __device__ __forceinline__ void put(Storage<E>* to) const {
#pragma unroll
    for (int g = 0; g < G; ++g) {
      bias[g].write(to + g * UNITS);
      if constexpr (Cell::peephole) peephole[g].write(to + (G + g) * UNITS);
    }
    if constexpr (Cell::needs_product) second_bias.write(to + 2 * G * UNITS);
  }
  template <int UNITS>
  __device__ __forceinline__ void take(const Storage<E>* from) {
#pragma unroll
    for (int g = 0; g < G; ++g) {
      bias[g] = given<BIAS>(from) ? Elements::copy(from + g * UNITS) : Elements::fill(0);
      if constexpr (Cell::peephole) peephole[g] = Elements::copy(from + (G + g) * UNITS);
    }
    if constexpr (Cell::needs_product) second_bias = Elements::copy(from + 2 * G * UNITS);
  }
};

template <int WIDTH>
struct ForwardInputsOf {
  PartOf<WIDTH> part, next;
  Units<X, WIDTH> x[G];
  ConstantsOf<WIDTH> constants;

  // All but the constants. `t_next` is the time of the direction's next step; after the last one, any.
  __device__ __forceinline__ void fetch(const Arguments& a, const Spot& spot, const Moment& now, int t_next, int length) {
    next.fetch(a, spot, now.t, length);
    fetch_of_step(a, spot, now, t_next);
  }
  // The same where the step before was fetched too: what decides about this step was its `next`.
  __device__ __forceinline__ void fetch_of_step(const Arguments& a, const Spot& spot, const Moment& now, int t_next) {
#pragma unroll
    for (int g = 0; g < G; ++g) x[g] = Units<X, WIDTH>::read(a.x + now.gates + SLOT[g] * H + spot.gate_at);
    part = next;
    next.fetch(a, spot, t_next, part.length);
  }
};
using ForwardInputs = ForwardInputsOf<1>;

struct ForwardPoint {
  Forward<V, G> v;
  bool active, reset_next;
  V mask_next;

  // `j` is which of the units that were fetched together.
  template <int WIDTH>
  __device__ __forceinline__ void prepare(const ForwardInputsOf<WIDTH>& in, int t, V h, V c, int j = 0) {
#pragma unroll
    for (int g = 0; g < G; ++g) {
      v.x[g] = in.x[g][j] + in.constants.bias[g][j];
      v.p[g] = Cell::peephole ? in.constants.peephole[g][j] : V(0);
    }
    v.b2 = Cell::needs_product ? in.constants.second_bias[j] : V(0);
    v.m = in.part.mask[j];
    active = in.part.takes(t);
    mask_next = in.next.mask[j];
    reset_next = in.next.reset != 0;
    v.h = in.part.reset != 0 ? V(0) : h;
    v.c = in.part.reset != 0 ? V(0) : c;
  }

  // After the last phase: the state and cell to carry on, and the operand of the next step. They are the step's results too:
  // those of a row that takes no part are written as zeros.
  __device__ __forceinline__ V advance(V& h, V& c) {
    v.h_next = h = active ? v.h_next : h;
    if constexpr (Cell::has_cell) v.c_next = c = active ? v.c_next : c;
    return (reset_next ? V(0) : h) * mask_next;
  }
};

// Writes value(point) for each of WIDTH neighbouring units, zero where their row takes no part.
template <int WIDTH, class Point, class Value>
__device__ __forceinline__ void write_units(Storage<E>* to, const Point* points, Value value) {
  Units<E, WIDTH> units;
#pragma unroll
  for (int j = 0; j < WIDTH; ++j) units.at[j] = E::store(points[j].active ? value(points[j]) : V(0));
  units.write(to);
}

template <int WIDTH = 1>
__device__ __forceinline__ void write_results(const Arguments& a, const Spot& spot, const Moment& now,
                                              const ForwardPoint* points) {
  if (!spot.real) return;
  using P = const ForwardPoint&;
  write_units<WIDTH>(a.state + now.units + spot.unit_at, points, [](P p) { return p.v.h_next; });
  if constexpr (Cell::has_cell) {
    if (a.cell != nullptr) write_units<WIDTH>(a.cell + now.units + spot.unit_at, points, [](P p) { return p.v.c_next; });
  }
  if (a.z_state != nullptr) {
#pragma unroll
    for (int g = 0; g < G; ++g) {
      write_units<WIDTH>(a.z_state + now.gates + SLOT[g] * H + spot.gate_at, points, [g](P p) { return p.v.gate[g]; });
    }
  }
}

template <int WIDTH>
struct GradientInputsOf {
  using Elements = Units<E, WIDTH>;
  PartOf<WIDTH> part, later;
  Elements gate[G], dgate[G], cell_next, cell_before, state_before, product, dstate, dcell;
  ConstantsOf<WIDTH> constants;

  // All but the constants. `t_before` is the time of the direction's step before this one, -1 at its first; `t_later` that of
  // the one after.
  __device__ __forceinline__ void fetch(const Arguments& a, const Spot& spot, const Moment& now, int t_before, int t_later,
                                        int length) {
    part.fetch(a, spot, now.t, length);
    later.fetch(a, spot, t_later, length);
#pragma unroll
    for (int g = 0; g < G; ++g) {
      gate[g] = Elements::read(a.z_state + now.gates + SLOT[g] * H + spot.gate_at);
      const Storage<E>* dgates = a.z_state_gradient + now.gates + SLOT[g] * H;
      dgate[g] = Elements::read_if(given<GATE_GRADIENT>(a.z_state_gradient), dgates + spot.gate_at);
    }
    const bool came = t_before >= 0 && part.takes(t_before);  // else this is the row's first step
    const i64 before = came ? Moment(a, t_before).units : 0;
    if constexpr (Cell::has_cell) {
      cell_next = Elements::read(a.cell + now.units + spot.unit_at);
      const Storage<E>* from = came ? a.cell : a.init_cell;
      cell_before = Elements::read_if(from != nullptr, from + before + spot.unit_at);
    }
    if constexpr (!Cell::restores_state) {
      const Storage<E>* from = came ? a.state : a.init_state;
      state_before = Elements::read_if(from != nullptr, from + before + spot.unit_at);
    }
    if constexpr (Cell::needs_product) product = Elements::read(a.product + now.units + spot.unit_at);
    dstate = Elements::read(a.source_gradient + now.units + spot.unit_at);
    const Storage<E>* dcells = a.cell_sequence_gradient + now.units;
    dcell = Elements::read_if(given<CELL_GRADIENT>(a.cell_sequence_gradient), dcells + spot.unit_at);
  }

  // Adds to dh what came through the recurrent product of the later step, at time t.
  __device__ __forceinline__ V cross(int t, V dh, V e, int j = 0) const {
    return later.takes(t) && later.reset == 0 ? dh + e * later.mask[j] : dh;
  }
};
using GradientInputs = GradientInputsOf<1>;

struct GradientPoint {
  Gradient<V, G> v;
  bool active, reset;

  // `dh` and `dc` come from the step after this one.
  template <int WIDTH>
  __device__ __forceinline__ void prepare(const GradientInputsOf<WIDTH>& in, int t, V dh, V dc, int j = 0) {
    active = in.part.takes(t);
    reset = in.part.reset != 0;
#pragma unroll
    for (int g = 0; g < G; ++g) {
      v.gate[g] = in.gate[g][j];
      v.dgate[g] = in.dgate[g][j];
      v.p[g] = Cell::peephole ? in.constants.peephole[g][j] : V(0);
    }
    v.c_next = Cell::has_cell ? in.cell_next[j] : V(0);
    v.c = Cell::has_cell && !reset ? in.cell_before[j] : V(0);
    v.h = !Cell::restores_state && !reset ? in.state_before[j] : V(0);
    v.m = in.part.mask[j];
    v.q = Cell::needs_product ? in.product[j] + in.constants.second_bias[j] : V(0);
    v.e = V(0);
    v.dh = dh + in.dstate[j];
    v.dc = dc + in.dcell[j];
  }

  // After the last phase: what is carried to the step before. The product is still missing in dh.
  __device__ __forceinline__ void retreat(V& dh, V& dc) const {
    dh = active ? (reset ? V(0) : v.h_prev) : dh;
    if constexpr (Cell::has_cell) dc = active ? (reset ? V(0) : v.c_prev) : dc;
  }
};

template <int PHASE, int WIDTH = 1>
__device__ __forceinline__ void write_dx(const Arguments& a, const Spot& spot, const Moment& now, const GradientPoint* points) {
  if (a.dx == nullptr || !spot.real) return;
#pragma unroll
  for (int i = 0; i < Cell::gate_count[PHASE]; ++i) {
    const int g = Cell::first_gate[PHASE] + i;
    write_units<WIDTH>(a.dx + now.gates + SLOT[g] * H + spot.gate_at, points,
                       [g](const GradientPoint& p) { return Cell::dx_differs ? p.v.dx[g] : p.v.du[g]; });
  }
}

}  // namespace gatewise
