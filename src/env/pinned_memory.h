// Host memory for tests that claims to be pinned, counts its allocations, and may refuse.
#ifndef QUIRE_ENV_PINNED_MEMORY_H_
#define QUIRE_ENV_PINNED_MEMORY_H_

#include <atomic>
#include <cstdint>
#include <iterator>
#include <map>
#include <string>

#include "base/mutex.h"
#include "quire/block_ops.h"

namespace quire {

class PinnedMemory final : public HostAllocator {
 public:
  std::string_view name() const override { return "test"; }
  bool pinned() const override { return true; }
  Result<std::byte*> Allocate(uint64_t bytes) override {
    ++asked;
    if (empty) {
      return Fail(ErrorCode::kNoSpace, "test: cannot pin " + std::to_string(bytes) + " bytes");
    }
    bytes_out += bytes;
    Result<std::byte*> memory = PlainHostAllocator().Allocate(bytes);
    last = memory.value_or(nullptr);
    MutexLock lock(mutex_);
    if (memory) given_[*memory] = bytes;
    return memory;
  }
  void Free(std::byte* memory, uint64_t bytes) override {
    bytes_out -= bytes;
    {
      MutexLock lock(mutex_);
      given_.erase(memory);
    }
    PlainHostAllocator().Free(memory, bytes);
  }

  /// Whether a byte lies in an allocation.
  bool Has(const std::byte* byte) const {
    MutexLock lock(mutex_);
    const auto after = given_.upper_bound(byte);
    return after != given_.begin() && byte < std::prev(after)->first + std::prev(after)->second;
  }

  bool empty = false;  // everything is refused
  std::atomic<uint64_t> asked = 0;
  std::atomic<uint64_t> bytes_out = 0;
  std::atomic<std::byte*> last = nullptr;  // the last allocation

 private:
  mutable Mutex mutex_{LockRank::kLeaf};
  std::map<const std::byte*, uint64_t> given_ QUIRE_GUARDED_BY(mutex_);  // bytes
};

}  // namespace quire

#endif  // QUIRE_ENV_PINNED_MEMORY_H_
