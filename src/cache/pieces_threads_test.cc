// Verbs on long paths, piece by piece, on many threads at once: in every order nothing is left
// held, pinned or lost. Worth most in the tsan preset.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "cache/core.h"
#include "cache/test_util.h"

namespace quire::cache {
namespace {

constexpr uint64_t kPiecesThreadsBlocks = 160;
constexpr int kRounds = 60;

class PiecesOnThreads : public testing::Test {
 protected:
  void SetUp() override {
    tenants_ = {kDefaultTenant, Must(cache_.cache->AddTenant({.name = "a"}))};
    for (uint64_t seed = 1; seed <= 3; ++seed) {
      paths_.push_back(
          Join(SomeTokens(20 * kBlock, 9), SomeTokens((kPiecesThreadsBlocks - 20) * kBlock, seed)));
    }
  }

  AcquireRequest Request(Prng& prng) const {
    const auto& path = paths_[prng.NextBelow(paths_.size())];
    const uint64_t blocks = 1 + prng.NextBelow(kPiecesThreadsBlocks);
    return {.tenant = tenants_[prng.NextBelow(tenants_.size())],
            .identity = &cache_.identity,
            .tokens = std::span(path).first(blocks * kBlock)};
  }
  // Refusals are fine; every value is right.
  std::unique_ptr<Sequence> Run(Prng& prng) {
    const AcquireRequest request = Request(prng);
    auto sequence = cache_.cache->Open(Must(cache_.cache->Acquire(request)), {});
    if (!sequence) return nullptr;
    Must(cache_.model.Feed(**sequence, request.tokens));
    EXPECT_EQ(cache_.model.Differs(**sequence, request.tokens), "");
    ++ran_;
    return *std::move(sequence);
  }
  void RunAll(uint64_t seed) {
    Prng prng(seed);
    for (int round = 0; round < kRounds; ++round) {
      const auto sequence = Run(prng);
      if (sequence == nullptr) continue;
      const UnleasedView view = Must(sequence->View(0, StreamRole::kKey)).Unleased();
      sequence->Reset();
      if (view.Pin().has_value()) ++viewed_;
    }
  }
  void PinAll() {
    Prng prng(100);
    // Also where this thread runs late: now and then there is a path to pin.
    for (int round = 0; round < 4 * kRounds || (pinned_ == 0 && round < 100 * kRounds); ++round) {
      const AcquireRequest request = Request(prng);
      std::unique_ptr<Sequence> held;
      if (round % 8 == 0) {
        auto opened = cache_.cache->Open(Must(cache_.cache->Acquire(request)), {});
        if (opened && cache_.model.Feed(**opened, request.tokens)) held = *std::move(opened);
      }
      if (!cache_.cache->Pin(request, 0)) continue;
      ++pinned_;
      std::this_thread::yield();
      static_cast<void>(cache_.cache->Unpin(request));  // its tenant may have been erased
    }
  }
  void Disturb() {
    Prng prng(200);
    while (!stop_) {
      switch (prng.NextBelow(5)) {
        case 0: Must(cache_.cache->Erase(tenants_[prng.NextBelow(2)])); break;
        case 1: cache_.cache->Evict(prng.NextBelow(2 * kPiecesThreadsBlocks)); break;
        case 2: EXPECT_EQ(cache_.cache->Verify().damaged, 0u); break;
        default:
          static_cast<void>(cache_.cache->Resize(cache_.BytesFor(
              kPiecesThreadsBlocks + prng.NextBelow(3 * kPiecesThreadsBlocks))));  // or it is busy
      }
      std::this_thread::yield();
    }
  }

  TestCache cache_{4 * kPiecesThreadsBlocks, Geometry::Uniform(1, 1, 4)};
  std::vector<TenantId> tenants_;
  std::vector<std::vector<TokenId>> paths_;
  std::atomic<bool> stop_ = false;
  std::atomic<uint64_t> ran_ = 0;
  std::atomic<uint64_t> viewed_ = 0;
  std::atomic<uint64_t> pinned_ = 0;
};

TEST_F(PiecesOnThreads, NothingIsLeftHeldOrLost) {
  std::thread disturbing([&] { Disturb(); });
  std::vector<std::thread> threads;
  for (uint64_t seed = 1; seed <= 2; ++seed) threads.emplace_back([&, seed] { RunAll(seed); });
  threads.emplace_back([&] { PinAll(); });
  for (std::thread& thread : threads) thread.join();
  stop_ = true;
  disturbing.join();
  EXPECT_GT(ran_, 20u);
  EXPECT_GT(pinned_, 0u);
  const Core& core = static_cast<const Core&>(*cache_.cache);
  core.CheckDirectory();
  EXPECT_LE(core.state().most_touched(), kRecordsPerHold);
  EXPECT_EQ(cache_.cache->stats().pinned_blocks, 0u);
  for (const TenantId tenant : tenants_) {
    EXPECT_EQ(Must(cache_.cache->tenant_stats(tenant)).pinned_bytes, 0u);
    EXPECT_EQ(Must(cache_.cache->tenant_stats(tenant)).erase_pending_slots, 0u);
  }
  cache_.cache->Evict(UINT64_MAX);
  EXPECT_EQ(cache_.cache->stats().published_blocks, 0u);
  EXPECT_EQ(cache_.cache->stats().hot_bytes_used, 0u);
}

}  // namespace
}  // namespace quire::cache
