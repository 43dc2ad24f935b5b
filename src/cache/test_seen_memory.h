// Memory of a cache whose bytes a test can look at.
#ifndef QUIRE_CACHE_TEST_SEEN_MEMORY_H_
#define QUIRE_CACHE_TEST_SEEN_MEMORY_H_

#include <memory>
#include <span>
#include <string_view>

#include "cache/test_util.h"

namespace quire::cache {

/// Memory that remembers its first reservation: the arena of the first slot class.
class SeenMemory final : public DeviceMemory {
 public:
  std::string_view name() const override { return inner_.name(); }
  bool host_accessible() const override { return inner_.host_accessible(); }
  Result<std::byte*> Reserve(uint64_t bytes) override {
    auto base = inner_.Reserve(bytes);
    if (arena_.empty()) arena_ = {*base, bytes};
    return base;
  }
  Result<void> Commit(std::byte* begin, uint64_t bytes) override {
    return inner_.Commit(begin, bytes);
  }
  void Decommit(std::byte* begin, uint64_t bytes) override { inner_.Decommit(begin, bytes); }
  void Release(std::byte* base, uint64_t bytes) override { inner_.Release(base, bytes); }
  void Discard(std::byte* begin, uint64_t bytes) override { inner_.Discard(begin, bytes); }
  std::span<std::byte> arena() const { return {OnHost(arena_.data()), arena_.size()}; }

 private:
  std::unique_ptr<DeviceMemory> host_ = MakeHostMemory(/*huge_pages=*/false);
  DeviceMemory& inner_ = DeviceOfTests() == nullptr ? *host_ : DeviceOfTests()->memory;
  std::span<std::byte> arena_;
};

}  // namespace quire::cache

#endif  // QUIRE_CACHE_TEST_SEEN_MEMORY_H_
