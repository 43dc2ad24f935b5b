// A text that holds so many blocks and no more, however long it becomes.
#include <gtest/gtest.h>

#include <algorithm>

#include "serve/test_client.h"
#include "serve/test_util.h"

namespace quire::serve {
namespace {

constexpr uint64_t kKeptBlocks = 8;

class KeepBlocksTest : public EngineTest {
 protected:
  static Request Of(uint64_t tokens, uint32_t max_tokens, uint64_t blocks_max = kKeptBlocks,
                    KeepBy by = KeepBy::kAccumulated) {
    return {.prompt = SomeTokens(tokens, 1),
            .max_tokens = max_tokens,
            .keep = {.blocks_max = blocks_max, .by = by}};
  }
  /// Also the most bytes that its sequence held between two steps.
  Response Watch(const Request& request, uint64_t& bytes_most, uint64_t give_way_every = 0) {
    TestClient client(*engine_);
    const RequestId id = client.Submit(request);
    for (uint64_t tick = 1; !client.Of(id).response; ++tick) {
      if (give_way_every > 0 && tick % give_way_every == 0) {
        engine_->GiveWay();
      }
      engine_->Tick();
      clock_.Advance(1000);
      for (const SequenceEntry& entry : engine_->sequences()) {
        bytes_most = std::max(bytes_most, entry.sequence.bytes);
      }
      client.Take(id);
    }
    return *client.Of(id).response;
  }
};

TEST_F(KeepBlocksTest, MemoryStaysTheSameWhileItGenerates) {
  for (const KeepBy by : {KeepBy::kAccumulated, KeepBy::kRecent}) {
    for (const uint64_t prompt : {20, 100, 128, 700}) {
      SCOPED_TRACE(prompt);
      Make(64);
      uint64_t bytes_most = 0;
      const Response response = Watch(Of(prompt, 900, kKeptBlocks, by), bytes_most);
      ASSERT_EQ(response.finish, Finish::kLength) << response.error.message;
      EXPECT_EQ(response.tokens.size(), 900);
      EXPECT_EQ(bytes_most, kKeptBlocks * cache_->block_bytes());
      EXPECT_EQ(response.sequence.tokens_used + response.dropped_tokens, prompt + 899);
      EXPECT_LE(response.sequence.tokens_used, kKeptBlocks * kBlockTokens);
      EXPECT_EQ(cache_->stats().published_blocks, 0) << "it is an approximation";
    }
  }
}

TEST_F(KeepBlocksTest, WhatHasRoomIsExact) {
  Make(64);
  const Response whole = RunOne(Of(60, 60, 0));
  const Response kept = RunOne(Of(60, 60));
  EXPECT_EQ(kept.dropped_tokens, 0);
  EXPECT_EQ(kept.logits_digest, whole.logits_digest);
}

// Where a step ends, and what happened on the way, changes nothing.
TEST_F(KeepBlocksTest, TheAnswerIsTheSameHoweverItIsComputed) {
  engine_options_.outside_retry_us = 1;
  Make(64);
  uint64_t bytes_most = 0;
  const Request request = Of(300, 200);
  const Response once = Watch(request, bytes_most);
  ASSERT_GT(once.dropped_tokens, 200);
  const Response broken = Watch(request, bytes_most, /*give_way_every=*/37);
  EXPECT_GT(broken.preemptions, 3);
  EXPECT_EQ(broken.logits_digest, once.logits_digest);
  EXPECT_EQ(bytes_most, kKeptBlocks * cache_->block_bytes());
  Make(64, /*chunk_tokens=*/7);
  const Response small = Watch(request, bytes_most);
  EXPECT_EQ(small.logits_digest, once.logits_digest);
}

TEST_F(KeepBlocksTest, ASmallCacheHoldsALongText) {
  Make(kKeptBlocks + 4);
  uint64_t bytes_most = 0;
  const Response response = Watch(Of(2000, 50), bytes_most);
  ASSERT_EQ(response.finish, Finish::kLength) << response.error.message;
  EXPECT_EQ(RunOne(Of(2000, 50, 0)).error.code, ErrorCode::kTooLarge);
}

TEST_F(KeepBlocksTest, WhatIsChosenByAttentionIsNotWhatIsLatest) {
  Make(64);
  const Response attention = RunOne(Of(500, 100));
  const Response latest = RunOne(Of(500, 100, kKeptBlocks, KeepBy::kRecent));
  EXPECT_NE(attention.logits_digest, latest.logits_digest);
}

TEST_F(KeepBlocksTest, WhatCannotBeIsRefused) {
  Make(64);
  const auto code_of = [&](const Request& request) {
    return engine_->Submit(request).error().code;
  };
  EXPECT_EQ(code_of(Of(20, 5, KeepOptions::kBlocksMaxLeast - 1)), ErrorCode::kInvalidArgument);
  Request both = Of(20, 5);
  both.keep.share = 0.5;
  EXPECT_EQ(code_of(both), ErrorCode::kInvalidArgument);
  Request in_session = Of(20, 5);
  in_session.session = engine_->OpenSession({}).value();
  EXPECT_EQ(code_of(in_session), ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace quire::serve
