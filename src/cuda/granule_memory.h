// Arenas in a device's memory: addresses now, physical granules (2 MiB on CUDA) when a page of them
// is committed.
#ifndef QUIRE_CUDA_GRANULE_MEMORY_H_
#define QUIRE_CUDA_GRANULE_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "cuda/device.h"
#include "quire/env.h"

namespace quire::cuda {

/// The calls by which a device maps memory. Addresses are multiples of a granule.
///
/// Threads: any, on different granules
class GranuleDriver {
 public:
  virtual ~GranuleDriver() = default;
  virtual uint64_t granule_bytes() const = 0;
  /// Errors: kNoSpace
  virtual Result<std::byte*> ReserveAddresses(uint64_t bytes) = 0;
  virtual void FreeAddresses(std::byte* base, uint64_t bytes) = 0;
  /// Puts memory behind one granule; its contents are unspecified.
  /// Errors: kNoSpace
  virtual Result<void> Map(std::byte* granule) = 0;
  virtual void Unmap(std::byte* granule) = 0;
};

/// Zeroes and waits on `device`'s stream: operations that BlockOps of the same device enqueued
/// before are done before memory is released.
///
/// Lifetime: not longer than the driver and the device
std::unique_ptr<DeviceMemory> MakeGranuleMemory(std::string name, GranuleDriver& driver,
                                                Device& device);

}  // namespace quire::cuda

#endif  // QUIRE_CUDA_GRANULE_MEMORY_H_
