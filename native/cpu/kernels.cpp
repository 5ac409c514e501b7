// Compiled once per instruction set, into the namespace GATEWISE_ISA.
#include "cpu/kernels.h"

#include "cpu/forward_cells.h"
#include "cpu/gradient_cells.h"
#include "cpu/ordinary.h"

#define GATEWISE_TEXT_(name) #name
#define GATEWISE_TEXT(name) GATEWISE_TEXT_(name)

namespace gatewise {
namespace GATEWISE_ISA {

template <class Cell>
bool default_activations(const Call& call) {
  for (int k = 0; k < Cell::activations; ++k) {
    if (call.activation[k] != Cell::Default::code[k]) return false;
  }
  return true;
}

// Calls make<Real, Cell, Act>() for the call's cell; only float32 arithmetic has the default activations compiled in.
#define GATEWISE_PICK(make)                                                                                     \
  template <class Real>                                                                                         \
  auto pick_##make(const Call& call) {                                                                          \
    switch (call.cell) { GATEWISE_CELLS(GATEWISE_CASE_##make) }                                                 \
    return make<Real, SingleGate, AnyActivations>();                                                            \
  }
#define GATEWISE_CASE(make, number, Cell)                                                                       \
  case number:                                                                                                  \
    if constexpr (std::is_same_v<Real, float>) {                                                                \
      if (default_activations<Cell>(call)) return make<Real, Cell, typename Cell::Default>();                   \
    }                                                                                                           \
    return make<Real, Cell, AnyActivations>();
#define GATEWISE_CASE_make_forward_cell(number, Cell) GATEWISE_CASE(make_forward_cell, number, Cell)
#define GATEWISE_CASE_make_gradient_cell(number, Cell) GATEWISE_CASE(make_gradient_cell, number, Cell)
GATEWISE_PICK(make_forward_cell)
GATEWISE_PICK(make_gradient_cell)

// The time of a call on one thread, in microseconds: it has to read its weights once, and it has its products to make.
inline double estimate(const Call& call, int gates) {
  const double weights = static_cast<double>(gates * call.D * call.H) * static_cast<double>(call.I + call.H);
  return std::max(weights * size_of(call.dtype) / 70e3, weights * static_cast<double>(call.T * call.N) / 45e3) *
         (call.gradient ? 2.0 : 1.0);
}

// Workers for a call: no more than it keeps busy for longer than it takes to get them. The first of them pays soonest, being the
// only one to wait for.
inline Claim claim_for(double microseconds) {
  const bool brief = microseconds < 150.0;
  const double useful = std::max(1.0 + microseconds / (brief ? 8.0 : 60.0), brief && microseconds > 5.0 ? 2.0 : 1.0);
  return Claim(static_cast<int>(std::min<double>(threads(), useful)), brief ? Work::short_call : Work::long_call);
}

// Room for a run, kept by the thread for its next call: finding memory that begins with a page takes longer than a short call's maths.
template <class Run>
struct alignas(Run) Room {
  char bytes[sizeof(Run)];
  struct End {
    void operator()(Run* run) const { run->~Run(); }
  };
  static std::unique_ptr<Room>& of_thread() {
    static thread_local std::unique_ptr<Room> room;
    return room;
  }
};

template <class Run, class Cell>
void run(const Call& call, Watch& watch, const Cell& cell) {
  Claim claim = claim_for(estimate(call, cell.gates));
  std::unique_ptr<Room<Run>> room = std::move(Room<Run>::of_thread());  // so that a call from within this one has its own
  if (room == nullptr) room.reset(new Room<Run>);
  // The run has copies of everything that its threads read: the caller writes to its own stack all the time.
  std::unique_ptr<Run, typename Room<Run>::End> run(new (room.get()) Run(call, cell, std::move(thread_arena())));
  run->watch.interrupted = watch.interrupted;
  run->plan(claim.size());
  claim.run([run = run.get()](int id) {
    // It lies in the caller's cache: fetched at once, not line by line as it is needed.
    for (size_t at = 0; id > 0 && at < sizeof(Run); at += 64) __builtin_prefetch(reinterpret_cast<const char*>(run) + at);
    if (id < run->team) run->thread(id);
  });
  if (run->watch.stop) {
    watch.stop = true;
  } else {
    run->keep_constants();
  }
  run->arena.end();
  thread_arena() = std::move(run->arena);
  run.reset();
  Room<Run>::of_thread() = std::move(room);
}

void forward(const Call& call, Watch& watch) {
  if (call.dtype == DType::float64) {
    run<ForwardRun<double>>(call, watch, pick_make_forward_cell<double>(call));
  } else {
    run<ForwardRun<float>>(call, watch, pick_make_forward_cell<float>(call));
  }
}

void gradients(const Call& call, Watch& watch) {
  if (call.dtype == DType::float64) {
    run<GradientRun<double>>(call, watch, pick_make_gradient_cell<double>(call));
  } else {
    run<GradientRun<float>>(call, watch, pick_make_gradient_cell<float>(call));
  }
}

void maths(int function, const float* from, float* to, int64_t count) {
  constexpr int lanes = Vec<float>::lanes;
  for (int64_t i = 0; i < count; i += lanes) {
    const Vec<float> x = load_units<float>(from, DType::float32, i, count - i);
    store_units<float>(to, DType::float32, i, function == 0 ? tanh(x) : sigmoid(x), count - i);
  }
}

const Kernels& kernels() {
  static const Kernels table{GATEWISE_TEXT(GATEWISE_ISA), GATEWISE_VECTOR_BYTES, forward, gradients, product,
                             cross_entropy, cross_entropy_gradient, adam, add_rows, take_rows, sums, maths};
  return table;
}

}  // namespace GATEWISE_ISA
}  // namespace gatewise
