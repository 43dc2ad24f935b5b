// Where codes and scales lie, by the words of docs/codecs.md: stores keep these bytes.
#include "codec/planes.h"

#include <gtest/gtest.h>

#include <set>
#include <tuple>

#include "codec/test_util.h"

namespace quire::codec {
namespace {

struct Size {
  Codec codec;
  InnerAxis inner;
  uint32_t dim;
  uint32_t block_tokens;
  uint64_t plane_bytes;
  uint64_t scale_bytes;
};

TEST(Planes, AHeadTakesSoManyBytes) {
  constexpr InnerAxis kK = InnerAxis::kToken;
  constexpr InnerAxis kV = InnerAxis::kDim;
  for (const Size& size : {
           Size{Codec::kF32, kK, 5, 16, 5 * 16 * 4, 0},
           Size{Codec::kF16, kV, 5, 32, 5 * 32 * 2, 0},
           Size{Codec::kFp8E4m3, kK, 5, 16, 5 * 16, 16 * 2},
           Size{Codec::kFp8E5m2, kV, 5, 32, 5 * 32, 32 * 2},
           Size{Codec::kInt8, kK, 4, 16, 2 * 32, 16 * 4},  // steps of two channels
           Size{Codec::kInt8, kK, 5, 32, 2 * 3 * 32, 32 * 4},
           Size{Codec::kInt8, kV, 5, 16, 8 * 32, 16 * 4},  // a tile for sixteen channels
           Size{Codec::kInt8, kV, 17, 32, 2 * 2 * 8 * 32, 32 * 4},
           Size{Codec::kInt4, kK, 4, 16, 32, 16 * 4},  // steps of four channels
           Size{Codec::kInt4, kK, 5, 16, 2 * 32, 16 * 4},
           Size{Codec::kNf4, kV, 16, 16, 4 * 32, 16 * 2},
           Size{Codec::kFp4, kV, 17, 16, 2 * 4 * 32, 16 * 2},
           Size{Codec::kQ25, kK, 5, 16, 5 * 32, 16 * 2},   // 3 pairs
           Size{Codec::kQ25, kK, 32, 16, 5 * 32, 16 * 2},  // 16 pairs, which fill a tile
           Size{Codec::kQ25, kK, 33, 16, 2 * 5 * 32, 16 * 2},
           Size{Codec::kQ25, kV, 32, 32, 2 * 5 * 32, 32 * 2},
           Size{Codec::kQ25, kV, 33, 16, 2 * 5 * 32, 16 * 2},
       }) {
    EXPECT_EQ(PlaneBytes(size.codec, size.inner, size.dim, size.block_tokens), size.plane_bytes)
        << CodecName(size.codec) << " dim " << size.dim;
    EXPECT_EQ(ScaleBytes(size.codec, size.block_tokens), size.scale_bytes) << CodecName(size.codec);
  }
}

TEST(Planes, CodesLieAsTheDocumentSays) {
  constexpr uint32_t kDim = 70;
  constexpr uint32_t kTokens = 32;
  for (const Codec codec : {Codec::kInt8, Codec::kInt4, Codec::kNf4, Codec::kFp4, Codec::kQ25}) {
    for (const InnerAxis inner : {InnerAxis::kToken, InnerAxis::kDim}) {
      const StreamLayout stream = OnlyStream(codec, inner, 1, kDim, kTokens, 0);
      const bool by_token = inner == InnerAxis::kToken;
      const bool pairs = codec == Codec::kQ25;
      std::set<std::tuple<uint64_t, bool>> taken;
      for (uint32_t token = 0; token < kTokens; ++token) {
        for (uint32_t code = 0; code < CodeCount(codec, inner, kDim); ++code) {
          // Of K a lane is a token and a term is a channel; of V the other way round.
          const uint32_t lane = (by_token ? token : code) % 16;
          const uint32_t term = by_token ? code : token % 16;
          const CodePosition at = PositionOf(stream, token, code);
          uint64_t begin = token / 16 * ColumnBytes(codec, inner, kDim);
          if (!by_token) begin += code / 16 * TileBytes(codec, 16);
          if (codec == Codec::kInt8) {
            EXPECT_EQ(at.byte, begin + term / 2 * 32 + 2 * lane + term % 2);
            EXPECT_FALSE(at.high);
          } else {
            const uint32_t step = term % 16 / 4;
            begin += pairs ? term / 16 * 160 : term / 16 * 128;
            const uint32_t in_step = 4 * (lane % 8) + 2 * (term % 2) + lane / 8;
            EXPECT_EQ(at.byte, begin + step * 32 + in_step);
            EXPECT_EQ(at.high, term % 4 >= 2);
            if (pairs) {
              EXPECT_EQ(at.sign_byte, begin + 4 * 32 + in_step);
              EXPECT_EQ(at.sign_bit, 2 * step + (at.high ? 1 : 0));
            }
          }
          ASSERT_LT(at.byte, stream.head_stride_bytes);
          ASSERT_TRUE(taken.insert({at.byte, at.high}).second) << "two codes in one place";
        }
      }
    }
  }
}

TEST(Planes, BytesOfFp8LieInTheOrderOfValues) {
  const StreamLayout k = OnlyStream(Codec::kFp8E4m3, InnerAxis::kToken, 1, 7, 16, 0);
  EXPECT_EQ(PositionOf(k, 5, 3).byte, 3u * 16 + 5);
  const StreamLayout v = OnlyStream(Codec::kFp8E4m3, InnerAxis::kDim, 1, 7, 16, 0);
  EXPECT_EQ(PositionOf(v, 5, 3).byte, 5u * 7 + 3);
}

TEST(Planes, ScalesLieByHeadAndToken) {
  const StreamLayout stream = OnlyStream(Codec::kNf4, InnerAxis::kDim, 3, 64, 16, 5);
  EXPECT_EQ(stream.scale_offset_bytes, 5u + 3 * 64 * 16 / 2);
  EXPECT_EQ(ScaleAt(stream, 0, 0), stream.scale_offset_bytes);
  EXPECT_EQ(ScaleAt(stream, 0, 7), stream.scale_offset_bytes + 14);
  EXPECT_EQ(ScaleAt(stream, 2, 7), stream.scale_offset_bytes + 2 * 16 * 2 + 14);
}

}  // namespace
}  // namespace quire::codec
