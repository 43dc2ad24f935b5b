// Growing and shrinking the arena while sequences live: which blocks move, which leave, which slots
// prevent it, and that a refusal changes nothing. SPEC M8.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <thread>

#include "cache/core.h"
#include "cache/test_util.h"
#include "env/faulty_memory.h"
#include "env/machine.h"

namespace quire::cache {
namespace {

using ::testing::HasSubstr;

const NumericProfile kF16 = NumericProfile::Uniform(Codec::kF16);

struct ResizeCache : TestCache {
  explicit ResizeCache(uint64_t slots, uint64_t slots_max = 0)
      : TestCache(slots, SmallGeometry(), kF16, slots_max) {}

  Result<void> Resize(uint64_t slots) { return cache->Resize(BytesFor(slots)); }

  // Caches a prompt of so many tokens in the slots from 4 on; the slots before are free.
  std::vector<TokenId> FillTail(uint64_t tokens) {
    const auto low = Run(SomeTokens(4 * kBlock, 1), {.publish = false});
    const auto prompt = SomeTokens(tokens, 2);
    Run(prompt).reset();
    return prompt;
  }

  // Refuses with `code` and these words, and changes nothing.
  void Refuses(uint64_t bytes, ErrorCode code, std::initializer_list<std::string> words) {
    const std::string before = Snapshot();
    const auto refused = cache->Resize(bytes);
    ASSERT_FALSE(refused.has_value());
    EXPECT_EQ(refused.error().code, code) << refused.error().message;
    for (const std::string& word : words) EXPECT_THAT(refused.error().message, HasSubstr(word));
    EXPECT_EQ(Snapshot(), before);
  }
};

TEST(Resize, GrowsInPlaceUpToItsMaximum) {
  ResizeCache cache(4, 10);
  const auto tokens = SomeTokens(4 * kBlock, 1);
  const auto sequence = cache.Run(tokens);
  const BlockListView view = Must(sequence->View(0, StreamRole::kKey));
  EXPECT_FALSE(cache.TryOpen(SomeTokens(kBlock, 2)).has_value());
  Must(cache.Resize(10));
  const CacheStats stats = cache.cache->stats();
  EXPECT_EQ(stats.hot_bytes_limit, cache.BytesFor(10));
  EXPECT_EQ(SlotCharges(stats), 4 * cache.charge_bytes);
  EXPECT_EQ(stats.sealed.slots_max, 10u);
  const BlockListView again = Must(sequence->View(0, StreamRole::kKey));
  EXPECT_TRUE(std::ranges::equal(view.slots(), again.slots()));
  const auto other = SomeTokens(6 * kBlock, 2);
  const auto second = cache.Run(other);
  EXPECT_EQ(cache.model.Differs(*sequence, tokens), "");
  EXPECT_EQ(cache.model.Differs(*second, other), "");
  cache.Refuses(cache.BytesFor(10) + 1, ErrorCode::kTooLarge,
                {std::to_string(cache.BytesFor(10) + 1), "hot_bytes_max"});
  cache.Refuses(cache.charge_bytes - 1, ErrorCode::kNoSpace, {"holds no blocks"});
}

TEST(Resize, CachedBlocksMoveOutOfTheTail) {
  ResizeCache cache(8);
  const auto tokens = cache.FillTail(3 * kBlock + 5);
  EXPECT_EQ(cache.cache->BlockMap(), "0  ....sss.\n");
  Must(cache.Resize(4));
  EXPECT_EQ(std::ranges::count(cache.cache->BlockMap(), 's'), 3);
  const CacheStats stats = cache.cache->stats();
  EXPECT_EQ(stats.sealed.slots_max, 4u);
  EXPECT_EQ(stats.evicted_total, 0u);
  EXPECT_EQ(stats.hot_bytes_used, 3 * cache.charge_bytes);
  EXPECT_EQ(cache.cache->Verify().damaged, 0u);
  EXPECT_EQ(cache.cache->Verify().blocks, 3u);
  const auto hit = cache.Open(tokens);
  EXPECT_EQ(hit->length(), 3u * kBlock);
  EXPECT_EQ(cache.model.Differs(*hit, std::span(tokens).first(3 * kBlock)), "");
}

TEST(Resize, EvictsTheLeastRecentBlocksThatDoNotFit) {
  ResizeCache cache(9);
  const auto a = SomeTokens(3 * kBlock + 1, 1);
  const auto b = SomeTokens(3 * kBlock + 1, 2);
  const auto c = SomeTokens(2 * kBlock + 1, 3);
  for (const auto& tokens : {a, b, c}) cache.Run(tokens).reset();
  EXPECT_EQ(cache.Resident(a), 3u * kBlock) << "used again";
  Must(cache.Resize(6));
  EXPECT_EQ(cache.cache->stats().evicted_total, 2u);
  EXPECT_EQ(cache.Resident(b), kBlock) << "its leaves were the oldest";
  EXPECT_EQ(cache.Resident(a), 3u * kBlock);
  EXPECT_EQ(cache.Resident(c), 2u * kBlock);
  EXPECT_EQ(cache.Acquire(b).reason(), MissReason::kEvicted);
}

TEST(Resize, NamesTheHoldersOfSlotsThatCannotMove) {
  ResizeCache cache(12);
  const TenantId other = Must(cache.cache->AddTenant({.name = "other"}));
  auto first = cache.Run(SomeTokens(2 * kBlock, 1), {.publish = false});
  auto foreign = Must(cache.cache->Open(
      Must(cache.cache->Acquire(
          {.tenant = other, .identity = &cache.identity, .tokens = SomeTokens(20, 9)})),
      {}));
  const auto tokens = SomeTokens(3 * kBlock, 2);
  auto second = cache.Run(tokens);
  auto view = std::make_unique<BlockListView>(Must(second->View(0, StreamRole::kKey)));
  auto viewed = cache.Run(SomeTokens(kBlock + 2, 3));
  auto alone = std::make_unique<BlockListView>(Must(viewed->View(0, StreamRole::kKey)));
  viewed.reset();
  const auto named = [](const Sequence& sequence, uint64_t blocks) {
    return "sequence " + std::to_string(sequence.id().number()) + " (" + std::to_string(blocks) +
           ")";
  };
  const uint64_t least_bytes = 9 * cache.charge_bytes + cache.cache->stats().sequence_bytes;
  cache.Refuses(cache.BytesFor(1), ErrorCode::kBusy,
                {"8 slots", named(*first, 1), named(*second, 3), "1 sequences of other tenants",
                 "plans and views (2)", std::to_string(least_bytes) + " are possible"});
  alone.reset();
  second.reset();
  cache.Refuses(cache.BytesFor(4), ErrorCode::kBusy, {"3 slots", "plans and views (3)"});
  view.reset();
  foreign.reset();
  Must(cache.Resize(4));
  EXPECT_EQ(cache.cache->stats().sealed.slots_max, 4u);
  EXPECT_EQ(cache.model.Differs(*first, SomeTokens(2 * kBlock, 1)), "");
}

TEST(Resize, NotBelowTheFloors) {
  ResizeCache cache(20);
  const uint64_t floor = 4 * cache.charge_bytes;
  const TenantId a = Must(cache.cache->AddTenant({.name = "a", .floor_bytes = floor}));
  Must(cache.cache->AddTenant({.name = "b", .floor_bytes = 2 * floor}));
  const auto tokens = SomeTokens(5 * kBlock + 1, 1);
  const auto run = [&](TenantId tenant) {
    auto sequence = Must(
        cache.cache->Open(Must(cache.cache->Acquire(
                              {.tenant = tenant, .identity = &cache.identity, .tokens = tokens})),
                          {}));
    Must(cache.model.Feed(*sequence, tokens));
  };
  run(kDefaultTenant);
  run(a);
  cache.Refuses(3 * floor - 1, ErrorCode::kNoSpace,
                {"\"a\" " + std::to_string(floor), "\"b\" " + std::to_string(2 * floor)});
  Must(cache.cache->Resize(3 * floor + cache.charge_bytes - 1));
  EXPECT_FALSE(
      cache.cache->AddTenant({.name = "c", .floor_bytes = cache.charge_bytes}).has_value());
  // Cached blocks above the floor go, and those that a floor protects stay: both have eight slots.
  auto held = cache.Run(SomeTokens(8 * kBlock, 2), {.publish = false});
  EXPECT_GE(Must(cache.cache->tenant_stats(a)).bytes_used, floor);
  held.reset();
  Must(cache.cache->Resize(20 * cache.charge_bytes));
  Must(cache.cache->AddTenant({.name = "c", .floor_bytes = floor}));
}

TEST(Resize, ACommitThatFailsChangesNothing) {
  const auto host = MakeHostMemory(false);
  Geometry mixed = Geometry::Uniform(3, 2, 64);
  mixed.groups[0].layers = {0, 1};
  mixed.groups.push_back(mixed.groups[0]);
  mixed.groups[1].layers = {2};
  mixed.groups[1].kind = LayerKind::kWindow;
  mixed.groups[1].window_tokens = 40;
  NumericProfile int8 = kF16;
  for (CodecRule& rule : int8.codecs) rule.codec = Codec::kInt8;
  uint64_t failures = 0;
  for (uint64_t failing = 0;; ++failing) {
    FaultyMemory memory(*host, std::numeric_limits<uint64_t>::max());
    const auto core = Must(Core::Make({.geometry = mixed,
                                       .profile = int8,
                                       .hot_bytes = 1 << 20,
                                       .hot_bytes_max = 3 << 20,
                                       .memory = &memory}));
    const std::string before = ToJson(core->stats()) + core->BlockMap();
    memory.FailCall(failing);
    const auto grown = core->Resize(3 << 20);
    ASSERT_EQ(grown.has_value(), !memory.failed());
    if (grown) break;
    ++failures;
    EXPECT_EQ(grown.error().code, ErrorCode::kNoSpace);
    EXPECT_THAT(grown.error().message, HasSubstr("resize: to 3145728 bytes"));
    EXPECT_THAT(grown.error().message, HasSubstr("injected"));
    EXPECT_EQ(ToJson(core->stats()) + core->BlockMap(), before);
    Must(core->Resize(3 << 20));
    Must(core->Resize(1 << 20));
  }
  EXPECT_EQ(failures, 4u) << "two parts, sealed and open";
}

TEST(Resize, MemoryOfTheTailGoesBackToTheSystem) {
  if (kResidentBytesIncludeShadow) GTEST_SKIP() << "a sanitizer's shadow is resident too";
  const Geometry qwen3 = Geometry::Uniform(/*layers=*/28, /*kv_heads=*/8, /*head_dim=*/128);
  constexpr uint64_t kBlockBytes = 28 * 2 * 8 * 128 * kBlock * 2;
  TestCache cache(40, qwen3);
  const auto tokens = SomeTokens(32 * kBlock, 1);
  // The heap keeps memory that operations took while they were under way.
  cache.Run(SomeTokens(32 * kBlock, 2)).reset();
  cache.cache->Evict(32);
  cache.cache->Trim();
  const uint64_t before = Must(ResidentBytes());
  cache.Run(tokens).reset();
  EXPECT_GT(Must(ResidentBytes()), before + 30 * kBlockBytes) << "or this test shows nothing";
  Must(cache.cache->Resize(cache.BytesFor(8)));
  EXPECT_EQ(cache.slots_used(), 8u);
  EXPECT_LT(Must(ResidentBytes()), before + 10 * kBlockBytes);
  Must(cache.cache->Resize(cache.BytesFor(40)));
  EXPECT_LT(Must(ResidentBytes()), before + 10 * kBlockBytes) << "growing touches nothing";
  EXPECT_EQ(cache.Resident(tokens), 8u * kBlock);
}

// A lookup that leases a block while others move holds it where it is; a block that is pinned
// meanwhile moves with its pin.
TEST(Resize, LookupsGoOnWhileBlocksMove) {
  constexpr uint64_t kPrompts = 8;
  constexpr uint64_t kBlocks = 50;  // of each
  constexpr uint64_t kHalf = kPrompts * kBlocks;
  TestCache cache(2 * kHalf, Geometry::Uniform(/*layers=*/2, /*kv_heads=*/8, /*head_dim=*/64));
  std::vector<std::vector<TokenId>> prompts;
  for (uint64_t i = 0; i < kPrompts; ++i) prompts.push_back(SomeTokens(kBlocks * kBlock + 1, i));
  auto low = cache.Open(SomeTokens(kHalf * kBlock, 100));
  for (const auto& prompt : prompts) {
    auto sequence = cache.Open(std::span(prompt).first(kBlocks * kBlock));
    Must(cache.model.Feed(*sequence, std::span(prompt).first(kBlocks * kBlock)));
  }
  low.reset();
  std::atomic<bool> done = false;
  std::thread shrinks([&] {
    Must(cache.cache->Resize(cache.BytesFor(kHalf)));
    done = true;
  });
  // A plan on the tail before the new end is set would make the shrink fail.
  while (cache.cache->stats().sealed.slots_max != kHalf) std::this_thread::yield();
  std::vector<Plan> plans;
  for (uint64_t i = 0; i < kPrompts || !done; ++i) {
    const auto& prompt = prompts[(kPrompts - 1 - i % kPrompts)];  // the last prompts are moved last
    EXPECT_EQ(Must(cache.cache->Pin({.identity = &cache.identity, .tokens = prompt}, 0)), kBlocks);
    plans.push_back(cache.Acquire(prompts[i % kPrompts]));
  }
  shrinks.join();
  EXPECT_EQ(cache.cache->stats().pinned_blocks, kHalf);
  for (const Plan& plan : plans) EXPECT_EQ(plan.resident_tokens(), kBlocks * kBlock);
  EXPECT_EQ(cache.cache->Verify().blocks, kHalf);
  EXPECT_EQ(cache.cache->Verify().damaged, 0u);
  EXPECT_EQ(cache.cache->stats().sealed.slots_max, kHalf);
}

// A pin is no pointer: its blocks move as others do, and stay pinned.
TEST(Resize, PinnedBlocksMoveAndStayPinned) {
  ResizeCache cache(8);
  const auto tokens = cache.FillTail(3 * kBlock + 1);
  const AcquireRequest pinned = {.identity = &cache.identity, .tokens = tokens};
  EXPECT_EQ(Must(cache.cache->Pin(pinned, 0)), 3u);
  Must(cache.Resize(4));
  EXPECT_EQ(cache.cache->stats().pinned_blocks, 3u);
  cache.Run(SomeTokens(kBlock, 3)).reset();
  EXPECT_EQ(cache.cache->Evict(8), 1u) << "the pins keep theirs";
  EXPECT_EQ(cache.Resident(tokens), 3u * kBlock);
  EXPECT_EQ(cache.cache->Verify().damaged, 0u);
  Must(cache.cache->Unpin(pinned));
  EXPECT_EQ(cache.cache->stats().pinned_blocks, 0u);
  EXPECT_EQ(cache.cache->Evict(8), 3u);
  EXPECT_EQ(cache.slots_used(), 0u);
}

// Erased writers of slots that are gone must not be zeroed: these have no memory.
TEST(Resize, ErasesAfterwardsWhatIsThere) {
  ResizeCache cache(8);
  const auto tokens = cache.FillTail(3 * kBlock + 1);
  Must(cache.Resize(4));
  const EraseReport erased = Must(cache.cache->Erase(kDefaultTenant));
  EXPECT_EQ(erased.blocks, 3u);
  EXPECT_EQ(erased.slots_zeroed, 4u) << "three that were moved to, and one that low had";
  Must(cache.Resize(8));
  EXPECT_EQ(cache.Resident(tokens), 0u);
}

TEST(Resize, AContiguousSequenceGrowsPastTheOldEnd) {
  for (const Placement placement : {Placement::kFirstFit, Placement::kBestFit, Placement::kBuddy}) {
    const FakeModel model(SmallGeometry());
    const auto cache = MakeCache({.geometry = SmallGeometry(),
                                  .profile = kF16,
                                  .layout = ArenaLayout::kHeadMajor,
                                  .placement = placement,
                                  .hot_bytes = 4 * 5000,
                                  .hot_bytes_max = 20 * 5000});
    const Identity identity = SomeIdentity();
    const auto tokens = SomeTokens(10 * kBlock, 1);
    const uint64_t slots = cache->stats().sealed.slots_max;
    ASSERT_LT(slots, 10u);
    const auto sequence =
        Must(cache->Open(Must(cache->Acquire({.identity = &identity,
                                              .tokens = std::span(tokens).first(slots * kBlock)})),
                         {.contiguous = true}));
    Must(model.Feed(*sequence, std::span(tokens).first(slots * kBlock)));
    const TensorView before = Must(Must(sequence->View(1, StreamRole::kValue)).array());
    EXPECT_EQ(sequence->Reserve(tokens.size()).error().code, ErrorCode::kNoSpace);
    Must(cache->Resize(20 * 5000));
    Must(model.Feed(*sequence, tokens));
    const TensorView after = Must(Must(sequence->View(1, StreamRole::kValue)).array());
    EXPECT_EQ(after.data, before.data);
    EXPECT_EQ(after.strides, before.strides) << "strides are those of the most it can have";
    EXPECT_EQ(model.Differs(*sequence, tokens), "");
  }
}

}  // namespace
}  // namespace quire::cache
