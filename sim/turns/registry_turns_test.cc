// One registry: owners of inference and training that several threads write, read and end, an
// engine's requests beside them, and a budget that moves. In every order values are right, no
// training run is evicted, and all of them together stay within the budget.
#include "registry/registry.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "cache/test_util.h"
#include "sim/turns/seeded_cache.h"
#include "sim/turns/turns.h"

namespace quire::sim {
namespace {

using cache::Must;
using cache::SomeTokens;

constexpr uint64_t kOwners = 5;  // of them the first is a training run
constexpr uint64_t kTokensMax = 5 * kBlock;

class Owners {
 public:
  explicit Owners(uint64_t seed) : seed_(seed), prng_(seed) {
    const NumericProfile profile = NumericProfile::Uniform(Codec::kF16);
    slot_bytes_ = cache::ChargePerSlot(geometry_, profile);
    registry_ = Must(Registry::Create({.geometry = geometry_,
                                       .profile = profile,
                                       .hot_bytes = 16 * slot_bytes_,
                                       .hot_bytes_max = 24 * slot_bytes_,
                                       .ops = &ops_,
                                       .clock = &clock_}));
  }

  uint64_t Run() {
    Turns turns(seed_);
    const uint64_t threads = 2 + prng_.NextBelow(3);
    for (uint64_t i = 0; i < threads; ++i) {
      turns.Add([this, i, threads, seed = prng_.Next64()] {
        Prng prng(seed);
        for (uint64_t left = 5 + prng.NextBelow(15); left > 0; --left) Act(prng, i, threads);
      });
    }
    turns.Run();
    EXPECT_LE(registry_->bytes_used(), registry_->budget_bytes());
    ReadOwner(0);
    for (uint64_t id = 0; id < kOwners; ++id) registry_->Release(OwnerOf(id));
    EXPECT_EQ(registry_->EvictToBudget(0).bytes_used, 0u);
    return read_;
  }

 private:
  static Owner OwnerOf(uint64_t id) {
    if (id == 0) return TrainingOwner{"lora", id};
    return InferenceOwner{id};
  }
  std::vector<TokenId> Script(uint64_t id) const { return SomeTokens(kTokensMax, id % 3); }

  void Act(Prng& prng, uint64_t thread, uint64_t threads) {
    switch (prng.NextBelow(8)) {
      case 0:
      case 1: return Write(prng, thread + threads * prng.NextBelow(2));
      case 2:
      case 3: return ReadOwner(prng.NextBelow(kOwners));
      case 4: return Request(prng);
      case 5: {
        const uint64_t bytes = (6 + prng.NextBelow(18)) * slot_bytes_;
        static_cast<void>(registry_->Resize(bytes));  // or it is busy
        return;
      }
      case 6: registry_->EvictToBudget(prng.NextBelow(16) * slot_bytes_); return;
      default: EXPECT_LE(registry_->bytes_used(), 24 * slot_bytes_);
    }
  }
  // Each owner has one thread that writes it.
  void Write(Prng& prng, uint64_t id) {
    if (id >= kOwners) return;
    const auto made = registry_->GetOrCreate(OwnerOf(id), {.identity = identity_});
    if (!made) return;
    OwnerCache& owner = **made;
    if (id > 0 && prng.NextChance(6)) {
      registry_->Release(OwnerOf(id));
      return;
    }
    const std::vector<TokenId> script = Script(id);
    const uint64_t begin = owner.length();
    const uint64_t end = begin + 1 + prng.NextBelow(24);
    if (end > kTokensMax) {
      static_cast<void>(owner.Clear());  // or it was evicted
      return;
    }
    const auto history = std::span(script).first(end);
    const Stream& stream = geometry_.groups[0].streams[0];
    for (uint32_t layer = 0; layer < geometry_.layer_count(); ++layer) {
      const auto key = model_.Rows(history, begin, layer, stream);
      const auto value = model_.Rows(history, begin, layer, geometry_.groups[0].streams[1]);
      const auto view = [&](const std::vector<float>& rows) {
        return RowsView{.data = rows.data(),
                        .dtype = Codec::kF32,
                        .token_stride = stream.dim,
                        .head_stride = stream.dim};
      };
      const auto appended = owner.Append(
          layer,
          {.key = view(key), .value = view(value), .tokens = static_cast<uint32_t>(end - begin)});
      if (!appended) return static_cast<void>(owner.Clear());
    }
    static_cast<void>(owner.Commit(history.subspan(begin)));
  }
  void ReadOwner(uint64_t id) {
    const auto owner = registry_->Find(OwnerOf(id));
    if (owner == nullptr) return;
    const uint64_t length = owner->length();
    if (length == 0) return;
    const std::vector<TokenId> script = Script(id);
    const Stream& stream = geometry_.groups[0].streams[0];
    std::vector<float> out(length * stream.dim);
    if (!owner->Gather(1, stream.role, 0, length, out))
      return;  // its writer cleared it, or it was evicted
    EXPECT_EQ(out, model_.Rows(std::span(script).first(length), 0, 1, stream)) << "owner " << id;
    ++read_;
  }
  void Request(Prng& prng) {
    const std::vector<TokenId> script = Script(prng.NextBelow(3));
    const auto prompt = std::span(script).first(1 + prng.NextBelow(kTokensMax));
    Cache& cache = registry_->requests();
    auto plan = cache.Acquire({.identity = &identity_, .tokens = prompt});
    if (!plan) return;
    const auto sequence = cache.Open(*std::move(plan), {});
    if (!sequence || !model_.Feed(**sequence, prompt)) return;
    EXPECT_EQ(model_.Differs(**sequence, prompt), "");
    ++read_;
  }

  const uint64_t seed_;
  Prng prng_;
  const BusyClock clock_;
  const Geometry geometry_ = Geometry::Uniform(/*layers=*/2, /*kv_heads=*/1, 4);
  const cache::FakeModel model_{geometry_};
  const Identity identity_ = cache::SomeIdentity();
  SteppedOps ops_;
  uint64_t slot_bytes_ = 0;
  std::unique_ptr<Registry> registry_;
  uint64_t read_ = 0;
};

TEST(RegistryTurns, InEveryOrderOwnersHaveTheirValuesAndTheBudgetHolds) {
  ForSeeds(500, 1, [](uint64_t seed) { return Owners(seed).Run(); });
}

}  // namespace
}  // namespace quire::sim
