// How far layers look back; what a query sees at each position is in window_test.cc.
#include "cache/sequence/reach.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace quire::cache {
namespace {

LayerGroup Window(uint32_t window_tokens, uint32_t sink_tokens) {
  return {.kind = LayerKind::kWindow, .window_tokens = window_tokens, .sink_tokens = sink_tokens};
}

TEST(WindowReach, BlocksNeededAtOnce) {
  for (const uint32_t block_tokens : {1U, 4U, 7U}) {
    for (const uint32_t window_tokens : {1U, 5U, 12U}) {
      for (const uint64_t step_tokens : {1U, 4U, 30U}) {
        const WindowReach reach(Window(window_tokens, /*sink_tokens=*/9), block_tokens);
        // What the first token of a step sees, to the last token of it, wherever it begins.
        uint64_t needed = 0;
        for (uint64_t length = 100; length < 110; ++length) {
          const uint64_t first = (length + 1 - window_tokens) / block_tokens;
          const uint64_t last = (length + step_tokens - 1) / block_tokens;
          needed = std::max(needed, reach.sink_blocks() + last - first + 1);
        }
        EXPECT_GE(reach.blocks_max(step_tokens), needed);
        EXPECT_LE(reach.blocks_max(step_tokens), needed + (block_tokens == 1 ? 2 : 1));
      }
    }
  }
  EXPECT_GE(WindowReach(Window(100, 0), 16).blocks_max(UINT64_MAX), UINT64_MAX / 16)
      << "it does not wrap";
}

TEST(WindowReach, FullAttentionNeedsEverything) {
  const WindowReach reach({.kind = LayerKind::kFull}, 16);
  EXPECT_FALSE(reach.windowed());
  EXPECT_FALSE(WindowReach().windowed());
  for (const uint64_t position : {0U, 1U, 16U, 1000U}) EXPECT_EQ(reach.first_needed(position), 0u);
  EXPECT_EQ(reach.blocks_max(1), UINT64_MAX);
}

TEST(WindowReach, OpenFormsEndWithTheirResidual) {
  NumericProfile profile = NumericProfile::Uniform(Codec::kInt8);
  profile.block_tokens = 16;
  profile.residual_tokens = 32;
  const WindowReach reach = WindowReach::OfOpenForm(profile);
  EXPECT_TRUE(reach.windowed());
  EXPECT_EQ(reach.sink_blocks(), 0u);
  EXPECT_EQ(reach.first_needed(0), 0u);
  EXPECT_EQ(reach.first_needed(47), 0u);
  EXPECT_EQ(reach.first_needed(48), 1u);
  EXPECT_EQ(reach.first_needed(16 * 7 + 5), 5u);
  EXPECT_EQ(reach.blocks_max(1), 1 + 1 + 2u);
  EXPECT_EQ(reach.blocks_max(17), 2 + 1 + 2u);
}

}  // namespace
}  // namespace quire::cache
