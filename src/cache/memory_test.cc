// Bytes follow tokens: blocks, budget, resident set. SPEC M1, S1 and the accounts behind them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cache/test_util.h"
#include "env/machine.h"

namespace quire::cache {
namespace {

using ::testing::HasSubstr;

TEST(Memory, AHundredTokensOfQwen3HoldSevenBlocksAtALimitOf200k) {
  if (kResidentBytesIncludeShadow) GTEST_SKIP() << "a sanitizer's shadow is resident too";
  const Geometry qwen3 = Geometry::Uniform(/*layers=*/28, /*kv_heads=*/8, /*head_dim=*/128);
  constexpr uint64_t kBlockBytes = 28 * 2 * 8 * 128 * kBlock * 2;
  const auto cache = Must(Cache::Create({.geometry = qwen3,
                                         .profile = NumericProfile::Uniform(Codec::kF16),
                                         .hot_bytes = 24'000'000'000,
                                         .tokens_max = 200'000}));
  EXPECT_EQ(cache->block_bytes(), kBlockBytes);
  const FakeModel model(qwen3);
  const Identity identity = SomeIdentity();
  const std::vector<TokenId> prompt = SomeTokens(100, 1);
  const uint64_t resident_before = Must(ResidentBytes());
  auto sequence =
      Must(cache->Open(Must(cache->Acquire({.identity = &identity, .tokens = prompt})), {}));
  Must(model.Feed(*sequence, prompt));
  const uint64_t grown = Must(ResidentBytes()) - resident_before;

  EXPECT_EQ(cache->stats().sealed.slots_used, 7u);
  EXPECT_EQ(sequence->stats().tokens_used, 100u);
  EXPECT_EQ(sequence->stats().tokens_reserved, 7u * kBlock);
  EXPECT_GE(grown, 6 * kBlockBytes) << "the pages must count, or this test shows nothing";
  EXPECT_LT(grown, 50'000'000u);

  sequence->Reset();
  cache->Evict(1000);
  EXPECT_EQ(cache->stats().sealed.slots_used, 0u);
  EXPECT_EQ(cache->Trim(), 7 * kBlockBytes);
  EXPECT_EQ(cache->Trim(), 0u) << "nothing is left to give back";
  const uint64_t resident_after = Must(ResidentBytes());
  EXPECT_LT(resident_after, resident_before + 2'000'000);
}

TEST(Memory, EightSequencesHoldSharedBlocksAndTheirTails) {
  TestCache cache(1000);
  const std::vector<TokenId> prefix = SomeTokens(1000, 1);
  constexpr uint64_t kShared = 1000 / kBlock;
  std::vector<std::unique_ptr<Sequence>> sequences;
  std::vector<std::vector<TokenId>> histories;
  uint64_t own = 0;
  for (uint64_t i = 0; i < 8; ++i) {
    histories.push_back(Join(prefix, SomeTokens(1 + 37 * i, 100 + i)));
    sequences.push_back(cache.Run(histories.back()));
    own += (histories.back().size() + kBlock - 1) / kBlock - kShared;
    EXPECT_EQ(cache.slots_used(), kShared + own);
  }
  const CacheStats stats = cache.cache->stats();
  EXPECT_EQ(stats.sealed.slots_used * stats.sealed.slot_bytes,
            (kShared + own) * cache.cache->block_bytes());
  EXPECT_EQ(SlotCharges(stats), (kShared + own) * cache.charge_bytes);
  EXPECT_EQ(stats.sequences, 8u);
  for (uint64_t i = 0; i < 8; ++i) {
    EXPECT_EQ(cache.model.Differs(*sequences[i], histories[i]), "");
    const SequenceStats one = sequences[i]->stats();
    EXPECT_EQ(one.blocks_shared, histories[i].size() / kBlock);
    EXPECT_EQ(one.blocks_shared + one.blocks_own, (histories[i].size() + kBlock - 1) / kBlock);
  }
}

TEST(Memory, ASlotIsChargedItsPagesAndItsBookkeeping) {
  for (const uint32_t block_tokens : {16u, 64u, 256u}) {
    const auto profile = NumericProfile::Uniform(Codec::kF32, block_tokens);
    const Geometry geometry = SmallGeometry();
    const uint64_t slot_bytes = uint64_t{2} * 2 * 2 * 4 * 4 * block_tokens;
    const uint64_t page_bytes = (slot_bytes + 4095) / 4096 * 4096;
    EXPECT_GE(ChargePerSlot(geometry, profile), page_bytes + 2 * sizeof(TokenId) * block_tokens);
    EXPECT_LE(ChargePerSlot(geometry, profile), page_bytes + 4096);
  }
}

TEST(Memory, ThePeakIsKeptAndTheBudgetIsReachedExactly) {
  TestCache cache(5);
  uint64_t used = 0;
  {
    const auto sequence = cache.Open(SomeTokens(5 * kBlock, 1));
    const CacheStats full = cache.cache->stats();
    EXPECT_EQ(SlotCharges(full), 5 * cache.charge_bytes);
    EXPECT_GT(full.sequence_bytes, 0u);
    used = full.hot_bytes_used;
  }
  const CacheStats stats = cache.cache->stats();
  EXPECT_EQ(stats.hot_bytes_used, 0u);
  EXPECT_EQ(stats.hot_bytes_peak, used);
  EXPECT_EQ(stats.sealed.slots_used_peak, 5u);
  EXPECT_EQ(stats.sealed.slots_max, 5u);
}

TEST(Memory, RejectReservesAllAtOpenOrRefuses) {
  TestCache cache(6);
  const auto prompt = SomeTokens(40, 1);
  {
    const auto sequence = cache.Open(prompt, {.reserve_tokens = 6 * kBlock});
    EXPECT_EQ(cache.slots_used(), 6u);
    EXPECT_EQ(sequence->stats().tokens_reserved, 6u * kBlock);
  }
  const auto other = cache.Open(SomeTokens(20, 2));  // 2 of 6
  const std::string before = cache.Snapshot();
  Plan plan = cache.Acquire(prompt);
  const auto refused = cache.cache->Open(std::move(plan), {.reserve_tokens = 5 * kBlock});
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kNoSpace);
  EXPECT_THAT(refused.error().message, HasSubstr("0 shared and 5 own"));
  EXPECT_THAT(refused.error().message, HasSubstr("4 free or evictable of 6"));
  EXPECT_EQ(cache.cache->stats().refused_total, 1u);
  // The only difference is the lookup that Acquire counted.
  EXPECT_EQ(cache.cache->BlockMap(), before.substr(before.find('\n') + 1));
}

TEST(Memory, HaltReservesThePromptAndRefusesOnlyWhatDoesNotFit) {
  TestCache cache(3);
  const auto prompt = SomeTokens(2 * kBlock, 1);
  const auto history = Join(prompt, SomeTokens(kBlock + 1, 2));
  const auto sequence =
      cache.Open(prompt, {.reserve_tokens = 100 * kBlock, .on_full = OnFull::kHalt});
  EXPECT_EQ(cache.slots_used(), 2u);
  Must(cache.model.Feed(*sequence, prompt));
  Must(cache.model.Feed(*sequence, std::span(history).first(3 * kBlock)));
  const std::string before = cache.Snapshot();
  const auto full = cache.model.Feed(*sequence, history);
  ASSERT_FALSE(full.has_value());
  EXPECT_EQ(full.error().code, ErrorCode::kNoSpace);
  EXPECT_EQ(cache.Snapshot(), before);
  // The sequence stays usable: it reads, rolls back and continues differently.
  EXPECT_EQ(cache.model.Differs(*sequence, std::span(history).first(3 * kBlock)), "");
  Must(sequence->Rollback(2 * kBlock));
  const auto detour = Join(prompt, SomeTokens(5, 3));
  cache.cache->Evict(1);
  Must(cache.model.Feed(*sequence, detour));
  EXPECT_EQ(cache.model.Differs(*sequence, detour), "");
}

TEST(Memory, ARequestThatCanNeverFitSaysSo) {
  TestCache cache(3);
  for (const OnFull on_full : {OnFull::kReject, OnFull::kHalt}) {
    const auto refused = cache.TryOpen(SomeTokens(3 * kBlock + 1, 1), {.on_full = on_full});
    ASSERT_FALSE(refused.has_value());
    EXPECT_EQ(refused.error().code, ErrorCode::kTooLarge);
    EXPECT_THAT(refused.error().message, HasSubstr("can never fit"));
    EXPECT_THAT(refused.error().message, HasSubstr("4 blocks"));
  }
  EXPECT_EQ(cache.cache->stats().refused_total, 2u);
  EXPECT_EQ(cache.slots_used(), 0u);
}

TEST(Memory, ARefusedOpenDropsThePlansPins) {
  TestCache cache(4);
  const auto prompt = SomeTokens(2 * kBlock + 1, 1);
  cache.Run(prompt).reset();
  const auto holder = cache.Open(SomeTokens(kBlock, 2));
  ASSERT_FALSE(cache.TryOpen(prompt, {.reserve_tokens = 4 * kBlock}).has_value());
  EXPECT_EQ(cache.cache->stats().evictable_blocks, 2u) << "refused, so nothing was evicted";
  EXPECT_EQ(cache.cache->Evict(10), 2u);
}

TEST(Memory, RefusesPromptsThatCanNeverWork) {
  const auto cache = Must(Cache::Create({.geometry = SmallGeometry(),
                                         .profile = NumericProfile::Uniform(Codec::kF16),
                                         .hot_bytes = 1 << 20,
                                         .tokens_max = 100}));
  const Identity identity = SomeIdentity();
  const auto prompt = SomeTokens(101, 1);
  const auto refused = [&cache](const AcquireRequest& request, const std::string& names) {
    const auto plan = cache->Acquire(request);
    ASSERT_FALSE(plan.has_value());
    EXPECT_EQ(plan.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(plan.error().message, HasSubstr(names));
  };
  refused({.identity = nullptr, .tokens = prompt}, "identity");
  refused({.identity = &identity, .tokens = {}}, "no tokens");
  refused({.identity = &identity, .tokens = prompt}, "101 tokens");
  EXPECT_EQ(cache->stats().lookups, 0u);
  const auto open = cache->Open(
      Must(cache->Acquire({.identity = &identity, .tokens = std::span(prompt).first(100)})),
      {.reserve_tokens = 101});
  ASSERT_FALSE(open.has_value());
  EXPECT_EQ(open.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(open.error().message, HasSubstr("tokens_max"));
}

TEST(Memory, StatisticsAsJsonAndText) {
  TestCache cache(8);
  const auto sequence = cache.Run(SomeTokens(20, 1));
  const std::string json = ToJson(cache.cache->stats());
  EXPECT_THAT(json, HasSubstr("\"published_blocks\":1,"));
  EXPECT_THAT(json, HasSubstr("\"lookup_tokens\":20,"));
  EXPECT_THAT(json, HasSubstr("\"slots_used\":2,"));
  EXPECT_THAT(ToText(cache.cache->stats()), HasSubstr("sealed.slots_used"));
  EXPECT_EQ(ToJson(sequence->stats()),
            R"({"tokens_used":20,"tokens_reserved":32,"tokens_max":1048576,)"
            R"("blocks_shared":1,"blocks_own":1,"bytes":2048,"tokens_streamed":0,)"
            R"("tokens_approximate":0,"approximate_error":0.0})");
}

TEST(Memory, ForksShareTheirPathAndPayForWhatTheyAdd) {
  TestCache cache(700);
  const auto tokens = SomeTokens(500 * kBlock + 3, 1);
  const auto sequence = cache.Run(tokens);
  const CacheStats before = cache.cache->stats();
  std::vector<std::unique_ptr<Sequence>> forks;
  for (int i = 0; i < 20; ++i) forks.push_back(Must(sequence->Fork()));
  const CacheStats with = cache.cache->stats();
  EXPECT_EQ(with.sealed.slots_used, before.sealed.slots_used + 20) << "copies of the open block";
  EXPECT_EQ(SlotCharges(with), SlotCharges(before) + 20 * cache.charge_bytes);
  EXPECT_GT(with.sequence_bytes, before.sequence_bytes);
  // A list of its own would take more than 500 * 72 bytes.
  EXPECT_LT((with.sequence_bytes - before.sequence_bytes) / 20, 10'000u);
  forks.clear();
  EXPECT_EQ(cache.cache->stats().hot_bytes_used, before.hot_bytes_used);
}

TEST(Memory, AForkPaysForSharedEntriesThatItMakesItsOwn) {
  constexpr uint64_t kKept = 60;  // in the first chunk of entries, which is shared
  constexpr uint64_t kEntriesBytes = kKept * (kBlock * sizeof(TokenId) + sizeof(BlockId));
  TestCache cache(700);
  const auto sequence = cache.Run(SomeTokens(450 * kBlock, 1));
  const uint64_t alone = cache.cache->stats().sequence_bytes;
  auto fork = Must(sequence->Fork());
  EXPECT_LT(cache.cache->stats().sequence_bytes, alone + kEntriesBytes);
  Must(fork->Rollback(kKept * kBlock));
  EXPECT_GE(cache.cache->stats().sequence_bytes, alone + kEntriesBytes);
  fork.reset();
  EXPECT_EQ(cache.cache->stats().sequence_bytes, alone);
}

TEST(Memory, AForkThatTheBudgetCannotPayForIsRefused) {
  TestCache cache(4);
  const auto tokens = SomeTokens(4 * kBlock, 1);
  const auto sequence = cache.Run(tokens);
  std::vector<std::unique_ptr<Sequence>> forks;
  while (true) {
    const std::string before = cache.Snapshot();
    auto fork = sequence->Fork();
    if (!fork) {
      EXPECT_EQ(fork.error().code, ErrorCode::kNoSpace) << fork.error().message;
      EXPECT_EQ(cache.Snapshot(), before);
      break;
    }
    forks.push_back(*std::move(fork));
    ASSERT_LT(forks.size(), 100u);
    ASSERT_LE(cache.cache->stats().hot_bytes_used, cache.cache->stats().hot_bytes_limit);
  }
  EXPECT_GT(forks.size(), 0u);
  for (const auto& fork : forks) EXPECT_EQ(cache.model.Differs(*fork, tokens), "");
  EXPECT_EQ(cache.model.Differs(*sequence, tokens), "");
}

TEST(Memory, SharedEntriesArePaidForByTheSequencesThatShareThem) {
  TestCache cache(300);
  const auto prompt = SomeTokens(200 * kBlock + 1, 1);
  cache.Run(prompt).reset();
  const uint64_t slots_only = cache.cache->stats().hot_bytes_used;
  EXPECT_EQ(cache.cache->stats().sequence_bytes, 0u);
  const auto hit = cache.Open(prompt);
  EXPECT_GE(cache.cache->stats().sequence_bytes, 200 * (kBlock * sizeof(TokenId)));
  EXPECT_EQ(SlotCharges(cache.cache->stats()), slots_only + cache.charge_bytes);
}

}  // namespace
}  // namespace quire::cache
