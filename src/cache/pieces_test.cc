// One hold of the cache's lock touches few blocks of a path, for every verb and however long the
// path is.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <ostream>
#include <string>

#include "cache/below/test_store.h"
#include "cache/core.h"
#include "cache/test_util.h"
#include "env/clock.h"

namespace quire::cache {
namespace {

using ::testing::ElementsAre;

constexpr uint64_t kLong = 2000;  // blocks
constexpr uint64_t kSpare = 80;
constexpr uint64_t kSecond_us = 1'000'000;

Stream OneHead(StreamRole role) { return {.role = role, .heads = 1, .dim = 4}; }

LayerGroup Layer(uint32_t layer, LayerKind kind) {
  return {.kind = kind,
          .layers = {layer},
          .window_tokens = kind == LayerKind::kWindow ? 2 * kBlock : 0,
          .streams = {OneHead(StreamRole::kKey), OneHead(StreamRole::kValue)}};
}

struct PiecesKind {
  std::string name;
  Geometry geometry;
  NumericProfile profile = NumericProfile::Uniform(Codec::kF16);
  std::string policy = "lru";
};

void PrintTo(const PiecesKind& kind, std::ostream* out) { *out << kind.name; }

NumericProfile Twins(uint64_t blocks) {
  NumericProfile profile = NumericProfile::Uniform(Codec::kInt8);
  profile.open_dtype = Codec::kF16;
  profile.residual_tokens = static_cast<uint32_t>(blocks * kBlock);
  return profile;
}

std::vector<PiecesKind> Kinds() {
  const Geometry full{.groups = {Layer(0, LayerKind::kFull)}};
  // A window keeps the last blocks only; their leases keep the whole path.
  const Geometry both{.groups = {Layer(0, LayerKind::kFull), Layer(1, LayerKind::kWindow)}};
  return {{.name = "full", .geometry = full},
          {.name = "windows", .geometry = both},
          {.name = "twins", .geometry = full, .profile = Twins(2)},
          {.name = "many_twins", .geometry = full, .profile = Twins(600)},
          {.name = "priorities", .geometry = full, .policy = "priority"},
          {.name = "learning", .geometry = full, .policy = "quire"}};
}

/// One path of kLong blocks, and verbs on it; each has to keep to few records.
class Pieces : public testing::TestWithParam<PiecesKind> {
 protected:
  static const Core& CoreOf(const TestCache& cache) {
    return static_cast<const Core&>(*cache.cache);
  }
  void Check(const std::string& verb) { Check(cache_, verb); }
  static void Check(const TestCache& cache, const std::string& verb) {
    EXPECT_LE(CoreOf(cache).state().most_touched(), kRecordsPerHold) << "after " << verb;
    CoreOf(cache).CheckDirectory();
  }
  static bool Encodes() {
    return Must(GetParam().profile.CodecFor(StreamRole::kKey)) != Codec::kF16;
  }
  static bool HasWindow() { return GetParam().geometry.groups.size() > 1; }
  AcquireRequest Request(std::span<const TokenId> tokens) const {
    return {.identity = &cache_.identity, .tokens = tokens};
  }

  ManualClock clock_{1000};
  TestCache cache_{2 * kLong + kSpare,
                   GetParam().geometry,
                   GetParam().profile,
                   0,
                   {.clock = &clock_, .policy = GetParam().policy}};
  const std::vector<TokenId> path_ = SomeTokens(kLong * kBlock, 1);
  const std::vector<TokenId> longer_ = Join(path_, SomeTokens(kBlock + 1, 2));
};

TEST_P(Pieces, OfSequences) {
  {
    const auto sequence = cache_.Run(path_);
    Check("append, commit");
    if (!HasWindow() && GetParam().profile.residual_tokens == 0) {
      Must(sequence->Rollback((kLong - 1) * kBlock));
      Check("rollback of a block");
    }
    if (GetParam().policy == "priority") {
      Must(sequence->Retain({.begin_token = 0, .end_token = path_.size(), .priority = 90}));
      Check("retain");
    }
  }
  Check("end of a sequence");
  const auto hit = cache_.Open(longer_);
  Check("acquire, open");
  ASSERT_GT(hit->length(), (kLong - 2) * kBlock);
  const auto fork = Must(hit->Fork());
  Check("fork");
  if (!Encodes()) {
    const auto view = Must(hit->View(0, StreamRole::kKey));
    Must(view.Unleased().Pin());
    Check("view");
  }
  std::vector<float> out(path_.size() * 4);
  if (!HasWindow()) {
    Must(hit->Gather(0, StreamRole::kKey, 0, hit->length(), out));
    Check("gather");
    if (GetParam().profile.residual_tokens == 0) {
      std::vector<uint64_t> kept(kLong / 2);
      for (uint64_t i = 0; i < kept.size(); ++i) kept[i] = 2 * i;
      const auto selected = hit->Select(kept);
      if (selected) (*selected)->Reset();
      Check("select");
    }
  }
  hit->Reset();
  Check("reset");
}

TEST_P(Pieces, OfPlans) {
  cache_.Run(path_).reset();
  cache_.Acquire(longer_);
  Check("a plan that is dropped");
  const SequenceOptions options{.reserve_tokens = longer_.size()};
  AcquireRequest asked = Request(longer_);
  asked.open_as = &options;
  Must(cache_.cache->Acquire(asked));
  Check("acquire that asks for room");
  Must(cache_.cache->Open(cache_.Acquire(longer_), options)).reset();
  EXPECT_GT(Must(cache_.cache->Entries({.entries_max = 2 * kLong})).size(), kLong - 2);
  cache_.cache->BlockMap();
  Check("entries, the map");
}

// All of it is evicted for another request, then by a call of Evict.
TEST_P(Pieces, OfEviction) {
  cache_.Run(path_).reset();
  cache_.Run(SomeTokens(kLong * kBlock, 3)).reset();
  Check("sequences");
  cache_.Run(SomeTokens(kLong * kBlock, 4)).reset();
  EXPECT_GT(cache_.cache->stats().evicted_total, 50u);
  Check("eviction for a request");
  EXPECT_GT(cache_.cache->Evict(UINT64_MAX), 1000u);
  EXPECT_EQ(cache_.cache->stats().published_blocks, 0u);
  Check("evict");
}

TEST_P(Pieces, OfPins) {
  cache_.Run(path_).reset();
  EXPECT_EQ(Must(cache_.cache->Pin(Request(path_), 0)), kLong);
  EXPECT_EQ(cache_.cache->stats().pinned_blocks, kLong);
  Check("pin");
  Must(cache_.cache->Pin(Request(path_), 0));
  Must(cache_.cache->Unpin(Request(path_)));
  EXPECT_EQ(cache_.cache->stats().pinned_blocks, kLong);
  cache_.cache->Evict(kLong);
  EXPECT_EQ(cache_.Resident(longer_), kLong * kBlock);
  Must(cache_.cache->Unpin(Request(path_)));
  EXPECT_EQ(cache_.cache->stats().pinned_blocks, 0u);
  Check("unpin");
  for (const bool asks_for_room : {false, true}) {
    Must(cache_.cache->Pin(Request(path_), kSecond_us));
    clock_.Advance(kSecond_us);
    if (asks_for_room) {
      const SequenceOptions options{.reserve_tokens = longer_.size()};
      AcquireRequest asked = Request(SomeTokens(kLong * kBlock, 5));
      asked.open_as = &options;
      Must(cache_.cache->Acquire(asked));
    } else {
      Must(cache_.cache->Open(cache_.Acquire(SomeTokens(kBlock, 6)), {})).reset();
    }
    EXPECT_EQ(cache_.cache->stats().pinned_blocks, 0u);
    Check("pins that end");
  }
  EXPECT_EQ(Must(cache_.cache->tenant_stats(kDefaultTenant)).pinned_bytes, 0u);
  EXPECT_EQ(cache_.Resident(longer_), kLong * kBlock);
}

TEST_P(Pieces, OfDamage) {
  if (Encodes()) GTEST_SKIP() << "no views";
  const auto other = Join(std::span(path_).first(kLong / 2 * kBlock), SomeTokens(kBlock, 7));
  cache_.Run(path_).reset();
  cache_.Run(other).reset();
  Must(cache_.cache->Pin(Request(path_), 0));
  const uint64_t depth = 3;
  {
    const auto hit = cache_.Open(std::span(path_).first((depth + 1) * kBlock + 1));
    ASSERT_EQ(hit->length(), (depth + 1) * kBlock);
    FlipBit(*hit, depth);
  }
  EXPECT_EQ(cache_.cache->Verify().damaged, 1u);
  EXPECT_EQ(cache_.cache->stats().published_blocks, depth);
  EXPECT_EQ(cache_.cache->stats().pinned_blocks, 0u);
  Check("quarantine");
  const Plan plan = cache_.Acquire(longer_);
  EXPECT_EQ(plan.resident_tokens(), depth * kBlock);
  EXPECT_EQ(plan.reason(), MissReason::kDamaged);
  EXPECT_EQ(plan.missing().front().tokens, (kLong - depth) * kBlock) << "all of it";
  Check("a lookup of what was damaged");
}

TEST_P(Pieces, OfErasure) {
  const TenantId tenant = Must(cache_.cache->AddTenant({.name = "a"}));
  AcquireRequest request = Request(path_);
  request.tenant = tenant;
  {
    const auto sequence = Must(cache_.cache->Open(Must(cache_.cache->Acquire(request)), {}));
    Must(cache_.model.Feed(*sequence, path_));
  }
  Must(cache_.cache->Pin(request, 0));
  const EraseReport report = Must(cache_.cache->Erase(tenant));
  EXPECT_EQ(report.blocks, kLong);
  EXPECT_EQ(report.slots_pending, 0u);
  EXPECT_EQ(cache_.cache->stats().published_blocks, 0u);
  Must(cache_.cache->RemoveTenant(tenant));
  Check("erase, remove");
}

TEST_P(Pieces, OfTimesToLive) {
  const TenantId tenant = Must(cache_.cache->AddTenant({.name = "aging", .ttl_us = 1}));
  AcquireRequest request = Request(path_);
  request.tenant = tenant;
  {
    const auto sequence = Must(cache_.cache->Open(Must(cache_.cache->Acquire(request)), {}));
    Must(cache_.model.Feed(*sequence, path_));
  }
  clock_.Advance(10);
  EXPECT_EQ(Must(cache_.cache->Acquire(request)).resident_tokens(), 0u);
  EXPECT_EQ(cache_.cache->stats().published_blocks, 0u);
  Check("acquire of what is too old");
}

TEST_P(Pieces, OfAShrink) {
  cache_.Run(path_).reset();
  cache_.Run(SomeTokens(kLong * kBlock, 3)).reset();
  const uint64_t before = cache_.cache->stats().published_blocks;
  Must(cache_.cache->Resize(cache_.BytesFor(kLong / 2)));
  EXPECT_LT(cache_.cache->stats().published_blocks, before);
  Check("shrink");
  Must(cache_.cache->Resize(cache_.BytesFor(kLong)));
  cache_.cache->Trim();
  Check("growth, trim");
  // All slots that are left beyond the end are held.
  cache_.Run(std::span(path_).first(kLong / 2 * kBlock)).reset();
  const auto held = cache_.Open(std::span(path_).first(kLong / 2 * kBlock));
  const auto busy = cache_.cache->Resize(cache_.BytesFor(kLong / 4));
  ASSERT_FALSE(busy.has_value());
  EXPECT_EQ(busy.error().code, ErrorCode::kBusy);
  Check("a shrink that is refused");
}

// The tokens that are the same under another adapter's root.
TEST_P(Pieces, OfTheSearchUnderOtherRoots) {
  for (uint32_t version = 1; version <= 3; ++version) {
    cache_.identity.adapter_version = version;
    cache_.Run(std::span(path_).first(kLong / 4 * version * kBlock)).reset();
  }
  cache_.identity.adapter_version = 9;
  const Plan plan = cache_.Acquire(longer_);
  EXPECT_THAT(
      plan.missing(),
      ElementsAre(MissRun{.reason = MissReason::kOtherProfile, .tokens = kLong / 4 * 3 * kBlock},
                  MissRun{.reason = MissReason::kNeverSeen, .tokens = (kLong / 4 + 1) * kBlock},
                  MissRun{.reason = MissReason::kPartialBlock, .tokens = 1}));
  Check("a miss of what is under other roots");
}

// The view has the last blocks; the blocks before them are leased anew.
TEST_P(Pieces, OfAViewOfTheEnd) {
  if (Encodes()) GTEST_SKIP() << "no views";
  const uint32_t last_layer = static_cast<uint32_t>(GetParam().geometry.groups.size()) - 1;
  auto sequence = cache_.Run(path_);
  const uint64_t begin = (kLong - 2) * kBlock;
  const UnleasedView view =
      Must(sequence->View(last_layer, StreamRole::kKey, {.begin = begin, .end = path_.size()}))
          .Unleased();
  sequence.reset();
  {
    const BlockListView pinned = Must(view.Pin());
    Check("pin of a view");
    cache_.cache->Evict(UINT64_MAX);
    EXPECT_EQ(cache_.cache->stats().published_blocks, kLong) << "all of the path is leased for it";
  }
  Check("end of a view");
  EXPECT_EQ(cache_.cache->Evict(1), 1u);
  EXPECT_FALSE(view.Pin().has_value()) << "its last block went first";
  cache_.cache->Evict(UINT64_MAX);
  EXPECT_EQ(cache_.cache->stats().published_blocks, 0u) << "nothing is held for it";
}

TEST_P(Pieces, OfLoads) {
  TestStore store(uint64_t{64} << 20);
  const auto make = [&] {
    return std::make_unique<TestCache>(
        kLong + 2 * kSpare, GetParam().geometry, GetParam().profile, 0,
        CacheOptions{
            .clock = &store.clock, .policy = GetParam().policy, .store = store.store.get()});
  };
  {
    const auto test = make();
    test->Run(path_).reset();
    while (test->cache->stats().unwritten_blocks > 0) store.Turn();
    Must(store.store->Flush());
    Check(*test, "writing");
  }
  const auto test = make();
  Plan plan = test->Acquire(longer_);
  ASSERT_EQ(plan.loadable_tokens(), kLong * kBlock);
  Check(*test, "a lookup below");
  Ticket ticket = Must(test->cache->Load(std::move(plan), {}));
  while (!ticket.IsDone()) store.Turn();
  plan = ticket.Take();
  EXPECT_EQ(plan.resident_tokens(), kLong * kBlock);
  Check(*test, "a load");
  Must(test->cache->Open(std::move(plan), {})).reset();
  Check(*test, "its use");
}

INSTANTIATE_TEST_SUITE_P(All, Pieces, testing::ValuesIn(Kinds()),
                         [](const auto& kind) { return kind.param.name; });

// Many tenants of a domain, whose room is full: each block that is published takes another's place.
TEST(PiecesOfADomain, WhoseRoomIsFull) {
  TestCache cache(3 * kLong, Geometry{.groups = {Layer(0, LayerKind::kFull)}});
  Must(cache.cache->AddTenant(
      {.name = "house", .quota_bytes = cache.BytesFor(kLong), .shared = true}));
  const TenantId a = Must(cache.cache->AddTenant({.name = "a", .domain = "house"}));
  for (uint64_t seed = 1; seed <= 2; ++seed) {
    const auto prompt = SomeTokens(kLong * kBlock, seed);
    const AcquireRequest request{.tenant = a, .identity = &cache.identity, .tokens = prompt};
    const auto sequence = Must(cache.cache->Open(Must(cache.cache->Acquire(request)), {}));
    Must(cache.model.Feed(*sequence, prompt));
  }
  EXPECT_EQ(cache.cache->stats().published_blocks, kLong);
  const Core& core = static_cast<const Core&>(*cache.cache);
  EXPECT_LE(core.state().most_touched(), kRecordsPerHold);
  EXPECT_GT(core.state().most_touched(), kBlocksPerHold);
}

// Where all layers have windows, the first blocks of a long path lose their bytes, and when there
// are too many such blocks the path leaves the index.
TEST(PiecesUnderWindows, OfPathsWithoutBytes) {
  TestCache cache(60, Geometry{.groups = {Layer(0, LayerKind::kWindow)}});
  const auto prompt = SomeTokens(kLong * kBlock, 1);
  const auto sequence = cache.Open(std::span(prompt).first(1), {.step_tokens = kBlock});
  for (uint64_t end = kBlock; end <= prompt.size(); end += kBlock) {
    Must(cache.model.Feed(*sequence, std::span(prompt).first(end)));
    if (end % (64 * kBlock) == 0) cache.Run(SomeTokens(20 * kBlock, end)).reset();
  }
  EXPECT_GT(cache.cache->stats().evicted_passed_total, 300u);
  const Core& core = static_cast<const Core&>(*cache.cache);
  EXPECT_LE(core.state().most_touched(), kRecordsPerHold);
  core.CheckDirectory();
}

}  // namespace
}  // namespace quire::cache
