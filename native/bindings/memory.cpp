// Memory of NumPy arrays that is kept for the next array of its size when one is freed. Fresh memory costs a page fault per
// 4 KiB: a step of training would spend a third of its time in them. NumPy asks the handler of the current context for memory
// and gives it back to the same one, whenever the array dies (NEP 49).
#include "bindings/memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <fstream>
#include <iterator>
#include <list>
#include <map>
#include <mutex>

#include "bindings/numpy_arrays.h"

namespace gatewise {
namespace {

// What has lain this long, counted in blocks given back, gives way to others. Younger blocks stay, and what no longer fits is
// freed: a loop whose arrays do not all fit would otherwise find none of them again.
constexpr uint64_t long_time = 256;
constexpr size_t alignment = 64;  // a cache line and the widest vector
constexpr size_t huge_page = size_t(2) << 20;

// The block's true size: an eighth of a power of two, so that sizes that differ a little share blocks.
size_t capacity(size_t size) {
  if (size < worth_keeping) return size;
  const size_t step = (size_t(1) << (63 - __builtin_clzll(size))) / 8;
  return (size + step - 1) / step * step;
}

// A sixteenth of the memory this process may use, at most a gigabyte.
size_t share_of_memory() {
  const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
  size_t all = pages > 0 && page > 0 ? size_t(pages) * size_t(page) : 0;
  for (const char* file : {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    size_t limit = 0;
    if (std::ifstream(file) >> limit) all = std::min(all, limit);  // of a container; the word "max" is no limit
  }
  return std::min(all / 16, size_t(1) << 30);
}

class Pool {
 public:
  const size_t most_kept = share_of_memory();

  void* take(size_t wanted) {
    if (wanted < worth_keeping) return std::malloc(wanted);
    const size_t size = capacity(wanted);
    if (void* found = kept(size)) return found;
    const bool large = size >= 2 * huge_page;
    void* block = nullptr;
    if (posix_memalign(&block, large ? huge_page : alignment, size) != 0) return nullptr;
#if defined(MADV_HUGEPAGE)
    if (large) madvise(block, (wanted + huge_page / 2) / huge_page * huge_page, MADV_HUGEPAGE);  // half of each is used at least
#endif
    return block;
  }

  void give_back(void* block, size_t size) {
    if (size < worth_keeping || block == nullptr) return std::free(block);
    size = capacity(size);
    if (size > most_kept) return std::free(block);
    const std::lock_guard<std::mutex> lock(mutex_);
    ++given_back_;
    while (kept_ + size > most_kept) {
      if (given_back_ - blocks_.front().since < long_time) return std::free(block);
      forget_oldest();
    }
    blocks_.push_back({block, size, given_back_});
    free_[size].push_back(std::prev(blocks_.end()));
    kept_ += size;
  }

  size_t bytes() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return kept_;
  }

 private:
  struct Block {
    void* memory;
    size_t size;
    uint64_t since;  // which of all blocks that were given back it was
  };

  void* kept(size_t size) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = free_.find(size);
    if (found == free_.end() || found->second.empty()) return nullptr;
    const auto newest = found->second.back();
    found->second.pop_back();
    return leave(newest);
  }
  void forget_oldest() {
    const auto oldest = blocks_.begin();
    free_[oldest->size].pop_front();
    std::free(leave(oldest));
  }
  void* leave(std::list<Block>::iterator block) {
    void* memory = block->memory;
    kept_ -= block->size;
    blocks_.erase(block);
    return memory;
  }

  std::mutex mutex_;
  std::list<Block> blocks_;  // from the oldest to the newest
  std::map<size_t, std::deque<std::list<Block>::iterator>> free_;  // by size, in the same order
  size_t kept_ = 0;
  uint64_t given_back_ = 0;
};

Pool& pool() {
  static Pool* const lasting = new Pool;  // arrays may die after everything else
  return *lasting;
}

void* allocate(void*, size_t size) { return pool().take(size); }

void* allocate_zeros(void*, size_t count, size_t size) {
  if (count * size < worth_keeping) return std::calloc(count, size);
  void* block = pool().take(count * size);
  return block == nullptr ? nullptr : std::memset(block, 0, count * size);
}

void* resize(void*, void* block, size_t size) { return std::realloc(block, capacity(size)); }

void release(void*, void* block, size_t size) { pool().give_back(block, size); }

// NumPy's PyDataMem_Handler, version 1.
struct Handler {
  char name[127];
  uint8_t version;
  void* context;
  void* (*malloc)(void*, size_t);
  void* (*calloc)(void*, size_t, size_t);
  void* (*realloc)(void*, void*, size_t);
  void (*free)(void*, void*, size_t);
};
Handler handler{"gatewise", 1, nullptr, allocate, allocate_zeros, resize, release};

}  // namespace

size_t kept_bytes() { return pool().bytes(); }
size_t most_kept_bytes() { return pool().most_kept; }

nanobind::object use_kept_memory() {
  static PyObject* const capsule = PyCapsule_New(&handler, "mem_handler", nullptr);
  if (capsule == nullptr) throw nanobind::python_error();
  return use_memory(nanobind::borrow(capsule));
}

nanobind::object use_memory(nanobind::object wanted) { return Numpy::get().set_memory_handler(wanted); }

}  // namespace gatewise
