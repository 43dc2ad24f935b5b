// A CUDA device, by its number.
#ifndef QUIRE_CUDA_RUNTIME_CUDA_DEVICE_H_
#define QUIRE_CUDA_RUNTIME_CUDA_DEVICE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cuda/device.h"
#include "cuda/granule_memory.h"

namespace quire::cuda {

struct DeviceInfo {
  std::string name;    // "NVIDIA H100 80GB HBM3"
  std::string target;  // "sm_90"
  uint64_t memory_bytes = 0;
};

/// The devices of this machine that this build has code for, in the runtime's order. Empty without
/// a driver.
std::vector<DeviceInfo> ListDevices();

/// Whether the device of a compute capability, 10 * major + minor, has instructions for a codec's
/// own numbers; others widen them, with the same results (SPEC P4).
constexpr bool HasFp8(uint32_t capability) { return capability >= 89; }

/// Errors:  kUnsupported no such device, or none of an architecture that this build has code for;
///          kIo what the driver says
Result<std::unique_ptr<Device>> OpenDevice(uint32_t number);

/// Physical memory of a device behind reserved addresses.
/// Errors: kUnsupported the driver cannot
Result<std::unique_ptr<GranuleDriver>> MakeCudaDriver(uint32_t number);

}  // namespace quire::cuda

#endif  // QUIRE_CUDA_RUNTIME_CUDA_DEVICE_H_
