// What the store below a cache was promised to have, or not to have any more, when something else
// happens in between.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "base/float_bits.h"
#include "cache/test_store.h"
#include "cache/test_util.h"
#include "env/seen_memory.h"
#include "tier/warm.h"

namespace quire::cache {
namespace {

constexpr uint32_t kBlock = TestCache::kBlock;

class StorePromisesTest : public testing::Test {
 protected:
  void SetUp() override {
    if (DeviceOfTests() != nullptr) GTEST_SKIP() << "the host cannot look into its memory";
  }

  std::unique_ptr<TestCache> Make(uint64_t slots = 64) {
    CacheOptions more;
    more.store = store_.store.get();
    more.clock = &store_.clock;
    more.memory = &memory_;
    return std::make_unique<TestCache>(slots, SmallGeometry(), NumericProfile::Uniform(Codec::kF16),
                                       0, more);
  }
  /// How often the first keys of a block of the prompt lie somewhere in the arena.
  uint64_t CopiesOf(uint64_t block) const {
    const FakeModel model(SmallGeometry());
    const Stream& stream = model.GroupOf(0).streams[0];
    const auto rows = FakeModel::HeadsFirst(
        model.Rows(std::span(prompt_).first((block + 1) * kBlock), block * kBlock, 0, stream),
        stream);
    std::array<uint16_t, 16> codes{};
    for (size_t i = 0; i < codes.size(); ++i) codes[i] = F32ToF16(rows[i]);
    uint64_t copies = 0;
    for (const auto stretch : memory_.stretches()) {
      for (uint64_t at = 0; at + sizeof(codes) <= stretch.size(); at += sizeof(uint16_t)) {
        copies += std::memcmp(stretch.data() + at, codes.data(), sizeof(codes)) == 0 ? 1 : 0;
      }
    }
    return copies;
  }

  TestStore store_;
  SeenMemory memory_;
  const std::vector<TokenId> prompt_ = SomeTokens(10 * kBlock + 5, 1);
};

TEST_F(StorePromisesTest, ALoadThatEndsAfterAnErasureLeavesNoBytesInMemory) {
  const auto test = Make();
  const TenantId alice = Must(test->cache->AddTenant({.name = "alice"}));
  const auto acquire = [&] {
    return Must(
        test->cache->Acquire({.tenant = alice, .identity = &test->identity, .tokens = prompt_}));
  };
  Must(test->model.Feed(*Must(test->cache->Open(acquire(), {})), prompt_));
  EXPECT_GT(CopiesOf(3), 0) << "the test must be able to fail";
  Must(store_.store->Flush());
  while (test->cache->Evict(100) > 0) {
  }
  Plan plan = acquire();
  ASSERT_EQ(plan.loadable_tokens(), 10 * kBlock);
  Ticket ticket = Must(test->cache->Load(std::move(plan), {}));
  store_.Turn();  // everything has come, and nobody has asked for it
  EXPECT_GT(CopiesOf(3), 0);
  Must(test->cache->Erase(alice));
  EXPECT_EQ(ticket.Take().resident_tokens(), 0);
  EXPECT_EQ(test->cache->stats().published_blocks, 0);
  for (uint64_t block = 0; block < 10; ++block) EXPECT_EQ(CopiesOf(block), 0) << block;
}

// The disk failed when it was put, so it is in the warm tier alone until it is written again.
TEST_F(StorePromisesTest, WhatTheWarmTierAloneHasIsWrittenBelowAgain) {
  store_.store.reset();
  {
    auto cold = Must(tier::ColdStore::Open(store_.options, store_.files, store_.clock));
    auto warm = std::make_unique<tier::WarmStore>(tier::WarmOptions{.bytes_cap = 4 << 20},
                                                  store_.clock, std::move(cold));
    auto mover = std::make_unique<Mover>(std::move(warm), store_.clock, 0);
    store_.mover = mover.get();
    store_.store = StoreState::Wrap(std::move(mover));
    const auto test = Make();
    store_.files.set_rates({.write_error = 1});
    RunThrough(*test, prompt_);
    EXPECT_FALSE(store_.store->Flush());
    while (test->cache->Evict(100) > 0) {
    }
    store_.files.set_rates({});
    EXPECT_EQ(RunThrough(*test, prompt_).loadable, 10 * kBlock);
    Must(store_.store->Flush());
  }
  store_.Restart();
  EXPECT_EQ(Make()->Acquire(prompt_).loadable_tokens(), 10 * kBlock);
}

TEST_F(StorePromisesTest, APowerCutLeavesTheFrontOfAStreamedContext) {
  const auto tokens = SomeTokens(88 * kBlock, 2);
  uint64_t front = 0;
  {
    const auto test = Make(160);
    const auto sequence = test->Open(tokens, {.reserve_tokens = tokens.size(),
                                              .step_tokens = 8,
                                              .resident_tokens = 200,
                                              .query_heads = 1});
    while (sequence->length() < tokens.size()) {
      Must(test->model.Feed(*sequence, std::span(tokens).first(sequence->length() + 8)));
    }
    front = sequence->streamed()->tokens();
    store_.files.LosePower();
  }
  store_.store.reset();
  store_.files.Restart();
  store_.Open();
  EXPECT_GE(front, 1024);
  EXPECT_GE(Make(160)->Acquire(tokens).loadable_tokens(), front);
}

}  // namespace
}  // namespace quire::cache
