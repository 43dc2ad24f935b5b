// One sequence as its header lets threads use it: layers are appended by a thread each, one of them
// the writer, and any thread reads what is committed, while others evict, resize and verify.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "cache/test_util.h"
#include "sim/turns/seeded_cache.h"
#include "sim/turns/turns.h"

namespace quire::sim {
namespace {

using cache::Must;
using cache::SomeTokens;

class Layers {
 public:
  explicit Layers(uint64_t seed)
      : seed_(seed), prng_(seed), slots_(12 + prng_.NextBelow(20)), on_(seed, prng_, slots_) {
    auto plan = Must(on_.cache->Acquire({.identity = &on_.identity, .tokens = tokens_}));
    sequence_ = Must(on_.cache->Open(std::move(plan), {}));
  }

  uint64_t Run() {
    Turns turns(seed_);
    turns.Add([this, seed = prng_.Next64()] { Write(seed); });
    turns.Add([this] { AppendSecond(); });
    for (uint64_t i = 1 + prng_.NextBelow(2); i > 0; --i) {
      turns.Add([this, seed = prng_.Next64()] { Read(seed); });
    }
    turns.Add([this, seed = prng_.Next64()] { Disturb(seed); });
    turns.Run();
    const auto history = std::span(tokens_).first(sequence_->length());
    for (const uint32_t layer : {0u, 1u}) {
      EXPECT_EQ(on_.Differ(model_, *sequence_, history, 0, layer), "");
    }
    sequence_.reset();
    on_.ExpectNothingLeft();
    return read_;
  }

 private:
  void Write(uint64_t seed) {
    Prng prng(seed);
    for (uint64_t step = 4 + prng.NextBelow(12); step > 0; --step) {
      const uint64_t length = sequence_->length();
      if (length > 0 && prng.NextChance(4)) {
        ++rollbacks_;
        static_cast<void>(sequence_->Rollback(prng.NextBelow(length / kBlock + 1) * kBlock));
        ++rollbacks_;
        continue;
      }
      const uint64_t end = std::min<uint64_t>(length + 1 + prng.NextBelow(40), tokens_.size());
      if (!sequence_->Reserve(end)) continue;
      wanted_ = end;
      Must(model_.AppendLayer(*sequence_, 0, std::span(tokens_).first(end)));
      while (wanted_ > 0) Turns::Yield();
      Must(sequence_->Commit(std::span(tokens_).subspan(length, end - length)));
      if (prng.NextChance(6)) {
        const auto fork = sequence_->Fork();
        EXPECT_TRUE(!fork || (*fork)->length() == end);
      }
    }
    ended_ = true;
  }
  void AppendSecond() {
    while (!ended_) {
      if (const uint64_t end = wanted_; end > 0) {
        Must(model_.AppendLayer(*sequence_, 1, std::span(tokens_).first(end)));
        wanted_ = 0;
      }
      Turns::Yield();
    }
  }
  // Where a rollback came in between there may be fewer tokens.
  void Read(uint64_t seed) {
    Prng prng(seed);
    while (!ended_) {
      Turns::Yield();
      const uint64_t rollbacks = rollbacks_;
      const uint64_t end = sequence_->length();
      if (end == 0) continue;
      const uint64_t begin = prng.NextBelow(end);
      const auto layer = static_cast<uint32_t>(prng.NextBelow(2));
      const auto differs =
          on_.Differ(model_, *sequence_, std::span(tokens_).first(end), begin, layer);
      if (rollbacks_ != rollbacks || rollbacks % 2 == 1) continue;
      // A commit may have moved the window.
      if (on_.geometry.groups.size() > 1 && sequence_->length() != end) continue;
      EXPECT_EQ(differs, "");
      ++read_;
      if (auto view = sequence_->View(layer, StreamRole::kKey); view && prng.NextChance(2)) {
        static_cast<void>(view->Unleased().Pin());
      }
    }
  }
  void Disturb(uint64_t seed) {
    Prng prng(seed);
    while (!ended_) {
      switch (prng.NextBelow(5)) {
        case 0: on_.cache->Evict(1 + prng.NextBelow(4)); break;
        case 1: EXPECT_EQ(on_.cache->Verify().damaged, 0u); break;
        case 2: {
          const uint64_t slots = 4 + prng.NextBelow(2 * slots_ - 4);
          static_cast<void>(on_.cache->Resize(slots * on_.slot_bytes));  // or it is busy
          break;
        }
        case 3: on_.Tick(); break;
        default: static_cast<void>(on_.cache->Trim());
      }
      Turns::Yield();
    }
  }

  const uint64_t seed_;
  Prng prng_;
  const uint64_t slots_;
  SeededCache on_;
  const cache::FakeModel model_{on_.geometry};
  const std::vector<TokenId> tokens_ = SomeTokens(10 * kBlock, 1);
  std::unique_ptr<Sequence> sequence_;
  uint64_t wanted_ = 0;     // tokens in the second layer, too
  uint64_t rollbacks_ = 0;  // begun and ended
  bool ended_ = false;
  uint64_t read_ = 0;
};

TEST(LayersTurns, ReadersSeeCommittedTokensInEveryOrder) {
  ForSeeds(300, 1, [](uint64_t seed) { return Layers(seed).Run(); });
}

}  // namespace
}  // namespace quire::sim
