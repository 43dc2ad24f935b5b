// The arguments of the kernels of block operations (quire/block_ops.h): plain structs for the
// host's compiler and a device's.
#ifndef QUIRE_CUDA_KERNELS_BLOCKS_H_
#define QUIRE_CUDA_KERNELS_BLOCKS_H_

#include <cstddef>
#include <cstdint>

#include "quire/attention_types.h"

namespace quire::cuda {

/// Threads of a block, of all these kernels.
inline constexpr uint32_t kBlockThreads = 128;

/// Rows into the planes of an open slot. A block of threads has one row of one head.
struct WriteArgs {
  StreamLayout stream{};
  const std::byte* rows = nullptr;  // (token, head, dim)
  Codec dtype = Codec::kF32;
  int64_t token_stride = 0;  // elements
  int64_t head_stride = 0;
  uint32_t token_begin = 0;  // in the block
  uint32_t tokens = 0;
  std::byte* slot = nullptr;
};

/// Tokens of one stream, widened to f32. A block of threads has one row of one head.
struct ReadArgs {
  StreamLayout stream{};
  const std::byte* slot = nullptr;
  uint32_t token_begin = 0;
  uint32_t tokens = 0;
  float* out = nullptr;  // [heads, tokens, dim]
};

/// One stream of a whole block from its open into its sealed form. A block of threads has sixteen
/// tokens of one head.
struct EncodeArgs {
  StreamLayout open{};
  StreamLayout sealed{};
  const std::byte* open_slot = nullptr;
  std::byte* sealed_slot = nullptr;
};

/// Most sections that one launch takes the checksums of.
inline constexpr uint32_t kChecksumSections = 64;

/// CRC32C of consecutive sections of `count` pieces, one after the other: every block of threads
/// adds (exclusive or) the share of its bytes to the sum of their section. ChecksumOf gives the
/// checksum for a sum that began as zero.
struct ChecksumArgs {
  const std::byte* slot = nullptr;
  uint32_t count = 0;
  uint64_t bytes = 0;  // of a piece
  uint64_t stride_bytes = 0;
  uint64_t begin = 0;  // of the first section, in the bytes of all pieces
  uint32_t sections = 0;
  uint64_t ends[kChecksumSections] = {};  // of each section
  uint32_t* sums = nullptr;               // [sections]
};

}  // namespace quire::cuda

#endif  // QUIRE_CUDA_KERNELS_BLOCKS_H_
