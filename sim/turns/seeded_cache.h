// What the simulators of threads share: a cache drawn by a seed, with the tiers below it.
#ifndef QUIRE_SIM_TURNS_SEEDED_CACHE_H_
#define QUIRE_SIM_TURNS_SEEDED_CACHE_H_

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/prng.h"
#include "cache/below/store_state.h"
#include "cache/core.h"
#include "cache/test_util.h"
#include "env/faulty_files.h"
#include "quire/disk_store.h"
#include "sim/turns/stepped_ops.h"
#include "tier/cold.h"
#include "tier/warm.h"

namespace quire::sim {

/// Time passes with each reading.
class BusyClock final : public Clock {
 public:
  uint64_t NowMicros() const override { return now_us_ += 10; }

 private:
  mutable std::atomic<uint64_t> now_us_ = 0;
};

inline constexpr uint32_t kBlock = 16;  // tokens of a block of a SeededCache

/// On the host's memory, or on a device that is late; of f16 or of codes of 8 bits; above a warm
/// tier, a disk, both or nothing, which only its users tick. Two layers with one KV head, the
/// second with a window or not.
struct SeededCache {
  SeededCache(uint64_t seed, Prng& prng, uint64_t slots)
      : geometry(prng.NextChance(3) ? Windowed() : Geometry::Uniform(2, 1, 4)),
        device_ops(memory, seed) {
    on_host = !prng.NextChance(3);
    NumericProfile profile = NumericProfile::Uniform(Codec::kF16);
    const Codec codec = prng.NextChance(3) ? Codec::kInt8 : Codec::kF16;
    for (CodecRule& rule : profile.codecs) rule.codec = codec;
    Below(seed, prng);
    slot_bytes = cache::ChargePerSlot(geometry, profile);
    cache = cache::Must(
        cache::Core::Make({.geometry = geometry,
                           .profile = profile,
                           .hot_bytes = slots * slot_bytes,
                           .hot_bytes_max = 2 * slots * slot_bytes,
                           .memory = on_host ? nullptr : &memory,
                           .ops = on_host ? static_cast<BlockOps*>(&stepped_ops) : &device_ops,
                           .store = store.get()}));
  }

  /// Empty if tokens [begin, end) of a layer's keys, but for those that its
  /// window has passed, are what the model computes; codes of 8 bits are off by
  /// one half of a step. Else, or if they cannot be read, what is wrong.
  std::string Differ(const cache::FakeModel& model, const Sequence& sequence,
                     std::span<const TokenId> tokens, uint64_t begin, uint32_t layer) const {
    const Stream& stream = geometry.groups[0].streams[0];
    if (geometry.groups.size() > 1 && layer == 1 && tokens.size() >= kWindow) {
      begin = std::max(begin,
                       tokens.size() - kWindow + 1);  // what the next query sees
    }
    std::vector<float> out((tokens.size() - begin) * stream.dim);
    const auto read = sequence.Gather(layer, stream.role, begin, tokens.size(), out);
    if (!read) return read.error().message;
    const std::vector<float> rows = model.Rows(tokens, begin, layer, stream);
    for (size_t i = 0; i < rows.size(); ++i) {
      if (std::abs(out[i] - rows[i]) <= 1) continue;
      return fmt::format("layer {}, token {}: {}, not {}", layer, begin + i / stream.dim, out[i],
                         rows[i]);
    }
    return {};
  }

  BlockOps& ops() { return *cache->options().ops; }

  /// When all threads have ended.
  void ExpectNothingLeft() {
    EXPECT_EQ(cache->Verify().damaged, 0u);
    cache->CheckDirectory();
    EXPECT_TRUE(Flush());
    cache->Evict(UINT64_MAX);
    EXPECT_EQ(cache->stats().published_blocks, 0u);
    EXPECT_EQ(cache->stats().sealed.slots_used, 0u);
    EXPECT_EQ(cache->stats().hot_bytes_used, 0u);
  }

  /// False: a small store may have nothing to recycle.
  bool Flush() {
    if (store == nullptr) return true;
    const auto flushed = store->Flush();
    return flushed || flushed.error().code == ErrorCode::kNoSpace;
  }
  void Tick() {
    if (transfers != nullptr) transfers->Tick(0);
  }

  const BusyClock clock;
  ManualClock disk_clock;  // a disk without latency needs no time
  const Geometry geometry;
  const Identity identity = cache::SomeIdentity();
  cache::ProtectedMemory memory;
  cache::DelayedOps device_ops;
  SteppedOps stepped_ops;
  std::unique_ptr<FaultyFiles> files;
  transfer::Transfers* transfers = nullptr;  // of the store
  std::unique_ptr<DiskStore> store;
  uint64_t slot_bytes = 0;  // what one costs
  bool on_host = true;
  std::unique_ptr<cache::Core> cache;

 private:
  static constexpr uint32_t kWindow = 24;

  static Geometry Windowed() {
    Geometry geometry = Geometry::Uniform(1, 1, 4);
    geometry.groups.push_back(geometry.groups[0]);
    geometry.groups[1].layers = {1};
    geometry.groups[1].kind = LayerKind::kWindow;
    geometry.groups[1].window_tokens = kWindow;
    return geometry;
  }
  void Below(uint64_t seed, Prng& prng) {
    std::unique_ptr<tier::Store> below;
    if (prng.NextChance(3)) {
      files = std::make_unique<FaultyFiles>(FaultyFilesOptions{.seed = seed}, disk_clock);
      below = cache::Must(tier::ColdStore::Open({.directory = "store",
                                                 .bytes_cap = 2 << 20,
                                                 .segment_bytes = 64 << 10,
                                                 .staging_bytes = 512 << 10,
                                                 .chunk_bytes = 64 << 10},
                                                *files, clock));
    }
    if (prng.NextChance(2)) {
      const uint64_t bytes_cap = prng.NextChance(2) ? 32 << 10 : 1 << 20;
      below = std::make_unique<tier::WarmStore>(tier::WarmOptions{.bytes_cap = bytes_cap}, clock,
                                                std::move(below));
    }
    if (below == nullptr) return;
    auto made = std::make_unique<transfer::Transfers>(std::move(below), clock);
    transfers = made.get();
    store = cache::StoreState::Wrap(std::move(made));
  }
};

/// Runs seeds until a test fails: QUIRE_TURNS_SEEDS=A..B, or the first `of_ci`. Expects more than
/// `least_each` of what `run` counts, for each seed.
inline void ForSeeds(uint64_t of_ci, double least_each,
                     const std::function<uint64_t(uint64_t seed)>& run) {
  uint64_t first = 1;
  uint64_t last = of_ci;
  if (const char* const wanted = std::getenv("QUIRE_TURNS_SEEDS")) {
    QUIRE_CHECK_MSG(std::sscanf(wanted, "%lu..%lu", &first, &last) == 2, "QUIRE_TURNS_SEEDS=A..B");
  }
  uint64_t counted = 0;
  for (uint64_t seed = first; seed <= last; ++seed) {
    counted += run(seed);
    ASSERT_FALSE(testing::Test::HasFailure()) << "the seed is " << seed;
  }
  EXPECT_GT(static_cast<double>(counted), least_each * static_cast<double>(last - first + 1));
}

}  // namespace quire::sim

#endif  // QUIRE_SIM_TURNS_SEEDED_CACHE_H_
