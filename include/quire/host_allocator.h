// The door through which a device lends memory of the host that it reaches fast.
#ifndef QUIRE_HOST_ALLOCATOR_H_
#define QUIRE_HOST_ALLOCATOR_H_

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "quire/error.h"

namespace [[gnu::visibility("default")]] quire {

/// Memory of the host for bytes on their way to and from a device.
///
/// Threads: any
class HostAllocator {
 public:
  virtual ~HostAllocator() = default;

  /// "cuda:0".
  virtual std::string_view name() const = 0;
  /// Whether a device copies to and from this memory while the host goes on: pinned memory.
  virtual bool pinned() const = 0;
  /// Aligned to 4,096 bytes. It may hold up the device: whoever needs memory asks once and keeps it.
  /// Errors: kNoSpace with the number of bytes asked for
  virtual Result<std::byte*> Allocate(uint64_t bytes) = 0;
  virtual void Free(std::byte* memory, uint64_t bytes) = 0;
};

/// Ordinary memory, whose pages become resident at first write.
///
/// Lifetime: that of the program
HostAllocator& PlainHostAllocator();

}  // namespace quire

#endif  // QUIRE_HOST_ALLOCATOR_H_
