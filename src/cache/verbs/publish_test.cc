// A commit of many blocks publishes them together.
#include <gtest/gtest.h>

#include "cache/test_util.h"

namespace quire::cache {
namespace {

TEST(Publish, OfMoreBlocksThanGoAtOnce) {
  TestCache t(/*slots=*/100);
  const auto prompt = SomeTokens(70 * kBlock + 1, 1);
  const auto sequence = t.Run(prompt);
  EXPECT_EQ(t.cache->stats().published_total, 70u);
  EXPECT_EQ(t.Resident(prompt), 70u * kBlock);
  EXPECT_EQ(sequence->stats().blocks_own, 1u);
  EXPECT_EQ(t.model.Differs(*sequence, prompt), "");
}

// Two sequences compute the same tokens at once; one is ahead, and the other takes its blocks and
// continues.
TEST(Publish, JoinsKnownBlocksAndAddsTheOthers) {
  TestCache t(/*slots=*/200);
  const auto prompt = SomeTokens(70 * kBlock + 1, 1);
  const auto ahead = t.Open(prompt);
  const auto behind = t.Open(prompt);
  const auto part = std::span(prompt).first(40 * kBlock);
  Must(t.model.Feed(*ahead, part));
  Must(t.model.Feed(*behind, prompt));
  EXPECT_EQ(t.cache->stats().published_total, 70u);
  EXPECT_EQ(t.cache->stats().deduplicated_total, 40u);
  Must(t.model.Feed(*ahead, prompt));
  EXPECT_EQ(t.cache->stats().published_total, 70u);
  EXPECT_EQ(t.cache->stats().deduplicated_total, 70u);
  EXPECT_EQ(t.slots_used(), 70u + 2) << "each block once, and two open ends";
  EXPECT_EQ(t.model.Differs(*ahead, prompt), "");
  EXPECT_EQ(t.model.Differs(*behind, prompt), "");
}

}  // namespace
}  // namespace quire::cache
