// A device whose memory and threads are the host's: the kernels of this layer under test.
#ifndef QUIRE_CUDA_HOST_DEVICE_H_
#define QUIRE_CUDA_HOST_DEVICE_H_

#include <memory>

#include "cuda/device.h"

namespace quire::cuda {

/// Runs every launch before the call returns.
std::unique_ptr<Device> MakeHostDevice();

}  // namespace quire::cuda

#endif  // QUIRE_CUDA_HOST_DEVICE_H_
