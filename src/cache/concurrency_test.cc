// Each concurrency that sequence.h allows, as it allows it: layers appended by different threads,
// readers of every kind beside the writer. Worth most in the tsan preset.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "cache/test_util.h"

namespace quire::cache {
namespace {

constexpr uint32_t kLayers = 4;

/// Rows in which every value depends on its layer and token.
struct ConcurrencyRows {
  explicit ConcurrencyRows(uint32_t heads, uint32_t dim) : width(heads * dim), head_dim(dim) {}

  LayerRows Of(uint32_t layer, uint64_t begin, uint64_t end) {
    data.clear();
    for (uint64_t t = begin; t < end; ++t) {
      data.insert(data.end(), width, static_cast<float>(layer * 1000 + t % 1000));
    }
    const RowsView view{
        .data = data.data(), .dtype = Codec::kF32, .token_stride = width, .head_stride = head_dim};
    return {.key = view, .value = view, .tokens = static_cast<uint32_t>(end - begin)};
  }

  uint32_t width;
  uint32_t head_dim;
  std::vector<float> data;
};

Geometry WindowGeometry(uint32_t window_tokens) {
  Geometry geometry = Geometry::Uniform(kLayers, 2, 16);
  geometry.groups[0].kind = LayerKind::kWindow;
  geometry.groups[0].window_tokens = window_tokens;
  return geometry;
}

Geometry MixedGeometry() {
  Geometry geometry = Geometry::Uniform(kLayers, 2, 16);
  geometry.groups[0].layers = {0, 1};
  geometry.groups.push_back(geometry.groups[0]);
  geometry.groups[1].layers = {2, 3};
  geometry.groups[1].kind = LayerKind::kWindow;
  geometry.groups[1].window_tokens = 4096;
  return geometry;
}

NumericProfile Encoded() {
  NumericProfile profile = NumericProfile::Uniform(Codec::kInt8);
  profile.open_dtype = Codec::kF32;
  return profile;
}

// Pipeline stages: each thread appends its layer and looks at its blocks, after a commit, so that
// open slots are taken while others write.
void AppendLayersAtOnce(const Geometry& geometry, const NumericProfile& profile) {
  TestCache cache(2000, geometry, profile);
  constexpr uint64_t kTokens = 40 * kBlock;
  const auto tokens = SomeTokens(kTokens, 1);
  for (uint64_t round = 0; round < 8; ++round) {
    auto sequence = cache.Open(std::span(tokens).first(kBlock),
                               {.reserve_tokens = kTokens, .step_tokens = 64, .publish = false});
    ConcurrencyRows first(2, 16);
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      Must(sequence->Append(layer, first.Of(layer, 0, kBlock)));
    }
    Must(sequence->Commit(std::span(tokens).first(kBlock)));
    const auto fork = Must(sequence->Fork());
    Must(sequence->Reserve(kTokens));
    std::vector<std::thread> stages;
    std::atomic<uint64_t> failed = 0;
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      stages.emplace_back([&, layer] {
        ConcurrencyRows rows(2, 16);
        Prng prng(round * kLayers + layer);
        for (uint64_t at = kBlock; at < kTokens;) {
          const uint64_t end = std::min(kTokens, at + 1 + prng.NextBelow(5 * kBlock));
          if (!sequence->Append(layer, rows.Of(layer, at, end))) ++failed;
          const LayerBlocks blocks = sequence->Blocks(layer);
          if (blocks.tokens != end || blocks.open((end - 1) / kBlock) == nullptr) ++failed;
          at = end;
        }
      });
    }
    for (std::thread& stage : stages) stage.join();
    EXPECT_EQ(failed, 0u);
    Must(sequence->Commit(std::span(tokens).subspan(kBlock)));
    std::vector<float> out(kTokens * 2 * 16);
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      const uint64_t begin = kTokens - 4 * kBlock;  // every window still has the tokens from here
                                                    // on
      const std::span<float> last = std::span(out).first((kTokens - begin) * 32);
      Must(sequence->Gather(layer, StreamRole::kKey, begin, kTokens, last));
      for (uint64_t t = begin; t < kTokens; ++t) {
        ASSERT_NEAR(last[(t - begin) * 16], layer * 1000 + t % 1000, 40) << layer << " " << t;
      }
    }
  }
}

TEST(Concurrency, LayersOfAnEncodedCacheAreAppendedAtOnce) {
  AppendLayersAtOnce(Geometry::Uniform(kLayers, 2, 16), Encoded());
}

TEST(Concurrency, LayersOfAWindowAreAppendedAtOnce) {
  AppendLayersAtOnce(WindowGeometry(80), NumericProfile::Uniform(Codec::kF32));
}

TEST(Concurrency, LayersOfAnEncodedWindowAreAppendedAtOnce) {
  AppendLayersAtOnce(WindowGeometry(80), Encoded());
}

// Readers pin the block that is cut now in one class, now in another.
TEST(Concurrency, RollbackBesideReadersOfBothGroups) {
  TestCache cache(64, MixedGeometry(), NumericProfile::Uniform(Codec::kF32));
  const auto tokens = SomeTokens(5 * kBlock + 9, 1);
  const auto sequence = cache.Run(tokens, {.reserve_tokens = 10 * kBlock});
  std::atomic<bool> stop = false;
  std::atomic<uint64_t> wrong = 0;
  std::vector<std::thread> readers;
  for (const uint32_t layer : {0U, 2U, 1U, 3U}) {
    readers.emplace_back([&, layer] {
      std::vector<float> out(size_t{32} * kBlock);
      while (!stop) {
        // The tokens before the cut never change.
        if (!sequence->Gather(layer, StreamRole::kKey, 4 * kBlock, 5 * kBlock, out)) ++wrong;
        const auto view = sequence->View(layer, StreamRole::kValue, {.begin = 5 * kBlock});
        if (!view || view->first_token() != 5 * kBlock) ++wrong;
      }
    });
  }
  for (int i = 0; i < 3000; ++i) {
    Must(sequence->Rollback(5 * kBlock + 3));
    Must(cache.model.Feed(*sequence, tokens));
  }
  stop = true;
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(wrong, 0u);
  EXPECT_EQ(cache.model.Differs(*sequence, tokens), "");
}

TEST(Concurrency, PaddedGatherBesideAWriter) {
  TestCache cache(200);
  constexpr uint64_t kBlocks = 20;
  const auto tokens = SomeTokens(kBlocks * kBlock, 1);
  const auto sequence =
      cache.Open(std::span(tokens).first(kBlock), {.reserve_tokens = tokens.size()});
  std::atomic<bool> stop = false;
  std::atomic<uint64_t> failed = 0;
  std::vector<std::thread> readers;
  for (int i = 0; i < 3; ++i) {
    readers.emplace_back([&] {
      const Stream& stream = cache.model.geometry().groups[0].streams[0];
      std::vector<float> out(tokens.size() * stream.heads * stream.dim);
      const Sequence* const one[] = {sequence.get()};
      while (!stop) {
        if (!GatherPadded(one, 1, StreamRole::kKey, tokens.size(), out)) ++failed;
      }
    });
  }
  for (int round = 0; round < 60; ++round) {
    sequence->Reset();
    for (uint64_t block = 1; block <= kBlocks; ++block) {
      Must(cache.model.Feed(*sequence, std::span(tokens).first(block * kBlock)));
    }
  }
  stop = true;
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(failed, 0u);
}

// Forks share lists with their parents, and all of them go on at once.
TEST(Concurrency, ForksGoOnOnThreadsOfTheirOwn) {
  TestCache cache(400);
  const auto trunk = SomeTokens(70 * kBlock + 5, 1);
  const auto sequence = cache.Run(trunk);
  std::vector<std::unique_ptr<Sequence>> forks;
  for (int i = 0; i < 3; ++i) forks.push_back(Must(sequence->Fork()));
  std::vector<std::thread> threads;
  std::atomic<uint64_t> wrong = 0;
  for (size_t i = 0; i < forks.size(); ++i) {
    threads.emplace_back([&, i] {
      auto mine = std::move(forks[i]);
      for (uint64_t round = 0; round < 20; ++round) {
        const auto history = Join(trunk, SomeTokens(2 * kBlock, 10 + i * 100 + round));
        if (!cache.model.Feed(*mine, history)) ++wrong;
        if (!cache.model.Differs(*mine, history).empty()) ++wrong;
        if (!mine->Rollback(trunk.size())) ++wrong;
        auto child = mine->Fork();
        if (!child) {
          ++wrong;
        } else {
          mine = *std::move(child);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0u);
  EXPECT_EQ(cache.model.Differs(*sequence, trunk), "");
}

}  // namespace
}  // namespace quire::cache
