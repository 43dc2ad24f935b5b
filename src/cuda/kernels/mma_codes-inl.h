// Brings codes of K and V into shared memory as the integers, or floats of eight bits, that they
// stand for, which sixteen bits hold exactly: sixteen bytes of codes at a time, of which a thread
// has some of every column on their way.
#ifndef QUIRE_CUDA_KERNELS_MMA_CODES_INL_H_
#define QUIRE_CUDA_KERNELS_MMA_CODES_INL_H_

#include <bit>
#include <cstdint>

#include "base/bits.h"
#include "codec/planes.h"
#include "cuda/kernels/bulk.h"
#include "cuda/kernels/formats-inl.h"
#include "cuda/kernels/integers-inl.h"
#include "cuda/kernels/simt.h"
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

  // Columns are sixteen tokens each.
  QUIRE_KERNEL uint32_t InBlock(uint32_t column) const {
    return (first + column * codec::kTileLanes) & (stream->block_tokens - 1);
  }
  /// The plane of a column; null: there is none, or it is not read.
  QUIRE_KERNEL const std::byte* PlaneOf(uint32_t column) const {
    const uint32_t token = first + column * codec::kTileLanes;
    if (token >= end) return nullptr;
    const std::byte* const slot = table->SlotAt(slots[token >> block_bits]);
    if (slot == nullptr) return nullptr;
    return slot + stream->offset_bytes + kv_head * stream->head_stride_bytes;
  }
  QUIRE_KERNEL uint16_t* At(uint32_t row, uint32_t column) const {
    const uint32_t at = row * stride + column;
    return to + at;
  }
};

/// Byte `i` of a word of signed bytes, of which every top bit was turned: it stands in the low bits
/// of a float of 2^23 and more.
QUIRE_KERNEL float TurnedByte(uint32_t turned, uint32_t i) {
  return std::bit_cast<float>(Permute(turned, 0x4b000000u, 0x7650u + i)) - 8388736.0f;
}

/// Two codes of eight bits as f16, which holds them exactly.
template <class Format>
QUIRE_KERNEL uint32_t Fp8Pair(uint32_t codes) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  uint32_t pair;
  if constexpr (Format::kCodec == Codec::kFp8E4m3) {
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pair) : "h"(static_cast<uint16_t>(codes)));
  } else {
    asm("cvt.rn.f16x2.e5m2x2 %0, %1;" : "=r"(pair) : "h"(static_cast<uint16_t>(codes)));
  }
  return pair;
#else
  return Pack16<Codec::kF16>(Format::ValueOf(static_cast<uint8_t>(codes)),
                             Format::ValueOf(static_cast<uint8_t>(codes >> 8)));
#endif
}

/// kKeys: rows of the stage are channels, else tokens.
template <class Thread, uint32_t kTokens, bool kKeys>
class CodeStager {
 public:
  QUIRE_KERNEL CodeStager(const Warp<Thread>& warp, const StageArgs& args)
      : warp_(warp), args_(args), stream_(*args.stream) {}

  /// f16: what K's codes become; else bf16.
  QUIRE_KERNEL void Run(bool f16) {
    Any::With(stream_.codec, [&](auto format) {
      if constexpr (kEncodes<decltype(format)>) {
        if (kKeys && f16) return Columns<decltype(format), Codec::kF16>();
        Columns<decltype(format), Codec::kBf16>();
      }
    });
  }

 private:
  static constexpr uint32_t kColumns = kTokens / codec::kTileLanes;
  using Layout = codec::CodeLayout;

  struct alignas(16) Sixteen {
    uint32_t word[4] = {};
  };
  struct alignas(8) Eight {
    uint32_t word[2];
  };

  /// Codes of a column in sixteen bytes each, without signs.
  template <class Format>
  QUIRE_KERNEL uint32_t Units() const {
    if constexpr (Format::kLayout == Layout::kNibbleTiles) return args_.channels / 2;
    // A pair has its word even if one of its channels is none.
    if constexpr (Format::kLayout == Layout::kPairTiles) return RoundUp(args_.channels, 32u) / 4;
    return args_.channels;
  }

  template <class Format, Codec kType>
  QUIRE_KERNEL void Columns() const {
    const std::byte* columns[kColumns];  // null: there are no codes
    QUIRE_DEVICE_UNROLL
    for (uint32_t c = 0; c < kColumns; ++c) {
      columns[c] = args_.PlaneOf(c);
      if (columns[c] != nullptr) columns[c] += ColumnAt<Format>(args_.InBlock(c));
    }
    warp_.Share(Units<Format>(), [&](uint32_t i) {
      const uint32_t at = UnitAt<Format>(i);
      Sixteen codes[kColumns];
      Sixteen signs[kColumns];
      QUIRE_DEVICE_UNROLL
      for (uint32_t c = 0; c < kColumns; ++c) {
        if (columns[c] == nullptr) continue;
        codes[c] = Load<Sixteen>(columns[c] + at);
        if constexpr (Format::kLayout == Layout::kPairTiles) {
          signs[c] = Load<Sixteen>(columns[c] + (at - i % 8 * 16) + (8 + i % 2) * 16);
        }
      }
      QUIRE_DEVICE_UNROLL
      for (uint32_t c = 0; c < kColumns; ++c) {
        // K's scores there are not kept; V's numbers meet weights that are zeros.
        if (kKeys && columns[c] == nullptr) continue;
        const uint32_t kept = columns[c] == nullptr ? 0 : ~0u;
        if constexpr (Format::kLayout == Layout::kBytes) {
          PutFloats<Format, kType>(codes[c], c, i);
        } else if constexpr (Format::kLayout == Layout::kByteTiles) {
          PutBytes<kType>(codes[c], c, i);
        } else if constexpr (Format::kLayout == Layout::kNibbleTiles) {
          PutNibbles<Format, kType>(codes[c], c, i, kept);
        } else {
          PutPairs<kType>(codes[c], signs[c], c, i, kept);
        }
      }
    });
  }

  /// Where the codes of sixteen tokens begin in a plane, of the channels that are brought.
  template <class Format>
  QUIRE_KERNEL uint64_t ColumnAt(uint32_t in_block) const {
    const uint32_t channel = kKeys ? 0 : args_.channel_begin;
    if constexpr (Format::kLayout == Layout::kBytes) {
      return kKeys ? in_block : uint64_t{in_block} * stream_.dim + channel;
    } else {
      constexpr uint32_t kChannels =
          (Format::kLayout == Layout::kPairTiles ? 2 : 1) * codec::kTileLanes;
      return in_block / codec::kTileLanes *
                 codec::ColumnBytes(Format::kLayout, stream_.inner, stream_.dim) +
             channel / kChannels * kTileBytes<Format>;
    }
  }
  /// Sixteen bytes of a column. K has one tile with all channels as terms, V one for every sixteen
  /// channels, or pairs; of pairs every tile has sixteen terms, and signs.
  template <class Format>
  QUIRE_KERNEL uint32_t UnitAt(uint32_t i) const {
    if constexpr (Format::kLayout == Layout::kBytes) {
      if (kKeys) return i * stream_.block_tokens;
      const uint32_t runs = args_.channels / 16;
      return i / runs * stream_.dim + i % runs * 16;
    } else if constexpr (Format::kLayout == Layout::kPairTiles) {
      return i / 8 * kTileBytes<Format> + i % 8 * 16;
    } else {
      return i * 16;
    }
  }
  /// Of a tile with sixteen terms.
  template <class Format>
  static constexpr uint32_t kTileBytes =
      Format::kLayout == Layout::kPairTiles   ? uint32_t{codec::kPairTileBytes}
      : Format::kLayout == Layout::kByteTiles ? 256
                                              : 128;

  /// Where a term's numbers of a tile begin: a row of sixteen lanes.
  QUIRE_KERNEL uint16_t* RowOf(uint32_t column, uint32_t tile, uint32_t term) const {
    return kKeys ? args_.At(term, column * codec::kTileLanes)
                 : args_.At(column * codec::kTileLanes + term, tile * codec::kTileLanes);
  }

  /// Sixteen neighbours of a plane of bytes: tokens of a channel, or channels of a token.
  template <class Format, Codec kType>
  QUIRE_KERNEL void PutFloats(const Sixteen& codes, uint32_t column, uint32_t i) const {
    const uint32_t runs = args_.channels / 16;
    uint16_t* const to = kKeys ? RowOf(column, 0, i) : RowOf(column, i % runs, i / runs);
    QUIRE_DEVICE_UNROLL
    for (uint32_t half = 0; half < 2; ++half) {
      Sixteen numbers;
      QUIRE_DEVICE_UNROLL
      for (uint32_t w = 0; w < 4; ++w) {
        const uint32_t two = codes.word[half * 2 + w / 2] >> w % 2 * 16 & 0xffffu;
        const uint32_t pair = Fp8Pair<Format>(two);
        numbers.word[w] = kType == Codec::kF16
                              ? pair
                              : Pack16<kType>(WidenF16(static_cast<uint16_t>(pair)),
                                              WidenF16(static_cast<uint16_t>(pair >> 16)));
      }
      *reinterpret_cast<Sixteen*>(to + half * 8) = numbers;
    }
  }

  /// Two terms of eight lanes: a word has both of a lane, then of the next.
  template <Codec kType>
  QUIRE_KERNEL void PutBytes(const Sixteen& codes, uint32_t column, uint32_t i) const {
    const uint32_t in_tile = kKeys ? i : i % 16;
    QUIRE_DEVICE_UNROLL
    for (uint32_t t = 0; t < 2; ++t) {
      Sixteen numbers;
      QUIRE_DEVICE_UNROLL
      for (uint32_t w = 0; w < 4; ++w) {
        const uint32_t turned = codes.word[w] ^ 0x80808080u;
        numbers.word[w] = Pack16<kType>(TurnedByte(turned, t), TurnedByte(turned, t + 2));
      }
      *reinterpret_cast<Sixteen*>(RowOf(column, i / 16, in_tile / 2 * 2 + t) + in_tile % 2 * 8) =
          numbers;
    }
  }

  /// Four terms of four lanes and of those eight later.
  template <class Format, Codec kType>
  QUIRE_KERNEL void PutNibbles(const Sixteen& codes, uint32_t column, uint32_t i,
                               uint32_t kept) const {
    const uint32_t in_tile = kKeys ? i : i % 8;
    QUIRE_DEVICE_UNROLL
    for (uint32_t half = 0; half < 2; ++half) {
      Sixteen integers;
      QUIRE_DEVICE_UNROLL
      for (uint32_t w = 0; w < 4; ++w) {
        integers.word[w] = NibbleIntegers<Format>(codes.word[w] >> half * 4) & kept;
      }
      PutFour<kType>(integers, column, i / 8, in_tile / 2 * 4 + half * 2, in_tile % 2 * 4);
    }
  }

  /// The same of pairs: those of K have neighbouring terms as channels, first and second
  /// coordinates alternately; those of V a tile for each coordinate.
  template <Codec kType>
  QUIRE_KERNEL void PutPairs(const Sixteen& codes, const Sixteen& signs, uint32_t column,
                             uint32_t i, uint32_t kept) const {
    const uint32_t tile = i / 8;
    const uint32_t step = i % 8 / 2;
    const uint32_t lane = i % 2 * 4;
    QUIRE_DEVICE_UNROLL
    for (uint32_t half = 0; half < 2; ++half) {
      Sixteen first;
      Sixteen second;
      QUIRE_DEVICE_UNROLL
      for (uint32_t w = 0; w < 4; ++w) {
        const uint32_t negated = signs.word[w] >> (step * 2 + half);
        const uint32_t points = codes.word[w] >> half * 4;
        first.word[w] = NegateSome(LookUp<codec::kPairFirstIntegers>(points), negated) & kept;
        second.word[w] = NegateSome(LookUp<codec::kPairSecondIntegers>(points), negated) & kept;
      }
      const uint32_t term = step * 4 + half * 2;  // of the tile
      if (kKeys) {
        const uint32_t channel = (tile * codec::kPairTileTerms + term) * 2;
        if (channel >= args_.channels) return;
        PutFour<kType>(first, column, 0, channel, lane);
        PutFour<kType>(second, column, 0, channel + 2, lane);
      } else {
        PutFour<kType>(first, column, tile * 2, term, lane);
        if (tile * 32 + 16 < args_.channels) {
          PutFour<kType>(second, column, tile * 2 + 1, term, lane);
        }
      }
    }
  }

  /// Words are lanes from `lane` on; their bytes are of this one and of the one eight later: two of
  /// `term`, then of the next.
  template <Codec kType>
  QUIRE_KERNEL void PutFour(const Sixteen& integers, uint32_t column, uint32_t tile, uint32_t term,
                            uint32_t lane) const {
    QUIRE_DEVICE_UNROLL
    for (uint32_t byte = 0; byte < 4; ++byte) {
      Eight numbers;
      QUIRE_DEVICE_UNROLL
      for (uint32_t w = 0; w < 2; ++w) {
        numbers.word[w] = Pack16<kType>(TurnedByte(integers.word[w * 2] ^ 0x80808080u, byte),
                                        TurnedByte(integers.word[w * 2 + 1] ^ 0x80808080u, byte));
      }
      *reinterpret_cast<Eight*>(RowOf(column, tile, term + byte / 2) + byte % 2 * 8 + lane) =
          numbers;
    }
  }

  const Warp<Thread>& warp_;
  const StageArgs& args_;
  const StreamLayout& stream_;
};

}  // namespace quire::cuda

#endif  // QUIRE_CUDA_KERNELS_MMA_CODES_INL_H_
