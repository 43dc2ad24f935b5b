// Sequences that stream: what is read back is what was written, layer by layer, and what cannot be
// done is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "cache/below/test_store.h"
#include "cache/test_util.h"

namespace quire::cache {
namespace {

using testing::HasSubstr;

struct StreamKind {
  std::string name;
  NumericProfile profile;
  bool window = false;  // of layers 2 and 3
};

void PrintTo(const StreamKind& kind, std::ostream* out) { *out << kind.name; }

Geometry GeometryOf(const StreamKind& kind) {
  Geometry geometry = SmallGeometry();
  if (!kind.window) return geometry;
  LayerGroup window = geometry.groups[0];
  window.kind = LayerKind::kWindow;
  window.window_tokens = 2 * kBlock + 3;
  window.layers = {2, 3};
  geometry.groups.push_back(window);
  return geometry;
}

class StreamTest : public testing::TestWithParam<StreamKind> {
 protected:
  StreamTest() { Make(); }

  void Make() {
    CacheOptions more;
    more.store = store_.store.get();
    more.clock = &store_.clock;
    test_ = std::make_unique<TestCache>(160, GeometryOf(GetParam()), GetParam().profile, 0, more);
  }
  static SequenceOptions Streams(uint64_t tokens) {
    return {.reserve_tokens = tokens, .step_tokens = 8, .resident_tokens = 200, .query_heads = 1};
  }
  /// In steps of 8 tokens.
  Result<void> Feed(Sequence& sequence, std::span<const TokenId> history) {
    while (sequence.length() < history.size()) {
      const uint64_t end = std::min<uint64_t>(history.size(), sequence.length() + 8);
      QUIRE_TRY(test_->model.Feed(sequence, history.first(end)));
    }
    return {};
  }
  /// Tokens [begin, end) of a stream as a cache has them that holds all of them.
  std::vector<float> InMemory(uint32_t layer, const Stream& stream, uint64_t begin, uint64_t end) {
    if (judge_ == nullptr) {
      Geometry geometry = GeometryOf(GetParam());
      for (LayerGroup& group : geometry.groups) {
        group.kind = LayerKind::kFull;
        group.window_tokens = 0;
      }
      judge_ = std::make_unique<TestCache>(400, geometry, GetParam().profile);
      whole_ = judge_->Run(prompt_);
    }
    std::vector<float> out((end - begin) * stream.heads * stream.dim);
    Must(whole_->Gather(layer, stream.role, begin, end, out));
    return out;
  }
  /// Empty if every piece of every layer holds what the model computes; else where not.
  std::string Differs(Sequence& sequence) {
    BlockOps& ops =
        test_->cache->options().ops == nullptr ? HostBlockOps() : *test_->cache->options().ops;
    StreamedContext& streamed = *sequence.streamed();
    uint64_t tokens = 0;
    for (uint32_t layer = 0; layer < test_->model.geometry().layer_count(); ++layer) {
      for (uint64_t i = 0; i < streamed.PieceCount(layer); ++i) {
        const auto piece = Must(streamed.Read(layer, i, nullptr));
        const uint64_t begin = piece.splits.begin * kSplitTokens;
        const uint64_t end = piece.splits.end * kSplitTokens;
        for (const Stream& stream : test_->model.GroupOf(layer).streams) {
          const bool is_key = stream.role == StreamRole::kKey;
          std::vector<float> have((end - begin) * stream.heads * stream.dim);
          for (uint64_t token = begin; token < end; token += kBlock) {
            ops.ReadRows(is_key ? piece.key : piece.value,
                         piece.tables.sealed.BlockAt(0, token / kBlock), {.count = kBlock},
                         have.data() + (token - begin) * stream.dim,
                         static_cast<int64_t>((end - begin) * stream.dim));
          }
          Must(ops.Synchronize());
          if (have != InMemory(layer, stream, begin, end)) {
            return "layer " + std::to_string(layer) + ", tokens from " + std::to_string(begin);
          }
        }
        tokens += end - begin;
      }
    }
    const uint64_t layers = GetParam().window ? 2 : test_->model.geometry().layer_count();
    return tokens == layers * streamed.tokens() ? "" : "not all tokens";
  }

  TestStore store_;
  std::unique_ptr<TestCache> test_;
  const std::vector<TokenId> prompt_ = SomeTokens(1400, 1);
  std::unique_ptr<TestCache> judge_;
  std::unique_ptr<Sequence> whole_;
};

INSTANTIATE_TEST_SUITE_P(Kinds, StreamTest,
                         testing::Values(StreamKind{"f16", NumericProfile::Uniform(Codec::kF16)},
                                         StreamKind{"int8", EncodedInt8()},
                                         StreamKind{"int8_and_window", EncodedInt8(), true}),
                         [](const auto& kind) { return kind.param.name; });

TEST_P(StreamTest, ReadsBackWhatWasWritten) {
  const auto sequence = test_->Open(prompt_, Streams(1400));
  Must(Feed(*sequence, prompt_));
  EXPECT_EQ(sequence->streamed()->tokens(), 1024);
  EXPECT_EQ(Differs(*sequence), "");
  EXPECT_EQ(Differs(*sequence), "") << "and again";
  const StreamedStats stats = sequence->streamed()->stats();
  EXPECT_GT(stats.bytes_read, 0);
  EXPECT_GE(stats.pieces, stats.waits);
  // What is in memory is read as ever, and what is not says so.
  const Stream key = test_->model.GroupOf(0).streams[0];
  std::vector<float> out(1400 * key.heads * key.dim);
  Must(sequence->Gather(0, key.role, 1024, 1400, out));
  EXPECT_FALSE(sequence->Gather(0, key.role, 0, 1400, out).has_value());
}

TEST_P(StreamTest, PublishesToTheStoreAlone) {
  {
    const auto sequence = test_->Open(prompt_, Streams(1400));
    Must(Feed(*sequence, prompt_));
    EXPECT_EQ(test_->cache->stats().published_blocks, 0);
  }
  EXPECT_EQ(test_->cache->stats().hot_bytes_used, 0) << "every byte is back";
  const Plan plan = test_->Acquire(prompt_);
  EXPECT_EQ(plan.resident_tokens(), 0);
  EXPECT_EQ(plan.loadable_tokens(), 1392);
}

TEST_P(StreamTest, BeginsWithWhatTheStoreHas) {
  {
    Must(Feed(*test_->Open(prompt_, Streams(1400)), prompt_));
  }
  test_ = nullptr;
  store_.Restart();
  Make();
  const auto sequence = test_->Open(prompt_, Streams(1400));
  EXPECT_EQ(sequence->length(), 1392);
  EXPECT_EQ(sequence->streamed()->tokens(), 1024);
  EXPECT_EQ(Differs(*sequence), "");
  const Stream key = test_->model.GroupOf(0).streams[0];
  std::vector<float> out((1392 - 1024) * key.heads * key.dim);
  Must(sequence->Gather(0, key.role, 1024, 1392, out));
  EXPECT_EQ(out, InMemory(0, key, 1024, 1392)) << "the last tokens are in memory";
  Must(Feed(*sequence, prompt_));
}

TEST_P(StreamTest, WhatHasLeftMemoryIsDurable) {
  const auto sequence = test_->Open(prompt_, Streams(1400));
  uint64_t front = 0;
  for (uint64_t tokens = 8; tokens <= prompt_.size(); tokens += 8) {
    Must(Feed(*sequence, std::span(prompt_).first(tokens)));
    if (sequence->streamed()->tokens() == front) continue;
    front = sequence->streamed()->tokens();
    ASSERT_GE(test_->Acquire(prompt_).loadable_tokens(), front);
  }
  EXPECT_EQ(front, 1024);
}

TEST_P(StreamTest, IsWrittenOnce) {
  {
    Must(Feed(*test_->Open(prompt_, Streams(1400)), prompt_));
  }
  const uint64_t written = store_.store->stats().bytes_put;
  {
    Must(Feed(*test_->Open(std::span(prompt_).first(900), Streams(1400)), prompt_));
  }
  EXPECT_EQ(store_.store->stats().bytes_put, written);
}

TEST_P(StreamTest, WhatItCannotDoIsRefused) {
  const auto sequence = test_->Open(prompt_, Streams(1400));
  Must(Feed(*sequence, prompt_));
  EXPECT_EQ(sequence->Fork().error().code, ErrorCode::kUnsupported);
  EXPECT_EQ(sequence->Select(std::vector<uint64_t>{0}).error().code, ErrorCode::kUnsupported);
  EXPECT_FALSE(sequence->Retain({.priority = 60}).has_value());
  EXPECT_EQ(sequence->streamed()->States(9, 1).error().code, ErrorCode::kNoSpace);
  EXPECT_EQ(sequence->streamed()->States(8, 2).error().code, ErrorCode::kNoSpace);
  EXPECT_TRUE(sequence->streamed()->States(8, 1).has_value());
  const uint64_t pieces = sequence->streamed()->PieceCount(0);
  EXPECT_GT(pieces, 0);
  EXPECT_EQ(sequence->streamed()->Read(0, pieces, nullptr).error().code,
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(sequence->streamed()->PieceCount(99), 0);
  EXPECT_EQ(sequence->streamed()->Read(99, 0, nullptr).error().code, ErrorCode::kInvalidArgument);
}

TEST_P(StreamTest, AnotherTenantsQuotaOfTheStoreIsKeptTo) {
  const TenantId small =
      Must(test_->cache->AddTenant({.name = "small", .store_quota_bytes = 64 << 10}));
  Plan plan = Must(
      test_->cache->Acquire({.tenant = small, .identity = &test_->identity, .tokens = prompt_}));
  const auto refused = test_->cache->Open(std::move(plan), Streams(1400));
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kTooLarge);
  EXPECT_THAT(refused.error().message, HasSubstr("the tenant's quota there"));
}

TEST_P(StreamTest, ATenantWithATtlKeepsNothingBelowMemory) {
  const TenantId brief = Must(test_->cache->AddTenant({.name = "brief", .ttl_us = 1'000'000}));
  Plan plan = Must(
      test_->cache->Acquire({.tenant = brief, .identity = &test_->identity, .tokens = prompt_}));
  const auto refused = test_->cache->Open(std::move(plan), Streams(1400));
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kUnsupported);
  EXPECT_THAT(refused.error().message, HasSubstr("ttl"));
}

TEST_P(StreamTest, EndsWithoutAWaitWhenItMay) {
  {
    const auto sequence = test_->Open(prompt_, Streams(1400));
    Must(Feed(*sequence, prompt_));
    store_.files.set_latency_us_max(1'000'000'000);  // of what is asked for from now on
    EXPECT_FALSE(sequence->MayEnd(0));
    EXPECT_FALSE(sequence->MayEnd(5'000));
    store_.files.set_latency_us_max(100);
    store_.clock.Advance(1'000'000'000);
    while (!sequence->MayEnd(1'000)) continue;
    const uint64_t begin_us = store_.clock.NowMicros();
    sequence->Reset();
    EXPECT_EQ(store_.clock.NowMicros(), begin_us);
  }
  EXPECT_EQ(test_->Acquire(prompt_).loadable_tokens(), 1392);
}

// Entries, keys and tokens stay in memory while slots go.
TEST_P(StreamTest, EachBlockIsPaidForWhetherAtOpenOrLater) {
  const auto bytes_with = [this](uint64_t at_open, uint64_t later) {
    const auto sequence = test_->Open(std::span(prompt_).first(kBlock), Streams(at_open * kBlock));
    Must(sequence->Reserve(later * kBlock));
    return test_->cache->stats().sequence_bytes;
  };
  constexpr uint64_t kBlocks = 100;
  constexpr uint64_t kLeastBytes =
      sizeof(Digest) + kBlock * sizeof(TokenId) + sizeof(SlotId) + sizeof(BlockId);
  const uint64_t one = bytes_with(1, 1);
  for (const uint64_t bytes : {bytes_with(kBlocks, kBlocks), bytes_with(1, kBlocks)}) {
    EXPECT_GE(bytes, one + (kBlocks - 1) * kLeastBytes);
    EXPECT_LE(bytes, one + kBlocks * 3 * kLeastBytes);
  }
}

// QUIRE_CONTEXT_TOKENS=200000 for the length that SPEC M2 names.
TEST(StreamLong, TheBudgetDoesNotGrowWithTheContext) {
  constexpr uint64_t kStep = 512;
  const char* const asked = std::getenv("QUIRE_CONTEXT_TOKENS");
  const uint64_t count = asked == nullptr ? 12'000 : std::stoull(asked);
  const std::vector<TokenId> tokens = SomeTokens(count, 1);
  TestStore store(count * 1024 + (64 << 20));
  CacheOptions more;
  more.store = store.store.get();
  more.clock = &store.clock;
  more.tokens_max = count;
  TestCache test(4 * count / kBlock, SmallGeometry(), NumericProfile::Uniform(Codec::kF16), 0,
                 more);
  const auto sequence = test.Open(
      tokens,
      {.reserve_tokens = count, .step_tokens = kStep, .resident_tokens = 1024, .query_heads = 1});
  const CacheStats at_first = test.cache->stats();
  while (sequence->length() < count) {
    const uint64_t end = std::min(count, sequence->length() + kStep);
    Must(test.model.Feed(*sequence, std::span(tokens).first(end)));
  }
  EXPECT_EQ(test.cache->stats().hot_bytes_peak, at_first.hot_bytes_used);
  EXPECT_LE(at_first.sealed.slots_used, (1024 + kStep + 4 * kSplitTokens) / kBlock + 1);
  EXPECT_GE(sequence->streamed()->tokens() + 1024 + kSplitTokens, count);
  for (uint32_t layer = 0; layer < 2; ++layer) {
    uint64_t next = 0;
    for (uint64_t i = 0; i < sequence->streamed()->PieceCount(layer); ++i) {
      const auto piece = Must(sequence->streamed()->Read(layer, i, nullptr));
      EXPECT_EQ(piece.splits.begin, next);
      next = piece.splits.end;
    }
    EXPECT_EQ(next * kSplitTokens, sequence->streamed()->tokens());
  }
}

TEST(StreamRefusals, SayWhatToDo) {
  TestStore store;
  CacheOptions more;
  more.store = store.store.get();
  more.clock = &store.clock;
  const SequenceOptions options{.step_tokens = 8, .resident_tokens = 100, .query_heads = 1};
  const std::vector<TokenId> prompt = SomeTokens(300, 1);
  NumericProfile residual = EncodedInt8();
  residual.residual_tokens = kBlock;
  TestCache twins(160, SmallGeometry(), residual, 0, more);
  EXPECT_THAT(twins.TryOpen(prompt, options).error().message, HasSubstr("not with residual"));
  Geometry windows = SmallGeometry();
  windows.groups[0].kind = LayerKind::kWindow;
  windows.groups[0].window_tokens = 40;
  TestCache windowed(160, windows, NumericProfile::Uniform(Codec::kF16), 0, more);
  EXPECT_THAT(windowed.TryOpen(prompt, options).error().message, HasSubstr("leave it at 0"));
}

}  // namespace
}  // namespace quire::cache
