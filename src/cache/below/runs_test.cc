// Runs: what streams is written as whole splits, and others find it there, whole or in part.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "cache/below/test_store.h"
#include "cache/test_util.h"

namespace quire::cache {
namespace {

constexpr uint64_t kWhole = 5 * kSplitTokens;  // tokens of the prompt in whole splits
constexpr uint32_t kWindow = 2 * kBlock + 3;

struct RunKind {
  std::string name;
  NumericProfile profile;
  bool window = false;  // of layers 2 and 3 besides
  uint32_t sinks = 0;   // tokens of theirs
};

void PrintTo(const RunKind& kind, std::ostream* out) { *out << kind.name; }

class RunsTest : public testing::TestWithParam<RunKind> {
 protected:
  RunsTest() { Make(); }

  void Make() {
    CacheOptions more;
    more.store = store_.store.get();
    more.clock = &store_.clock;
    test_ = std::make_unique<TestCache>(320, Shape(), GetParam().profile, 0, more);
  }
  static Geometry Shape() {
    Geometry geometry = SmallGeometry();
    if (!GetParam().window) return geometry;
    LayerGroup window = geometry.groups[0];
    window.kind = LayerKind::kWindow;
    window.window_tokens = kWindow;
    window.sink_tokens = GetParam().sinks;
    window.layers = {2, 3};
    geometry.groups.push_back(window);
    return geometry;
  }
  /// Empty if a sequence has of a prompt what a cache without a store computes.
  static std::string Differs(const Sequence& sequence, std::span<const TokenId> prompt) {
    TestCache other(320, Shape(), GetParam().profile);
    const auto computed = other.Run(prompt);
    if (sequence.length() != prompt.size()) return "not all tokens";
    for (uint32_t layer = 0; layer < Shape().layer_count(); ++layer) {
      const bool is_windowed = other.model.GroupOf(layer).kind == LayerKind::kWindow;
      const uint64_t begin = is_windowed ? prompt.size() - kWindow + 1 : 0;
      for (const Stream& stream : other.model.GroupOf(layer).streams) {
        std::vector<float> want((prompt.size() - begin) * stream.heads * stream.dim);
        std::vector<float> have = want;
        Must(computed->Gather(layer, stream.role, begin, prompt.size(), want));
        Must(sequence.Gather(layer, stream.role, begin, prompt.size(), have));
        if (have != want) return "layer " + std::to_string(layer);
      }
    }
    return "";
  }
  void Restart() {
    test_ = nullptr;
    store_.Restart();
    Make();
  }
  static SequenceOptions Streams() {
    return {.reserve_tokens = 1400, .step_tokens = 8, .resident_tokens = 200, .query_heads = 1};
  }
  void Feed(Sequence& sequence, std::span<const TokenId> history) {
    while (sequence.length() < history.size()) {
      const uint64_t end = std::min<uint64_t>(history.size(), sequence.length() + 8);
      Must(test_->model.Feed(sequence, history.first(end)));
    }
  }
  /// The store has the prompt as a sequence writes it that streams.
  void WriteStreamed() {
    const auto sequence = test_->Open(prompt_, Streams());
    Feed(*sequence, prompt_);
  }
  uint64_t records() const { return store_.store->stats().records; }
  /// Reads every piece of every layer.
  static Result<void> ReadAll(Sequence& sequence) {
    StreamedContext& streamed = *sequence.streamed();
    for (uint32_t layer = 0; layer < Shape().layer_count(); ++layer) {
      for (uint64_t i = 0; i < streamed.PieceCount(layer); ++i) {
        QUIRE_TRY(streamed.Read(layer, i, nullptr));
      }
    }
    return {};
  }

  TestStore store_;
  std::unique_ptr<TestCache> test_;
  const std::vector<TokenId> prompt_ = SomeTokens(1400, 1);
};

INSTANTIATE_TEST_SUITE_P(Kinds, RunsTest,
                         testing::Values(RunKind{"f16", NumericProfile::Uniform(Codec::kF16)},
                                         RunKind{"int8", EncodedInt8()},
                                         RunKind{"int8_and_window", EncodedInt8(), true},
                                         RunKind{"f16_window_and_sinks",
                                                 NumericProfile::Uniform(Codec::kF16), true, 20}),
                         [](const auto& kind) { return kind.param.name; });

TEST_P(RunsTest, WholeSplitsAreOneRecordAndItsEntryEach) {
  WriteStreamed();
  Must(store_.store->Flush());
  const uint64_t runs = kWhole / kSplitTokens;
  EXPECT_EQ(records(), 2 * runs + (1400 - kWhole) / kBlock);
  Restart();
  WriteStreamed();
  Must(store_.store->Flush());
  EXPECT_EQ(records(), 2 * runs + (1400 - kWhole) / kBlock) << "what is there has an entry already";
}

TEST_P(RunsTest, ALayerOfASplitIsOneRequest) {
  const auto sequence = test_->Open(prompt_, Streams());
  Feed(*sequence, prompt_);
  Must(ReadAll(*sequence));  // headers are known afterwards
  const uint64_t splits = sequence->streamed()->tokens() / kSplitTokens;
  const uint64_t before = store_.store->stats().read_requests;
  Must(ReadAll(*sequence));
  const uint64_t requests = store_.store->stats().read_requests - before;
  EXPECT_EQ(splits, 4);
  EXPECT_LE(requests, splits * SmallGeometry().layer_count() + 3) << "what was read ahead included";
}

// What the sinks of a window are in is no run yet.
TEST_P(RunsTest, NothingIsWaitedForBeforeASplitIsWhole) {
  const auto sequence = test_->Open(prompt_, Streams());
  sequence->streamed()->Defer();
  store_.files.set_latency_us_max(1'000'000'000);
  for (uint64_t tokens = 8; tokens <= 200; tokens += 8) {
    Must(test_->model.Feed(*sequence, std::span(prompt_).first(tokens)));
    ASSERT_TRUE(sequence->streamed()->MayStep(0)) << tokens;
  }
  store_.files.set_latency_us_max(100);
}

TEST_P(RunsTest, OthersLoadThem) {
  WriteStreamed();
  Restart();
  const RunReport report = RunThrough(*test_, prompt_);
  EXPECT_EQ(report.reused, 1392);
  EXPECT_EQ(Differs(*report.sequence, prompt_), "");
}

TEST_P(RunsTest, APromptThatEndsWithARunLeavesOneTokenToCompute) {
  WriteStreamed();
  Restart();
  const auto prompt = std::span(prompt_).first(kWhole);
  const RunReport report = RunThrough(*test_, prompt);
  EXPECT_EQ(report.reused, kWhole - kBlock);
  EXPECT_EQ(Differs(*report.sequence, prompt), "");
  // The same where it streams.
  const auto sequence = test_->Open(prompt, Streams());
  EXPECT_EQ(sequence->length(), kWhole - kBlock);
}

TEST_P(RunsTest, APromptThatDiffersInsideARunFindsTheRunsBeforeIt) {
  WriteStreamed();
  Restart();
  std::vector<TokenId> other = prompt_;
  other[700] += 1;
  const RunReport report = RunThrough(*test_, other);
  EXPECT_EQ(report.reused, 2 * kSplitTokens);
  EXPECT_EQ(Differs(*report.sequence, other), "");
}

TEST_P(RunsTest, AStreamThatDiffersInsideARunBeginsWithTheBlocksBeforeTheDifference) {
  constexpr uint64_t kRest = 1392;  // of a prompt, in whole blocks
  WriteStreamed();
  std::vector<TokenId> other = prompt_;
  other[700] += 1;
  std::vector<TokenId> third = other;
  third[730] += 1;
  std::vector<TokenId> early = prompt_;
  early[2 * kSplitTokens + 3] += 1;
  // Runs that begin alike are told apart where they differ.
  const std::vector<std::pair<std::vector<TokenId>, uint64_t>> prompts = {
      {other, 688}, {third, 720}, {early, 2 * kSplitTokens}, {third, kRest}, {other, kRest}};
  for (const auto& [prompt, found] : prompts) {
    Restart();
    const auto sequence = test_->Open(prompt, Streams());
    EXPECT_EQ(sequence->length(), found);
    Feed(*sequence, prompt);
  }
  for (const auto& prompt : {prompt_, other, third, early}) {
    Restart();
    const RunReport report = RunThrough(*test_, prompt);
    EXPECT_EQ(report.reused, kRest);
    EXPECT_EQ(Differs(*report.sequence, prompt), "");
  }
}

TEST_P(RunsTest, AStreamThatEndsInsideARunBeginsWithItsBlocks) {
  WriteStreamed();
  for (const uint64_t tokens : {700, 705, 2 * int{kSplitTokens} + 1, 10, 40}) {
    Restart();
    const auto prompt = std::span(prompt_).first(tokens);
    const auto sequence = test_->Open(prompt, Streams());
    EXPECT_EQ(sequence->length(), (tokens - 1) / kBlock * kBlock);
    Feed(*sequence, prompt_);
  }
}

// Memory evicts from the end, so the first blocks of a run may be there.
TEST_P(RunsTest, WhatMemoryHasOfARunIsKept) {
  WriteStreamed();
  for (const uint64_t tokens : {300, 520, 40, 1000}) {
    Restart();
    RunThrough(*test_, std::span(prompt_).first(tokens));
    const RunReport report = RunThrough(*test_, prompt_);
    EXPECT_EQ(report.reused, 1392) << tokens;
    EXPECT_EQ(Differs(*report.sequence, prompt_), "") << tokens;
  }
}

// Of the longer one memory has what the windows at its end see.
TEST_P(RunsTest, AShorterPromptFindsWhatItsWindowsSeeInRuns) {
  WriteStreamed();
  Restart();
  RunThrough(*test_, prompt_);
  const auto shorter = std::span(prompt_).first(3 * kSplitTokens + 10);
  const RunReport report = RunThrough(*test_, shorter);
  EXPECT_EQ(report.reused, 3 * kSplitTokens);
  EXPECT_EQ(report.loadable > 0, GetParam().window);
  EXPECT_EQ(Differs(*report.sequence, shorter), "");
}

TEST_P(RunsTest, LoadsFromTheEndMeetWhatIsComputedInsideARun) {
  WriteStreamed();
  if (GetParam().window) {
    Restart();
    const auto refused =
        test_->cache->Load(test_->Acquire(prompt_), {.order = LoadOrder::kFromEnd});
    ASSERT_FALSE(refused.has_value());
    EXPECT_EQ(refused.error().code, ErrorCode::kUnsupported);
    return;
  }
  for (const uint64_t computed : {0, 16, 100, 256, 600, 1300}) {
    Restart();
    Ticket ticket =
        Must(test_->cache->Load(test_->Acquire(prompt_), {.order = LoadOrder::kFromEnd}));
    {
      const auto front = Must(test_->cache->Open(ticket.Front(1), {.on_full = OnFull::kHalt}));
      for (uint64_t tokens = 8; tokens <= computed; tokens += 8) {
        Must(test_->model.Feed(*front, std::span(prompt_).first(tokens)));
        ticket.Meet(tokens);
      }
      while (!ticket.IsDone()) store_.Turn(1000);
    }
    const auto sequence = Must(test_->cache->Open(ticket.Take(), {}));
    EXPECT_EQ(sequence->length(), 1392) << computed;
    Must(test_->model.Feed(*sequence, prompt_));
    EXPECT_EQ(Differs(*sequence, prompt_), "") << computed;
  }
}

// Blocks that were written one by one are read one by one, until they are runs.
TEST_P(RunsTest, AContextThatWasWrittenBlockByBlockBecomesRuns) {
  const auto begin = std::span(prompt_).first(600);
  RunThrough(*test_, begin);
  Must(store_.store->Flush());
  const uint64_t before = records();
  EXPECT_EQ(before, 600 / kBlock);
  Restart();
  {
    const auto sequence = test_->Open(prompt_, Streams());
    EXPECT_EQ(sequence->length(), 592);
    Must(ReadAll(*sequence));
    Feed(*sequence, prompt_);
    Must(ReadAll(*sequence));
    store_.Turn();
  }
  Must(store_.store->Flush());
  EXPECT_EQ(records(), before + 2 * 5 + 7);
  const auto sequence = test_->Open(prompt_, Streams());
  EXPECT_EQ(sequence->length(), 1392);
  Must(ReadAll(*sequence));
}

TEST_P(RunsTest, ADamagedRunIsAMissFromItsFirstBlock) {
  WriteStreamed();
  test_ = nullptr;
  store_.store.reset();
  store_.DamageSegments(200'000);
  store_.Open();
  Make();
  const RunReport report = RunThrough(*test_, prompt_);
  EXPECT_LT(report.reused, 1392);
  EXPECT_EQ(report.reason, MissReason::kLoadFailed);
  EXPECT_EQ(Differs(*report.sequence, prompt_), "");
  // What is found to be damaged while it streams is forgotten, and computed by the next one.
  Result<void> read;
  for (int attempt = 0; attempt < 100; ++attempt) {
    const auto sequence = test_->Open(prompt_, Streams());
    Feed(*sequence, prompt_);
    read = ReadAll(*sequence);
    if (read) break;
    EXPECT_EQ(read.error().code, ErrorCode::kCorrupt);
  }
  EXPECT_TRUE(read.has_value());
}

}  // namespace
}  // namespace quire::cache
