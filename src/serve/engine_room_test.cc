// Little room: what a request gets does not depend on what is cached, nor on what waits before it.
#include <gtest/gtest.h>

#include <algorithm>

#include "serve/test_client.h"
#include "serve/test_util.h"

namespace quire::serve {
namespace {

constexpr uint32_t kChunkMin = 8;  // tokens

class EngineRoomTest : public EngineTest {
 protected:
  // Blocks so small that what a chunk needs besides the blocks of its tokens is most of it.
  EngineRoomTest() {
    model::ModelConfig config = model::SmallConfig();
    config.hidden = 16;
    config.intermediate = 16;
    config.query_heads = 2;
    config.kv_heads = 1;
    config.head_dim = 16;
    model_ = model::Model::Create(config, model::RandomTensors(config, ComputeType::kF32, 7), {})
                 .value();
  }

  /// An engine with int8 blocks on so many bytes.
  void MakeEncoded(uint64_t bytes, uint32_t residual_tokens, uint32_t chunk_tokens_max) {
    NumericProfile profile = NumericProfile::Uniform(Codec::kInt8, kBlockTokens);
    profile.open_dtype = Codec::kF16;
    profile.residual_tokens = residual_tokens;
    engine_.reset();
    cache_ = Cache::Create({.geometry = model::GeometryOf(model_->config()),
                            .profile = profile,
                            .hot_bytes = bytes,
                            .tokens_max = 4096,
                            .clock = &clock_})
                 .value();
    executor_ = MakeThreadPool(1);
    attention_ = MakeCpuAttention().value();
    engine_options_.chunk_tokens_min = kChunkMin;
    engine_options_.chunk_tokens_max = chunk_tokens_max;
    engine_ = MakeEngine(*cache_);
  }
};

TEST_F(EngineRoomTest, WhatIsCachedNeverMakesARequestFail) {
  uint64_t answered = 0;
  const auto compare = [&](uint64_t tokens, uint64_t bytes, uint32_t residual_tokens,
                           uint32_t chunk_tokens_max) {
    const std::vector<TokenId> first = SomeTokens(tokens + 10, 1);
    std::vector<TokenId> second(first.begin(), first.begin() + 64);
    second.resize(tokens, 5);
    const Request request = {.prompt = second, .max_tokens = 4};
    MakeEncoded(bytes, residual_tokens, kChunkMin);
    const Response alone = RunOne(request);
    MakeEncoded(bytes, residual_tokens, chunk_tokens_max);
    RunOne({.prompt = first, .max_tokens = 4});
    const Response after = RunOne(request);
    EXPECT_EQ(after.finish, alone.finish) << after.error.message;
    EXPECT_EQ(after.logits_digest, alone.logits_digest);
    answered += alone.finish == Finish::kLength ? 1 : 0;
  };
  for (const uint64_t tokens : {110, 230}) {
    // From what is too little for the prompt on.
    for (uint64_t bytes = 400 * tokens; bytes < 400 * tokens + 25'000; bytes += 500) {
      for (const uint32_t residual_tokens : {0u, kBlockTokens}) {
        for (const uint32_t chunk_tokens_max : {kChunkMin, 16 * kChunkMin}) {
          SCOPED_TRACE(testing::Message()
                       << tokens << " tokens, " << residual_tokens << " open, chunks up to "
                       << chunk_tokens_max << ", " << bytes << " bytes");
          compare(tokens, bytes, residual_tokens, chunk_tokens_max);
          if (HasFailure()) return;
        }
      }
    }
  }
  EXPECT_GT(answered, 100u);
  EXPECT_LT(answered, 400u);
}

TEST_F(EngineRoomTest, WhoWaitsForRoomOutsideHoldsNobodyUp) {
  engine_options_.outside_retry_us = 1000;
  MakeWithModel(20);
  const uint64_t block_bytes = cache_->stats().hot_bytes_limit / 20;
  const TenantId kept =
      cache_->AddTenant({.name = "kept", .floor_bytes = 10 * block_bytes}).value();
  RunOne({.prompt = SomeTokens(160, 1), .max_tokens = 1, .tenant = kept});
  ASSERT_GT(cache_->tenant_stats(kept)->published_blocks, 8u);
  TestClient client(*engine_);
  // It fits the budget, but not beside what the floor keeps.
  const RequestId large = client.Submit({.prompt = SomeTokens(250, 2), .max_tokens = 4});
  const RequestId small = client.Submit({.prompt = SomeTokens(20, 3), .max_tokens = 4});
  for (int tick = 0; tick < 100; ++tick) {
    engine_->Tick();
    clock_.Advance(100);
    client.TakeAll();
  }
  ASSERT_TRUE(client.Of(small).response.has_value());
  EXPECT_EQ(client.Of(small).response->finish, Finish::kLength);
  EXPECT_FALSE(client.Of(large).response.has_value());
  // Then there is room for it.
  ASSERT_TRUE(cache_->Erase(kept).has_value());
  clock_.Advance(1000);
  client.Finish();
  EXPECT_EQ(client.Of(large).response->finish, Finish::kLength);
}

}  // namespace
}  // namespace quire::serve
