// A CUDA device, by its number.
#ifndef QUIRE_CUDA_RUNTIME_CUDA_DEVICE_H_
#define QUIRE_CUDA_RUNTIME_CUDA_DEVICE_H_

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cuda/backend.h"
#include "cuda/device.h"
#include "cuda/granule_memory.h"

namespace quire::cuda {

/// Compute capabilities that this build has code for, 10 * major + minor.
inline constexpr auto kArchitectures = std::to_array<uint32_t>({QUIRE_CUDA_ARCHITECTURES});

struct DeviceInfo {
  uint32_t number = 0;  // CUDA's; devices that this build has no code for have theirs too
  std::string name;     // "NVIDIA H100 80GB HBM3"
  std::string target;   // "sm_90"
  uint64_t memory_bytes = 0;
  bool has_bulk_copies = false;
};

/// The devices of this machine that this build has code for, in the runtime's order. Empty without
/// a driver.
std::vector<DeviceInfo> ListDevices();

/// Errors:  kUnsupported no such device, or none of an architecture that this build has code for;
///          kIo with the driver's message
Result<std::unique_ptr<Device>> OpenDevice(uint32_t number);

/// Physical memory of a device behind reserved addresses.
/// Errors: kUnsupported the driver cannot
Result<std::unique_ptr<GranuleDriver>> MakeCudaDriver(uint32_t number);

/// A whole device for a program.
/// Errors: those of OpenDevice and MakeCudaDriver; kNoSpace
Result<std::unique_ptr<Backend>> OpenBackend(uint32_t number, const BackendOptions& options = {});

}  // namespace quire::cuda

#endif  // QUIRE_CUDA_RUNTIME_CUDA_DEVICE_H_
