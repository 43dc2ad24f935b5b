// Where the codes and scales of docs/codecs.md lie in a sealed slot.
#ifndef QUIRE_CODEC_PLANES_H_
#define QUIRE_CODEC_PLANES_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/bits.h"
#include "codec/formats.h"
#include "codec/scalar.h"
#include "quire/attention_types.h"

namespace quire::codec {

/// Attention sums products: of K over channels, a sum for every token; of V over tokens, a sum for
/// every channel. Integer codes lie as its loops read them, in tiles: a tile has sixteen
/// *lanes*, which have sums of their own, and *terms*, which are summed. Bytes of a tile come in
/// steps.
inline constexpr uint32_t kStepBytes = 32;
/// Codes of q25 stand for two channels each; their fifth bits follow every four steps.
inline constexpr uint32_t kPairTileTerms = 16;
inline constexpr uint32_t kPairTileBytes = 5 * kStepBytes;

/// The codes of one token of a head: of channels, or of pairs of them.
constexpr uint32_t CodeCount(CodeLayout layout, InnerAxis inner, uint32_t dim) {
  return layout == CodeLayout::kPairTiles ? PairCount(inner, dim) : dim;
}
constexpr uint32_t CodeCount(Codec codec, InnerAxis inner, uint32_t dim) {
  return CodeCount(InfoOf(codec).layout, inner, dim);
}

/// Bytes of a tile of integer codes with so many terms.
constexpr uint64_t TileBytes(CodeLayout layout, uint32_t terms) {
  if (layout == CodeLayout::kPairTiles) {
    return uint64_t{DivUp(terms, kPairTileTerms)} * kPairTileBytes;
  }
  return uint64_t{DivUp(terms, layout == CodeLayout::kByteTiles ? 2u : 4u)} * kStepBytes;
}
constexpr uint64_t TileBytes(Codec codec, uint32_t terms) {
  return TileBytes(InfoOf(codec).layout, terms);
}

/// Bytes of the integer codes of sixteen tokens of a head: of K one tile, of V a tile for
/// every sixteen channels, or pairs.
constexpr uint64_t ColumnBytes(CodeLayout layout, InnerAxis inner, uint32_t dim) {
  const uint32_t codes = CodeCount(layout, inner, dim);
  if (inner == InnerAxis::kToken) return TileBytes(layout, codes);
  return uint64_t{DivUp(codes, kTileLanes)} * TileBytes(layout, kTileLanes);
}
constexpr uint64_t ColumnBytes(Codec codec, InnerAxis inner, uint32_t dim) {
  return ColumnBytes(InfoOf(codec).layout, inner, dim);
}

/// Bytes of all codes of one head of a block.
constexpr uint64_t PlaneBytes(Codec codec, InnerAxis inner, uint32_t dim, uint32_t block_tokens) {
  if (HasIntegerCodes(codec)) return block_tokens / kTileLanes * ColumnBytes(codec, inner, dim);
  return uint64_t{dim} * block_tokens * (IsIdentity(codec) ? ValueBytes(codec) : 1);
}

/// Bytes of the scales, and mids, of one head of a block.
constexpr uint64_t ScaleBytes(Codec codec, uint32_t block_tokens) {
  if (IsIdentity(codec)) return 0;
  return uint64_t{block_tokens} * 2 * (HasMids(codec) ? 2 : 1);
}

/// Where a code lies in its plane.
struct CodePosition {
  uint64_t byte = 0;
  bool high = false;       // of half a byte: the upper one
  uint64_t sign_byte = 0;  // of a pair: the bit that negates
  uint32_t sign_bit = 0;
};

/// Two terms are neighbours, as one instruction multiplies and adds them. Of half a byte, lanes i
/// and i + 8 are too: as the bytes of 16 bits they are told apart by one instruction each.
constexpr CodePosition PositionInTile(CodeLayout layout, uint32_t lane, uint32_t term) {
  if (layout == CodeLayout::kByteTiles) {
    return {uint64_t{term} / 2 * kStepBytes + uint64_t{lane} * 2 + term % 2};
  }
  const uint32_t in_step = lane % 8 * 4 + term % 2 * 2 + lane / 8;
  const bool high = term % 4 >= 2;
  if (layout == CodeLayout::kNibbleTiles) return {uint64_t{term} / 4 * kStepBytes + in_step, high};
  const uint64_t begin = uint64_t{term} / kPairTileTerms * kPairTileBytes;
  const uint32_t step = term % kPairTileTerms / 4;
  return {.byte = begin + uint64_t{step} * kStepBytes + in_step,
          .high = high,
          .sign_byte = begin + uint64_t{4} * kStepBytes + in_step,
          .sign_bit = step * 2 + (high ? 1 : 0)};
}

/// The code of a channel, or of a pair. `layout` is that of the stream's codec.
constexpr CodePosition PositionOf(CodeLayout layout, const StreamLayout& stream, uint32_t token,
                                  uint32_t channel) {
  const bool by_token = stream.inner == InnerAxis::kToken;
  if (layout < CodeLayout::kByteTiles) {
    return {by_token ? uint64_t{channel} * stream.block_tokens + token
                     : uint64_t{token} * stream.dim + channel};
  }
  const uint32_t in_column = token % kTileLanes;
  CodePosition position = by_token ? PositionInTile(layout, in_column, channel)
                                   : PositionInTile(layout, channel % kTileLanes, in_column);
  uint64_t tile = token / kTileLanes * ColumnBytes(layout, stream.inner, stream.dim);
  if (!by_token) tile += channel / kTileLanes * TileBytes(layout, kTileLanes);
  position.byte += tile;
  position.sign_byte += tile;
  return position;
}
constexpr CodePosition PositionOf(const StreamLayout& stream, uint32_t token, uint32_t channel) {
  return PositionOf(InfoOf(stream.codec).layout, stream, token, channel);
}

/// The f16 scale of a token, from the slot's first byte on; its mid is block_tokens f16 later.
constexpr uint64_t ScaleAt(const StreamLayout& stream, uint32_t head, uint32_t token) {
  return stream.scale_offset_bytes + head * stream.scale_head_stride_bytes + uint64_t{token} * 2;
}

/// Code of one value in a head's plane; of half a byte in the low half. Of a pair: its five bits,
/// and kSecondOfPair for the second channel.
constexpr uint8_t LoadCode(CodeLayout layout, const StreamLayout& stream, const std::byte* plane,
                           uint32_t token, uint32_t dim) {
  const bool pairs = layout == CodeLayout::kPairTiles;
  const PairMember member = pairs ? PairOf(stream.inner, dim) : PairMember{dim};
  const CodePosition at = PositionOf(layout, stream, token, member.pair);
  const auto byte = static_cast<uint8_t>(plane[at.byte]);
  if (layout == CodeLayout::kBytes || layout == CodeLayout::kByteTiles) return byte;
  const auto code = static_cast<uint8_t>(at.high ? byte >> 4 : byte & 15u);
  if (!pairs) return code;
  const uint32_t sign = static_cast<uint8_t>(plane[at.sign_byte]) >> at.sign_bit & 1u;
  return static_cast<uint8_t>(code | sign * kPairNegated | (member.second ? kSecondOfPair : 0u));
}
inline uint8_t LoadCode(const StreamLayout& stream, const std::byte* plane, uint32_t token,
                        uint32_t dim) {
  return LoadCode(InfoOf(stream.codec).layout, stream, plane, token, dim);
}

}  // namespace quire::codec

#endif  // QUIRE_CODEC_PLANES_H_
