#include "model/logit_rules.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace quire::model {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();
using Logits = std::vector<float>;
using Tokens = std::vector<TokenId>;

Logits Applied(const LogitRules& rules, const Logits& logits, const LogitContext& context) {
  LogitProcessor processor;
  const auto changed = processor.Apply(rules, logits, context);
  return {changed.begin(), changed.end()};
}

TEST(LogitRulesTest, DefaultsLeaveTheLogitsWhereTheyAre) {
  const Logits logits = {1, 2};
  LogitProcessor processor;
  EXPECT_EQ(processor.Apply({}, logits, {}).data(), logits.data());
}

TEST(LogitRulesTest, RepetitionCountsThePromptAndBothSigns) {
  const Tokens prompt = {0};
  const Tokens answer = {1, 3};
  EXPECT_EQ(Applied({.repetition_penalty = 2}, {4, -4, 4, 0}, {.prompt = prompt, .answer = answer}),
            (Logits{2, -8, 4, 0}));
}

TEST(LogitRulesTest, PresenceAndFrequencyCountTheAnswerAlone) {
  const Tokens prompt = {0};
  const Tokens answer = {1, 2, 1};
  const LogitContext held{.prompt = prompt, .answer = answer};
  EXPECT_EQ(Applied({.presence_penalty = 1}, {5, 5, 5, 5}, held), (Logits{5, 4, 4, 5}));
  EXPECT_EQ(Applied({.frequency_penalty = 1}, {5, 5, 5, 5}, held), (Logits{5, 3, 4, 5}));
  EXPECT_EQ(Applied({.presence_penalty = -1, .frequency_penalty = 0.5f}, {5, 5, 5, 5}, held),
            (Logits{5, 5, 5.5f, 5}));
}

TEST(LogitRulesTest, NoStopTokenBeforeTheLeastLength) {
  const Tokens stops = {1, 3, 99, -1};
  const Tokens two = {0, 0};
  const Tokens three = {0, 0, 0};
  const LogitRules rules{.tokens_min = 3};
  EXPECT_EQ(Applied(rules, {1, 2, 3, 4}, {.answer = two, .stop_tokens = stops}),
            (Logits{1, kNever, 3, kNever}));
  EXPECT_EQ(Applied(rules, {1, 2, 3, 4}, {.answer = three, .stop_tokens = stops}),
            (Logits{1, 2, 3, 4}));
}

TEST(LogitRulesTest, WhatIsOutOfRangeIsNamed) {
  const auto message = [](const LogitRules& rules) {
    const auto checked = CheckLogitRules(rules, 10);
    return checked ? std::string() : checked.error().message;
  };
  EXPECT_EQ(message({}), "");
  EXPECT_EQ(message({.bias = {{.token = 9, .bias = -100}}}), "");
  EXPECT_NE(message({.repetition_penalty = 0}).find("repetition_penalty"), std::string::npos);
  EXPECT_NE(message({.presence_penalty = NAN}).find("presence_penalty"), std::string::npos);
  EXPECT_NE(message({.frequency_penalty = INFINITY}).find("frequency_penalty"), std::string::npos);
  EXPECT_NE(message({.bias = {{.token = 10}}}).find("token 10"), std::string::npos);
  EXPECT_NE(message({.bias = {{.token = -1}}}).find("token -1"), std::string::npos);
}

// The rules once more, token by token, from the formulas of vLLM and OpenAI.
RC_GTEST_PROP(LogitRulesProp, EachTokenByItself, ()) {
  constexpr int kVocab = 8;
  const auto token = rc::gen::inRange<TokenId>(0, kVocab);
  const auto tokens = rc::gen::container<Tokens>(token);
  const Tokens prompt = *tokens;
  const Tokens answer = *tokens;
  const Tokens stops = *tokens;
  const auto tenths = [](int least, int most) {
    return static_cast<float>(*rc::gen::inRange(least, most)) / 10.0f;
  };
  Logits logits;
  for (int i = 0; i < kVocab; ++i) logits.push_back(tenths(-50, 50));
  LogitRules rules{.repetition_penalty = tenths(1, 30),
                   .presence_penalty = tenths(-20, 21),
                   .frequency_penalty = tenths(-20, 21),
                   .tokens_min = *rc::gen::inRange<uint32_t>(0, 4),
                   .bias = {{.token = *token, .bias = tenths(-1000, 1000)}}};
  const Logits changed =
      Applied(rules, logits, {.prompt = prompt, .answer = answer, .stop_tokens = stops});
  for (TokenId id = 0; id < kVocab; ++id) {
    const auto in = [id](const Tokens& list) { return std::ranges::count(list, id); };
    float expected = logits[static_cast<size_t>(id)];
    if (answer.size() < rules.tokens_min && in(stops) > 0) expected = kNever;
    if (rules.bias[0].token == id) expected += rules.bias[0].bias;
    if (in(prompt) + in(answer) > 0 && rules.repetition_penalty != 1.0f) {
      expected =
          expected > 0 ? expected / rules.repetition_penalty : expected * rules.repetition_penalty;
    }
    const auto times = in(answer);
    if (times > 0) {
      expected -= rules.frequency_penalty * static_cast<float>(times) + rules.presence_penalty;
    }
    RC_ASSERT(changed[static_cast<size_t>(id)] == expected);
  }
}

}  // namespace
}  // namespace quire::model
