// Memory of the host that tells which pages of it are in use, so that what lies in them can be
// looked at, whoever it belongs to.
#ifndef QUIRE_ENV_SEEN_MEMORY_H_
#define QUIRE_ENV_SEEN_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <string_view>
#include <vector>

#include "quire/env.h"

namespace quire {

/// Threads: one
class SeenMemory final : public DeviceMemory {
 public:
  std::string_view name() const override { return inner_->name(); }
  bool host_accessible() const override { return true; }
  Result<std::byte*> Reserve(uint64_t bytes) override { return inner_->Reserve(bytes); }
  Result<void> Commit(std::byte* begin, uint64_t bytes) override {
    QUIRE_TRY(inner_->Commit(begin, bytes));
    for (std::byte* page = PageOf(begin); page < begin + bytes; page += kPage) pages_.insert(page);
    return {};
  }
  void Decommit(std::byte* begin, uint64_t bytes) override {
    inner_->Decommit(begin, bytes);
    Forget(PageOf(begin + kPage - 1), PageOf(begin + bytes));
  }
  void Release(std::byte* base, uint64_t bytes) override {
    inner_->Release(base, bytes);
    Forget(base, base + bytes);
  }
  void Discard(std::byte* begin, uint64_t bytes) override { inner_->Discard(begin, bytes); }

  /// Stretches of pages in use.
  std::vector<std::span<const std::byte>> stretches() const {
    std::vector<std::span<const std::byte>> all;
    for (const std::byte* page : pages_) {
      if (!all.empty() && all.back().data() + all.back().size() == page) {
        all.back() = {all.back().data(), all.back().size() + kPage};
      } else {
        all.emplace_back(page, kPage);
      }
    }
    return all;
  }

 private:
  static constexpr uint64_t kPage = 4096;

  static std::byte* PageOf(std::byte* at) { return at - reinterpret_cast<uintptr_t>(at) % kPage; }
  void Forget(std::byte* begin, std::byte* end) {
    pages_.erase(pages_.lower_bound(begin), pages_.lower_bound(end));
  }

  const std::unique_ptr<DeviceMemory> inner_ = MakeHostMemory(/*huge_pages=*/false);
  std::set<std::byte*> pages_;
};

}  // namespace quire

#endif  // QUIRE_ENV_SEEN_MEMORY_H_
