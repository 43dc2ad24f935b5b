// What an engine is made with: what is refused, and that the bounds themselves are not.
#include <gtest/gtest.h>

#include <cmath>

#include "serve/test_util.h"

namespace quire::serve {
namespace {

class EngineOptionsTest : public EngineTest {
 protected:
  EngineOptionsTest() { Make(16); }

  /// What Create says of `options`; empty where it takes them.
  std::string WhyRefused(const EngineOptions& options) {
    const auto engine = Engine::Create({.model = *model_,
                                        .cache = *cache_,
                                        .attention = *attention_,
                                        .executor = *executor_,
                                        .clock = clock_},
                                       Identity{.weights = model_->fingerprint()}, options);
    if (engine) return "";
    EXPECT_EQ(engine.error().code, ErrorCode::kInvalidArgument);
    return engine.error().message;
  }
};

TEST_F(EngineOptionsTest, EachBadOneIsNamed) {
  EXPECT_EQ(WhyRefused({}), "");
  EXPECT_EQ(WhyRefused({.chunk_tokens_min = 0}), "engine options: chunk_tokens_min is 0");
  EXPECT_EQ(WhyRefused({.chunk_tokens_min = 1}), "");
  EXPECT_EQ(WhyRefused({.chunk_tokens_min = 9, .chunk_tokens_max = 8}),
            "engine options: chunk_tokens_max 8 is below chunk_tokens_min 9");
  EXPECT_EQ(WhyRefused({.chunk_tokens_min = 8, .chunk_tokens_max = 8}), "");
  EXPECT_EQ(WhyRefused({.running_max = 0}), "engine options: running_max is 0");
  EXPECT_EQ(WhyRefused({.running_max = 1}), "");
  EXPECT_EQ(WhyRefused({.aging_us = 0}), "engine options: aging_us is 0");
  EXPECT_EQ(WhyRefused({.aging_us = 1}), "");
  EXPECT_EQ(WhyRefused({.events_max = 7}), "engine options: events_max is 7, must be at least 8");
  EXPECT_EQ(WhyRefused({.events_max = 8}), "");
}

TEST_F(EngineOptionsTest, AShareIsAboveZeroAndAtMostOne) {
  for (const double share : {0.0, -0.5, 1.0001, static_cast<double>(NAN)}) {
    const auto refused = engine_->Submit({.prompt = {1}, .keep = {.share = share}});
    ASSERT_FALSE(refused.has_value()) << share;
    EXPECT_NE(refused.error().message.find("keep.share"), std::string::npos);
  }
  for (const double share : {1e-9, 1.0}) {
    EXPECT_TRUE(engine_->Submit({.prompt = {1}, .keep = {.share = share}}).has_value()) << share;
  }
}

TEST_F(EngineOptionsTest, ASessionKeepsItsWholeTextAndAllItsTokens) {
  const SessionId session = engine_->OpenSession({}).value();
  const auto fewer =
      engine_->Submit({.prompt = {1}, .on_full = OnFull::kFewer, .session = session});
  ASSERT_FALSE(fewer.has_value());
  EXPECT_EQ(fewer.error().message, "on_full: kFewer in a session");
  EXPECT_TRUE(engine_->Submit({.prompt = {1}, .session = session}).has_value());
}

// Without a store of sessions a name says nothing, and no session outlives the process.
TEST_F(EngineOptionsTest, NamesOfSessionsNeedAStore) {
  uint64_t settled = 0;
  const auto well = [&](const Result<void>& outcome) { settled += outcome.has_value(); };
  const SessionId session = engine_->OpenSession({.name = "a"}, well).value();
  EXPECT_EQ(settled, 1u);
  const SessionId fork = engine_->ForkSession(session, "a", well).value();
  EXPECT_EQ(settled, 2u);
  const std::vector<Request> requests = {{.prompt = {1, 2}, .max_tokens = 2, .session = session},
                                         {.prompt = {1, 2}, .max_tokens = 2, .session = fork}};
  for (const Response& response : Run(requests)) EXPECT_EQ(response.finish, Finish::kLength);
  EXPECT_EQ(engine_->OpenSession({.name = "a", .stored = true}).error().code, ErrorCode::kNotFound);
  EXPECT_EQ(engine_->CloseSession(session).error().code, ErrorCode::kUnsupported);
  ASSERT_TRUE(engine_->EndSession(session, well).has_value());
  EXPECT_EQ(settled, 3u);
  EXPECT_EQ(engine_->EndSession(session, well).error().code, ErrorCode::kNotFound);
  engine_->EndSessionsOf(kDefaultTenant, well);
  EXPECT_TRUE(engine_->Tick().settled);
  EXPECT_EQ(settled, 4u);
  EXPECT_EQ(engine_->EndSession(fork).error().code, ErrorCode::kNotFound);
}

TEST(FinishTest, EachHasAName) {
  EXPECT_EQ(FinishName(Finish::kLength), "length");
  EXPECT_EQ(FinishName(Finish::kStop), "stop");
  EXPECT_EQ(FinishName(Finish::kNoSpace), "no_space");
  EXPECT_EQ(FinishName(Finish::kCancelled), "cancelled");
  EXPECT_EQ(FinishName(Finish::kFailed), "failed");
  EXPECT_EQ(FinishName(static_cast<Finish>(0)), "unknown");
}

}  // namespace
}  // namespace quire::serve
