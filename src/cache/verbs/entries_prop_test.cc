// Cache::Entries in lock step with a naive list of blocks that know their tokens, under random
// calls of several tenants: which blocks exist, which tenants hold them, and since when.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/prng.h"
#include "cache/below/test_store.h"
#include "cache/core.h"
#include "cache/test_util.h"
#include "cache/verbs/entries.h"

namespace quire::cache {
namespace {

constexpr uint64_t kSecond = 1'000'000;

using EntriesPath = std::vector<TokenId>;  // whole blocks

struct EntriesNaiveBlock {
  uint64_t published_us = 0;
  uint64_t used_us = 0;  // last time that it or a descendant was held
  uint32_t pins = 0;
};

/// One line for a tree of blocks, whatever the order of children.
struct Node {
  CacheEntry entry;  // keys are not compared
  std::vector<Node> children{};

  std::string Text() const {
    std::vector<std::string> texts;
    for (const Node& child : children) texts.push_back(child.Text());
    std::ranges::sort(texts);
    std::string text = fmt::format("{}@{} h{} {}{}{} {}s {}s", entry.account.number(),
                                   entry.first_token, entry.holders, entry.pinned, entry.in_memory,
                                   entry.in_store, entry.age_s, entry.idle_s);
    for (const std::string& child : texts) text += " (" + child + ")";
    return text;
  }
};

class EntriesLockStep {
 public:
  EntriesLockStep() {
    const TenantId domain = Must(cache_.cache->AddTenant({.name = "d", .shared = true}));
    accounts_ = {kDefaultTenant, Must(cache_.cache->AddTenant({.name = "a"})), domain, domain};
    tenants_ = {kDefaultTenant, accounts_[1],
                Must(cache_.cache->AddTenant({.name = "m", .domain = "d"})),
                Must(cache_.cache->AddTenant({.name = "n", .domain = "d"}))};
  }

  void Step(Prng& prng) {
    switch (prng.NextBelow(10)) {
      case 0:
      case 1:
      case 2: Run(prng); break;
      case 3: Extend(prng); break;
      case 4: Fork(prng); break;
      case 5: Close(prng); break;
      case 6: Plans(prng); break;
      case 7: Pins(prng); break;
      case 8: Take(prng); break;
      default: clock_.Advance(prng.NextBelow(5 * kSecond)); break;
    }
    Touch();
    Compare();
  }

 private:
  struct Running {
    size_t who;
    std::unique_ptr<Sequence> sequence;
    EntriesPath tokens;
  };
  struct Planned {
    size_t who;
    Plan plan;
    EntriesPath tokens;  // that it found
  };
  using Key = std::pair<TenantId, EntriesPath>;

  static EntriesPath Whole(const EntriesPath& tokens, uint64_t blocks) {
    return {tokens.begin(), tokens.begin() + static_cast<int64_t>(blocks * kBlock)};
  }
  // Few different blocks, so that prompts share beginnings.
  static EntriesPath SomePrompt(Prng& prng) {
    EntriesPath tokens;
    for (uint64_t blocks = prng.NextBelow(5); blocks > 0; --blocks) {
      tokens.insert(tokens.end(), kBlock, static_cast<TokenId>(prng.NextBelow(2)));
    }
    tokens.insert(tokens.end(), 1 + prng.NextBelow(kBlock), 7);
    return tokens;
  }
  AcquireRequest RequestOf(size_t who, const EntriesPath& tokens) const {
    return {.tenant = tenants_[who], .identity = &cache_.identity, .tokens = tokens};
  }

  void Note(size_t who, const EntriesPath& tokens) {
    for (uint64_t blocks = 1; blocks <= tokens.size() / kBlock; ++blocks) {
      const uint64_t now_us = clock_.NowMicros();
      blocks_.try_emplace({accounts_[who], Whole(tokens, blocks)}, now_us, now_us);
    }
  }

  void Run(Prng& prng) {
    const size_t who = prng.NextBelow(tenants_.size());
    const EntriesPath prompt = SomePrompt(prng);
    auto sequence =
        Must(cache_.cache->Open(Must(cache_.cache->Acquire(RequestOf(who, prompt))), {}));
    Must(cache_.model.Feed(*sequence, prompt));
    Note(who, prompt);
    running_.push_back({.who = who, .sequence = std::move(sequence), .tokens = prompt});
  }
  void Extend(Prng& prng) {
    if (running_.empty()) return;
    Running& one = running_[prng.NextBelow(running_.size())];
    one.tokens.insert(one.tokens.end(), 1 + prng.NextBelow(2 * kBlock), 5);
    Must(cache_.model.Feed(*one.sequence, one.tokens));
    Note(one.who, one.tokens);
  }
  void Fork(Prng& prng) {
    if (running_.empty()) return;
    const Running& one = running_[prng.NextBelow(running_.size())];
    running_.push_back(
        {.who = one.who, .sequence = Must(one.sequence->Fork()), .tokens = one.tokens});
  }
  void Close(Prng& prng) {
    if (running_.empty()) return;
    running_.erase(running_.begin() + static_cast<int64_t>(prng.NextBelow(running_.size())));
  }
  void Plans(Prng& prng) {
    if (!plans_.empty() && prng.NextChance(2)) return plans_.clear();
    const size_t who = prng.NextBelow(tenants_.size());
    const EntriesPath prompt = SomePrompt(prng);
    Plan plan = Must(cache_.cache->Acquire(RequestOf(who, prompt)));
    const EntriesPath found = Whole(prompt, plan.resident_tokens() / kBlock);
    plans_.push_back({.who = who, .plan = std::move(plan), .tokens = found});
  }
  void Pins(Prng& prng) {
    const size_t who = prng.NextBelow(tenants_.size());
    const EntriesPath prompt = SomePrompt(prng);
    const uint64_t whole = prompt.size() / kBlock;
    const Key last = {accounts_[who], Whole(prompt, whole)};
    const bool pin = prng.NextChance(2);
    const bool done = pin ? cache_.cache->Pin(RequestOf(who, prompt), 0).has_value()
                          : cache_.cache->Unpin(RequestOf(who, prompt)).has_value();
    const auto known = pins_.find({who, last.second});
    ASSERT_EQ(done, pin ? whole > 0 && blocks_.contains(last) : known != pins_.end());
    if (!done) return;
    // Pins of one path by one tenant are counted, and keep it once.
    const uint32_t before = known == pins_.end() ? 0 : known->second;
    if (pin) {
      pins_[{who, last.second}] = before + 1;
    } else if (before == 1) {
      pins_.erase(known);
    } else {
      --known->second;
    }
    if (before != (pin ? 0u : 1u)) return;
    for (uint64_t blocks = 1; blocks <= whole; ++blocks) {
      EntriesNaiveBlock& block = blocks_.at({accounts_[who], Whole(prompt, blocks)});
      block.used_us = clock_.NowMicros();
      block.pins += pin ? 1 : -1;
    }
  }
  // Blocks without leases go, or all blocks of a tenant without leases.
  void Take(Prng& prng) {
    if (prng.NextChance(2)) {
      cache_.cache->Evict(1000);
      std::erase_if(blocks_, [&](const auto& block) { return !IsHeld(block.first); });
      return;
    }
    running_.clear();
    plans_.clear();
    Touch();
    const size_t who = prng.NextBelow(2);  // one with an account of its own
    Must(cache_.cache->Erase(tenants_[who]));
    std::erase_if(blocks_, [&](const auto& block) { return block.first.first == accounts_[who]; });
    std::erase_if(pins_, [&](const auto& pin) { return pin.first.first == who; });
  }

  uint32_t Holders(const Key& key) const {
    const auto has = [&](const auto& holder) {
      return accounts_[holder.who] == key.first && holder.tokens.size() >= key.second.size() &&
             std::equal(key.second.begin(), key.second.end(), holder.tokens.begin());
    };
    return static_cast<uint32_t>(std::ranges::count_if(running_, has) +
                                 std::ranges::count_if(plans_, has));
  }
  bool IsHeld(const Key& key) const { return Holders(key) > 0 || blocks_.at(key).pins > 0; }
  // A holder of a block holds all blocks before it.
  void Touch() {
    for (auto& [key, block] : blocks_) {
      if (IsHeld(key)) block.used_us = clock_.NowMicros();
    }
  }

  std::string Naive(TenantId account, const EntriesPath& parent) const {
    return NaiveNode(account, parent).Text();
  }
  Node NaiveNode(TenantId account, const EntriesPath& path) const {
    Node node;
    const uint64_t now_us = clock_.NowMicros();
    if (const auto known = blocks_.find({account, path}); known != blocks_.end()) {
      const EntriesNaiveBlock& block = known->second;
      node.entry = {.account = account,
                    .first_token = path.size() - kBlock,
                    .holders = Holders(known->first),
                    .pinned = block.pins > 0,
                    .in_memory = true,
                    .age_s = now_us / kSecond - block.published_us / kSecond,
                    .idle_s = (now_us - block.used_us) / kSecond};
    }
    for (const auto& [key, block] : blocks_) {
      if (key.first == account && key.second.size() == path.size() + kBlock &&
          std::equal(path.begin(), path.end(), key.second.begin())) {
        node.children.push_back(NaiveNode(account, key.second));
      }
    }
    return node;
  }
  static Node RealNode(const std::vector<CacheEntry>& entries, const CacheEntry& entry) {
    Node node{.entry = entry};
    for (const CacheEntry& child : entries) {
      if (child.parent_key == entry.key && child.account == entry.account) {
        node.children.push_back(RealNode(entries, child));
      }
    }
    return node;
  }

  void Compare() {
    const auto all = Must(cache_.cache->Entries({}));
    ASSERT_EQ(all.size(), blocks_.size());
    uint64_t seen = 0;
    for (const size_t who : {0, 1, 2}) {
      auto entries = Must(cache_.cache->Entries({.tenant = tenants_[who]}));
      seen += entries.size();
      std::set<uint64_t> keys;
      for (const CacheEntry& entry : entries) {
        ASSERT_EQ(entry.account, accounts_[who]);
        ASSERT_TRUE(keys.insert(entry.key).second);
        ASSERT_NE(std::ranges::find(all, entry), all.end());
      }
      const Node root = RealNode(entries, {.account = accounts_[who]});
      Node naive = NaiveNode(accounts_[who], {});
      naive.entry.account = accounts_[who];
      ASSERT_EQ(root.Text(), naive.Text());
      const auto others = Must(cache_.cache->Entries({.tenant = tenants_[who == 2 ? 3 : who]}));
      ASSERT_EQ(others, entries) << "members of a domain see its blocks";
    }
    ASSERT_EQ(seen, all.size());
    ASSERT_EQ(Must(cache_.cache->Entries({.entries_max = 3})).size(),
              std::min<size_t>(3, all.size()));
  }

  ManualClock clock_{1234 * kSecond + 567};
  TestCache cache_{
      2000, SmallGeometry(), NumericProfile::Uniform(Codec::kF16), 0, {.clock = &clock_}};
  std::vector<TenantId> tenants_;
  std::vector<TenantId> accounts_;  // of each
  std::vector<Running> running_;
  std::vector<Planned> plans_;
  std::map<Key, EntriesNaiveBlock> blocks_;
  std::map<std::pair<size_t, EntriesPath>, uint32_t> pins_;
};

TEST(EntriesProp, EqualANaiveList) {
  for (uint64_t seed = 1; seed <= 150; ++seed) {
    SCOPED_TRACE(seed);
    Prng prng(seed);
    EntriesLockStep lock_step;
    for (int i = 0; i < 80; ++i) {
      lock_step.Step(prng);
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

TEST(Entries, GoInPieces) {
  constexpr uint64_t kLong = 3 * kEntriesPerHold + 10;
  TestCache cache(kLong + 10, Geometry::Uniform(1, 1, 4));
  cache.Run(SomeTokens(kLong * kBlock, 1)).reset();
  auto& core = static_cast<Core&>(*cache.cache);
  EXPECT_EQ(Must(core.Entries({})).size(), kLong);
  EXPECT_LE(core.state().most_touched(), kRecordsPerHold);
  EXPECT_EQ(core.Entries({.tenant = TenantId(9)}).error().code, ErrorCode::kNotFound);
}

TEST(Entries, DamagedBlocksAreNotAmongThem) {
  TestCache cache(20);
  const auto prompt = SomeTokens(3 * kBlock + 1, 1);
  const auto held = cache.Run(prompt);
  FlipBit(*held, 1);
  EXPECT_EQ(cache.cache->Verify().damaged, 1u);
  const auto entries = Must(cache.cache->Entries({}));
  ASSERT_EQ(entries.size(), 1u) << "what follows a damaged block cannot be found either";
  EXPECT_EQ(entries[0].first_token, 0u);
}

TEST(Entries, OfWindowsThatHavePassed) {
  const Stream key{.role = StreamRole::kKey, .heads = 1, .dim = 4};
  const Stream value{.role = StreamRole::kValue, .heads = 1, .dim = 4};
  Geometry geometry;
  geometry.groups = {{.kind = LayerKind::kWindow,
                      .layers = {0},
                      .window_tokens = kBlock,
                      .streams = {key, value}}};
  TestCache cache(40, geometry);
  const auto held = cache.Run(SomeTokens(6 * kBlock, 1));
  cache.cache->Evict(100);
  auto entries = Must(cache.cache->Entries({}));
  std::ranges::sort(entries, {}, &CacheEntry::first_token);
  ASSERT_EQ(entries.size(), 6u);
  EXPECT_FALSE(entries[0].in_memory);
  EXPECT_EQ(entries[0].holders, 0u);
  EXPECT_TRUE(entries[5].in_memory);
  EXPECT_EQ(entries[5].holders, 1u);
}

TEST(Entries, SayWhatTheStoreHas) {
  TestStore store;
  const auto prompt = SomeTokens(2 * kBlock + 1, 1);
  const auto options = [&] {
    return CacheOptions{.clock = &store.clock, .store = store.store.get()};
  };
  const auto stored = [](TestCache& cache) {
    std::vector<bool> each;
    for (const CacheEntry& entry : Must(cache.cache->Entries({}))) each.push_back(entry.in_store);
    return each;
  };
  {
    TestCache cache(20, SmallGeometry(), NumericProfile::Uniform(Codec::kF16), 0, options());
    cache.Run(prompt).reset();
    EXPECT_EQ(stored(cache), std::vector<bool>(2, false));
    store.Turn();
    EXPECT_EQ(stored(cache), std::vector<bool>(2, true));
    EXPECT_EQ(Must(cache.cache->Entries({}))[0].age_s, 2u);
  }
  store.Restart();
  TestCache cache(20, SmallGeometry(), NumericProfile::Uniform(Codec::kF16), 0, options());
  EXPECT_TRUE(stored(cache).empty()) << "what only the store has is no entry of the cache";
  Ticket ticket = Must(cache.cache->Load(cache.Acquire(prompt), {}));
  store.Turn();
  ticket.Take();
  EXPECT_EQ(stored(cache), std::vector<bool>(2, true));
}

}  // namespace
}  // namespace quire::cache
