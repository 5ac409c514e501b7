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

// The CPUs on which the threads of a team run, by number.
struct CpusTaken {
  static constexpr int most = 1024;
  std::atomic<uint64_t> bits[most / 64]{};

  // Whether it was free until now.
  bool take(int cpu) {
    if (cpu < 0 || cpu >= most) return true;
    const uint64_t bit = uint64_t{1} << cpu % 64;
    return (bits[cpu / 64].fetch_or(bit, std::memory_order_relaxed) & bit) == 0;
  }
};

// How long a call will take, as far as it decides who takes part: waking a worker takes longer than a short call.
enum class Work { short_call, long_call };

// Claims up to `wanted` - 1 idle workers for the lifetime of the object. A short call gets those that are awake; the others it
// wakes for the next one, where calls follow each other closely.
class Claim {
 public:
  explicit Claim(int wanted, Work work = Work::long_call);
  ~Claim();
  Claim(const Claim&) = delete;
  Claim& operator=(const Claim&) = delete;

  int size() const { return size_; }
  // Runs body(i) for i in 0..size-1, the caller being 0, and returns when all are done. `body` must not throw.
  void run(const std::function<void(int)>& body);

 private:
  int size_ = 1;
  bool brief_ = false;
  struct Worker* workers_[255];
  CpusTaken taken_;
};

// Seconds in which a cache line goes to another thread and comes back, by a short trial; 0 where a call has one thread.
double round_trip();

}  // namespace gatewise
