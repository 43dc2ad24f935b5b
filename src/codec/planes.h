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

/// Tokens of a column of K and channels of a group of V that share bytes when a code is half a byte.
inline constexpr uint32_t kNibbleTokens = 16;
inline constexpr uint32_t kNibbleChannels = 32;

constexpr bool IsByteCodec(Codec codec) {
  return codec == Codec::kFp8E4m3 || codec == Codec::kFp8E5m2 || codec == Codec::kInt8;
}

constexpr bool IsNibbleCodec(Codec codec) {
  return codec == Codec::kInt4 || codec == Codec::kNf4 || codec == Codec::kFp4;
}

/// Bytes of one token's codes in a plane of V.
constexpr uint64_t RowBytes(Codec codec, uint32_t dim) {
  if (IsIdentity(codec)) return uint64_t{dim} * ValueBytes(codec);
  return IsByteCodec(codec) ? uint64_t{dim} : (uint64_t{dim} + 1) / 2;
}

/// Bytes of all codes of one head of a block.
constexpr uint64_t PlaneBytes(Codec codec, InnerAxis inner, uint32_t dim, uint32_t block_tokens) {
  if (inner == InnerAxis::kDim) return block_tokens * RowBytes(codec, dim);
  if (IsIdentity(codec)) return uint64_t{dim} * block_tokens * ValueBytes(codec);
  return uint64_t{dim} * block_tokens / (IsByteCodec(codec) ? 1 : 2);
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
    const uint64_t column = uint64_t{dim} * stream.block_tokens / 2;
    return {column + token / kNibbleTokens * kHalf + token % kHalf, token % kNibbleTokens >= kHalf};
  }
  const uint32_t first = dim / kNibbleChannels * kNibbleChannels;
  const uint32_t half = (std::min(kNibbleChannels, stream.dim - first) + 1) / 2;
  const uint32_t in_group = dim - first;
  return {token * RowBytes(stream.codec, stream.dim) + first / 2 + in_group % half,
          in_group >= half};
}

/// Byte of an 8-bit code in its plane.
constexpr uint64_t ByteAt(const StreamLayout& stream, uint32_t token, uint32_t dim) {
  return stream.inner == InnerAxis::kToken ? uint64_t{dim} * stream.block_tokens + token
                                           : uint64_t{token} * stream.dim + dim;
}

/// The f16 scale of a token, in its place in the slot; its mid is block_tokens f16 later.
inline uint64_t ScaleAt(const StreamLayout& stream, uint32_t head, uint32_t token) {
  return stream.scale_offset_bytes + head * stream.scale_head_stride_bytes + uint64_t{token} * 2;
}

/// Code of one value in a head's plane; of half a byte in the low half.
inline uint8_t LoadCode(const StreamLayout& stream, const std::byte* plane, uint32_t token,
                        uint32_t dim) {
  if (IsByteCodec(stream.codec)) return static_cast<uint8_t>(plane[ByteAt(stream, token, dim)]);
  const NibblePlace place = NibbleAt(stream, token, dim);
  const auto byte = static_cast<uint8_t>(plane[place.byte]);
  return place.high ? byte >> 4 : byte & 15u;
}

}  // namespace quire::codec

#endif  // QUIRE_CODEC_PLANES_H_
