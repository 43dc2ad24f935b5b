// What is loaded from a domain's store belongs to whichever member wrote it: after that one is
// erased nothing of it is left in the memory of a cache, wherever its load had got to.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>

#include "cache/below/test_memory_store.h"
#include "cache/below/test_store.h"
#include "cache/test_util.h"
#include "env/seen_memory.h"

namespace quire::cache {
namespace {

constexpr uint64_t kErasedLoadsBlocks = 6;

class ErasedLoadsTest : public testing::Test {
 protected:
  /// A cache that has nothing in memory; the store has a prompt that member a wrote.
  void SetUp() override {
    Make();
    Must(test_->model.Feed(*Must(test_->cache->Open(Acquire(a_), {})), prompt_));
    Must(store_.store->Flush());
    test_.reset();
    store_.Restart();
    Make();
  }
  void Make() {
    seen_ = std::make_unique<SeenMemory>(DeviceOfTests() == nullptr ? nullptr
                                                                    : &DeviceOfTests()->memory);
    CacheOptions more;
    more.memory = seen_.get();
    more.store = store_.store.get();
    more.clock = &store_.clock;
    test_ = std::make_unique<TestCache>(64, SmallGeometry(), NumericProfile::Uniform(Codec::kF16),
                                        0, more);
    Must(test_->cache->AddTenant({.name = "team", .shared = true}));
    a_ = Must(test_->cache->AddTenant({.name = "a", .domain = "team"}));
    b_ = Must(test_->cache->AddTenant({.name = "b", .domain = "team"}));
  }
  Plan Acquire(TenantId tenant) {
    return Must(
        test_->cache->Acquire({.tenant = tenant, .identity = &test_->identity, .tokens = prompt_}));
  }
  // The header of the first record stays as it is.
  void DamageFirst() { (*store_.files.Contents("store/segment-000000"))[4096] ^= std::byte{1}; }
  uint64_t BytesInMemory() const {
    const auto bytes = std::span(OnHost(seen_->arena().data()), seen_->arena().size());
    return bytes.size() - static_cast<uint64_t>(std::ranges::count(bytes, std::byte{0}));
  }

  /// The test must be able to fail. On the tests' device free slots read as zeros already.
  void ExpectBytes() const {
    if (DeviceOfTests() != nullptr) return;
    EXPECT_GT(BytesInMemory(), 0);
  }

  const std::vector<TokenId> prompt_ = SomeTokens(kErasedLoadsBlocks * kBlock + 5, 1);
  TestStore store_;
  std::unique_ptr<SeenMemory> seen_;  // outlives the cache
  std::unique_ptr<TestCache> test_;
  TenantId a_, b_;
};

// A part of the end came while the front is computed; it is not attached after the erasure.
TEST_F(ErasedLoadsTest, WhatCameBeforeAnErasureIsNotAttachedAfterIt) {
  Ticket ticket = Must(test_->cache->Load(Acquire(b_), {.order = LoadOrder::kFromEnd}));
  auto front = Must(test_->cache->Open(ticket.Front(1), {.on_full = OnFull::kHalt}));
  while (ticket.progress().meet_tokens == kErasedLoadsBlocks * kBlock) {
    store_.transfers->Tick(0);
    store_.clock.Advance(1);
  }
  const uint64_t meet = ticket.progress().meet_tokens;
  ASSERT_GT(meet, 0) << "the test must be able to fail";
  Must(test_->cache->Erase(a_));
  Must(test_->model.Feed(*front, std::span(prompt_).first(meet)));
  ticket.Meet(meet);
  store_.Turn();
  EXPECT_LE(ticket.Take().resident_tokens(), meet);
  EXPECT_LE(Acquire(b_).resident_tokens(), meet);
  EXPECT_EQ(test_->cache->stats().loaded_total, 0);
  front.reset();
  while (test_->cache->Evict(100) > 0) {
  }
  Must(test_->cache->Erase(b_));
  EXPECT_EQ(BytesInMemory(), 0);
}

// The disk is slow with the first blocks, of which the erasure does not wait; the others came
// before it.
class ErasedBesideSlowReads : public testing::Test {
 protected:
  static constexpr uint64_t kSlow = 3;  // blocks
  static constexpr uint64_t kWhole = kErasedLoadsBlocks * kBlock;

  void SetUp() override {
    auto memory_store = std::make_unique<MemoryStore>();
    memory_store->held = [](const tier::LoadRequest& load) {
      return load.identity.block_index < kSlow;
    };
    auto made = std::make_unique<transfer::Transfers>(std::move(memory_store), SystemClock());
    transfer::Transfers& transfers = *made;
    store_ = StoreState::Wrap(std::move(made));
    CacheOptions more;
    more.store = store_.get();
    more.memory = &seen_;
    test_ = std::make_unique<TestCache>(64, SmallGeometry(), NumericProfile::Uniform(Codec::kF16),
                                        0, more);
    Must(test_->cache->AddTenant({.name = "team", .shared = true}));
    const TenantId a = Must(test_->cache->AddTenant({.name = "a", .domain = "team"}));
    const TenantId b = Must(test_->cache->AddTenant({.name = "b", .domain = "team"}));
    const auto acquire = [&](TenantId tenant) {
      return Must(test_->cache->Acquire(
          {.tenant = tenant, .identity = &test_->identity, .tokens = prompt_}));
    };
    Must(test_->model.Feed(*Must(test_->cache->Open(acquire(a), {})), prompt_));
    Must(store_->Flush());
    while (test_->cache->Evict(100) > 0) {
    }
    ticket_.emplace(Must(test_->cache->Load(acquire(b), {.order = LoadOrder::kFromEnd})));
    front_ = Must(test_->cache->Open(ticket_->Front(1), {.on_full = OnFull::kHalt}));
    while (ticket_->progress().meet_tokens > kSlow * kBlock) transfers.Tick(0);
    Must(test_->cache->Erase(a));
  }
  uint64_t BytesInMemory() const {
    const auto bytes = std::span(OnHost(seen_.arena().data()), seen_.arena().size());
    return bytes.size() - static_cast<uint64_t>(std::ranges::count(bytes, std::byte{0}));
  }

  const std::vector<TokenId> prompt_ = SomeTokens(kWhole + 5, 1);
  SeenMemory seen_{DeviceOfTests() == nullptr ? nullptr : &DeviceOfTests()->memory};
  std::unique_ptr<DiskStore> store_;
  std::unique_ptr<TestCache> test_;
  std::optional<Ticket> ticket_;
  std::unique_ptr<Sequence> front_;
};

TEST_F(ErasedBesideSlowReads, WhatMeetsTheFrontIsNotAttached) {
  Must(test_->model.Feed(*front_, std::span(prompt_).first(kSlow * kBlock)));
  ticket_->Meet(kSlow * kBlock);
  EXPECT_EQ(ticket_->Take().resident_tokens(), kSlow * kBlock);
  EXPECT_EQ(test_->cache->stats().loaded_total, 0);
}

TEST_F(ErasedBesideSlowReads, NothingIsLeftOfWhatIsComputedAfterItCame) {
  Must(test_->model.Feed(*front_, std::span(prompt_).first(kWhole)));
  const uint64_t before = BytesInMemory();
  ticket_->Meet(kWhole);
  static_cast<void>(ticket_->Take());
  // On the tests' device free slots read as zeros already.
  if (DeviceOfTests() == nullptr) {
    EXPECT_LT(BytesInMemory(), before);
  }
}

// The first block is damaged, so what came of the others is attached to nothing.
TEST_F(ErasedLoadsTest, NothingIsLeftOfALoadThatAnErasureOvertook) {
  DamageFirst();
  Ticket ticket = Must(test_->cache->Load(Acquire(b_), {}));
  store_.Turn();
  ExpectBytes();
  Must(test_->cache->Erase(a_));
  EXPECT_EQ(ticket.Take().resident_tokens(), 0);
  EXPECT_EQ(BytesInMemory(), 0);
}

TEST_F(ErasedLoadsTest, NothingIsLeftOfALoadThatEndedBefore) {
  DamageFirst();
  EXPECT_EQ(Must(test_->cache->Load(Acquire(b_), {})).Take().resident_tokens(), 0);
  ExpectBytes();
  Must(test_->cache->Erase(a_));
  EXPECT_EQ(BytesInMemory(), 0);
}

TEST_F(ErasedLoadsTest, NothingIsLeftOfWhatWasLoadedAndEvictedBefore) {
  EXPECT_EQ(Must(test_->cache->Load(Acquire(b_), {})).Take().resident_tokens(),
            kErasedLoadsBlocks * kBlock);
  while (test_->cache->Evict(100) > 0) {
  }
  ExpectBytes();
  Must(test_->cache->Erase(a_));
  EXPECT_EQ(BytesInMemory(), 0);
}

TEST_F(ErasedLoadsTest, NothingIsLeftOfWhatIsThere) {
  EXPECT_EQ(Must(test_->cache->Load(Acquire(b_), {})).Take().resident_tokens(),
            kErasedLoadsBlocks * kBlock);
  Must(test_->cache->Erase(a_));
  EXPECT_EQ(BytesInMemory(), 0);
}

}  // namespace
}  // namespace quire::cache
