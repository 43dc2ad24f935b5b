// The arguments of the kernels of block operations (quire/block_ops.h): plain structs for the
// host's compiler and a device's.
#ifndef QUIRE_CUDA_KERNELS_BLOCKS_H_
#define QUIRE_CUDA_KERNELS_BLOCKS_H_

#include <cstddef>
#include <cstdint>

#include "cuda/kernels/equal.h"
#include "quire/attention_types.h"

namespace quire::cuda {

/// Threads of a block, of all these kernels.
inline constexpr uint32_t kBlockThreads = 128;

/// Streams whose layouts one launch has: K and V of a layer.
inline constexpr uint32_t kStreamsOfLaunch = 2;
/// Blocks of one launch: what is passed to a kernel has at most 4 KiB.
inline constexpr uint32_t kBlocksOfLaunch = 128;

/// Where rows of one stream go, and how they lie where they come from.
struct WrittenStream {
  StreamLayout layout{};
  Codec dtype = Codec::kF32;
  int64_t token_stride = 0;  // elements
  int64_t head_stride = 0;

  friend bool operator==(const WrittenStream&, const WrittenStream&) = default;
};
/// Rows of some tokens of one block.
struct WrittenBlock {
  const std::byte* rows = nullptr;  // (token, head, dim)
  std::byte* slot = nullptr;
  uint32_t token_begin = 0;  // in the block
  uint16_t tokens = 0;
  uint16_t stream = 0;  // of the launch

  friend bool operator==(const WrittenBlock&, const WrittenBlock&) = default;
};

/// Rows into the planes of open slots. A block of threads has one row of one head.
struct WriteArgs {
  WrittenStream streams[kStreamsOfLaunch]{};
  uint32_t stream_count = 0;
  uint32_t count = 0;
  uint32_t heads_max = 0;   // of the streams
  uint32_t tokens_max = 0;  // of the blocks
  WrittenBlock blocks[kBlocksOfLaunch]{};

  friend bool operator==(const WriteArgs&, const WriteArgs&) = default;
};

/// Tokens of one stream, widened to f32. A block of threads has one row of one head.
struct ReadArgs {
  StreamLayout stream{};
  const std::byte* slot = nullptr;
  uint32_t token_begin = 0;
  uint32_t tokens = 0;
  float* out = nullptr;  // [heads, tokens, dim]

  friend bool operator==(const ReadArgs&, const ReadArgs&) = default;
};

/// The two forms of one stream.
struct SealedStream {
  StreamLayout open{};
  StreamLayout sealed{};

  friend bool operator==(const SealedStream&, const SealedStream&) = default;
};
struct SealedBlock {
  const std::byte* open_slot = nullptr;
  std::byte* sealed_slot = nullptr;
  uint32_t stream = 0;  // of the launch

  friend bool operator==(const SealedBlock&, const SealedBlock&) = default;
};

/// Whole blocks of streams from their open into their sealed form. A block of threads has sixteen
/// tokens of one head.
struct EncodeArgs {
  SealedStream streams[kStreamsOfLaunch]{};
  uint32_t stream_count = 0;
  uint32_t count = 0;
  uint32_t tiles_max = 0;  // of sixteen tokens of a head, of one block
  SealedBlock blocks[kBlocksOfLaunch]{};

  friend bool operator==(const EncodeArgs&, const EncodeArgs&) = default;
};
static_assert(sizeof(WriteArgs) <= 4096 && sizeof(EncodeArgs) <= 4096);

/// Times that the sums of a block's threads are joined in pairs.
inline constexpr uint32_t kChecksumJoins = 7;
static_assert(1u << kChecksumJoins == kBlockThreads);

/// Most checksums that one launch takes: sections of all its slots.
inline constexpr uint32_t kChecksumsOfLaunch = 64;

/// CRC32C of consecutive sections of `count` pieces, one after the other, of slots that are all cut
/// alike: every block of threads adds (exclusive or) the share of its bytes to the sum of their
/// section, and the last one that is done moves the sums to the results. ChecksumOf gives the
/// checksum for a sum.
struct ChecksumArgs {
  const std::byte* slots[kChecksumsOfLaunch] = {};
  uint32_t slot_count = 0;
  uint32_t count = 0;
  uint64_t bytes = 0;  // of a piece
  uint64_t stride_bytes = 0;
  uint64_t begin = 0;  // of the first section, in the bytes of all pieces
  uint32_t sections = 0;
  uint64_t ends[kChecksumsOfLaunch] = {};  // of each section
  uint32_t blocks = 0;                     // of threads, of one slot
  // Zeros before and after: a sum for each section, then how many blocks of threads are done.
  uint32_t* sums = nullptr;  // [kChecksumsOfLaunch + 1]
  uint32_t* results =
      nullptr;  // [slot_count, sections]: the device's, or pinned memory of the host
  // Factors for the bytes that follow (checksum-inl.h): 2^i runs of a thread, 2^i blocks of them.
  uint32_t run_powers[kChecksumJoins] = {};
  uint32_t block_powers[32] = {};

  friend bool operator==(const ChecksumArgs&, const ChecksumArgs&) = default;
};
static_assert(sizeof(ChecksumArgs) <= 4096);

}  // namespace quire::cuda

#endif  // QUIRE_CUDA_KERNELS_BLOCKS_H_
