// Many threads on one cache: writers on common prefixes, readers of their views, and a thread that
// evicts. Worth most in the tsan preset.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <mutex>
#include <thread>

#include "cache/test_util.h"

namespace quire::cache {
namespace {

constexpr uint32_t kWriters = 3;

// All histories are beginnings of one of these: equal up to the middle of the second block.
std::array<std::vector<TokenId>, 2> Scripts() {
  const auto trunk = SomeTokens(kBlock + 7, 1);
  return {Join(trunk, SomeTokens(3 * kBlock, 2)), Join(trunk, SomeTokens(3 * kBlock, 3))};
}

struct Shared {
  Shared() : cache(30, SmallGeometry(), NumericProfile::Uniform(Codec::kF32)), scripts(Scripts()) {
    const Stream stream = cache.model.geometry().groups[0].streams[1];
    for (size_t s = 0; s < scripts.size(); ++s) {
      values[s] = FakeModel::HeadsFirst(cache.model.Rows(scripts[s], 0, 1, stream), stream);
    }
  }

  TestCache cache;
  const std::array<std::vector<TokenId>, 2> scripts;
  std::array<std::vector<float>, 2> values;  // of layer 1's V: [heads, tokens, dim]
  std::mutex mutex;
  std::array<std::shared_ptr<Sequence>, kWriters> sequences;  // under mutex
  std::atomic<bool> stop = false;
  std::atomic<uint64_t> wrong = 0;
  std::atomic<uint64_t> views = 0;
  std::atomic<uint64_t> refused = 0;
};

// True if what a view shows is the beginning of one of the scripts.
bool IsRight(const Shared& shared, const BlockListView& view) {
  const StreamLayout& layout = view.layout();
  const uint64_t tokens = view.tokens();
  std::array<bool, 2> may_be = {true, true};
  for (uint64_t t = 0; t < tokens; ++t) {
    for (uint32_t head = 0; head < layout.heads; ++head) {
      for (uint32_t d = 0; d < layout.dim; ++d) {
        const auto* plane = OnHost(reinterpret_cast<const float*>(
            view.slots()[t / kBlock] + layout.offset_bytes + head * layout.head_stride_bytes));
        const float value = plane[t % kBlock * layout.dim + d];
        for (size_t s = 0; s < may_be.size(); ++s) {
          const uint64_t script_tokens = shared.scripts[s].size();
          may_be[s] &= value == shared.values[s][(head * script_tokens + t) * layout.dim + d];
        }
      }
    }
  }
  return may_be[0] || may_be[1];
}

// Opens, computes in chunks, goes back and takes the other script, forks, resets: all checked.
void Write(Shared& shared, uint32_t writer) {
  Prng prng(writer);
  const FakeModel& model = shared.cache.model;
  for (int round = 0; round < 60; ++round) {
    const auto* script = &shared.scripts[prng.NextBelow(2)];
    const auto prompt = std::span(*script).first(1 + prng.NextBelow(script->size()));
    auto opened = shared.cache.TryOpen(prompt, {.on_full = OnFull::kHalt});
    if (!opened) {
      ++shared.refused;
      continue;
    }
    const std::shared_ptr<Sequence> sequence = *std::move(opened);
    {
      const std::lock_guard lock(shared.mutex);
      shared.sequences[writer] = sequence;
    }
    uint64_t length = sequence->length();
    for (int step = 0; step < 12; ++step) {
      bool fits = true;
      if (prng.NextChance(4) && length > 0) {
        const uint64_t position = prng.NextBelow(length + 1);
        fits = sequence->Rollback(position).has_value();
        if (fits) length = position;
        // Where the scripts are still the same, either may follow.
        if (length <= kBlock + 7) script = &shared.scripts[prng.NextBelow(2)];
      } else if (prng.NextChance(8)) {
        const auto fork = sequence->Fork();
        fits = fork.has_value();
        if (fits && !model.Differs(**fork, std::span(*script).first(length)).empty()) {
          ++shared.wrong;
        }
      } else if (prng.NextChance(16)) {
        sequence->Reset();
        length = 0;
      } else {
        const uint64_t end =
            std::min<uint64_t>(script->size(), length + 1 + prng.NextBelow(kBlock));
        const auto history = std::span(*script).first(end);
        fits = model.Feed(*sequence, history).has_value();
        if (fits) length = end;
      }
      if (!fits) ++shared.refused;
      if (!model.Differs(*sequence, std::span(*script).first(length)).empty()) ++shared.wrong;
    }
  }
}

void Read(Shared& shared, uint32_t reader) {
  Prng prng(100 + reader);
  std::vector<BlockListView> held;
  while (!shared.stop) {
    std::shared_ptr<Sequence> sequence;
    {
      const std::lock_guard lock(shared.mutex);
      sequence = shared.sequences[prng.NextBelow(kWriters)];
    }
    if (sequence == nullptr) continue;
    held.push_back(Must(sequence->View(1, StreamRole::kValue)));
    sequence.reset();
    ++shared.views;
    for (const BlockListView& view : held) {
      if (!IsRight(shared, view)) ++shared.wrong;
    }
    if (held.size() > 2) held.erase(held.begin() + static_cast<int64_t>(prng.NextBelow(3)));
  }
}

void Disturb(Shared& shared) {
  Prng prng(200);
  Cache& cache = *shared.cache.cache;
  while (!shared.stop) {
    cache.Evict(prng.NextBelow(4));
    if (cache.Verify().damaged != 0) ++shared.wrong;
    cache.Trim();
    const CacheStats stats = cache.stats();
    if (stats.hot_bytes_used > stats.hot_bytes_limit) ++shared.wrong;
    if (cache.BlockMap().empty()) ++shared.wrong;
    {
      const std::lock_guard lock(shared.mutex);
      for (const auto& sequence : shared.sequences) {
        if (sequence == nullptr) continue;
        const SequenceStats one = sequence->stats();
        if (one.blocks_own > 30 || one.blocks_shared > 30) ++shared.wrong;
      }
    }
    std::this_thread::yield();
  }
}

TEST(CacheThreads, EveryReadIsRightAndNothingLeaks) {
  Shared shared;
  std::vector<std::thread> others;
  for (uint32_t reader = 0; reader < 2; ++reader) {
    others.emplace_back([&shared, reader] { Read(shared, reader); });
  }
  others.emplace_back([&shared] { Disturb(shared); });
  std::vector<std::thread> writers;
  for (uint32_t writer = 0; writer < kWriters; ++writer) {
    writers.emplace_back([&shared, writer] { Write(shared, writer); });
  }
  for (std::thread& thread : writers) thread.join();
  shared.stop = true;
  for (std::thread& thread : others) thread.join();

  EXPECT_EQ(shared.wrong, 0u);
  EXPECT_GT(shared.views, 0u);
  for (auto& sequence : shared.sequences) sequence.reset();
  const CacheStats stats = shared.cache.cache->stats();
  EXPECT_EQ(stats.sequences, 0u);
  EXPECT_EQ(stats.sealed.slots_used, stats.published_blocks);
  EXPECT_EQ(stats.evictable_blocks, stats.published_blocks);
  shared.cache.cache->Evict(1000);
  EXPECT_EQ(shared.cache.slots_used(), 0u);
  EXPECT_EQ(shared.cache.cache->stats().hot_bytes_used, 0u);
}

// Pipeline stages: each thread appends its own layer of one sequence.
TEST(CacheThreads, LayersAreAppendedSideBySide) {
  TestCache cache(20, Geometry::Uniform(/*layers=*/4, /*kv_heads=*/2, 4));
  const auto tokens = SomeTokens(100, 1);
  const auto sequence = cache.Open(tokens);
  Must(sequence->Reserve(tokens.size()));
  std::vector<std::thread> stages;
  for (uint32_t layer = 0; layer < 4; ++layer) {
    stages.emplace_back([&, layer] {
      for (uint64_t end = 1 + layer; end <= tokens.size(); end = std::min(end + 7, tokens.size())) {
        Must(cache.model.AppendLayer(*sequence, layer, std::span(tokens).first(end)));
        if (end == tokens.size()) break;
      }
    });
  }
  for (std::thread& stage : stages) stage.join();
  Must(sequence->Commit(tokens));
  EXPECT_EQ(cache.model.Differs(*sequence, tokens), "");
}

}  // namespace
}  // namespace quire::cache
