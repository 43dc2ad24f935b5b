// A precision ladder: blocks that grow cold stay in the sealed form alone, which only lookups find
// that accept their error.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "cache/below/test_store.h"
#include "cache/test_util.h"

namespace quire::cache {
namespace {

using ::testing::HasSubstr;

constexpr float kAny = std::numeric_limits<float>::infinity();

// int4 keeps the whole numbers of the pretended model only roughly, f16 as they are.
NumericProfile LadderProfile(std::string_view ladder = "f16:int4") {
  NumericProfile profile = NumericProfile::Uniform(Codec::kF16);
  Must(SetLadder(ladder, profile));
  return profile;
}

const Geometry kGeometry = Geometry::Uniform(2, 2, 16);

struct LadderCache : TestCache {
  explicit LadderCache(uint64_t slots, CacheOptions more = {}, std::string_view ladder = "f16:int4")
      : TestCache(slots, kGeometry, LadderProfile(ladder), 0, std::move(more)) {}

  Plan Accept(std::span<const TokenId> prompt, float error_max = kAny) {
    return Must(cache->Acquire(
        {.identity = &identity, .tokens = prompt, .approximate_error_max = error_max}));
  }
};

class LadderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (DeviceOfTests() != nullptr) GTEST_SKIP() << "ladders need memory that the host can reach";
  }
};

TEST_F(LadderTest, WithoutPressureEverythingIsExact) {
  LadderCache test(200);
  const auto prompt = SomeTokens(300, 1);
  test.Run(prompt).reset();
  const Plan plan = test.Accept(prompt);
  EXPECT_EQ(plan.resident_tokens(), 288u);
  EXPECT_EQ(plan.approximate_tokens(), 0u);
  const auto sequence = test.Open(prompt);
  EXPECT_EQ(sequence->length(), 288u);
  Must(test.model.Feed(*sequence, prompt));
  EXPECT_EQ(test.model.Differs(*sequence, prompt), "");
  const CacheStats stats = test.cache->stats();
  EXPECT_GT(stats.key_error_mean, 0.01);
  EXPECT_LT(stats.key_error_mean, 0.2);
  EXPECT_GT(stats.value_error_mean, 0.01);
  EXPECT_LT(stats.value_error_mean, 0.2);
  EXPECT_EQ(stats.evicted_twins_total, 0u);
}

// Fills a cache with other prompts until some of the first one is left in the sealed form.
std::vector<TokenId> Demoted(LadderCache& test) {
  const auto prompt = SomeTokens(300, 1);
  test.Run(prompt).reset();
  for (uint64_t seed = 2; test.cache->stats().evicted_twins_total < 18 && seed < 20; ++seed) {
    test.Run(SomeTokens(200, seed)).reset();
  }
  return prompt;
}

TEST_F(LadderTest, WhatGrowsColdIsFoundByThoseWhoAcceptIt) {
  LadderCache test(120);
  const auto prompt = Demoted(test);
  const Plan exact = test.Acquire(prompt);
  EXPECT_EQ(exact.resident_tokens(), 0u);
  EXPECT_EQ(exact.reason(), MissReason::kApproximate);
  EXPECT_EQ(exact.missing().front().tokens, 288u);
  const Plan plan = test.Accept(prompt);
  EXPECT_EQ(plan.resident_tokens(), 288u);
  EXPECT_GT(plan.approximate_tokens(), 0u);
  EXPECT_GT(plan.approximate_error(), 0.01f);
  EXPECT_LT(plan.approximate_error(), 0.3f);
  EXPECT_GT(test.cache->stats().evicted_twins_total, 0u);
  // The bound is a bound.
  EXPECT_EQ(test.Accept(prompt, plan.approximate_error() / 100).resident_tokens(), 0u);
  EXPECT_EQ(test.Accept(prompt, plan.approximate_error()).resident_tokens(), 288u);
  EXPECT_FALSE(test.cache->Acquire(
      {.identity = &test.identity, .tokens = prompt, .approximate_error_max = -1}));
}

TEST_F(LadderTest, WhatIsComputedAfterItIsApproximateToo) {
  LadderCache test(160);
  const auto prompt = Join(Demoted(test), SomeTokens(100, 77));
  auto sequence = Must(test.cache->Open(test.Accept(prompt), {}));
  const SequenceStats stats = sequence->stats();
  EXPECT_EQ(stats.tokens_used, 288u);
  EXPECT_GT(stats.tokens_approximate, 0u);
  EXPECT_GT(stats.approximate_error, 0.01f);
  Must(test.model.Feed(*sequence, prompt));
  // It reads what it has, in both forms.
  EXPECT_THAT(test.model.Differs(*sequence, prompt), HasSubstr("wrong values"));
  EXPECT_EQ(sequence->stats().tokens_approximate, stats.tokens_approximate);
  const auto fork = Must(sequence->Fork());
  EXPECT_EQ(fork->stats().tokens_approximate, stats.tokens_approximate);
  fork->Reset();
  EXPECT_EQ(fork->stats().tokens_approximate, 0u);
  sequence->Reset();
  // Exact lookups do not find it; those that accept what it was computed from do.
  const Plan exact = test.Acquire(prompt);
  EXPECT_EQ(exact.resident_tokens(), 0u);
  EXPECT_EQ(exact.missing().front(), (MissRun{.reason = MissReason::kApproximate, .tokens = 384}));
  EXPECT_EQ(test.Accept(prompt, stats.approximate_error / 2).resident_tokens(), 0u);
  const Plan plan = test.Accept(prompt);
  EXPECT_EQ(plan.resident_tokens(), 384u);
  EXPECT_GE(plan.approximate_error(), stats.approximate_error);
  // Computed exactly it is exact.
  const auto again = Must(test.cache->Open(test.Acquire(prompt), {}));
  Must(test.model.Feed(*again, prompt));
  again->Reset();
  EXPECT_EQ(test.Resident(prompt), 384u);
}

TEST_F(LadderTest, RowsOfALowerPrecisionAreNotRewritten) {
  LadderCache test(120);
  const auto prompt = Demoted(test);
  const auto sequence = Must(test.cache->Open(test.Accept(prompt), {}));
  const auto refused = sequence->Rollback(40);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, HasSubstr("lower precision"));
  ASSERT_TRUE(sequence->Rollback(32));
  EXPECT_EQ(sequence->length(), 32u);
  Must(test.model.Feed(*sequence, prompt));
  EXPECT_FALSE(sequence->Select(std::vector<uint64_t>{0}));
}

// As kernels take them: in a split what is read open comes last.
TEST_F(LadderTest, TablesHaveAFormOfEachBlock) {
  LadderCache test(120);
  const auto prompt = Join(Demoted(test), SomeTokens(100, 77));
  const auto sequence = Must(test.cache->Open(test.Accept(prompt), {}));
  Must(test.model.Feed(*sequence, prompt));
  const LayerBlocks blocks = sequence->Blocks(1);
  EXPECT_EQ(blocks.open_blocks, kOpenWherePresent);
  uint64_t sealed_only = 0;
  for (uint64_t block = 0; block < 25; ++block) {
    const bool is_open = blocks.tables.open.slots[block] != kNoSlot;
    EXPECT_TRUE(is_open || blocks.tables.sealed.slots[block] != kNoSlot) << block;
    const bool follows = block % (kSplitTokens / kBlock) != 0;
    if (follows && !is_open) {
      EXPECT_EQ(blocks.tables.open.slots[block - 1], kNoSlot) << block;
    }
    sealed_only += is_open ? 0 : 1;
  }
  EXPECT_EQ(sealed_only * kBlock, sequence->stats().tokens_approximate);
}

// Nor do plans and sequences keep the open forms that they do not read.
TEST_F(LadderTest, NothingIsLeft) {
  LadderCache test(120);
  const auto prompt = SomeTokens(300, 1);
  test.Run(prompt).reset();
  // The open forms of the last blocks go first; those before them in the split are not read then.
  EXPECT_EQ(test.cache->Evict(1), 1u);
  EXPECT_EQ(test.cache->stats().evicted_twins_total, 1u);
  EXPECT_EQ(test.Accept(prompt).approximate_tokens(), 32u);  // the second split
  EXPECT_EQ(test.Acquire(prompt).resident_tokens(), 272u);
  Must(test.cache->Open(test.Accept(prompt), {}))->Reset();
  while (test.cache->Evict(1000) > 0) {
  }
  EXPECT_EQ(test.cache->stats().hot_bytes_used, 0u);
}

TEST_F(LadderTest, AStoreKeepsTheLowerPrecision) {
  TestStore store;
  const auto prompt = SomeTokens(300, 1);
  const auto restart = [&] {
    LadderCache test(120, {.clock = &store.clock, .store = store.store.get()});
    test.Run(prompt).reset();
    store.Turn();
    EXPECT_EQ(test.cache->stats().stored_blocks, 18u);
    // What it has is enough to give memory back.
    EXPECT_EQ(Must(test.cache->Demote({.identity = &test.identity, .tokens = prompt})), 18u);
  };
  restart();
  store.Restart();
  LadderCache test(120, {.clock = &store.clock, .store = store.store.get()});
  const Plan exact = test.Acquire(prompt);
  EXPECT_EQ(exact.loadable_tokens(), 0u);
  EXPECT_EQ(exact.reason(), MissReason::kApproximate);
  EXPECT_EQ(exact.missing().front().tokens, 288u);
  const auto load = [&](float error_max) {
    Ticket ticket = Must(test.cache->Load(test.Accept(prompt, error_max), {}));
    store.Turn();
    return ticket.Take();
  };
  const Plan refused = load(1e-6f);  // the error is known once it has come
  EXPECT_EQ(refused.resident_tokens(), 0u);
  EXPECT_EQ(refused.reason(), MissReason::kApproximate);
  Plan plan = load(kAny);
  EXPECT_EQ(plan.resident_tokens(), 288u);
  EXPECT_EQ(plan.approximate_tokens(), 288u);
  EXPECT_GT(plan.approximate_error(), 0.01f);
  EXPECT_LT(plan.approximate_error(), 0.3f);
  const auto sequence = Must(test.cache->Open(std::move(plan), {}));
  Must(test.model.Feed(*sequence, prompt));
  EXPECT_EQ(sequence->stats().tokens_approximate, 288u);
  // Computed anew they are exact again.
  test.Run(prompt).reset();
  EXPECT_EQ(test.Resident(prompt), 288u);
  EXPECT_EQ(test.Accept(prompt).approximate_tokens(), 0u);
}

/// As a FormError counts it.
float ErrorOf(const TestCache& test, const Sequence& sequence, std::span<const TokenId> tokens) {
  double largest = 0;
  for (uint32_t layer = 0; layer < kGeometry.layer_count(); ++layer) {
    for (const Stream& stream : kGeometry.groups[0].streams) {
      std::vector<float> have(tokens.size() * stream.heads * stream.dim);
      Must(sequence.Gather(layer, stream.role, 0, tokens.size(), have));
      const auto want = FakeModel::HeadsFirst(test.model.Rows(tokens, 0, layer, stream), stream);
      double noise = 0;
      double signal = 0;
      for (size_t i = 0; i < have.size(); ++i) {
        noise += (have[i] - want[i]) * (have[i] - want[i]);
        signal += want[i] * want[i];
      }
      largest = std::max(largest, std::sqrt(noise / signal));
    }
  }
  return static_cast<float>(largest);
}

TEST_F(LadderTest, AStoreHasAStepOfItsOwn) {
  constexpr std::string_view kSteps = "f16:int8:int4";
  TestStore store;
  const auto prompt = SomeTokens(300, 1);
  const auto whole = std::span(prompt).first(288);
  {
    LadderCache test(120, {.clock = &store.clock, .store = store.store.get()}, kSteps);
    test.Run(prompt).reset();
    store.Turn();
    EXPECT_EQ(test.cache->stats().stored_blocks, 18u);
    EXPECT_LT(test.cache->stats().key_error_mean, 0.02);  // int8's
  }
  store.Restart();
  LadderCache test(120, {.clock = &store.clock, .store = store.store.get()}, kSteps);
  const auto load = [&](float error_max) {
    Ticket ticket = Must(test.cache->Load(test.Accept(prompt, error_max), {}));
    store.Turn();
    return ticket.Take();
  };
  EXPECT_EQ(load(0.03f).reason(), MissReason::kApproximate);  // int8's error would do
  Plan plan = load(kAny);
  ASSERT_EQ(plan.resident_tokens(), 288u);
  EXPECT_EQ(plan.approximate_tokens(), 288u);
  const float bound = plan.approximate_error();
  auto sequence = Must(test.cache->Open(std::move(plan), {}));
  // All that a value went through counts.
  const float error = ErrorOf(test, *sequence, whole);
  EXPECT_GT(error, 0.03f);
  EXPECT_LE(error, bound);
  EXPECT_LT(bound, 1.5f * error);
  EXPECT_EQ(test.cache->Verify().damaged, 0u);
  // The store has it for good: what is evicted comes back with the same error.
  sequence.reset();
  while (test.cache->Evict(1000) > 0) {
  }
  Plan again = load(kAny);
  ASSERT_EQ(again.resident_tokens(), 288u);
  EXPECT_EQ(again.approximate_error(), bound);
}

TEST_F(LadderTest, OtherStepsAreAnotherIdentity) {
  const Identity identity = SomeIdentity();
  const auto root = [&](std::string_view ladder) {
    return RootKey(identity, kGeometry, LadderProfile(ladder));
  };
  EXPECT_NE(root("f16:int8"), root("f16:int8:int4"));
  EXPECT_NE(root("f16:int8:nf4"), root("f16:int8:int4"));
}

TEST_F(LadderTest, WhatCannotHaveOneIsRefusedByName) {
  CacheOptions options = {.geometry = kGeometry, .profile = LadderProfile(), .hot_bytes = 1 << 24};
  options.geometry.groups[0].kind = LayerKind::kWindow;
  options.geometry.groups[0].window_tokens = 64;
  const auto windows = Cache::Create(options);
  ASSERT_FALSE(windows);
  EXPECT_THAT(windows.error().message, HasSubstr("precision ladder"));
  options = {.geometry = kGeometry, .hot_bytes = 1 << 24};
  options.profile = NumericProfile::Uniform(Codec::kF16);
  options.profile.residual_tokens = kPrecisionLadder;  // nothing is encoded
  EXPECT_FALSE(Cache::Create(options));
  options.profile = NumericProfile::Uniform(Codec::kF16);
  options.profile.store_codec = Codec::kInt4;
  const auto alone = Cache::Create(options);
  ASSERT_FALSE(alone);
  EXPECT_THAT(alone.error().message, HasSubstr("store_codec is int4"));
}

// Whatever is demoted, evicted and computed anew meanwhile.
TEST_F(LadderTest, ExactLookupsSeeNoDemotedBlock) {
  Prng prng(3);
  LadderCache test(90);
  const auto trunk = SomeTokens(400, 1);
  uint64_t approximate = 0;
  uint64_t exact_hits = 0;
  for (int i = 0; i < 2000; ++i) {
    const auto prompt = Join(std::span(trunk).first(prng.NextBelow(400)),
                             SomeTokens(1 + prng.NextBelow(90), i % 60));
    const bool accepts = prng.NextBelow(2) == 0;
    Plan plan = accepts ? test.Accept(prompt) : test.Acquire(prompt);
    ASSERT_TRUE(accepts || plan.approximate_tokens() == 0);
    const bool is_exact = plan.approximate_tokens() == 0;
    (is_exact ? exact_hits : approximate) += plan.resident_tokens() > 0 ? 1 : 0;
    auto sequence = Must(test.cache->Open(std::move(plan), {}));
    Must(test.model.Feed(*sequence, prompt));
    if (is_exact) {
      ASSERT_EQ(test.model.Differs(*sequence, prompt), "") << i;
    }
    sequence.reset();
    ASSERT_EQ(test.cache->Verify().damaged, 0u);
  }
  EXPECT_GT(approximate, 20u);
  EXPECT_GT(exact_hits, 20u);
}

}  // namespace
}  // namespace quire::cache
