// Loads by layer: a sequence begins with blocks of which the first layers have come, and becomes
// what it would be after the whole load; where one does not come, nothing of it is left.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "cache/below/test_memory_store.h"
#include "cache/below/test_store.h"
#include "cache/test_util.h"
#include "env/seen_memory.h"

namespace quire::cache {
namespace {

constexpr uint64_t kByLayerBlocks = 6;
constexpr uint32_t kByLayerLayers = 5;
constexpr uint64_t kByLayerTokens = kByLayerBlocks * kBlock;
const LoadOptions kInTwoSlices{.order = LoadOrder::kByLayer};

Geometry ByLayerGeometry() { return Geometry::Uniform(kByLayerLayers, /*kv_heads=*/2, 4); }

struct ByLayerKind {
  std::string name;
  NumericProfile profile = NumericProfile::Uniform(Codec::kF16);
  ArenaLayout layout = ArenaLayout::kBlockMajor;
};

void PrintTo(const ByLayerKind& kind, std::ostream* out) { *out << kind.name; }

constexpr const char* kComesWhole = "blocks come whole where the host cannot reach the slots";

/// A store whose reads wait for the test.
class HeldStore {
 public:
  HeldStore() {
    auto records = std::make_unique<MemoryStore>();
    records_ = records.get();
    auto made = std::make_unique<transfer::Transfers>(std::move(records), clock_);
    transfers_ = made.get();
    store_ = StoreState::Wrap(std::move(made));
  }

  CacheOptions options() const {
    CacheOptions more;
    more.store = store_.get();
    more.clock = &clock_;
    return more;
  }
  MemoryStore& records() { return *records_; }
  DiskStore& store() { return *store_; }
  /// All reads from now on wait.
  void Hold() {
    records_->held = [](const tier::LoadRequest&) { return true; };
  }
  /// What can happen happens; of the held reads, so many.
  void Turn(size_t reads = 0) {
    while (transfers_->Tick(0)) {
    }
    records_->Release(reads);
    while (transfers_->Tick(0)) {
    }
  }

 private:
  ManualClock clock_;
  MemoryStore* records_ = nullptr;
  transfer::Transfers* transfers_ = nullptr;
  std::unique_ptr<DiskStore> store_;
};

class LoadByLayerTest : public testing::TestWithParam<ByLayerKind> {
 protected:
  /// A cache that has nothing in memory, above a store that has the prompt.
  void SetUp() override {
    if (DeviceOfTests() != nullptr) GTEST_SKIP() << kComesWhole;
    CacheOptions more = store_.options();
    more.layout = GetParam().layout;
    test_ = std::make_unique<TestCache>(64, ByLayerGeometry(), GetParam().profile, 0, more);
    test_->Run(prompt_).reset();
    Must(store_.store().Flush());
    EvictAll();
    store_.Hold();
  }
  void EvictAll() const {
    while (test_->cache->Evict(100) > 0) {
    }
  }
  Ticket Load(const LoadOptions& options = kInTwoSlices) {
    Ticket ticket = Must(test_->cache->Load(test_->Acquire(prompt_), options));
    store_.Turn();
    return ticket;
  }
  std::unique_ptr<Sequence> Open(const Ticket& ticket) const {
    return Must(test_->cache->Open(Must(ticket.Arriving()), {}));
  }
  /// Every bit is that of a cache which computed it all.
  std::string Differs(const Sequence& sequence) const {
    CacheOptions more;
    more.layout = GetParam().layout;
    TestCache other(64, ByLayerGeometry(), GetParam().profile, 0, more);
    const auto cold = other.Run(prompt_);
    for (uint32_t layer = 0; layer < kByLayerLayers; ++layer) {
      for (const StreamRole role : {StreamRole::kKey, StreamRole::kValue}) {
        std::vector<float> want(prompt_.size() * 2 * 4);
        std::vector<float> have = want;
        Must(cold->Gather(layer, role, 0, prompt_.size(), want));
        Must(sequence.Gather(layer, role, 0, prompt_.size(), have));
        if (want != have) return "layer " + std::to_string(layer);
      }
    }
    return {};
  }
  void ExpectNothingLeft() const {
    EvictAll();
    EXPECT_EQ(test_->cache->stats().hot_bytes_used, 0);
  }

  HeldStore store_;
  std::unique_ptr<TestCache> test_;
  const std::vector<TokenId> prompt_ = SomeTokens(kByLayerTokens + 5, 1);
};

// A layer is there when all blocks have it, the last ones when the blocks are published.
TEST_P(LoadByLayerTest, LayersComeOneAfterTheOther) {
  Ticket ticket = Load({.order = LoadOrder::kByLayer, .slices = kByLayerLayers});
  EXPECT_EQ(store_.records().held_count(), kByLayerBlocks * kByLayerLayers);
  EXPECT_EQ(ticket.Arriving().error().code, ErrorCode::kBusy);
  std::unique_ptr<Sequence> sequence;
  for (uint32_t layer = 0; layer < kByLayerLayers; ++layer) {
    store_.Turn(kByLayerBlocks - 1);
    EXPECT_EQ(ticket.progress().layers_ready, layer);
    if (sequence != nullptr) {
      EXPECT_FALSE(Must(sequence->AwaitLayer(layer, 0)));
    }
    store_.Turn(1);
    EXPECT_EQ(ticket.progress().layers_ready, layer + 1);
    if (layer == 0) sequence = Open(ticket);
    EXPECT_TRUE(Must(sequence->AwaitLayer(layer, 0)));
    EXPECT_EQ(sequence->arrives(), layer + 1 < kByLayerLayers);
    Must(test_->model.AppendLayer(*sequence, layer, prompt_));
    EXPECT_EQ(test_->Resident(prompt_), layer + 1 < kByLayerLayers ? 0 : kByLayerTokens);
  }
  Must(sequence->Commit(std::span(prompt_).subspan(kByLayerTokens)));
  EXPECT_EQ(ticket.Take().resident_tokens(), kByLayerTokens);
  EXPECT_EQ(Differs(*sequence), "");
  EXPECT_EQ(test_->slots_used(), kByLayerBlocks + 1);
  EXPECT_EQ(test_->cache->stats().loaded_total, kByLayerBlocks);
  EXPECT_EQ(test_->cache->stats().deduplicated_total, 0);
  sequence.reset();
  ExpectNothingLeft();
}

// The blocks are the load's until it ends: what would read or publish them is refused.
TEST_P(LoadByLayerTest, WhatHasNotComeIsNotShown) {
  Ticket ticket = Load();
  store_.Turn(kByLayerBlocks);
  ASSERT_EQ(ticket.progress().layers_ready, 2);
  const auto sequence = Open(ticket);
  EXPECT_EQ(sequence->length(), kByLayerTokens);
  for (uint32_t layer = 0; layer < kByLayerLayers; ++layer) {
    Must(test_->model.AppendLayer(*sequence, layer, prompt_));
  }
  const auto rest = std::span(prompt_).subspan(kByLayerTokens);
  std::vector<float> out(prompt_.size() * 2 * 4);
  EXPECT_EQ(sequence->Commit(rest).error().code, ErrorCode::kBusy);
  EXPECT_EQ(sequence->Fork().error().code, ErrorCode::kBusy);
  EXPECT_EQ(sequence->Rollback(kBlock + 1).error().code, ErrorCode::kBusy);
  EXPECT_EQ(sequence->Gather(0, StreamRole::kKey, 0, 1, out).error().code, ErrorCode::kBusy);
  EXPECT_THAT(sequence->Commit(rest).error().message, testing::HasSubstr("not all layers"));
  Must(sequence->Rollback(kByLayerTokens));
  const std::vector<uint64_t> kept = {0, 1};
  EXPECT_EQ(sequence->Select(kept).error().code, ErrorCode::kBusy);
  EXPECT_EQ(test_->Resident(prompt_), 0);
  store_.Turn(SIZE_MAX);
  EXPECT_FALSE(sequence->arrives());
  Must(test_->model.Feed(*sequence, prompt_));
  EXPECT_EQ(Differs(*sequence), "");
  EXPECT_EQ(Differs(*Must(sequence->Fork())), "");
  EXPECT_EQ(ticket.Take().resident_tokens(), kByLayerTokens);
}

// Wherever one is lost, in its first layers or its last ones.
TEST_P(LoadByLayerTest, ABlockThatDoesNotComeEndsIt) {
  for (const uint64_t lost : {0, 1, 4}) {
    for (const bool in_first : {true, false}) {
      SCOPED_TRACE(std::to_string(lost) + (in_first ? " first" : " last"));
      const auto losing = [lost](const tier::RecordIdentity& record) {
        return record.block_index == lost;
      };
      Ticket ticket = Load();
      if (in_first) store_.records().lost = losing;
      store_.Turn(kByLayerBlocks);
      std::unique_ptr<Sequence> sequence;
      if (ticket.progress().layers_ready > 0) sequence = Open(ticket);
      EXPECT_EQ(sequence != nullptr, !in_first || lost > 0);
      if (sequence != nullptr) {
        EXPECT_EQ(sequence->length(), (in_first ? lost : kByLayerBlocks) * kBlock);
      }
      store_.records().lost = losing;
      store_.Turn(SIZE_MAX);
      if (in_first && sequence != nullptr) {
        EXPECT_TRUE(Must(sequence->AwaitLayer(kByLayerLayers - 1, 0)));  // those before it came
      } else if (sequence != nullptr) {
        EXPECT_EQ(sequence->AwaitLayer(0, 0).error().code, ErrorCode::kNotFound);
        EXPECT_EQ(sequence->Fork().error().code, ErrorCode::kNotFound);
        EXPECT_TRUE(sequence->arrives());
      }
      {
        Plan plan = ticket.Take();
        EXPECT_EQ(plan.resident_tokens(), lost * kBlock);
        EXPECT_EQ(plan.reason(), MissReason::kLoadFailed);
        const bool stands = in_first && sequence != nullptr;
        if (!stands) sequence = Must(test_->cache->Open(std::move(plan), {}));
      }
      store_.records().lost = {};
      Must(test_->model.Feed(*sequence, prompt_));
      EXPECT_EQ(Differs(*sequence), "");
      sequence.reset();
      ExpectNothingLeft();
    }
  }
}

// A remote may have the blocks behind them too, and has not.
TEST_P(LoadByLayerTest, WhatARemoteDoesNotHaveIsNotWaitedFor) {
  store_.records().is_asked = true;
  std::vector<TokenId> longer = prompt_;
  const std::vector<TokenId> behind = SomeTokens(3 * kBlock, 2);
  longer.insert(longer.end(), behind.begin(), behind.end());
  Plan plan = test_->Acquire(longer);
  const uint64_t all = longer.size() / kBlock * kBlock;
  EXPECT_EQ(plan.loadable_tokens(), all);
  EXPECT_EQ(plan.uncertain_tokens(), all);
  Ticket ticket = Must(test_->cache->Load(std::move(plan), kInTwoSlices));
  store_.Turn();
  store_.Turn(all / kBlock);
  Plan arriving = Must(ticket.Arriving());
  EXPECT_EQ(arriving.resident_tokens(), kByLayerTokens);
  EXPECT_EQ(arriving.reason(), MissReason::kNeverSeen);
  EXPECT_EQ(arriving.missing_tokens(), longer.size() - kByLayerTokens);
  const auto sequence = Must(test_->cache->Open(std::move(arriving), {}));
  store_.Turn(SIZE_MAX);
  Must(test_->model.Feed(*sequence, prompt_));
  EXPECT_EQ(Differs(*sequence), "");
  EXPECT_EQ(ticket.Take().resident_tokens(), kByLayerTokens);
}

// In any order, at any time.
TEST_P(LoadByLayerTest, WhatEndsOnTheWayLeavesNothing) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    Prng prng(seed);
    std::optional<Ticket> ticket = Load(
        {.order = LoadOrder::kByLayer, .slices = static_cast<uint32_t>(1 + prng.NextBelow(8))});
    std::unique_ptr<Sequence> sequence;
    for (uint64_t turns = prng.NextBelow(6); turns > 0; --turns) {
      store_.Turn(prng.NextBelow(12));
      if (sequence != nullptr || prng.NextBelow(3) == 0) continue;
      if (auto plan = ticket->Arriving()) sequence = Must(test_->cache->Open(*std::move(plan), {}));
    }
    if (prng.NextBelow(2) == 0) ticket->Cancel();
    if (prng.NextBelow(2) == 0) sequence.reset();
    if (prng.NextBelow(3) == 0) test_->cache->Evict(100);
    if (prng.NextBelow(4) == 0) {
      ticket.reset();
    } else {
      store_.Turn(SIZE_MAX);
      Plan plan = ticket->Take();
      const bool stands = sequence != nullptr && !sequence->arrives();
      if (!stands) sequence = Must(test_->cache->Open(std::move(plan), {}));
      Must(test_->model.Feed(*sequence, prompt_));
      EXPECT_EQ(Differs(*sequence), "");
    }
    if (sequence != nullptr && prng.NextBelow(2) == 0) sequence->Reset();
    sequence.reset();
    ticket.reset();
    ExpectNothingLeft();
  }
}

// Some of its blocks have been published by then.
TEST_P(LoadByLayerTest, MayBeginLate) {
  for (const size_t whole : {1, 3, 5}) {
    SCOPED_TRACE(whole);
    Ticket ticket = Load();
    store_.Turn(kByLayerBlocks + whole);
    EXPECT_EQ(test_->Resident(prompt_), whole * kBlock);
    auto sequence = Open(ticket);
    EXPECT_EQ(sequence->length(), kByLayerTokens);
    EXPECT_TRUE(sequence->arrives());
    store_.Turn(SIZE_MAX);
    Must(test_->model.Feed(*sequence, prompt_));
    EXPECT_EQ(Differs(*sequence), "");
    EXPECT_EQ(ticket.Take().resident_tokens(), kByLayerTokens);
    EXPECT_EQ(test_->slots_used(), kByLayerBlocks + 1);
    sequence.reset();
    ExpectNothingLeft();
  }
}

TEST_P(LoadByLayerTest, WhatIsResidentAlreadyIsShared) {
  store_.records().held = {};
  const auto front = test_->Run(std::span(prompt_).first(2 * kBlock));
  store_.Hold();
  Ticket ticket = Load();
  EXPECT_EQ(ticket.progress().blocks, kByLayerBlocks - 2);
  store_.Turn(kByLayerBlocks - 2);
  const auto sequence = Open(ticket);
  EXPECT_EQ(sequence->length(), kByLayerTokens);
  store_.Turn(SIZE_MAX);
  Must(test_->model.Feed(*sequence, prompt_));
  EXPECT_EQ(Differs(*sequence), "");
  EXPECT_EQ(ticket.Take().resident_tokens(), kByLayerTokens);
}

// Another request publishes the same blocks meanwhile: they are kept once at the end.
TEST_P(LoadByLayerTest, OthersMayComputeTheSameMeanwhile) {
  Ticket ticket = Load();
  store_.Turn(kByLayerBlocks);
  auto sequence = Open(ticket);
  auto other = Must(test_->cache->Open(test_->Acquire(prompt_, /*reuse=*/false), {}));
  Must(test_->model.Feed(*other, prompt_));
  store_.Turn(SIZE_MAX);
  Must(test_->model.Feed(*sequence, prompt_));
  EXPECT_EQ(Differs(*sequence), "");
  EXPECT_EQ(ticket.Take().resident_tokens(), kByLayerTokens);
  other.reset();
  sequence.reset();
  ExpectNothingLeft();
}

// What is asked for besides is not read again, whichever of the two is by layer.
TEST_P(LoadByLayerTest, WaitsForAnotherLoadOfTheSame) {
  for (const bool first_by_layer : {true, false}) {
    const LoadOptions plain;
    Ticket one = Load(first_by_layer ? kInTwoSlices : plain);
    Ticket two = Load(first_by_layer ? plain : kInTwoSlices);
    EXPECT_EQ(store_.records().held_count(), kByLayerBlocks * (first_by_layer ? 2 : 1));
    store_.Turn(SIZE_MAX);
    EXPECT_EQ(store_.records().held_count(), 0);
    EXPECT_EQ(one.Take().resident_tokens(), kByLayerTokens);
    EXPECT_EQ(two.Take().resident_tokens(), kByLayerTokens);
    ExpectNothingLeft();
  }
}

TEST_P(LoadByLayerTest, TellsThatLayersHaveCome) {
  int told = 0;
  int done = 0;
  Ticket ticket = Load({.order = LoadOrder::kByLayer,
                        .slices = 3,
                        .on_layers = [&] { ++told; },
                        .on_done = [&] { ++done; }});
  store_.Turn(kByLayerBlocks);
  EXPECT_EQ(told, 1);
  store_.Turn(kByLayerBlocks);
  EXPECT_EQ(told, 2);
  EXPECT_EQ(done, 0);
  store_.Turn(SIZE_MAX);
  EXPECT_EQ(told, 2);
  EXPECT_EQ(done, 1);
  EXPECT_EQ(ticket.progress().layers_ready, kByLayerLayers);
  EXPECT_EQ(ticket.Arriving().error().code, ErrorCode::kBusy);
}

INSTANTIATE_TEST_SUITE_P(Kinds, LoadByLayerTest,
                         testing::Values(ByLayerKind{.name = "f16"},
                                         ByLayerKind{.name = "int8", .profile = EncodedInt8()}),
                         [](const auto& kind) { return kind.param.name; });

// Where a layer of a block cannot be read alone, it comes as from the front.
TEST(LoadByLayer, ComesWholeWhereLayersAreNotApart) {
  Geometry window = ByLayerGeometry();
  window.groups[0].kind = LayerKind::kWindow;
  window.groups[0].window_tokens = 2 * kBlock + 3;
  const NumericProfile f16 = NumericProfile::Uniform(Codec::kF16);
  const std::vector<TokenId> prompt = SomeTokens(kByLayerTokens + 1, 1);
  struct Case {
    Geometry geometry = ByLayerGeometry();
    NumericProfile profile = NumericProfile::Uniform(Codec::kF16);
    ArenaLayout layout = ArenaLayout::kBlockMajor;
  };
  for (const Case& each : {Case{.geometry = window}, Case{.profile = EncodedInt8(2 * kBlock)},
                           Case{.layout = ArenaLayout::kLayerMajor}}) {
    HeldStore store;
    CacheOptions more = store.options();
    more.layout = each.layout;
    TestCache test(64, each.geometry, each.profile, 0, more);
    test.Run(prompt).reset();
    Must(store.store().Flush());
    while (test.cache->Evict(100) > 0) {
    }
    store.Hold();
    Ticket ticket = Must(test.cache->Load(test.Acquire(prompt), kInTwoSlices));
    store.Turn(1);
    EXPECT_EQ(ticket.progress().layers_ready, 0);
    EXPECT_EQ(ticket.Arriving().error().code, ErrorCode::kBusy);
    while (!ticket.IsDone()) store.Turn(SIZE_MAX);
    EXPECT_EQ(ticket.Take().resident_tokens(), kByLayerTokens);
  }
}

TEST(LoadByLayer, RefusesWhatCannotBe) {
  HeldStore store;
  TestCache test(64, ByLayerGeometry(), NumericProfile::Uniform(Codec::kF16), 0, store.options());
  const std::vector<TokenId> prompt = SomeTokens(kByLayerTokens + 1, 1);
  test.Run(prompt).reset();
  Must(store.store().Flush());
  while (test.cache->Evict(100) > 0) {
  }
  for (const uint32_t slices : {0, 9}) {
    const auto refused = test.cache->Load(test.Acquire(prompt),
                                          {.order = LoadOrder::kByLayer, .slices = slices});
    ASSERT_FALSE(refused.has_value());
    EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
  }
  const Ticket ticket = Must(test.cache->Load(test.Acquire(prompt), {}));
  EXPECT_EQ(ticket.Arriving().error().code, ErrorCode::kUnsupported);
}

// Of a member of a domain that is erased while another one's request has the layers of its blocks.
TEST(LoadByLayer, WhatIsErasedMeanwhileIsNotLeftInMemory) {
  if (DeviceOfTests() != nullptr) GTEST_SKIP() << kComesWhole;
  for (const int round : {0, 1, 2, 3}) {
    SCOPED_TRACE(round);
    const bool ticket_first = round % 2 == 0;
    const bool is_opened = round < 2;  // else its plan is dropped
    HeldStore store;
    SeenMemory seen;
    CacheOptions more = store.options();
    more.memory = &seen;
    TestCache test(64, ByLayerGeometry(), NumericProfile::Uniform(Codec::kF16), 0, more);
    Must(test.cache->AddTenant({.name = "team", .shared = true}));
    const TenantId a = Must(test.cache->AddTenant({.name = "a", .domain = "team"}));
    const TenantId b = Must(test.cache->AddTenant({.name = "b", .domain = "team"}));
    const std::vector<TokenId> prompt = SomeTokens(kByLayerTokens + 5, 1);
    const auto acquire = [&](TenantId tenant) {
      return Must(test.cache->Acquire(
          {.tenant = tenant, .identity = &test.identity, .tokens = prompt}));
    };
    Must(test.model.Feed(*Must(test.cache->Open(acquire(a), {})), prompt));
    Must(store.store().Flush());
    while (test.cache->Evict(100) > 0) {
    }
    store.Hold();
    std::optional<Ticket> ticket = Must(test.cache->Load(acquire(b), kInTwoSlices));
    store.Turn(0);
    store.Turn(kByLayerBlocks);
    std::optional<Plan> plan = Must(ticket->Arriving());
    std::unique_ptr<Sequence> sequence;
    if (is_opened) sequence = Must(test.cache->Open(*std::exchange(plan, std::nullopt), {}));
    store.records().held = {};
    Must(test.cache->Erase(a));
    store.Turn(SIZE_MAX);
    if (is_opened) {
      EXPECT_EQ(sequence->AwaitLayer(0, 0).error().code, ErrorCode::kNotFound);
    }
    if (ticket_first) ticket.reset();
    sequence.reset();
    plan.reset();
    ticket.reset();
    EXPECT_EQ(acquire(b).resident_tokens(), 0);
    Must(test.cache->Erase(b));
    const auto bytes = std::span(OnHost(seen.arena().data()), seen.arena().size());
    EXPECT_EQ(std::ranges::count_if(bytes, [](std::byte byte) { return byte != std::byte{0}; }), 0);
  }
}

}  // namespace
}  // namespace quire::cache
