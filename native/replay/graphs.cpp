#include "replay/graphs.h"

#include <algorithm>

namespace gatewise {
namespace {

using IsCapturing = int (*)(void*, int*);
using CreateStream = int (*)(void**, unsigned);
using BeginCapture = int (*)(void*, int);
using EndCapture = int (*)(void*, void**);
using Instantiate = int (*)(void**, void*, unsigned long long);
using LaunchGraph = int (*)(void*, void*);
using Destroy = int (*)(void*);

constexpr int kThreadLocal = 1;       // CUstreamCaptureMode: other threads go on as they please
constexpr unsigned kNonBlocking = 1;  // CUstream_flags
constexpr size_t kMostKnown = 4;      // sets of addresses of a tape

}  // namespace

Graphs::~Graphs() {
  for (const Known& each : known_) drop(each);
}

void Graphs::drop(const Known& known) const {
  if (known.executable != nullptr) reinterpret_cast<Destroy>(functions_.destroy_executable)(known.executable);
}

// The graph of what is put on the stream, or null.
void* Graphs::captured(void* stream, const std::function<bool(void*)>& put) const {
  void* graph = nullptr;
  if (reinterpret_cast<BeginCapture>(functions_.begin_capture)(stream, kThreadLocal) != 0) return nullptr;
  const bool well = put(stream);
  const bool ended = reinterpret_cast<EndCapture>(functions_.end_capture)(stream, &graph) == 0;
  if (well && ended) return graph;
  if (graph != nullptr) reinterpret_cast<Destroy>(functions_.destroy)(graph);
  return nullptr;
}

// By a stream of its own: the caller's may be the legacy one, which cannot be captured.
void* Graphs::make(const std::function<bool(void*)>& put) const {
  void *stream = nullptr, *executable = nullptr;
  if (reinterpret_cast<CreateStream>(functions_.create_stream)(&stream, kNonBlocking) != 0) return nullptr;
  if (void* graph = captured(stream, put)) {
    if (reinterpret_cast<Instantiate>(functions_.instantiate)(&executable, graph, 0) != 0) executable = nullptr;
    reinterpret_cast<Destroy>(functions_.destroy)(graph);
  }
  reinterpret_cast<Destroy>(functions_.destroy_stream)(stream);
  return executable;
}

Graphs::Outcome Graphs::run(const std::vector<Address>& bases, void* stream, const std::function<bool(void*)>& put,
                            int& code) {
  int capturing = 0;
  // A stream that is being captured takes the launches one by one.
  if (reinterpret_cast<IsCapturing>(functions_.is_capturing)(stream, &capturing) != 0 || capturing != 0) return kNotRun;
  const std::lock_guard<std::mutex> lock(mutex_);  // a graph is launched by one thread at a time
  if (!works_) return kNotRun;
  const auto found = std::find_if(known_.begin(), known_.end(), [&](const Known& each) { return each.bases == bases; });
  if (found == known_.end()) {
    known_.push_front({bases, nullptr});
    if (known_.size() > kMostKnown) {
      drop(known_.back());
      known_.pop_back();
    }
    return kNotRun;
  }
  known_.splice(known_.begin(), known_, found);
  if (found->executable == nullptr) {
    found->executable = make(put);
    works_ = found->executable != nullptr;
    if (!works_) return kNotRun;
  }
  code = reinterpret_cast<LaunchGraph>(functions_.launch)(found->executable, stream);
  return code == 0 ? kRun : kFailed;
}

}  // namespace gatewise
