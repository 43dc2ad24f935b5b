#include "quire/geometry.h"

#include <gtest/gtest.h>

#include <string>

#include "quire/identity.h"

namespace quire {
namespace {

std::string WhyInvalid(const Geometry& geometry) {
  const Result<void> valid = geometry.Validate();
  if (valid) return "";
  EXPECT_EQ(valid.error().code, ErrorCode::kInvalidArgument);
  return valid.error().message;
}

Geometry Mixed() {  // layers 0, 2 full; 1, 3 windowed with another shape
  Geometry geometry = Geometry::Uniform(2, 2, 64);
  geometry.groups[0].layers = {0, 2};
  LayerGroup window = geometry.groups[0];
  window.kind = LayerKind::kWindow;
  window.layers = {1, 3};
  window.window_tokens = 128;
  window.sink_tokens = 4;
  window.streams[0].dim = window.streams[1].dim = 32;
  geometry.groups.push_back(window);
  return geometry;
}

TEST(Geometry, NamesAndParsersAreInverse) {
  for (const Codec codec : kCodecs) {
    EXPECT_EQ(ParseCodec(CodecName(codec)), codec);
  }
  EXPECT_EQ(ParseCodec("F16"), std::nullopt);
  EXPECT_EQ(ParseCodec(""), std::nullopt);
  EXPECT_EQ(CodecName(static_cast<Codec>(0)), "unknown");
  for (const auto layout :
       {ArenaLayout::kBlockMajor, ArenaLayout::kLayerMajor, ArenaLayout::kHeadMajor}) {
    EXPECT_EQ(ParseArenaLayout(ArenaLayoutName(layout)), layout);
  }
  EXPECT_EQ(ParseArenaLayout("layer-major"), std::nullopt);
  EXPECT_EQ(ArenaLayoutName(ArenaLayout::kBlockMajor), "block_major");
  EXPECT_EQ(ArenaLayoutName(ArenaLayout::kLayerMajor), "layer_major");
  EXPECT_EQ(ArenaLayoutName(ArenaLayout::kHeadMajor), "head_major");
  EXPECT_EQ(ArenaLayoutName(static_cast<ArenaLayout>(0)), "unknown");
}

// Names of the command line and bits as docs/codecs.md has them.
TEST(Geometry, CodecsHaveTheirNamesAndBits) {
  struct Known {
    Codec codec;
    std::string_view name;
    double bits;
  };
  size_t known = 0;
  for (const Known& each :
       {Known{Codec::kF32, "f32", 32}, Known{Codec::kF16, "f16", 16},
        Known{Codec::kBf16, "bf16", 16}, Known{Codec::kFp8E4m3, "fp8_e4m3", 8.125},
        Known{Codec::kFp8E5m2, "fp8_e5m2", 8.125}, Known{Codec::kInt8, "int8", 8.25},
        Known{Codec::kInt4, "int4", 4.25}, Known{Codec::kNf4, "nf4", 4.125},
        Known{Codec::kFp4, "fp4", 4.125}, Known{Codec::kQ25, "q25", 2.625}}) {
    EXPECT_EQ(CodecName(each.codec), each.name);
    EXPECT_EQ(CodecBitsPerValue(each.codec), each.bits) << each.name;
    ++known;
  }
  EXPECT_EQ(known, kCodecs.size());
}

TEST(Geometry, CountsQwen06B) {
  const Geometry geometry = Geometry::Uniform(28, 8, 128);
  EXPECT_EQ(WhyInvalid(geometry), "");
  EXPECT_EQ(geometry.layer_count(), 28u);
  EXPECT_EQ(geometry.values_per_token(), 57'344u);
}

TEST(Geometry, CountsMixedGroupsAndLatents) {
  Geometry geometry = Mixed();
  EXPECT_EQ(WhyInvalid(geometry), "");
  EXPECT_EQ(geometry.layer_count(), 4u);
  EXPECT_EQ(geometry.values_per_token(), 2u * 2 * 2 * 64 + 2u * 2 * 2 * 32);
  geometry.groups[1].streams = {{.role = StreamRole::kLatent, .heads = 1, .dim = 576}};
  EXPECT_EQ(WhyInvalid(geometry), "");
  EXPECT_EQ(geometry.values_per_token(), 2u * 2 * 2 * 64 + 2u * 576);
}

TEST(Geometry, NamesWhatIsWrong) {
  const auto broken = [](auto change) {
    Geometry geometry = Mixed();
    change(geometry.groups);
    return WhyInvalid(geometry);
  };
  EXPECT_EQ(WhyInvalid(Geometry{}), "geometry: 0 layers, must be 1..65536");
  EXPECT_EQ(WhyInvalid(Geometry::Uniform(65'537, 1, 1)),
            "geometry: 65537 layers, must be 1..65536");
  EXPECT_EQ(WhyInvalid(Geometry::Uniform(65'536, 65'536, 65'536)), "");
  EXPECT_EQ(broken([](auto& g) { g[1].layers = {1, 2}; }),
            "geometry: groups[1].layers has 2, which is already taken");
  EXPECT_EQ(broken([](auto& g) { g[1].layers = {1, 4}; }),
            "geometry: groups[1].layers has 4, but there are 4 layers");
  EXPECT_EQ(broken([](auto& g) { g[1].layers = {3, 1}; }),
            "geometry: groups[1].layers is not ascending");
  EXPECT_EQ(broken([](auto& g) {
              g[0].layers = {0, 1, 2, 3};
              g[1].layers = {};
            }),
            "geometry: groups[1].layers is empty");
  EXPECT_EQ(broken([](auto& g) { g[0].streams[1].heads = 0; }),
            "geometry: groups[0].streams[1].heads is 0, must be 1..65536");
  EXPECT_EQ(broken([](auto& g) { g[0].streams[1].heads = 65'537; }),
            "geometry: groups[0].streams[1].heads is 65537, must be 1..65536");
  EXPECT_EQ(broken([](auto& g) { g[0].streams[0].dim = 65'537; }),
            "geometry: groups[0].streams[0].dim is 65537, must be 1..65536");
  EXPECT_EQ(broken([](auto& g) { g[0].streams[0].dim = 0; }),
            "geometry: groups[0].streams[0].dim is 0, must be 1..65536");
  EXPECT_EQ(broken([](auto& g) { g[1].window_tokens = 0; }),
            "geometry: groups[1].window_tokens is 0 in a window group");
  EXPECT_EQ(broken([](auto& g) { g[0].window_tokens = 9; }),
            "geometry: groups[0].window_tokens is set in a full-attention group");
  EXPECT_EQ(broken([](auto& g) { g[0].sink_tokens = 9; }),
            "geometry: groups[0].sink_tokens is set in a full-attention group");
  EXPECT_EQ(broken([](auto& g) { g[0].streams.clear(); }),
            "geometry: groups[0].streams has 0 entries, must be key then value, or one latent");
  EXPECT_EQ(broken([](auto& g) { g[0].streams.pop_back(); }),
            "geometry: groups[0].streams has 1 entries, must be key then value, or one latent");
  EXPECT_EQ(broken([](auto& g) { g[0].streams[1].role = StreamRole::kLatent; }),
            "geometry: groups[0].streams has 2 entries, must be key then value, or one latent");
  EXPECT_EQ(broken([](auto& g) { g[0].streams[0].role = StreamRole::kLatent; }),
            "geometry: groups[0].streams has 2 entries, must be key then value, or one latent");
  EXPECT_EQ(broken([](auto& g) { g[0].streams.push_back(g[0].streams[1]); }),
            "geometry: groups[0].streams has 3 entries, must be key then value, or one latent");
  EXPECT_EQ(broken([](auto& g) { std::swap(g[0].streams[0], g[0].streams[1]); }),
            "geometry: groups[0].streams has 2 entries, must be key then value, or one latent");
  EXPECT_EQ(broken([](auto& g) { g[0].streams[0].heads = 4; }),
            "geometry: groups[0].streams: key has 4 heads, value 2");
  EXPECT_EQ(broken([](auto& g) { g[0].kind = static_cast<LayerKind>(7); }),
            "geometry: groups[0].kind is 7");
}

TEST(NumericProfile, UniformCoversEveryRole) {
  const NumericProfile profile = NumericProfile::Uniform(Codec::kBf16, 64);
  EXPECT_EQ(profile.block_tokens, 64u);
  EXPECT_EQ(profile.open_dtype, Codec::kBf16);
  for (const StreamRole role : {StreamRole::kKey, StreamRole::kValue, StreamRole::kLatent}) {
    EXPECT_EQ(profile.CodecFor(role).value(), Codec::kBf16);
  }
  EXPECT_EQ(NumericProfile::Uniform(Codec::kF16).block_tokens, kBlockTokensDefault);
}

TEST(NumericProfile, FirstRuleDecidesAndNoneIsAnError) {
  NumericProfile profile;
  profile.codecs = {{.role = StreamRole::kKey, .codec = Codec::kF32},
                    {.role = StreamRole::kKey, .codec = Codec::kF16}};
  EXPECT_EQ(profile.CodecFor(StreamRole::kKey).value(), Codec::kF32);
  const Result<Codec> none = profile.CodecFor(StreamRole::kValue);
  ASSERT_FALSE(none.has_value());
  EXPECT_EQ(none.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(none.error().message, "profile: no codec rule covers stream role 2 (2 rules)");
}

}  // namespace
}  // namespace quire
