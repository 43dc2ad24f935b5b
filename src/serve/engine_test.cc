#include "serve/engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <string>

#include "serve/test_util.h"

namespace quire::serve {
namespace {

TEST_F(EngineTest, SecondRunReusesWhatTheRuleAllowsAndGivesTheSameBits) {
  Make(64);
  const Request request{.prompt = SomeTokens(100, 1), .max_tokens = 9};
  const Response first = RunOne(request);
  const Response second = RunOne(request);
  EXPECT_EQ(first.finish, Finish::kLength);
  EXPECT_EQ(first.tokens.size(), 9u);
  EXPECT_EQ(first.reused_tokens, 0u);
  EXPECT_EQ(first.computed_tokens, 100u);
  EXPECT_EQ(second.reused_tokens, 96u);
  EXPECT_EQ(second.computed_tokens, 4u);
  EXPECT_EQ(second.tokens, first.tokens);
  EXPECT_EQ(second.logits_digest, first.logits_digest);
  EXPECT_EQ(cache_->stats().sequences, 0u);
}

TEST_F(EngineTest, RequestsInOneBatchShareThePrefixOfTheFirst) {
  Make(64);
  std::vector<Request> requests;
  for (uint32_t i = 0; i < 4; ++i) {
    std::vector<TokenId> prompt = SomeTokens(64, 1);
    const std::vector<TokenId> tail = SomeTokens(10, 100 + i);
    prompt.insert(prompt.end(), tail.begin(), tail.end());
    requests.push_back({.prompt = prompt, .max_tokens = 20});
  }
  const std::vector<Response> together = Run(requests);
  EXPECT_EQ(together[0].reused_tokens, 0u);
  for (uint32_t i = 1; i < 4; ++i) EXPECT_EQ(together[i].reused_tokens, 64u);
  // 4 shared blocks; each tail of 10 + 19 stored tokens is 2 more.
  EXPECT_EQ(cache_->stats().sealed.slots_used_peak, 4u + 4 * 2);
  for (uint32_t i = 0; i < 4; ++i) {
    requests[i].reuse = false;
    EXPECT_EQ(RunOne(requests[i]).logits_digest, together[i].logits_digest) << i;
  }
}

TEST_F(EngineTest, SplitsThatABatchSharesDoNotShow) {
  Make(256, 256);
  std::vector<Request> requests;
  for (uint32_t i = 0; i < 3; ++i) {
    std::vector<TokenId> prompt = SomeTokens(600, 1);  // two whole splits, then half a block
    const std::vector<TokenId> tail = SomeTokens(10 + 90 * i, 100 + i);
    prompt.insert(prompt.end(), tail.begin(), tail.end());
    requests.push_back({.prompt = prompt, .max_tokens = 6});
  }
  const std::vector<Response> together = Run(requests);
  for (uint32_t i = 0; i < 3; ++i) {
    EXPECT_EQ(together[i].reused_tokens, i == 0 ? 0u : 592u);
    requests[i].reuse = false;
    EXPECT_EQ(RunOne(requests[i]).logits_digest, together[i].logits_digest) << i;
  }
}

TEST_F(EngineTest, KeepsAShareOfThePromptAndGoesOn) {
  Make(64);
  const Request whole{.prompt = SomeTokens(200, 1), .max_tokens = 6};
  const Response exact = RunOne(whole);
  for (const KeepBy by : {KeepBy::kObserved, KeepBy::kAccumulated, KeepBy::kRecent}) {
    Request request = whole;
    request.keep = {.share = 0.5, .by = by};
    const Response part = RunOne(request);
    ASSERT_EQ(part.finish, Finish::kLength) << part.error.message;
    EXPECT_EQ(part.reused_tokens, 0u);
    EXPECT_EQ(part.dropped_tokens, 6 * kBlockTokens);  // of 12 whole blocks
    EXPECT_LT(part.kv_bytes, exact.kv_bytes * 6 / 10);
    EXPECT_EQ(part.tokens[0], exact.tokens[0]);  // the prompt was read whole
    EXPECT_NE(part.logits_digest, exact.logits_digest);
    EXPECT_EQ(RunOne(request).logits_digest, part.logits_digest);
    Make(64, 7);  // other chunks: the observed window is cut otherwise
    EXPECT_EQ(RunOne(request).tokens, part.tokens);
    Make(64);
  }
  // Nothing approximate is found later.
  EXPECT_EQ(RunOne(whole).reused_tokens, 0u);
  EXPECT_EQ(RunOne(whole).logits_digest, exact.logits_digest);
}

TEST_F(EngineTest, AllOfAPromptIsNotAnApproximation) {
  Make(64);
  Request request{.prompt = SomeTokens(100, 1), .max_tokens = 6};
  const Response exact = RunOne(request);
  request.keep = {.share = 0.999, .by = KeepBy::kRecent};  // rounded up to all blocks
  EXPECT_EQ(RunOne(request).logits_digest, exact.logits_digest);
  request.keep.share = 0.0;
  EXPECT_EQ(RunOne(request).error.code, ErrorCode::kInvalidArgument);
}

TEST_F(EngineTest, ChunksAndLogitsOfEveryPositionDoNotChangeTheBits) {
  Make(64);
  const Request plain{.prompt = SomeTokens(70, 3), .max_tokens = 5, .reuse = false};
  const Response expected = RunOne(plain);
  for (uint32_t chunk : {1u, 7u, 16u, 70u, 500u}) {
    Make(64, chunk);
    std::vector<uint64_t> positions;
    Request request = plain;
    request.all_logits = true;
    const auto on_event = [&](size_t, const Event& event) {
      if (const auto* logits = std::get_if<Logits>(&event)) {
        EXPECT_EQ(logits->rows.size() % kTestVocab, 0u);
        for (uint64_t row = 0; row < logits->rows.size() / kTestVocab; ++row) {
          positions.push_back(logits->first_position + row);
        }
      }
      return true;
    };
    EXPECT_EQ(RunOne(request, on_event).logits_digest, expected.logits_digest) << chunk;
    std::vector<uint64_t> all(70 + 4);
    std::iota(all.begin(), all.end(), 0);
    EXPECT_EQ(positions, all) << chunk;
  }
}

TEST_F(EngineTest, StopTokenEndsAndIsReported) {
  Make(64);
  Request request{.prompt = SomeTokens(20, 4), .max_tokens = 10};
  const std::vector<TokenId> tokens = RunOne(request).tokens;
  request.stop_tokens = {tokens[3]};
  const Response stopped = RunOne(request);
  EXPECT_EQ(stopped.finish, Finish::kStop);
  const auto end = std::ranges::find(tokens, tokens[3]) + 1;
  EXPECT_EQ(stopped.tokens, std::vector<TokenId>(tokens.begin(), end));
}

TEST_F(EngineTest, ProgressIsReportedAndCancelsWithoutALeak) {
  Make(64, 32);
  std::vector<uint64_t> seen;
  const Request request{.prompt = SomeTokens(100, 5), .max_tokens = 5};
  const Response cancelled = RunOne(request, [&](size_t, const Event& event) {
    const Progress progress = std::get<Progress>(event);
    EXPECT_EQ(progress.total, 100u);
    seen.push_back(progress.done);
    return progress.done < 64;
  });
  EXPECT_EQ(cancelled.finish, Finish::kCancelled);
  EXPECT_EQ(seen, (std::vector<uint64_t>{32, 64}));
  EXPECT_TRUE(cancelled.tokens.empty());
  EXPECT_EQ(cache_->stats().sequences, 0u);
  EXPECT_EQ(cache_->stats().sealed.slots_used, 4u);  // the whole blocks it computed stay

  // The next attempt goes on where the first was cancelled.
  const Response resumed = RunOne(request);
  EXPECT_EQ(resumed.reused_tokens, 64u);
  EXPECT_EQ(resumed.finish, Finish::kLength);
}

TEST_F(EngineTest, ATokenIsTakenBeforeTheNextOneAndCanCancel) {
  Make(64);
  const Request request{.prompt = SomeTokens(20, 6), .max_tokens = 50};
  uint32_t count = 0;
  const Response response = RunOne(request, [&count](size_t, const Event& event) {
    return !std::holds_alternative<NewToken>(event) || ++count < 3;
  });
  EXPECT_EQ(response.finish, Finish::kCancelled);
  EXPECT_EQ(response.tokens.size(), 3u);
  EXPECT_EQ(cache_->stats().sequences, 0u);
}

TEST_F(EngineTest, WhatCanNeverFitIsRefusedAtOnceAndOthersGoOn) {
  Make(6);
  const std::vector<Request> requests = {{.prompt = SomeTokens(30, 1), .max_tokens = 4},
                                         {.prompt = SomeTokens(97, 2), .max_tokens = 4},
                                         {.prompt = SomeTokens(40, 3), .max_tokens = 4}};
  const std::vector<Response> responses = Run(requests);
  EXPECT_EQ(responses[0].finish, Finish::kLength);
  EXPECT_EQ(responses[1].finish, Finish::kFailed);
  EXPECT_EQ(responses[1].error.code, ErrorCode::kTooLarge);
  EXPECT_NE(responses[1].error.message.find("can never fit"), std::string::npos);
  EXPECT_EQ(responses[2].finish, Finish::kLength);
}

TEST_F(EngineTest, ARequestWaitsForTheRoomThatOthersHold) {
  Make(6);
  // Each needs 4 of 6 blocks: they cannot run together, and both must finish.
  const std::vector<Request> requests = {{.prompt = SomeTokens(40, 1), .max_tokens = 20},
                                         {.prompt = SomeTokens(40, 2), .max_tokens = 20}};
  for (const Response& response : Run(requests)) {
    EXPECT_EQ(response.finish, Finish::kLength) << response.error.message;
    EXPECT_EQ(response.tokens.size(), 20u);
  }
  EXPECT_LE(cache_->stats().hot_bytes_peak, cache_->stats().hot_bytes_limit);
}

TEST_F(EngineTest, TheLastTokenNeedsNoRoom) {
  Make(4);
  // 61 and 3 that are fed back: 64, all there is. One more does not fit.
  const Response fits = RunOne({.prompt = SomeTokens(61, 1), .max_tokens = 4});
  EXPECT_EQ(fits.finish, Finish::kLength) << fits.error.message;
  EXPECT_EQ(fits.tokens.size(), 4u);
  const Response over = RunOne({.prompt = SomeTokens(61, 1), .max_tokens = 5});
  EXPECT_EQ(over.error.code, ErrorCode::kTooLarge);
  // Without any output the prompt alone counts.
  EXPECT_EQ(RunOne({.prompt = SomeTokens(64, 2), .max_tokens = 0}).finish, Finish::kLength);
  EXPECT_EQ(RunOne({.prompt = SomeTokens(64, 3), .max_tokens = 1}).finish, Finish::kLength);
}

TEST_F(EngineTest, TheLastTokenNeedsNoRoomAfterKeeping) {
  Make(64);
  // 97 tokens, of 6 whole blocks 3 are kept: 49 and 15 that are fed back are 4 blocks.
  Request request{
      .prompt = SomeTokens(97, 1), .max_tokens = 16, .keep = {.share = 0.5, .by = KeepBy::kRecent}};
  EXPECT_EQ(RunOne(request).sequence.tokens_reserved, 64u);
  request.max_tokens = 17;
  EXPECT_EQ(RunOne(request).sequence.tokens_reserved, 80u);
}

TEST_F(EngineTest, HaltStopsWhereTheCacheIsFullAndKeepsWhatWasMade) {
  Make(4);
  Request request{.prompt = SomeTokens(30, 1), .max_tokens = 500};
  const Response rejected = RunOne(request);
  EXPECT_EQ(rejected.finish, Finish::kFailed);
  EXPECT_EQ(rejected.error.code, ErrorCode::kTooLarge);

  request.on_full = OnFull::kHalt;
  const Response halted = RunOne(request);
  EXPECT_EQ(halted.finish, Finish::kNoSpace);
  // 64 places: 30 of the prompt, 34 generated tokens fed back, and the one made from the last.
  EXPECT_EQ(halted.tokens.size(), 35u);
  EXPECT_EQ(cache_->stats().sequences, 0u);
}

TEST_F(EngineTest, BadRequestsFailAloneAndSayWhy) {
  Make(64);
  const std::vector<Request> requests = {{.prompt = {}},
                                         {.prompt = {1, 2, 96}},
                                         {.prompt = {-1}},
                                         {.prompt = SomeTokens(5000, 1)},
                                         {.prompt = SomeTokens(20, 1), .max_tokens = 3}};
  const std::vector<Response> responses = Run(requests);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(responses[i].finish, Finish::kFailed) << i;
    EXPECT_EQ(responses[i].error.code, ErrorCode::kInvalidArgument) << i;
  }
  EXPECT_NE(responses[1].error.message.find("token 96 at position 2"), std::string::npos);
  EXPECT_NE(responses[3].error.message.find("4096"), std::string::npos);
  EXPECT_EQ(responses[4].finish, Finish::kLength);
}

TEST_F(EngineTest, NoTokensWantedReadsThePromptOnly) {
  Make(64);
  clock_.Advance(5000);
  const Response response = RunOne({.prompt = SomeTokens(50, 1), .max_tokens = 0});
  EXPECT_EQ(response.finish, Finish::kLength);
  EXPECT_TRUE(response.tokens.empty());
  EXPECT_EQ(response.computed_tokens, 50u);
  EXPECT_EQ(response.ttft_ms, 0.0);
  EXPECT_EQ(cache_->stats().published_blocks, 3u);
  // A single token has no time between tokens.
  EXPECT_EQ(RunOne({.prompt = SomeTokens(50, 1), .max_tokens = 1}).ms_per_token, 0.0);
}

TEST_F(EngineTest, CountersBeginAtZeroAndTellPromptsFromAnswers) {
  Make(64);
  const EngineStats fresh = engine_->stats();
  for (const uint64_t counter : {fresh.steps,
                                 fresh.step_us,
                                 fresh.prompt_tokens,
                                 fresh.decode_tokens,
                                 fresh.recomputed_tokens,
                                 fresh.step_prompt_tokens_max,
                                 fresh.looks,
                                 fresh.loads,
                                 fresh.loads_from_end,
                                 fresh.loads_by_layer,
                                 fresh.loaded_tokens,
                                 fresh.load_us,
                                 fresh.load_bytes,
                                 fresh.read_us,
                                 fresh.read_tokens,
                                 fresh.prefix_waits,
                                 fresh.preemptions,
                                 fresh.sessions_released,
                                 fresh.session_write_failures,
                                 uint64_t{fresh.waiting},
                                 uint64_t{fresh.running}}) {
    EXPECT_EQ(counter, 0u);
  }
  const Request request{.prompt = SomeTokens(17, 1), .max_tokens = 4};
  RunOne(request);
  RunOne(request);  // 16 tokens are reused
  const EngineStats stats = engine_->stats();
  EXPECT_EQ(stats.prompt_tokens, 17u + 1);
  EXPECT_EQ(stats.decode_tokens, 2u * 3);
  EXPECT_EQ(stats.steps, 2u * 4);
  EXPECT_EQ(stats.read_tokens, 17u + 1);
  EXPECT_EQ(stats.step_prompt_tokens_max, 17u);
  EXPECT_EQ(stats.looks, 2u);
  EXPECT_EQ(stats.recomputed_tokens, 0u);
}

TEST_F(EngineTest, WhatIsRefusedCountsNothing) {
  Make(64);
  const Response refused = RunOne({.prompt = {-1}});
  EXPECT_EQ(refused.finish, Finish::kFailed);
  EXPECT_EQ(refused.prompt_tokens, 1u);
  for (const uint64_t count :
       {refused.reused_tokens, refused.loaded_tokens, refused.computed_tokens,
        refused.recomputed_tokens, uint64_t{refused.preemptions}, refused.dropped_tokens,
        refused.kv_bytes}) {
    EXPECT_EQ(count, 0u);
  }
  EXPECT_EQ(refused.ttft_ms, 0.0);
  EXPECT_EQ(refused.ms_per_token, 0.0);
}

TEST_F(EngineTest, WhatIsNotSaidIsADefault) {
  Make(64);
  EXPECT_EQ(RunOne({.prompt = SomeTokens(20, 1)}).tokens.size(), 16u);
  // As docs/operations.md and include/quire/engine.h say.
  EXPECT_EQ(SessionStoreOptions{}.bytes_max, uint64_t{1} << 30);
  EXPECT_EQ(EngineOptions{}.idle_text_bytes, uint64_t{64} << 20);
  engine_options_ = {};
  engine_ = MakeEngine(*cache_);
  EXPECT_EQ(engine_->stats().chunk_tokens, 512u);
  for (int i = 0; i < 1024; ++i) {
    ASSERT_TRUE(engine_->Submit({.prompt = {1}}).has_value());
    ASSERT_TRUE(engine_->OpenSession({}).has_value());
  }
  EXPECT_FALSE(engine_->Submit({.prompt = {1}}).has_value());
  EXPECT_FALSE(engine_->OpenSession({}).has_value());
}

/// Random weights with one value that is not finite.
class Poisoned final : public model::TensorSource {
 public:
  Poisoned(const model::ModelConfig& config, std::string_view tensor, float value)
      : random_(config, ComputeType::kF32, 7), tensor_(tensor), value_(value) {}

  const std::string& path() const override { return random_.path(); }
  std::span<const model::TensorInfo> tensors() const override { return random_.tensors(); }
  Result<void> Read(const model::TensorInfo& tensor, uint64_t offset_bytes,
                    std::span<std::byte> out) const override {
    QUIRE_TRY(random_.Read(tensor, offset_bytes, out));
    if (tensor.name == tensor_ && offset_bytes == 0) std::memcpy(out.data(), &value_, 4);
    return {};
  }

 private:
  const model::RandomTensors random_;
  const std::string tensor_;
  const float value_;
};

TEST_F(EngineTest, LogitsThatAreNotFiniteFailTheRequest) {
  const model::ModelConfig config = model::SmallConfig();
  for (const float value : {NAN, INFINITY, -INFINITY}) {
    const Poisoned tensors(config, "model.norm.weight", value);
    model_ = model::Model::Create(config, tensors, {}).value();
    MakeWithModel(64);
    for (const float temperature : {0.0f, 1.0f}) {
      const Response response = RunOne(
          {.prompt = SomeTokens(20, 1), .max_tokens = 5, .sampling = {.temperature = temperature}});
      EXPECT_EQ(response.finish, Finish::kFailed);
      EXPECT_EQ(response.error.code, ErrorCode::kCorrupt);
      EXPECT_NE(response.error.message.find("position 19 are not finite"), std::string::npos)
          << response.error.message;
      EXPECT_TRUE(response.tokens.empty());
    }
    // Nothing is sampled, so nothing is misled.
    EXPECT_EQ(RunOne({.prompt = SomeTokens(20, 2), .max_tokens = 0}).finish, Finish::kLength);
    EXPECT_EQ(cache_->stats().sequences, 0u);
  }
}

TEST_F(EngineTest, TemperatureDrawsTheSameTokensForTheSameSeed) {
  Make(64);
  Request request{.prompt = SomeTokens(20, 1), .max_tokens = 30, .sampling = {.temperature = 1.0f}};
  request.sampling.seed = 1;
  const auto first = RunOne(request).tokens;
  EXPECT_EQ(RunOne(request).tokens, first);
  request.sampling.seed = 2;
  EXPECT_NE(RunOne(request).tokens, first);
}

// Tokens of a batch are drawn on several threads.
TEST_F(EngineTest, TokensOfABatchAreThoseOfEachRequestAlone) {
  threads_ = 4;
  Make(256);
  std::vector<Request> requests;
  for (uint32_t i = 0; i < 12; ++i) {
    requests.push_back({.prompt = SomeTokens(5 + i, i),
                        .max_tokens = 10 + i,
                        .sampling = {.temperature = i % 3 == 0 ? 0.0f : 1.0f,
                                     .seed = i,
                                     .top_p = i % 2 == 0 ? 1.0f : 0.8f},
                        .logprobs = i % 4 == 0 ? std::optional<uint32_t>(3) : std::nullopt});
  }
  const std::vector<Response> together = Run(requests);
  for (size_t i = 0; i < requests.size(); ++i) {
    const Response alone = RunOne(requests[i]);
    EXPECT_EQ(together[i].tokens, alone.tokens) << i;
    EXPECT_EQ(together[i].logits_digest, alone.logits_digest) << i;
  }
}

}  // namespace
}  // namespace quire::serve
