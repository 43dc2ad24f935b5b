// One cache, a store below it and several threads that make all calls that its header allows, in
// the orders of many seeds. Every value that is read is right, no slot is written while another
// thread uses it, nothing is left held or lost, and no thread waits for ever.
// QUIRE_TURNS_SEEDS=A..B runs others than the few of CI.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdio>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cache/sequence/view_test_util.h"
#include "cache/test_util.h"
#include "sim/turns/seeded_cache.h"
#include "sim/turns/turns.h"

namespace quire::sim {
namespace {

using cache::Join;
using cache::Must;
using cache::SomeTokens;

constexpr uint64_t kPathBlocks = 6;

/// Parties with the same account here find the same blocks.
struct Party {
  TenantId tenant{};
  uint64_t account = 0;
  bool shares = false;  // blocks that others of the account wrote outlive its erasure
};

/// The cache and its users, drawn by the seed.
class World {
 public:
  explicit World(uint64_t seed)
      : seed_(seed), prng_(seed), slots_(6 + prng_.NextBelow(20)), on_(seed, prng_, slots_) {
    const auto add = [&](TenantOptions tenant) { return Must(on_.cache->AddTenant(tenant)); };
    const TenantId own = add({.name = "own", .quota_bytes = slots_ * on_.slot_bytes / 2});
    add({.name = "house", .shared = true});
    parties_ = {{.tenant = kDefaultTenant, .account = 0},
                {.tenant = own, .account = 1},
                {.tenant = add({.name = "a", .domain = "house"}), .account = 2, .shares = true},
                {.tenant = add({.name = "b", .domain = "house"}), .account = 2, .shares = true}};
    const auto trunk = SomeTokens(kPathBlocks * kBlock, 100);
    // Some seeds do a few things only, or one far more often than others.
    for (uint64_t& weight : weights_) weight = prng_.NextChance(3) ? 0 : 1 << prng_.NextBelow(4);
    weights_[static_cast<size_t>(Action::kBegin)] += 6;
    weights_[static_cast<size_t>(Action::kEnd)] += 3;
    parties_.resize(1 + prng_.NextBelow(parties_.size()));
    for (uint64_t i = prng_.NextBelow(4); i < 4; ++i) {
      const auto own_end = SomeTokens(kPathBlocks * kBlock + 1, i);
      paths_.push_back(Join(std::span(trunk).first(i * kBlock), own_end));
    }
  }

  void Run() {
    if (prng_.NextChance(2)) FillTheEnd();
    Turns turns(seed_);
    const uint64_t users = 2 + prng_.NextBelow(3);
    for (uint64_t i = 0; i < users; ++i) {
      turns.Add([this, seed = prng_.Next64()] { Use(seed); });
    }
    changes_ = turns.Run();
    CheckEnd();
  }

  uint64_t changes() const { return changes_; }
  uint64_t read() const { return read_; }

 private:
  enum class Action : uint8_t {
    kBegin,
    kFork,
    kCutBack,
    kEnd,
    kEvict,
    kVerify,
    kResize,
    kTrim,
    kErase,
    kPin,
    kView,
    kTick,
    kFlush,
    kCount
  };

  /// A thread's own state.
  struct User {
    Prng prng;
    std::unique_ptr<Sequence> sequence{};
    std::vector<TokenId> tokens{};  // of it
    uint64_t account = 0;
    uint64_t erasures = 0;  // of it, before it was opened
    std::optional<Plan> plan{};
    std::optional<UnleasedView> view{};
    std::vector<std::byte> shown{};  // by it, on the host
  };

  /// Caches blocks behind slots without holders, so that blocks move when the cache shrinks.
  void FillTheEnd() {
    const auto run = [&](std::span<const TokenId> tokens, bool publish) {
      auto plan = Must(on_.cache->Acquire({.identity = &on_.identity, .tokens = tokens}));
      auto sequence = Must(on_.cache->Open(std::move(plan), {.publish = publish}));
      Must(Model(0, 0).Feed(*sequence, tokens));
      return sequence;
    };
    const auto low = run(SomeTokens(slots_ / 2 * kBlock, 99), /*publish=*/false);
    run(std::span(paths_[0]).first((slots_ / 4) * kBlock), /*publish=*/true).reset();
  }

  void Use(uint64_t seed) {
    User user{.prng = Prng(seed)};
    for (uint64_t left = 4 + user.prng.NextBelow(16); left > 0; --left) Act(user);
  }

  void Act(User& user) {
    switch (static_cast<Action>(Pick(user.prng))) {
      case Action::kBegin: return Begin(user);
      case Action::kFork: return Fork(user);
      case Action::kCutBack: return CutBack(user);
      case Action::kEnd: return user.sequence.reset();
      case Action::kEvict: static_cast<void>(on_.cache->Evict(1 + user.prng.NextBelow(4))); return;
      case Action::kVerify: EXPECT_EQ(on_.cache->Verify().damaged, 0u); return;
      case Action::kResize: return Resize(user);
      case Action::kTrim: static_cast<void>(on_.cache->Trim()); return;
      case Action::kErase: return Erase(user);
      case Action::kPin: return PinAndUnpin(user);
      case Action::kView: return LookAgain(user);
      case Action::kTick: return on_.Tick();
      case Action::kFlush: EXPECT_TRUE(on_.Flush()); return;
      case Action::kCount: break;
    }
  }
  uint64_t Pick(Prng& prng) const {
    uint64_t left = prng.NextBelow(std::accumulate(weights_.begin(), weights_.end(), uint64_t{0}));
    uint64_t action = 0;
    while (left >= weights_[action]) left -= weights_[action++];
    return action;
  }

  Party SomeParty(User& user) { return parties_[user.prng.NextBelow(parties_.size())]; }

  AcquireRequest Request(User& user, const Party& party) {
    const auto& path = paths_[user.prng.NextBelow(paths_.size())];
    const uint64_t count = 1 + user.prng.NextBelow(path.size());
    return {
        .tenant = party.tenant, .identity = &on_.identity, .tokens = std::span(path).first(count)};
  }

  /// The model of an account after so many erasures: values that reach a reader of another account,
  /// or a reader after an erasure, show as wrong.
  const cache::FakeModel& Model(uint64_t account, uint64_t erasures) {
    const uint64_t weights = 1 + account + 3 * erasures;
    return models_.try_emplace(weights, on_.geometry, weights).first->second;
  }
  const cache::FakeModel& ModelOf(const User& user) { return Model(user.account, user.erasures); }

  void Erase(User& user) {
    const Party party = SomeParty(user);
    Erasures& of = erasures_[party.account];
    ++of.begun;
    Must(on_.cache->Erase(party.tenant));
    ++of.ended;
  }

  // A refusal is fine; every value is right.
  void Begin(User& user) {
    const Party party = SomeParty(user);
    const AcquireRequest request = Request(user, party);
    const Erasures& erasures = erasures_[party.account];
    // A lookup during an erasure may find blocks from before or from after it.
    if (erasures.begun != erasures.ended) return;
    const uint64_t begun = erasures.begun;
    auto acquired = on_.cache->Acquire(request);
    if (!acquired || erasures.begun != begun) return;
    Plan plan = *std::move(acquired);
    if (plan.loadable_tokens() > 0 && user.prng.NextBelow(4) > 0) {
      auto ticket = on_.cache->Load(std::move(plan), {});
      if (!ticket) return;
      if (user.prng.NextChance(4)) ticket->Cancel();
      plan = ticket->Take();
    }
    if (user.prng.NextChance(8)) {  // held for a while
      user.plan = std::move(plan);
      return;
    }
    user.plan.reset();
    auto opened = on_.cache->Open(std::move(plan), {.publish = !user.prng.NextChance(3)});
    if (!opened) return;
    user.sequence = *std::move(opened);
    user.account = party.account;
    user.erasures = party.shares ? 0 : begun;
    user.tokens.assign(request.tokens.begin(),
                       request.tokens.begin() + static_cast<ptrdiff_t>(user.sequence->length()));
    Read(user);
    while (user.tokens.size() < request.tokens.size()) {
      const uint64_t next = user.tokens.size() + 1 + user.prng.NextBelow(2 * kBlock);
      const auto history = request.tokens.first(std::min<uint64_t>(next, request.tokens.size()));
      if (!ModelOf(user).Feed(*user.sequence, history)) {
        return user.sequence.reset();  // no room
      }
      user.tokens.assign(history.begin(), history.end());
    }
    Read(user);
    if (user.prng.NextChance(4)) user.sequence.reset();
    if (user.sequence == nullptr || user.prng.NextChance(2)) return;
    const auto view = user.sequence->View(1, StreamRole::kValue);
    if (!view) return;
    if (on_.on_host) user.shown = cache::ShownBy(*view);
    user.view = view->Unleased();
  }
  void Read(User& user) {
    if (user.tokens.empty()) return;
    EXPECT_EQ(user.sequence->length(), user.tokens.size());
    for (const uint32_t layer : {0u, 1u}) {
      EXPECT_EQ(on_.Differ(ModelOf(user), *user.sequence, user.tokens, 0, layer), "");
    }
    ++read_;
  }
  void Fork(User& user) {
    if (user.sequence == nullptr) return;
    Read(user);
    auto fork = user.sequence->Fork();
    if (!fork) return;
    user.sequence = *std::move(fork);
    Read(user);
  }
  void CutBack(User& user) {
    if (user.sequence == nullptr) return;
    const uint64_t length = user.prng.NextBelow(user.tokens.size() / kBlock + 1) * kBlock;
    if (!user.sequence->Rollback(length)) return;
    user.tokens.resize(length);
    Read(user);
  }
  void Resize(User& user) {
    uint64_t slots = 3 + user.prng.NextBelow(2 * slots_ - 3);
    if (user.prng.NextChance(2)) {  // blocks without leases move into free slots
      slots = std::max<uint64_t>(3, on_.cache->stats().sealed.slots_used + user.prng.NextBelow(3));
    }
    static_cast<void>(on_.cache->Resize(slots * on_.slot_bytes));  // or it is busy
  }
  void PinAndUnpin(User& user) {
    const AcquireRequest request = Request(user, SomeParty(user));
    if (!on_.cache->Pin(request, 0)) return;
    Turns::Yield();
    static_cast<void>(on_.cache->Unpin(request));  // its tenant may have been erased
  }
  void LookAgain(User& user) {
    if (!user.view) return;
    const auto again = user.view->Pin();
    if (again && on_.on_host) {
      EXPECT_EQ(cache::ShownBy(*again), user.shown);
    }
    user.view.reset();
  }
  void CheckEnd() {
    EXPECT_EQ(on_.cache->stats().pinned_blocks, 0u);
    on_.ExpectNothingLeft();
    for (const Party& party : parties_) {
      const TenantStats stats = Must(on_.cache->tenant_stats(party.tenant));
      EXPECT_EQ(stats.pinned_bytes, 0u);
      EXPECT_EQ(stats.erase_pending_slots, 0u);
    }
  }

  const uint64_t seed_;
  Prng prng_;
  const uint64_t slots_;
  SeededCache on_;
  struct Erasures {
    uint64_t begun = 0;
    uint64_t ended = 0;
  };
  std::array<Erasures, 3> erasures_{};  // by account
  std::map<uint64_t, cache::FakeModel> models_;
  std::array<uint64_t, static_cast<size_t>(Action::kCount)> weights_{};
  std::vector<std::vector<TokenId>> paths_;
  std::vector<Party> parties_;
  uint64_t changes_ = 0;
  uint64_t read_ = 0;
};

TEST(CacheTurns, InEveryOrderValuesAreRightAndNothingIsLost) {
  uint64_t changes = 0;
  ForSeeds(2000, 1, [&](uint64_t seed) {
    World world(seed);
    world.Run();
    changes += world.changes();
    return world.read();
  });
  std::puts(fmt::format("{} turns", changes).c_str());
}

TEST(CacheTurns, ASeedIsOneOrder) {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    World once(seed), again(seed);
    once.Run();
    again.Run();
    EXPECT_EQ(once.changes(), again.changes()) << seed;
  }
}

}  // namespace
}  // namespace quire::sim
