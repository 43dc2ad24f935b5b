// The kernel that seals: a block of one stream from its open into its sealed form, with the bytes
// of codec/streams.h. First each of sixteen threads finds the scale and codes of one token, then
// all threads store the codes' bytes.
#ifndef QUIRE_CUDA_KERNELS_ENCODE_INL_H_
#define QUIRE_CUDA_KERNELS_ENCODE_INL_H_

#include <algorithm>
#include <cstdint>
#include <limits>

#include "codec/planes.h"
#include "codec/token_codec.h"
#include "cuda/kernels/blocks.h"
#include "cuda/kernels/formats-inl.h"
#include "cuda/kernels/rows-inl.h"
#include "cuda/kernels/simt.h"

namespace quire::cuda {

inline constexpr uint32_t kEncodeTokens = codec::kTileLanes;

/// Blocks of threads that one block of a stream takes.
constexpr uint32_t EncodeTiles(const StreamLayout& stream) {
  return stream.heads * (stream.block_tokens / kEncodeTokens);
}
constexpr uint32_t EncodeBlocks(const EncodeArgs& args) { return args.count * args.tiles_max; }
/// The codes of sixteen tokens.
constexpr uint32_t EncodeSharedBytes(const EncodeArgs& args) {
  uint32_t bytes = 0;
  for (uint32_t i = 0; i < args.stream_count; ++i) {
    bytes = std::max(bytes, kEncodeTokens * args.streams[i].open.dim);
  }
  return bytes;
}

template <class Thread>
class EncodeKernel {
 public:
  QUIRE_KERNEL EncodeKernel(Thread& self, const EncodeArgs& args)
      : self_(self),
        block_(args.blocks[self.block() / args.tiles_max]),
        open_(args.streams[block_.stream].open),
        sealed_(args.streams[block_.stream].sealed),
        codes_(reinterpret_cast<uint8_t*>(self.shared())),
        head_(self.block() % args.tiles_max / (open_.block_tokens / kEncodeTokens)),
        first_(self.block() % args.tiles_max % (open_.block_tokens / kEncodeTokens) *
               kEncodeTokens) {}

  QUIRE_KERNEL void Run() {
    if (head_ >= open_.heads) return;
    open_plane_ = block_.open_slot + open_.offset_bytes + head_ * open_.head_stride_bytes;
    plane_ = block_.sealed_slot + sealed_.offset_bytes + head_ * sealed_.head_stride_bytes;
    Any::With(sealed_.codec, [&](auto format) {
      using Format = decltype(format);
      if constexpr (!kEncodes<Format>) {
        Convert();
      } else {
        if (self_.id() < kEncodeTokens) EncodeToken<Format>();
        self_.Sync();
        StoreCodes<Format>();
      }
    });
  }

 private:
  QUIRE_KERNEL void Convert() {
    const uint32_t values = kEncodeTokens * open_.dim;
    for (uint32_t i = self_.id(); i < values; i += self_.count()) {
      const uint64_t at = ValueIndex(open_, first_ + i % kEncodeTokens, i / kEncodeTokens);
      if (open_.codec == sealed_.codec && open_.codec != Codec::kF32) {
        *reinterpret_cast<uint16_t*>(plane_ + at * 2) = Load<uint16_t>(open_plane_ + at * 2);
      } else {
        StoreValueAt(sealed_.codec, LoadValueAt(open_.codec, open_plane_, at), plane_, at);
      }
    }
  }

  QUIRE_KERNEL float ValueAt(uint32_t d) const {
    return LoadValueAt(open_.codec, open_plane_, ValueIndex(open_, first_ + self_.id(), d));
  }
  template <class Format>
  QUIRE_KERNEL void EncodeToken() {
    const uint32_t dim = open_.dim;
    const auto value_at = [&](uint32_t d) { return ValueAt(d); };
    const auto put = [&](uint32_t number, uint8_t code) {
      codes_[number * kEncodeTokens + self_.id()] = code;
    };
    codec::TokenScale token;
    if constexpr (Format::kLayout == codec::CodeLayout::kPairTiles) {
      token = codec::internal::EncodePairs(open_.inner, dim, value_at, put);
    } else {
      token = codec::internal::EncodeValues<Format>(dim, value_at, put);
    }
    std::byte* const at = block_.sealed_slot + codec::ScaleAt(sealed_, head_, first_ + self_.id());
    *reinterpret_cast<uint16_t*>(at) = token.scale;
    if (Format::kHasMids) {
      *reinterpret_cast<uint16_t*>(at + uint64_t{sealed_.block_tokens} * 2) = token.mid;
    }
  }

  // The bytes of these tokens, each by one thread (codec/planes.h).

  /// The code of a token; 0 where tiles go on behind the last.
  template <class Format>
  QUIRE_KERNEL uint32_t CodeAt(uint32_t token, uint32_t code) const {
    return code < codec::CodeCount(Format::kLayout, sealed_.inner, sealed_.dim)
               ? codes_[code * kEncodeTokens + token]
               : 0u;
  }

  template <class Format>
  QUIRE_KERNEL void StoreCodes() {
    const StreamLayout& stream = sealed_;
    if constexpr (Format::kLayout == codec::CodeLayout::kBytes) {
      for (uint32_t i = self_.id(); i < kEncodeTokens * stream.dim; i += self_.count()) {
        plane_[ValueIndex(stream, first_ + i % kEncodeTokens, i / kEncodeTokens)] =
            static_cast<std::byte>(codes_[i]);
      }
    } else {
      constexpr codec::CodeLayout kLayout = Format::kLayout;
      const uint64_t bytes = codec::ColumnBytes(kLayout, stream.inner, stream.dim);
      std::byte* const column = plane_ + first_ / kEncodeTokens * bytes;
      for (uint64_t i = self_.id(); i < bytes; i += self_.count()) {
        column[i] = static_cast<std::byte>(TileByte<Format>(static_cast<uint32_t>(i)));
      }
    }
  }

  /// The code of a tile's lane and term.
  template <class Format>
  QUIRE_KERNEL uint32_t InTile(uint32_t tile, uint32_t lane, uint32_t term) const {
    return sealed_.inner == InnerAxis::kToken
               ? CodeAt<Format>(lane, term)
               : CodeAt<Format>(term, tile * codec::kTileLanes + lane);
  }

  template <class Format>
  QUIRE_KERNEL uint32_t TileByte(uint32_t index) const {
    constexpr codec::CodeLayout kLayout = Format::kLayout;
    const bool by_token = sealed_.inner == InnerAxis::kToken;
    const auto tile_bytes = static_cast<uint32_t>(codec::TileBytes(kLayout, codec::kTileLanes));
    const uint32_t tile = by_token ? 0 : index / tile_bytes;
    const uint32_t at = by_token ? index : index % tile_bytes;
    if constexpr (kLayout == codec::CodeLayout::kByteTiles) {
      const uint32_t in_step = at % codec::kStepBytes;
      return InTile<Format>(tile, in_step / 2, at / codec::kStepBytes * 2 + in_step % 2);
    } else {
      const uint32_t in_step = at % codec::kStepBytes;
      const uint32_t lane = in_step / 4 + in_step % 2 * 8;
      const uint32_t odd = in_step / 2 % 2;
      if constexpr (kLayout == codec::CodeLayout::kNibbleTiles) {
        return Nibbles<Format>(tile, lane, at / codec::kStepBytes * 4 + odd);
      } else {
        const uint32_t begin = at / codec::kPairTileBytes * codec::kPairTileTerms;
        const uint32_t step = at % codec::kPairTileBytes / codec::kStepBytes;
        if (step < 4) return Nibbles<Format>(tile, lane, begin + step * 4 + odd);
        uint32_t signs = 0;
        for (uint32_t i = 0; i < 8; ++i) {
          const uint32_t code = InTile<Format>(tile, lane, begin + i * 2 + odd);
          signs |= (code >> 4 & 1u) << i;
        }
        return signs;
      }
    }
  }

  template <class Format>
  QUIRE_KERNEL uint32_t Nibbles(uint32_t tile, uint32_t lane, uint32_t term) const {
    return (InTile<Format>(tile, lane, term) & 15u) | (InTile<Format>(tile, lane, term + 2) & 15u)
                                                          << 4;
  }

  Thread& self_;
  const SealedBlock& block_;
  const StreamLayout& open_;
  const StreamLayout& sealed_;
  uint8_t* const codes_;  // [code][token]
  const uint32_t head_;
  const uint32_t first_;  // token
  const std::byte* open_plane_ = nullptr;
  std::byte* plane_ = nullptr;
};

}  // namespace quire::cuda

#endif  // QUIRE_CUDA_KERNELS_ENCODE_INL_H_
