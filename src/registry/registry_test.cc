// Owners within a budget: training runs live, inference owners go by age, layers at once.
// SPEC O1, O2, O3, O5, O8.
#include "registry/registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <functional>
#include <thread>
#include <utility>

#include "base/sync_point.h"
#include "cache/test_util.h"

namespace quire::registry {
namespace {

using cache::FakeModel;
using cache::Join;
using cache::Must;
using cache::SmallGeometry;
using cache::SomeIdentity;
using cache::SomeTokens;
using ::testing::HasSubstr;

constexpr uint32_t kBlock = 16;
const NumericProfile kF16 = NumericProfile::Uniform(Codec::kF16);

struct World {
  explicit World(uint64_t slots, const Geometry& geometry = SmallGeometry())
      : model(geometry),
        charge_bytes(cache::ChargePerSlot(geometry, kF16)),
        registry(Must(Registry::Create({.geometry = geometry,
                                        .profile = kF16,
                                        .hot_bytes = BytesFor(slots),
                                        .tokens_max = 1 << 14,
                                        .clock = &clock}))) {}

  /// For so many slots, not quite one more, and what owners take besides their slots.
  uint64_t BytesFor(uint64_t slots) const { return slots * charge_bytes + charge_bytes - 1; }
  uint64_t SlotsUsed() const { return registry->bytes_used() / charge_bytes; }

  std::shared_ptr<OwnerCache> Get(const Owner& owner, const OwnerOptions& options = {},
                                  std::span<const TokenId> prompt = {}) {
    OwnerOptions made = options;
    if (made.identity == Identity{}) made.identity = SomeIdentity();
    return Must(registry->GetOrCreate(owner, made, prompt));
  }
  // Appends layer by layer what the owner lacks of `history`, and commits it.
  Result<void> Feed(OwnerCache& owner, std::span<const TokenId> history) {
    const uint64_t begin = owner.length();
    for (uint32_t layer = 0; layer < model.geometry().layer_count(); ++layer) {
      const auto& left_out = owner.options().checkpoint_layers;
      if (std::ranges::find(left_out, layer) != left_out.end()) continue;
      QUIRE_TRY(AppendLayer(owner, layer, history, begin));
    }
    return owner.Commit(history.subspan(begin));
  }
  Result<void> AppendLayer(OwnerCache& owner, uint32_t layer, std::span<const TokenId> history,
                           uint64_t begin) {
    const auto& streams = model.GroupOf(layer).streams;
    const auto key = model.Rows(history, begin, layer, streams[0]);
    const auto value = model.Rows(history, begin, layer, streams[1]);
    return owner.Append(layer, {.key = FakeModel::Packed(key, streams[0]),
                                .value = FakeModel::Packed(value, streams[1]),
                                .tokens = static_cast<uint32_t>(history.size() - begin)});
  }
  // Of every layer that is cached, all values.
  void ExpectHolds(const OwnerCache& owner, std::span<const TokenId> history) {
    ASSERT_EQ(owner.length(), history.size());
    for (uint32_t layer = 0; layer < model.geometry().layer_count(); ++layer) {
      const auto& left_out = owner.options().checkpoint_layers;
      if (std::ranges::find(left_out, layer) != left_out.end()) continue;
      for (const Stream& stream : model.GroupOf(layer).streams) {
        std::vector<float> out(history.size() * stream.heads * stream.dim);
        Must(owner.Gather(layer, stream.role, 0, history.size(), out));
        ASSERT_EQ(out, FakeModel::HeadsFirst(model.Rows(history, 0, layer, stream), stream));
      }
    }
  }

  ManualClock clock{1000};
  FakeModel model;
  uint64_t charge_bytes;
  std::unique_ptr<Registry> registry;
};

TEST(Registry, GetsOrCreatesReleasesAndClears) {
  World world(40);
  const auto first = world.Get(InferenceOwner{7});
  world.clock.Advance(5);
  EXPECT_EQ(world.Get(InferenceOwner{7}), first);
  EXPECT_EQ(world.registry->Find(InferenceOwner{8}), nullptr);
  EXPECT_NE(world.Get(TrainingOwner{"lora", 7}), first);
  EXPECT_EQ(world.registry->owner_count(), 2u);

  const auto history = SomeTokens(3 * kBlock + 2, 1);
  Must(world.Feed(*first, history));
  world.ExpectHolds(*first, history);
  Must(first->Clear());
  EXPECT_EQ(first->length(), 0u);
  Must(world.Feed(*first, history));
  world.ExpectHolds(*first, history);

  EXPECT_TRUE(world.registry->Release(InferenceOwner{7}));
  EXPECT_FALSE(world.registry->Release(InferenceOwner{7}));
  EXPECT_EQ(world.registry->Find(InferenceOwner{7}), nullptr);
  const auto late = first->Commit({});
  EXPECT_EQ(late.error().code, ErrorCode::kNotFound);
  EXPECT_EQ(late.error().message, "inference 7: it was released");
  EXPECT_EQ(first->Clear().error().code, ErrorCode::kNotFound);

  const OwnerOptions other{.identity = SomeIdentity(), .tokens_max = 99};
  const auto differs = world.registry->GetOrCreate(TrainingOwner{"lora", 7}, other);
  EXPECT_EQ(differs.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(differs.error().message, HasSubstr("training lora/7 exists"));
}

TEST(Registry, ItKnowsItsBytesAndWhenItWasUsed) {
  World world(40);
  const auto owner = world.Get(InferenceOwner{1});
  EXPECT_EQ(owner->last_access_us(), 1000u);
  const uint64_t before = owner->bytes();
  world.clock.Advance(50);
  Must(world.Feed(*owner, SomeTokens(2 * kBlock, 1)));
  EXPECT_EQ(owner->last_access_us(), 1050u);
  EXPECT_GT(owner->bytes(), before);
}

TEST(Registry, InferencePublishesAndTrainingNever) {
  World world(60);
  const auto prompt = SomeTokens(4 * kBlock + 1, 1);
  OwnerOptions options{.identity = SomeIdentity()};
  options.identity.adapter = "lora";
  const auto run = world.Get(TrainingOwner{"lora", 1}, options);
  Must(world.Feed(*run, prompt));
  EXPECT_EQ(world.Get(InferenceOwner{1}, options, prompt)->length(), 0u) << "nothing of the run's";
  Must(world.Feed(*world.Get(InferenceOwner{2}, options, prompt), prompt));
  EXPECT_EQ(world.Get(InferenceOwner{3}, options, prompt)->length(), 4u * kBlock);
  EXPECT_EQ(world.Get(TrainingOwner{"lora", 2}, options, prompt)->length(), 0u);
  options.identity.adapter_version = 2;
  EXPECT_EQ(world.Get(InferenceOwner{4}, options, prompt)->length(), 0u);
  world.ExpectHolds(*run, prompt);
}

TEST(Registry, TrainingRunsSurviveAThousandInferenceOwners) {
  World world(120);
  std::vector<std::shared_ptr<OwnerCache>> runs;
  std::vector<std::vector<TokenId>> histories;
  for (uint64_t i = 0; i < 4; ++i) {
    runs.push_back(world.Get(TrainingOwner{"lora", i}));
    histories.push_back(SomeTokens(5 * kBlock + 3, i));
    Must(world.Feed(*runs.back(), histories.back()));
  }
  for (uint64_t id = 0; id < 1000; ++id) {
    world.clock.Advance(1);
    const auto prompt = SomeTokens(3 * kBlock + 5, 100 + id);
    Must(world.Feed(*world.Get(InferenceOwner{id}, {}, prompt), prompt));
    ASSERT_LE(world.registry->bytes_used(), world.registry->budget_bytes());
    if (id % 100 == 99) {
      const EvictReport report = world.registry->EvictToBudget(60 * world.charge_bytes);
      ASSERT_LE(report.bytes_used, 60 * world.charge_bytes);
    }
  }
  const EvictReport all = world.registry->EvictToBudget(0);
  EXPECT_EQ(all.bytes_used / world.charge_bytes, 4u * 6) << "what is left is training's";
  EXPECT_EQ(world.registry->owner_count(), 4u);
  for (uint64_t i = 0; i < 4; ++i) {
    EXPECT_EQ(world.registry->Find(TrainingOwner{"lora", i}), runs[i]);
    world.ExpectHolds(*runs[i], histories[i]);
  }
}

TEST(Registry, TheLeastRecentlyUsedInferenceGoesFirst) {
  World world(40);
  std::vector<std::shared_ptr<OwnerCache>> owners;
  for (uint64_t id = 0; id < 4; ++id) {
    world.clock.Advance(1);
    owners.push_back(world.Get(InferenceOwner{id}));
    Must(world.Feed(*owners.back(), SomeTokens(2 * kBlock, id)));
  }
  world.clock.Advance(1);
  world.registry->Find(InferenceOwner{0});
  const EvictReport report =
      world.registry->EvictToBudget(world.registry->bytes_used() - 3 * world.charge_bytes);
  EXPECT_EQ(report.owners_evicted, 2u);
  EXPECT_EQ(owners[1]->Commit({}).error().message, "inference 1: it was evicted");
  EXPECT_EQ(owners[2]->length(), 0u);
  EXPECT_NE(world.registry->Find(InferenceOwner{0}), nullptr);
  EXPECT_NE(world.registry->Find(InferenceOwner{3}), nullptr);
}

// Owners with equal times need another rule, which always decides the same.
TEST(Registry, OfEqualTimesTheLowerOwnerGoes) {
  World world(40);
  for (const uint64_t id : {5u, 3u, 4u}) {
    Must(world.Feed(*world.Get(InferenceOwner{id}), SomeTokens(2 * kBlock, id)));
  }
  const uint64_t before = world.registry->bytes_used();
  EXPECT_EQ(world.registry->EvictToBudget(before).owners_evicted, 0u) << "it is there already";
  EXPECT_EQ(world.registry->bytes_used(), before);
  EXPECT_EQ(world.registry->EvictToBudget(before - world.charge_bytes).owners_evicted, 1u);
  EXPECT_EQ(world.registry->Find(InferenceOwner{3}), nullptr);
  world.registry->EvictToBudget(before - 3 * world.charge_bytes);
  EXPECT_EQ(world.registry->Find(InferenceOwner{4}), nullptr);
  EXPECT_NE(world.registry->Find(InferenceOwner{5}), nullptr);
}

TEST(Registry, TheBudgetMovesAndTrainingRunsLive) {
  World world(20);
  world.registry = Must(Registry::Create({.geometry = SmallGeometry(),
                                          .profile = kF16,
                                          .hot_bytes = world.BytesFor(20),
                                          .hot_bytes_max = world.BytesFor(40),
                                          .tokens_max = 1 << 14,
                                          .clock = &world.clock}));
  Registry& registry = *world.registry;
  const auto lasting = SomeTokens(4 * kBlock, 1);
  const std::array runs = {world.Get(TrainingOwner{"lora", 1}),
                           world.Get(TrainingOwner{"lora", 2})};
  for (const auto& run : runs) Must(world.Feed(*run, lasting));
  for (uint64_t i = 0; i < 4; ++i) {
    world.clock.Advance(1);
    Must(world.Feed(*world.Get(InferenceOwner{i}), SomeTokens(3 * kBlock, 10 + i)));
  }
  EXPECT_EQ(world.SlotsUsed(), 20u);

  // Below what training holds: refused before anything goes.
  const auto busy = registry.Resize(world.charge_bytes);
  EXPECT_EQ(busy.error().code, ErrorCode::kBusy);
  EXPECT_THAT(busy.error().message, HasSubstr("training runs and requests hold"));
  EXPECT_EQ(registry.owner_count(), 6u);
  EXPECT_EQ(registry.budget_bytes(), world.BytesFor(20));
  EXPECT_EQ(registry.Resize(1).error().code, ErrorCode::kNoSpace);
  EXPECT_EQ(registry.Resize(world.BytesFor(40) + 1).error().code, ErrorCode::kTooLarge);

  Must(registry.Resize(world.BytesFor(11)));
  EXPECT_EQ(registry.budget_bytes(), world.BytesFor(11));
  EXPECT_EQ(world.SlotsUsed(), 11u);
  EXPECT_EQ(registry.owner_count(), 3u) << "the least recent went";
  EXPECT_NE(registry.Find(InferenceOwner{3}), nullptr);
  for (const auto& run : runs) world.ExpectHolds(*run, lasting);
  // The last inference owner is evicted for the next one; then nothing is left to evict.
  const auto longer = Join(lasting, SomeTokens(3 * kBlock, 2));
  Must(world.Feed(*runs[0], longer));
  EXPECT_EQ(registry.Find(InferenceOwner{3}), nullptr);
  const auto full = world.Feed(*runs[1], longer);
  EXPECT_EQ(full.error().code, ErrorCode::kNoSpace);
  EXPECT_LE(registry.bytes_used(), world.BytesFor(11));

  Must(registry.Resize(world.BytesFor(40)));
  for (const auto& run : runs) {
    Must(world.Feed(*run, longer));
    world.ExpectHolds(*run, longer);
  }
  Must(world.Feed(*world.Get(InferenceOwner{9}), SomeTokens(26 * kBlock, 3)));
  EXPECT_EQ(world.SlotsUsed(), 40u);
}

/// Stands still, and runs something at one reading.
class HookedClock final : public Clock {
 public:
  uint64_t NowMicros() const override {
    if (readings++ == hooked_reading) hook();
    return 1000;
  }

  mutable uint64_t readings = 0;
  uint64_t hooked_reading = UINT64_MAX;
  std::function<void()> hook;
};

// The owner cache reads the clock when it is made, without any lock; after that only the use is
// counted, so the reading before the last one is between the two holds of the registry's lock.
TEST(Registry, ASecondCallerGetsTheOwnerThatExists) {
  HookedClock clock;
  const auto registry = Must(Registry::Create({.geometry = SmallGeometry(),
                                               .profile = kF16,
                                               .hot_bytes = 1 << 20,
                                               .tokens_max = 1 << 14,
                                               .clock = &clock}));
  const OwnerOptions options{.identity = SomeIdentity()};
  const uint64_t before = clock.readings;
  Must(registry->GetOrCreate(InferenceOwner{1}, options));
  clock.hooked_reading = clock.readings + (clock.readings - before) - 2;
  std::shared_ptr<OwnerCache> first;
  clock.hook = [&] { first = Must(registry->GetOrCreate(InferenceOwner{2}, options)); };
  const auto second = Must(registry->GetOrCreate(InferenceOwner{2}, options));
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(second, first);
  EXPECT_EQ(registry->Find(InferenceOwner{2}), first);
  EXPECT_EQ(registry->owner_count(), 2u);
}

// Readers count the use, and so read the clock, after they have seen that the owner lives.
TEST(Registry, AReaderHearsThatTheOwnerEndedMeanwhile) {
  World world(40);
  HookedClock clock;
  world.registry = Must(Registry::Create({.geometry = SmallGeometry(),
                                          .profile = kF16,
                                          .hot_bytes = 40 * world.charge_bytes,
                                          .tokens_max = 1 << 14,
                                          .clock = &clock}));
  std::vector<float> out(kBlock * 8);
  const auto owner = world.Get(InferenceOwner{1});
  Must(world.Feed(*owner, SomeTokens(kBlock, 1)));
  Must(owner->Gather(0, StreamRole::kKey, 0, kBlock, out));
  clock.hooked_reading = clock.readings;
  clock.hook = [&] { EXPECT_TRUE(world.registry->Release(InferenceOwner{1})); };
  const auto late = owner->Gather(0, StreamRole::kKey, 0, kBlock, out);
  ASSERT_FALSE(late.has_value());
  EXPECT_EQ(late.error().code, ErrorCode::kNotFound);
  EXPECT_EQ(late.error().message, "inference 1: it was released");
}

// An owner with codecs of its own comes while the caches that were there grow: its cache is made
// for the old budget and has to grow too.
TEST(Registry, ACacheMadeWhileTheBudgetGrowsGrowsToo) {
  World world(20);
  world.registry = Must(Registry::Create({.geometry = SmallGeometry(),
                                          .profile = kF16,
                                          .hot_bytes = 20 * world.charge_bytes,
                                          .hot_bytes_max = 40 * world.charge_bytes,
                                          .tokens_max = 1 << 14,
                                          .clock = &world.clock}));
  OwnerOptions left_out;
  left_out.checkpoint_layers = {1};
  std::shared_ptr<OwnerCache> late;
  const SyncPointHandler handler([&](std::string_view name) {
    if (name != "registry: caches have grown, the budget has not" || late) return;
    late = world.Get(TrainingOwner{"late", 1}, left_out);
  });
  Must(world.registry->Resize(40 * world.charge_bytes));
  ASSERT_NE(late, nullptr);
  EXPECT_EQ(world.registry->budget_bytes(), 40 * world.charge_bytes);
  const auto history = SomeTokens(36 * kBlock, 1);
  Must(world.Feed(*late, history));
  world.ExpectHolds(*late, history);
}

TEST(Registry, ACacheMadeWhileTheBudgetIsSmallGrowsToTheFormerBudget) {
  World world(20);
  Must(world.registry->Resize(world.BytesFor(4)));
  OwnerOptions left_out;
  left_out.checkpoint_layers = {1};
  const auto late = world.Get(TrainingOwner{"late", 1}, left_out);
  Must(world.registry->Resize(world.BytesFor(20)));
  const auto history = SomeTokens(18 * kBlock, 1);
  Must(world.Feed(*late, history));
  world.ExpectHolds(*late, history);
}

TEST(Registry, ABudgetHoldsABlockAtLeast) {
  const World world(4);
  const uint64_t block_bytes = world.registry->requests().block_bytes();
  EXPECT_EQ(world.registry->Resize(block_bytes - 1).error().code, ErrorCode::kNoSpace);
  Must(world.registry->Resize(block_bytes));
}

// Other owners have taken the room that it had before: it must ask again.
TEST(Registry, AClearedOwnerHasNoRoomLeft) {
  World world(12);
  const auto cleared = world.Get(InferenceOwner{1});
  Must(world.Feed(*cleared, SomeTokens(8 * kBlock, 1)));
  Must(cleared->Clear());
  Must(world.Feed(*world.Get(InferenceOwner{2}), SomeTokens(12 * kBlock, 2)));
  const auto history = SomeTokens(8 * kBlock, 3);
  Must(world.Feed(*cleared, history));
  world.ExpectHolds(*cleared, history);
  EXPECT_EQ(world.registry->Find(InferenceOwner{2}), nullptr) << "it made room";
}

TEST(Registry, AnOwnerWithoutRoomIsRefusedByNameWhenOnlyTrainingIsLeft) {
  World world(8);
  const auto run = world.Get(TrainingOwner{"lora", 1});
  const auto history = SomeTokens(7 * kBlock, 1);
  Must(world.Feed(*run, history));
  const auto owner = world.Get(InferenceOwner{1});
  const auto refused = world.Feed(*owner, SomeTokens(2 * kBlock, 2));
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kNoSpace);
  EXPECT_THAT(refused.error().message, HasSubstr("inference 1"));
  // A run may take the room of an inference owner, not of another run.
  Must(world.Feed(*run, Join(history, SomeTokens(kBlock, 3))));
  EXPECT_EQ(world.registry->Find(InferenceOwner{1}), nullptr);
  const auto second = world.registry->GetOrCreate(TrainingOwner{"lora", 2}, {.identity = {}});
  ASSERT_FALSE(second.has_value());
  EXPECT_EQ(second.error().code, ErrorCode::kNoSpace);
}

TEST(Registry, EveryOwnerHasItsOwnCodecLengthAndCheckpointLayers) {
  World world(200, Geometry::Uniform(/*layers=*/6, /*kv_heads=*/2, /*head_dim=*/64));
  const auto history = SomeTokens(3 * kBlock, 1);
  const auto plain = world.Get(TrainingOwner{"plain", 1});
  OwnerOptions wide;
  wide.profile = NumericProfile::Uniform(Codec::kF32);
  const auto f32 = world.Get(TrainingOwner{"wide", 1}, wide);
  OwnerOptions few;
  few.checkpoint_layers = {0, 2, 5};
  few.tokens_max = 4 * kBlock;
  const auto checkpointed = world.Get(TrainingOwner{"few", 1}, few);
  for (const auto& owner : {plain, f32, checkpointed}) {
    Must(world.Feed(*owner, history));
    world.ExpectHolds(*owner, history);
  }
  EXPECT_EQ(f32->bytes(), 2 * plain->bytes());
  EXPECT_EQ(2 * checkpointed->bytes(), plain->bytes()) << "three layers of six";

  const auto no_layer = world.AppendLayer(*checkpointed, 2, history, 0);
  EXPECT_EQ(no_layer.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(no_layer.error().message, HasSubstr("layer 2 is a checkpoint layer"));
  std::vector<float> out(1000);
  EXPECT_EQ(checkpointed->Gather(5, StreamRole::kKey, 0, 1, out).error().code,
            ErrorCode::kInvalidArgument);
  EXPECT_THAT(checkpointed->Gather(6, StreamRole::kKey, 0, 1, out).error().message,
              HasSubstr("layer 6 of a model with 6"));
  const auto too_long = world.Feed(*checkpointed, Join(history, SomeTokens(kBlock + 1, 2)));
  EXPECT_THAT(too_long.error().message, HasSubstr("over its limit of 64"));
  world.ExpectHolds(*checkpointed, history);

  OwnerOptions one;
  one.tokens_max = 1;
  const auto least = world.Get(TrainingOwner{"one", 1}, one);
  Must(world.Feed(*least, std::span(history).first(1)));
  const auto second = world.Feed(*least, std::span(history).first(2));
  ASSERT_FALSE(second.has_value()) << "although its block has room";
  EXPECT_THAT(second.error().message, HasSubstr("2 tokens are over its limit of 1"));

  for (const std::vector<uint32_t>& layers :
       {std::vector<uint32_t>{6}, {2, 2}, {3, 1}, {0, 1, 2, 3, 4, 5}}) {
    OwnerOptions wrong;
    wrong.checkpoint_layers = layers;
    const auto refused = world.registry->GetOrCreate(TrainingOwner{"x", 1}, wrong);
    ASSERT_FALSE(refused.has_value()) << layers.size() << " from " << layers[0] << " on";
    EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
  }
}

// A pipeline: every stage appends its own layers while readers read what is committed.
TEST(Registry, StagesAppendToTheirLayersWhileReadersRead) {
  constexpr uint32_t kStages = 3;
  constexpr uint64_t kSteps = 40;
  World world(100, Geometry::Uniform(/*layers=*/6, 2, 4));
  const auto history = SomeTokens(kSteps * 11, 1);
  const auto owner = world.Get(TrainingOwner{"lora", 1});
  std::atomic<bool> done = false;
  std::atomic<uint64_t> reads = 0;
  std::vector<std::thread> readers;
  for (uint32_t r = 0; r < 2; ++r) {
    readers.emplace_back([&, r] {
      const Stream stream = world.model.GroupOf(r).streams[r];
      std::vector<float> rows;
      while (!done || reads == 0) {
        const uint64_t tokens = owner->length();
        rows.resize(tokens * stream.heads * stream.dim);
        ASSERT_TRUE(owner->Gather(r, stream.role, 0, tokens, rows).has_value());
        const auto expected = FakeModel::HeadsFirst(
            world.model.Rows(std::span(history).first(tokens), 0, r, stream), stream);
        ASSERT_EQ(rows, expected);
        ++reads;
      }
    });
  }
  for (uint64_t step = 0; step < kSteps; ++step) {
    const auto so_far = std::span(history).first((step + 1) * 11);
    std::vector<std::thread> stages;
    for (uint32_t stage = 0; stage < kStages; ++stage) {
      stages.emplace_back([&, stage] {
        for (uint32_t layer = stage; layer < 6; layer += kStages) {
          Must(world.AppendLayer(*owner, layer, so_far, step * 11));
        }
      });
    }
    for (std::thread& stage : stages) stage.join();
    Must(owner->Commit(so_far.subspan(step * 11)));
  }
  done = true;
  for (std::thread& reader : readers) reader.join();
  world.ExpectHolds(*owner, history);
  EXPECT_GT(reads.load(), 0u);
}

}  // namespace
}  // namespace quire::registry
