// What forward and gradient runs share: the cell as the drivers see it, the layout of units, the division of work and
// the scratch memory.
#pragma once

#include <sys/mman.h>

#include <chrono>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <new>
#include <type_traits>

#include "cells/cells.h"
#include "cpu/maths.h"
#include "cpu/team.h"
#include "cpu/unpacked.h"

namespace gatewise {
namespace GATEWISE_ISA {

// Units are handled in blocks of `width`; inside the engine the gates of a block lie together: [block][gate][width]. Where the
// last block is a part of one vector, its gates may lie closer.
struct Layout {
  int vectors = 1;  // vectors per block and gate
  int64_t width = 0, blocks = 0, padded = 0;
  int64_t last_width = 0;

  // From one gate to the next in a block's columns.
  int64_t gate_width(int64_t block) const { return block == blocks - 1 ? last_width : width; }
  // Vectors that some gates of a block fill.
  template <class Real>
  int columns(int gates, int64_t block) const {
    return static_cast<int>((gates * gate_width(block) + Vec<Real>::lanes - 1) / Vec<Real>::lanes);
  }

  template <class Real>
  static Layout make(int64_t H, int vectors) {
    Layout layout;
    layout.vectors = vectors;
    layout.width = vectors * Vec<Real>::lanes;
    layout.blocks = (H + layout.width - 1) / layout.width;
    layout.padded = layout.blocks * layout.width;
    layout.last_width = layout.width;
    return layout;
  }
  // Lets the gates of the last block lie a few lanes apart.
  template <class Real>
  void narrow_last(int64_t H) {
    constexpr int64_t step = std::max(1, Vec<Real>::lanes / 4);
    if (vectors == 1) last_width = (H - (blocks - 1) * width + step - 1) / step * step;
  }
};

// The widest block, up to `most` vectors, with which the largest of some parts of H is little larger than with one vector.
template <class Real>
inline int vectors_per_block(int64_t H, int most, int parts = 1) {
  const auto largest = [&](int vectors) {
    const Layout layout = Layout::make<Real>(H, vectors);
    return (layout.blocks + parts - 1) / parts * layout.width;
  };
  for (int vectors = most; vectors > 1; vectors /= 2) {
    if (largest(vectors) * 8 <= largest(1) * 9) return vectors;
  }
  return 1;
}

// A row length that keeps the rows of a tile out of each other's way in the cache: not a multiple of 1 KiB.
template <class Real>
inline int64_t spread(int64_t length) {
  return length + (length * sizeof(Real) % 1024 == 0 ? 64 / sizeof(Real) : 0);
}

// A row length of an odd number of cache lines: the same column of many rows then lies all over the cache.
template <class Real>
inline int64_t odd_lines(int64_t length) {
  constexpr int64_t line = 64 / sizeof(Real);
  return ((length + line - 1) / line | 1) * line;
}

// The tile width for panels of `vectors` vectors: the most that divides them.
inline int tile_vectors(int vectors, int most) {
  for (int width = std::min(most, vectors); width > 1; --width) {
    if (vectors % width == 0) return width;
  }
  return 1;
}

// Activations chosen by the caller: a switch per vector, on its code, in the midst of the maths. A call would make every vector
// that is in a register go to memory and back. float64 calls the C library anyway.
template <class V>
GATEWISE_INLINE V activate_any(int code, const V& x) {
  switch (code) {
    case 0: return gatewise::activate<0>(x);
    case 1: return gatewise::activate<1>(x);
    case 2: return gatewise::activate<2>(x);
    case 3: return gatewise::activate<3>(x);
    default: return gatewise::activate<4>(x);
  }
}
template <class V>
GATEWISE_INLINE V slope_any(int code, const V& y) {
  switch (code) {
    case 0: return gatewise::slope<0>(y);
    case 1: return gatewise::slope<1>(y);
    case 2: return gatewise::slope<2>(y);
    case 3: return gatewise::slope<3>(y);
    default: return gatewise::slope<4>(y);
  }
}
template <class V>
__attribute__((noinline)) V activate_apart(int code, const V& x) {
  return activate_any(code, x);
}
struct AnyActivations {
  const int* code;
  template <int K, class V>
  GATEWISE_INLINE V activate(const V& x) const {
    if constexpr (std::is_same_v<V, Vec<double>>) return activate_apart(code[K], x);
    return activate_any(code[K], x);
  }
  template <int K, class V>
  GATEWISE_INLINE V slope(const V& y) const {
    return slope_any(code[K], y);
  }
};

template <class Act>
GATEWISE_INLINE Act make_activations(const Call& call) {
  if constexpr (std::is_same_v<Act, AnyActivations>) {
    return AnyActivations{call.activation};
  } else {
    (void)call;
    return Act{};
  }
}

// What different threads write lies a page apart, and so does what all of them read: a core fetches ahead within a page, and so
// takes lines from the core that writes them, time and again. Where the two share no cache that costs more than the arithmetic.
constexpr int64_t page = 4096;

// Scratch memory of one call: reserved piece by piece, then allocated at once. Kept by the thread for its next call
// unless it is large.
class Arena {
 public:
  Arena() = default;
  Arena(Arena&& other) { *this = std::move(other); }
  Arena& operator=(Arena&& other) {
    std::swap(memory_, other.memory_);
    std::swap(size_, other.size_);
    std::swap(turn_, other.turn_);
    return *this;
  }
  ~Arena() { release(); }

  // The room for a piece, and a page between pieces.
  static int64_t apart(int64_t bytes) { return (bytes + 63) / 64 * 64 + page + 64; }

  void begin() { used_ = 0; }
  int64_t used() const { return used_; }
  // The number of calls that had this memory.
  uint32_t turn() const { return turn_; }
  int64_t reserve(int64_t bytes) {
    const int64_t at = used_;
    used_ += bytes;
    return at;
  }
  // Large pages make fewer faults and TLB misses, but one that is used in part is memory as a whole: the last is one only if the
  // call may take that much.
  void allocate(int64_t allowed = 0) {
    ++turn_;
    if (used_ <= size_) return;
    release();
    // From the system itself, and back to it: what is freed must not stay with the process in pieces too small for the next.
    const auto whole = [&](int64_t size) { return (used_ + size - 1) / size * size; };
    const int64_t more = used_ < huge ? 0 : huge, room = whole(more > 0 && whole(huge) <= allowed ? huge : page);
    void* memory = mmap(nullptr, static_cast<size_t>(room + more), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    memory_ = static_cast<char*>(memory);
    size_ = room;
    if (more == 0) return;
    const int64_t before = (huge - static_cast<int64_t>(reinterpret_cast<uintptr_t>(memory_) % huge)) % huge;
    if (before > 0) munmap(memory_, static_cast<size_t>(before));
    memory_ += before;
    if (before < more) munmap(memory_ + room, static_cast<size_t>(more - before));
#if defined(MADV_HUGEPAGE)
    madvise(memory_, static_cast<size_t>(room), MADV_HUGEPAGE);
#endif
  }
  void end() {
    if (size_ > keep) release();
  }
  template <class Real>
  Real* at(int64_t offset) const {
    return reinterpret_cast<Real*>(memory_ + offset);
  }
  static constexpr int64_t keep = 128 << 20;

 private:
  static constexpr int64_t huge = 2 << 20;  // bytes of a large page
  void release() {
    if (memory_ != nullptr) munmap(memory_, static_cast<size_t>(size_));
    memory_ = nullptr;
    size_ = 0;
  }

  char* memory_ = nullptr;
  int64_t size_ = 0, used_ = 0;
  uint32_t turn_ = 0;
};

inline Arena& thread_arena() {
  static thread_local Arena arena;
  return arena;
}

// A piece of the arena, as an array of Real.
template <class Real>
struct Piece {
  int64_t offset = 0;
  void reserve(Arena& arena, int64_t count) { offset = arena.reserve(Arena::apart(count * static_cast<int64_t>(sizeof(Real)))); }
  Real* in(const Arena& arena) const { return arena.at<Real>(offset); }
};

// Pieces of one size, for each thread or group of threads.
template <class Real>
struct Pieces {
  int64_t offset = 0, each = 0;
  void reserve(Arena& arena, int parts, int64_t count) { reserve_together(arena, parts, {{this, count}}); }
  Real* in(const Arena& arena, int part) const { return arena.at<Real>(offset + part * each); }

  // Several such, with all of a part's side by side: nobody else writes to them.
  struct Wanted {
    Pieces* pieces;
    int64_t count;
  };
  static void reserve_together(Arena& arena, int parts, std::initializer_list<Wanted> all) {
    int64_t each = 0;
    for (const Wanted& one : all) {
      one.pieces->offset = arena.used() + each;
      each += (one.count * static_cast<int64_t>(sizeof(Real)) + 63) / 64 * 64 + 64;
    }
    each = Arena::apart(each - 64);
    for (const Wanted& one : all) one.pieces->each = each;
    arena.reserve(parts * each);
  }
};

// A packed weight.
template <class Real>
struct Panels {
  Piece<char> piece;
  DType stored = Native<Real>::dtype;
  void reserve(Arena& arena, int64_t count, DType dtype) {
    stored = panel_dtype<Real>(dtype);
    piece.reserve(arena, count * size_of(stored));
  }
  Panel<Real> in(const Arena& arena) const { return {piece.in(arena), stored}; }
};

// A packed weight that outlasts the call where it is a constant.
template <class Real>
struct WeightPanels {
  Panels<Real> in_arena;
  Constant* constant = nullptr;
  PackedForm form{};
  std::shared_ptr<char> memory;
  bool ready = false;  // an earlier call has packed it

  void reserve(Arena& arena, int64_t count, DType dtype, Constant* weight, const PackedForm& wanted) {
    constant = weight;
    if (constant == nullptr) return in_arena.reserve(arena, count, dtype);
    if (memory != nullptr) return;  // the plan has been tried before
    in_arena.stored = panel_dtype<Real>(dtype);
    form = wanted;
    memory = constant->find(form);
    ready = memory != nullptr;
    if (ready) return;
    const auto own = std::make_shared<Arena>();
    own->begin();
    own->reserve(count * size_of(in_arena.stored));
    own->allocate();
    memory = std::shared_ptr<char>(own, own->at<char>(0));
  }
  Panel<Real> in(const Arena& arena) const {
    return constant == nullptr ? in_arena.in(arena) : Panel<Real>{memory.get(), in_arena.stored};
  }
  // After a run that was not stopped.
  void keep() const {
    if (constant != nullptr && !ready) constant->keep(form, memory);
  }
};

// What a call may take beside its arguments and results: as much as z_state and the packed weights. Of what makes it faster but can
// be done without, a plan leaves out as much as it takes to stay within that.
template <class Real>
int64_t allowed_bytes(const Call& call, int gates) {
  const int64_t inputs = call.input_weight == nullptr ? 0 : call.I;
  return call.D * gates * call.H * (call.T * call.N + call.H + inputs) * static_cast<int64_t>(sizeof(Real));
}

// Whether a call has rows enough to repay packing a weight; else it is used where it is (unpacked.h). A weight that is used step by
// step has to be read again for each.
template <class Real>
bool repays_packing(const Call& call, bool in_steps) {
  const bool as_it_is = call.dtype == Native<Real>::dtype || widens<Real>(call.dtype);
  return !as_it_is || call.T * call.N > (in_steps && call.T > 4 ? 16 : 32);
}

// How a weight is packed that is used for so many rows at a time: one of 16 bits as it is where reading it is what takes long, for
// few rows and for a large R in every step; else widened.
template <class Real>
DType packed_dtype(const Call& call, int64_t rows, int64_t R = 0) {
  return rows > 2 && R <= 1 << 20 ? Native<Real>::dtype : call.dtype;
}

// Whether what a forward call keeps is too much to stay in the caches until its gradients read it: it comes from far then, and a
// step's maths would wait for it. Beside the gates there are the states, the source and the gradients of both.
inline bool far_gates(const Call& call, int gates) {
  const int64_t numbers = call.T * call.N * call.D * call.H * size_of(call.dtype);
  return gates * numbers > (8 << 20) || (gates + 4) * numbers > (32 << 20);
}

// How a team shares one direction: `row_parts` groups of rows, each shared by `unit_parts` threads that meet at a
// barrier after every product.
struct Grid {
  int row_parts = 1, unit_parts = 1;
  int size() const { return row_parts * unit_parts; }
};

struct Range {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
};
inline Range part(int64_t total, int parts, int number) {
  return {total * number / parts, total * (number + 1) / parts};
}

// Picks the grid with the least estimated time per step, in cycles of one core. `bytes` is R as packed, `handed_on` what the
// threads of a group write for each other, per row.
inline Grid choose_grid(int threads, int64_t N, int64_t blocks, double flops, double bytes, double handed_on, int barriers,
                        int rows_per_tile) {
  Grid best;
  double least = 1e300;
  for (int unit_parts = 1; unit_parts <= threads; ++unit_parts) {
    if (unit_parts > blocks) break;
    const int row_parts = static_cast<int>(std::min<int64_t>(threads / unit_parts, std::max<int64_t>(N, 1)));
    const double rows = static_cast<double>((N + row_parts - 1) / row_parts);
    const double share = static_cast<double>((blocks + unit_parts - 1) / unit_parts) / static_cast<double>(blocks);
    // A tile of few rows costs nearly as much as a full one: it is bound by reading R.
    const double full = static_cast<double>(rows_per_tile);
    const double groups = static_cast<double>((static_cast<int64_t>(rows) + rows_per_tile - 1) / rows_per_tile);
    const double tiles = groups * std::max(rows / groups, full * 0.5) / full;
    const double compute = flops / static_cast<double>(std::max<int64_t>(N, 1)) * full * tiles * share / 32.0;
    const double traffic = bytes * share / (bytes * share < 700e3 ? 40.0 : bytes * share < 1500e3 ? 32.0 : 14.0);
    // What other threads have just written comes slowly, about a byte per cycle from each, and the first tiles wait for it.
    const double handed_over = rows * handed_on * (1.0 - share) / unit_parts;
    const double meet = unit_parts > 1 ? barriers * (700.0 + 120.0 * unit_parts) + handed_over : 0.0;
    const double cost = std::max(compute, traffic) + 0.25 * std::min(compute, traffic) + meet;
    if (cost < least * 0.999) {
      least = cost;
      best = {row_parts, unit_parts};
    }
  }
  return best;
}

// Lets the calling thread look for Ctrl-C about ten times a second.
class Pulse {
 public:
  // `work` is the size of a step: looking at the clock is not free beside a tiny one.
  Pulse(Watch& watch, int64_t work) : watch_(watch), period_(work > 4096 ? 1 : 32), last_(Clock::now()) {}
  bool stopped(bool is_caller) {
    if (is_caller && watch_.interrupted != nullptr && ++count_ % period_ == 0) {
      const auto now = Clock::now();
      if (now - last_ > std::chrono::milliseconds(100)) {
        last_ = now;
        if (watch_.interrupted()) watch_.stop.store(true, std::memory_order_relaxed);
      }
    }
    return watch_.stop.load(std::memory_order_relaxed);
  }

 private:
  using Clock = std::chrono::steady_clock;
  Watch& watch_;
  uint32_t period_;
  Clock::time_point last_;
  uint32_t count_ = 0;
};

}  // namespace GATEWISE_ISA
}  // namespace gatewise
