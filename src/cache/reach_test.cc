// How far layers look back, beside a look at every token.
#include "cache/reach.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace quire::cache {
namespace {

LayerGroup Window(uint32_t window_tokens, uint32_t sink_tokens) {
  return {.kind = LayerKind::kWindow, .window_tokens = window_tokens, .sink_tokens = sink_tokens};
}

// The first block after the sinks that a query at a position sees, which sees its own token and
// those before it in its window.
uint64_t FirstSeen(uint64_t position, uint64_t window_tokens, uint64_t block_tokens,
                   uint64_t sink_blocks) {
  uint64_t token = sink_blocks * block_tokens;
  while (token + window_tokens <= position) ++token;
  return token / block_tokens;
}

TEST(WindowReach, EqualsALookAtEveryToken) {
  for (const uint32_t block_tokens : {1U, 4U, 7U}) {
    for (const uint32_t window_tokens : {1U, 3U, 4U, 8U, 13U}) {
      for (const uint32_t sink_tokens : {0U, 1U, 4U, 9U}) {
        const WindowReach reach(Window(window_tokens, sink_tokens), block_tokens);
        EXPECT_TRUE(reach.windowed());
        const uint64_t sinks = (sink_tokens + block_tokens - 1) / block_tokens;
        EXPECT_EQ(reach.sink_blocks(), sinks);
        EXPECT_EQ(reach.first_needed(0), sinks);
        for (uint64_t position = 1; position < 60; ++position) {
          const uint64_t seen = FirstSeen(position, window_tokens, block_tokens, sinks);
          const uint64_t before = (position - 1) / block_tokens;
          ASSERT_EQ(reach.first_needed(position), std::max(sinks, std::min(seen, before)))
              << "position " << position << ", window " << window_tokens << ", blocks of "
              << block_tokens << ", sinks " << sink_tokens;
        }
      }
    }
  }
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
