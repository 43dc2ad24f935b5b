// Damaged bytes are a miss with a reason: Verify finds them, and they are never served or copied.
#include <gtest/gtest.h>

#include "cache/test_util.h"

namespace quire::cache {
namespace {

// Damages block `block` of a prompt without leases.
void Damage(TestCache& cache, std::span<const TokenId> prompt, uint64_t block) {
  const auto sequence = cache.Open(prompt);
  ASSERT_GT(sequence->length(), block * kBlock);
  FlipBit(*sequence, block);
}

TEST(Verify, FindsNothingInAHealthyCacheAndChangesNothing) {
  TestCache cache(20);
  const auto held = cache.Run(SomeTokens(40, 1));
  cache.Run(SomeTokens(40, 2)).reset();
  const std::string before = cache.Snapshot();
  const VerifyReport report = cache.cache->Verify();
  EXPECT_EQ(report.blocks, 4u);
  EXPECT_EQ(report.damaged, 0u);
  EXPECT_EQ(cache.Snapshot(), before);
}

TEST(Verify, EveryByteOfABlockCounts) {
  TestCache cache(4);
  const auto prompt = SomeTokens(kBlock, 1);
  for (uint64_t byte = 0; byte < cache.cache->block_bytes(); byte += 37) {
    auto sequence = cache.Run(prompt);
    const BlockListView view = Must(sequence->View(0, StreamRole::kKey));
    *OnHost(const_cast<std::byte*>(view.slots()[0] + byte)) ^= std::byte{0x10};
    EXPECT_EQ(cache.cache->Verify().damaged, 1u) << byte;
  }
  EXPECT_EQ(cache.slots_used(), 0u);
}

TEST(Verify, AnUnleasedBlockGoesAtOnceWithItsDescendants) {
  TestCache cache(20);
  const auto trunk = SomeTokens(2 * kBlock, 1);
  const auto left = Join(trunk, SomeTokens(2 * kBlock + 1, 2));
  const auto right = Join(trunk, SomeTokens(2 * kBlock + 1, 3));
  cache.Run(left).reset();
  cache.Run(right).reset();
  Damage(cache, left, 2);
  EXPECT_EQ(cache.cache->stats().published_blocks, 6u);
  EXPECT_EQ(cache.cache->Verify().damaged, 1u);
  // left: blocks 2 and 3 are gone; the other path is untouched.
  EXPECT_EQ(cache.cache->stats().published_blocks, 4u);
  EXPECT_EQ(cache.slots_used(), 4u);
  EXPECT_EQ(cache.cache->stats().evicted_total, 0u) << "the budget asked for nothing";
  const auto again = cache.Open(right);
  EXPECT_EQ(again->length(), 4u * kBlock);
  EXPECT_EQ(cache.model.Differs(*again, std::span(right).first(4 * kBlock)), "");
  const auto recomputed = cache.Run(left);
  EXPECT_EQ(cache.model.Differs(*recomputed, left), "");
  EXPECT_EQ(cache.Resident(left), 4u * kBlock);
  EXPECT_EQ(cache.cache->Verify().damaged, 0u);
}

TEST(Verify, WhatIsHeldIsNeverHandedOutAgain) {
  TestCache cache(20);
  const auto prompt = SomeTokens(3 * kBlock + 1, 1);
  auto holder = cache.Run(prompt);
  FlipBit(*holder, 1);
  EXPECT_EQ(cache.cache->Verify().damaged, 1u);
  EXPECT_EQ(cache.slots_used(), 4u) << "the holder keeps its blocks";

  Plan plan = cache.Acquire(prompt);
  EXPECT_EQ(plan.resident_tokens(), kBlock);
  EXPECT_EQ(plan.reason(), MissReason::kDamaged);
  // Recomputed, with the right values, beside the damaged block.
  const auto healthy = Must(cache.cache->Open(std::move(plan), {}));
  Must(cache.model.Feed(*healthy, prompt));
  EXPECT_EQ(cache.model.Differs(*healthy, prompt), "");
  EXPECT_EQ(healthy->stats().blocks_shared, 1u);
  EXPECT_EQ(cache.Acquire(prompt).reason(), MissReason::kDamaged);

  holder.reset();
  EXPECT_EQ(cache.slots_used(), 4u) << "the damaged block and what continued it are free";
  // The next commit publishes the blocks that had to wait.
  const auto longer = Join(prompt, SomeTokens(1, 2));
  Must(cache.model.Feed(*healthy, longer));
  const auto hit = cache.Open(longer);
  EXPECT_EQ(hit->length(), 3u * kBlock);
  EXPECT_EQ(cache.model.Differs(*hit, std::span(prompt).first(3 * kBlock)), "");
  EXPECT_EQ(cache.cache->Verify().damaged, 0u);
}

TEST(Verify, ADamagedBlockUnderAHeldChildGoesWithItsLastHolder) {
  TestCache cache(20);
  const auto prompt = SomeTokens(3 * kBlock + 1, 1);
  auto holder = cache.Run(prompt);
  auto fork = Must(holder->Fork());
  FlipBit(*holder, 0);
  EXPECT_EQ(cache.cache->Verify().damaged, 1u);
  EXPECT_EQ(cache.cache->Verify().damaged, 1u) << "still here, still damaged";
  holder.reset();
  EXPECT_EQ(cache.Acquire(prompt).reason(), MissReason::kDamaged);
  EXPECT_EQ(cache.Resident(prompt), 0u);
  fork.reset();
  EXPECT_EQ(cache.slots_used(), 0u);
  EXPECT_EQ(cache.cache->stats().published_blocks, 0u);
  EXPECT_EQ(cache.cache->stats().hot_bytes_used, 0u);
  EXPECT_EQ(cache.Acquire(prompt).reason(), MissReason::kDamaged) << "that is remembered";
}

// Values computed from damaged bytes are wrong themselves.
TEST(Verify, NothingIsPublishedAfterADamagedBlock) {
  TestCache cache(20);
  const auto prompt = SomeTokens(kBlock, 1);
  const auto history = Join(prompt, SomeTokens(2 * kBlock, 2));
  auto holder = cache.Run(prompt);
  FlipBit(*holder, 0);
  EXPECT_EQ(cache.cache->Verify().damaged, 1u);
  Must(cache.model.Feed(*holder, history));
  EXPECT_EQ(cache.cache->stats().published_blocks, 1u);
  EXPECT_EQ(holder->stats().blocks_own, 2u);
  auto fork = Must(holder->Fork());
  Must(cache.model.Feed(*fork, Join(history, SomeTokens(kBlock, 3))));
  EXPECT_EQ(cache.cache->stats().published_blocks, 1u);
  holder.reset();
  fork.reset();
  EXPECT_EQ(cache.slots_used(), 0u);
}

// Cutting a published block copies it. A copy of damaged bytes would get a fresh checksum.
TEST(Verify, ACutThroughADamagedBlockIsNotPublished) {
  for (const bool verified_before : {false, true}) {
    TestCache cache(20);
    const auto prompt = SomeTokens(2 * kBlock, 1);
    auto sequence = cache.Run(prompt);
    FlipBit(*sequence, 1);
    if (verified_before) cache.cache->Verify();
    Must(sequence->Rollback(kBlock + 8));
    auto fork = Must(sequence->Fork());
    Must(cache.model.Feed(*sequence, prompt));
    const auto other = Join(std::span(prompt).first(kBlock + 8), SomeTokens(20, 2));
    Must(cache.model.Feed(*fork, other));
    EXPECT_EQ(cache.Resident(Join(prompt, prompt)), kBlock) << verified_before;
    EXPECT_EQ(cache.Resident(other), kBlock) << verified_before;
    // After a cut before the copied block it is clean again.
    Must(sequence->Rollback(kBlock));
    Must(cache.model.Feed(*sequence, prompt));
    EXPECT_EQ(cache.Resident(Join(prompt, prompt)), 2u * kBlock);
    EXPECT_EQ(cache.model.Differs(*sequence, prompt), "");
    fork->Reset();
    Must(cache.model.Feed(*fork, other));
    EXPECT_EQ(cache.Resident(Join(other, prompt)), 2u * kBlock);
    EXPECT_EQ(cache.cache->Verify().damaged, 0u);
  }
}

TEST(Verify, QuarantinedBlocksDoNotPreventOthers) {
  TestCache cache(4);
  const auto prompt = SomeTokens(2 * kBlock + 1, 1);
  cache.Run(prompt).reset();
  Damage(cache, prompt, 0);
  cache.cache->Verify();
  const auto all = cache.Open(SomeTokens(4 * kBlock, 2));
  EXPECT_EQ(cache.slots_used(), 4u);
}

}  // namespace
}  // namespace quire::cache
