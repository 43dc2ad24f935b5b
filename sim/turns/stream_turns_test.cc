// Contexts larger than memory, of several threads on one cache: each writes its own to the store
// and reads it back, while others evict, verify, trim and tick the transfers.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cache/test_util.h"
#include "quire/attention.h"
#include "sim/turns/seeded_cache.h"
#include "sim/turns/turns.h"

namespace quire::sim {
namespace {

using cache::Join;
using cache::Must;
using cache::SomeTokens;

class Streams {
 public:
  explicit Streams(uint64_t seed)
      : seed_(seed), prng_(seed), on_(seed, prng_, 150 + prng_.NextBelow(100)) {
    const auto trunk = SomeTokens(30 * kBlock, 100);
    for (uint64_t i = 0; i < 3; ++i) {
      paths_.push_back(Join(std::span(trunk).first(15 * i * kBlock), SomeTokens(35 * kBlock, i)));
    }
  }

  /// How many contexts were read.
  uint64_t Run() {
    if (on_.files == nullptr) return 0;  // the disk has space for all of them
    Turns turns(seed_);
    for (uint64_t i = 2 + prng_.NextBelow(2); i > 0; --i) {
      turns.Add([this, seed = prng_.Next64()] { Stream(seed); });
    }
    turns.Add([this, seed = prng_.Next64()] { Disturb(seed); });
    turns.Run();
    on_.ExpectNothingLeft();
    return read_;
  }

 private:
  void Stream(uint64_t seed) {
    Prng prng(seed);
    for (uint64_t left = 1 + prng.NextBelow(2); left > 0; --left) {
      const auto& path = paths_[prng.NextBelow(paths_.size())];
      const auto prompt = std::span(path).first(path.size() - prng.NextBelow(3 * kBlock));
      auto plan = on_.cache->Acquire({.identity = &on_.identity, .tokens = prompt});
      if (!plan) continue;
      auto opened = on_.cache->Open(
          *std::move(plan), {.step_tokens = 8, .resident_tokens = 6 * kBlock, .query_heads = 1});
      if (!opened) continue;
      Sequence& sequence = **opened;
      bool fed = true;
      while (fed && sequence.length() < prompt.size()) {
        const uint64_t end =
            std::min<uint64_t>(prompt.size(), sequence.length() + 1 + prng.NextBelow(8));
        fed = model_.Feed(sequence, prompt.first(end)).has_value();
      }
      if (!fed) continue;  // no room
      uint64_t compared = 0;
      for (const uint32_t layer : {0u, 1u}) {
        EXPECT_EQ(Differ(sequence, prompt, layer, compared), "");
      }
      if (sequence.streamed() == nullptr) continue;
      EXPECT_GT(compared, 0u);
      ++read_;
    }
  }
  /// Empty if the pieces of a layer's keys are what the model computes; `compared` are so many
  /// tokens more.
  std::string Differ(Sequence& sequence, std::span<const TokenId> tokens, uint32_t layer,
                     uint64_t& compared) {
    StreamedContext* const streamed = sequence.streamed();
    if (streamed == nullptr) return on_.Differ(model_, sequence, tokens, 0, layer);
    for (uint64_t i = 0; i < streamed->PieceCount(layer); ++i) {
      const auto piece = streamed->Read(layer, i, nullptr);
      if (!piece) return piece.error().message;
      const StreamLayout& layout = piece->key;
      const uint64_t begin = piece->splits.begin * kSplitTokens;
      const uint64_t end = piece->splits.end * kSplitTokens;
      std::vector<float> have((end - begin) * layout.dim);
      for (uint64_t token = begin; token < end; token += kBlock) {
        on_.ops().ReadRows(layout, piece->tables.sealed.BlockAt(0, token / kBlock),
                           {.count = kBlock}, have.data() + (token - begin) * layout.dim,
                           static_cast<int64_t>((end - begin) * layout.dim));
      }
      Must(on_.ops().Synchronize());
      const auto rows =
          model_.Rows(tokens.first(end), begin, layer, on_.geometry.groups[0].streams[0]);
      compared += end - begin;
      for (size_t at = 0; at < rows.size(); ++at) {
        if (std::abs(have[at] - rows[at]) <= 1) continue;
        return fmt::format("layer {}, token {}", layer, begin + at / layout.dim);
      }
    }
    return {};
  }
  void Disturb(uint64_t seed) {
    Prng prng(seed);
    for (uint64_t left = 40; left > 0; --left) {
      switch (prng.NextBelow(8)) {
        case 0: on_.cache->Evict(1 + prng.NextBelow(4)); break;
        case 1: EXPECT_EQ(on_.cache->Verify().damaged, 0u); break;
        case 2: EXPECT_TRUE(on_.Flush()); break;
        case 3: static_cast<void>(on_.cache->Trim()); break;
        default: on_.Tick();
      }
      Turns::Yield();
    }
  }

  const uint64_t seed_;
  Prng prng_;
  SeededCache on_;
  const cache::FakeModel model_{on_.geometry};
  std::vector<std::vector<TokenId>> paths_;
  uint64_t read_ = 0;
};

TEST(StreamTurns, WhatIsReadBackIsRightWhateverTheOrder) {
  ForSeeds(60, 0.25, [](uint64_t seed) { return Streams(seed).Run(); });
}

}  // namespace
}  // namespace quire::sim
