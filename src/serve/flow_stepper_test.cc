#include "serve/flow_stepper.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "model/step_flow.h"
#include "serve/test_util.h"

namespace quire::serve {
namespace {

// Computes each step when it begins, and gives its logits when it is finished.
class LateFlow final : public model::StepFlow {
 public:
  LateFlow(model::Model& model, AttentionBackend& attention, Executor& executor, uint32_t stages)
      : model_(model), attention_(attention), executor_(executor), stages_(stages) {}

  uint32_t stages() const override { return stages_; }

  Result<void> Begin(std::span<const model::StepItem> items) override {
    if (begun == fail_at) return Fail(ErrorCode::kIo, "rank 1 is lost");
    ++begun;
    Late& late = under_way_.emplace_back();
    std::vector<model::StepItem> own(items.begin(), items.end());
    most_items = std::max(most_items, own.size());
    const auto is_single = [](const model::StepItem& item) { return item.tokens.size() == 1; };
    const auto single = static_cast<size_t>(std::ranges::count_if(own, is_single));
    most_single_tokens = std::max(most_single_tokens, single);
    for (model::StepItem& item : own) {
      if (item.logits == nullptr) continue;
      const uint64_t rows = item.all_logits ? item.tokens.size() : 1;
      late.push_back({.to = item.logits, .values = {}});
      late.back().values.resize(rows * model_.config().vocab);
      item.logits = late.back().values.data();
    }
    most_under_way = std::max(most_under_way, under_way_.size());
    return model_.StepStage(own, {}, attention_, executor_);
  }

  Result<void> Finish() override {
    const Late late = std::move(under_way_.front());
    under_way_.pop_front();
    if (finished++ == fail_finish_at) return Fail(ErrorCode::kIo, "rank 2 is lost");
    for (const Row& row : late) std::ranges::copy(row.values, row.to);
    return {};
  }

  size_t begun = 0;
  size_t finished = 0;
  size_t fail_at = SIZE_MAX;
  size_t fail_finish_at = SIZE_MAX;
  size_t most_under_way = 0;
  size_t most_items = 0;
  size_t most_single_tokens = 0;

 private:
  struct Row {
    float* to;
    std::vector<float> values;
  };
  using Late = std::deque<Row>;

  model::Model& model_;
  AttentionBackend& attention_;
  Executor& executor_;
  const uint32_t stages_;
  std::deque<Late> under_way_;
};

class FlowStepperTest : public EngineTest {
 protected:
  void MakeFlow(uint32_t stages, uint64_t blocks = 64) {
    Make(blocks);
    engine_.reset();
    flow_ = std::make_unique<LateFlow>(*model_, *attention_, *executor_, stages);
    engine_ = Engine::Create({.model = *model_,
                              .cache = *cache_,
                              .attention = *attention_,
                              .executor = *executor_,
                              .clock = clock_,
                              .flow = flow_.get()},
                             Identity{.weights = model_->fingerprint(), .domain = {.name = "test"}},
                             engine_options_)
                  .value();
  }

  static std::vector<Request> FourRequests() {
    std::vector<Request> requests;
    for (uint64_t seed = 0; seed < 4; ++seed) {
      requests.push_back({.prompt = SomeTokens(50 + 31 * seed, seed), .max_tokens = 9});
    }
    requests[1].all_logits = true;
    return requests;
  }

  std::unique_ptr<LateFlow> flow_;
};

TEST_F(FlowStepperTest, AnswersAreThoseOfOneStepAfterTheOther) {
  Make(64);
  const std::vector<Response> expected = Run(FourRequests());
  for (const uint32_t stages : {1u, 2u, 3u, 4u}) {
    MakeFlow(stages);
    for (const bool again : {false, true}) {
      const std::vector<Response> got = Run(FourRequests());
      for (size_t i = 0; i < got.size(); ++i) {
        EXPECT_EQ(got[i].finish, Finish::kLength) << got[i].error.message;
        EXPECT_EQ(got[i].tokens, expected[i].tokens) << stages << " stages, request " << i;
        EXPECT_EQ(got[i].logits_digest, expected[i].logits_digest);
        EXPECT_EQ(got[i].reused_tokens > 0, again);
        EXPECT_EQ(got[i].reused_tokens + got[i].computed_tokens, got[i].prompt_tokens);
      }
    }
    EXPECT_EQ(flow_->finished, flow_->begun);
    EXPECT_EQ(flow_->most_under_way, stages + 1);
  }
}

TEST_F(FlowStepperTest, StagesShareThoseThatGenerate) {
  MakeFlow(2);
  std::vector<Request> requests = FourRequests();
  for (Request& request : requests) request.prompt.resize(8);  // all of them in one step
  Run(requests);
  // One step reads the prompts, whose tokens fill a chunk; then there are two requests a step.
  EXPECT_EQ(flow_->most_items, 4u);
  EXPECT_EQ(flow_->most_single_tokens, 2u);
  EXPECT_EQ(engine_->stats().steps, 1 + 2 * 8u);
}

TEST_F(FlowStepperTest, ARequestThatIsCancelledMeanwhileLeavesTheOthersAlone) {
  Make(64);
  const std::vector<Response> expected = Run(FourRequests());
  for (size_t steps = 1; steps < 30; ++steps) {
    MakeFlow(3);
    std::vector<RequestId> ids;
    for (Request& request : FourRequests()) ids.push_back(engine_->Submit(request).value());
    bool cancelled = false;
    while (engine_->Tick().worked) {
      if (flow_->begun < steps || std::exchange(cancelled, true)) continue;
      engine_->Cancel(ids[2]);
    }
    for (size_t i = 0; i < ids.size(); ++i) {
      std::optional<Response> response;
      while (auto event = engine_->Next(ids[i])) {
        if (auto* last = std::get_if<Response>(&*event)) response = std::move(*last);
      }
      ASSERT_TRUE(response.has_value());
      if (i == 2 && response->finish == Finish::kCancelled) continue;
      EXPECT_EQ(response->tokens, expected[i].tokens) << steps << " steps, request " << i;
    }
    EXPECT_EQ(cache_->BlockMap().find_first_of("pS"), std::string::npos);
  }
}

TEST_F(FlowStepperTest, WhatFailsEndsTheRequestsOfItsStep) {
  for (const bool begins : {true, false}) {
    for (size_t at = 0; at < 20; ++at) {
      MakeFlow(2);
      (begins ? flow_->fail_at : flow_->fail_finish_at) = at;
      size_t failed = 0;
      for (const Response& response : Run(FourRequests())) {
        if (response.finish != Finish::kFailed) continue;
        ++failed;
        EXPECT_EQ(response.error.code, ErrorCode::kIo);
        EXPECT_NE(response.error.message.find("is lost"), std::string::npos);
      }
      EXPECT_GT(failed, 0u) << at;
      EXPECT_EQ(cache_->BlockMap().find_first_of("pS"), std::string::npos);
    }
  }
}

TEST_F(FlowStepperTest, AShareOfAPromptCannotBeKept) {
  MakeFlow(2);
  const auto refused = engine_->Submit({.prompt = SomeTokens(50, 1), .keep = {.share = 0.5}});
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kUnsupported);
}

}  // namespace
}  // namespace quire::serve
