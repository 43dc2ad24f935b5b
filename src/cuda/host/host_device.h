// A device whose memory and threads are the host's: the kernels of this layer under test.
#ifndef QUIRE_CUDA_HOST_HOST_DEVICE_H_
#define QUIRE_CUDA_HOST_HOST_DEVICE_H_

#include <memory>

#include "cuda/device.h"
#include "env/late_streams.h"

namespace quire::cuda {

/// What it is asked is done before the call returns. With `streams` it is done when these say so:
/// then its streams run apart, are late, and fail when they are told to.
///
/// Lifetime: `streams` must outlive it
std::unique_ptr<Device> MakeHostDevice(LateStreams* streams = nullptr);

/// Arenas of such a device: host memory that says it is none, so that the cache moves its bytes as
/// it moves a device's.
///
/// Lifetime: not longer than the device
std::unique_ptr<DeviceMemory> MakeEmulatedMemory(Device& device);

}  // namespace quire::cuda

#endif  // QUIRE_CUDA_HOST_HOST_DEVICE_H_
