// Memory of NumPy arrays that is kept for the next array of its size when one is freed. Fresh memory costs a page fault per
// 4 KiB: a step of training would spend a third of its time in them. NumPy asks the handler of the current context for memory
// and gives it back to the same one, whenever the array dies (NEP 49).
#include "bindings/memory.h"

#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <vector>

namespace gatewise {
namespace {

constexpr size_t most_kept = size_t(1) << 28;      // in all; then everything kept is freed
constexpr size_t alignment = 64;                   // a cache line and the widest vector

// The block's true size: an eighth of a power of two, so that sizes that differ a little share blocks.
size_t capacity(size_t size) {
  if (size < worth_keeping) return size;
  const size_t step = (size_t(1) << (63 - __builtin_clzll(size))) / 8;
  return (size + step - 1) / step * step;
}

class Pool {
 public:
  void* take(size_t size) {
    if (size < worth_keeping) return std::malloc(size);
    size = capacity(size);
    if (void* found = kept(size)) return found;
    void* block = nullptr;
    return posix_memalign(&block, alignment, size) == 0 ? block : nullptr;
  }

  void give_back(void* block, size_t size) {
    if (size < worth_keeping || block == nullptr) return std::free(block);
    size = capacity(size);
    const std::lock_guard<std::mutex> lock(mutex_);
    if (kept_ + size > most_kept) {
      for (auto& [bytes, blocks] : free_) {
        for (void* each : blocks) std::free(each);
        blocks.clear();
      }
      kept_ = 0;
      if (size > most_kept) return std::free(block);
    }
    free_[size].push_back(block);
    kept_ += size;
  }

  size_t bytes() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return kept_;
  }

 private:
  void* kept(size_t size) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto blocks = free_.find(size);
    if (blocks == free_.end() || blocks->second.empty()) return nullptr;
    void* block = blocks->second.back();
    blocks->second.pop_back();
    kept_ -= size;
    return block;
  }

  std::mutex mutex_;
  std::map<size_t, std::vector<void*>> free_;
  size_t kept_ = 0;
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

using SetHandler = PyObject* (*)(PyObject*);
SetHandler set_handler = nullptr;
PyObject* capsule = nullptr;

void find_numpy_memory() {
  namespace nb = nanobind;
  nb::object module;
  try {
    module = nb::module_::import_("numpy._core._multiarray_umath");
  } catch (nb::python_error&) {
    module = nb::module_::import_("numpy.core._multiarray_umath");  // before NumPy 2
  }
  void** functions = static_cast<void**>(PyCapsule_GetPointer(module.attr("_ARRAY_API").ptr(), nullptr));
  if (functions == nullptr) throw nb::python_error();
  constexpr int place_of_set_handler = 304;  // PyDataMem_SetHandler's number in NumPy's stable binary interface
  set_handler = reinterpret_cast<SetHandler>(functions[place_of_set_handler]);
  capsule = PyCapsule_New(&handler, "mem_handler", nullptr);
  if (capsule == nullptr) throw nb::python_error();
}

}  // namespace

size_t kept_bytes() { return pool().bytes(); }

nanobind::object use_kept_memory() {
  if (set_handler == nullptr) find_numpy_memory();
  return use_memory(nanobind::borrow(capsule));
}

nanobind::object use_memory(nanobind::object wanted) {
  PyObject* before = set_handler(wanted.ptr());
  if (before == nullptr) throw nanobind::python_error();
  return nanobind::steal(before);
}

}  // namespace gatewise
