// Runs of a tape on arrays that lie where those of an earlier run lay: as a CUDA graph, which asks the driver once instead of
// for every launch. Allocators hand out the same memory again and again, so this is the usual case in a loop.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <mutex>
#include <vector>

namespace gatewise {

using Address = uint64_t;

// Addresses of the driver's functions; all or none.
struct GraphFunctions {
  Address is_capturing, create_stream, destroy_stream, begin_capture, end_capture, instantiate, launch, destroy,
      destroy_executable;
};

class Graphs {
 public:
  enum Outcome { kNotRun, kRun, kFailed };

  explicit Graphs(const GraphFunctions& functions) : functions_(functions) {}
  ~Graphs();
  Graphs(const Graphs&) = delete;
  Graphs& operator=(const Graphs&) = delete;

  // Runs on the stream what `put` puts on a stream, if it was put with these addresses before. The first time it notes
  // them and does nothing, the second it makes a graph of it. Many threads may come here. kFailed: `code` is the driver's.
  Outcome run(const std::vector<Address>& bases, void* stream, const std::function<bool(void*)>& put, int& code);

 private:
  struct Known {
    std::vector<Address> bases;
    void* executable;  // null until they come again
  };

  void* make(const std::function<bool(void*)>& put) const;
  void* captured(void* stream, const std::function<bool(void*)>& put) const;
  void drop(const Known& known) const;

  GraphFunctions functions_;
  std::mutex mutex_;
  std::list<Known> known_;  // the latest first
  bool works_ = true;       // until a graph could not be made
};

}  // namespace gatewise
