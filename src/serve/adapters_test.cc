// Requests of several adapters and of the base model in one engine: each answer is that of its
// adapter alone, nothing of one is another's, and what is unloaded ends with those that have it.
#include "serve/adapters.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <optional>
#include <string>

#include "env/faulty_files.h"
#include "serve/test_client.h"
#include "serve/test_util.h"

namespace quire::serve {
namespace {

class AdaptersTest : public EngineTest {
 protected:
  ~AdaptersTest() override {
    client_.reset();
    engine_.reset();
    std::filesystem::remove_all(directory_);
  }
  void Make(uint64_t blocks = 256) {
    EngineTest::Make(blocks);
    client_.emplace(*engine_);
  }
  /// Where an adapter of this seed lies.
  std::string Written(uint64_t seed) const {
    const std::string at = directory_ + "/" + std::to_string(seed);
    std::filesystem::create_directories(at);
    EXPECT_TRUE(model::WriteAdapter(model_->config(), 4, ComputeType::kF32, seed, at).has_value());
    return at;
  }
  void Load(const std::string& name, uint64_t seed) {
    const auto loaded = engine_->adapters().Load(name, Written(seed));
    ASSERT_TRUE(loaded.has_value()) << loaded.error().message;
  }
  /// What it says when nothing else is there.
  Response Alone(Request request, uint64_t seed = 0) {
    request.reuse = false;
    if (request.adapter.empty()) return RunOne(request);
    const auto other = MakeEngine(*cache_);
    EXPECT_TRUE(other->adapters().Load(request.adapter, Written(seed)).has_value());
    return RunAll(*other, {request})[0];
  }
  Response Turn(SessionId session, std::vector<TokenId> fed) {
    const RequestId id =
        client_->Submit({.prompt = std::move(fed), .max_tokens = 4, .session = session});
    client_->Finish();
    return *client_->Of(id).response;
  }

  const std::string directory_ = testing::TempDir() + "/adapters_test";
  std::optional<TestClient> client_;
};

TEST_F(AdaptersTest, MixedRequestsAnswerAsAlone) {
  Make();
  Load("one", 1);
  Load("two", 2);
  std::vector<Request> requests;
  for (uint64_t i = 0; i < 9; ++i) {
    const char* const names[] = {"", "one", "two"};
    requests.push_back(
        {.prompt = SomeTokens(10 + 7 * i, i), .max_tokens = 6, .adapter = names[i % 3]});
  }
  const auto answers = Run(requests);
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(answers[i].logits_digest, Alone(requests[i], i % 3).logits_digest) << i;
  }
}

TEST_F(AdaptersTest, BlocksAreSharedAmongUsersOfOneAndNobodyElse) {
  Make();
  Load("one", 1);
  Load("two", 2);
  const auto prompt = SomeTokens(3 * kBlockTokens + 5, 1);
  EXPECT_EQ(RunOne({.prompt = prompt, .adapter = "one"}).reused_tokens, 0u);
  EXPECT_EQ(RunOne({.prompt = prompt, .adapter = "one"}).reused_tokens, 3u * kBlockTokens);
  const Response other = RunOne({.prompt = prompt, .adapter = "two"});
  EXPECT_EQ(other.reused_tokens, 0u);
  EXPECT_EQ(other.miss_reason, MissReason::kOtherProfile);
  EXPECT_EQ(RunOne({.prompt = prompt}).reused_tokens, 0u);
  EXPECT_EQ(RunOne({.prompt = prompt}).reused_tokens, 3u * kBlockTokens);
}

TEST_F(AdaptersTest, NobodyWaitsForThePrefixOfAnotherAdapter) {
  Make();
  Load("one", 1);
  Load("two", 2);
  const auto prompt = SomeTokens(6 * kBlockTokens, 1);
  const auto waits = [&](std::vector<std::string> adapters) {
    const uint64_t before = engine_->stats().prefix_waits;
    std::vector<Request> requests;
    for (std::string& adapter : adapters) {
      requests.push_back({.prompt = prompt, .adapter = std::move(adapter)});
    }
    Run(requests);
    return engine_->stats().prefix_waits - before;
  };
  EXPECT_EQ(waits({"one", "two", ""}), 0u);
  cache_->Trim();
  EXPECT_EQ(waits({"one", "two", ""}), 0u);
}

TEST_F(AdaptersTest, UsersOfOneAdapterWaitForWhatOneOfThemComputes) {
  Make();
  Load("one", 1);
  const Request request{.prompt = SomeTokens(6 * kBlockTokens, 1), .adapter = "one"};
  Run({request, request});
  EXPECT_GT(engine_->stats().prefix_waits, 0u);
}

TEST_F(AdaptersTest, WhatIsUnloadedEndsWithThoseThatHaveIt) {
  Make();
  Load("one", 1);
  const Request request{.prompt = SomeTokens(100, 1), .max_tokens = 8, .adapter = "one"};
  const RequestId id = client_->Submit(request);
  engine_->Tick();
  const uint64_t bytes = engine_->adapters().bytes();
  ASSERT_TRUE(engine_->adapters().Unload("one").has_value());
  EXPECT_EQ(engine_->adapters().bytes(), bytes);
  const auto refused = engine_->Submit(request);
  ASSERT_EQ(refused.error().code, ErrorCode::kNotFound);
  EXPECT_NE(refused.error().message.find("'one'"), std::string::npos);
  client_->Finish();
  EXPECT_EQ(client_->Of(id).response->logits_digest, Alone(request, 1).logits_digest);
  EXPECT_EQ(engine_->adapters().bytes(), 0u);
  EXPECT_EQ(engine_->adapters().Unload("one").error().code, ErrorCode::kNotFound);
}

TEST_F(AdaptersTest, OtherWeightsUnderAnOldNameAreAnotherAdapter) {
  Make();
  const auto prompt = SomeTokens(3 * kBlockTokens + 5, 1);
  Load("one", 1);
  RunOne({.prompt = prompt, .adapter = "one"});
  const auto again = [&](uint64_t seed) {
    EXPECT_TRUE(engine_->adapters().Unload("one").has_value());
    Load("one", seed);
    return RunOne({.prompt = prompt, .adapter = "one"});
  };
  EXPECT_EQ(again(1).reused_tokens, 3u * kBlockTokens);  // the same one, read again
  const Response changed = again(2);
  EXPECT_EQ(changed.reused_tokens, 0u);
  EXPECT_EQ(changed.miss_reason, MissReason::kOtherProfile);
  EXPECT_EQ(again(1).reused_tokens, 3u * kBlockTokens);
}

TEST_F(AdaptersTest, ASessionBelongsToOneAdapter) {
  Make();
  Load("one", 1);
  const SessionId session = engine_->OpenSession({.adapter = "one"}).value();
  const auto fed = SomeTokens(20, 1);
  const Response first = Turn(session, fed);
  const Request whole{.prompt = fed, .max_tokens = 4, .adapter = "one"};
  EXPECT_EQ(first.logits_digest, Alone(whole, 1).logits_digest);
  EXPECT_EQ(engine_->Submit({.prompt = fed, .adapter = "one", .session = session}).error().code,
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(engine_->OpenSession({.adapter = "two"}).error().code, ErrorCode::kNotFound);

  ASSERT_TRUE(engine_->adapters().Unload("one").has_value());
  const Response unloaded = Turn(session, fed);
  EXPECT_EQ(unloaded.finish, Finish::kFailed);
  EXPECT_EQ(unloaded.error.code, ErrorCode::kNotFound);
  Load("one", 2);
  const Response other = Turn(session, fed);
  EXPECT_EQ(other.error.code, ErrorCode::kUnsupported);
  EXPECT_NE(other.error.message.find("'one'"), std::string::npos);
  // Its text is as it was before these.
  ASSERT_TRUE(engine_->adapters().Unload("one").has_value());
  Load("one", 1);
  const Response second = Turn(session, SomeTokens(5, 2));
  const Request longer{
      .prompt = Join(Join(fed, first.tokens), SomeTokens(5, 2)), .max_tokens = 4, .adapter = "one"};
  EXPECT_EQ(second.logits_digest, Alone(longer, 1).logits_digest);
  const SessionId fork = engine_->ForkSession(session).value();
  EXPECT_EQ(Turn(fork, {}).logits_digest, Turn(session, {}).logits_digest);
}

TEST_F(AdaptersTest, ASessionsFileRemembersItsAdapter) {
  FaultyFiles files({}, clock_);
  const auto open = [&] {
    return SessionStore::Open(files, {.directory = "sessions",
                                      .fingerprint = FingerprintOf({}, "{}"),
                                      .bytes_max = uint64_t{1} << 30,
                                      .unix_us = [] { return uint64_t{1}; }})
        .value();
  };
  auto sessions = open();
  engine_options_.sessions = sessions.get();
  Make();
  const auto settle = [&] {
    for (int i = 0; i < 1000; ++i) {
      const bool wrote = sessions->Tick();
      const TickReport report = engine_->Tick();
      client_->TakeAll();
      if (!wrote && !report.worked && report.settled) return;
    }
    FAIL() << "it never settles";
  };
  const auto turn = [&](SessionId session, std::vector<TokenId> fed) {
    const RequestId id =
        client_->Submit({.prompt = std::move(fed), .max_tokens = 4, .session = session});
    settle();
    return *client_->Of(id).response;
  };
  Load("one", 1);
  const SessionId first = engine_->OpenSession({.name = "s", .adapter = "one"}).value();
  const auto fed = SomeTokens(20, 1);
  const Response before = turn(first, fed);
  client_.reset();
  engine_.reset();
  sessions.reset();
  files.KillProcess();
  files.Restart();
  sessions = open();
  ASSERT_EQ(sessions->found().size(), 1u);
  EXPECT_EQ(sessions->found()[0].head.adapter, "one");
  engine_options_.sessions = sessions.get();
  MakeWithModel(256);
  client_.emplace(*engine_);
  const SessionId again = engine_->OpenSession({.name = "s", .stored = true}).value();
  EXPECT_EQ(turn(again, {}).error.code, ErrorCode::kNotFound);
  Load("one", 2);
  EXPECT_EQ(turn(again, {}).error.code, ErrorCode::kUnsupported);
  ASSERT_TRUE(engine_->adapters().Unload("one").has_value());
  Load("one", 1);
  const Request longer{.prompt = Join(fed, before.tokens), .max_tokens = 4, .adapter = "one"};
  const Response after = turn(again, {});
  client_.reset();
  engine_.reset();
  engine_options_.sessions = nullptr;
  MakeWithModel(256);
  EXPECT_EQ(after.logits_digest, Alone(longer, 1).logits_digest);
  engine_.reset();
}

TEST_F(AdaptersTest, LimitsAndNamesAreChecked) {
  engine_options_.adapters = {.count_max = 2, .bytes_max = 1 << 20};
  Make();
  Load("one", 1);
  AdapterTable& adapters = engine_->adapters();
  const auto error = [&](const std::string& name, uint64_t seed) {
    const auto loaded = adapters.Load(name, Written(seed));
    return loaded ? ErrorCode{} : loaded.error().code;
  };
  EXPECT_EQ(error("one", 2), ErrorCode::kBusy);
  EXPECT_EQ(error("", 2), ErrorCode::kInvalidArgument);
  EXPECT_EQ(error("a b", 2), ErrorCode::kInvalidArgument);
  EXPECT_EQ(error(std::string(65, 'a'), 2), ErrorCode::kInvalidArgument);
  Load("org/two.v1", 2);
  EXPECT_EQ(error("three", 3), ErrorCode::kNoSpace);
  EXPECT_EQ(adapters.Load("four", directory_ + "/nowhere").error().code, ErrorCode::kNoSpace);
  EXPECT_EQ(engine_->stats().adapters, 2u);
  EXPECT_EQ(engine_->stats().adapter_bytes, adapters.bytes());
  ASSERT_TRUE(adapters.Unload("one").has_value());
  const auto nowhere = adapters.Load("four", directory_ + "/nowhere");
  EXPECT_EQ(nowhere.error().code, ErrorCode::kNotFound);
  EXPECT_NE(nowhere.error().message.find("'four'"), std::string::npos);
  const uint64_t of_one = adapters.bytes();
  engine_options_.adapters.bytes_max = of_one + of_one / 2;
  const auto small = MakeEngine(*cache_);
  ASSERT_TRUE(small->adapters().Load("one", Written(1)).has_value());
  EXPECT_EQ(small->adapters().Load("two", Written(2)).error().code, ErrorCode::kTooLarge);
}

TEST(AdapterIdentityTest, NameAndDigestDecide) {
  const Identity base{.weights = {1}};
  Digest digest{};
  const Identity one = AdapterIdentity(base, "one", digest);
  EXPECT_EQ(one, AdapterIdentity(base, "one", digest));
  EXPECT_NE(one, base);
  EXPECT_NE(one, AdapterIdentity(base, "two", digest));
  digest[31] = 1;
  EXPECT_NE(one, AdapterIdentity(base, "one", digest));
  EXPECT_NE(one.weights, AdapterIdentity(base, "one", digest).weights);
}

}  // namespace
}  // namespace quire::serve
