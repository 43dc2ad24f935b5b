// What a call asks of the cache: how much of its prompt to keep, for how long, and where it missed.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "serve/http/test_service.h"

namespace quire::serve::http {
namespace {

using ServiceHintsTest = WithCalls;

TEST_F(ServiceHintsTest, ACallMayKeepAPartOfItsPrompt) {
  Make("", {.on_full = "spill"});
  const auto with = [&](const std::string& fields) {
    return Post("/v1/completions",
                R"({"max_tokens": 2, "prompt": )" + kPrompt + ", " + fields + "}");
  };
  for (const char* const by : {"observed", "accumulated", "recent"}) {
    const OrderedJson usage =
        AskJson(with(R"("keep": 0.3, "keep_by": ")" + std::string(by) + "\""))["usage"];
    EXPECT_GT(usage["prompt_tokens_details"]["dropped_tokens"], 0) << by;
  }
  const OrderedJson bounded = AskJson(Post(
      "/v1/completions", R"({"max_tokens": 200, "ignore_eos": true, "keep_blocks": 8, "prompt": )" +
                             kPrompt + "}"))["usage"];
  EXPECT_EQ(bounded["completion_tokens"], 200);
  EXPECT_GT(bounded["prompt_tokens_details"]["dropped_tokens"], 0);
  EXPECT_EQ(AskJson(with(R"("keep_blocks": -8)"), 400)["error"]["param"], "keep_blocks");
  AskJson(with(R"("keep_blocks": 7)"), 400);
  AskJson(with(R"("keep_blocks": 8, "keep": 0.5)"), 400);
  EXPECT_EQ(AskJson(with(R"("keep": 0)"), 400)["error"]["param"], "keep");
  EXPECT_EQ(AskJson(with(R"("keep": 1.5)"), 400)["error"]["param"], "keep");
  EXPECT_EQ(AskJson(with(R"("keep": 0.5, "keep_by": "luck")"), 400)["error"]["param"], "keep_by");
  AskJson(with(R"("keep": 0.5, "on_full": "spill")"), 400);
}

TEST_F(ServiceHintsTest, ACallHasATimeAndAPlaceOfItsOwn) {
  Make();
  const auto with = [&](const std::string& fields) {
    return Post("/v1/completions",
                R"({"max_tokens": 2, "prompt": )" + kPrompt + ", " + fields + "}");
  };
  AskJson(with(R"("priority": -50)"));
  AskJson(with(R"("priority": 50, "timeout_s": 60)"));
  for (const char* const wrong : {"51", "-51", "1.5", R"("high")"}) {
    EXPECT_EQ(AskJson(with(std::string(R"("priority": )") + wrong), 400)["error"]["param"],
              "priority");
  }
  EXPECT_EQ(AskJson(with(R"("timeout_s": -1)"), 400)["error"]["param"], "timeout_s");
  EXPECT_EQ(AskJson(with(R"("timeout_s": 0)"), 504)["error"]["code"], "deadline");
}

TEST_F(ServiceHintsTest, HintsOfRetentionAreAnswered) {
  Make();
  const auto hints_of = [&](const std::string& path, const std::string& fields) {
    return AskJson(Post(path, R"({"max_tokens": 2, )" + fields + "}"))["usage"]["kv_hints"];
  };
  const std::string prompt = R"("prompt": )" + kPrompt;
  EXPECT_TRUE(hints_of("/v1/completions", prompt).is_null());
  const OrderedJson all = hints_of(
      "/v1/completions", prompt + R"(, "prompt_cache_key": "k", "prompt_cache_retention": "24h",
         "cache_control": {"type": "ephemeral"}, "kv_hints": {"retain_full_prompt":
         {"ttl_seconds": 60}, "pin": {}}, "nvext": {"agent_hints": {"priority": 3},
         "cache_control": {"type": "ephemeral", "ttl": "1h"}})");
  const std::vector<std::pair<std::string, std::string>> expected = {
      {"prompt_cache_key", "ignored"},
      {"prompt_cache_retention", "clipped"},
      {"cache_control", "accepted"},
      {"kv_hints.pin", "ignored"},
      {"kv_hints.retain_full_prompt", "accepted"},
      {"nvext.agent_hints", "ignored"},
      {"nvext.cache_control", "accepted"}};
  ASSERT_EQ(all.size(), expected.size()) << all.dump(1);
  for (size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(all[i]["hint"], expected[i].first);
    EXPECT_EQ(all[i]["status"], expected[i].second) << all[i].dump();
    EXPECT_EQ(all[i].contains("reason"), expected[i].second != "accepted");
  }
  EXPECT_EQ(all[1]["ttl_s"], 3600);
  EXPECT_EQ(all[2]["ttl_s"], 300);
  EXPECT_EQ(all[4]["ttl_s"], 60);
  EXPECT_GT(all[2]["tokens"], 0);
  EXPECT_GT(cache_->stats().pinned_blocks, 0);
  EXPECT_EQ(hints_of("/v1/completions",
                     prompt + R"(, "prompt_cache_retention": "in_memory")")[0]["status"],
            "ignored");
}

TEST_F(ServiceHintsTest, HintsThatAreNoneAreRefused) {
  Make();
  for (const auto& [field, param] : std::vector<std::pair<std::string, std::string>>{
           {R"("prompt_cache_retention": "for ever")", "prompt_cache_retention"},
           {R"("prompt_cache_retention": "h")", "prompt_cache_retention"},
           {R"("prompt_cache_retention": "99999999999h")", "prompt_cache_retention"},
           {R"("cache_control": {"type": "eternal"})", "cache_control.type"},
           {R"("cache_control": {"type": "ephemeral", "ttl": "soon"})", "cache_control.ttl"},
           {R"("cache_control": {"type": "ephemeral", "more": 1})", "cache_control.more"},
           {R"("cache_control": 5)", "cache_control"},
           {R"("kv_hints": [])", "kv_hints"},
           {R"("kv_hints": {"retain_full_prompt": 5})", "kv_hints.retain_full_prompt"},
           {R"("kv_hints": {"retain_full_prompt": {"ttl_seconds": 0}})",
            "kv_hints.retain_full_prompt.ttl_seconds"},
           {R"("nvext": "x")", "nvext"}}) {
    EXPECT_EQ(AskJson(Post("/v1/completions",
                           R"({"max_tokens": 1, "prompt": )" + kPrompt + ", " + field + "}"),
                      400)["error"]["param"],
              param)
        << field;
  }
  std::string parts;
  for (int i = 0; i < 17; ++i) {
    parts += std::string(i == 0 ? "" : ",") +
             R"({"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}})";
  }
  AskJson(Post("/v1/chat/completions",
               R"({"max_tokens": 1, "messages": [{"role": "user", "content": [)" + parts + "]}]}"),
          400);
}

// The part that is hinted ends within the prompt; what a client says of a miss is where it began.
TEST_F(ServiceHintsTest, HintsAndMissesOfMessages) {
  Make();
  const auto chat = [&](const std::string& question) {
    return AskJson(Post("/v1/chat/completions",
                        R"({"max_tokens": 2, "explain_misses": true, "messages": [
            {"role": "system", "content": [
              {"type": "text", "text": "You are of great help and say what is true."},
              {"type": "text", "text": " Today is Monday.",
               "cache_control": {"type": "ephemeral", "ttl": "5m"}}]},
            {"role": "user", "content": ")" +
                            question + R"("}]})"))["usage"];
  };
  const OrderedJson first = chat("What is the capital of the country of France, and why is it so?");
  EXPECT_TRUE(first["prompt_tokens_details"]["first_difference"].is_null());
  ASSERT_EQ(first["kv_hints"].size(), 1);
  EXPECT_EQ(first["kv_hints"][0]["hint"], "messages[0].content.cache_control");
  EXPECT_EQ(first["kv_hints"][0]["status"], "accepted") << first.dump();
  const uint64_t kept = first["kv_hints"][0]["tokens"];
  EXPECT_GT(kept, 0);
  EXPECT_LT(kept, first["prompt_tokens"].get<uint64_t>() - 20);
  const OrderedJson second =
      chat("Which is the highest of all the mountains that there are on it?");
  const OrderedJson& where = second["prompt_tokens_details"]["first_difference"];
  EXPECT_EQ(where["message"], 1) << second.dump();
  EXPECT_GE(where["token"], second["prompt_tokens_details"]["cached_tokens"]);
}

}  // namespace
}  // namespace quire::serve::http
