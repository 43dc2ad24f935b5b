#include "codec/streams.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "codec/planes.h"
#include "codec/scalar.h"
#include "codec/token_codec.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "codec/encode.cc"
#include "hwy/foreach_target.h"
// foreach_target.h first
#include "codec/encode_tile-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace quire::codec::HWY_NAMESPACE {

template <class Format>
HWY_ATTR void EncodeValues(Tile& tile, const StreamLayout& sealed, uint32_t first, std::byte* plane,
                           TokenScale* tokens) {
  FindScales<Format>(tile, tokens);
  alignas(64) uint8_t codes[kTileDims * kTileTokens];  // [dim][token]
  for (uint32_t d = 0; d < sealed.dim; d += kTileDims) {
    const uint32_t dims = std::min(kTileDims, sealed.dim - d);
    FindCodes<Format>(tile.Values(d), dims, tokens, codes);
    if (sealed.inner == InnerAxis::kToken) {
      StoreColumns(sealed, codes, first, d, dims, plane);
    } else {
      StoreRows(sealed, codes, first, d, dims, plane);
    }
  }
}

HWY_ATTR void EncodePairs(Tile& tile, const StreamLayout& sealed, uint32_t first, std::byte* plane,
                          TokenScale* tokens) {
  PairCoder coder(sealed, tile);
  alignas(64) uint8_t pairs[kTileDims / 2 * kTileTokens];  // [pair][token]
  for (uint32_t d = 0; d < sealed.dim; d += kTileDims) {
    const uint32_t dims = std::min(kTileDims, sealed.dim - d);
    coder.Codes(d, dims, pairs);
    const uint32_t count = PairCount(sealed.inner, dims);
    if (sealed.inner == InnerAxis::kToken) {
      StoreColumns(sealed, pairs, first, d / 2, count, plane);
    } else {
      StoreRows(sealed, pairs, first, d / 2, count, plane);
    }
  }
  coder.Scales(tokens);
}

// One head, sixteen tokens at a time. The values of the open form are read again for every pass,
// unless they fit into the tile at once: nothing is allocated.
HWY_ATTR void EncodeHead(const StreamLayout& open, const std::byte* open_plane,
                         const StreamLayout& sealed, std::byte* slot, uint32_t head) {
  std::byte* plane = slot + sealed.offset_bytes + head * sealed.head_stride_bytes;
  Tile tile(open, open_plane);
  for (uint32_t first = 0; first < open.block_tokens; first += kTileTokens) {
    tile.Begin(first);
    TokenScale tokens[kTileTokens];
    WithFormat(sealed.codec, [&](auto format) HWY_ATTR {
      if constexpr (format.kLayout == CodeLayout::kPairTiles) {
        EncodePairs(tile, sealed, first, plane, tokens);
      } else {
        EncodeValues<decltype(format)>(tile, sealed, first, plane, tokens);
      }
    });
    for (uint32_t t = 0; t < kTileTokens; ++t) {
      std::byte* scale = slot + ScaleAt(sealed, head, first + t);
      std::memcpy(scale, &tokens[t].scale, 2);
      if (HasMids(sealed.codec)) {
        std::memcpy(scale + uint64_t{sealed.block_tokens} * 2, &tokens[t].mid, 2);
      }
    }
  }
}

void EncodeBlockOfTarget(const StreamLayout& open, const std::byte* open_slot,
                         const StreamLayout& sealed, std::byte* sealed_slot) {
  for (uint32_t head = 0; head < open.heads; ++head) {
    const std::byte* plane = open_slot + open.offset_bytes + head * open.head_stride_bytes;
    if (IsIdentity(sealed.codec)) {
      Convert(open.codec, plane, sealed.codec,
              sealed_slot + sealed.offset_bytes + head * sealed.head_stride_bytes,
              uint64_t{open.dim} * open.block_tokens);
    } else {
      EncodeHead(open, plane, sealed, sealed_slot, head);
    }
  }
}

}  // namespace quire::codec::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace quire::codec {

HWY_EXPORT(EncodeBlockOfTarget);

void EncodeBlock(const StreamLayout& open, const std::byte* open_slot, const StreamLayout& sealed,
                 std::byte* sealed_slot) {
  QUIRE_CHECK(open.heads == sealed.heads && open.dim == sealed.dim && open.inner == sealed.inner &&
              open.block_tokens == sealed.block_tokens && IsIdentity(open.codec));
  HWY_DYNAMIC_DISPATCH(EncodeBlockOfTarget)(open, open_slot, sealed, sealed_slot);
}

}  // namespace quire::codec
#endif  // HWY_ONCE
