// The service on the bundled model, without sockets.
#include "serve/http/service.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <thread>

#include "serve/http/test_service.h"

namespace quire::serve::http {
namespace {

using ServiceTest = WithCalls;

TEST_F(ServiceTest, AStreamSaysWhatTheWholeAnswerSays) {
  events_max_ = 8;  // an answer that comes later than its end would have all of it
  Make();
  const std::string body = R"({"max_tokens": 20, "prompt": )" + kPrompt;
  const OrderedJson whole = AskJson(Post("/v1/completions", body + "}"));
  const std::string stream = Ask(Post("/v1/completions", body + R"(, "stream": true})")).body;
  std::string text;
  std::string reason;
  size_t events = 0;
  for (size_t at = 0; (at = stream.find("data: {", at)) != std::string::npos; ++at) {
    const auto event = OrderedJson::parse(stream.substr(at + 6, stream.find('\n', at) - at - 6));
    text += event["choices"][0]["text"];
    if (!event["choices"][0]["finish_reason"].is_null()) {
      reason = event["choices"][0]["finish_reason"];
    }
    ++events;
  }
  EXPECT_EQ(text, whole["choices"][0]["text"].get<std::string>());
  EXPECT_EQ(reason, "length");
  EXPECT_GT(events, 1u);
  EXPECT_TRUE(stream.ends_with("data: [DONE]\n\n"));
  EXPECT_EQ(whole["usage"]["completion_tokens"], 20);
}

TEST_F(ServiceTest, TheSecondCallSaysWhatItFoundInTheCache) {
  Make();
  const std::string body = R"({"max_tokens": 2, "prompt": )" + kPrompt + "}";
  const OrderedJson first = AskJson(Post("/v1/completions", body));
  const OrderedJson second = AskJson(Post("/v1/completions", body));
  EXPECT_EQ(first["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
  EXPECT_EQ(second["usage"]["prompt_tokens_details"]["cached_tokens"], 48);
  EXPECT_EQ(second["usage"]["prompt_tokens"], kPrompt.size() - 2);
  EXPECT_EQ(first["choices"], second["choices"]);
}

TEST_F(ServiceTest, AStopStringEndsTheAnswerBeforeIt) {
  Make();
  const OrderedJson free =
      AskJson(Post("/v1/completions", R"({"max_tokens": 40, "prompt": )" + kPrompt + "}"));
  const std::string text = free["choices"][0]["text"];
  const std::string stop = text.substr(10, 4);
  const OrderedJson stopped =
      AskJson(Post("/v1/completions", R"({"max_tokens": 40, "stop": )" + Dump(OrderedJson(stop)) +
                                          R"(, "prompt": )" + kPrompt + "}"));
  EXPECT_EQ(stopped["choices"][0]["text"], text.substr(0, text.find(stop)));
  EXPECT_EQ(stopped["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(stopped["usage"]["completion_tokens"], text.find(stop) + stop.size());
}

TEST_F(ServiceTest, SeveralPromptsAndChoicesAreSeveralAnswers) {
  Make();
  const OrderedJson json = AskJson(
      Post("/v1/completions", R"({"prompt": ["One two three", "Four five"], "n": 2, "seed": 5,
                                  "temperature": 1.5, "max_tokens": 12, "logprobs": 2})"));
  ASSERT_EQ(json["choices"].size(), 4u);
  EXPECT_NE(json["choices"][0]["text"], json["choices"][1]["text"]);
  EXPECT_EQ(json["choices"][3]["index"], 3);
  EXPECT_EQ(json["choices"][3]["logprobs"]["tokens"].size(), 12u);
  EXPECT_EQ(json["choices"][3]["logprobs"]["top_logprobs"][0].size(), 2u);
  EXPECT_EQ(json["usage"]["prompt_tokens"], 13 + 9);  // each prompt once
  EXPECT_EQ(json["usage"]["completion_tokens"], 48);
}

TEST_F(ServiceTest, ASessionGoesOnWhereItWas) {
  Make();
  const std::string session = AskJson(Post("/v1/sessions", ""))["id"];
  const auto in = [&](const std::string& name, const std::string& more) {
    return Post("/v1/completions", R"({"session": ")" + name + R"(", )" + more + "}");
  };
  AskJson(in(session, R"("prompt": "It is a truth ", "max_tokens": 0)"));
  const std::string fork = AskJson(Post("/v1/sessions/" + session + "/fork", ""))["id"];
  const OrderedJson said = AskJson(in(session, R"("prompt": "universally", "max_tokens": 10)"));
  const OrderedJson alone = AskJson(
      Post("/v1/completions", R"({"prompt": "It is a truth universally", "max_tokens": 10})"));
  EXPECT_EQ(said["choices"][0]["text"], alone["choices"][0]["text"]);
  EXPECT_EQ(AskJson(in(fork, R"("prompt": "universally", "max_tokens": 10)"))["choices"],
            said["choices"]);
  EXPECT_EQ(AskJson(Get("/v1/sessions/" + session))["tokens"], 35);
  EXPECT_EQ(AskJson(Get("/v1/sessions"))["data"].size(), 2u);
  HttpRequest end = Get("/v1/sessions/" + session);
  end.method = "DELETE";
  EXPECT_EQ(AskJson(end)["deleted"], true);
  AskJson(in(session, R"("prompt": "x")"), 404);
}

TEST_F(ServiceTest, KeysSayWhoSeesWhat) {
  Make(kKeys);
  const std::string alice = "alice-0123456789abcdef";
  const std::string bob = "bob-0123456789abcdef";
  const std::string ops = "ops-0123456789abcdef";
  const std::string body = R"({"max_tokens": 2, "prompt": )" + kPrompt + "}";
  AskJson(Post("/v1/completions", body), 401);
  AskJson(Post("/v1/completions", body, "alice"), 401);
  AskJson(Post("/v1/completions", body, alice));
  // What Alice cached is not there for Bob.
  EXPECT_EQ(AskJson(Post("/v1/completions", body,
                         bob))["usage"]["prompt_tokens_details"]["cached_tokens"],
            0);
  const OrderedJson own = AskJson(Get("/v1/cache", bob));
  EXPECT_EQ(own["scope"], "tenant");
  ASSERT_EQ(own["tenants"].size(), 1u);
  EXPECT_EQ(own["tenants"][0]["name"], "bob");
  EXPECT_FALSE(own.contains("block_map") || own.contains("cache") || own.contains("engine"));
  for (const OrderedJson& node : own["tree"]) EXPECT_EQ(node["tenant"], "bob");
  ASSERT_GT(own["index"]["blocks"], 0);
  for (const OrderedJson& run : own["index"]["runs"]) EXPECT_EQ(run["tenant"], "bob");
  const OrderedJson all = AskJson(Get("/v1/cache", ops));
  EXPECT_EQ(all["index"]["blocks"], 2 * own["index"]["blocks"].get<uint64_t>());
  std::set<std::string> tenants;
  for (const OrderedJson& run : all["index"]["runs"]) {
    tenants.insert(run["tenant"]);
    EXPECT_EQ(run["tier"], "memory");
    EXPECT_EQ(run["stored"], false);
    EXPECT_EQ(run["holders"], 0);
  }
  EXPECT_EQ(tenants, (std::set<std::string>{"alice", "bob"}));
  EXPECT_EQ(all["scope"], "all");
  EXPECT_EQ(all["tenants"].size(), 4u);  // the three, and the operator's listener
  const std::string metrics = Ask(Get("/metrics", bob)).body;
  EXPECT_THAT(metrics, testing::HasSubstr(R"(tenant="bob")"));
  EXPECT_THAT(metrics, testing::Not(testing::HasSubstr("alice")));
  EXPECT_THAT(metrics, testing::Not(testing::HasSubstr("quire_engine")));
  const std::string all_metrics = Ask(Get("/metrics", ops)).body;
  EXPECT_THAT(all_metrics, testing::HasSubstr(R"(tenant="alice")"));
  EXPECT_THAT(all_metrics, testing::HasSubstr("\nquire_budget_used_bytes 7\n"));
  EXPECT_THAT(all_metrics, testing::HasSubstr("\nquire_budget_limit_bytes 9\n"));
  EXPECT_EQ(Dump(all["budget"]), R"({"used_bytes":7,"limit_bytes":9})");
  // Sessions are the tenant's, and the operator's key opens none of them.
  const std::string session = AskJson(Post("/v1/sessions", "", alice))["id"];
  AskJson(Get("/v1/sessions/" + session, bob), 404);
  AskJson(Get("/v1/sessions/" + session, ops), 404);
  AskJson(Get("/v1/sessions/" + session, alice));
  HttpRequest listener = Get("/v1/cache");
  listener.by_operator_listener = true;
  EXPECT_EQ(AskJson(listener)["scope"], "all");
}

TEST_F(ServiceTest, TheOperatorAloneErasesAndResizes) {
  Make(kKeys);
  const std::string alice = "alice-0123456789abcdef";
  const std::string ops = "ops-0123456789abcdef";
  const std::string body = R"({"max_tokens": 2, "prompt": )" + kPrompt + "}";
  AskJson(Post("/v1/completions", body, alice));
  AskJson(Post("/v1/completions", body, "bob-0123456789abcdef"));
  const std::string session = AskJson(Post("/v1/sessions", "", alice))["id"];
  const std::string erase = R"({"tenant": "alice"})";
  EXPECT_EQ(AskJson(Post("/v1/cache/erase", erase, alice), 403)["error"]["code"], "operator_only");
  AskJson(Post("/v1/cache/resize", R"({"hot_bytes": 1})", alice), 403);
  AskJson(Post("/v1/cache/erase", R"({"tenant": "carol"})", ops), 404);
  AskJson(Post("/v1/cache/erase", "{}", ops), 400);
  const OrderedJson erased = AskJson(Post("/v1/cache/erase", erase, ops));
  EXPECT_GT(erased["blocks"], 0);
  EXPECT_EQ(erased["sessions"], 1);
  AskJson(Get("/v1/sessions/" + session, alice), 404);
  EXPECT_EQ(AskJson(Get("/v1/cache", alice))["index"]["blocks"], 0);
  EXPECT_GT(AskJson(Get("/v1/cache", "bob-0123456789abcdef"))["index"]["blocks"], 0);
  // What it asks later is computed and cached again.
  EXPECT_EQ(AskJson(Post("/v1/completions", body,
                         alice))["usage"]["prompt_tokens_details"]["cached_tokens"],
            0);

  HttpRequest resize = Post("/v1/cache/resize", R"({"hot_bytes": 33554432})");
  resize.by_operator_listener = true;
  AskJson(resize);
  EXPECT_EQ(cache_->stats().hot_bytes_limit, 32u << 20);
  resize.body = R"({"hot_bytes": 1})";
  EXPECT_EQ(AskJson(resize, 409)["error"]["code"], "busy");
  resize.body = R"({"hot_bytes": 9000000000000000})";
  EXPECT_EQ(AskJson(resize, 400)["error"]["code"], "too_large");
  resize.body = R"({"hot_bytes": "1GB"})";
  EXPECT_EQ(AskJson(resize, 400)["error"]["param"], "hot_bytes");
  EXPECT_EQ(cache_->stats().hot_bytes_limit, 32u << 20);
}

TEST_F(ServiceTest, TheOperatorGivesATenantOtherLimits) {
  Make(kKeys);
  const std::string ops = "ops-0123456789abcdef";
  const auto set = [&](const std::string& body, uint32_t status = 200) {
    return AskJson(Post("/v1/cache/limits", body, ops), status);
  };
  AskJson(Post("/v1/cache/limits", R"({"tenant": "alice"})", "alice-0123456789abcdef"), 403);
  set(R"({"tenant": "alice", "quota_bytes": 4000000, "floor_bytes": 1000000})");
  const TenantStats stats = cache_->tenant_stats(cache_->FindTenant("alice").value()).value();
  EXPECT_EQ(stats.quota_bytes, 4'000'000);
  EXPECT_EQ(stats.floor_bytes, 1'000'000);
  set(R"({"tenant": "alice", "quota_bytes": 10, "floor_bytes": 20})", 400);
  set(R"({"tenant": "alice", "floor_bytes": 900000000000})", 409);
  set(R"({"tenant": "carol"})", 404);
  EXPECT_EQ(set(R"({"quota_bytes": 1})", 400)["error"]["param"], "tenant");
  EXPECT_EQ(set(R"({"tenant": "alice", "quota_bytes": -1})", 400)["error"]["param"], "quota_bytes");
}

TEST_F(ServiceTest, TheOperatorSeesWhoHoldsWhat) {
  Make(kKeys);
  const std::string alice = "alice-0123456789abcdef";
  const std::string ops = "ops-0123456789abcdef";
  AskJson(Get("/v1/cache/sequences", alice), 403);
  AskJson(Post("/v1/cache/demote", R"({"request": 1})", alice), 403);
  EXPECT_EQ(AskJson(Get("/v1/cache/sequences", ops))["data"].size(), 0);
  const std::string session = AskJson(Post("/v1/sessions", "", alice))["id"];
  AskJson(Post("/v1/completions",
               R"({"max_tokens": 2, "session": ")" + session + R"(", "prompt": )" + kPrompt + "}",
               alice));
  const OrderedJson held = AskJson(Get("/v1/cache/sequences", ops))["data"];
  ASSERT_EQ(held.size(), 1);
  EXPECT_EQ(held[0]["tenant"], "alice");
  EXPECT_EQ(held[0]["stage"], "idle");
  EXPECT_TRUE(held[0]["request"].is_null());
  EXPECT_GT(held[0]["bytes"], 0);
  const std::string number = held[0]["session"].dump();
  AskJson(Post("/v1/cache/demote", R"({"session": )" + number + "}", ops));
  EXPECT_EQ(AskJson(Get("/v1/cache/sequences", ops))["data"][0]["bytes"], 0);
  AskJson(Post("/v1/cache/demote", R"({"session": 99})", ops), 404);
  AskJson(Post("/v1/cache/demote", R"({"request": 99})", ops), 404);
  EXPECT_EQ(AskJson(Post("/v1/cache/demote", R"({"request": 1, "session": 1})", ops),
                    400)["error"]["param"],
            "session");
  EXPECT_EQ(AskJson(Post("/v1/cache/demote", R"({"request": "one"})", ops), 400)["error"]["param"],
            "request");
  // There is no store here.
  EXPECT_EQ(
      AskJson(Post("/v1/cache/demote", R"({"tenant": "alice", "prompt": )" + kPrompt + "}", ops),
              400)["error"]["code"],
      "unsupported");
  AskJson(Post("/v1/cache/demote", R"({"tenant": "carol", "prompt": "x"})", ops), 404);
  const OrderedJson cache = AskJson(Get("/v1/cache", ops));
  EXPECT_EQ(cache["free_slots"][0]["fragmentation"], 0.0) << cache["free_slots"];
  EXPECT_TRUE(cache["engine"]["load_bytes_per_s"].is_null());
}

TEST_F(ServiceTest, NobodyIsTheOperatorForWantOfKeys) {
  Make();
  AskJson(Post("/v1/cache/erase", R"({"tenant": "default"})"), 403);
}

TEST_F(ServiceTest, WhatCannotBeAnsweredHasItsStatus) {
  Make();
  AskJson(Get("/nothing"), 404);
  AskJson(Get("/v1/completions"), 405);
  AskJson(Post("/v1/completions", "{"), 400);
  AskJson(Post("/v1/completions", R"({"prompt": ""})"), 400);
  AskJson(Post("/v1/completions", R"({"prompt": "a", "model": "other"})"), 404);
  AskJson(Post("/v1/completions", R"({"prompt": [999]})"), 400);
  AskJson(Post("/v1/completions", R"({"prompt": "a", "session": "sess_none"})"), 404);
  EXPECT_EQ(AskJson(Post("/v1/completions", R"({"prompt": "a", "max_tokens": 4096})"),
                    400)["error"]["code"],
            "context_length_exceeded");
  // A token is a byte. What is far too long is not read to its end.
  const std::string long_text(1 << 20, 'a');
  for (const auto& [path, body, param] :
       {std::tuple("/v1/completions", R"({"prompt": ")" + long_text + "\"}", "prompt"),
        std::tuple("/v1/chat/completions",
                   R"({"messages": [{"role": "user", "content": ")" + long_text + "\"}]}",
                   "messages")}) {
    const OrderedJson error = AskJson(Post(path, body), 400)["error"];
    EXPECT_EQ(error["code"], "context_length_exceeded");
    EXPECT_EQ(error["param"], param);
    EXPECT_THAT(error["message"].get<std::string>(), testing::HasSubstr("more than 4096 tokens"));
  }
  HttpRequest text = Post("/v1/completions", R"({"prompt": "a"})");
  for (const char* const type : {"text/plain", "application/jsonx", "", "application/json2;a=b"}) {
    text.content_type = type;
    AskJson(text, 415);
  }
  text.content_type = "Application/JSON ; charset=utf-8";
  AskJson(text);
  HttpRequest foreign = Get("/v1/cache");
  foreign.host = "attacker.example";
  AskJson(foreign, 403);
  service_->Drain();
  AskJson(Post("/v1/completions", R"({"prompt": "a"})"), 503);
  EXPECT_EQ(Ask(Get("/readyz")).status, 503u);
  EXPECT_EQ(Ask(Get("/healthz")).status, 200u);
}

// Prompt and answer together, at the limit and behind it.
TEST_F(ServiceTest, AnAnswerHasWhatIsAskedForOrWhatIsLeft) {
  tokens_max_ = 80;
  Make("", {.answer_tokens_max = 20});
  const auto ask = [&](const std::string& prompt, const std::string& more, uint32_t status) {
    return AskJson(Post("/v1/completions", R"({"prompt": ")" + prompt + "\"" + more + "}"), status);
  };
  const auto tokens = [&](const std::string& prompt, const std::string& more) {
    return ask(prompt, more, 200)["usage"]["completion_tokens"].get<int>();
  };
  const auto refusal = [&](const std::string& prompt, const std::string& more) {
    return ask(prompt, more, 400)["error"]["param"].get<std::string>();
  };
  const std::string sixty(60, 'a');  // a byte is a token
  EXPECT_EQ(tokens("a", ""), 16);
  EXPECT_EQ(tokens(sixty + "aaaa", ""), 16);
  EXPECT_EQ(tokens(sixty + "aaaaa", ""), 15);
  EXPECT_EQ(tokens(sixty + std::string(19, 'a'), ""), 1);
  EXPECT_EQ(refusal(sixty + std::string(20, 'a'), ""), "prompt");
  EXPECT_EQ(tokens(sixty, R"(, "max_tokens": 20)"), 20);
  EXPECT_EQ(refusal(sixty + "a", R"(, "max_tokens": 20)"), "prompt");
  EXPECT_EQ(refusal("a", R"(, "max_tokens": 21)"), "max_tokens");
  const OrderedJson chat =
      AskJson(Post("/v1/chat/completions", R"({"messages": [{"role": "user", "content": "a"}]})"));
  EXPECT_EQ(chat["usage"]["completion_tokens"], 20);
}

const std::string kChatWithoutLength =
    R"({"ignore_eos": true, "messages": [{"role": "user", "content": "a"}]})";

TEST_F(ServiceTest, AChatThatDoesNotSayGoesOnToTheEndOfTheContext) {
  tokens_max_ = 80;
  Make();
  const OrderedJson json = AskJson(Post("/v1/chat/completions", kChatWithoutLength));
  EXPECT_EQ(json["usage"]["total_tokens"], 80);
  EXPECT_EQ(json["choices"][0]["finish_reason"], "length");
}

TEST_F(ServiceTest, AChatThatDoesNotSayGoesOnAsFarAsTheCacheHoldsIt) {
  hot_bytes_ = 1 << 20;
  Make();
  const OrderedJson json = AskJson(Post("/v1/chat/completions", kChatWithoutLength));
  EXPECT_EQ(json["choices"][0]["finish_reason"], "length");
  EXPECT_GT(json["usage"]["total_tokens"], 80);
  EXPECT_LT(json["usage"]["total_tokens"], 4096);
}

TEST_F(ServiceTest, RulesChangeTheAnswer) {
  Make();
  const auto answer = [&](const std::string& more) {
    return AskJson(Post("/v1/completions",
                        R"({"max_tokens": 24, "prompt": )" + kPrompt + more + "}"))["choices"][0];
  };
  const std::string plain = answer("")["text"];
  EXPECT_EQ(answer(R"(, "repetition_penalty": 1.0, "presence_penalty": 0, "min_p": 0.5)")["text"],
            plain);
  for (const char* const more : {R"(, "repetition_penalty": 3)", R"(, "presence_penalty": 2)",
                                 R"(, "frequency_penalty": 2)"}) {
    EXPECT_NE(answer(more)["text"], plain) << more;
  }
  // A token is a byte: 101 is "e".
  ASSERT_NE(plain.find('e'), std::string::npos);
  EXPECT_EQ(answer(R"(, "logit_bias": {"101": -100})")["text"].get<std::string>().find('e'),
            std::string::npos);
  EXPECT_EQ(answer(R"(, "logit_bias": {"101": 100})")["text"], std::string(24, 'e'));
  const OrderedJson stopped = answer(R"(, "stop_token_ids": [101])");
  EXPECT_EQ(stopped["text"], plain.substr(0, plain.find('e')));
  EXPECT_EQ(stopped["finish_reason"], "stop");
  const OrderedJson later = answer(R"(, "stop_token_ids": [101], "min_tokens": 20)");
  EXPECT_GE(later["text"].get<std::string>().size(), 19u);
  EXPECT_EQ(AskJson(Post("/v1/completions", R"({"prompt": "a", "logit_bias": {"99999": 1}})"),
                    400)["error"]["message"]
                .get<std::string>()
                .find("logit_bias"),
            0u);
}

TEST_F(ServiceTest, StopStringsCountFromTheLeastLengthOn) {
  Make();
  const auto text = [&](const std::string& more) -> std::string {
    return AskJson(Post("/v1/completions", R"({"max_tokens": 24, "prompt": )" + kPrompt + more +
                                               "}"))["choices"][0]["text"];
  };
  const std::string plain = text("");
  const std::string stop = plain.substr(4, 1);
  const size_t later = plain.find(stop, 12);
  EXPECT_EQ(text(R"(, "min_tokens": 12, "stop": )" + Dump(OrderedJson(stop))),
            plain.substr(0, later));
}

TEST_F(ServiceTest, EchoBeginsWithThePromptAndItsLogprobs) {
  Make();
  const auto ask = [&](const std::string& more) {
    return AskJson(
        Post("/v1/completions",
             R"({"echo": true, "prompt": "It is a truth", "max_tokens": )" + more + "}"));
  };
  const std::string prompt = "It is a truth";
  const OrderedJson echoed = ask("4")["choices"][0];
  const std::string alone = AskJson(Post(
      "/v1/completions", R"({"prompt": "It is a truth", "max_tokens": 4})"))["choices"][0]["text"];
  EXPECT_EQ(echoed["text"], prompt + alone);
  const OrderedJson only = ask("0");
  EXPECT_EQ(only["choices"][0]["text"], prompt);
  EXPECT_EQ(only["usage"]["completion_tokens"], 0);

  const OrderedJson scored = ask(R"(4, "logprobs": 1)")["choices"][0];
  const OrderedJson& logprobs = scored["logprobs"];
  ASSERT_EQ(logprobs["tokens"].size(), prompt.size() + 4);
  EXPECT_TRUE(logprobs["token_logprobs"][0].is_null());
  std::string text;
  for (size_t i = 0; i < logprobs["tokens"].size(); ++i) {
    EXPECT_EQ(logprobs["text_offset"][i], text.size());
    text += logprobs["tokens"][i].get<std::string>();
    if (i == 0) continue;
    // What was drawn greedily, or was in the prompt, is no likelier than the likeliest.
    const double said = logprobs["token_logprobs"][i];
    EXPECT_LE(said, 0.0);
    EXPECT_EQ(logprobs["top_logprobs"][i][logprobs["tokens"][i].get<std::string>()], said);
  }
  EXPECT_EQ(text, prompt + alone);
  // The prompt's logprobs are those of the same tokens when they are generated one by one.
  for (size_t i = 1; i < prompt.size(); ++i) {
    const OrderedJson next = AskJson(
        Post("/v1/completions",
             fmt::format(R"({{"prompt": "{}", "max_tokens": 1, "logprobs": 20}})",
                         prompt.substr(0, i))))["choices"][0]["logprobs"]["top_logprobs"][0];
    const std::string token = prompt.substr(i, 1);
    if (!next.contains(token)) continue;
    EXPECT_EQ(next[token], logprobs["token_logprobs"][i]) << i;
  }
}

TEST_F(ServiceTest, LogprobsOfCharactersOfSeveralBytes) {
  Make();
  // The bytes of an e with an accent, one token each.
  const OrderedJson json = AskJson(
      Post("/v1/completions",
           R"({"prompt": [97], "max_tokens": 3, "logprobs": 0, "logit_bias": {"195": 100}})"));
  const OrderedJson& logprobs = json["choices"][0]["logprobs"];
  EXPECT_EQ(logprobs["tokens"][0], "bytes:\\xc3");
  EXPECT_EQ(logprobs["top_logprobs"][0].size(), 1u);  // the one that was drawn
  EXPECT_EQ(logprobs["text_offset"][0], 0);
  const OrderedJson chat = AskJson(Post(
      "/v1/chat/completions", R"({"messages": [{"role": "user", "content": "a"}], "max_tokens": 1,
            "logprobs": true, "top_logprobs": 2, "logit_bias": {"195": 100}})"));
  const OrderedJson& first = chat["choices"][0]["logprobs"]["content"][0];
  EXPECT_EQ(first["bytes"], OrderedJson::array({195}));
  EXPECT_EQ(first["top_logprobs"].size(), 2u);
  EXPECT_EQ(first["top_logprobs"][0]["bytes"].size(), 1u);
}

TEST_F(ServiceTest, EachRouteHasItsNameAndItsMethods) {
  Make();
  struct Way {
    std::string path;
    std::string route;
    bool reads;
    bool writes;
  };
  const std::string session = AskJson(Post("/v1/sessions", ""))["id"];
  for (const Way& way : {Way{"/", "/", true, false},
                         {"/healthz", "/healthz", true, false},
                         {"/health", "/health", true, false},
                         {"/readyz", "/readyz", true, false},
                         {"/metrics", "/metrics", true, false},
                         {"/v1/cache", "/v1/cache", true, false},
                         {"/v1/cache/prefetch", "/v1/cache/prefetch", false, true},
                         {"/v1/cache/resize", "/v1/cache/resize", false, true},
                         {"/v1/cache/erase", "/v1/cache/erase", false, true},
                         {"/v1/models", "/v1/models", true, false},
                         {"/v1/models/tiny", "/v1/models", true, false},
                         {"/v1/tokenize", "/v1/tokenize", false, true},
                         {"/v1/detokenize", "/v1/detokenize", false, true},
                         {"/v1/sessions", "/v1/sessions", true, true},
                         {"/v1/sessions/" + session, "/v1/sessions", true, false},
                         {"/v1/sessions/" + session + "/fork", "/v1/sessions", false, true},
                         {"/v1/completions", "/v1/completions", false, true},
                         {"/v1/chat/completions", "/v1/chat/completions", false, true},
                         {"/v1/nothing", "other", false, false}}) {
    for (const bool writes : {false, true}) {
      const Handled handled = service_->Handle(writes ? Post(way.path, "") : Get(way.path));
      EXPECT_EQ(handled.route, way.route);
      const auto* const reply = std::get_if<Reply>(&handled.outcome);
      const uint32_t status = reply == nullptr ? 200 : reply->status;
      const bool allowed = writes ? way.writes : way.reads;
      if (way.route == "other") {
        EXPECT_EQ(status, 404u);
      } else {
        EXPECT_EQ(status == 405, !allowed) << way.path << " " << writes << " " << status;
      }
    }
  }
}

TEST_F(ServiceTest, OneOfSeveralRanksIsNotChangedAlone) {
  Make("", {.ranks_mode = "sequence", .ranks_count = 4});
  const auto ask = [&](HttpRequest request, uint32_t status) {
    request.by_operator_listener = true;
    return AskJson(request, status);
  };
  for (const std::string path :
       {"/v1/cache/prefetch", "/v1/cache/resize", "/v1/cache/demote", "/v1/cache/leases",
        "/v1/load_lora_adapter", "/v1/unload_lora_adapter"}) {
    const OrderedJson error = ask(Post(path, "{}"), 501)["error"];
    EXPECT_EQ(error["code"], "not_with_ranks") << path;
    EXPECT_EQ(error["message"], path +
                                    ": not possible with --ranks sequence, the other 3 would "
                                    "not hear of it; serve from one process for that");
  }
  const OrderedJson error =
      ask(Post("/v1/completions",
               R"({"prompt": "a", "max_tokens": 0, "kv_transfer": {"publish": true}})"),
          400)["error"];
  EXPECT_EQ(error["param"], "kv_transfer");
  EXPECT_THAT(std::string(error["message"]), testing::HasSubstr("--ranks sequence"));
  ask(Get("/v1/cache/leases"), 200);
  EXPECT_EQ(ask(Get("/v1/cache"), 200)["ranks"],
            (OrderedJson{{"mode", "sequence"}, {"count", 4}, {"rank", 0}}));
}

TEST_F(ServiceTest, ATenantHasSoManyCallsAtOnce) {
  Make("", {.calls_per_tenant_max = 1});
  const HttpRequest request =
      Post("/v1/completions", R"({"max_tokens": 2000, "prompt": )" + kPrompt + "}");
  Handled first = service_->Handle(request);
  ASSERT_TRUE(std::holds_alternative<std::unique_ptr<Call>>(first.outcome));
  AskJson(request, 429);
  EXPECT_EQ(AskJson(Get("/v1/cache"))["calls"].size(), 1u);
  first.outcome = Reply{};  // cancels, and waits for the engine
  EXPECT_EQ(AskJson(Get("/v1/cache"))["calls"].size(), 0u);
  EXPECT_EQ(cache_->stats().sequences, 0u);
}

TEST_F(ServiceTest, AChatWithoutATemplateIsPlainLines) {
  Make();
  const OrderedJson chat = AskJson(Post("/v1/chat/completions", R"({"max_tokens": 9,
      "messages": [{"role": "system", "content": "Be brief."}, 
                   {"role": "user", "content": "Hi"}]})"));
  const OrderedJson plain =
      AskJson(Post("/v1/completions",
                   R"({"max_tokens": 9, "prompt": "system: Be brief.\nuser: Hi\nassistant:"})"));
  EXPECT_EQ(chat["choices"][0]["message"]["content"], plain["choices"][0]["text"]);
  EXPECT_EQ(chat["object"], "chat.completion");
}

TEST(IsLoopbackHost, IsAboutTheName) {
  for (const char* const host :
       {"localhost", "localhost:80", "127.0.0.1:8080", "[::1]", "[::1]:1"}) {
    EXPECT_TRUE(IsLoopbackHost(host)) << host;
  }
  for (const char* const host :
       {"", "localhost.evil.example", "10.0.0.1", "[::2]:1", "0.0.0.0:1"}) {
    EXPECT_FALSE(IsLoopbackHost(host)) << host;
  }
}

TEST(ShrinkBlockMap, CountsSlotsOfFoldedRowsAndShowsWhatIsInUse) {
  const std::string map = "  0  sspS....\n  8  ........  x3\n 32  w.\n";
  const BlockMapCells whole = ShrinkBlockMap(map, 100);
  EXPECT_EQ(whole.slots, 34u);
  EXPECT_EQ(whole.slots_per_cell, 1u);
  EXPECT_EQ(whole.cells, "sspS...." + std::string(24, '.') + "w.");
  const BlockMapCells shrunk = ShrinkBlockMap(map, 5);
  EXPECT_EQ(shrunk.slots_per_cell, 7u);
  EXPECT_EQ(shrunk.cells, "s...w");
}

}  // namespace
}  // namespace quire::serve::http
