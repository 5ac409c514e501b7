#include "cpu/team.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <thread>
#include <vector>

namespace gatewise {

// A thread that waits spins for a few microseconds, then lets others run between looks: the one it waits for may have
// been put on the same core. An idle worker goes to sleep after about half a millisecond of that: longer than a short call takes
// alone, so that one that was called up for the next is still awake when it comes.
static constexpr int spins_before_yield = 300;
static constexpr int looks_before_sleep = spins_before_yield + 1500;
static constexpr int most_threads = 256;
// Short calls that follow each other within this time keep the workers awake.
static constexpr int64_t closely = 40'000;  // nanoseconds

struct Worker {
  std::mutex mutex;
  std::condition_variable changed;
  std::atomic<const std::function<void(int)>*> task{nullptr};
  std::atomic<bool> awake{true};
  bool called = false;  // out of its sleep, with or without a task; guarded by the mutex
  int number = 0;
  CpusTaken* taken = nullptr;
  bool claimed = false;  // guarded by the pool's mutex
};

namespace {

void wait_a_little(int look) {
  if (look < spins_before_yield) {
    relax();
  } else {
    sched_yield();
  }
}

struct Pool {
  std::mutex mutex;
  std::vector<Worker*> workers;
};

// Never destroyed: workers may still be asleep when the process ends.
Pool* pool = new Pool;

// A forked child has none of its parent's threads: it starts with an empty pool of its own.
const int fork_handler = pthread_atfork(nullptr, nullptr, [] { pool = new Pool; });

int default_threads() {
  if (const char* text = std::getenv("GATEWISE_THREADS")) {
    const int count = std::atoi(text);
    if (count >= 1) return std::min(count, most_threads);
  }
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::clamp(CPU_COUNT(&set), 1, most_threads);
  return std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, most_threads);
}

std::atomic<int> wanted_threads{0};

int64_t now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// When the last short call ended.
std::atomic<int64_t> last_short_call{0};

// A woken worker is often put on its caller's CPU, where it would wait for the very thread that waits for it. One that finds
// its CPU taken goes to a free one of those it may use; after that the system may move it as it likes.
void spread_out(CpusTaken& taken) {
  if (taken.take(sched_getcpu())) return;
  cpu_set_t all, one;
  CPU_ZERO(&all);
  if (pthread_getaffinity_np(pthread_self(), sizeof all, &all) != 0) return;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &all) || !taken.take(cpu)) continue;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    if (pthread_setaffinity_np(pthread_self(), sizeof one, &one) == 0) pthread_setaffinity_np(pthread_self(), sizeof all, &all);
    return;
  }
}

void work(Worker* self) {
  for (;;) {
    const std::function<void(int)>* task = nullptr;
    for (int look = 0; look < looks_before_sleep; ++look) {
      task = self->task.load(std::memory_order_acquire);
      if (task != nullptr) break;
      wait_a_little(look);
    }
    if (task == nullptr) {
      std::unique_lock<std::mutex> lock(self->mutex);
      self->awake.store(false, std::memory_order_relaxed);
      self->changed.wait(lock, [&] { return self->called || self->task.load(std::memory_order_acquire) != nullptr; });
      self->awake.store(true, std::memory_order_relaxed);
      self->called = false;
      continue;
    }
    spread_out(*self->taken);
    (*task)(self->number);
    self->task.store(nullptr, std::memory_order_release);
  }
}

void call_up(Worker& worker) {
  {
    std::lock_guard<std::mutex> lock(worker.mutex);
    worker.called = true;
  }
  worker.changed.notify_one();
}

// A new worker, or null if the system refuses more threads.
Worker* start_worker() {
  Worker* worker = new Worker;
  try {
    std::thread(work, worker).detach();
  } catch (...) {
    delete worker;
    return nullptr;
  }
  pool->workers.push_back(worker);
  return worker;
}

}  // namespace

int threads() {
  int count = wanted_threads.load();
  if (count == 0) {
    count = default_threads();
    wanted_threads.store(count);
  }
  return count;
}

void set_threads(int count) { wanted_threads.store(std::clamp(count, 1, most_threads)); }

bool Barrier::wait(const std::atomic<bool>& stop) {
  if (count_ == 1) return !stop.load(std::memory_order_relaxed);
  const uint32_t round = round_.load(std::memory_order_relaxed);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) == count_ - 1) {
    arrived_.store(0, std::memory_order_relaxed);
    round_.store(round + 1, std::memory_order_release);
    return true;
  }
  for (int look = 0; round_.load(std::memory_order_acquire) == round; ++look) {
    if (stop.load(std::memory_order_relaxed)) return false;
    wait_a_little(look);
  }
  return true;
}

Claim::Claim(int wanted, Work work) {
  wanted = std::clamp(wanted, 1, most_threads);
  if (wanted == 1) return;
  brief_ = work == Work::short_call;
  const bool often = brief_ && now() - last_short_call.load(std::memory_order_relaxed) < closely;
  std::lock_guard<std::mutex> lock(pool->mutex);
  const auto claim = [&](Worker* worker) {
    worker->claimed = true;
    workers_[size_++ - 1] = worker;
  };
  for (Worker* worker : pool->workers) {
    if (size_ == wanted) return;
    if (worker->claimed) continue;
    if (!brief_ || worker->awake.load(std::memory_order_relaxed)) {
      claim(worker);
    } else if (often) {
      call_up(*worker);
    }
  }
  if (brief_ && !often) return;
  while (size_ < wanted && static_cast<int>(pool->workers.size()) < std::max(wanted, threads()) - 1) {
    Worker* worker = start_worker();
    if (worker == nullptr) return;
    claim(worker);
  }
}

Claim::~Claim() {
  if (brief_) last_short_call.store(now(), std::memory_order_relaxed);
  if (size_ == 1) return;
  std::lock_guard<std::mutex> lock(pool->mutex);
  for (int i = 0; i < size_ - 1; ++i) workers_[i]->claimed = false;
}

void Claim::run(const std::function<void(int)>& body) {
  if (size_ > 1) taken_.take(sched_getcpu());
  for (int i = 0; i < size_ - 1; ++i) {
    Worker* worker = workers_[i];
    worker->number = i + 1;
    worker->taken = &taken_;
    {
      std::lock_guard<std::mutex> lock(worker->mutex);
      worker->task.store(&body, std::memory_order_release);
    }
    worker->changed.notify_one();
  }
  body(0);
  for (int i = 0; i < size_ - 1; ++i) {
    for (int look = 0; workers_[i]->task.load(std::memory_order_acquire) != nullptr; ++look) wait_a_little(look);
  }
}

double round_trip() {
  constexpr int most = 20000;
  constexpr int64_t long_enough = 50'000'000;  // nanoseconds, for threads that share a CPU
  enum Turn { mine, yours, over };
  struct {
    alignas(128) std::atomic<Turn> turn{mine};
  } line;
  Claim claim(std::min(2, threads()));
  if (claim.size() < 2) return 0.0;
  double seconds = 0.0;
  claim.run([&](int id) {
    if (id == 1) {
      for (int look = 0;; ++look) {
        const Turn turn = line.turn.load(std::memory_order_acquire);
        if (turn == over) return;
        if (turn == yours) line.turn.store(mine, std::memory_order_release), look = 0;
        if (look > 10000) sched_yield();
      }
    }
    const int64_t begin = now();
    int count = 0;
    for (; count < most && (count % 64 != 0 || now() - begin < long_enough); ++count) {
      line.turn.store(yours, std::memory_order_release);
      for (int look = 0; line.turn.load(std::memory_order_acquire) == yours; ++look) {
        if (look > 10000) sched_yield();
      }
    }
    seconds = 1e-9 * static_cast<double>(now() - begin) / count;
    line.turn.store(over, std::memory_order_release);
  });
  return seconds;
}

}  // namespace gatewise
