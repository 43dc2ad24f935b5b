#include "serve/chunk_size.h"

#include <gtest/gtest.h>

namespace quire::serve {
namespace {

TEST(ChunkSizeTest, DoublesWhileFourOfItsSizeFit) {
  ChunkSize chunk(16, 100);
  EXPECT_EQ(chunk.tokens(), 16u);
  chunk.Adapt(4 * 16 - 1);
  EXPECT_EQ(chunk.tokens(), 16u);
  chunk.Adapt(4 * 16);
  EXPECT_EQ(chunk.tokens(), 32u);
  chunk.Adapt(4 * 32);
  EXPECT_EQ(chunk.tokens(), 64u);
  chunk.Adapt(1'000'000);
  EXPECT_EQ(chunk.tokens(), 100u);  // no more than the upper bound
}

TEST(ChunkSizeTest, HalvesWhereTwoOfItsSizeDoNotFit) {
  ChunkSize chunk(16, 64);
  chunk.Adapt(1'000'000);
  chunk.Adapt(1'000'000);
  EXPECT_EQ(chunk.tokens(), 64u);
  chunk.Adapt(2 * 64);
  EXPECT_EQ(chunk.tokens(), 64u);
  chunk.Adapt(2 * 64 - 1);
  EXPECT_EQ(chunk.tokens(), 32u);
  chunk.Shrink();
  EXPECT_EQ(chunk.tokens(), 16u);
  chunk.Shrink();
  chunk.Adapt(0);
  EXPECT_EQ(chunk.tokens(), 16u);  // no fewer than the lower bound
}

TEST(ChunkSizeTest, TheLargestChunksDoNotOverflow) {
  ChunkSize chunk(UINT32_MAX - 1, UINT32_MAX);
  chunk.Adapt(UINT64_MAX);
  EXPECT_EQ(chunk.tokens(), UINT32_MAX);
}

}  // namespace
}  // namespace quire::serve
