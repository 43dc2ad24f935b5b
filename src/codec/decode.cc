#include "codec/streams.h"

#include <algorithm>

#include "codec/planes.h"
#include "codec/scalar.h"
#include "codec/token_codec.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "codec/decode.cc"
#include "hwy/foreach_target.h"
// foreach_target.h first
#include "codec/decode_tile-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace quire::codec::HWY_NAMESPACE {

struct Scaling {
  Scaling(const StreamLayout& sealed, const std::byte* slot, uint32_t head, uint32_t token) {
    const std::byte* at = slot + ScaleAt(sealed, head, token);
    scale = LoadValue(Codec::kF16, at, 0);
    if (HasMids(sealed.codec)) mid = LoadValue(Codec::kF16, at, sealed.block_tokens);
  }

  float scale = 0.0f;
  float mid = 0.0f;
};

void DecodeRowsOfTarget(const StreamLayout& sealed, const std::byte* slot, uint32_t head,
                        uint32_t token, uint32_t tokens, float* out) {
  const std::byte* plane = slot + sealed.offset_bytes + head * sealed.head_stride_bytes;
  const uint32_t end = token + tokens;
#if HWY_TARGET == HWY_SCALAR
  for (uint32_t t = token; t < end; ++t) {
    const Scaling scaling(sealed, slot, head, t);
    for (uint32_t d = 0; d < sealed.dim; ++d) {
      const float product = scaling.scale * CodeValue(sealed.codec, LoadCode(sealed, plane, t, d));
      *out++ = scaling.mid + product;
    }
  }
#else
  alignas(64) CodeColumns columns;
  alignas(64) CodeRows rows;
  for (uint32_t first = RoundDown(token, kDecodeTokens); first < end; first += kDecodeTokens) {
    const uint32_t rows_begin = std::max(token, first);
    const uint32_t rows_end = std::min(end, first + kDecodeTokens);
    for (uint32_t begin = 0; begin < sealed.dim; begin += kDecodeDims) {
      const uint32_t dims = std::min(kDecodeDims, sealed.dim - begin);
      Unpack(sealed, plane, first, begin, dims, columns, rows);
      WithFormat(sealed.codec, [&](auto format) HWY_ATTR {
        for (uint32_t t = rows_begin; t < rows_end; ++t) {
          const Scaling scaling(sealed, slot, head, t);
          float* const to = out + uint64_t{t - token} * sealed.dim + begin;
          ScaleRow<decltype(format)>(rows[t - first], dims, scaling.scale, scaling.mid, to);
        }
      });
    }
  }
#endif
}

}  // namespace quire::codec::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace quire::codec {

HWY_EXPORT(DecodeRowsOfTarget);

void DecodeRows(const StreamLayout& sealed, const std::byte* slot, uint32_t head, uint32_t token,
                uint32_t tokens, float* out) {
  HWY_DYNAMIC_DISPATCH(DecodeRowsOfTarget)(sealed, slot, head, token, tokens, out);
}

}  // namespace quire::codec
#endif  // HWY_ONCE
