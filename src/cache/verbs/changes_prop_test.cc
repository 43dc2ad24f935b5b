// A follower of the cache's changes, under random calls of several tenants: whenever it has taken
// all changes, it knows the blocks that the directory has, and no other ones.
#include <gtest/gtest.h>

#include <map>
#include <optional>

#include "base/prng.h"
#include "cache/below/test_store.h"
#include "cache/core.h"
#include "cache/test_util.h"
#include "cache/verbs/changes.h"
#include "cache/verbs/leases.h"

namespace quire::cache {
namespace {

struct KnownBlock {
  std::optional<Digest> parent{};
  std::vector<TokenId> tokens{};

  bool operator==(const KnownBlock&) const = default;
};
using KnownBlocks = std::map<Digest, KnownBlock>;

// As a router keeps what it was told.
class Follower {
 public:
  const KnownBlocks& blocks() const { return blocks_; }
  uint64_t durable() const { return durable_; }
  void Clear() { blocks_.clear(); }

  void Apply(const BlockChanges& changes) {
    for (const BlockChange& change : changes.blocks) {
      switch (change.kind) {
        case BlockChangeKind::kStored:
          ASSERT_EQ(change.tokens.size(), kBlock);
          ASSERT_TRUE(!change.parent_key || blocks_.contains(*change.parent_key))
              << "a block is told before its parent";
          blocks_[change.key] = {.parent = change.parent_key,
                                 .tokens = {change.tokens.begin(), change.tokens.end()}};
          break;
        case BlockChangeKind::kRemoved: blocks_.erase(change.key); break;
        case BlockChangeKind::kDurable: ++durable_; break;
      }
    }
  }
  // False: there are no more changes.
  bool Take(Cache& cache) {
    BlockChanges changes;
    const bool more = cache.changes()->Take(changes);
    Apply(changes);
    return more;
  }

 private:
  KnownBlocks blocks_;
  uint64_t durable_ = 0;
};

// What the default tenant's lookups find, without adapters.
KnownBlocks BlocksOf(const Core& core) {
  return core.state().Look([](const State& state) {
    KnownBlocks blocks;
    const Directory& directory = state.directory;
    for (uint32_t i = 0; i < directory.ids_end(); ++i) {
      const BlockId block(i);
      if (!directory.contains(block) || !directory.at(block).announced) continue;
      if (BlockStateOf(state, block) != BlockState::kGood) continue;
      const BlockId parent = directory.tree().parent(block);
      const auto tokens = directory.tree().tokens(block);
      KnownBlock& known = blocks[directory.at(block).key];
      if (!parent.is_none()) known.parent = directory.at(parent).key;
      known.tokens = {tokens.begin(), tokens.end()};
    }
    return blocks;
  });
}

class ChangesLockStep {
 public:
  explicit ChangesLockStep(uint64_t slots)
      : cache_(slots, SmallGeometry(), NumericProfile::Uniform(Codec::kF16), 0,
               {.announce = true}) {
    adapted_.adapter = "tone";
    named_ = Must(cache_.cache->AddTenant({.name = "a"}));
  }

  void Step(Prng& prng) {
    switch (prng.NextBelow(8)) {
      case 0:
      case 1:
      case 2: Run(prng); break;
      case 3: running_.clear(); break;
      case 4: cache_.cache->Evict(prng.NextBelow(6)); break;
      case 5:
        if (prng.NextChance(4)) {
          running_.clear();
          Must(cache_.cache->Erase(prng.NextChance(2) ? kDefaultTenant : named_));
        }
        break;
      case 6: Damage(prng); break;
      default: follower_.Take(*cache_.cache);
    }
    if (prng.NextChance(5)) Compare(follower_);
    if (prng.NextChance(20)) FromSnapshot(prng);
    static_cast<const Core&>(*cache_.cache).CheckDirectory();
  }

 private:
  void Run(Prng& prng) {
    std::vector<TokenId> prompt;
    for (uint64_t blocks = prng.NextBelow(5); blocks > 0; --blocks) {
      prompt.insert(prompt.end(), kBlock, static_cast<TokenId>(prng.NextBelow(2)));
    }
    prompt.push_back(7);
    const uint64_t who = prng.NextBelow(4);
    AcquireRequest request{.identity = who == 0 ? &adapted_ : &cache_.identity, .tokens = prompt};
    if (who == 1) request.tenant = named_;
    auto sequence = cache_.cache->Open(Must(cache_.cache->Acquire(request)), {});
    if (!sequence) return running_.clear();
    Must(cache_.model.Feed(**sequence, prompt));
    running_.push_back(*std::move(sequence));
  }
  void Damage(Prng& prng) {
    if (running_.empty() || running_.back()->length() < kBlock || !prng.NextChance(3)) return;
    FlipBit(*running_.back(), prng.NextBelow(running_.back()->length() / kBlock));
    cache_.cache->Verify();
    running_.clear();
  }
  void Compare(Follower& follower) {
    while (follower.Take(*cache_.cache)) {
    }
    ASSERT_EQ(follower.blocks(), BlocksOf(static_cast<const Core&>(*cache_.cache)));
  }
  // One that begins with all that was told, while the cache goes on.
  void FromSnapshot(Prng& prng) {
    Follower late;
    cache_.cache->changes()->ForEachTold([&](const BlockChanges& changes) {
      late.Apply(changes);
      Run(prng);
      cache_.cache->Evict(2);
    });
    Compare(late);
    follower_ = late;
  }

  TestCache cache_;
  Identity adapted_ = SomeIdentity();
  TenantId named_{};
  std::vector<std::unique_ptr<Sequence>> running_;
  Follower follower_;
};

TEST(ChangesProp, AFollowerKnowsWhatTheDirectoryHas) {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    SCOPED_TRACE(seed);
    Prng prng(seed);
    ChangesLockStep lock_step(seed % 2 == 0 ? 12 : 200);
    for (int i = 0; i < 150; ++i) {
      lock_step.Step(prng);
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

TEST(Changes, ComeAndGoneIsNoChange) {
  TestCache cache(200, SmallGeometry(), NumericProfile::Uniform(Codec::kF16), 0,
                  {.announce = true});
  for (uint64_t i = 0; i < 50; ++i) {
    cache.Run(SomeTokens(3 * kBlock, i)).reset();
    EXPECT_EQ(cache.cache->Evict(100), 3u);
  }
  BlockChanges changes;
  EXPECT_FALSE(cache.cache->changes()->Take(changes));
  EXPECT_TRUE(changes.blocks.empty());
}

TEST(Changes, GoInPieces) {
  constexpr uint64_t kLong = 3 * kRecordsPerHold + 10;
  TestCache cache(2 * kLong, Geometry::Uniform(1, 1, 4), NumericProfile::Uniform(Codec::kF16), 0,
                  {.announce = true});
  cache.Run(SomeTokens(kLong * kBlock, 1)).reset();
  Follower follower;
  uint64_t pieces = 1;
  while (follower.Take(*cache.cache)) ++pieces;
  EXPECT_GT(pieces, 6u);
  EXPECT_EQ(follower.blocks().size(), kLong);
  Follower late;
  cache.cache->changes()->ForEachTold([&](const BlockChanges& changes) { late.Apply(changes); });
  EXPECT_EQ(late.blocks(), follower.blocks());
  cache.cache->Evict(kLong);
  while (follower.Take(*cache.cache)) {
  }
  EXPECT_TRUE(follower.blocks().empty());
  EXPECT_LE(static_cast<Core&>(*cache.cache).state().most_touched(), kRecordsPerHold);
}

TEST(Changes, AreNotKeptWhereTheyAreNotAskedFor) {
  TestCache cache(500);
  EXPECT_EQ(cache.cache->changes(), nullptr);
  // Its bookkeeping is charged.
  TestCache announcing(500, SmallGeometry(), NumericProfile::Uniform(Codec::kF16), 0,
                       {.announce = true});
  EXPECT_LT(announcing.cache->stats().sealed.slots_max, cache.cache->stats().sealed.slots_max);
}

TEST(Changes, SayWhatTheStoreHas) {
  TestStore store;
  const auto prompt = SomeTokens(2 * kBlock + 1, 1);
  TestCache cache(20, SmallGeometry(), NumericProfile::Uniform(Codec::kF16), 0,
                  {.clock = &store.clock, .store = store.store.get(), .announce = true});
  cache.Run(prompt).reset();
  Follower follower;
  while (follower.Take(*cache.cache)) {
  }
  EXPECT_EQ(follower.durable(), 0u);
  std::vector<Digest> keys;
  for (const auto& [key, block] : follower.blocks()) keys.push_back(key);
  bool there[2] = {true, true};
  cache.cache->changes()->InStore(keys, there);
  EXPECT_FALSE(there[0] || there[1]);
  store.Turn();
  cache.cache->Evict(10);  // they are gone before it is told that they are durable
  while (follower.Take(*cache.cache)) {
  }
  EXPECT_EQ(follower.durable(), 2u);
  EXPECT_TRUE(follower.blocks().empty());
  cache.cache->changes()->InStore(keys, there);
  EXPECT_TRUE(there[0] && there[1]);
  Must(cache.cache->Erase(kDefaultTenant));
  store.Turn();
  cache.cache->changes()->InStore(keys, there);
  EXPECT_FALSE(there[0] || there[1]);
}

}  // namespace
}  // namespace quire::cache
