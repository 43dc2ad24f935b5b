// Tokens that are drawn: which, what is said of them, when the answer ends and how it is timed.
#include "serve/answer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <tuple>

#include "env/clock.h"

namespace quire::serve {
namespace {

class AnswerTest : public testing::Test {
 protected:
  Answer& Make(Request request) {
    request_ = std::move(request);
    request_.prompt = text_ = {1};
    id_ = mailbox_.Submit(request_, 0).value();
    answer_.emplace(id_, request_, clock_.NowMicros(), mailbox_, clock_);
    return *answer_;
  }
  Result<Answer::Drawn> Draw(const std::vector<float>& logits) {
    auto drawn = answer_->Draw(logits, text_);
    if (drawn) text_.push_back(drawn->token);
    return drawn;
  }
  NewToken Said() { return std::get<NewToken>(mailbox_.Next(id_).value()); }

  ManualClock clock_;
  Mailbox mailbox_{{.requests_max = 8, .sessions_max = 8, .events_max = 100}};
  Request request_;
  RequestId id_;
  std::optional<Answer> answer_;
  std::vector<TokenId> text_;  // the prompt and what was drawn
};

TEST_F(AnswerTest, TheMostLikelyTokenIsDrawnAndSaid) {
  Answer& answer = Make({.max_tokens = 2});
  const auto first = Draw(std::vector<float>{0, 3, 1});
  ASSERT_TRUE(first.has_value());
  EXPECT_EQ(first->token, 1);
  EXPECT_FALSE(first->ends.has_value());
  EXPECT_EQ(Said().token, 1);
  const auto last = Draw(std::vector<float>{0, 3, 4});
  EXPECT_EQ(last->token, 2);
  EXPECT_EQ(last->ends, Finish::kLength);
  EXPECT_EQ(answer.Take(Finish::kLength).tokens, (std::vector<TokenId>{1, 2}));
}

TEST_F(AnswerTest, AStopTokenEndsItAndIsPartOfIt) {
  Answer& answer = Make({.max_tokens = 9, .stop_tokens = {7, 2}});
  EXPECT_EQ(Draw(std::vector<float>{1, 0, 0})->ends, std::nullopt);
  EXPECT_EQ(Draw(std::vector<float>{0, 0, 1})->ends, Finish::kStop);
  EXPECT_EQ(answer.Take(Finish::kStop).tokens, (std::vector<TokenId>{0, 2}));
  Make({.max_tokens = 1, .stop_tokens = {2}});
  EXPECT_EQ(Draw(std::vector<float>{0, 0, 1})->ends, Finish::kStop);
}

TEST_F(AnswerTest, TheDigestIsOfAllLogitsThatTokensWereDrawnFrom) {
  const std::vector<std::vector<float>> logits = {{0, 1, 2}, {3, 1, 2}};
  Answer& answer = Make({.max_tokens = 5});
  Blake2b<16> digest;
  for (const auto& row : logits) {
    ASSERT_TRUE(Draw(row).has_value());
    digest.Update(std::as_bytes(std::span(row)));
  }
  EXPECT_EQ(answer.Take(Finish::kCancelled).logits_digest, digest.Finish());
}

TEST_F(AnswerTest, NothingIsDigestedForThoseThatDoNotAsk) {
  Answer& answer = Make({.max_tokens = 5, .digests_logits = false});
  ASSERT_TRUE(Draw(std::vector<float>{0, 1, 2}).has_value());
  EXPECT_EQ(answer.Take(Finish::kCancelled).logits_digest, (std::array<uint8_t, 16>{}));
}

TEST_F(AnswerTest, NothingIsDrawnFromLogitsThatAreNotFinite) {
  Answer& answer = Make({.max_tokens = 5});
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    const auto drawn = Draw(std::vector<float>{0, bad, 1});
    ASSERT_FALSE(drawn.has_value());
    EXPECT_EQ(drawn.error().code, ErrorCode::kCorrupt);
    EXPECT_NE(drawn.error().message.find("position 0"), std::string::npos);
  }
  EXPECT_FALSE(mailbox_.Next(id_).has_value());
  const Response response = answer.Take(Finish::kFailed);
  EXPECT_TRUE(response.tokens.empty());
  EXPECT_EQ(response.logits_digest, Blake2b<16>().Finish());
  EXPECT_EQ(response.ttft_ms, 0.0);
}

// Chosen beforehand or not: tokens, what is said of them, the sampler's state, the digest, errors.
TEST_F(AnswerTest, WhatWasChosenIsWhatDrawGives) {
  const std::vector<std::vector<float>> logits = {
      {0, 1, 2, 1}, {1, 1, 1, 1}, {0, 0, std::numeric_limits<float>::infinity(), 0}, {3, 2, 1, 2}};
  const auto all = [&](bool chooses) {
    Answer& answer = Make({.max_tokens = 9,
                           .sampling = {.temperature = 1.0f, .seed = 5, .top_p = 0.9f},
                           .logprobs = 2});
    std::vector<std::pair<TokenId, float>> said;
    for (const auto& row : logits) {
      if (chooses) answer.Choose(row, text_);
      if (!Draw(row)) continue;
      const NewToken token = Said();
      said.emplace_back(token.token, token.logprob);
    }
    return std::tuple(said, answer.sampler().prng, answer.Take(Finish::kLength).logits_digest);
  };
  const auto want = all(false);
  EXPECT_EQ(std::get<0>(want).size(), 3u);
  EXPECT_EQ(all(true), want);
}

TEST_F(AnswerTest, LogprobsAreOfTheModelBeforeAnyTemperature) {
  Make({.max_tokens = 5, .logprobs = 2});
  ASSERT_TRUE(Draw(std::vector<float>{std::log(1.0f), std::log(2.0f), std::log(1.0f)}).has_value());
  const NewToken said = Said();
  EXPECT_EQ(said.token, 1);
  EXPECT_NEAR(said.logprob, std::log(0.5), 1e-6);
  ASSERT_EQ(said.likeliest.size(), 2u);
  EXPECT_EQ(said.likeliest[0].token, 1);
  EXPECT_EQ(said.likeliest[1].token, 0);  // of equal ones the smallest id
  EXPECT_NEAR(said.likeliest[1].logprob, std::log(0.25), 1e-6);
}

TEST_F(AnswerTest, RulesChangeWhatIsDrawnAndNothingThatIsSaidOfTheModel) {
  const std::vector<float> logits = {0, 3, 2};
  Answer& answer = Make({.max_tokens = 9,
                         .stop_tokens = {0},
                         .rules = {.presence_penalty = 2, .tokens_min = 3, .bias = {{0, 3.5f}}},
                         .logprobs = 1});
  EXPECT_EQ(Draw(logits)->token, 1);  // 0 would be likelier, but it is too early to stop
  EXPECT_EQ(Draw(logits)->token, 2);  // 1 has been said
  EXPECT_EQ(Draw(logits)->token, 1);
  EXPECT_EQ(Draw(logits)->ends, Finish::kStop);
  Blake2b<16> digest;
  for (int i = 0; i < 4; ++i) {
    digest.Update(std::as_bytes(std::span(logits)));
    EXPECT_EQ(Said().likeliest[0].token, 1);
  }
  EXPECT_EQ(answer.Take(Finish::kStop).logits_digest, digest.Finish());
}

TEST_F(AnswerTest, TheTokensOfAPromptAreSaidWithTheLogitsBeforeThem) {
  Answer& answer = Make({.max_tokens = 0, .logprobs = 1});
  const std::vector<TokenId> tokens = {1, 0};
  const float low = std::log(1.0f);
  const float high = std::log(3.0f);
  ASSERT_TRUE(answer.SayPrompt(tokens, 1, std::vector<float>{low, high, low, high}).has_value());
  const auto said = std::get<PromptTokens>(mailbox_.Next(id_).value()).tokens;
  ASSERT_EQ(said.size(), 2u);
  EXPECT_EQ(said[0].token, 1);
  EXPECT_NEAR(said[0].logprob, std::log(0.75), 1e-6);
  EXPECT_NEAR(said[1].logprob, std::log(0.25), 1e-6);
  EXPECT_EQ(said[1].likeliest[0].token, 1);
  const auto bad = answer.SayPrompt(tokens, 7, std::vector<float>{low, high, low, NAN});
  EXPECT_NE(bad.error().message.find("position 7"), std::string::npos);
}

TEST_F(AnswerTest, TimesCountFromWhenItWasSubmitted) {
  clock_.Advance(1000);
  Answer& answer = Make({.max_tokens = 5});
  const std::vector<float> logits = {0, 1};
  for (const uint64_t us : {5000, 300, 100}) {
    clock_.Advance(us);
    ASSERT_TRUE(Draw(logits).has_value());
  }
  clock_.Advance(9999);
  const Response response = answer.Take(Finish::kLength);
  EXPECT_DOUBLE_EQ(response.ttft_ms, 5.0);
  EXPECT_DOUBLE_EQ(response.ms_per_token, 0.2);
}

TEST_F(AnswerTest, TheSamplerOfASessionGoesOnFromOneAnswerToTheNext) {
  const model::SamplingOptions sampling{.temperature = 1, .seed = 3};
  const std::vector<float> logits(50, 0.0f);
  model::Sampler alone(sampling);
  Answer& first = Make({.max_tokens = 100, .sampling = sampling});
  for (int i = 0; i < 10; ++i) EXPECT_EQ(Draw(logits)->token, alone.Next(logits));
  const model::SamplerState state = first.sampler();
  Answer& second = Make({.max_tokens = 100, .sampling = {.temperature = 1, .seed = 99}});
  second.SetSampler(state);
  for (int i = 0; i < 10; ++i) EXPECT_EQ(Draw(logits)->token, alone.Next(logits));
}

}  // namespace
}  // namespace quire::serve
