// A device whose memory and threads are the host's: the kernels of this layer under test.
#ifndef QUIRE_CUDA_HOST_HOST_DEVICE_H_
#define QUIRE_CUDA_HOST_HOST_DEVICE_H_

#include <memory>

#include "cuda/device.h"
#include "env/late_streams.h"

namespace quire::cuda {

/// Without `streams` a call returns when its work is done. With `streams` these run the work:
/// independently, late, and failing when a test says so. `reaches_host`: its kernels write to the
/// host's memory.
///
/// Lifetime: `streams` must outlive it
std::unique_ptr<Device> MakeHostDevice(LateStreams* streams = nullptr, bool reaches_host = true);

/// One that is asked and does nothing: to measure the host's own work. Its memory is not touched.
std::unique_ptr<Device> MakeIdleDevice();

/// Memory that such a device has given and not got back.
uint64_t AllocatedBytes(const Device& device);

/// Arenas of such a device: host memory that reports that it is not, so that the cache moves its
/// bytes as it moves a device's.
///
/// Lifetime: not longer than the device
std::unique_ptr<DeviceMemory> MakeEmulatedMemory(Device& device);

}  // namespace quire::cuda

#endif  // QUIRE_CUDA_HOST_HOST_DEVICE_H_
