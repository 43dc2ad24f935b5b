// Memory that tells which of its pages are in use, so that a test can look at all bytes in them.
#ifndef QUIRE_ENV_SEEN_MEMORY_H_
#define QUIRE_ENV_SEEN_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <iterator>
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
  /// A device's memory, which must outlive it; null: the host's.
  explicit SeenMemory(DeviceMemory* device = nullptr)
      : host_(device == nullptr ? MakeHostMemory(/*huge_pages=*/false) : nullptr),
        inner_(device == nullptr ? *host_ : *device) {}

  std::string_view name() const override { return inner_.name(); }
  bool host_accessible() const override { return inner_.host_accessible(); }
  Result<std::byte*> Reserve(uint64_t bytes) override {
    auto base = inner_.Reserve(bytes);
    if (!base) return base;
    bases_.insert(*base);
    if (first_.empty()) first_ = {*base, bytes};
    return base;
  }
  Result<void> Commit(std::byte* begin, uint64_t bytes) override {
    QUIRE_TRY(inner_.Commit(begin, bytes));
    for (std::byte* page = PageOf(begin); page < begin + bytes; page += kPage) pages_.insert(page);
    return {};
  }
  void Decommit(std::byte* begin, uint64_t bytes) override {
    inner_.Decommit(begin, bytes);
    Forget(PageOf(begin + kPage - 1), PageOf(begin + bytes));
  }
  void Release(std::byte* base, uint64_t bytes) override {
    inner_.Release(base, bytes);
    bases_.erase(base);
    Forget(base, base + bytes);
  }
  void Discard(std::byte* begin, uint64_t bytes) override { inner_.Discard(begin, bytes); }

  /// Stretches of pages in use, each of one reservation, as addresses of the memory.
  std::vector<std::span<const std::byte>> stretches() const {
    std::vector<std::span<const std::byte>> all;
    for (const std::byte* page : pages_) {
      const bool goes_on = !all.empty() && all.back().data() + all.back().size() == page;
      if (goes_on && !bases_.contains(page)) {
        all.back() = {all.back().data(), all.back().size() + kPage};
      } else {
        all.emplace_back(page, kPage);
      }
    }
    return all;
  }

  /// The bytes in use of the first reservation: the slots of a cache's first class. Pages are given
  /// back only at its end.
  std::span<const std::byte> arena() const {
    const auto begin = pages_.lower_bound(first_.data());
    const auto end = pages_.lower_bound(first_.data() + first_.size());
    return first_.first(kPage * static_cast<uint64_t>(std::distance(begin, end)));
  }

 private:
  static constexpr uint64_t kPage = 4096;

  static std::byte* PageOf(std::byte* at) { return at - reinterpret_cast<uintptr_t>(at) % kPage; }
  void Forget(const std::byte* begin, const std::byte* end) {
    pages_.erase(pages_.lower_bound(begin), pages_.lower_bound(end));
  }

  const std::unique_ptr<DeviceMemory> host_;
  DeviceMemory& inner_;
  std::span<const std::byte> first_;
  std::set<const std::byte*> bases_;
  std::set<const std::byte*> pages_;
};

}  // namespace quire

#endif  // QUIRE_ENV_SEEN_MEMORY_H_
