// Adapters over HTTP: named as models, listed, loaded and unloaded by the operator alone and
// from one directory alone.
#include <gtest/gtest.h>

#include <filesystem>

#include "model/random_model.h"
#include "serve/http/test_service.h"

namespace quire::serve::http {
namespace {

class AdaptersOverHttp : public WithCalls {
 protected:
  AdaptersOverHttp() {
    std::filesystem::remove_all(root_);
    std::filesystem::create_directories(directory_);
  }
  ~AdaptersOverHttp() override { std::filesystem::remove_all(root_); }

  void Make(std::string_view keys = "") {
    WithCalls::Make(keys, {.adapter_directory = directory_});
    Write(directory_ + "/one", 1);
    Write(directory_ + "/two", 2);
  }
  void Write(const std::string& at, uint64_t seed) {
    std::filesystem::create_directories(at);
    ASSERT_TRUE(model::WriteAdapter(model_->config(), 4, ComputeType::kBf16, seed, at).has_value());
  }
  HttpRequest AsOperator(const std::string& path, const OrderedJson& body) const {
    HttpRequest request = Post(path, body.dump());
    request.by_operator_listener = true;
    return request;
  }
  OrderedJson Load(const std::string& name, const std::string& path, uint32_t status = 200) {
    return AskJson(AsOperator("/v1/load_lora_adapter", {{"lora_name", name}, {"lora_path", path}}),
                   status);
  }
  OrderedJson Unload(const std::string& name, uint32_t status = 200) {
    return AskJson(AsOperator("/v1/unload_lora_adapter", {{"lora_name", name}}), status);
  }
  OrderedJson Complete(OrderedJson body, uint32_t status = 200) {
    body["prompt"] = "Once upon a time there was a town by the sea";
    body["max_tokens"] = 8;
    if (!body.contains("session")) body["temperature"] = 0;
    return AskJson(Post("/v1/completions", body.dump()), status);
  }

  const std::string root_ = testing::TempDir() + "/service_adapters";
  const std::string directory_ = root_ + "/adapters";
};

TEST_F(AdaptersOverHttp, CallsNameThemAsModels) {
  Make();
  const OrderedJson base = Complete({});
  EXPECT_EQ(Complete({{"model", "one"}}, 404)["error"]["code"], "model_not_found");
  const OrderedJson loaded = Load("one", "one");
  EXPECT_EQ(loaded["parent"], "tiny");
  EXPECT_EQ(loaded["rank"], 4);
  Load("two", directory_ + "/two");
  const OrderedJson one = Complete({{"model", "one"}});
  EXPECT_EQ(one["model"], "one");
  EXPECT_NE(one["choices"][0]["text"], base["choices"][0]["text"]);
  EXPECT_NE(Complete({{"model", "two"}})["choices"][0]["text"], one["choices"][0]["text"]);
  EXPECT_EQ(Complete({{"model", "tiny"}})["choices"][0]["text"], base["choices"][0]["text"]);
  EXPECT_EQ(Complete({{"model", "one"}})["choices"][0]["text"], one["choices"][0]["text"]);

  const OrderedJson models = AskJson(Get("/v1/models"))["data"];
  ASSERT_EQ(models.size(), 3u);
  EXPECT_EQ(models[0]["id"], "tiny");
  EXPECT_FALSE(models[0].contains("parent"));
  EXPECT_EQ(models[1]["id"], "one");
  EXPECT_EQ(models[1]["parent"], "tiny");
  EXPECT_EQ(AskJson(Get("/v1/models/two"))["id"], "two");
  AskJson(Get("/v1/models/three"), 404);
  EXPECT_NE(Ask(Get("/metrics")).body.find("quire_adapters 2"), std::string::npos);

  Unload("one");
  EXPECT_EQ(Complete({{"model", "one"}}, 404)["error"]["code"], "model_not_found");
  Unload("one", 404);
}

TEST_F(AdaptersOverHttp, TheOperatorAloneLoadsThem) {
  Make();
  const std::string body = R"({"lora_name": "one", "lora_path": "one"})";
  AskJson(Post("/v1/load_lora_adapter", body), 403);
  AskJson(Post("/v1/unload_lora_adapter", R"({"lora_name": "one"})"), 403);
  AskJson(Get("/v1/load_lora_adapter"), 405);
  EXPECT_EQ(AskJson(Get("/v1/models"))["data"].size(), 1u);
}

TEST_F(AdaptersOverHttp, NothingOutsideOfTheDirectoryIsRead) {
  Make();
  Write(root_ + "/outside", 3);
  Write(root_ + "/adapters-too", 3);
  std::filesystem::create_directories(directory_ + "/linked");
  std::filesystem::create_symlink(root_ + "/outside", directory_ + "/link");
  for (const char* const file : {"adapter_config.json", "adapter_model.safetensors"}) {
    std::filesystem::create_symlink(root_ + "/outside/" + file, directory_ + "/linked/" + file);
  }
  for (const std::string& path :
       {std::string("../outside"), root_ + "/outside", root_ + "/adapters-too", std::string("link"),
        std::string("linked"), std::string("one/../../outside"), std::string("/etc"),
        std::string("nowhere"), std::string("..")}) {
    const OrderedJson error = Load("three", path, 404)["error"];
    EXPECT_EQ(error["param"], "lora_path") << path;
  }
  std::filesystem::create_symlink(directory_ + "/one", directory_ + "/inside");
  Load("three", "inside");
}

TEST_F(AdaptersOverHttp, WithoutADirectoryNothingIsLoaded) {
  WithCalls::Make();
  EXPECT_EQ(Load("one", "one", 403)["error"]["code"], "no_adapter_directory");
}

TEST_F(AdaptersOverHttp, WhatIsWrongWithOneIsSaid) {
  Make();
  Load("tiny", "one", 400);
  Load("a b", "one", 400);
  Load("one", "one");
  Load("one", "two", 409);
  std::filesystem::resize_file(directory_ + "/two/adapter_model.safetensors", 100);
  const std::string message = Load("two", "two", 400)["error"]["message"];
  EXPECT_NE(message.find("adapter_model.safetensors"), std::string::npos) << message;
  AskJson(AsOperator("/v1/load_lora_adapter", {{"lora_name", "x"}}), 400);
  AskJson(
      AsOperator("/v1/load_lora_adapter", {{"lora_name", "x"}, {"lora_path", "one"}, {"other", 1}}),
      400);
  AskJson(AsOperator("/v1/unload_lora_adapter", OrderedJson::object()), 400);
}

TEST_F(AdaptersOverHttp, ASessionHasOneModel) {
  Make();
  Load("one", "one");
  AskJson(Post("/v1/sessions", R"({"model": "two"})"), 404);
  const OrderedJson session =
      AskJson(Post("/v1/sessions", R"({"model": "one", "temperature": 0})"));
  EXPECT_EQ(session["adapter"], "one");
  const std::string name = session["id"];
  const OrderedJson alone = Complete({{"model", "one"}});
  const OrderedJson turn = Complete({{"session", name}});
  EXPECT_EQ(turn["choices"][0]["text"], alone["choices"][0]["text"]);
  EXPECT_EQ(turn["model"], "one");
  Complete({{"session", name}, {"model", "one"}});
  EXPECT_EQ(Complete({{"session", name}, {"model", "tiny"}}, 400)["error"]["param"], "model");
  const OrderedJson fork = AskJson(Post("/v1/sessions/" + name + "/fork", ""));
  EXPECT_EQ(fork["adapter"], "one");
  Unload("one");
  EXPECT_EQ(Complete({{"session", name}}, 404)["error"]["code"], "model_not_found");
  Load("one", "two");
  EXPECT_EQ(Complete({{"session", name}}, 400)["error"]["code"], "unsupported");
}

TEST_F(AdaptersOverHttp, PrefetchAndDemoteFindTheBlocksOfOne) {
  Make();
  Load("one", "one");
  const std::string prompt = R"("prompt": [)" + [] {
    std::string ids = "1";
    for (int i = 0; i < 40; ++i) ids += ", 1";
    return ids;
  }() + "]";
  AskJson(Post("/v1/completions", R"({"model": "one", "max_tokens": 1, )" + prompt + "}"));
  const auto blocks = [&](const std::string& model) {
    return AskJson(Post("/v1/cache/prefetch", R"({"model": ")" + model + "\", " + prompt + "}"));
  };
  EXPECT_EQ(blocks("one")["prompt_tokens"], 41);
  AskJson(Post("/v1/cache/prefetch", R"({"model": "nobody", )" + prompt + "}"), 404);
  HttpRequest demote = Post("/v1/cache/demote", R"({"model": "one", )" + prompt + "}");
  demote.by_operator_listener = true;
  AskJson(demote, 400);  // there is no store, and so nothing to move them to
}

}  // namespace
}  // namespace quire::serve::http
