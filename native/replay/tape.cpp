#include "replay/tape.h"

#include <stdexcept>
#include <utility>

namespace gatewise {
namespace {

// As cuda.h has them.
struct LaunchAttribute {
  int id;
  int pad;
  unsigned value[16];
};
struct LaunchConfig {
  unsigned grid[3], block[3], shared_bytes;
  void* stream;
  const LaunchAttribute* attributes;
  unsigned count;
};
static_assert(sizeof(LaunchAttribute) == 72 && sizeof(LaunchConfig) == 56, "CUlaunchAttribute, CUlaunchConfig");
constexpr int kCooperative = 2, kCluster = 4;  // CUlaunchAttributeID
constexpr size_t kMostRegions = 1024;

using GetContext = int (*)(void**);
using SetContext = int (*)(void*);
using LaunchKernel = int (*)(const LaunchConfig*, void*, void**, void**);
using SetBytes = int (*)(uint64_t, unsigned char, size_t, void*);
using SetWords = int (*)(uint64_t, unsigned, size_t, void*);
using Matmul = int (*)(void*, void*, const void*, const void*, void*, const void*, void*, const void*, const void*, void*, void*,
                       void*, const void*, void*, size_t, void*);

void* pointer(Address address) { return reinterpret_cast<void*>(address); }

void need(bool right, const char* what) {
  if (!right) throw std::invalid_argument(std::string("native tape: ") + what);
}

}  // namespace

Tape::Tape(const Functions& functions, Address context)
    : functions_(functions), context_(context), graphs_(std::make_unique<Graphs>(functions.graphs)) {
  const Functions& f = functions_;
  const GraphFunctions& g = f.graphs;
  for (const Address each : {f.get_context, f.set_context, f.launch, f.set_bytes, f.set_words, g.is_capturing,
                             g.create_stream, g.destroy_stream, g.begin_capture, g.end_capture, g.instantiate, g.launch,
                             g.destroy, g.destroy_executable}) {
    need(each != 0, "a function of the driver is missing");
  }
}

void Tape::note(const Place& place) {
  need(place.region < kMostRegions && place.offset >= 0, "no such place");
  if (place.region >= regions_) regions_ = place.region + 1;
}

size_t Tape::add_row(const std::vector<int64_t>& values, const std::vector<Moving>& moving) {
  need(!values.empty(), "an empty row");
  for (const Moving& each : moving) {
    need(each.index < values.size(), "no such value");
    note(each.place);
  }
  const size_t start = values_.size();
  for (const Moving& each : moving) moving_.push_back({start + each.index, each.place});
  values_.insert(values_.end(), values.begin(), values.end());
  starts_.push_back(start);
  return starts_.size() - 1;
}

void Tape::add(Launch launch) {
  need(launch.function != 0, "no kernel");
  for (const unsigned size : launch.grid) need(size > 0, "an empty grid");
  need(launch.threads > 0 && launch.cluster > 0, "an empty block");
  for (const size_t row : launch.rows) need(row < starts_.size(), "no such row");
  if (launch.rows.size() > most_parameters_) most_parameters_ = launch.rows.size();
  entries_.emplace_back(std::move(launch));
}

void Tape::add(const Set& set) {
  note(set.where);
  entries_.emplace_back(set);
}

void Tape::add(const Multiply& multiply) {
  const Multiply& m = multiply;
  need(functions_.multiply, "cublasLtMatmul is missing");
  need(m.description && m.a_layout && m.b_layout && m.c_layout, "a product that was not worked out");
  for (const Place& place : {m.a, m.b, m.c}) note(place);
  entries_.emplace_back(multiply);
  multiplies_ = true;
}

void Tape::set_workspace(Place where, size_t size) {
  note(where);
  workspace_ = where, workspace_size_ = size;
}

// One run: the rows as this run's kernels see them, and where everything goes.
struct Tape::Run {
  const Tape& tape;
  const std::vector<Address>& bases;
  void* stream;
  void* handle;
  std::vector<int64_t> values;
  std::vector<void*> parameters;
  Failure failure;

  Address at(const Place& place) const { return bases[place.region] + static_cast<Address>(place.offset); }

  // Whether all is well.
  bool done(int code, const char* what, bool of_cublas = false) {
    if (code != 0) failure = {of_cublas, code, what};
    return code == 0;
  }

  void prepare() {
    for (const Moving& each : tape.moving_) values[each.index] = static_cast<int64_t>(at(each.place));
  }

  bool operator()(const Launch& launch) {
    LaunchAttribute attributes[2] = {};
    unsigned count = 0;
    if (launch.cooperative) {
      attributes[count].id = kCooperative;
      attributes[count++].value[0] = 1;
    }
    if (launch.cluster > 1) {
      attributes[count].id = kCluster;
      attributes[count].value[0] = launch.cluster;
      attributes[count].value[1] = attributes[count].value[2] = 1;
      ++count;
    }
    const auto& grid = launch.grid;
    const LaunchConfig config{
        {grid[0], grid[1], grid[2]}, {launch.threads, 1, 1}, launch.shared_bytes, stream, attributes, count};
    for (size_t k = 0; k < launch.rows.size(); ++k) parameters[k] = &values[tape.starts_[launch.rows[k]]];
    const auto run = reinterpret_cast<LaunchKernel>(tape.functions_.launch);
    return done(run(&config, pointer(launch.function), parameters.data(), nullptr), "launching a kernel");
  }

  bool operator()(const Set& set) {
    const Functions& f = tape.functions_;
    const Address to = at(set.where);
    const int code = set.words ? reinterpret_cast<SetWords>(f.set_words)(to, set.value, set.count, stream)
                               : reinterpret_cast<SetBytes>(f.set_bytes)(to, static_cast<unsigned char>(set.value),
                                                                         set.count, stream);
    return done(code, "setting memory");
  }

  bool operator()(const Multiply& m) {
    static const float one = 1, zero = 0;
    static const double wide_one = 1, wide_zero = 0;
    const void* alpha = m.wide ? static_cast<const void*>(&wide_one) : &one;
    const void* beta = m.wide ? static_cast<const void*>(&wide_zero) : &zero;
    void* const c = pointer(at(m.c));
    void* const c_layout = pointer(m.c_layout);
    const int code = reinterpret_cast<Matmul>(tape.functions_.multiply)(
        handle, pointer(m.description), alpha, pointer(at(m.a)), pointer(m.a_layout), pointer(at(m.b)), pointer(m.b_layout),
        beta, c, c_layout, c, c_layout, m.algorithm.data(), pointer(at(tape.workspace_)), tape.workspace_size_, stream);
    if (code == 0) return true;
    const auto size = [](int64_t rows, int64_t columns) { return std::to_string(rows) + "x" + std::to_string(columns); };
    return done(code, ("product of " + size(m.sizes[1], m.sizes[2]) + " and " + size(m.sizes[2], m.sizes[0])).c_str(), true);
  }
};

Failure Tape::run(const std::vector<Address>& bases, Address stream, Address handle) const {
  need(bases.size() >= regions_, "an unknown region");
  need(handle != 0 || !multiplies_, "no cuBLAS handle");
  Run run{*this, bases, pointer(stream), pointer(handle), values_, std::vector<void*>(most_parameters_), {}};
  void *before = nullptr, *wanted = pointer(context_);
  const auto set_context = reinterpret_cast<SetContext>(functions_.set_context);
  if (!run.done(reinterpret_cast<GetContext>(functions_.get_context)(&before), "context")) return run.failure;
  if (before != wanted && !run.done(set_context(wanted), "context")) return run.failure;
  run.prepare();
  const auto put = [&](void* on) {
    run.stream = on;
    bool well = true;
    for (size_t k = 0; well && k < entries_.size(); ++k) well = std::visit(run, entries_[k]);
    return well;
  };
  int code = 0;
  const Graphs::Outcome outcome =
      entries_.size() > 1 ? graphs_->run(bases, pointer(stream), put, code) : Graphs::kNotRun;
  run.failure = {};
  const bool well = outcome == Graphs::kNotRun ? put(pointer(stream)) : run.done(code, "launching a graph");
  // A thread's current GPU is its own: it is left as it was found, where it had one.
  if (before != wanted && before != nullptr) {
    const int left = set_context(before);
    if (well) run.done(left, "context");
  }
  return run.failure;
}

}  // namespace gatewise
