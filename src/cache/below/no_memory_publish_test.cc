// Memory that runs out at any allocation of a commit: nothing is lost or half done, and the next
// commit publishes what this one could not.
#include "base/failing_new.h"

#ifdef QUIRE_FAILING_NEW
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <optional>

#include "cache/below/store_state.h"
#include "cache/below/test_memory_store.h"
#include "cache/core.h"
#include "cache/sequence/twins_test_util.h"
#include "env/clock.h"

namespace quire::cache {
namespace {

const Core& CoreOf(const TestCache& cache) { return dynamic_cast<const Core&>(*cache.cache); }

void AppendAll(const TestCache& cache, Sequence& sequence, std::span<const TokenId> history) {
  for (uint32_t layer = 0; layer < cache.model.geometry().layer_count(); ++layer) {
    Must(cache.model.AppendLayer(sequence, layer, history));
  }
}

/// Commits a prompt of whole blocks with every allocation failing, each in a cache of its own that
/// `prepare` fills, and one block more with memory.
struct CommitSweep {
  NumericProfile profile = NumericProfile::Uniform(Codec::kF16);
  std::function<void(TestCache&)> prepare = [](TestCache&) {};

  /// Returns how many allocations a commit makes.
  int64_t Run(std::span<const TokenId> prompt) const {
    const auto longer = Join(prompt, SomeTokens(kBlock, 99));
    for (int64_t failing = 0;; ++failing) {
      SCOPED_TRACE("allocation " + std::to_string(failing));
      const int64_t live = allocations_live;
      const bool failed = RunOne(prompt, longer, failing);
      EXPECT_EQ(allocations_live, live) << "left behind";
      if (!failed || testing::Test::HasFailure()) return failing;
    }
  }

 private:
  bool RunOne(std::span<const TokenId> prompt, std::span<const TokenId> longer,
              int64_t failing) const {
    TestCache cache(200, Geometry::Uniform(2, 2, 16), profile);
    prepare(cache);
    auto sequence = Must(cache.cache->Open(cache.Acquire(prompt, /*reuse=*/false), {}));
    AppendAll(cache, *sequence, prompt);
    std::optional<Result<void>> committed;
    const Attempt attempt = WithoutMemory(failing, [&] { committed = sequence->Commit(prompt); });
    EXPECT_FALSE(attempt.threw) << "a commit needs no memory";
    EXPECT_TRUE(committed.has_value() && committed->has_value());
    EXPECT_EQ(sequence->length(), prompt.size());
    CoreOf(cache).CheckDirectory();
    EXPECT_EQ(cache.cache->Verify().damaged, 0u);

    AppendAll(cache, *sequence, longer);
    Must(sequence->Commit(longer.subspan(prompt.size())));
    CoreOf(cache).CheckDirectory();
    EXPECT_EQ(sequence->stats().blocks_shared, longer.size() / kBlock);
    EXPECT_EQ(sequence->stats().blocks_own, 0u);
    sequence.reset();
    const auto asked = Join(longer, SomeTokens(1, 98));
    EXPECT_EQ(cache.Resident(asked), longer.size());
    if (profile.codecs.front().codec == Codec::kF16) {
      EXPECT_EQ(cache.model.Differs(*cache.Open(asked), longer), "");
    }
    EXPECT_EQ(cache.cache->Verify().damaged, 0u);
    cache.cache->Evict(1000);
    EXPECT_EQ(cache.cache->stats().published_blocks, 0u);
    EXPECT_EQ(cache.cache->stats().hot_bytes_used, 0u);
    EXPECT_EQ(cache.cache->stats().twin_slots, 0u);
    CoreOf(cache).CheckDirectory();
    return attempt.failed;
  }
};

TEST(NoMemoryPublish, BelowANewRoot) {
  EXPECT_GT(CommitSweep().Run(SomeTokens(5 * kBlock, 1)), 15);
}

TEST(NoMemoryPublish, InMorePiecesThanOne) {
  EXPECT_GT(CommitSweep().Run(SomeTokens(70 * kBlock, 1)), 25);
}

TEST(NoMemoryPublish, BelowANodeThatIsSplit) {
  const auto prompt = SomeTokens(5 * kBlock, 1);
  const CommitSweep sweep{.prepare = [&](TestCache& cache) {
    const auto start = std::span(prompt).first(2 * kBlock);
    cache.Run(Join(start, SomeTokens(3 * kBlock, 2))).reset();
  }};
  EXPECT_GT(sweep.Run(prompt), 15);
}

TEST(NoMemoryPublish, WhereAllOfItIsKnown) {
  const auto prompt = SomeTokens(5 * kBlock, 1);
  const CommitSweep sweep{.prepare = [&](TestCache& cache) { cache.Run(prompt).reset(); }};
  EXPECT_GT(sweep.Run(prompt), 2);
}

TEST(NoMemoryPublish, WithTwins) {
  const CommitSweep sweep{.profile = ResidualProfile(2 * kBlock)};
  EXPECT_GT(sweep.Run(SomeTokens(5 * kBlock, 1)), 20);
}

// What a call took of the budget when memory ran out goes back.
TEST(NoMemoryPublish, ARequestThatFailsIsNotCharged) {
  const auto prompt = SomeTokens(5 * kBlock, 1);
  uint64_t refused = 0;
  for (int64_t failing = 0;; ++failing) {
    TestCache cache(20);
    Plan plan = cache.Acquire(prompt);
    std::unique_ptr<Sequence> sequence;
    const Attempt attempt =
        WithoutMemory(failing, [&] { sequence = Must(cache.cache->Open(std::move(plan), {})); });
    if (!attempt.failed) break;
    ++refused;
    EXPECT_TRUE(attempt.threw);
    EXPECT_EQ(cache.cache->stats().hot_bytes_used, 0u) << "allocation " << failing;
    EXPECT_EQ(Must(cache.cache->tenant_stats(kDefaultTenant)).bytes_used, 0u);
    EXPECT_EQ(cache.slots_used(), 0u);
  }
  EXPECT_GT(refused, 5u);
}

TEST(NoMemory, AFenceThatCannotBeRememberedIsWaitedFor) {
  for (int64_t failing = 0;; ++failing) {
    TestCache cache(8);
    auto sequence = cache.Run(SomeTokens(2 * kBlock, 1), {.publish = false});
    BlockListView view = Must(sequence->View(0, StreamRole::kKey));
    sequence.reset();
    const auto fence = std::make_shared<HandFence>();
    const Attempt attempt = WithoutMemory(failing, [&] { view.Release(fence); });
    EXPECT_FALSE(attempt.threw);
    EXPECT_EQ(fence->waited(), attempt.failed);
    EXPECT_EQ(cache.slots_used(), attempt.failed ? 0u : 2u);
    if (!attempt.failed) {
      EXPECT_GT(failing, 0);
      return;
    }
  }
}

// Every allocation of the turns of transfers fails once: what is resident afterwards is right, the
// load ends, and nothing is held.
TEST(NoMemoryLoadTest, ALoadEndsWithTheRightBytesOrWithout) {
  const std::vector<TokenId> prompt = SomeTokens(6 * kBlock + 1, 5);
  const ManualClock clock;
  for (int64_t failing = 0;; ++failing) {
    SCOPED_TRACE("allocation " + std::to_string(failing));
    auto made = std::make_unique<transfer::Transfers>(std::make_unique<MemoryStore>(), clock);
    transfer::Transfers& transfers = *made;
    const auto store = StoreState::Wrap(std::move(made));
    CacheOptions more;
    more.store = store.get();
    TestCache cache(40, SmallGeometry(), NumericProfile::Uniform(Codec::kF16), 0, more);
    cache.Run(prompt);
    Must(store->Flush());
    while (cache.cache->Evict(100) > 0) {
    }
    const uint64_t used = cache.cache->stats().hot_bytes_used;
    Ticket ticket = Must(cache.cache->Load(cache.Acquire(prompt), {}));
    const Attempt attempt = WithoutMemory(failing, [&] {
      for (int turn = 0; turn < 10; ++turn) transfers.Tick(0);
    });
    for (int turn = 0; turn < 100 && !ticket.IsDone(); ++turn) transfers.Tick(0);
    ASSERT_TRUE(ticket.IsDone());
    {
      Plan plan = ticket.Take();
      const uint64_t resident = plan.resident_tokens();
      if (!attempt.failed) {
        EXPECT_EQ(resident, 6 * kBlock);
      }
      const auto sequence = Must(cache.cache->Open(std::move(plan), {}));
      EXPECT_EQ(cache.model.Differs(*sequence, std::span(prompt).first(resident)), "");
    }
    while (cache.cache->Evict(100) > 0) {
    }
    EXPECT_EQ(cache.cache->stats().hot_bytes_used, used);
    CoreOf(cache).CheckDirectory();
    if (!attempt.failed || testing::Test::HasFailure()) {
      EXPECT_GT(failing, 20);
      return;
    }
  }
}

}  // namespace
}  // namespace quire::cache

#endif  // QUIRE_FAILING_NEW
