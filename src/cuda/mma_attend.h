// What the attention kernels of the class mma16 are given (docs/numerics.md section 5), and how
// they use shared memory: plain structs for the host's compiler and a device's.
//
// A warp has sixteen query vectors. Blocks of one warp compute some splits of a tile and leave a
// softmax state for each, as those of fma32 do (cuda/attend.h). Blocks of four warps *fold*: they
// go through all splits of a tile, lane after lane in the order of the tree, and write outputs.
#ifndef QUIRE_CUDA_MMA_ATTEND_H_
#define QUIRE_CUDA_MMA_ATTEND_H_

#include <algorithm>
#include <cstdint>

#include "attention/visible.h"
#include "cuda/attend.h"

namespace quire::cuda {

/// Query vectors of a warp: rows of a matrix product.
inline constexpr uint32_t kMmaRows = 16;
/// Warps of a block that folds.
inline constexpr uint32_t kMmaWarps = 4;
constexpr uint32_t WarpsOf(bool folds) { return folds ? kMmaWarps : 1; }
/// Tokens of K or V in shared memory at a time, twice.
inline constexpr uint32_t kStageTokens = 32;
inline constexpr uint32_t kStages = kSplitTokens / kStageTokens;
/// Channels of V that a warp has sums for at a time.
inline constexpr uint32_t kMmaChannels = 128;
/// Channels come in sixteens, and are at most so many.
inline constexpr uint32_t kMmaDimStep = 16;
inline constexpr uint32_t kMmaDimMax = 256;
/// Sums, maxima and weights of two query vectors that a thread has while it folds.
inline constexpr uint32_t kFoldFloats = kMmaChannels / 8 * 4 + 4;
/// States of a tile that wait for their neighbour in the tree.
inline constexpr uint32_t kFoldLevels = 4;
/// Shared memory that a block has on every architecture.
inline constexpr uint32_t kMmaSharedMax = 99 << 10;

/// The numbers of sixteen bits in which K and V are multiplied: those that are stored; codes of K
/// as the blocks that are read open, codes of V as bf16, so that weights with their scales fit.
constexpr Codec TypeOfKeys(const AttentionShape& shape, bool open) {
  const Codec codec = (open ? attention::OpenKey(shape) : shape.key).codec;
  return codec > Codec::kBf16 ? attention::OpenKey(shape).codec : codec;
}
constexpr Codec TypeOfValues(const AttentionShape& shape, bool open) {
  const Codec codec = (open ? attention::OpenValue(shape) : shape.value).codec;
  return codec > Codec::kBf16 ? Codec::kBf16 : codec;
}

struct MmaLaunch {
  uint32_t blocks = 0;
  bool folds = false;
};

/// Which kernel: that for stored numbers alone, or the other.
constexpr bool IsEncoded(const AttentionShape& shape) {
  return shape.key.codec > Codec::kBf16 || shape.value.codec > Codec::kBf16;
}

constexpr uint64_t WaitingFloats(uint32_t blocks) {
  return uint64_t{blocks} * kFoldLevels * kFoldFloats * kMmaWarps * 32;
}

/// Where things lie in the shared memory of a block. Rows are as far apart as lets eight
/// of them be read at once.
struct MmaShared {
  uint32_t query_stride = 0;   // numbers of 16 bits
  uint32_t query_numbers = 0;  // of one array [rows][query_stride]; one for high, one for low parts
  uint32_t key_stride = kStageTokens + 8;
  uint32_t value_stride = 0;
  uint32_t stage_at = 0;  // bytes from here on
  uint32_t stage_bytes = 0;
  uint32_t scales_at = 0;  // float [4][kSplitTokens]
  uint32_t rows_at = 0;    // float [warps][row_floats]
  uint32_t row_floats = 0;
  uint32_t flag_at = 0;
  uint32_t folded_at = 0;  // float [kFoldFloats][threads]
  uint32_t bytes = 0;
};

constexpr MmaShared SharedOf(const AttentionShape& shape, bool folds) {
  const uint32_t warps = WarpsOf(folds);
  MmaShared shared;
  shared.query_stride = shape.key.dim + 8;
  shared.query_numbers = warps * kMmaRows * shared.query_stride;
  shared.value_stride = std::min(shape.value.dim, uint32_t{kMmaChannels}) + 8;
  const uint32_t forms = TypeOfKeys(shape, false) == TypeOfKeys(shape, true) ? 1 : 2;
  shared.stage_at = forms * 2 * shared.query_numbers * 2;
  shared.stage_bytes =
      2 * std::max(shape.key.dim * shared.key_stride, kStageTokens * shared.value_stride);
  shared.scales_at = shared.stage_at + 2 * shared.stage_bytes;
  shared.rows_at = shared.scales_at + 4 * kSplitTokens * 4;
  shared.row_floats = std::max(shape.key.dim, shape.value.dim);
  shared.flag_at = shared.rows_at + warps * shared.row_floats * 4;
  shared.folded_at = shared.flag_at + 16;
  shared.bytes = shared.folded_at + (folds ? kFoldFloats * warps * 32 * 4 : 0);
  return shared;
}

struct MmaArgs {
  SplitsArgs splits{};
  MmaShared shared{};       // a kernel has it as constants; so it has what follows
  bool key_mids = false;    // sealed values are mid + scale * code
  bool value_mids = false;  // likewise
  bool one_form = false;    // sealed and open blocks are the same bytes
  // Blocks that fold: [blocks][kFoldLevels][kFoldFloats][threads]; each takes tiles block,
  // block + blocks ... whole.
  float* waiting = nullptr;
  uint32_t blocks = 0;
};

/// Whether blocks fold tiles of this shape.
constexpr bool CanFold(const AttentionShape& shape) {
  return shape.value.dim <= kMmaChannels && SharedOf(shape, true).bytes <= kMmaSharedMax;
}

}  // namespace quire::cuda

#endif  // QUIRE_CUDA_MMA_ATTEND_H_
