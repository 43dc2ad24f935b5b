#include "codec/streams.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/prng.h"
#include "codec/test_util.h"

namespace quire::codec {
namespace {

// Any bytes are codes, those too that encoding never writes.
void Check(const StreamLayout& stream, bool at_front, Prng& prng) {
  const GuardedBytes slot(EndOf(stream), at_front);
  for (uint64_t i = 0; i < EndOf(stream); ++i) {
    slot.data()[i] = static_cast<std::byte>(prng.Next64());
  }
  for (int range = 0; range < 3; ++range) {
    const auto token = static_cast<uint32_t>(prng.NextBelow(stream.block_tokens));
    const auto tokens = static_cast<uint32_t>(prng.NextBelow(stream.block_tokens - token + 1));
    const GuardedBytes out(uint64_t{tokens} * stream.dim * sizeof(float), /*at_front=*/false);
    auto* const got = reinterpret_cast<float*>(out.data());
    for (uint32_t head = 0; head < stream.heads; ++head) {
      DecodeRows(stream, slot.data(), head, token, tokens, got);
      for (uint32_t t = 0; t < tokens; ++t) {
        for (uint32_t d = 0; d < stream.dim; ++d) {
          const float want = SealedValue(stream, slot.data(), head, token + t, d);
          const float value = got[uint64_t{t} * stream.dim + d];
          if (std::isnan(want)) {
            ASSERT_TRUE(std::isnan(value)) << "token " << token + t << " dim " << d;
          } else {
            ASSERT_EQ(value, want) << "token " << token + t << " dim " << d;
          }
        }
      }
    }
  }
}

TEST(Decode, AnyBytesEqualTheLoops) {
  ForEachTarget([] {
    Prng prng(7);
    for (const Codec codec : kCodecs) {
      if (IsIdentity(codec)) continue;
      for (const InnerAxis inner : {InnerAxis::kToken, InnerAxis::kDim}) {
        for (const uint32_t dim : {1u, 2u, 3u, 15u, 16u, 17u, 31u, 33u, 48u, 64u, 100u, 127u, 128u,
                                   129u, 160u, 255u, 257u, 576u}) {
          const StreamLayout stream =
              OnlyStream(codec, inner, 2, dim, 16u << prng.NextBelow(3), prng.NextBelow(5));
          ASSERT_NO_FATAL_FAILURE(Check(stream, prng.NextChance(2), prng))
              << CodecName(codec) << " dim " << dim;
        }
      }
    }
  });
}

}  // namespace
}  // namespace quire::codec
