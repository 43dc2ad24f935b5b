// What a caller hears besides tokens: how likely they were, why tokens were missing, when to look.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <vector>

#include "serve/driver.h"
#include "serve/test_util.h"

namespace quire::serve {
namespace {

TEST_F(EngineTest, LogprobsAreThoseOfTheLogits) {
  Make(64);
  const Request request{.prompt = SomeTokens(40, 1),
                        .max_tokens = 5,
                        .sampling = {.temperature = 1.5f, .seed = 9},
                        .all_logits = true,
                        .logprobs = 3};
  std::vector<NewToken> tokens;
  std::vector<float> rows;
  const auto on_event = [&](size_t, const Event& event) {
    if (const auto* token = std::get_if<NewToken>(&event)) tokens.push_back(*token);
    if (const auto* logits = std::get_if<Logits>(&event)) {
      rows.insert(rows.end(), logits->rows.begin(), logits->rows.end());
    }
    return true;
  };
  RunOne(request, on_event);
  ASSERT_EQ(tokens.size(), 5u);
  ASSERT_EQ(rows.size(), (40 + 4) * kTestVocab);
  for (size_t i = 0; i < tokens.size(); ++i) {
    const auto row = std::span(rows).subspan((39 + i) * kTestVocab, kTestVocab);
    double sum = 0;
    for (const float logit : row) sum += std::exp(static_cast<double>(logit));
    const auto expected = [&](TokenId token) {
      return row[static_cast<size_t>(token)] - std::log(sum);
    };
    EXPECT_NEAR(tokens[i].logprob, expected(tokens[i].token), 1e-4);
    ASSERT_EQ(tokens[i].likeliest.size(), 3u);
    EXPECT_EQ(tokens[i].likeliest[0].token, model::Greedy(row));
    for (size_t k = 0; k < 3; ++k) {
      EXPECT_NEAR(tokens[i].likeliest[k].logprob, expected(tokens[i].likeliest[k].token), 1e-4);
      if (k > 0) {
        EXPECT_LE(tokens[i].likeliest[k].logprob, tokens[i].likeliest[k - 1].logprob);
      }
    }
  }
}

/// Weights of which all logits come out as 0.
class NoLogits final : public model::TensorSource {
 public:
  explicit NoLogits(const model::ModelConfig& config) : random_(config, ComputeType::kF32, 7) {}

  const std::string& path() const override { return random_.path(); }
  std::span<const model::TensorInfo> tensors() const override { return random_.tensors(); }
  Result<void> Read(const model::TensorInfo& tensor, uint64_t offset_bytes,
                    std::span<std::byte> out) const override {
    QUIRE_TRY(random_.Read(tensor, offset_bytes, out));
    if (tensor.name == "model.norm.weight") std::ranges::fill(out, std::byte{0});
    return {};
  }

 private:
  const model::RandomTensors random_;
};

TEST_F(EngineTest, OfEquallyLikelyTokensTheSmallestIdsAreNamed) {
  const model::ModelConfig config = model::SmallConfig();
  model_ = model::Model::Create(config, NoLogits(config), {}).value();
  MakeWithModel(64);
  for (const uint32_t likeliest : {0u, 4u, kTestVocab, kTestVocab + 1}) {
    const size_t named = std::min(likeliest, kTestVocab);
    RunOne({.prompt = SomeTokens(40, 1), .max_tokens = 1, .logprobs = likeliest},
           [&](size_t, const Event& event) {
             if (const auto* token = std::get_if<NewToken>(&event)) {
               EXPECT_NEAR(token->logprob, -std::log(kTestVocab), 1e-6);
               EXPECT_EQ(token->likeliest.size(), named);
               for (size_t i = 0; i < token->likeliest.size(); ++i) {
                 EXPECT_EQ(token->likeliest[i].token, static_cast<TokenId>(i));
                 EXPECT_NEAR(token->likeliest[i].logprob, -std::log(kTestVocab), 1e-6);
               }
             }
             return true;
           });
  }
}

TEST_F(EngineTest, MoreRequestsThanTheQueueTakesAreAllAnswered) {
  engine_options_.requests_max = 2;
  Make(64);
  std::vector<Request> requests;
  for (uint64_t i = 0; i < 5; ++i) {
    requests.push_back({.prompt = SomeTokens(20 + i, 1 + i), .max_tokens = 3});
  }
  requests[3].prompt = {-1};
  const std::vector<Response> responses = Run(requests);
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(responses[i].prompt_tokens, requests[i].prompt.size());
    EXPECT_EQ(responses[i].finish, i == 3 ? Finish::kFailed : Finish::kLength);
  }
  // One that is full of requests of others takes none.
  for (uint64_t i = 0; i < 2; ++i) {
    ASSERT_TRUE(engine_->Submit({.prompt = SomeTokens(20, 1)}).has_value());
  }
  EXPECT_EQ(RunOne(requests[0]).error.code, ErrorCode::kNoSpace);
}

TEST_F(EngineTest, WithoutLogprobsNoneAreComputed) {
  Make(64);
  RunOne({.prompt = SomeTokens(40, 1), .max_tokens = 3}, [](size_t, const Event& event) {
    if (const auto* token = std::get_if<NewToken>(&event)) {
      EXPECT_EQ(token->logprob, 0.0f);
      EXPECT_TRUE(token->likeliest.empty());
    }
    return true;
  });
}

TEST_F(EngineTest, AResponseAccountsForEveryTokenThatWasNotFound) {
  Make(64);
  std::vector<TokenId> prompt = SomeTokens(70, 1);
  const Response first = RunOne({.prompt = prompt, .max_tokens = 1});
  using Runs = std::vector<MissRun>;
  EXPECT_EQ(first.missing, (Runs{{.reason = MissReason::kNeverSeen, .tokens = 64},
                                 {.reason = MissReason::kPartialBlock, .tokens = 6}}));
  const Response again = RunOne({.prompt = prompt, .max_tokens = 1});
  EXPECT_EQ(again.missing, (Runs{{.reason = MissReason::kPartialBlock, .tokens = 6}}));
  const Response unasked = RunOne({.prompt = prompt, .max_tokens = 1, .reuse = false});
  EXPECT_EQ(unasked.missing, (Runs{{.reason = MissReason::kNotAsked, .tokens = 70}}));
  EXPECT_EQ(unasked.miss_reason, MissReason::kNotAsked);
}

TEST_F(EngineTest, WhoCannotWaitIsToldOfEveryEvent) {
  std::mutex mutex;
  std::map<RequestId, uint64_t> told;
  engine_options_.on_event = [&](RequestId id) {
    const std::lock_guard lock(mutex);
    ++told[id];
  };
  Make(64);
  Driver driver(*engine_);
  for (int i = 0; i < 3; ++i) {
    const RequestId id = engine_->Submit({.prompt = SomeTokens(40, 1), .max_tokens = 6}).value();
    uint64_t events = 0;
    while (engine_->Await(id)) ++events;
    // The last call comes after its event can be taken.
    for (int wait = 0; wait < 10'000; ++wait) {
      {
        const std::lock_guard lock(mutex);
        if (told[id] == events) break;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    const std::lock_guard lock(mutex);
    EXPECT_EQ(told[id], events);
    EXPECT_GE(events, 8u);  // a progress, 6 tokens, the response
  }
  for (int wait = 0; wait < 10'000 && driver.stats().decode_tokens < 15; ++wait) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_EQ(driver.stats().decode_tokens, 15u);
  EXPECT_EQ(driver.stats().running, 0u);
}

}  // namespace
}  // namespace quire::serve
