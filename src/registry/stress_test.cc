// Eight threads on one cache with tenants and one registry with owners: whatever the order, every
// value that is read is the right one and the budget is never exceeded, although it moves. Runs for
// QUIRE_STRESS_SECONDS (1). SPEC M8, O4, O5.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <mutex>
#include <shared_mutex>
#include <thread>

#include "base/prng.h"
#include "cache/core.h"
#include "cache/sequence/view_test_util.h"
#include "cache/test_util.h"
#include "registry/registry.h"

namespace quire::registry {
namespace {

using cache::FakeModel;
using cache::Must;
using cache::SmallGeometry;

constexpr uint64_t kThreads = 8;
constexpr uint64_t kBoard = 24;   // sequences that all threads see
constexpr uint64_t kOwners = 12;  // of them the first four are training runs
constexpr uint64_t kTokensMax = 110;
constexpr uint32_t kBlock = 16;
constexpr uint64_t kSlots = 80;
constexpr uint64_t kSlotsLeast = 30;
constexpr uint64_t kSlotsMost = 160;
constexpr uint64_t kOwnerSlots = 60;
constexpr uint64_t kOwnerSlotsLeast = 32;
constexpr uint64_t kOwnerSlotsMost = 90;

// A trie: scripts share beginnings, so that sequences find each other's blocks.
std::vector<TokenId> Script(uint64_t script, uint64_t tokens) {
  std::vector<TokenId> made(tokens);
  for (uint64_t t = 0; t < tokens; ++t) {
    const uint64_t branch = script >> (t / kBlock < 3 ? 3 - t / kBlock : 0);
    made[t] = static_cast<TokenId>(1000 * (t / kBlock) + 16 * branch + t % kBlock);
  }
  return made;
}

struct Item {
  std::unique_ptr<Sequence> sequence;
  uint64_t script = 0;
  std::mutex writer;
};

struct Place {
  std::mutex mutex;
  std::shared_ptr<Item> item;
};

class Stress {
 public:
  Stress()
      : charge_bytes_(cache::ChargePerSlot(SmallGeometry(), profile_)),
        cache_(Must(Cache::Create({.geometry = SmallGeometry(),
                                   .profile = profile_,
                                   .hot_bytes = kSlots * charge_bytes_,
                                   .hot_bytes_max = kSlotsMost * charge_bytes_}))),
        registry_(Must(Registry::Create({.geometry = SmallGeometry(),
                                         .profile = profile_,
                                         .hot_bytes = kOwnerSlots * charge_bytes_,
                                         .hot_bytes_max = kOwnerSlotsMost * charge_bytes_,
                                         .clock = &clock_}))) {
    Must(cache_->AddTenant({.name = "team", .quota_bytes = 30 * charge_bytes_, .shared = true}));
    tenants_ = {kDefaultTenant,
                Must(cache_->AddTenant({.name = "floor", .floor_bytes = 10 * charge_bytes_})),
                Must(cache_->AddTenant({.name = "quota", .quota_bytes = 20 * charge_bytes_})),
                Must(cache_->AddTenant({.name = "a", .domain = "team"})),
                Must(cache_->AddTenant({.name = "b", .domain = "team"}))};
  }

  void Run(uint64_t seconds) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
    std::vector<std::thread> threads;
    for (uint64_t t = 0; t < kThreads; ++t) {
      threads.emplace_back([this, t, end] {
        Prng prng(t);
        Views views;
        while (std::chrono::steady_clock::now() < end && !::testing::Test::HasFailure()) {
          Step(t, prng, views);
          ++steps_;
          clock_.Advance(1);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

  void ExpectAllGoesBack() {
    CheckBudget();
    for (uint64_t id = 0; id < 4; ++id) ReadOwner(RunOf(id), id);
    for (Place& place : board_) place.item.reset();
    for (const TenantId tenant : tenants_) {
      EXPECT_EQ(Must(cache_->Erase(tenant)).slots_pending, 0u);
    }
    EXPECT_EQ(cache_->stats().hot_bytes_used, 0u);
    Must(cache_->Resize(kSlotsLeast * charge_bytes_));
    Must(cache_->Resize(kSlotsMost * charge_bytes_));
    for (uint64_t id = 0; id < kOwners; ++id) registry_->Release(OwnerOf(id));
    EXPECT_EQ(registry_->EvictToBudget(0).bytes_used, 0u);
    EXPECT_GT(steps_.load(), 0u);
    EXPECT_GT(reads_.load(), 0u);
    std::printf("%lu times larger, %lu smaller, %lu refused; %lu views pinned again, %lu gone\n",
                grown_.load(), shrunk_.load(), busy_.load(), pinned_.load(), gone_.load());
    std::printf("%lu steps, %lu reads, %lu hit tokens, %lu evicted\n", steps_.load(), reads_.load(),
                cache_->stats().hit_tokens, cache_->stats().evicted_total);
  }

 private:
  // Views that outlive the sequence they show; and those that pin nothing, with what they showed.
  struct Loose {
    UnleasedView view;
    std::vector<std::byte> bytes;
  };
  struct Views {
    std::vector<BlockListView> held;
    std::vector<Loose> loose;
  };

  void Step(uint64_t thread, Prng& prng, Views& views) {
    switch (prng.NextBelow(18)) {
      case 0:
      case 1:
      case 2: return Create(prng);
      case 3:
      case 4: return Append(prng);
      case 5:
      case 6: return Read(prng);
      case 7: return Fork(prng);
      case 8: return Hold(prng, views);
      case 9: return Clean(prng);
      case 10:
      case 11: return WriteOwner(thread, prng);
      case 12:
      case 13: {
        const uint64_t id = prng.NextBelow(kOwners);
        return ReadOwner(registry_->Find(OwnerOf(id)), id);
      }
      case 14: return Resize(prng);
      case 15: return PinAgain(views);
      case 16: {
        if (prng.NextChance(4)) {
          registry_->EvictToBudget(prng.NextBelow(kOwnerSlots) * charge_bytes_);
        }
        return MoveBudget(prng);
      }
      default: return CheckBudget();
    }
  }

  Place& Any(Prng& prng) { return board_[prng.NextBelow(kBoard)]; }
  std::shared_ptr<Item> Pick(Prng& prng) {
    Place& place = Any(prng);
    const std::lock_guard lock(place.mutex);
    return place.item;
  }
  // The item that was there ends after the lock is released, if no other thread uses it.
  void Put(Prng& prng, std::shared_ptr<Item> item) {
    Place& place = Any(prng);
    {
      const std::lock_guard lock(place.mutex);
      place.item.swap(item);
    }
  }

  void Create(Prng& prng) {
    const uint64_t script = prng.NextBelow(16);
    const auto prompt = Script(script, 1 + prng.NextBelow(kTokensMax));
    auto plan = cache_->Acquire({.tenant = tenants_[prng.NextBelow(tenants_.size())],
                                 .identity = &identity_,
                                 .tokens = prompt,
                                 .reuse = !prng.NextChance(8)});
    ASSERT_TRUE(plan.has_value());
    const OnFull on_full = static_cast<OnFull>(1 + prng.NextBelow(4));
    auto sequence = cache_->Open(
        *std::move(plan), {.reserve_tokens = prng.NextBelow(kTokensMax), .on_full = on_full});
    if (!sequence) {
      ASSERT_EQ(sequence.error().code, ErrorCode::kNoSpace) << sequence.error().message;
      return;
    }
    auto item = std::make_shared<Item>();
    item->sequence = *std::move(sequence);
    item->script = script;
    const auto fed = model_.Feed(*item->sequence, prompt);
    ASSERT_TRUE(fed.has_value()) << fed.error().message;
    ASSERT_EQ(model_.Differs(*item->sequence, prompt), "");
    Put(prng, std::move(item));
  }

  void Append(Prng& prng) {
    const auto item = Pick(prng);
    if (!item) return;
    const std::unique_lock writer(item->writer, std::try_to_lock);
    if (!writer.owns_lock()) return;
    const uint64_t tokens = item->sequence->length() + 1 + prng.NextBelow(20);
    if (tokens > kTokensMax) return;
    const auto history = Script(item->script, tokens);
    if (const auto fed = model_.Feed(*item->sequence, history); !fed) {
      ASSERT_EQ(fed.error().code, ErrorCode::kNoSpace) << fed.error().message;
      return;
    }
    ASSERT_EQ(model_.Differs(*item->sequence, history), "");
  }

  // Beside its writer.
  void Read(Prng& prng) {
    const auto item = Pick(prng);
    if (!item) return;
    const auto history = Script(item->script, item->sequence->length());
    ASSERT_EQ(model_.RowsDiffer(*item->sequence, history), "");
    ++reads_;
  }

  void Fork(Prng& prng) {
    const auto item = Pick(prng);
    if (!item) return;
    auto fork = std::make_shared<Item>();
    {
      const std::lock_guard writer(item->writer);
      auto made = item->sequence->Fork();
      if (!made) {
        ASSERT_EQ(made.error().code, ErrorCode::kNoSpace);
        return;
      }
      fork->sequence = *std::move(made);
      fork->script = item->script;
    }
    const auto history = Script(fork->script, fork->sequence->length());
    ASSERT_EQ(model_.Differs(*fork->sequence, history), "");
    Put(prng, std::move(fork));
  }

  void Hold(Prng& prng, Views& views) {
    if (views.held.size() > 3) views.held.erase(views.held.begin());
    if (views.loose.size() > 3) views.loose.erase(views.loose.begin());
    const auto item = Pick(prng);
    if (!item) return;
    BlockListView view = Must(item->sequence->View(1, StreamRole::kValue));
    if (prng.NextChance(2)) {
      views.loose.push_back({view.Unleased(), cache::ShownBy(view)});
    } else {
      views.held.push_back(std::move(view));
    }
  }

  // The right bytes or an error, in every order.
  void PinAgain(Views& views) {
    for (size_t i = views.loose.size(); i > 0; --i) {
      const Loose& loose = views.loose[i - 1];
      if (const auto pinned = loose.view.Pin()) {
        ASSERT_EQ(cache::ShownBy(*pinned), loose.bytes);
        ++pinned_;
        continue;
      }
      ++gone_;
      views.loose.erase(views.loose.begin() + static_cast<std::ptrdiff_t>(i - 1));
    }
  }

  // Mostly a little smaller, or much larger; with little held now and then, so that it gets far.
  void Resize(Prng& prng) {
    const uint64_t before = cache_->stats().sealed.slots_max;
    if (prng.NextChance(16)) {
      for (Place& place : board_) {
        std::shared_ptr<Item> ended;
        const std::lock_guard lock(place.mutex);
        place.item.swap(ended);
      }
    }
    const uint64_t slots =
        prng.NextChance(8) ? kSlotsMost - prng.NextBelow(40)
                           : std::max(kSlotsLeast, before - std::min(before, prng.NextBelow(30)));
    const auto resized = cache_->Resize(slots * charge_bytes_);
    if (resized) {
      if (slots > before) ++grown_;
      if (slots < before) ++shrunk_;
      return;
    }
    ASSERT_EQ(resized.error().code, ErrorCode::kBusy) << resized.error().message;
    ++busy_;
  }

  void Clean(Prng& prng) {
    switch (prng.NextBelow(6)) {
      case 0:
      case 1: cache_->Evict(prng.NextBelow(10)); return;
      case 2: Put(prng, nullptr); return;
      case 3: cache_->Trim(); return;
      case 4: ASSERT_EQ(cache_->Verify().damaged, 0u); return;
      default: Must(cache_->Erase(tenants_[prng.NextBelow(tenants_.size())])); return;
    }
  }

  static Owner OwnerOf(uint64_t id) {
    if (id < 4) return TrainingOwner{"lora", id};
    return InferenceOwner{id};
  }
  std::shared_ptr<OwnerCache> RunOf(uint64_t id) {
    return Must(registry_->GetOrCreate(OwnerOf(id), {.identity = identity_}));
  }

  // Each owner has one thread that writes its script.
  void WriteOwner(uint64_t thread, Prng& prng) {
    const uint64_t id = thread + kThreads * prng.NextBelow(2);
    if (id >= kOwners) return;
    auto made = registry_->GetOrCreate(OwnerOf(id), {.identity = identity_});
    if (!made) {
      ASSERT_EQ(made.error().code, ErrorCode::kNoSpace) << made.error().message;
      return;
    }
    OwnerCache& owner = **made;
    const uint64_t begin = owner.length();
    if (id >= 4 && prng.NextChance(20)) {
      registry_->Release(OwnerOf(id));
      return;
    }
    const uint64_t tokens = begin + 1 + prng.NextBelow(20);
    if (tokens > kTokensMax) return (void)owner.Clear();
    const auto history = Script(id, tokens);
    Result<void> done;
    for (uint32_t layer = 0; layer < 2 && done; ++layer) {
      const auto& streams = model_.GroupOf(layer).streams;
      const auto key = model_.Rows(history, begin, layer, streams[0]);
      const auto value = model_.Rows(history, begin, layer, streams[1]);
      done = owner.Append(layer, {.key = FakeModel::Packed(key, streams[0]),
                                  .value = FakeModel::Packed(value, streams[1]),
                                  .tokens = static_cast<uint32_t>(tokens - begin)});
    }
    if (done) done = owner.Commit(std::span(history).subspan(begin));
    if (done) return;
    const ErrorCode code = done.error().code;
    ASSERT_TRUE(code == ErrorCode::kNoSpace || code == ErrorCode::kNotFound)
        << done.error().message;
    ASSERT_TRUE(id >= 4 || code == ErrorCode::kNoSpace) << "a training run ended";
    // Rows of half a step must not stay before the next ones.
    (void)owner.Clear();
  }

  void ReadOwner(const std::shared_ptr<OwnerCache>& owner, uint64_t id) {
    if (!owner) return;
    const uint64_t tokens = owner->length();
    const Stream stream = model_.GroupOf(0).streams[0];
    std::vector<float> out(tokens * stream.heads * stream.dim);
    // It may end, or be cleared, meanwhile.
    if (!owner->Gather(0, stream.role, 0, tokens, out)) return;
    const auto history = Script(id, tokens);
    ASSERT_EQ(out, FakeModel::HeadsFirst(model_.Rows(history, 0, 0, stream), stream));
    ++reads_;
  }

  void MoveBudget(Prng& prng) {
    const uint64_t slots =
        kOwnerSlotsLeast + prng.NextBelow(kOwnerSlotsMost - kOwnerSlotsLeast + 1);
    const std::lock_guard lock(budget_mutex_);
    const auto moved = registry_->Resize(slots * charge_bytes_);
    // Beside the training runs there are owners that other threads are making just now.
    if (moved) return;
    ASSERT_EQ(moved.error().code, ErrorCode::kBusy) << moved.error().message;
  }

  void CheckBudget() {
    const CacheStats stats = cache_->stats();
    ASSERT_LE(stats.hot_bytes_peak, stats.hot_bytes_limit);
    ASSERT_LE(stats.sealed.slots_used * charge_bytes_, stats.hot_bytes_limit);
    ASSERT_EQ(stats.sealed.slots_used * charge_bytes_, cache::SlotCharges(stats));
    {
      const std::shared_lock lock(budget_mutex_);  // or it moves between the two calls
      ASSERT_LE(registry_->bytes_used(), registry_->budget_bytes());
    }
    for (const TenantId tenant : tenants_) {
      const TenantStats one = Must(cache_->tenant_stats(tenant));
      ASSERT_LE(one.bytes_peak, one.quota_bytes == 0 ? UINT64_MAX : one.quota_bytes);
    }
  }

  ManualClock clock_{0};
  const NumericProfile profile_ = NumericProfile::Uniform(Codec::kF16);
  const FakeModel model_{SmallGeometry()};
  const Identity identity_ = cache::SomeIdentity();
  const uint64_t charge_bytes_;
  const std::unique_ptr<Cache> cache_;
  std::shared_mutex budget_mutex_;
  const std::unique_ptr<Registry> registry_;
  std::vector<TenantId> tenants_;
  std::array<Place, kBoard> board_;
  std::atomic<uint64_t> steps_ = 0;
  std::atomic<uint64_t> reads_ = 0;
  std::atomic<uint64_t> grown_ = 0;
  std::atomic<uint64_t> shrunk_ = 0;
  std::atomic<uint64_t> busy_ = 0;
  std::atomic<uint64_t> pinned_ = 0;
  std::atomic<uint64_t> gone_ = 0;
};

TEST(Stress, EightThreadsReadTheRightValuesWithinTheBudget) {
  const char* const asked = std::getenv("QUIRE_STRESS_SECONDS");
  Stress stress;
  stress.Run(asked == nullptr ? 1 : std::strtoull(asked, nullptr, 10));
  if (!HasFailure()) stress.ExpectAllGoesBack();
}

}  // namespace
}  // namespace quire::registry
