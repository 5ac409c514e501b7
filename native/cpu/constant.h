// A weight that never changes. What a run has packed of it is kept for the runs after it.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace gatewise {

// Everything that packed panels depend on besides the weight's values.
using PackedForm = std::array<int64_t, 16>;

class Constant {
 public:
  // `data` lives as long as this, and nobody writes to it.
  Constant(const void* data, size_t bytes) : data_(data), bytes_(bytes) {}
  const void* data() const { return data_; }
  size_t bytes() const { return bytes_; }

  std::shared_ptr<char> find(const PackedForm& form) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& [known, panels] : kept_) {
      if (known == form) return panels;
    }
    return nullptr;
  }
  // Panels that are complete. The oldest give way: a program has few kinds of calls on one weight.
  void keep(const PackedForm& form, const std::shared_ptr<char>& panels) {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& [known, other] : kept_) {
      if (known == form) return;  // another thread's were complete sooner
    }
    if (kept_.size() == most) kept_.erase(kept_.begin());
    kept_.emplace_back(form, panels);
  }
  size_t kept() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return kept_.size();
  }

 private:
  static constexpr size_t most = 4;
  const void* data_;
  size_t bytes_;
  mutable std::mutex mutex_;
  std::vector<std::pair<PackedForm, std::shared_ptr<char>>> kept_;
};

}  // namespace gatewise
