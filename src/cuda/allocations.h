// Which memory of a device is its own to give and get back.
#ifndef QUIRE_CUDA_ALLOCATIONS_H_
#define QUIRE_CUDA_ALLOCATIONS_H_

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>

#include "base/mutex.h"

namespace quire::cuda {

/// Threads: any
class Allocations {
 public:
  void Add(const void* memory, uint64_t bytes) {
    MutexLock lock(mutex_);
    bytes_[memory] = bytes;
  }
  void Remove(const void* memory) {
    MutexLock lock(mutex_);
    bytes_.erase(memory);
  }
  /// Whether an address lies in any of them.
  bool Contains(const void* address) const {
    MutexLock lock(mutex_);
    const auto after = bytes_.upper_bound(address);
    if (after == bytes_.begin()) return false;
    const auto& [begin, bytes] = *std::prev(after);
    return static_cast<const std::byte*>(address) < static_cast<const std::byte*>(begin) + bytes;
  }
  /// Of all together.
  uint64_t bytes() const {
    MutexLock lock(mutex_);
    uint64_t sum = 0;
    for (const auto& [memory, bytes] : bytes_) sum += bytes;
    return sum;
  }

 private:
  mutable Mutex mutex_{LockRank::kLeaf};
  std::map<const void*, uint64_t> bytes_ QUIRE_GUARDED_BY(mutex_);
};

}  // namespace quire::cuda

#endif  // QUIRE_CUDA_ALLOCATIONS_H_
