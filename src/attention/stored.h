// Stored values one at a time, in every codec (docs/codecs.md): what the judge and the reference
// read, and the sizes that kernels step by.
#ifndef QUIRE_ATTENTION_STORED_H_
#define QUIRE_ATTENTION_STORED_H_

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "base/float_bits.h"
#include "codec/scalar.h"
#include "quire/attention.h"

namespace quire::attention {

/// Channels whose codes share the bytes of one group of a 4-bit row of V.
inline constexpr uint32_t kNibbleGroup = 32;

/// Values of the codes 0..15 of the 4-bit codecs.
inline constexpr float kInt4Table[16] = {0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1};
inline constexpr float kNf4Table[16] = {-1.0f,
                                        -0.6961928009986877f,
                                        -0.5250730514526367f,
                                        -0.39491748809814453f,
                                        -0.28444138169288635f,
                                        -0.18477343022823334f,
                                        -0.09105003625154495f,
                                        0.0f,
                                        0.07958029955625534f,
                                        0.16093020141124725f,
                                        0.24611230194568634f,
                                        0.33791524171829224f,
                                        0.44070982933044434f,
                                        0.5626170039176941f,
                                        0.7229568362236023f,
                                        1.0f};
inline constexpr float kFp4Table[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                        -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

constexpr bool HasMids(Codec codec) { return codec == Codec::kInt8 || codec == Codec::kInt4; }

/// Bits of one code.
constexpr uint32_t CodeBits(Codec codec) {
  switch (codec) {
    case Codec::kF32: return 32;
    case Codec::kF16:
    case Codec::kBf16: return 16;
    case Codec::kFp8E4m3:
    case Codec::kFp8E5m2:
    case Codec::kInt8: return 8;
    default: return 4;
  }
}

/// Bytes of `values` neighbouring codes.
constexpr uint64_t CodeBytes(Codec codec, uint64_t values) {
  return (values * CodeBits(codec) + 7) / 8;
}

/// Bytes of one head's codes of a block.
constexpr uint64_t PlaneBytes(const StreamLayout& stream) {
  return stream.inner == InnerAxis::kToken
             ? stream.dim * CodeBytes(stream.codec, stream.block_tokens)
             : stream.block_tokens * CodeBytes(stream.codec, stream.dim);
}

/// Bytes of one head's scales and mids of a block.
constexpr uint64_t ScaleBytes(const StreamLayout& stream) {
  if (IsIdentity(stream.codec)) return 0;
  return uint64_t{stream.block_tokens} * 2 * (HasMids(stream.codec) ? 2 : 1);
}

/// Where the 4-bit code (token, d) lies in its plane: a byte, and its low or high half.
struct NibbleAddress {
  uint64_t byte = 0;
  bool high = false;
};

constexpr NibbleAddress NibbleAt(const StreamLayout& stream, uint64_t token, uint32_t d) {
  if (stream.inner == InnerAxis::kToken) {
    const uint64_t row = uint64_t{d} * stream.block_tokens / 2;
    return {row + token / 16 * 8 + token % 8, token % 16 >= 8};
  }
  const uint32_t first = d / kNibbleGroup * kNibbleGroup;
  const uint32_t left = stream.dim - first;
  const uint32_t half = ((left < kNibbleGroup ? left : kNibbleGroup) + 1) / 2;
  const uint32_t in_group = d - first;
  return {token * CodeBytes(stream.codec, stream.dim) + first / 2 + in_group % half,
          in_group >= half};
}

/// The value of an fp8 code that is no NaN and no Inf: encoders write none.
inline float Fp8Value(Codec codec, uint8_t code) {
  const int mantissa_bits = codec == Codec::kFp8E4m3 ? 3 : 2;
  const int bias = codec == Codec::kFp8E4m3 ? 7 : 15;
  const int mantissa = code & ((1 << mantissa_bits) - 1);
  const int exponent = (code & 0x7f) >> mantissa_bits;
  const float magnitude = exponent == 0
                              ? std::ldexp(static_cast<float>(mantissa), 1 - bias - mantissa_bits)
                              : std::ldexp(static_cast<float>(mantissa + (1 << mantissa_bits)),
                                           exponent - bias - mantissa_bits);
  return (code & 0x80) != 0 ? -magnitude : magnitude;
}

/// Code (token, d) of KV head `head` in the block at `slot`, widened exactly; identity codecs: the
/// value.
inline float StoredCode(const StreamLayout& stream, const std::byte* slot, uint32_t head,
                        uint64_t token, uint32_t d) {
  const std::byte* plane = slot + stream.offset_bytes + head * stream.head_stride_bytes;
  const uint64_t index = stream.inner == InnerAxis::kToken
                             ? uint64_t{d} * stream.block_tokens + token
                             : token * stream.dim + d;
  switch (stream.codec) {
    case Codec::kF32:
    case Codec::kF16:
    case Codec::kBf16: return codec::LoadValue(stream.codec, plane, index);
    case Codec::kFp8E4m3:
    case Codec::kFp8E5m2: return Fp8Value(stream.codec, static_cast<uint8_t>(plane[index]));
    case Codec::kInt8: return static_cast<float>(static_cast<int8_t>(plane[index]));
    default: break;
  }
  const NibbleAddress at = NibbleAt(stream, token, d);
  const auto byte = static_cast<uint8_t>(plane[at.byte]);
  const uint32_t code = at.high ? byte >> 4 : byte & 15;
  if (stream.codec == Codec::kInt4) return kInt4Table[code];
  return stream.codec == Codec::kNf4 ? kNf4Table[code] : kFp4Table[code];
}

/// Value of a token = mid + scale * code.
struct TokenScale {
  float scale = 1.0f;
  float mid = 0.0f;
};

/// Needs a codec that encodes.
inline TokenScale StoredScale(const StreamLayout& stream, const std::byte* slot, uint32_t head,
                              uint64_t token) {
  const std::byte* scales =
      slot + stream.scale_offset_bytes + head * stream.scale_head_stride_bytes;
  TokenScale found{.scale = codec::LoadValue(Codec::kF16, scales, token)};
  if (HasMids(stream.codec)) {
    found.mid = codec::LoadValue(Codec::kF16, scales, stream.block_tokens + token);
  }
  return found;
}

}  // namespace quire::attention

#endif  // QUIRE_ATTENTION_STORED_H_
