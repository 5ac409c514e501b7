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
using SetStream = int (*)(void*, void*);
using SetWorkspace = int (*)(void*, void*, size_t);
using GemmEx = int (*)(void*, int, int, int, int, int, const void*, const void*, int, int, const void*, int, int, const void*,
                       void*, int, int, int, int);

// What this thread's cuBLAS handle was last told: mostly the same again. Handles are never given back.
struct SetUp {
  void *handle = nullptr, *stream = nullptr, *workspace = nullptr;
  size_t size = 0;

  bool operator==(const SetUp& other) const {
    return handle == other.handle && stream == other.stream && workspace == other.workspace && size == other.size;
  }
};

void* pointer(Address address) { return reinterpret_cast<void*>(address); }

void need(bool right, const char* what) {
  if (!right) throw std::invalid_argument(std::string("native tape: ") + what);
}

}  // namespace

Tape::Tape(const Functions& functions, Address context) : functions_(functions), context_(context) {
  const Functions& f = functions_;
  need(f.get_context && f.set_context && f.launch && f.set_bytes && f.set_words, "a function of the driver is missing");
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
  const Functions& f = functions_;
  need(f.set_stream && f.set_workspace && f.multiply, "a function of cuBLAS is missing");
  const Multiply& m = multiply;
  for (const int size : {m.m, m.n, m.k, m.a_pitch, m.b_pitch, m.c_pitch}) need(size >= 0, "a negative size");
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

  bool prepare() {
    for (const Moving& each : tape.moving_) values[each.index] = static_cast<int64_t>(at(each.place));
    if (!tape.multiplies_) return true;
    const Functions& f = tape.functions_;
    const SetUp wanted{handle, stream, pointer(at(tape.workspace_)), tape.workspace_size_};
    thread_local SetUp now;
    if (now == wanted) return true;
    now = {};
    // The stream first: setting it takes the workspace away.
    const auto set_stream = reinterpret_cast<SetStream>(f.set_stream);
    const auto set_workspace = reinterpret_cast<SetWorkspace>(f.set_workspace);
    if (!done(set_stream(handle, stream), "setting the stream", true)) return false;
    if (!done(set_workspace(handle, wanted.workspace, wanted.size), "setting the workspace", true)) return false;
    now = wanted;
    return true;
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
    const int code = reinterpret_cast<GemmEx>(tape.functions_.multiply)(
        handle, m.a_transposed, m.b_transposed, m.m, m.n, m.k, alpha, pointer(at(m.a)), m.type, m.a_pitch,
        pointer(at(m.b)), m.type, m.b_pitch, beta, pointer(at(m.c)), m.result_type, m.c_pitch, m.compute, -1);
    if (code == 0) return true;
    const auto size = [](int rows, int columns) { return std::to_string(rows) + "x" + std::to_string(columns); };
    return done(code, ("product of " + size(m.n, m.k) + " and " + size(m.k, m.m)).c_str(), true);
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
  bool well = run.prepare();
  for (size_t k = 0; well && k < entries_.size(); ++k) well = std::visit(run, entries_[k]);
  // A thread's current GPU is its own: it is left as it was found, where it had one.
  if (before != wanted && before != nullptr) {
    const int code = set_context(before);
    if (well) run.done(code, "context");
  }
  return run.failure;
}

}  // namespace gatewise
