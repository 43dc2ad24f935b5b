#include "codec/slot_layout.h"

#include <gtest/gtest.h>

#include <set>

#include "codec/scalar.h"

namespace quire::codec {
namespace {

SlotLayout Make(const Geometry& geometry, const NumericProfile& profile) {
  return SlotLayout::Create(geometry, profile, ArenaLayout::kBlockMajor).value();
}

TEST(SlotLayout, QwenSlotIsTheSumOfItsValues) {
  const Geometry geometry = Geometry::Uniform(28, 8, 128);
  const SlotLayout layout = Make(geometry, NumericProfile::Uniform(Codec::kF16));
  EXPECT_EQ(layout.slot_bytes(0), 57'344u * 16 * 2);
  EXPECT_EQ(layout.layer_count(), 28u);
  EXPECT_EQ(layout.block_tokens(), 16u);
  EXPECT_EQ(layout.geometry(), geometry);
  const StreamLayout& key = layout.key(3);
  EXPECT_EQ(key.inner, InnerAxis::kToken);
  EXPECT_EQ(key.offset_bytes, 3u * 2 * 8 * 4096);
  EXPECT_EQ(key.head_stride_bytes, 4096u);
  const StreamLayout& value = layout.value(3);
  EXPECT_EQ(value.inner, InnerAxis::kDim);
  EXPECT_EQ(value.offset_bytes, key.offset_bytes + 8 * 4096);
}

TEST(SlotLayout, OddShapesAreAlignedAndDisjoint) {
  Geometry geometry = Geometry::Uniform(2, 3, 5);
  geometry.groups[0].layers = {1, 2};
  LayerGroup latent = geometry.groups[0];
  latent.layers = {0};
  latent.streams = {{.role = StreamRole::kLatent, .heads = 1, .dim = 7}};
  geometry.groups.push_back(latent);
  NumericProfile profile = NumericProfile::Uniform(Codec::kF16, 32);
  profile.codecs[0].codec = Codec::kF32;  // keys
  const SlotLayout layout = Make(geometry, profile);

  EXPECT_EQ(&layout.key(0), &layout.value(0));
  EXPECT_EQ(layout.key(0).inner, InnerAxis::kDim);
  EXPECT_EQ(layout.key(1).codec, Codec::kF32);
  EXPECT_EQ(layout.value(1).codec, Codec::kF16);
  EXPECT_EQ(layout.geometry_group(0).streams[0].role, StreamRole::kLatent);
  EXPECT_EQ(layout.geometry_group(2).streams.size(), 2u);

  uint64_t end = 0;
  const auto place = [&](const StreamLayout& stream) {
    EXPECT_EQ(stream.offset_bytes % kStreamAlignmentBytes, 0u);
    EXPECT_GE(stream.offset_bytes, end);
    EXPECT_LT(stream.offset_bytes, end + kStreamAlignmentBytes);
    EXPECT_EQ(stream.head_stride_bytes, stream.dim * 32u * ValueBytes(stream.codec));
    EXPECT_EQ(stream.block_tokens, 32u);
    end = stream.offset_bytes + stream.heads * stream.head_stride_bytes;
  };
  place(layout.key(0));
  for (const uint32_t layer : {1u, 2u}) {
    place(layout.key(layer));
    place(layout.value(layer));
  }
  EXPECT_GE(layout.slot_bytes(0), end);
  EXPECT_EQ(layout.slot_bytes(0) % kStreamAlignmentBytes, 0u);
}

TEST(SlotLayout, EncodedBlocksHaveTwoForms) {
  const Geometry geometry = Geometry::Uniform(2, 3, 80);
  NumericProfile profile = NumericProfile::Uniform(Codec::kInt8, 32);
  profile.open_dtype = Codec::kBf16;
  profile.codecs[1].codec = Codec::kF16;  // values
  const SlotLayout sealed = Make(geometry, profile);
  const SlotLayout open = SlotLayout::CreateOpen(geometry, profile).value();
  EXPECT_FALSE(sealed.identity());
  EXPECT_TRUE(Make(geometry, NumericProfile::Uniform(Codec::kF16)).identity());

  const StreamLayout& key = sealed.key(1);
  EXPECT_EQ(key.codec, Codec::kInt8);
  EXPECT_EQ(key.inner, InnerAxis::kToken);
  EXPECT_TRUE(key.rotated);
  EXPECT_EQ(key.head_stride_bytes, 80u * 32);
  EXPECT_EQ(key.scale_offset_bytes, key.offset_bytes + 3 * 80 * 32);
  EXPECT_EQ(key.scale_offset_bytes % kStreamAlignmentBytes, 0u);
  EXPECT_EQ(key.scale_head_stride_bytes, 32u * 2 * 2);  // scales and mids
  const StreamLayout& value = sealed.value(1);
  EXPECT_EQ(value.codec, Codec::kF16);
  EXPECT_FALSE(value.rotated);
  EXPECT_EQ(value.offset_bytes, key.scale_offset_bytes + 3 * 32 * 2 * 2);
  EXPECT_EQ(value.scale_head_stride_bytes, 0u);

  EXPECT_EQ(open.key(1).codec, Codec::kBf16);
  EXPECT_EQ(open.value(1).codec, Codec::kBf16);
  EXPECT_TRUE(open.key(1).rotated);
  EXPECT_FALSE(open.value(1).rotated);
  EXPECT_EQ(open.slot_bytes(0), 2u * 2 * 3 * 80 * 32 * 2);
}

TEST(SlotLayout, FindsStreamsByRole) {
  const SlotLayout layout =
      Make(Geometry::Uniform(2, 1, 16), NumericProfile::Uniform(Codec::kBf16));
  EXPECT_EQ(layout.Find(1, StreamRole::kKey).value().offset_bytes, layout.key(1).offset_bytes);
  EXPECT_EQ(layout.Find(1, StreamRole::kValue).value().offset_bytes, layout.value(1).offset_bytes);
  const Result<StreamLayout> latent = layout.Find(1, StreamRole::kLatent);
  ASSERT_FALSE(latent.has_value());
  EXPECT_EQ(latent.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(latent.error().message, "layer 1 has no stream of role 3");
  const Result<StreamLayout> outside = layout.Find(2, StreamRole::kKey);
  ASSERT_FALSE(outside.has_value());
  EXPECT_EQ(outside.error().message, "layer 2 of 2 layers");
}

TEST(SlotLayout, RefusesBadProfilesAndGeometries) {
  const Geometry good = Geometry::Uniform(1, 1, 1);
  for (const uint32_t block_tokens : {0u, 8u, 17u, 48u, 512u}) {
    const auto layout = SlotLayout::Create(good, NumericProfile::Uniform(Codec::kF16, block_tokens),
                                           ArenaLayout::kBlockMajor);
    ASSERT_FALSE(layout.has_value()) << block_tokens;
    EXPECT_EQ(layout.error().code, ErrorCode::kInvalidArgument);
    EXPECT_NE(layout.error().message.find("block_tokens"), std::string::npos);
  }
  EXPECT_FALSE(
      SlotLayout::Create(Geometry{}, NumericProfile::Uniform(Codec::kF16), ArenaLayout::kBlockMajor)
          .has_value());
  EXPECT_FALSE(SlotLayout::Create(good, NumericProfile{}, ArenaLayout::kBlockMajor).has_value());
}

}  // namespace
}  // namespace quire::codec
