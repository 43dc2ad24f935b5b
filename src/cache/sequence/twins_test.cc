// Twins: a prompt whose last tokens are read open is found up to where open forms were kept.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

#include "cache/below/records.h"
#include "cache/below/store_state.h"
#include "cache/below/test_memory_store.h"
#include "cache/sequence/twins_test_util.h"
#include "env/clock.h"

namespace quire::cache {
namespace {

using ::testing::HasSubstr;

constexpr uint32_t kResidual = 2 * kBlock;

struct TwinsCache : TestCache {
  explicit TwinsCache(uint64_t slots = 100, uint32_t residual_tokens = kResidual)
      : TestCache(slots, Geometry::Uniform(2, 2, 16), ResidualProfile(residual_tokens)) {}

  uint64_t twins() const { return cache->stats().twin_slots; }
  uint64_t open_used() const { return cache->stats().open.slots_used; }
};

std::vector<MissRun> Missing(const Plan& plan) {
  return {plan.missing().begin(), plan.missing().end()};
}

TEST(Twins, APromptIsFoundUpToItsEndOnly) {
  for (const uint32_t residual : {1u, 16u, 17u, 128u}) {
    const uint64_t count = (residual + kBlock - 1) / kBlock;
    for (const uint64_t length : {100u, 96u, 97u, 15u, 16u, 17u}) {
      TwinsCache cache(100, residual);
      const auto tokens = SomeTokens(length, 1);
      cache.Run(tokens).reset();
      const uint64_t whole = length / kBlock;
      const uint64_t again = (length - 1) / kBlock;
      EXPECT_EQ(cache.twins(), std::min(whole, count + (whole == again ? 0 : 1)));
      EXPECT_EQ(cache.open_used(), cache.twins());
      EXPECT_EQ(cache.Resident(tokens), again * kBlock);
      EXPECT_EQ(cache.Resident(Join(tokens, SomeTokens(40, 2))), whole * kBlock);
      // The open forms of all blocks are there if the prompt is short.
      for (uint64_t shorter = 1; shorter < length; ++shorter) {
        const uint64_t blocks = (shorter - 1) / kBlock;
        const Plan plan = cache.Acquire(std::span(tokens).first(shorter));
        const bool twins = blocks - std::min(blocks, count) >= whole - cache.twins();
        EXPECT_EQ(plan.resident_tokens(), twins ? blocks * kBlock : 0) << shorter;
        if (!twins && blocks > 0) {
          EXPECT_EQ(
              Missing(plan),
              (std::vector<MissRun>{
                  {.reason = MissReason::kNoTwin, .tokens = blocks * kBlock},
                  {.reason = MissReason::kPartialBlock, .tokens = shorter - blocks * kBlock}}));
        }
      }
    }
  }
}

TEST(Twins, ATurnsEndIsAPlaceToGoOnFrom) {
  TwinsCache cache;
  auto history = SomeTokens(50, 1);
  auto sequence = cache.Run(history);
  for (int i = 0; i < 100; ++i) {
    history.push_back(i);
    Must(cache.model.Feed(*sequence, history));
  }
  const auto longer = Join(history, SomeTokens(30, 2));
  // While the sequence runs only its prompt's end has twins.
  EXPECT_EQ(cache.Resident(longer), 48u);
  sequence.reset();
  EXPECT_EQ(cache.Resident(longer), 144u);
  EXPECT_EQ(cache.twins(), 4u);
  const Plan plan = cache.Acquire(std::span(history).first(120));
  EXPECT_EQ(plan.resident_tokens(), 48u);
  EXPECT_EQ(Missing(plan),
            (std::vector<MissRun>{{.reason = MissReason::kNoTwin, .tokens = 64},
                                  {.reason = MissReason::kPartialBlock, .tokens = 8}}));
  // The same tokens as a prompt keep twins at an end of their own.
  cache.Run(std::span(history).first(120)).reset();
  EXPECT_EQ(cache.Resident(std::span(history).first(120)), 112u);
  EXPECT_EQ(cache.cache->tenant_stats(kDefaultTenant)
                ->missed_tokens[static_cast<size_t>(MissReason::kNoTwin)],
            96u + 64u + 64u);
}

TEST(Twins, AHitReadsTheBytesOfTheMissAndGoesOnAlike) {
  for (const Codec codec : {Codec::kFp8E4m3, Codec::kInt8, Codec::kNf4, Codec::kQ25}) {
    for (const uint32_t residual : {16u, 128u}) {
      TestCache cache(200, Geometry::Uniform(2, 2, 16), ResidualProfile(residual, codec));
      const auto prompt = SomeTokens(300, 1);
      const auto miss = cache.Run(prompt, {.publish = false});
      cache.Run(prompt).reset();
      const auto hit = cache.Open(prompt);
      EXPECT_EQ(hit->length(), 288u);
      auto history = prompt;
      for (int i = 0; i < 200; i += 7) {
        Must(cache.model.Feed(*hit, history));
        Must(cache.model.Feed(*miss, history));
        for (const uint32_t layer : {0u, 1u}) {
          EXPECT_EQ(ReadAtEnd(*hit, layer, kBlock), ReadAtEnd(*miss, layer, kBlock)) << i;
        }
        history = Join(history, SomeTokens(7, 100 + i));
      }
      EXPECT_EQ(cache.cache->Verify().damaged, 0u);
    }
  }
}

TEST(Twins, OpenFormsLiveAsLongAsALaterRowReadsThem) {
  TwinsCache cache;
  const auto tokens = SomeTokens(32 * kBlock, 1);
  const auto sequence = cache.Open(tokens, {.step_tokens = 64, .publish = false});
  for (uint64_t end = 64; end <= tokens.size(); end += 64) {
    Must(cache.model.Feed(*sequence, std::span(tokens).first(end)));
    EXPECT_LE(cache.open_used(), 64u / kBlock + 1 + 2);
  }
  EXPECT_EQ(cache.open_used(), 2u);
  sequence->Reset();
  EXPECT_EQ(cache.open_used(), 0u);
  EXPECT_EQ(SlotCharges(cache.cache->stats()), 0u) << "but for the sequence itself";
}

TEST(Twins, GoBeforeTheirBlock) {
  TwinsCache cache;
  const auto tokens = SomeTokens(6 * kBlock + 1, 1);
  cache.Run(tokens).reset();
  ASSERT_EQ(cache.twins(), 2u);
  const uint64_t used = cache.cache->stats().hot_bytes_used;
  EXPECT_EQ(cache.cache->Evict(1), 1u);
  EXPECT_EQ(cache.twins(), 1u);
  EXPECT_LT(cache.cache->stats().hot_bytes_used, used);
  EXPECT_EQ(cache.cache->stats().published_blocks, 6u);
  EXPECT_EQ(cache.cache->stats().evicted_passed_total, 1u);
  // With one of two twins the position cannot be used.
  const Plan plan = cache.Acquire(tokens);
  EXPECT_EQ(plan.resident_tokens(), 0u);
  EXPECT_EQ(plan.reason(), MissReason::kNoTwin);
  EXPECT_EQ(cache.cache->Evict(1000), 7u);
  EXPECT_EQ(cache.twins(), 0u);
  EXPECT_EQ(cache.cache->stats().hot_bytes_used, 0u);
}

TEST(Twins, OfALiveSequenceGoForOthersAndAreKeptAgain) {
  TwinsCache cache;
  auto history = SomeTokens(50, 1);
  const auto sequence = cache.Run(history);
  history = Join(history, SomeTokens(50, 2));
  Must(cache.model.Feed(*sequence, history));
  ASSERT_EQ(cache.twins(), 2u);  // outside the window, without holders
  EXPECT_EQ(cache.cache->Evict(1000), 2u);
  EXPECT_EQ(cache.twins(), 0u);
  EXPECT_EQ(cache.cache->stats().published_blocks, 6u);
  EXPECT_EQ(cache.Resident(history), 0u);
  cache.Run(history).reset();
  EXPECT_EQ(cache.Resident(history), 96u);
}

TEST(Twins, AreHeldByThePlansAndSequencesThatReadThem) {
  TwinsCache cache;
  const auto tokens = SomeTokens(6 * kBlock + 1, 1);
  cache.Run(tokens).reset();
  {
    const Plan plan = cache.Acquire(tokens);
    EXPECT_EQ(cache.cache->Evict(1000), 0u);
    EXPECT_EQ(cache.twins(), 2u);
  }
  const auto sequence = cache.Open(tokens);
  EXPECT_EQ(cache.cache->Evict(1000), 0u);
  EXPECT_EQ(sequence->length(), 96u);
}

TEST(Twins, AreNotKeptAtTheExpenseOfWhatWasReserved) {
  const auto prompt = SomeTokens(4 * kBlock + 1, 1);
  const uint64_t reserve = 12 * kBlock;
  for (const OnFull on_full : {OnFull::kReject, OnFull::kNoEvict}) {
    for (uint64_t slots = 8; slots < 30; ++slots) {
      TwinsCache cache(slots);
      auto opened =
          cache.TryOpen(prompt, {.reserve_tokens = reserve, .step_tokens = 40, .on_full = on_full});
      if (!opened) continue;
      auto history = prompt;
      Must(cache.model.Feed(**opened, history));
      while (history.size() < reserve) {
        history.push_back(1);
        const auto fed = cache.model.Feed(**opened, history);
        ASSERT_TRUE(fed.has_value()) << slots << " at " << history.size() << fed.error().message;
      }
    }
  }
}

TEST(Twins, StayRightOnManyThreads) {
  TwinsCache cache(24);
  std::vector<std::thread> threads;
  for (uint64_t i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      Prng prng(i);
      for (int round = 0; round < 60; ++round) {
        const auto prompt = SomeTokens(1 + prng.NextBelow(6 * kBlock), prng.NextBelow(3));
        auto opened = cache.TryOpen(prompt);
        if (!opened) continue;
        const uint64_t found = (*opened)->length();
        const auto read = ReadAtEnd(**opened, 1, kBlock);
        for (const auto& block : read) QUIRE_CHECK(!block.empty());
        QUIRE_CHECK(found < prompt.size());
        Must(cache.model.Feed(**opened, prompt));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(cache.cache->Verify().damaged, 0u);
  EXPECT_GT(cache.cache->stats().hit_tokens, 0u);
  cache.cache->Evict(1000);
  EXPECT_EQ(cache.cache->stats().hot_bytes_used, 0u);
}

TEST(Twins, PinsKeepThoseOfTheirEnd) {
  TwinsCache cache;
  const auto tokens = SomeTokens(8 * kBlock + 5, 1);
  cache.Run(std::span(tokens).first(5 * kBlock + 3)).reset();
  cache.Run(tokens).reset();
  ASSERT_EQ(cache.twins(), 4u);
  const auto request = [&](uint64_t blocks) {
    return AcquireRequest{.identity = &cache.identity,
                          .tokens = std::span(tokens).first(blocks * kBlock)};
  };
  const auto nowhere = cache.cache->Pin(request(7), 0);
  ASSERT_FALSE(nowhere.has_value());
  EXPECT_EQ(nowhere.error().code, ErrorCode::kNotFound);
  EXPECT_THAT(nowhere.error().message, HasSubstr("no twin at their end (residual_tokens 32)"));
  EXPECT_EQ(Must(cache.cache->Pin(request(8), 0)), 8u);
  cache.cache->Evict(1000);
  EXPECT_EQ(cache.twins(), 2u);
  EXPECT_EQ(cache.Resident(tokens), 8u * kBlock);
  // A shorter one adds its own.
  cache.Run(std::span(tokens).first(5 * kBlock + 3)).reset();
  const uint64_t before = cache.cache->tenant_stats(kDefaultTenant)->pinned_bytes;
  EXPECT_EQ(Must(cache.cache->Pin(request(5), 0)), 5u);
  EXPECT_GT(cache.cache->tenant_stats(kDefaultTenant)->pinned_bytes, before);
  cache.cache->Evict(1000);
  EXPECT_EQ(cache.Resident(std::span(tokens).first(5 * kBlock + 1)), 5u * kBlock);
  Must(cache.cache->Unpin(request(8)));
  Must(cache.cache->Unpin(request(5)));
  EXPECT_EQ(cache.cache->tenant_stats(kDefaultTenant)->pinned_bytes, 0u);
  cache.cache->Evict(1000);
  EXPECT_EQ(cache.cache->stats().hot_bytes_used, 0u);
}

TEST(Twins, DamageIsFoundAndNeverHandedOut) {
  TwinsCache cache;
  const auto tokens = SomeTokens(6 * kBlock + 1, 1);
  const auto sequence = cache.Run(tokens);
  const LayerBlocks blocks = sequence->Blocks(1);
  auto* byte = const_cast<std::byte*>(blocks.open(5) + blocks.open_value.offset_bytes);
  *OnHost(byte) ^= std::byte{1};
  EXPECT_EQ(cache.cache->Verify().damaged, 1u);
  const Plan plan = cache.Acquire(tokens);
  EXPECT_EQ(plan.resident_tokens(), 0u);
  EXPECT_EQ(Missing(plan),
            (std::vector<MissRun>{{.reason = MissReason::kNoTwin, .tokens = 5 * kBlock},
                                  {.reason = MissReason::kDamaged, .tokens = kBlock},
                                  {.reason = MissReason::kPartialBlock, .tokens = 1}}));
}

TEST(Twins, AreErasedWithWhatTheirWriterWrote) {
  TwinsCache cache;
  Must(cache.cache->AddTenant({.name = "house", .shared = true}));
  const TenantId a = Must(cache.cache->AddTenant({.name = "a", .domain = "house"}));
  const TenantId b = Must(cache.cache->AddTenant({.name = "b", .domain = "house"}));
  const auto tokens = SomeTokens(6 * kBlock + 1, 1);
  const auto run = [&](TenantId tenant, uint64_t length) {
    const auto prompt = std::span(tokens).first(length);
    auto plan = Must(
        cache.cache->Acquire({.tenant = tenant, .identity = &cache.identity, .tokens = prompt}));
    const uint64_t resident = plan.resident_tokens();
    const auto sequence = Must(cache.cache->Open(std::move(plan), {}));
    Must(cache.model.Feed(*sequence, prompt));
    return resident;
  };
  EXPECT_EQ(run(a, tokens.size()), 0u);
  EXPECT_EQ(run(b, 4 * kBlock + 1), 0u);  // a's blocks, with twins that b wrote
  EXPECT_EQ(run(a, 4 * kBlock + 1), 4u * kBlock);
  EXPECT_EQ(cache.twins(), 4u);
  const EraseReport report = Must(cache.cache->Erase(b));
  EXPECT_EQ(report.slots_pending, 0u);
  EXPECT_EQ(report.blocks, 4u);  // two with b's bytes, and their descendants
  EXPECT_EQ(cache.twins(), 0u);
  EXPECT_EQ(run(a, 4 * kBlock + 1), 0u);
  Must(cache.cache->Erase(a));
  EXPECT_EQ(cache.cache->stats().hot_bytes_used, 0u);
}

TEST(Twins, ADomainPaysForThemWithinItsQuota) {
  for (const uint64_t quota_slots : {6u, 7u, 8u, 12u}) {
    TwinsCache cache;
    Must(cache.cache->AddTenant(
        {.name = "house", .quota_bytes = quota_slots * cache.charge_bytes, .shared = true}));
    const TenantId a = Must(cache.cache->AddTenant({.name = "a", .domain = "house"}));
    for (uint64_t seed = 1; seed < 5; ++seed) {
      const auto tokens = SomeTokens(6 * kBlock + 1, seed);
      const auto sequence = Must(cache.cache->Open(
          Must(cache.cache->Acquire({.tenant = a, .identity = &cache.identity, .tokens = tokens})),
          {}));
      Must(cache.model.Feed(*sequence, tokens));
    }
    const TenantStats house =
        Must(cache.cache->tenant_stats(Must(cache.cache->FindTenant("house"))));
    EXPECT_LE(house.bytes_peak, house.quota_bytes);
    EXPECT_EQ(Must(cache.cache->tenant_stats(a)).bytes_used, 0u);
    EXPECT_EQ(cache.cache->stats().hot_bytes_used, house.bytes_used);
  }
}

TEST(Twins, MoveWithAShrinkingCache) {
  TestCache cache(8, Geometry::Uniform(2, 2, 16), ResidualProfile(kResidual), /*slots_max=*/40);
  Must(cache.cache->Resize(cache.BytesFor(40)));
  const auto first = SomeTokens(4 * kBlock + 1, 1);
  const auto second = SomeTokens(4 * kBlock + 1, 2);
  const auto miss = cache.Run(second, {.publish = false});
  std::vector<std::vector<std::byte>> want = ReadAtEnd(*miss, 1, kBlock);
  cache.Run(first).reset();
  cache.Run(second).reset();
  miss->Reset();
  Must(cache.cache->Resize(cache.BytesFor(12)));
  EXPECT_EQ(cache.Resident(second), 4u * kBlock);
  const auto hit = cache.Open(second);
  EXPECT_EQ(ReadAtEnd(*hit, 1, kBlock), want);
  EXPECT_EQ(cache.cache->Verify().damaged, 0u);
}

TEST(Twins, RollbackGoesAsFarBackAsRowsCanRead) {
  const auto tokens = SomeTokens(6 * kBlock + 9, 1);
  for (uint64_t length : {tokens.size(), size_t{2 * kBlock + 3}}) {
    const auto history = std::span(tokens).first(length);
    for (uint64_t position = 0; position <= length; ++position) {
      for (const bool publish : {true, false}) {
        TwinsCache cache;
        const auto untouched = cache.Run(history, {.publish = false});
        const auto sequence = cache.Run(history, {.publish = publish});
        const auto rolled = sequence->Rollback(position);
        const bool can =
            position == 0 || length < 3 * kBlock || position / kBlock == length / kBlock;
        ASSERT_EQ(rolled.has_value(), can) << position;
        if (!rolled) {
          EXPECT_THAT(rolled.error().message, HasSubstr("the least possible is 96"));
          EXPECT_EQ(sequence->length(), length);
          continue;
        }
        EXPECT_EQ(sequence->length(), position);
        Must(cache.model.Feed(*sequence, tokens));
        Must(cache.model.Feed(*untouched, tokens));
        EXPECT_EQ(ReadAtEnd(*sequence, 0, kBlock), ReadAtEnd(*untouched, 0, kBlock)) << position;
        EXPECT_EQ(cache.cache->Verify().damaged, 0u);
      }
    }
  }
}

TEST(Twins, ForksShareOpenForms) {
  for (const uint64_t length : {5u, 16u, 3 * kBlock - 1, 5 * kBlock, 5 * kBlock + 7}) {
    TwinsCache cache;
    const auto tokens = SomeTokens(length, 1);
    const auto sequence = cache.Run(tokens);
    const auto fork = Must(sequence->Fork());
    const auto left = Join(tokens, SomeTokens(40, 2));
    const auto right = Join(tokens, SomeTokens(40, 3));
    Must(cache.model.Feed(*sequence, left));
    Must(cache.model.Feed(*fork, right));
    EXPECT_EQ(ReadAtEnd(*sequence, 1, kBlock),
              ReadAtEnd(*cache.Run(left, {.publish = false}), 1, kBlock));
    EXPECT_EQ(ReadAtEnd(*fork, 1, kBlock),
              ReadAtEnd(*cache.Run(right, {.publish = false}), 1, kBlock));
  }
}

TEST(Twins, SelectKeepsWhatIsReadOpen) {
  TwinsCache cache;
  const auto tokens = SomeTokens(7 * kBlock + 3, 1);
  for (const bool publish : {true, false}) {
    const auto sequence = cache.Run(tokens, {.publish = publish});
    const uint64_t bad[] = {0, 3, 6};
    const std::string before = cache.Snapshot();
    const auto refused = sequence->Select(bad);
    ASSERT_FALSE(refused.has_value());
    EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(refused.error().message, HasSubstr("kept block 3 would be read open"));
    EXPECT_EQ(cache.Snapshot(), before);
    const uint64_t good[] = {0, 5, 6};
    const auto kept = Must(sequence->Select(good));
    EXPECT_EQ(kept->length(), 3u * kBlock + 3);
    const auto all = ReadAtEnd(*sequence, 1, kBlock);
    EXPECT_EQ(ReadAtEnd(*kept, 1, kBlock),
              (std::vector<std::vector<std::byte>>{all[0], all[5], all[6]}));
  }
}

TEST(Twins, WindowsAndOpenFormsTogether) {
  for (const uint32_t window : {10u, 40u, 100u}) {
    Geometry geometry = Geometry::Uniform(2, 2, 16);
    geometry.groups[0].layers = {0};
    geometry.groups.push_back(geometry.groups[0]);
    geometry.groups[1].layers = {1};
    geometry.groups[1].kind = LayerKind::kWindow;
    geometry.groups[1].window_tokens = window;
    TestCache cache(400, geometry, ResidualProfile(kResidual));
    const auto tokens = SomeTokens(400, 1);
    const auto sequence = cache.Open(tokens, {.step_tokens = 50});
    for (uint64_t end = 50; end <= tokens.size(); end += 50) {
      Must(cache.model.Feed(*sequence, std::span(tokens).first(end)));
    }
    EXPECT_EQ(cache.Resident(tokens), 384u);
    EXPECT_EQ(cache.Acquire(std::span(tokens).first(350)).reason(), MissReason::kNoTwin);
    const auto hit = cache.Open(tokens);
    Must(cache.model.Feed(*hit, tokens));
    EXPECT_EQ(ReadAtEnd(*hit, 0, kBlock), ReadAtEnd(*sequence, 0, kBlock));
  }
}

TEST(Twins, ResidualTokensNeedACodecThatEncodes) {
  CacheOptions options{.geometry = SmallGeometry(),
                       .profile = NumericProfile::Uniform(Codec::kF16),
                       .hot_bytes = 1 << 20};
  options.profile.residual_tokens = 128;
  const auto refused = Cache::Create(options);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kUnsupported);
  EXPECT_THAT(refused.error().message, HasSubstr("residual_tokens is 128"));
}

// One record after the other is lost in the store: no hit reads blocks that did not come.
TEST(Twins, WhatDoesNotComeIsNotShown) {
  const auto prompt = SomeTokens(6 * kBlock + 1, 5);
  TwinsCache cold;
  const auto computed = cold.Run(prompt);
  for (int lost = 0; lost < 3; ++lost) {
    const ManualClock clock;
    auto held = std::make_unique<MemoryStore>();
    MemoryStore& records = *held;
    const auto store =
        StoreState::Wrap(std::make_unique<transfer::Transfers>(std::move(held), clock));
    CacheOptions more;
    more.store = store.get();
    TestCache cache(100, Geometry::Uniform(2, 2, 16), ResidualProfile(kResidual), 0, more);
    cache.Run(prompt).reset();
    Must(store->Flush());
    while (cache.cache->Evict(100) > 0) {
    }
    int twins = 0;
    records.lost = [&](const tier::RecordIdentity& record) {
      return record.key == TwinKey(record.parent) && twins++ == lost;
    };
    Ticket ticket = Must(cache.cache->Load(cache.Acquire(prompt), {}));
    ASSERT_TRUE(ticket.WaitFor(1'000'000));
    Plan plan = ticket.Take();
    const bool all_came = twins <= lost;
    EXPECT_EQ(all_came, lost == 2);
    EXPECT_EQ(plan.resident_tokens(), all_came ? 6 * kBlock : 0);
    EXPECT_EQ(plan.reason(), all_came ? MissReason::kPartialBlock : MissReason::kLoadFailed);
    const auto sequence = Must(cache.cache->Open(std::move(plan), {}));
    Must(cache.model.Feed(*sequence, prompt));
    for (uint32_t layer = 0; layer < 2; ++layer) {
      EXPECT_EQ(ReadAtEnd(*sequence, layer, kBlock), ReadAtEnd(*computed, layer, kBlock)) << lost;
    }
  }
}

}  // namespace
}  // namespace quire::cache
