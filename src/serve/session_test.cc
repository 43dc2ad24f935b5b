// Sessions: turns go on where the last one ended, with the bits of a request over the whole text.
#include <gtest/gtest.h>

#include "serve/test_client.h"
#include "serve/test_util.h"

namespace quire::serve {
namespace {

class SessionTest : public EngineTest {
 protected:
  void Make(uint64_t blocks) {
    EngineTest::Make(blocks);
    client_.emplace(*engine_);
  }

  /// One turn, to its end.
  Response Turn(SessionId session, std::vector<TokenId> fed, uint32_t max_tokens) {
    const RequestId id =
        client_->Submit({.prompt = std::move(fed), .max_tokens = max_tokens, .session = session});
    client_->Finish();
    return *client_->Of(id).response;
  }

  /// What a request over the whole text gives by itself.
  Response Whole(std::vector<TokenId> text, uint32_t max_tokens) {
    return RunOne({.prompt = std::move(text), .max_tokens = max_tokens, .reuse = false});
  }

  std::optional<TestClient> client_;
};

TEST_F(SessionTest, TurnsGoOnWithoutComputingAnythingTwice) {
  Make(64);
  const SessionId session = engine_->OpenSession({}).value();
  const std::vector<TokenId> first = SomeTokens(37, 1);
  const Response one = Turn(session, first, 9);
  EXPECT_EQ(one.logits_digest, Whole(first, 9).logits_digest);
  EXPECT_EQ(one.computed_tokens, 37u);
  const std::vector<TokenId> second = Join(Join(first, one.tokens), SomeTokens(21, 2));
  const Response two = Turn(session, SomeTokens(21, 2), 7);
  EXPECT_EQ(two.prompt_tokens, second.size());
  EXPECT_EQ(two.reused_tokens, 37u + 8);  // within a block: its own sequence, not the cache's
  EXPECT_EQ(two.computed_tokens, 21u + 1);
  EXPECT_EQ(two.logits_digest, Whole(second, 7).logits_digest);
  // More of the same answer.
  const Response more = Turn(session, {}, 5);
  EXPECT_EQ(more.logits_digest, Whole(Join(second, two.tokens), 5).logits_digest);
  EXPECT_EQ(more.computed_tokens, 1u);
  EXPECT_EQ(cache_->stats().sequences, 1u);
  ASSERT_TRUE(engine_->EndSession(session).has_value());
  engine_->Tick();
  EXPECT_EQ(cache_->stats().sequences, 0u);
  EXPECT_EQ(engine_->EndSession(session).error().code, ErrorCode::kNotFound);
  EXPECT_EQ(engine_->Submit({.session = session}).error().code, ErrorCode::kNotFound);
}

TEST_F(SessionTest, ATurnThatMayNotEvictDoesNotGrowAtTheExpenseOfWhatIsCached) {
  Make(8);
  const SessionId session = engine_->OpenSession({}).value();
  const Response one = Turn(session, SomeTokens(20, 1), 4);
  Whole(SomeTokens(70, 2), 4);
  const uint64_t evicted = cache_->stats().evicted_total;
  const auto turn = [&](OnFull on_full) {
    const RequestId id = client_->Submit(
        {.prompt = SomeTokens(40, 3), .max_tokens = 4, .on_full = on_full, .session = session});
    client_->Finish();
    return *client_->Of(id).response;
  };
  EXPECT_EQ(turn(OnFull::kNoEvict).error.code, ErrorCode::kNoSpace);
  EXPECT_EQ(cache_->stats().evicted_total, evicted);
  const Response two = turn(OnFull::kReject);
  EXPECT_GT(cache_->stats().evicted_total, evicted);
  EXPECT_EQ(two.logits_digest,
            Whole(Join(Join(SomeTokens(20, 1), one.tokens), SomeTokens(40, 3)), 4).logits_digest);
}

TEST_F(SessionTest, FeedingReadsAheadAndGeneratesLater) {
  Make(64);
  const SessionId session = engine_->OpenSession({}).value();
  std::vector<TokenId> text;
  for (const uint64_t tokens : {1, 30, 0, 2}) {  // one token alone is read with the next feed
    const std::vector<TokenId> fed = SomeTokens(tokens, 10 + tokens);
    const Response response = Turn(session, fed, 0);
    EXPECT_EQ(response.finish, Finish::kLength) << response.error.message;
    EXPECT_TRUE(response.tokens.empty());
    text = Join(text, fed);
  }
  const Response answer = Turn(session, {}, 6);
  EXPECT_EQ(answer.computed_tokens, 1u);
  EXPECT_EQ(answer.logits_digest, Whole(text, 6).logits_digest);
}

TEST_F(SessionTest, ForksShareThePastAndNotTheFuture) {
  Make(64);
  const SessionId session =
      engine_->OpenSession({.sampling = {.temperature = 1.0f, .seed = 3}}).value();
  Turn(session, SomeTokens(50, 1), 5);
  const SessionId fork = engine_->ForkSession(session).value();
  const SessionId other = engine_->ForkSession(session).value();
  engine_->Tick();
  EXPECT_EQ(cache_->stats().sequences, 3u);
  // The sampler is part of what is shared: the same question has the same answer.
  const Response a = Turn(session, SomeTokens(10, 2), 12);
  const Response b = Turn(fork, SomeTokens(10, 2), 12);
  const Response c = Turn(other, SomeTokens(10, 3), 12);
  EXPECT_EQ(a.tokens, b.tokens);
  EXPECT_EQ(a.logits_digest, b.logits_digest);
  EXPECT_EQ(b.computed_tokens, 11u);
  EXPECT_NE(a.logits_digest, c.logits_digest);
  for (const SessionId id : {session, fork, other}) {
    ASSERT_TRUE(engine_->EndSession(id).has_value());
  }
  engine_->Tick();
  EXPECT_EQ(cache_->stats().sequences, 0u);
  EXPECT_EQ(cache_->stats().sealed.slots_used, cache_->stats().published_blocks);
}

TEST_F(SessionTest, AnIdleSessionGivesItsRoomAndGoesOnWithTheSameBits) {
  Make(8);
  const SessionId session = engine_->OpenSession({}).value();
  const std::vector<TokenId> first = SomeTokens(60, 1);
  const Response one = Turn(session, first, 6);
  EXPECT_EQ(cache_->stats().sequences, 1u);
  // Needs 7 of 8 blocks, of which the session holds 5.
  const Response other = RunOne({.prompt = SomeTokens(100, 2), .max_tokens = 8});
  EXPECT_EQ(other.finish, Finish::kLength) << other.error.message;
  EXPECT_EQ(engine_->stats().sessions_released, 1u);
  EXPECT_EQ(cache_->stats().sequences, 0u);
  const std::vector<TokenId> second = Join(Join(first, one.tokens), SomeTokens(9, 3));
  const Response two = Turn(session, SomeTokens(9, 3), 6);
  const std::vector<TokenId> third = Join(Join(second, two.tokens), SomeTokens(9, 4));
  const Response three = Turn(session, SomeTokens(9, 4), 6);
  ASSERT_TRUE(engine_->EndSession(session).has_value());
  EXPECT_EQ(two.logits_digest, Whole(second, 6).logits_digest);
  EXPECT_EQ(three.logits_digest, Whole(third, 6).logits_digest);
}

TEST_F(SessionTest, TheSessionWhoseTurnEndedFirstGivesItsRoomFirst) {
  Make(9);
  std::vector<SessionId> sessions;
  for (int i = 0; i < 3; ++i) sessions.push_back(engine_->OpenSession({}).value());
  // Each holds 2 blocks; the second one has been idle longest.
  for (const size_t i : {1, 2, 0}) Turn(sessions[i], SomeTokens(20, 1 + i), 3);
  EXPECT_EQ(cache_->stats().sequences, 3u);
  RunOne({.prompt = SomeTokens(60, 9), .max_tokens = 8});  // 5 blocks, 3 are free
  EXPECT_EQ(engine_->stats().sessions_released, 1u);
  EXPECT_EQ(cache_->stats().sequences, 2u);
  // One that kept its sequence computes what it is fed, and the token that was said last.
  for (const size_t i : {0, 2, 1}) {
    EXPECT_EQ(Turn(sessions[i], SomeTokens(4, 1), 1).computed_tokens == 5, i != 1) << i;
  }
}

TEST_F(SessionTest, OneTurnAtATimeAndWhatWasSaidStands) {
  Make(64);
  const SessionId session = engine_->OpenSession({}).value();
  const std::vector<TokenId> first = SomeTokens(40, 1);
  const RequestId running =
      client_->Submit({.prompt = first, .max_tokens = 50, .session = session});
  for (int i = 0; i < 6; ++i) engine_->Tick();
  EXPECT_EQ(engine_->Submit({.session = session}).error().code, ErrorCode::kBusy);
  EXPECT_EQ(engine_->ForkSession(session).error().code, ErrorCode::kBusy);
  engine_->Cancel(running);
  client_->Finish();
  const std::vector<TokenId> said = client_->Of(running).tokens;
  EXPECT_EQ(said.size(), 5u);
  const Response next = Turn(session, SomeTokens(3, 2), 4);
  EXPECT_EQ(next.logits_digest, Whole(Join(Join(first, said), SomeTokens(3, 2)), 4).logits_digest);
}

TEST_F(SessionTest, EndingASessionEndsItsTurn) {
  Make(64);
  const SessionId session = engine_->OpenSession({}).value();
  const RequestId id =
      client_->Submit({.prompt = SomeTokens(40, 1), .max_tokens = 50, .session = session});
  engine_->Tick();
  engine_->Tick();
  ASSERT_TRUE(engine_->EndSession(session).has_value());
  engine_->Tick();
  client_->TakeAll();
  EXPECT_EQ(client_->Of(id).response->finish, Finish::kCancelled);
  EXPECT_EQ(cache_->stats().sequences, 0u);
}

TEST_F(SessionTest, BadTurnsAreRefused) {
  engine_options_.sessions_max = 1;
  Make(64);
  const SessionId session = engine_->OpenSession({}).value();
  EXPECT_EQ(engine_->OpenSession({}).error().code, ErrorCode::kNoSpace);
  EXPECT_EQ(engine_->ForkSession(session).error().code, ErrorCode::kNoSpace);
  EXPECT_EQ(Turn(session, {}, 4).error.code, ErrorCode::kInvalidArgument);  // no text yet
  EXPECT_EQ(Turn(session, {}, 0).error.code, ErrorCode::kInvalidArgument);
  const auto part =
      engine_->Submit({.prompt = SomeTokens(5, 1), .keep = {.share = 0.5}, .session = session});
  EXPECT_EQ(part.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(Turn(session, SomeTokens(5, 1), 4).finish, Finish::kLength);
}

}  // namespace
}  // namespace quire::serve
