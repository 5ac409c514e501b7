// The thread team. Workers are started once and claimed per call; a call that finds them busy runs with fewer.
// Results never depend on how many threads a call got.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>

namespace gatewise {

// The number of threads a call asks for, and the setting of it.
int threads();
void set_threads(int count);

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// A spinning barrier for a fixed number of threads. `wait` gives false when `stop` was raised: then all leave.
class Barrier {
 public:
  void reset(int count) {
    count_ = count;
    arrived_.store(0, std::memory_order_relaxed);
    round_.store(0, std::memory_order_relaxed);
  }
  bool wait(const std::atomic<bool>& stop);

 private:
  int count_ = 1;
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<uint32_t> round_{0};
};

// Claims up to `wanted` - 1 idle workers for the lifetime of the object.
class Claim {
 public:
  explicit Claim(int wanted);
  ~Claim();
  Claim(const Claim&) = delete;
  Claim& operator=(const Claim&) = delete;

  int size() const { return size_; }
  // Runs body(i) for i in 0..size-1, the caller being 0, and returns when all are done. `body` must not throw.
  void run(const std::function<void(int)>& body);

 private:
  int size_ = 1;
  struct Worker* workers_[255];
};

}  // namespace gatewise
