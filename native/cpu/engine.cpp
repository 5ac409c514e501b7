#include "cpu/engine.h"

#include <atomic>
#include <cstdlib>

namespace gatewise {
namespace {

std::vector<const Kernels*> available() {
  std::vector<const Kernels*> list{&baseline::kernels()};
#if defined(GATEWISE_HAS_avx2)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  if (avx2) list.push_back(&avx2::kernels());
  if (avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    list.push_back(&avx512::kernels());
  }
#endif
  return list;
}

std::atomic<const Kernels*> current{nullptr};

}  // namespace

std::vector<std::string> instruction_sets() {
  std::vector<std::string> names;
  for (const Kernels* kernels : available()) names.emplace_back(kernels->name);
  return names;
}

const Kernels& current_kernels() {
  const Kernels* kernels = current.load();
  if (kernels == nullptr) {
    const char* wanted = std::getenv("GATEWISE_ISA");
    if (wanted == nullptr || !use_instruction_set(wanted)) current.store(available().back());
    kernels = current.load();
  }
  return *kernels;
}

bool use_instruction_set(const std::string& name) {
  for (const Kernels* kernels : available()) {
    if (name == kernels->name) {
      current.store(kernels);
      return true;
    }
  }
  return false;
}

}  // namespace gatewise
