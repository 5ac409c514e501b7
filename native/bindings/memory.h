// Where NumPy arrays of the current context get their memory.
#pragma once

#include <nanobind/nanobind.h>

namespace gatewise {

// From now on, in this context, memory is kept and used again; gives what was used before.
nanobind::object use_kept_memory();
// Back to that; gives what was used before this.
nanobind::object use_memory(nanobind::object handler);

// Kept at present, for nobody yet; and at most.
size_t kept_bytes();
size_t most_kept_bytes();

// NumPy arrays of fewer bytes are not kept.
constexpr size_t worth_keeping = size_t(1) << 14;

// Kept memory for as long as this lives.
class KeptMemory {
 public:
  KeptMemory() : before_(use_kept_memory()) {}
  ~KeptMemory() {
    try {
      use_memory(before_);
    } catch (nanobind::python_error& error) {
      error.discard_as_unraisable("gatewise: NumPy's memory handler");
    }
  }
  KeptMemory(const KeptMemory&) = delete;
  KeptMemory& operator=(const KeptMemory&) = delete;

 private:
  nanobind::object before_;
};

}  // namespace gatewise
