#include "serve/http/api_request.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

namespace quire::serve::http {
namespace {

TEST(ParseCall, ReadsACompletion) {
  const ApiCall call = ParseCall(Endpoint::kCompletions, R"({
    "model": "tiny", "prompt": ["a", [1, 2]], "n": 2, "max_tokens": 7, "temperature": 0.5,
    "top_p": 0.9, "top_k": 40, "seed": -1, "stop": "END", "logprobs": 3, "stream": true,
    "stream_options": {"include_usage": true}, "user": "me", "presence_penalty": 0.0,
    "logit_bias": {}, "echo": false, "reuse": false})")
                           .value();
  EXPECT_EQ(call.model, "tiny");
  ASSERT_EQ(call.prompts.size(), 2u);
  EXPECT_EQ(std::get<std::string>(call.prompts[0]), "a");
  EXPECT_EQ(std::get<std::vector<TokenId>>(call.prompts[1]), (std::vector<TokenId>{1, 2}));
  EXPECT_EQ(call.choices, 2u);
  EXPECT_EQ(call.max_tokens, 7u);
  EXPECT_EQ(call.sampling.temperature, 0.5f);
  EXPECT_EQ(call.sampling.top_p, 0.9f);
  EXPECT_EQ(call.sampling.top_k, 40u);
  EXPECT_EQ(call.sampling.seed, UINT64_MAX);
  EXPECT_EQ(call.stop, std::vector<std::string>{"END"});
  EXPECT_EQ(call.logprobs, 3u);
  EXPECT_TRUE(call.stream);
  EXPECT_TRUE(call.include_usage);
  EXPECT_FALSE(call.reuse);
}

TEST(ParseCall, WhatIsNotSaidIsAbsent) {
  const ApiCall call = ParseCall(Endpoint::kCompletions, R"({"prompt": "a", "n": null})").value();
  EXPECT_EQ(call.choices, 1u);
  EXPECT_FALSE(call.max_tokens || call.sampling != SaidSampling{} || call.logprobs);
  EXPECT_FALSE(call.stream || call.include_usage);
  EXPECT_TRUE(call.reuse);
}

TEST(ParseCall, ReadsAChat) {
  const ApiCall call = ParseCall(Endpoint::kChat, R"({"messages": [
      {"role": "system", "content": "Be brief."},
      {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
       "name": "me"}, {"role": "assistant", "content": null}],
      "max_completion_tokens": 9, "logprobs": true, "top_logprobs": 2})")
                           .value();
  EXPECT_EQ(Dump(call.messages), R"([{"role":"system","content":"Be brief."},)"
                                 R"({"role":"user","content":"ab","name":"me"},)"
                                 R"({"role":"assistant","content":""}])");
  EXPECT_EQ(call.max_tokens, 9u);
  EXPECT_EQ(call.logprobs, 2u);
}

TEST(ParseCall, ASessionMayReadOnlyAndHasItsOwnSampling) {
  const ApiCall call =
      ParseCall(Endpoint::kCompletions, R"({"session": "s", "max_tokens": 0})").value();
  EXPECT_EQ(call.max_tokens, 0u);
  EXPECT_TRUE(std::get<std::vector<TokenId>>(call.prompts.at(0)).empty());
  for (const char* const body :
       {R"({"session": "s", "temperature": 1})", R"({"session": "s", "min_p": 0.1})",
        R"({"session": "s", "prompt": ["a", "b"]})"}) {
    EXPECT_EQ(ParseCall(Endpoint::kCompletions, body).error().param, "session") << body;
  }
}

std::string Times(size_t count, const std::string& text) {
  std::string all;
  for (size_t i = 0; i < count; ++i) all += (i == 0 ? "" : ", ") + text;
  return "[" + all + "]";
}

// The last that is allowed, and the first that is not.
TEST(ParseCall, ListsAndNumbersMayBeSoLarge) {
  const auto complaint = [](Endpoint endpoint, const std::string& fields) {
    const auto call = ParseCall(endpoint, "{" + fields + "}");
    return call ? std::string() : call.error().param;
  };
  const auto with = [&](const std::string& more) {
    return complaint(Endpoint::kCompletions, R"("prompt": "a", )" + more);
  };
  EXPECT_EQ(with(R"("n": 128)"), "");
  EXPECT_EQ(with(R"("n": 129)"), "n");
  EXPECT_EQ(with(R"("stop": )" + Times(16, "\"a\"")), "");
  EXPECT_EQ(with(R"("stop": )" + Times(17, "\"a\"")), "stop");
  EXPECT_EQ(with(R"("stop": ")" + std::string(1024, 'a') + "\""), "");
  EXPECT_EQ(with(R"("stop": ")" + std::string(1025, 'a') + "\""), "stop");
  EXPECT_EQ(with(R"("logprobs": 20)"), "");
  EXPECT_EQ(with(R"("logprobs": 21)"), "logprobs");
  EXPECT_EQ(with(R"("max_tokens": 1)"), "");
  EXPECT_EQ(with(R"("max_tokens": 4294967295)"), "");
  EXPECT_EQ(with(R"("max_tokens": 4294967296)"), "max_tokens");
  for (const char* const field :
       {R"("temperature": 0)", R"("temperature": 100)", R"("top_p": 0)", R"("top_p": 1)",
        R"("top_k": 0)", R"("top_k": 4294967295)", R"("logprobs": 0)"}) {
    EXPECT_EQ(with(field), "") << field;
  }
  EXPECT_EQ(with(R"("temperature": 100.1)"), "temperature");
  EXPECT_EQ(with(R"("temperature": -0.1)"), "temperature");
  EXPECT_EQ(with(R"("top_p": 1.01)"), "top_p");
  EXPECT_EQ(with(R"("top_p": -0.01)"), "top_p");
  EXPECT_EQ(with(R"("top_k": 4294967296)"), "top_k");
  EXPECT_EQ(with(R"("top_k": -2)"), "top_k");
  for (const char* const name : {"presence_penalty", "frequency_penalty"}) {
    EXPECT_EQ(with(fmt::format(R"("{}": 2)", name)), "");
    EXPECT_EQ(with(fmt::format(R"("{}": 2.1)", name)), name);
    EXPECT_EQ(with(fmt::format(R"("{}": -2)", name)), "");
    EXPECT_EQ(with(fmt::format(R"("{}": -2.1)", name)), name);
  }
  EXPECT_EQ(with(R"("repetition_penalty": 0.01)"), "");
  EXPECT_EQ(with(R"("repetition_penalty": 0)"), "repetition_penalty");
  EXPECT_EQ(with(R"("repetition_penalty": 100.5)"), "repetition_penalty");
  EXPECT_EQ(with(R"("min_p": 1)"), "");
  EXPECT_EQ(with(R"("min_p": 1.1)"), "min_p");
  EXPECT_EQ(with(R"("logit_bias": {"1": 100, "2": -100})"), "");
  EXPECT_EQ(with(R"("logit_bias": {"1": 100.1})"), "logit_bias");
  EXPECT_EQ(with(R"("logit_bias": {"one": 1})"), "logit_bias");
  EXPECT_EQ(with(R"("logit_bias": {"1": "1"})"), "logit_bias");
  EXPECT_EQ(with(R"("logit_bias": [1])"), "logit_bias");
  EXPECT_EQ(with(R"("max_tokens": 5, "min_tokens": 5)"), "");
  EXPECT_EQ(with(R"("max_tokens": 5, "min_tokens": 6)"), "min_tokens");
  EXPECT_EQ(with(R"("stop_token_ids": )" + Times(16, "7")), "");
  EXPECT_EQ(with(R"("stop_token_ids": )" + Times(17, "7")), "stop_token_ids");
  EXPECT_EQ(with(R"("stop_token_ids": [-1])"), "stop_token_ids");
  EXPECT_EQ(with(R"("echo": true, "max_tokens": 0)"), "");
  const auto prompts = [&](size_t count, const std::string& more) {
    return complaint(Endpoint::kCompletions, more + R"("prompt": )" + Times(count, "\"a\""));
  };
  EXPECT_EQ(prompts(128, ""), "");
  EXPECT_EQ(prompts(129, ""), "prompt");
  EXPECT_EQ(prompts(32, R"("n": 4, )"), "");
  EXPECT_EQ(prompts(33, R"("n": 4, )"), "n");
  const std::string three = R"({"prompt": ["a", "a", "a"]})";
  EXPECT_TRUE(ParseCall(Endpoint::kCompletions, three, 3).has_value());
  EXPECT_EQ(ParseCall(Endpoint::kCompletions, three, 2).error().param, "prompt");
  const auto messages = [&](size_t count) {
    const std::string message = R"({"role": "user", "content": "a"})";
    return complaint(Endpoint::kChat, R"("messages": )" + Times(count, message));
  };
  EXPECT_EQ(messages(4096), "");
  EXPECT_EQ(messages(4097), "messages");
}

TEST(ParseCall, ReadsWhatChangesTheLogits) {
  const ApiCall call = ParseCall(Endpoint::kCompletions, R"({"prompt": "a", "max_tokens": 9,
    "repetition_penalty": 1.5, "presence_penalty": -1, "frequency_penalty": 0.5, "min_p": 0.25,
    "min_tokens": 3, "logit_bias": {"7": -100, "5": 1.5}, "ignore_eos": true,
    "stop_token_ids": [4, 2], "echo": true, "top_k": -1})")
                           .value();
  EXPECT_EQ(call.rules.repetition_penalty, 1.5f);
  EXPECT_EQ(call.rules.presence_penalty, -1.0f);
  EXPECT_EQ(call.rules.frequency_penalty, 0.5f);
  EXPECT_EQ(call.sampling.min_p, 0.25f);
  EXPECT_EQ(call.rules.tokens_min, 3u);
  ASSERT_EQ(call.rules.bias.size(), 2u);
  EXPECT_EQ(call.rules.bias[0].token, 5);
  EXPECT_EQ(call.rules.bias[0].bias, 1.5f);
  EXPECT_TRUE(call.ignore_eos);
  EXPECT_EQ(call.stop_tokens, (std::vector<TokenId>{4, 2}));
  EXPECT_TRUE(call.echo);
  EXPECT_EQ(call.sampling.top_k, 0u);
}

TEST(ParseCall, ReadsWhatIsHandedOver) {
  const auto call = [](const std::string& params) {
    const std::string body = R"({"prompt": "a", "kv_transfer_params": )" + params + "}";
    return ParseCall(Endpoint::kCompletions, body).value();
  };
  EXPECT_TRUE(call(R"({"do_remote_prefill": true})").handed_over);
  EXPECT_FALSE(call(R"({"do_remote_prefill": true})").publishes);
  EXPECT_FALSE(call(R"({"do_remote_prefill": null})").handed_over);
  EXPECT_FALSE(call(R"({"do_remote_decode": true})").handed_over);
  EXPECT_TRUE(call(R"({"do_remote_decode": true})").publishes);
  EXPECT_FALSE(call("{}").handed_over);
}

// What clients of OpenAI, vLLM and llama.cpp send unasked.
TEST(ParseCall, ValuesThatChangeNothingAreTaken) {
  const std::string neutral =
      R"("repetition_penalty": 1.0, "top_k": -1, "min_p": 0, "logit_bias": null,
    "ignore_eos": false, "stop_token_ids": [], "response_format": {"type": "text"}, "n": 1,
    "use_beam_search": false, "length_penalty": 1.0, "skip_special_tokens": true, "n_probs": 0,
    "presence_penalty": 0.0, "user": "me", "store": false, "metadata": {}, "cache_prompt": true,
    "detokenize": true, "bad_words": [], "repeat_penalty": 1.0, "id_slot": -1, "guided_json": null,
    "stream": true, "stream_options": {"continuous_usage_stats": false}})";
  for (const std::string& text :
       {std::string(R"("prompt": "a")"),
        std::string(
            R"("messages": [{"role": "user", "content": "a"}], "chat_template_kwargs": {})")}) {
    const Endpoint endpoint = text[1] == 'p' ? Endpoint::kCompletions : Endpoint::kChat;
    const auto call = ParseCall(endpoint, "{" + text + ", " + neutral);
    ASSERT_TRUE(call.has_value()) << call.error().message;
    EXPECT_TRUE(call->rules.change_nothing());
  }
  EXPECT_TRUE(ParseCall(Endpoint::kChat,
                        R"({"messages": [{"role": "user", "content": "a"}], "top_logprobs": 0})"));
}

// The bodies of `vllm bench serve` as it sends them by default.
TEST(ParseCall, TakesWhatVllmsBenchmarkSends) {
  EXPECT_TRUE(
      ParseCall(Endpoint::kCompletions,
                R"({"model": "m", "prompt": "a", "repetition_penalty": 1.0, "max_tokens": 128,
                            "logprobs": null, "stream": true,
                            "stream_options": {"include_usage": true},
                            "ignore_eos": true, "temperature": 0.0})")
          .has_value());
  EXPECT_TRUE(ParseCall(Endpoint::kChat,
                        R"({"model": "m", "messages": [{"role": "user", "content":
                            [{"type": "text", "text": "a"}]}],
                            "max_completion_tokens": 128, "stream": true,
                            "stream_options": {"include_usage": true}, "ignore_eos": true})")
                  .has_value());
}

TEST(ParseCall, MessagesMayCallToolsAndReason) {
  const auto parsed = ParseCall(Endpoint::kChat, R"({"messages": [
      {"role": "user", "content": "Weather?"},
      {"role": "assistant", "content": null, "reasoning_content": "Hm.", "tool_calls": [
        {"id": "c1", "type": "function",
         "function": {"name": "get", "arguments": "{\"town\": \"Rome\", \"day\": 1}"}},
        {"id": "c2", "type": "function", "function": {"name": "ask", "arguments": "not JSON"}}]},
      {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
      {"role": "assistant", "content": "Sunny.", "tool_calls": []}]})");
  ASSERT_TRUE(parsed.has_value()) << parsed.error().message;
  const ApiCall& call = *parsed;
  const OrderedJson& asked = call.messages[1];
  EXPECT_EQ(asked["reasoning_content"], "Hm.");
  // An object in the order of the client's text.
  EXPECT_EQ(Dump(asked["tool_calls"][0]), R"({"id":"c1","type":"function","function":)"
                                          R"({"name":"get","arguments":{"town":"Rome","day":1}}})");
  EXPECT_EQ(asked["tool_calls"][1]["function"]["arguments"], "not JSON");
  EXPECT_EQ(call.messages[2]["tool_call_id"], "c1");
  EXPECT_FALSE(call.messages[3].contains("tool_calls"));
}

struct BadBody {
  Endpoint endpoint;
  std::string body;
  std::string param;
};

class BadCall : public testing::TestWithParam<BadBody> {};

TEST_P(BadCall, IsA400ThatNamesTheField) {
  const auto call = ParseCall(GetParam().endpoint, GetParam().body);
  ASSERT_FALSE(call.has_value()) << GetParam().body;
  EXPECT_EQ(call.error().status, 400u);
  EXPECT_EQ(call.error().type, "invalid_request_error");
  EXPECT_EQ(call.error().param, GetParam().param) << call.error().message;
}

constexpr Endpoint kC = Endpoint::kCompletions;
constexpr Endpoint kM = Endpoint::kChat;

INSTANTIATE_TEST_SUITE_P(
    Each, BadCall,
    testing::Values(
        BadBody{kC, "", ""}, BadBody{kC, "{", ""}, BadBody{kC, "[]", ""},
        BadBody{kC, R"({"prompt": "a"} x)", ""}, BadBody{kC, "{}", "prompt"},
        BadBody{kC, R"({"prompt": 1})", "prompt"}, BadBody{kC, R"({"prompt": []})", "prompt"},
        BadBody{kC, R"({"prompt": [-1]})", "prompt"}, BadBody{kC, R"({"prompt": [1.5]})", "prompt"},
        BadBody{kC, R"({"prompt": [4294967296]})", "prompt"},
        BadBody{kC, R"({"prompt": ["a", {}]})", "prompt"},
        BadBody{kC, R"({"prompt": "a", "max_tokens": 0})", "max_tokens"},
        BadBody{kC, R"({"prompt": "a", "max_tokens": -1})", "max_tokens"},
        BadBody{kC, R"({"prompt": "a", "max_tokens": 4294967296})", "max_tokens"},
        BadBody{kC, R"({"prompt": "a", "max_tokens": "1"})", "max_tokens"},
        BadBody{kC, R"({"prompt": "a", "temperature": -0.1})", "temperature"},
        BadBody{kC, R"({"prompt": "a", "temperature": "hot"})", "temperature"},
        BadBody{kC, R"({"prompt": "a", "top_p": 1.1})", "top_p"},
        BadBody{kC, R"({"prompt": "a", "seed": 1.5})", "seed"},
        BadBody{kC, R"({"prompt": "a", "n": 129})", "n"},
        BadBody{kC, R"({"prompt": ["a", "b", "c"], "n": 43})", "n"},
        BadBody{kC, R"({"prompt": "a", "user": 7})", "user"},
        BadBody{kC, R"({"prompt": "a", "store": "yes"})", "store"},
        BadBody{kC, R"({"prompt": "a", "metadata": "m"})", "metadata"},
        BadBody{kC, R"({"prompt": "a", "response_format": {"type": "json_object"}})",
                "response_format"},
        BadBody{kC, R"({"session": "s", "echo": true})", "echo"},
        BadBody{kC, R"({"prompt": "a", "use_beam_search": true})", "use_beam_search"},
        BadBody{kM, R"({"messages": [{"role": 1, "content": "a"}]})", "messages[0].role"},
        BadBody{kM, R"({"messages": [{"role": "tool", "content": "a", "tool_call_id": 1}]})",
                "messages[0].tool_call_id"},
        BadBody{kM, R"({"messages": [{"role": "assistant", "tool_calls": [{"id": "c"}]}]})",
                "messages[0].tool_calls[0].function"},
        BadBody{kM, R"({"messages": [{"role": "assistant", "tool_calls": [{"function": {}}]}]})",
                "messages[0].tool_calls[0].function.name"},
        BadBody{kM,
                R"({"messages": [{"role": "user", "content": "a"}],
                    "chat_template_kwargs": {"messages": []}})",
                "chat_template_kwargs"},
        BadBody{kM, R"({"messages": [{"role": "user", "content": "a"}], "echo": true})", "echo"},
        BadBody{kC, R"({"prompt": "a", "stop": ""})", "stop"},
        BadBody{kC, R"({"prompt": "a", "stop": [1]})", "stop"},
        BadBody{kC, R"({"prompt": "a", "logprobs": 21})", "logprobs"},
        BadBody{kC, R"({"prompt": "a", "stream": "yes"})", "stream"},
        BadBody{kC, R"({"prompt": "a", "stream_options": {}})", "stream_options"},
        BadBody{kC, R"({"prompt": "a", "best_of": 2})", "best_of"},
        BadBody{kC, R"({"prompt": "a", "no_such_field": 1})", "no_such_field"},
        BadBody{kM, R"({"messages": []})", "messages"},
        BadBody{kM, R"({"messages": ["a"]})", "messages[0]"},
        BadBody{kM, R"({"messages": [{"content": "a"}]})", "messages[0].role"},
        BadBody{kM, R"({"messages": [{"role": "user", "content": 1}]})", "messages[0].content"},
        BadBody{kM, R"({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]})",
                "messages[0].content"},
        BadBody{kM, R"({"messages": [{"role": "user", "content": "a"}], "tools": [{}]})", "tools"},
        BadBody{kM, R"({"messages": [{"role": "user", "content": "a"}], "top_logprobs": 2})",
                "top_logprobs"},
        BadBody{kM, R"({"messages": [{"role": "user", "content": "a"}], "session": "s"})",
                "session"}));

// Bodies that were valid before a few bytes were changed, taken out or doubled: whatever comes is
// an answer or a 400, and an answer keeps every limit.
RC_GTEST_PROP(ParseCallProp, HurtBodiesAreAnsweredOrRefused, ()) {
  static const std::vector<std::string> kBodies = {
      R"({"model":"m","prompt":["a",[1,2]],"n":2,"max_tokens":7,"temperature":0.5,"top_p":0.9,)"
      R"("seed":-1,"stop":["E","F"],"logprobs":3,"stream":true,"stream_options":{"include_usage")"
      R"(:true},"logit_bias":{},"echo":false})",
      R"({"messages":[{"role":"user","content":[{"type":"text","text":"\u00e9"}]},{"role":"a",)"
      R"("content":null,"name":"b"}],"max_completion_tokens":9,"logprobs":true,"top_logprobs":2})",
      R"({"session":"s","max_tokens":0,"prompt":"\ud83d\ude00"})"};
  std::string body = *rc::gen::elementOf(kBodies);
  const int changes = *rc::gen::inRange(0, 5);
  for (int i = 0; i < changes; ++i) {
    const auto at = *rc::gen::inRange<size_t>(0, body.size());
    switch (*rc::gen::inRange(0, 4)) {
      case 0: body[at] = *rc::gen::arbitrary<char>(); break;
      case 1: body.erase(at, *rc::gen::inRange<size_t>(1, 9)); break;
      case 2: body.insert(at, body.substr(*rc::gen::inRange<size_t>(0, body.size()), 12)); break;
      default:
        body.insert(at, *rc::gen::elementOf(std::vector<std::string>{
                            "9999999999999999999", "-1", "1e999", "null", "[", "{}", "\"",
                            "\\u0000", "[[[[", "true", ",", "\xff"}));
    }
    if (body.empty()) body = " ";
  }
  for (const Endpoint endpoint : {Endpoint::kCompletions, Endpoint::kChat}) {
    const auto call = ParseCall(endpoint, body);
    if (!call) {
      RC_ASSERT(call.error().status == 400u);
      RC_ASSERT(!Dump(ErrorJson(call.error())).empty());
      continue;
    }
    RC_ASSERT(call->choices >= 1u);
    RC_ASSERT(call->choices * std::max<size_t>(call->prompts.size(), 1) <= kChoicesDefault);
    RC_ASSERT(call->stop.size() <= kStopsMax);
    const float temperature = call->sampling.temperature.value_or(0.0f);
    RC_ASSERT((temperature >= 0 && temperature <= 100));
    RC_ASSERT((endpoint == Endpoint::kChat ? !call->messages.empty() : !call->prompts.empty()));
  }
}

}  // namespace
}  // namespace quire::serve::http
