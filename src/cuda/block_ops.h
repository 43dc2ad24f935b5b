// The operations on blocks in a device's memory, with the bytes of the host's.
#ifndef QUIRE_CUDA_BLOCK_OPS_H_
#define QUIRE_CUDA_BLOCK_OPS_H_

#include <memory>

#include "cuda/device.h"
#include "quire/block_ops.h"

namespace quire::cuda {

/// Enqueues on the device's stream; all other memory of the operations is taken here. Rows may have
/// up to 8,192 channels.
///
/// Errors:   kNoSpace the device has no memory
/// Threads:  any
/// Lifetime: not longer than the device
Result<std::unique_ptr<BlockOps>> MakeBlockOps(Device& device);

}  // namespace quire::cuda

#endif  // QUIRE_CUDA_BLOCK_OPS_H_
