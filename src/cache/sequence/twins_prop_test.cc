// Twins in lock step with a naive model, under random calls: how much of a prompt is found, why the
// rest is not, and that every reader of a block reads the bytes of its first writer.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "cache/sequence/twins_test_util.h"

namespace quire::cache {
namespace {

constexpr uint64_t kTwinsTokensMax = 9 * kBlock;

using TwinsPath = std::vector<TokenId>;

// The naive model of kept twins: sets of whole prefixes.
class NaiveTwins {
 public:
  explicit NaiveTwins(uint64_t residual_blocks) : residual_blocks_(residual_blocks) {}

  void Publish(const TwinsPath& path, uint64_t length) {
    for (uint64_t end = kBlock; end <= length; end += kBlock) blocks_.insert(Prefix(path, end));
  }
  // Prompts may continue after `blocks` blocks.
  void Keep(const TwinsPath& path, uint64_t blocks) {
    for (uint64_t i = blocks - std::min(blocks, residual_blocks_); i < blocks; ++i) {
      twins_.insert(Prefix(path, (i + 1) * kBlock));
    }
  }
  uint64_t Known(const TwinsPath& prompt) const {
    uint64_t blocks = 0;
    while ((blocks + 1) * kBlock < prompt.size() &&
           blocks_.contains(Prefix(prompt, (blocks + 1) * kBlock))) {
      ++blocks;
    }
    return blocks;
  }
  uint64_t Found(const TwinsPath& prompt) const {
    for (uint64_t blocks = Known(prompt); blocks > 0; --blocks) {
      bool whole = true;
      for (uint64_t i = blocks - std::min(blocks, residual_blocks_); i < blocks; ++i) {
        whole = whole && twins_.contains(Prefix(prompt, (i + 1) * kBlock));
      }
      if (whole) return blocks;
    }
    return 0;
  }
  uint64_t twins() const { return twins_.size(); }
  uint64_t published() const { return blocks_.size(); }

 private:
  static TwinsPath Prefix(const TwinsPath& path, uint64_t tokens) {
    return {path.begin(), path.begin() + static_cast<int64_t>(tokens)};
  }

  const uint64_t residual_blocks_;
  std::set<TwinsPath> blocks_;
  std::set<TwinsPath> twins_;
};

class TwinsLockStep {
 public:
  explicit TwinsLockStep(uint64_t seed)
      : prng_(seed),
        residual_blocks_(1 + seed % 4),
        real_(400, Geometry::Uniform(2, 1, 16),
              ResidualProfile(static_cast<uint32_t>(residual_blocks_ * kBlock - seed % kBlock))),
        naive_(residual_blocks_) {}

  void Step() {
    switch (prng_.NextBelow(8)) {
      case 0:
      case 1: OpenOne(); break;
      case 2:
      case 3: Append(); break;
      case 4: Rollback(); break;
      case 5: Fork(); break;
      case 6: Reset(); break;
      default: Close();
    }
    Check();
  }

  void Finish() {
    while (!open_.empty()) Close();
    Check();
    EXPECT_EQ(real_.cache->stats().open.slots_used, naive_.twins()) << "only twins are left";
    EXPECT_EQ(real_.cache->Verify().damaged, 0u);
    real_.cache->Evict(10'000);
    EXPECT_EQ(real_.cache->stats().hot_bytes_used, 0u);
  }

  std::map<std::string, uint64_t> counts;

 private:
  struct Open {
    std::unique_ptr<Sequence> real;
    TwinsPath written{};      // committed, then not yet
    uint64_t length = 0;      // committed
    uint64_t prompt = 0;      // tokens
    uint64_t first_open = 0;  // first block whose open form it still has
    bool publish = true;
  };

  // A small trie of scripts.
  static TokenId ScriptToken(uint64_t script, uint64_t position) {
    const uint64_t block = position / kBlock;
    const uint64_t branch = script >> (block < 3 ? 3 - block : 0);
    return static_cast<TokenId>(1000 * block + 20 * branch + position % kBlock);
  }

  Open* Any() { return open_.empty() ? nullptr : &open_[prng_.NextBelow(open_.size())]; }

  uint64_t FirstOpen(uint64_t position) const {
    const uint64_t own = position / kBlock;
    return own - std::min(own, residual_blocks_);
  }

  void OpenOne() {
    if (open_.size() >= 5) return;
    const uint64_t script = prng_.NextBelow(16);
    TwinsPath prompt(1 + prng_.NextBelow(kTwinsTokensMax));
    for (uint64_t t = 0; t < prompt.size(); ++t) prompt[t] = ScriptToken(script, t);
    const uint64_t known = naive_.Known(prompt);
    const uint64_t found = naive_.Found(prompt);
    Plan plan = real_.Acquire(prompt);
    EXPECT_EQ(plan.resident_tokens(), found * kBlock);
    uint64_t without_twin = 0;
    for (const MissRun& run : plan.missing()) {
      if (run.reason == MissReason::kNoTwin) without_twin += run.tokens;
    }
    EXPECT_EQ(without_twin, (known - found) * kBlock);
    if (known > found) {
      EXPECT_EQ(plan.reason(), MissReason::kNoTwin);
    }
    ++counts[found == 0 ? "not found" : known > found ? "found in part" : "found"];
    const bool publish = !prng_.NextChance(5);
    Open one{
        .real = Must(real_.cache->Open(
            std::move(plan), {.step_tokens = 1 + prng_.NextBelow(3 * kBlock), .publish = publish})),
        .prompt = prompt.size(),
        .publish = publish};
    one.length = found * kBlock;
    one.written.assign(prompt.begin(), prompt.begin() + static_cast<int64_t>(one.length));
    one.first_open = FirstOpen(one.length);
    while (one.written.size() < prompt.size()) {
      const uint64_t count =
          1 + prng_.NextBelow(std::min<uint64_t>(3 * kBlock, prompt.size() - one.written.size()));
      const auto begin = prompt.begin() + static_cast<int64_t>(one.written.size());
      one.written.insert(one.written.end(), begin, begin + static_cast<int64_t>(count));
      Write(one);
      Commit(one, one.written.size());
    }
    open_.push_back(std::move(one));
  }

  void Write(Open& one) {
    for (uint32_t layer = 0; layer < 2; ++layer) {
      Must(real_.model.AppendLayer(*one.real, layer, one.written));
    }
  }

  void Commit(Open& one, uint64_t length) {
    Must(one.real->Commit(std::span(one.written).subspan(one.length, length - one.length)));
    if (one.publish) {
      naive_.Publish(one.written, length);
      if (one.length < one.prompt && length >= one.prompt) {
        naive_.Keep(one.written, (one.prompt - 1) / kBlock);
        naive_.Keep(one.written, one.prompt / kBlock);
      }
    }
    one.length = length;
    one.first_open = std::max(one.first_open, FirstOpen(length));
  }

  void Append() {
    Open* const one = Any();
    if (one == nullptr || one->written.size() > kTwinsTokensMax) return;
    const uint64_t script = prng_.NextBelow(16);
    for (uint64_t n = 1 + prng_.NextBelow(2 * kBlock); n > 0; --n) {
      one->written.push_back(ScriptToken(script, one->written.size()));
    }
    Write(*one);
    Commit(*one, one->length + prng_.NextBelow(one->written.size() - one->length + 1));
  }

  void Rollback() {
    Open* const one = Any();
    if (one == nullptr) return;
    const uint64_t position = prng_.NextBelow(one->written.size() + 1);
    const bool can =
        position == one->written.size() || position == 0 || one->first_open <= FirstOpen(position);
    const auto rolled = one->real->Rollback(position);
    ASSERT_EQ(rolled.has_value(), can) << position << " of " << one->length;
    ++counts[can ? "rolled back" : "not rolled back"];
    if (!can) return;
    one->written.resize(position);
    one->length = std::min(one->length, position);
    one->first_open = std::min(one->first_open, FirstOpen(position));
  }

  void Fork() {
    Open* const one = Any();
    if (one == nullptr || open_.size() >= 5) return;
    Open fork{.real = Must(one->real->Fork()),
              .written = one->written,
              .length = one->length,
              .prompt = one->length,
              .publish = one->publish};
    fork.written.resize(one->length);
    fork.first_open = FirstOpen(one->length);
    open_.push_back(std::move(fork));
  }

  void End(const Open& one) {
    if (one.publish) naive_.Keep(one.written, one.length / kBlock);
  }

  void Reset() {
    Open* const one = Any();
    if (one == nullptr) return;
    End(*one);
    one->real->Reset();
    one->written.clear();
    one->length = one->first_open = 0;
  }

  void Close() {
    if (open_.empty()) return;
    std::swap(open_[prng_.NextBelow(open_.size())], open_.back());
    End(open_.back());
    open_.pop_back();
  }

  void Check() {
    const CacheStats stats = real_.cache->stats();
    EXPECT_EQ(stats.published_blocks, naive_.published());
    EXPECT_EQ(stats.twin_slots, naive_.twins());
    EXPECT_EQ(stats.evicted_total + stats.evicted_passed_total, 0u);
    for (const Open& one : open_) CheckBytes(one);
  }

  // Equal tokens, equal bytes: of every block as its next row would read it.
  void CheckBytes(const Open& one) {
    ASSERT_EQ(one.real->length(), one.length);
    for (uint32_t layer = 0; layer < 2; ++layer) {
      const auto read = ReadAtEnd(*one.real, layer, kBlock);
      for (uint64_t block = 0; block < read.size(); ++block) {
        ASSERT_FALSE(read[block].empty()) << "block " << block << " is not there";
        const auto end = one.written.begin() + static_cast<int64_t>((block + 1) * kBlock);
        const bool open = block + residual_blocks_ >= read.size();
        const auto [first, added] =
            bytes_.try_emplace({open, layer, TwinsPath(one.written.begin(), end)}, read[block]);
        ASSERT_EQ(first->second, read[block]) << "block " << block << " open " << open;
        counts["compared"] += added ? 0 : 1;
      }
    }
  }

  struct Form {
    bool open;
    uint32_t layer;
    TwinsPath path;
    auto operator<=>(const Form&) const = default;
  };

  Prng prng_;
  const uint64_t residual_blocks_;
  TestCache real_;
  NaiveTwins naive_;
  std::vector<Open> open_;
  std::map<Form, std::vector<std::byte>> bytes_;
};

TEST(TwinsProperty, InLockStepWithANaiveModel) {
  std::map<std::string, uint64_t> counts;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    TwinsLockStep run(seed);
    for (int step = 0; step < 100 && !::testing::Test::HasFailure(); ++step) {
      SCOPED_TRACE("step " + std::to_string(step));
      run.Step();
    }
    if (::testing::Test::HasFailure()) return;
    run.Finish();
    for (const auto& [what, count] : run.counts) counts[what] += count;
  }
  // A run in which nothing happens would show nothing.
  for (const char* what :
       {"not found", "found in part", "found", "rolled back", "not rolled back"}) {
    EXPECT_GT(counts[what], 20u) << what;
  }
  EXPECT_GT(counts["compared"], 10'000u);
}

}  // namespace
}  // namespace quire::cache
