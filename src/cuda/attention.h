// Attention on a device, with the bits of the CPU (docs/numerics.md).
#ifndef QUIRE_CUDA_ATTENTION_H_
#define QUIRE_CUDA_ATTENTION_H_

#include <memory>

#include "cuda/device.h"
#include "quire/attention.h"

namespace quire::cuda {

/// Slots, queries, states and outputs are in the device's memory; tables and tasks are the host's
/// and are read before Attend returns. What Attend computes is there for whatever follows it in the
/// order of the device's stream.
///
/// Errors:   Supports: kUnsupported K or V of more than 512 channels, or open blocks that are
///           encoded. Attend: kNoSpace the device has no memory for the states of splits
/// Threads:  one at a time; the executor is not used
/// Lifetime: not longer than the device
std::unique_ptr<AttentionBackend> MakeAttention(Device& device);

}  // namespace quire::cuda

#endif  // QUIRE_CUDA_ATTENTION_H_
