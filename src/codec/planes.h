// Where the codes and scales of docs/codecs.md lie in a sealed slot.
#ifndef QUIRE_CODEC_PLANES_H_
#define QUIRE_CODEC_PLANES_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "codec/formats.h"
#include "codec/scalar.h"
#include "quire/attention.h"

namespace quire::codec {

/// Tokens of K, and channels of V, whose codes share 16 bytes when a code is half a byte.
inline constexpr uint32_t kNibbleTokens = 16;
inline constexpr uint32_t kNibbleChannels = 16;
/// Channels of V of which the lower half pairs with the upper one in q25.
inline constexpr uint32_t kPairChannels = 32;

constexpr bool IsByteCodec(Codec codec) {
  return codec == Codec::kFp8E4m3 || codec == Codec::kFp8E5m2 || codec == Codec::kInt8;
}

constexpr bool IsNibbleCodec(Codec codec) {
  return codec == Codec::kInt4 || codec == Codec::kNf4 || codec == Codec::kFp4;
}

/// Pairs of channels that share a code of q25.
constexpr uint32_t PairCount(uint32_t dim) { return (dim + 1) / 2; }

/// The channels of a pair; `second` is dim where the last pair has but one.
struct ChannelPair {
  uint32_t first = 0;
  uint32_t second = 0;
};

constexpr ChannelPair PairAt(InnerAxis inner, uint32_t dim, uint32_t pair) {
  if (inner == InnerAxis::kToken) return {2 * pair, 2 * pair + 1};
  constexpr uint32_t kPairs = kPairChannels / 2;
  const uint32_t begin = pair / kPairs * kPairChannels;
  const uint32_t channels = std::min(kPairChannels, dim - begin);
  const uint32_t half = (channels + 1) / 2;
  const uint32_t in_group = pair % kPairs;
  return {begin + in_group, in_group + half < channels ? begin + in_group + half : dim};
}

/// The pair of a channel, and whether it is the second of it.
struct PairMember {
  uint32_t pair = 0;
  bool second = false;
};

constexpr PairMember PairOf(InnerAxis inner, uint32_t dim, uint32_t channel) {
  if (inner == InnerAxis::kToken) return {channel / 2, channel % 2 != 0};
  const uint32_t begin = channel / kPairChannels * kPairChannels;
  const uint32_t half = (std::min(kPairChannels, dim - begin) + 1) / 2;
  const uint32_t in_group = channel - begin;
  return {begin / 2 + in_group % half, in_group >= half};
}

/// Bytes of one token's bits that negate its pairs, in a plane of V.
constexpr uint64_t PairSignBytes(uint32_t dim) { return (uint64_t{PairCount(dim)} + 7) / 8; }

/// Bytes of the low four bits of all pairs of a head; after them come the signs.
constexpr uint64_t PairPlaneBytes(InnerAxis inner, uint32_t dim, uint32_t block_tokens) {
  if (inner == InnerAxis::kDim) return uint64_t{block_tokens} / 2 * PairCount(dim);
  return (uint64_t{PairCount(dim)} + 1) / 2 * block_tokens;
}

/// Bytes of the codes of `tokens` tokens, an even number, in a plane of V; of q25 without signs.
constexpr uint64_t RowBytes(Codec codec, uint32_t dim, uint32_t tokens) {
  if (IsIdentity(codec)) return uint64_t{tokens} * dim * ValueBytes(codec);
  if (codec == Codec::kQ25) return PairPlaneBytes(InnerAxis::kDim, dim, tokens);
  return tokens * (IsByteCodec(codec) ? uint64_t{dim} : (uint64_t{dim} + 1) / 2);
}

/// Bytes of all codes of one head of a block.
constexpr uint64_t PlaneBytes(Codec codec, InnerAxis inner, uint32_t dim, uint32_t block_tokens) {
  if (inner == InnerAxis::kDim) {
    const uint64_t signs = codec == Codec::kQ25 ? block_tokens * PairSignBytes(dim) : 0;
    return RowBytes(codec, dim, block_tokens) + signs;
  }
  if (IsIdentity(codec)) return uint64_t{dim} * block_tokens * ValueBytes(codec);
  const uint64_t pairs = uint64_t{PairCount(dim)} * block_tokens;
  switch (codec) {
    case Codec::kQ25: return PairPlaneBytes(inner, dim, block_tokens) + pairs / 8;
    case Codec::kInt8: return pairs * 2;
    case Codec::kInt4:
    case Codec::kNf4:
    case Codec::kFp4: return pairs;
    default: return uint64_t{dim} * block_tokens;
  }
}

/// Bytes of the scales, and mids, of one head of a block.
constexpr uint64_t ScaleBytes(Codec codec, uint32_t block_tokens) {
  if (IsIdentity(codec)) return 0;
  return uint64_t{block_tokens} * 2 * (HasMids(codec) ? 2 : 1);
}

/// A code of half a byte: its byte in the plane, and which half.
struct NibblePlace {
  uint64_t byte = 0;
  bool high = false;
};

constexpr NibblePlace NibbleAt(const StreamLayout& stream, uint32_t token, uint32_t dim) {
  if (stream.inner == InnerAxis::kToken) {
    constexpr uint32_t kHalf = kNibbleTokens / 2;
    const uint64_t sixteen = uint64_t{dim / 2} * stream.block_tokens + token / kNibbleTokens * 16;
    return {sixteen + token % kHalf * 2 + dim % 2, token % kNibbleTokens >= kHalf};
  }
  const uint32_t first = dim / kNibbleChannels * kNibbleChannels;
  const uint32_t half = (std::min(kNibbleChannels, stream.dim - first) + 1) / 2;
  const uint32_t in_group = dim - first;
  return {
      RowBytes(stream.codec, stream.dim, token / 2 * 2) + first + in_group % half * 2 + token % 2,
      in_group >= half};
}

/// Where the low four bits of a pair's code lie, and the bit that negates it.
struct PairPlace {
  NibblePlace low{};
  uint64_t sign_byte = 0;
  uint32_t sign_bit = 0;
};

constexpr PairPlace PairPlaceAt(const StreamLayout& stream, uint32_t token, uint32_t pair) {
  const uint64_t signs = PairPlaneBytes(stream.inner, stream.dim, stream.block_tokens);
  if (stream.inner == InnerAxis::kToken) {
    return {.low = {uint64_t{pair / 2} * stream.block_tokens + token, pair % 2 != 0},
            .sign_byte = signs + uint64_t{pair} * stream.block_tokens / 8 + token / 8,
            .sign_bit = token % 8};
  }
  const uint64_t pairs = PairCount(stream.dim);
  return {.low = {token / 2 * pairs + pair, token % 2 != 0},
          .sign_byte = signs + token * PairSignBytes(stream.dim) + pair / 8,
          .sign_bit = pair % 8};
}

/// Byte of an 8-bit code in its plane. Those of int8 lie two by two, as their products are summed:
/// neighbouring channels of K, neighbouring tokens of V.
constexpr uint64_t ByteAt(const StreamLayout& stream, uint32_t token, uint32_t dim) {
  const bool by_token = stream.inner == InnerAxis::kToken;
  if (HasWholeCodes(stream.codec)) {
    return by_token ? (uint64_t{dim / 2} * stream.block_tokens + token) * 2 + dim % 2
                    : (uint64_t{token / 2} * stream.dim + dim) * 2 + token % 2;
  }
  return by_token ? uint64_t{dim} * stream.block_tokens + token
                  : uint64_t{token} * stream.dim + dim;
}

/// The f16 scale of a token, in its place in the slot; its mid is block_tokens f16 later.
inline uint64_t ScaleAt(const StreamLayout& stream, uint32_t head, uint32_t token) {
  return stream.scale_offset_bytes + head * stream.scale_head_stride_bytes + uint64_t{token} * 2;
}

/// The five bits of a pair's code.
inline uint8_t LoadPairCode(const StreamLayout& stream, const std::byte* plane, uint32_t token,
                            uint32_t pair) {
  const PairPlace at = PairPlaceAt(stream, token, pair);
  const auto byte = static_cast<uint8_t>(plane[at.low.byte]);
  const uint32_t sign = static_cast<uint8_t>(plane[at.sign_byte]) >> at.sign_bit & 1u;
  return static_cast<uint8_t>((at.low.high ? byte >> 4 : byte & 15u) | sign * kPairNegated);
}

/// Code of one value in a head's plane; of half a byte in the low half. Of a pair: its code, and
/// kSecondOfPair for the second channel.
inline uint8_t LoadCode(const StreamLayout& stream, const std::byte* plane, uint32_t token,
                        uint32_t dim) {
  if (IsByteCodec(stream.codec)) return static_cast<uint8_t>(plane[ByteAt(stream, token, dim)]);
  if (stream.codec == Codec::kQ25) {
    const PairMember member = PairOf(stream.inner, stream.dim, dim);
    const uint8_t code = LoadPairCode(stream, plane, token, member.pair);
    return static_cast<uint8_t>(code | (member.second ? kSecondOfPair : 0u));
  }
  const NibblePlace place = NibbleAt(stream, token, dim);
  const auto byte = static_cast<uint8_t>(plane[place.byte]);
  return place.high ? byte >> 4 : byte & 15u;
}

}  // namespace quire::codec

#endif  // QUIRE_CODEC_PLANES_H_
