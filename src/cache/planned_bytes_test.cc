// What a plan says beside what a cache of the same model charges a sequence of that length.
#include "cache/planned_bytes.h"

#include <gtest/gtest.h>

#include "cache/state/slot_classes.h"
#include "cache/test_util.h"

namespace quire::cache {
namespace {

Geometry FullAndWindow() {
  Geometry geometry = SmallGeometry();
  geometry.groups.push_back({.kind = LayerKind::kWindow,
                             .layers = {2, 3, 4},
                             .window_tokens = 100,
                             .sink_tokens = 4,
                             .streams = geometry.groups[0].streams});
  return geometry;
}

NumericProfile WithResidual() {
  NumericProfile profile = NumericProfile::Uniform(Codec::kInt8);
  profile.open_dtype = Codec::kF16;
  profile.residual_tokens = 32;
  return profile;
}

void ExpectAsACacheHas(const Geometry& geometry, const NumericProfile& profile) {
  const auto classes = Must(SlotClasses::Create(
      {.geometry = geometry, .profile = profile, .hot_bytes = uint64_t{1} << 30}));
  for (const uint64_t tokens : {0U, 1U, 16U, 17U, 200U, 10'000U}) {
    for (const uint64_t step_tokens : {1U, 64U}) {
      const auto planned = Must(PlanBytes(geometry, profile, tokens, step_tokens));
      EXPECT_EQ(planned.blocks, (tokens + 15) / 16);
      const auto own = classes.OwnSlots(0, planned.blocks, step_tokens);
      uint64_t stored = 0;
      uint64_t open = 0;
      uint64_t block = 0;
      for (uint32_t c = 0; c < classes.count(); ++c) {
        (classes.is_sealed(c) ? stored : open) += own[c] * classes.slot_bytes(c);
        if (classes.is_sealed(c)) block += classes.slot_bytes(c);
      }
      EXPECT_EQ(planned.stored, stored) << tokens << " tokens";
      EXPECT_EQ(planned.open, open) << tokens << " tokens";
      EXPECT_EQ(planned.block_bytes, block);
      EXPECT_EQ(planned.total(), stored + open);
      if (classes.count() > classes.group_count()) {
        EXPECT_EQ(planned.open_blocks, own[classes.group_count()]);
      }
    }
  }
}

TEST(PlannedBytes, AreWhatACacheHas) {
  for (const Geometry& geometry : {SmallGeometry(), FullAndWindow()}) {
    ExpectAsACacheHas(geometry, NumericProfile::Uniform(Codec::kF16));
    ExpectAsACacheHas(geometry, WithResidual());
  }
}

TEST(PlannedBytes, MoreThan64BitsIsAnError) {
  const Geometry geometry = SmallGeometry();
  for (const NumericProfile& profile : {NumericProfile::Uniform(Codec::kF16), WithResidual()}) {
    const auto planned = PlanBytes(geometry, profile, UINT64_MAX, 1);
    ASSERT_FALSE(planned.has_value());
    EXPECT_EQ(planned.error().code, ErrorCode::kInvalidArgument);
  }
  // 64 bytes for each of so many tokens that all of them still fit.
  const auto planned =
      Must(PlanBytes(geometry, NumericProfile::Uniform(Codec::kF16), UINT64_MAX / 100, 1));
  EXPECT_GT(planned.total(), uint64_t{1} << 63);
}

}  // namespace
}  // namespace quire::cache
