// Attention on a device, in one of its arithmetic classes (docs/numerics.md).
#ifndef QUIRE_CUDA_ATTENTION_H_
#define QUIRE_CUDA_ATTENTION_H_

#include <cstdint>
#include <memory>

#include "cuda/arithmetic.h"
#include "cuda/device.h"
#include "quire/attention.h"

namespace quire::cuda {

/// Memory of the device that the states of a call's splits take, at most.
inline constexpr uint64_t kStatesBytesMax = uint64_t{256} << 20;

/// None of these but the class shows in the bits.
struct AttentionOptions {
  Arithmetic arithmetic = Arithmetic::kFma32;
  // mma16: so many tiles of whole rows keep a device busy, and their splits are folded where they
  // are computed.
  uint32_t folded_tiles_min = 128;
  // mma16: stored numbers come by bulk copies where the device has them.
  bool bulk_copies = true;
  uint32_t buffers = 0;           // of a block of threads that has bulk copies, 2 to 4; 0: usual
  uint32_t blocks_wanted = 2048;  // of threads, that compute splits
  // mma16: so many blocks of threads are enough to have a lane of the order each.
  uint32_t lane_blocks_wanted = 1024;
  // mma16: blocks of threads that fold tiles, at most: two for each of 132 processors, which are
  // there at once.
  uint32_t folding_blocks = 264;
};

/// Slots, queries, states and outputs are in the device's memory; tables and tasks are the host's
/// and are read before Attend returns. Later operations on the device's stream see the results of
/// Attend.
///
/// Errors:   Supports: kUnsupported open blocks that are encoded, or K or V of more than 512
///           channels; with mma16 of more than 256, of no multiple of 16, of f32, or not aligned to
///           16 bytes. Attend: kNoSpace the device has no memory for the states of splits
/// Threads:  one at a time; the executor is not used
/// Lifetime: not longer than the device
std::unique_ptr<AttentionBackend> MakeAttention(Device& device,
                                                const AttentionOptions& options = {});

}  // namespace quire::cuda

#endif  // QUIRE_CUDA_ATTENTION_H_
