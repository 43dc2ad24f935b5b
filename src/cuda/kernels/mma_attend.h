// The arguments of the attention kernels of the class mma16 (docs/numerics.md section 5), and their
// use of shared memory: plain structs for the host's compiler and a device's.
//
// Blocks of four warps compute splits in one of two ways. They *fold*: each warp has sixteen query
// vectors of its own, which are rows of matrix instructions, and they go through all splits of a
// tile, lane after lane in the order of the tree, and write outputs. Or all have the same eight or
// sixteen query vectors, which are columns, and share out tokens, then channels, of some splits,
// and leave a softmax state for each, as those of fma32 do (cuda/kernels/attend.h).
#ifndef QUIRE_CUDA_KERNELS_MMA_ATTEND_H_
#define QUIRE_CUDA_KERNELS_MMA_ATTEND_H_

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>

#include "attention/scalar.h"
#include "attention/visible.h"
#include "base/bits.h"
#include "codec/planes.h"
#include "cuda/kernels/attend.h"
#include "cuda/kernels/bulk.h"

namespace quire::cuda {

/// Rows of a matrix instruction, and terms of each of its sums.
inline constexpr uint32_t kMmaStep = 16;
/// Terms of one that multiplies integers.
inline constexpr uint32_t kIntegerStep = 32;
/// Its columns. Of query vectors a warp has so many tiles of them, at most.
inline constexpr uint32_t kMmaColumns = 8;
inline constexpr uint32_t kQueryTilesMax = 2;
inline constexpr uint32_t kMmaQueriesMax = kQueryTilesMax * kMmaColumns;
/// Warps of a block.
inline constexpr uint32_t kMmaWarps = 4;
inline constexpr uint32_t kBoxTokensMax = 32;
/// Blocks that a split's tokens are in, at most: blocks have sixteen tokens at least.
inline constexpr uint32_t kSplitBlocksMax = kSplitTokens / kMmaStep;
/// Channels of V that a block has sums for at a time.
inline constexpr uint32_t kMmaChannels = 128;
/// Channels come in sixteens, and are at most so many.
inline constexpr uint32_t kMmaDimStep = kMmaStep;
inline constexpr uint32_t kMmaDimMax = 256;
/// Sums, maxima and sums of weights of the two query vectors that a thread has while it folds: a
/// quarter of the channels of each.
inline constexpr uint32_t kFoldFloats = kMmaChannels / 2 + 4;
/// States of a tile that wait for their neighbour in the tree.
inline constexpr uint32_t kFoldLevels = 4;
/// Shared memory that a block has on every architecture, and on sm_90; there blocks share 1 KiB
/// more, and take 1 KiB each.
inline constexpr uint32_t kMmaSharedMax = 99 << 10;
inline constexpr uint32_t kSm90SharedMax = 227 << 10;

/// How K and V come into shared memory. It never shows in the bits.
enum class Staging : uint8_t {
  kCodes,   // K or V is codes, which come as they are
  kCopied,  // every thread copies sixteen bytes at a time, beside itself, into padded rows
  kBulk,    // lanes of a warp ask for boxes (cuda/kernels/bulk.h), which come into swizzled rows
};
/// Tokens of K or V in a buffer of shared memory. Blocks that fold have other things there as well,
/// and rows that are no boxes take more.
constexpr uint32_t StageTokensOf(bool folds, Staging staging) {
  return folds && staging != Staging::kBulk ? 32 : kMmaWarps * kMmaStep;
}
/// Buffers of a block: while one is multiplied, the others are on their way. Stages of codes take
/// less than half of what others take, so they have twice as many, in the same memory.
inline constexpr uint32_t kBuffers = 2;
inline constexpr uint32_t kCodeBuffers = 2 * kBuffers;
inline constexpr uint32_t kBuffersMax = 4;
/// Arrays with boxes: K sealed and open, V sealed and open.
inline constexpr uint32_t kBoxedArrays = 4;
/// Channels of V of a box.
inline constexpr uint32_t kBoxChannels = 64;
/// Tokens of a box, all of one block.
constexpr uint32_t BoxTokens(uint32_t block_tokens) {
  return std::min(kBoxTokensMax, block_tokens);
}

/// Codes that stand for integers, and are multiplied as such.
constexpr bool IsInteger(Codec codec) { return codec >= Codec::kInt8; }

/// Bytes of the codes of sixteen tokens of a head, of so many channels (codec/planes.h): those of V
/// begin at whole tiles.
constexpr uint32_t ColumnBytes(Codec codec, uint32_t channels) {
  if (codec == Codec::kQ25) return RoundUp(channels, 32u) / 32 * codec::kPairTileBytes;
  return channels * (codec <= Codec::kInt8 ? kMmaStep : kMmaStep / 2);
}

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
  Staging staging = Staging::kCopied;
  uint32_t query_tiles = kQueryTilesMax;  // of a warp; that of blocks that fold is this
};

constexpr bool IsEncoded(const AttentionShape& shape) {
  return shape.key.codec > Codec::kBf16 || shape.value.codec > Codec::kBf16;
}

constexpr uint64_t WaitingFloats(uint32_t blocks) {
  return uint64_t{blocks} * kFoldLevels * kFoldFloats * kMmaWarps * 32;
}

/// Blocks that leave states: maxima [warps][query vectors], sums and sums of mids [query vectors],
/// then weights, first as floats, [query vectors][kWeightStride], then as factors of instructions,
/// [tokens / 16][query vectors / 8] of 512 bytes, or in the place of each row of floats the high
/// and the low bytes of integers, kSplitTokens each.
inline constexpr uint32_t kWeightStride = kSplitTokens + 4;  // a row is written without conflicts
constexpr uint32_t WeightsAt(uint32_t queries) { return (kMmaWarps + 2) * queries * 4; }
constexpr uint32_t SharedOutBytes(uint32_t queries) {
  return WeightsAt(queries) + queries * kWeightStride * 4;
}

/// Where things lie in the shared memory of a block. Eight rows can be read at once: they are as
/// far apart as it takes, or swizzled.
struct MmaShared {
  uint32_t buffers = 0;
  uint32_t queries = 0;        // of the block
  uint32_t query_stride = 0;   // numbers of 16 bits
  uint32_t query_numbers = 0;  // of one array [rows][query_stride]; one for high, one for low parts
  // Of a stage: numbers from row to row, or what its boxes are.
  uint32_t key_stride = 0;
  uint32_t key_token_stride = 0;  // where rows of K are tokens
  uint32_t value_stride = 0;
  uint32_t box_tokens = 0;
  uint32_t block_bits = 0;  // log2 of the tokens of a block
  // Bytes from the first on; queries come first.
  uint32_t barriers_at = 0;  // uint64_t [kBuffersMax], for boxes
  uint32_t flag_at = 0;
  uint32_t slots_at = 0;    // uint32_t [sealed, open][kSplitBlocksMax], of a split's blocks
  uint32_t visible_at = 0;  // uint32_t [query vectors][2], what each sees of a split
  uint32_t rows_at = 0;     // float [warps][row_floats]; of blocks that leave states, until warps
                            // tell each other something
  uint32_t row_floats = 0;
  uint32_t scales_at = 0;  // float [2][kSplitTokens], and as many mids if there are any
  // Where codes of K are integers: uint8_t [high, low][query vectors][fixed_stride], and the unit
  // of each query vector. Of V: float [groups of tokens][query vectors], the units of weights.
  uint32_t fixed_at = 0;
  uint32_t fixed_stride = 0;
  uint32_t query_units_at = 0;
  uint32_t weight_units_at = 0;
  uint32_t folded_at = 0;  // of blocks that fold: float [kFoldFloats][threads]
  // Of others: what their warps tell each other (cuda/kernels/mma_states-inl.h).
  uint32_t shared_out_at = 0;
  uint32_t stage_at = 0;  // [buffers][stage_bytes], or [kCodeBuffers][half of it]
  uint32_t stage_bytes = 0;
  bool has_code_buffers = false;  // for splits of which nothing is read open
  uint32_t bytes = 0;

  friend bool operator==(const MmaShared&, const MmaShared&) = default;
};

/// buffers: 0 as many as the staging has.
constexpr MmaShared SharedOf(const AttentionShape& shape, bool folds, Staging staging,
                             uint32_t query_tiles = kQueryTilesMax, uint32_t buffers = 0) {
  const bool bulk = staging == Staging::kBulk;
  const uint32_t tokens = StageTokensOf(folds, staging);
  const uint32_t value_channels = std::min(shape.value.dim, uint32_t{kMmaChannels});
  MmaShared shared;
  shared.buffers = buffers == 0 || !bulk ? kBuffers : buffers;
  shared.queries = (folds ? kMmaWarps : 1) * query_tiles * kMmaColumns;
  shared.query_stride = shape.key.dim + 8;
  shared.query_numbers = shared.queries * shared.query_stride;
  shared.key_stride = tokens + 8;
  shared.key_token_stride = shape.key.dim + 8;
  shared.value_stride = value_channels + 8;
  shared.box_tokens = BoxTokens(shape.key.block_tokens);
  shared.block_bits = static_cast<uint32_t>(std::countr_zero(shape.key.block_tokens));
  const uint32_t forms = TypeOfKeys(shape, false) == TypeOfKeys(shape, true) ? 1 : 2;
  shared.barriers_at = forms * 2 * shared.query_numbers * 2;
  shared.flag_at = shared.barriers_at + kBuffersMax * 8;
  shared.slots_at = shared.flag_at + 16;
  shared.visible_at = shared.slots_at + 2 * kSplitBlocksMax * 4;
  shared.row_floats = std::max(shape.key.dim, shape.value.dim);
  const uint32_t row_bytes = kMmaWarps * shared.row_floats * 4;
  const uint32_t rows_at = shared.visible_at + shared.queries * 8;
  shared.scales_at = rows_at + (folds ? row_bytes : 0);
  const bool mids = codec::HasMids(shape.key.codec) || codec::HasMids(shape.value.codec);
  const uint32_t scales = mids ? 4 : 2;
  shared.fixed_at = shared.scales_at + (IsEncoded(shape) ? scales * kSplitTokens * 4 : 0);
  shared.fixed_stride = RoundUp(shape.key.dim, kIntegerStep) + 16;
  shared.query_units_at =
      shared.fixed_at + (IsInteger(shape.key.codec) ? 2 * shared.queries * shared.fixed_stride : 0);
  shared.weight_units_at =
      shared.query_units_at + (IsInteger(shape.key.codec) ? shared.queries * 4 : 0);
  shared.folded_at =
      shared.weight_units_at + (IsInteger(shape.value.codec)
                                    ? kSplitTokens / attention::kGroupTokens * shared.queries * 4
                                    : 0);
  shared.shared_out_at = shared.folded_at;
  shared.rows_at = folds ? rows_at : shared.shared_out_at;
  const uint32_t end = shared.folded_at +
                       (folds ? kFoldFloats * kMmaWarps * 32 * 4 : SharedOutBytes(shared.queries));
  shared.stage_at = RoundUp(end, bulk ? kBulkAlignment : 16);
  shared.stage_bytes =
      bulk ? 2 * tokens * std::max(shape.key.dim, RoundUp(value_channels, kBoxChannels))
           : 2 * std::max({shape.key.dim * shared.key_stride, tokens * shared.key_token_stride,
                           tokens * shared.value_stride});
  const auto fits = [&](const StreamLayout& stream, uint32_t channels) {
    return stream.codec > Codec::kBf16 &&
           tokens / kMmaStep * ColumnBytes(stream.codec, channels) <= shared.stage_bytes / 2;
  };
  shared.has_code_buffers = fits(shape.key, shape.key.dim) && fits(shape.value, value_channels);
  shared.bytes = shared.stage_at + shared.buffers * shared.stage_bytes;
  return shared;
}

struct MmaArgs {
  SplitsArgs splits{};
  MmaShared shared{};       // a kernel has it as constants; so it has what follows
  bool key_mids = false;    // sealed values are mid + scale * code
  bool value_mids = false;  // likewise
  bool one_form = false;    // sealed and open blocks are the same bytes
  std::array<TensorMap, kBoxedArrays> boxes{};
  // Blocks that fold: [blocks][kFoldLevels][kFoldFloats][threads]; each takes tiles block,
  // block + blocks ... whole.
  float* waiting = nullptr;
  uint32_t blocks = 0;

  friend bool operator==(const MmaArgs&, const MmaArgs&) = default;
};

/// Whether blocks fold tiles of this shape. Warps that fold have no registers for sums of codes.
constexpr bool CanFold(const AttentionShape& shape) {
  return !IsEncoded(shape) && shape.value.dim <= kMmaChannels &&
         SharedOf(shape, true, Staging::kCopied).bytes <= kMmaSharedMax;
}

}  // namespace quire::cuda

#endif  // QUIRE_CUDA_KERNELS_MMA_ATTEND_H_
