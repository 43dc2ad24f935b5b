// An engine on a registry: its sequences are owners on the one budget, and nothing else differs
// from a cache of its own. SPEC O1, O2, O3.
#include "registry/request_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>

#include "cache/test_util.h"
#include "registry/registry.h"

namespace quire::registry {
namespace {

using cache::FakeModel;
using cache::Must;
using cache::SmallGeometry;
using cache::SomeIdentity;
using cache::SomeTokens;
using ::testing::HasSubstr;

constexpr uint32_t kBlock = 16;

struct World {
  explicit World(uint64_t slots, uint64_t slots_max = 0)
      : registry(Must(Registry::Create(Options(slots, slots_max)))) {}

  CacheOptions Options(uint64_t slots, uint64_t slots_max = 0) const {
    return {.geometry = SmallGeometry(),
            .profile = NumericProfile::Uniform(Codec::kF16),
            .hot_bytes = BytesFor(slots),
            .hot_bytes_max = slots_max == 0 ? 0 : BytesFor(slots_max),
            .tokens_max = 1 << 12,
            .clock = &clock};
  }
  static uint64_t Charge() {
    return cache::ChargePerSlot(SmallGeometry(), NumericProfile::Uniform(Codec::kF16));
  }
  /// For so many slots, not quite one more, and what owners take besides their slots.
  static uint64_t BytesFor(uint64_t slots) { return (slots + 1) * Charge() - 1; }

  Result<std::unique_ptr<Sequence>> Open(Cache& cache, std::span<const TokenId> prompt) {
    QUIRE_ASSIGN(auto plan, cache.Acquire({.identity = &identity, .tokens = prompt}));
    return cache.Open(std::move(plan), {});
  }
  std::unique_ptr<Sequence> Run(std::span<const TokenId> prompt) {
    auto sequence = Must(Open(registry->requests(), prompt));
    Must(model.Feed(*sequence, prompt));
    return sequence;
  }
  std::shared_ptr<OwnerCache> Get(const Owner& owner) {
    return Must(registry->GetOrCreate(owner, {.identity = identity}));
  }
  Result<void> Feed(OwnerCache& owner, std::span<const TokenId> history) {
    for (uint32_t layer = 0; layer < model.geometry().layer_count(); ++layer) {
      QUIRE_TRY(AppendLayer(owner, layer, history));
    }
    return owner.Commit(history);
  }
  Result<void> AppendLayer(OwnerCache& owner, uint32_t layer, std::span<const TokenId> history) {
    const auto& streams = model.GroupOf(layer).streams;
    const auto key = model.Rows(history, 0, layer, streams[0]);
    const auto value = model.Rows(history, 0, layer, streams[1]);
    return owner.Append(layer, {.key = FakeModel::Packed(key, streams[0]),
                                .value = FakeModel::Packed(value, streams[1]),
                                .tokens = static_cast<uint32_t>(history.size())});
  }

  ManualClock clock{1000};
  FakeModel model{SmallGeometry()};
  Identity identity = SomeIdentity();
  std::unique_ptr<Registry> registry;
};

TEST(RequestCache, ASequenceIsAnOwnerUntilItEnds) {
  World world(20);
  const auto first = world.Get(InferenceOwner{0});
  const auto prompt = SomeTokens(3 * kBlock + 2, 1);
  auto sequence = world.Run(prompt);
  EXPECT_EQ(world.registry->owner_count(), 2u);
  EXPECT_EQ(world.registry->Find(InferenceOwner{1}), nullptr) << "owners choose such ids";
  const auto owner = world.registry->Find(InferenceOwner{InferenceOwner::kFirstRequest});
  ASSERT_NE(owner, nullptr);
  const auto taken = world.registry->GetOrCreate(owner->owner(), {});
  ASSERT_FALSE(taken.has_value());
  EXPECT_EQ(taken.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(owner->length(), prompt.size());
  EXPECT_EQ(owner->bytes(), sequence->stats().bytes);
  std::vector<float> rows(prompt.size() * 8);
  Must(owner->Gather(0, StreamRole::kKey, 0, prompt.size(), rows));

  // The engine is its one writer.
  const std::array refused = {world.AppendLayer(*owner, 0, SomeTokens(1, 2)), owner->Commit({}),
                              owner->Clear()};
  for (const auto& result : refused) {
    ASSERT_FALSE(result.has_value());
    EXPECT_EQ(result.error().code, ErrorCode::kBusy);
    EXPECT_EQ(result.error().message, "request 0: an engine writes to it");
  }
  EXPECT_EQ(world.model.Differs(*sequence, prompt), "");

  sequence.reset();
  EXPECT_EQ(world.registry->owner_count(), 1u);
  EXPECT_EQ(owner->length(), 0u) << "whoever still has it keeps no bytes";
  EXPECT_EQ(world.registry->requests().stats().sealed.slots_used, 3u + 1u)
      << "what it published, and the other owner's first";
  EXPECT_EQ(Must(world.Open(world.registry->requests(), prompt))->length(), 3u * kBlock);
}

TEST(RequestCache, ARunningRequestIsNotEvictedAndEvictsNoOwner) {
  World world(12, 20);
  Registry& registry = *world.registry;
  const auto prompt = SomeTokens(4 * kBlock, 1);
  const auto running = world.Run(prompt);
  const auto idle = world.Get(InferenceOwner{7});
  Must(world.Feed(*idle, SomeTokens(4 * kBlock, 2)));

  // The engine gets the errors of a cache of its own, and waits for its own requests.
  const auto full = world.Open(registry.requests(), SomeTokens(5 * kBlock, 3));
  ASSERT_FALSE(full.has_value());
  EXPECT_EQ(full.error().code, ErrorCode::kNoSpace);
  EXPECT_THAT(full.error().message, ::testing::Not(HasSubstr("inference")));
  EXPECT_EQ(registry.owner_count(), 2u);

  // A training run takes the room of the idle owner, and then none is left.
  const auto run = world.Get(TrainingOwner{"lora", 1});
  Must(world.Feed(*run, SomeTokens(6 * kBlock, 4)));
  EXPECT_EQ(registry.Find(InferenceOwner{7}), nullptr);
  const auto second = world.Get(TrainingOwner{"lora", 2});
  EXPECT_EQ(world.Feed(*second, SomeTokens(6 * kBlock, 5)).error().code, ErrorCode::kNoSpace);
  EXPECT_EQ(registry.EvictToBudget(0).owners_evicted, 0u);
  EXPECT_EQ(world.model.Differs(*running, prompt), "");

  const auto busy = registry.requests().Resize(World::BytesFor(6));
  EXPECT_EQ(busy.error().code, ErrorCode::kBusy);
  EXPECT_THAT(busy.error().message, HasSubstr("training runs and requests hold"));
  Must(registry.requests().Resize(World::BytesFor(20)));
  EXPECT_EQ(registry.budget_bytes(), World::BytesFor(20));
}

TEST(RequestCache, AnOwnerReleasedByNameEndsWhenTheEngineGivesItBack) {
  World world(20);
  const auto prompt = SomeTokens(2 * kBlock, 1);
  auto sequence = world.Run(prompt);
  const Owner owner = InferenceOwner{InferenceOwner::kFirstRequest};
  EXPECT_TRUE(world.registry->Release(owner));
  EXPECT_FALSE(world.registry->Release(owner));

  const std::array refused = {sequence->Reserve(prompt.size() + 1), sequence->Commit({}),
                              sequence->Append(0, {})};
  for (const auto& result : refused) {
    ASSERT_FALSE(result.has_value());
    EXPECT_EQ(result.error().code, ErrorCode::kNotFound);
    EXPECT_EQ(result.error().message, "request 0: it was released");
  }
  EXPECT_EQ(world.model.Differs(*sequence, prompt), "") << "kernels may be reading";
  sequence.reset();
  EXPECT_EQ(world.registry->owner_count(), 0u);
}

TEST(RequestCache, ForksAndSelectionsAreOwnersOfTheirOwn) {
  World world(20);
  const auto prompt = SomeTokens(3 * kBlock + 1, 1);
  auto sequence = world.Run(prompt);
  const auto fork = Must(sequence->Fork());
  const std::array<uint64_t, 2> kept = {0, 2};
  const auto selected = Must(sequence->Select(kept));
  EXPECT_EQ(selected->dropped_tokens(), kBlock);
  EXPECT_EQ(world.registry->owner_count(), 3u);
  sequence.reset();
  EXPECT_EQ(world.registry->owner_count(), 2u);
  EXPECT_EQ(world.model.Differs(*fork, prompt), "");
  EXPECT_EQ(world.registry->Find(InferenceOwner{InferenceOwner::kFirstRequest + 2})->length(),
            2u * kBlock + 1);
}

// The same calls on it and on a cache of one's own: the same answers, statistics and slots.
TEST(RequestCache, ItsSequencesAreGatheredIntoABatch) {
  World world(10);
  const auto longer = SomeTokens(20, 1);
  const auto shorter = SomeTokens(3, 2);
  const auto first = world.Run(longer);
  const auto second = world.Run(shorter);
  const Sequence* const batch[] = {first.get(), second.get()};
  const auto& stream = world.model.GroupOf(1).streams[0];
  std::vector<float> out(2 * stream.heads * longer.size() * stream.dim, -1.0f);
  Must(GatherPadded(batch, 1, StreamRole::kKey, longer.size(), out));

  std::vector<float> expected(out.size());
  Must(first->Gather(1, StreamRole::kKey, 0, longer.size(), expected));
  std::vector<float> row(stream.heads * shorter.size() * stream.dim);
  Must(second->Gather(1, StreamRole::kKey, 0, shorter.size(), row));
  const size_t of_head = shorter.size() * stream.dim;
  for (size_t head = 0; head < stream.heads; ++head) {
    std::copy_n(row.begin() + static_cast<ptrdiff_t>(head * of_head), of_head,
                expected.begin() +
                    static_cast<ptrdiff_t>((stream.heads + head) * longer.size() * stream.dim));
  }
  EXPECT_EQ(out, expected);
}

TEST(RequestCache, NothingElseDiffersFromACacheOfOnesOwn) {
  World world(10);
  const auto plain = Must(Cache::Create(world.Options(10)));
  std::array<std::string, 2> heard;
  const std::array<Cache*, 2> caches = {plain.get(), &world.registry->requests()};
  for (size_t i = 0; i < 2; ++i) {
    std::vector<std::unique_ptr<Sequence>> held;
    for (uint64_t step = 0; step < 60; ++step) {
      const auto prompt = SomeTokens(1 + step * 37 % (5 * kBlock), step % 7);
      auto sequence = world.Open(*caches[i], prompt);
      if (!sequence) {
        heard[i] += sequence.error().message + "\n";
        held.erase(held.begin());
        continue;
      }
      heard[i] += std::to_string((*sequence)->length()) + "\n";
      const auto fed = world.model.Feed(**sequence, prompt);
      if (!fed) heard[i] += fed.error().message + "\n";
      held.push_back(*std::move(sequence));
      if (step % 5 == 0) heard[i] += std::to_string(caches[i]->Evict(step % 3)) + "\n";
      heard[i] += caches[i]->BlockMap();
    }
    heard[i] += ToJson(caches[i]->stats()) + ToJson(Must(caches[i]->tenant_stats(kDefaultTenant)));
  }
  EXPECT_THAT(heard[0], HasSubstr("blocks needed"));
  EXPECT_EQ(heard[0], heard[1]);
}

}  // namespace
}  // namespace quire::registry
