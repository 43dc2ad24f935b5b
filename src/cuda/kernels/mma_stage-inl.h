// Brings K and V of some tokens into shared memory as numbers of sixteen bits, which matrix
// instructions read: of K a row for every channel, of V a row for every token. Stored numbers are
// copied beside the threads; codes become the integers, or floats of eight bits, that they stand
// for, which sixteen bits hold exactly.
#ifndef QUIRE_CUDA_KERNELS_MMA_STAGE_INL_H_
#define QUIRE_CUDA_KERNELS_MMA_STAGE_INL_H_

#include <algorithm>
#include <cstdint>

#include "base/bits.h"
#include "codec/planes.h"
#include "cuda/kernels/formats-inl.h"
#include "cuda/kernels/integers-inl.h"
#include "cuda/kernels/mma_attend.h"
#include "cuda/kernels/warp-inl.h"

namespace quire::cuda {

/// Some tokens of one KV head.
struct StageArgs {
  const StreamLayout* stream = nullptr;
  const BlockTable* table = nullptr;
  const uint32_t* slots = nullptr;  // of the split's blocks, in shared memory
  uint32_t block_bits = 0;          // log2 of a block's tokens
  uint32_t kv_head = 0;
  uint32_t first = 0;          // token of the split; a multiple of the stage's
  uint32_t end = 0;            // tokens from here on are not read; of V they are zeros
  uint32_t channel_begin = 0;  // of V; a multiple of kMmaChannels
  uint32_t channels = 0;
  const TensorMap* boxes = nullptr;
  uint16_t* to = nullptr;
  uint32_t stride = 0;  // numbers from row to row of `to`
};

/// kKeys: rows of `to` are channels, else tokens. kEncoded: there may be codes.
template <class Thread, uint32_t kTokens, bool kKeys, bool kEncoded>
class Stager {
 public:
  QUIRE_KERNEL Stager(Thread& self, const Warp<Thread>& warp, const StageArgs& args)
      : self_(self), warp_(warp), args_(args), stream_(*args.stream) {}

  /// The numbers are there when every thread has waited for its copies and synced.
  QUIRE_KERNEL void Run(Codec half) {
    if constexpr (kEncoded) {
      half_ = half;
      if (stream_.codec > Codec::kBf16) return Decode();
    }
    if (kKeys && stream_.inner == InnerAxis::kDim) return Transpose();
    Copy();
  }

 private:
  static constexpr uint32_t kColumns = kTokens / codec::kTileLanes;

  QUIRE_KERNEL uint32_t TokenOf(uint32_t column) const {
    return args_.first + column * codec::kTileLanes;
  }
  QUIRE_KERNEL uint32_t InBlock(uint32_t column) const {
    return TokenOf(column) & (stream_.block_tokens - 1);
  }
  /// The plane of sixteen tokens; null: there is none, or they are not read.
  QUIRE_KERNEL const std::byte* PlaneOf(uint32_t column) const {
    const uint32_t token = TokenOf(column);
    if (token >= args_.end) return nullptr;
    const std::byte* const slot = args_.table->SlotAt(args_.slots[token >> args_.block_bits]);
    if (slot == nullptr) return nullptr;
    return slot + stream_.offset_bytes + args_.kv_head * stream_.head_stride_bytes;
  }
  QUIRE_KERNEL uint16_t* At(uint32_t row, uint32_t column) const {
    const uint32_t at = row * args_.stride + column;
    return args_.to + at;
  }

  QUIRE_KERNEL void Copy() {
    const uint32_t runs = kKeys ? 2 * kColumns : args_.channels / 8;  // eight numbers each
    const uint32_t rows = kKeys ? args_.channels : kTokens;
    warp_.Share(rows * runs, [&](uint32_t i) {
      const uint32_t row = i / runs;
      const uint32_t run = i % runs;
      const uint32_t column = kKeys ? run / 2 : row / codec::kTileLanes;
      const std::byte* const plane = PlaneOf(column);
      const bool valid = plane != nullptr && (kKeys || args_.first + row < args_.end);
      const uint64_t from =
          kKeys ? uint64_t{row} * stream_.block_tokens + InBlock(column) + uint64_t{run % 2} * 8
                : uint64_t{InBlock(column) + row % codec::kTileLanes} * stream_.dim +
                      args_.channel_begin + uint64_t{run} * 8;
      self_.CopyAsync(At(row, run * 8), valid ? plane + from * 2 : args_.table->base, valid);
    });
  }

  QUIRE_KERNEL void Transpose() {
    warp_.Share(kTokens * args_.channels, [&](uint32_t i) {
      const uint32_t channel = i % args_.channels;
      const uint32_t token = i / args_.channels;
      const uint32_t column = token / codec::kTileLanes;
      const std::byte* const plane = PlaneOf(column);
      if (plane == nullptr) return;
      const uint64_t from =
          uint64_t{InBlock(column) + token % codec::kTileLanes} * stream_.dim + channel;
      *At(channel, token) = LoadHalf(plane, from);
    });
  }

  QUIRE_KERNEL void Decode() {
    Any::With(stream_.codec, [&](auto format) {
      using Format = decltype(format);
      if constexpr (kEncodes<Format>) {
        const uint32_t words = WordsOfColumn<Format>();
        warp_.Share(kColumns * words, [&](uint32_t i) {
          const uint32_t column = i / words;
          const std::byte* const plane = PlaneOf(column);
          if (plane == nullptr && kKeys) return;
          Word<Format>(plane, column, i % words);
        });
      }
    });
  }

  /// Words of codes that sixteen tokens have, without those of signs.
  template <class Format>
  QUIRE_KERNEL uint32_t WordsOfColumn() const {
    constexpr uint32_t kBits = Format::kLayout == codec::CodeLayout::kPairTiles     ? 2
                               : Format::kLayout == codec::CodeLayout::kNibbleTiles ? 4
                                                                                    : 8;
    // A pair has its word even if one of its channels is none.
    const uint32_t channels = kBits == 2 ? RoundUp(args_.channels, 32u) : args_.channels;
    return channels * codec::kTileLanes * kBits / 32;
  }

  /// Word `i` of a column. Without a plane its numbers are zeros.
  template <class Format>
  QUIRE_KERNEL void Word(const std::byte* plane, uint32_t column, uint32_t i) {
    constexpr codec::CodeLayout kLayout = Format::kLayout;
    if constexpr (kLayout == codec::CodeLayout::kBytes) {
      Floats<Format>(plane, column, i);
      return;
    } else {
      constexpr uint32_t kSteps = kLayout == codec::CodeLayout::kByteTiles ? 8 : 4;  // of 16 terms
      const uint32_t word = i % 8;
      const uint32_t step = i / 8;
      // K has one tile with all channels as terms, V one for every sixteen channels or pairs.
      constexpr uint32_t kTile = kLayout == codec::CodeLayout::kPairTiles
                                     ? codec::kPairTileBytes
                                     : kSteps * codec::kStepBytes;
      const uint32_t tile = step / kSteps;
      const uint32_t first_tile =
          kKeys ? 0
                : args_.channel_begin / (kLayout == codec::CodeLayout::kPairTiles
                                             ? 2 * codec::kTileLanes
                                             : codec::kTileLanes);
      const std::byte* at = plane;
      if (plane != nullptr) {
        at += InBlock(column) / codec::kTileLanes *
                  codec::ColumnBytes(kLayout, stream_.inner, stream_.dim) +
              uint64_t{first_tile + tile} * kTile;
      }
      const uint32_t in_tile = step % kSteps;
      const uint32_t in_bytes = in_tile * codec::kStepBytes + word * 4;
      const uint32_t codes = at == nullptr ? 0 : Load<uint32_t>(at + in_bytes);
      if constexpr (kLayout == codec::CodeLayout::kByteTiles) {
        // Bytes: terms 0 and 1 of a lane, then of the next.
        const uint32_t lane = word * 2;
        const uint32_t term = step * 2;
        Put(column, tile, term, lane, codes, 0);
        Put(column, tile, term, lane + 1, codes, 2);
        Put(column, tile, term + 1, lane, codes, 1);
        Put(column, tile, term + 1, lane + 1, codes, 3);
      } else if constexpr (kLayout == codec::CodeLayout::kNibbleTiles) {
        PutFour(column, tile, step * 4, word, plane, NibbleIntegers<Format>(codes));
        PutFour(column, tile, step * 4 + 2, word, plane, NibbleIntegers<Format>(codes >> 4));
      } else {
        const uint32_t signs_at = 4 * codec::kStepBytes + word * 4;
        const uint32_t signs = at == nullptr ? 0 : Load<uint32_t>(at + signs_at);
        QUIRE_DEVICE_UNROLL
        for (uint32_t half = 0; half < 2; ++half) {
          const uint32_t negated = signs >> (in_tile * 2 + half);
          const uint32_t points = codes >> half * 4;
          PutPairs(column, tile, step * 4 + half * 2, word, plane,
                   NegateSome(LookUp<codec::kPairFirstIntegers>(points), negated),
                   NegateSome(LookUp<codec::kPairSecondIntegers>(points), negated));
        }
      }
    }
  }

  /// Four neighbours of a plane of bytes: tokens of a channel, or channels of a token.
  template <class Format>
  QUIRE_KERNEL void Floats(const std::byte* plane, uint32_t column, uint32_t i) {
    const uint32_t runs = (kKeys ? codec::kTileLanes : args_.channels) / 4;
    const uint32_t row = i / runs;
    const uint32_t run = i % runs * 4;
    uint32_t codes = 0;
    if (plane != nullptr) {
      const uint64_t from =
          kKeys ? uint64_t{row} * stream_.block_tokens + InBlock(column) + run
                : uint64_t{InBlock(column) + row} * stream_.dim + args_.channel_begin + run;
      codes = Load<uint32_t>(plane + from);
    }
    uint16_t* const to = kKeys ? At(row, column * codec::kTileLanes + run)
                               : At(column * codec::kTileLanes + row, run);
    float value[4];
    QUIRE_DEVICE_UNROLL
    for (uint32_t b = 0; b < 4; ++b) {
      value[b] = plane == nullptr ? 0.0f : Format::ValueOf(static_cast<uint8_t>(codes >> b * 8));
    }
    reinterpret_cast<uint32_t*>(to)[0] = Pack(value[0], value[1]);
    reinterpret_cast<uint32_t*>(to)[1] = Pack(value[2], value[3]);
  }

  /// Of V they are always bf16.
  QUIRE_KERNEL uint32_t Pack(float first, float second) const {
    if (kKeys && half_ == Codec::kF16) return Pack16<Codec::kF16>(first, second);
    return Pack16<Codec::kBf16>(first, second);
  }

  /// Byte `byte` of `integers`. `term` counts through the tiles: those before have sixteen each.
  QUIRE_KERNEL void Put(uint32_t column, uint32_t tile, uint32_t term, uint32_t lane,
                        uint32_t integers, uint32_t byte) {
    const auto integer = static_cast<int8_t>(integers >> byte * 8);
    const auto code = static_cast<uint16_t>(Pack(static_cast<float>(integer), 0.0f));
    if (kKeys) {
      *At(term, column * codec::kTileLanes + lane) = code;
    } else {
      *At(column * codec::kTileLanes + term % codec::kTileLanes, tile * codec::kTileLanes + lane) =
          code;
    }
  }

  /// Bytes: terms 0, 0, 1, 1 of lanes `word` and `word` + 8.
  QUIRE_KERNEL void PutFour(uint32_t column, uint32_t tile, uint32_t term, uint32_t word,
                            const std::byte* plane, uint32_t integers) {
    if (plane == nullptr) integers = 0;
    QUIRE_DEVICE_UNROLL
    for (uint32_t byte = 0; byte < 4; ++byte) {
      Put(column, tile, term + byte / 2, word + byte % 2 * 8, integers, byte);
    }
  }

  /// The same of pairs: those of K have neighbouring terms as channels, first and second
  /// coordinates alternately; those of V a tile for each coordinate.
  QUIRE_KERNEL void PutPairs(uint32_t column, uint32_t tile, uint32_t term, uint32_t word,
                             const std::byte* plane, uint32_t first, uint32_t second) {
    if (kKeys) {
      if (term * 2 >= args_.channels) return;
      PutFour(column, 0, term * 2, word, plane, first);
      PutFour(column, 0, term * 2 + 2, word, plane, second);
    } else {
      PutFour(column, tile * 2, term, word, plane, first);
      if (tile * 32 + 16 < args_.channels) {
        PutFour(column, tile * 2 + 1, term, word, plane, second);
      }
    }
  }

  Thread& self_;
  const Warp<Thread>& warp_;
  const StageArgs& args_;
  const StreamLayout& stream_;
  Codec half_ = Codec::kBf16;
};

}  // namespace quire::cuda

#endif  // QUIRE_CUDA_KERNELS_MMA_STAGE_INL_H_
