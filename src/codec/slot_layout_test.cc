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

// Layers 0 and 2 see everything, layer 1 a window; V is wider than K.
Geometry Mixed() {
  Geometry geometry = Geometry::Uniform(2, 2, 8);
  geometry.groups[0].layers = {0, 2};
  geometry.groups[0].streams[1].dim = 12;
  LayerGroup window = geometry.groups[0];
  window.kind = LayerKind::kWindow;
  window.window_tokens = 64;
  window.layers = {1};
  window.streams[0] = {.role = StreamRole::kKey, .heads = 3, .dim = 4};
  window.streams[1] = {.role = StreamRole::kValue, .heads = 3, .dim = 4};
  geometry.groups.push_back(window);
  return geometry;
}

TEST(SlotLayout, LayerMajorArenasHaveAPieceForEachStream) {
  SlotLayout layout =
      SlotLayout::Create(Mixed(), NumericProfile::Uniform(Codec::kF16), ArenaLayout::kLayerMajor)
          .value();
  ASSERT_EQ(layout.group_count(), 2u);
  EXPECT_EQ(layout.pieces(0), 4u);
  EXPECT_EQ(layout.piece_bytes(0), 2u * 12 * 16 * 2);  // the largest stream
  EXPECT_EQ(layout.slot_bytes(0), 4u * 2 * 12 * 16 * 2);
  EXPECT_EQ(layout.pieces(1), 2u);
  EXPECT_EQ(layout.piece_bytes(1), 3u * 4 * 16 * 2);
  layout.PlaceArena(0, 10'000);
  layout.PlaceArena(1, 500);
  EXPECT_EQ(layout.key(0).offset_bytes, 0u);
  EXPECT_EQ(layout.value(0).offset_bytes, 10'000u);
  EXPECT_EQ(layout.key(2).offset_bytes, 20'000u);
  EXPECT_EQ(layout.value(2).offset_bytes, 30'000u);
  EXPECT_EQ(layout.key(1).offset_bytes, 0u);
  EXPECT_EQ(layout.value(1).offset_bytes, 500u);
  EXPECT_EQ(layout.key(0).inner, InnerAxis::kDim);
  EXPECT_EQ(layout.key(0).head_stride_bytes, 8u * 16 * 2);
  EXPECT_EQ(layout.value(0).head_stride_bytes, 12u * 16 * 2);
}

TEST(SlotLayout, HeadMajorArenasHaveAPieceForEachHead) {
  SlotLayout layout =
      SlotLayout::Create(Mixed(), NumericProfile::Uniform(Codec::kF16), ArenaLayout::kHeadMajor)
          .value();
  EXPECT_EQ(layout.pieces(0), 4u * 2);
  EXPECT_EQ(layout.piece_bytes(0), 12u * 16 * 2);
  EXPECT_EQ(layout.pieces(1), 2u * 3);
  EXPECT_EQ(layout.piece_bytes(1), 4u * 16 * 2);
  layout.PlaceArena(0, 10'000);
  layout.PlaceArena(1, 500);
  EXPECT_EQ(layout.value(2).offset_bytes, 30'000u);
  EXPECT_EQ(layout.value(2).head_stride_bytes, 4u * 10'000);
  EXPECT_EQ(layout.value(1).offset_bytes, 500u);
  EXPECT_EQ(layout.value(1).head_stride_bytes, 2u * 500);
}

TEST(SlotLayout, BlockMajorSlotsLieWhereverTheArenaIs) {
  SlotLayout layout = Make(Mixed(), NumericProfile::Uniform(Codec::kF16));
  EXPECT_EQ(layout.pieces(0), 1u);
  EXPECT_EQ(layout.piece_bytes(0), layout.slot_bytes(0));
  EXPECT_EQ(layout.slot_bytes(0), 2u * 2 * (8 + 12) * 16 * 2);
  EXPECT_EQ(layout.slot_bytes(1), 2u * 3 * 4 * 16 * 2);
  const StreamLayout before = layout.value(2);
  layout.PlaceArena(0, 10'000);
  EXPECT_EQ(layout.value(2).offset_bytes, before.offset_bytes);
  EXPECT_EQ(layout.value(2).head_stride_bytes, before.head_stride_bytes);
}

TEST(SlotLayout, LayersThatLookBackEquallyFarAreOneGroup) {
  Geometry geometry = Geometry::Uniform(6, 1, 16);
  const LayerGroup full = geometry.groups[0];
  const auto add = [&](uint32_t layer, LayerKind kind, uint32_t window, uint32_t sinks) {
    LayerGroup group = full;
    group.layers = {layer};
    group.kind = kind;
    group.window_tokens = window;
    group.sink_tokens = sinks;
    geometry.groups.push_back(group);
  };
  geometry.groups.clear();
  add(0, LayerKind::kFull, 0, 0);
  add(1, LayerKind::kWindow, 64, 0);
  add(2, LayerKind::kWindow, 128, 0);
  add(3, LayerKind::kWindow, 64, 4);
  add(4, LayerKind::kFull, 0, 0);
  add(5, LayerKind::kWindow, 64, 4);
  const SlotLayout layout = Make(geometry, NumericProfile::Uniform(Codec::kF16));
  EXPECT_EQ(layout.group_count(), 4u);
  const uint32_t want[] = {0, 1, 2, 3, 0, 3};
  for (uint32_t layer = 0; layer < 6; ++layer) {
    EXPECT_EQ(layout.group_of(layer), want[layer]) << layer;
    EXPECT_EQ(layout.group(layout.group_of(layer)).window_tokens,
              geometry.groups[layer].window_tokens);
    EXPECT_EQ(layout.geometry_group(layer), geometry.groups[layer]);
  }
  EXPECT_EQ(layout.slot_bytes(0), 2u * 2 * 16 * 16 * 2);
  EXPECT_EQ(layout.slot_bytes(1), 2u * 16 * 16 * 2);
}

TEST(SlotLayout, SaysWhatItDoesNotSupport) {
  const Geometry geometry = Geometry::Uniform(1, 1, 64);
  const NumericProfile int8 = NumericProfile::Uniform(Codec::kInt8);
  const auto arena = SlotLayout::Create(geometry, int8, ArenaLayout::kHeadMajor);
  ASSERT_FALSE(arena.has_value());
  EXPECT_EQ(arena.error().code, ErrorCode::kUnsupported);
  EXPECT_EQ(arena.error().message,
            "arena layout head_major: codec int8 encodes, which needs block_major");
  const auto open = SlotLayout::CreateOpen(geometry, int8);
  ASSERT_FALSE(open.has_value());
  EXPECT_EQ(open.error().code, ErrorCode::kUnsupported);
  EXPECT_EQ(open.error().message,
            "profile: open_dtype int8 encodes; open blocks store values as they are");
  Geometry latent = geometry;
  latent.groups[0].streams = {{.role = StreamRole::kLatent, .heads = 1, .dim = 64}};
  const auto encoded = SlotLayout::Create(latent, int8, ArenaLayout::kBlockMajor);
  ASSERT_FALSE(encoded.has_value());
  EXPECT_EQ(encoded.error().code, ErrorCode::kUnsupported);
  EXPECT_EQ(encoded.error().message,
            "profile: codec int8 of a latent, which is read as K and as V");
  for (const uint32_t block_tokens : {16u, 32u, 64u, 128u, 256u}) {
    EXPECT_TRUE(SlotLayout::Create(geometry, NumericProfile::Uniform(Codec::kInt8, block_tokens),
                                   ArenaLayout::kBlockMajor)
                    .has_value());
  }
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
