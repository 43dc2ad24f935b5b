// Sessions over restarts of the process: what was answered is there, and goes on, same bits.
#include <gtest/gtest.h>

#include "env/faulty_files.h"
#include "serve/driver.h"
#include "serve/test_client.h"
#include "serve/test_util.h"

namespace quire::serve {
namespace {

class SessionRestartTest : public EngineTest {
 protected:
  SessionRestartTest() { engine_options_.idle_text_bytes = 1 << 20; }
  ~SessionRestartTest() override {
    client_.reset();
    engine_.reset();  // before its sessions
  }

  void Make(uint64_t blocks) {
    blocks_ = blocks;
    OpenStore();
    EngineTest::Make(blocks);
    client_.emplace(*engine_);
  }
  void OpenStore() {
    sessions_ = SessionStore::Open(files_, {.directory = "sessions",
                                            .fingerprint = FingerprintOf({}, "{}"),
                                            .bytes_max = bytes_max_,
                                            .unix_us = [this] { return ++unix_us_; }})
                    .value();
    engine_options_.sessions = sessions_.get();
  }
  /// The process is killed, and another one starts with an empty cache.
  void Restart() {
    files_.KillProcess();
    client_.reset();
    engine_.reset();
    cache_.reset();
    sessions_.reset();
    files_.Restart();
    OpenStore();
    MakeWithModel(blocks_);
    client_.emplace(*engine_);
  }

  /// Turns engine and store until nothing is left to do.
  void Settle() {
    for (int i = 0; i < 100'000; ++i) {
      const bool wrote = sessions_->Tick();
      const TickReport report = engine_->Tick();
      client_->TakeAll();
      if (!wrote && !report.worked && report.settled) return;
    }
    FAIL() << "it never settles";
  }
  /// Turns the engine alone.
  void TickEngine(int times) {
    for (int i = 0; i < times; ++i) engine_->Tick();
    client_->TakeAll();
  }

  SessionId OpenNew(const std::string& name, const model::SamplingOptions& sampling = {},
                    TenantId tenant = kDefaultTenant) {
    return engine_
        ->OpenSession({.tenant = tenant, .sampling = sampling, .name = name}, Expected(true))
        .value();
  }
  SessionId OpenAgain(const std::string& name, TenantId tenant = kDefaultTenant) {
    return engine_->OpenSession({.tenant = tenant, .name = name, .stored = true}, Expected(true))
        .value();
  }
  /// Hears that it settled, well or not.
  OnSettled Expected(bool well) {
    return [this, well](const Result<void>& outcome) {
      EXPECT_EQ(outcome.has_value(), well);
      ++settled_;
    };
  }
  RequestId Start(SessionId session, std::vector<TokenId> fed, uint32_t max_tokens) {
    return client_->Submit(
        {.prompt = std::move(fed), .max_tokens = max_tokens, .session = session});
  }
  Response Turn(SessionId session, std::vector<TokenId> fed, uint32_t max_tokens) {
    const RequestId id = Start(session, std::move(fed), max_tokens);
    Settle();
    return client_->Of(id).response.value();
  }

  static constexpr model::SamplingOptions kSampled{.temperature = 1.0f, .seed = 3};

  FaultyFiles files_{{}, clock_};
  uint64_t bytes_max_ = 1 << 20;
  uint64_t unix_us_ = 0;
  uint64_t blocks_ = 0;
  int settled_ = 0;
  std::unique_ptr<SessionStore> sessions_;
  std::optional<TestClient> client_;
};

TEST_F(SessionRestartTest, TurnsGoOnAsWithoutARestart) {
  Make(64);
  // What it gives without a restart, in a session that has no file.
  const SessionId plain = engine_->OpenSession({.sampling = kSampled}, Expected(true)).value();
  std::vector<Response> expected;
  for (uint64_t turn = 0; turn < 4; ++turn) {
    expected.push_back(Turn(plain, SomeTokens(20 + turn, turn), 6));
  }
  SessionId session = OpenNew("s", kSampled);
  Settle();
  EXPECT_EQ(settled_, 2);
  for (uint64_t turn = 0; turn < 4; ++turn) {
    const Response response = Turn(session, SomeTokens(20 + turn, turn), 6);
    EXPECT_EQ(response.tokens, expected[turn].tokens);
    EXPECT_EQ(response.logits_digest, expected[turn].logits_digest);
    EXPECT_EQ(response.prompt_tokens, expected[turn].prompt_tokens);
    Restart();
    ASSERT_EQ(sessions_->found().size(), 1u);
    EXPECT_EQ(sessions_->found()[0].head.name, "s");
    EXPECT_EQ(sessions_->found()[0].head.tenant, "default");
    EXPECT_EQ(sessions_->found()[0].head.tokens, response.prompt_tokens + 6);
    session = OpenAgain("s");
  }
}

TEST_F(SessionRestartTest, AnAnswerComesOnceItIsDurable) {
  Make(64);
  const SessionId session = OpenNew("s");
  TickEngine(1);
  EXPECT_EQ(settled_, 0);
  const RequestId id = Start(session, SomeTokens(10, 1), 3);
  TickEngine(20);
  // Its tokens have come, its end has not, and the session is not free.
  EXPECT_EQ(client_->Of(id).tokens.size(), 3u);
  EXPECT_FALSE(client_->Of(id).response.has_value());
  EXPECT_EQ(engine_->Submit({.session = session}).error().code, ErrorCode::kBusy);
  EXPECT_FALSE(engine_->Tick().settled);
  EXPECT_TRUE(sessions_->Tick());
  EXPECT_EQ(settled_, 1);
  client_->TakeAll();
  EXPECT_EQ(client_->Of(id).response.value().finish, Finish::kLength);
  EXPECT_TRUE(engine_->Tick().settled);
}

TEST_F(SessionRestartTest, ATurnThatWasCutIsAsIfItHadNeverBegun) {
  Make(64);
  SessionId session = OpenNew("s", kSampled);
  Turn(session, SomeTokens(30, 1), 5);
  const RequestId cut = Start(session, SomeTokens(40, 2), 8);
  TickEngine(20);  // to its end, which was not heard of
  const std::vector<TokenId> said = client_->Of(cut).tokens;
  EXPECT_EQ(said.size(), 8u);
  Restart();
  session = OpenAgain("s");
  const Response again = Turn(session, SomeTokens(40, 2), 8);
  EXPECT_EQ(again.tokens, said);
  EXPECT_EQ(again.prompt_tokens, 75u);
}

TEST_F(SessionRestartTest, AFailedOrUndoneTurnLeavesNoTrace) {
  Make(8);
  const SessionId session = OpenNew("s", kSampled);
  const Response first = Turn(session, SomeTokens(30, 1), 5);
  // Too long for the cache: without this it could never be used again.
  const Response failed = Turn(session, SomeTokens(200, 2), 5);
  EXPECT_EQ(failed.finish, Finish::kFailed);
  const RequestId undone = Start(session, SomeTokens(20, 3), 50);
  TickEngine(6);
  EXPECT_FALSE(client_->Of(undone).tokens.empty());
  engine_->Cancel(undone, CancelledTurn::kUndone);
  Settle();
  EXPECT_EQ(client_->Of(undone).response->finish, Finish::kCancelled);
  const Response next = Turn(session, SomeTokens(20, 3), 4);
  EXPECT_EQ(next.prompt_tokens, 55u);
  const std::vector<TokenId>& said = client_->Of(undone).tokens;
  EXPECT_TRUE(std::equal(next.tokens.begin(), next.tokens.begin() + 2, said.begin()));
}

TEST_F(SessionRestartTest, ForksAndEndsOutliveIt) {
  Make(64);
  const SessionId a = OpenNew("a", kSampled);
  const Response one = Turn(a, SomeTokens(30, 1), 5);
  ASSERT_TRUE(engine_->ForkSession(a, "b", Expected(true)).has_value());
  const SessionId c = engine_->ForkSession(a, "c", Expected(true)).value();
  EXPECT_EQ(engine_->ForkSession(a, "c").error().code, ErrorCode::kBusy);
  EXPECT_EQ(engine_->ForkSession(a, "no/name").error().code, ErrorCode::kInvalidArgument);
  Settle();
  ASSERT_TRUE(engine_->EndSession(c, Expected(true)).has_value());
  Settle();
  EXPECT_EQ(settled_, 4);
  Restart();
  EXPECT_EQ(sessions_->found().size(), 2u);
  EXPECT_EQ(engine_->OpenSession({.name = "c", .stored = true}).error().code, ErrorCode::kNotFound);
  const SessionId from_file = OpenAgain("a");
  // A fork of what is in its file alone.
  const SessionId d = engine_->ForkSession(from_file, "d", Expected(true)).value();
  const Response of_d = Turn(d, SomeTokens(9, 2), 7);
  const Response of_a = Turn(from_file, SomeTokens(9, 2), 7);
  const Response of_b = Turn(OpenAgain("b"), SomeTokens(9, 2), 7);
  EXPECT_EQ(of_a.tokens, of_d.tokens);
  EXPECT_EQ(of_a.tokens, of_b.tokens);
  EXPECT_EQ(of_a.prompt_tokens, 44u);
  EXPECT_EQ(one.tokens.size(), 5u);
}

TEST_F(SessionRestartTest, EndingDuringATurnLeavesNoFile) {
  Make(64);
  const SessionId session = OpenNew("s");
  Settle();
  const RequestId written = Start(session, SomeTokens(10, 1), 2);
  TickEngine(20);  // its end waits for the file
  ASSERT_TRUE(engine_->EndSession(session, Expected(true)).has_value());
  Settle();
  EXPECT_TRUE(client_->Of(written).response.has_value());
  const SessionId other = OpenNew("t");
  const RequestId running = Start(other, SomeTokens(10, 1), 50);
  TickEngine(5);
  ASSERT_TRUE(engine_->EndSession(other, Expected(true)).has_value());
  Settle();
  EXPECT_EQ(client_->Of(running).response->finish, Finish::kCancelled);
  EXPECT_EQ(settled_, 4);
  Restart();
  EXPECT_TRUE(sessions_->found().empty());
}

TEST_F(SessionRestartTest, AClosedSessionIsOpenedAgain) {
  Make(64);
  const SessionId session = OpenNew("s", kSampled);
  Turn(session, SomeTokens(30, 1), 5);
  Start(session, SomeTokens(30, 2), 5);
  TickEngine(2);
  ASSERT_TRUE(engine_->CloseSession(session, Expected(true)).has_value());
  Settle();
  const SessionId again = OpenAgain("s");
  EXPECT_EQ(Turn(again, SomeTokens(3, 2), 1).prompt_tokens, 38u);
}

TEST_F(SessionRestartTest, AnEndIsSettledWhenItsBlocksAreFree) {
  Make(64);
  const SessionId closed = OpenNew("s");
  const SessionId ended = OpenNew("t");
  const SessionId plain = engine_->OpenSession({}).value();
  for (const SessionId session : {closed, ended, plain}) Turn(session, SomeTokens(30, 1), 5);
  std::vector<uint64_t> left;
  const auto settled = [&](Result<void>) { left.push_back(cache_->stats().sequences); };
  ASSERT_EQ(cache_->stats().sequences, 3u);
  ASSERT_TRUE(engine_->CloseSession(closed, settled).has_value());  // its file is as it should be
  Settle();
  ASSERT_TRUE(engine_->EndSession(ended, settled).has_value());
  Settle();
  ASSERT_TRUE(engine_->EndSession(plain, settled).has_value());
  Settle();
  EXPECT_EQ(left, (std::vector<uint64_t>{2, 1, 0}));
}

TEST_F(SessionRestartTest, AFailingDiskCostsNoAnswer) {
  Make(64);
  const SessionId session = OpenNew("s", kSampled);
  const Response one = Turn(session, SomeTokens(30, 1), 5);
  files_.set_disk_bytes(files_.bytes_used() + 10);
  testing::internal::CaptureStderr();
  const Response two = Turn(session, SomeTokens(30, 2), 5);
  const Response three = Turn(session, SomeTokens(30, 3), 5);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_EQ(three.finish, Finish::kLength);
  EXPECT_EQ(three.prompt_tokens, 100u);
  EXPECT_EQ(std::ranges::count(said, '\n'), 1) << said;  // not with every turn
  // A call that opens or forks hears of it.
  ASSERT_TRUE(engine_->OpenSession({.name = "t"}, Expected(false)).has_value());
  ASSERT_TRUE(engine_->ForkSession(session, "u", Expected(false)).has_value());
  Settle();
  EXPECT_EQ(settled_, 3);
  EXPECT_EQ(engine_->stats().session_write_failures, 4u);
  // What could not be written is written with the next turn.
  files_.set_disk_bytes(1 << 20);
  const Response four = Turn(session, SomeTokens(30, 4), 5);
  EXPECT_EQ(engine_->stats().session_write_failures, 4u);
  Restart();
  EXPECT_EQ(Turn(OpenAgain("s"), {}, 1).prompt_tokens, 140u);
  EXPECT_EQ(four.tokens.size(), 5u);
}

TEST_F(SessionRestartTest, WritesThatFailAreCountedAndNothingElseIs) {
  Make(64);
  const auto failures = [this] { return engine_->stats().session_write_failures; };
  const SessionId session = OpenNew("s");
  const SessionId idle = OpenNew("t");
  Turn(session, SomeTokens(10, 1), 2);
  EXPECT_EQ(failures(), 0u);
  files_.set_disk_bytes(files_.bytes_used());
  Turn(session, SomeTokens(10, 2), 2);
  EXPECT_EQ(failures(), 1u);
  // A session that is gone once its last write has failed.
  ASSERT_TRUE(engine_->CloseSession(session, Expected(false)).has_value());
  Settle();
  EXPECT_EQ(failures(), 2u);
  // A file that cannot be removed was not to be written.
  files_.StopAfter(0);
  ASSERT_TRUE(engine_->EndSession(idle, Expected(false)).has_value());
  Settle();
  EXPECT_EQ(failures(), 2u);
}

TEST_F(SessionRestartTest, IdleSessionsKeepNoTextInMemory) {
  engine_options_.idle_text_bytes = 0;
  Make(64);
  const SessionId session = OpenNew("s", kSampled);
  const SessionId plain = engine_->OpenSession({.sampling = kSampled}).value();
  for (uint64_t turn = 0; turn < 3; ++turn) {
    const Response response = Turn(session, SomeTokens(20, turn), 5);
    // The text came from the file, the sequence was still there.
    EXPECT_EQ(response.reused_tokens, turn == 0 ? 0 : 25 * turn - 1);
    EXPECT_EQ(response.tokens, Turn(plain, SomeTokens(20, turn), 5).tokens);
  }
  // A request that is cancelled before the text has come: what it fed stands, or not.
  const RequestId stands = Start(session, SomeTokens(7, 7), 5);
  engine_->Cancel(stands);
  Settle();
  EXPECT_EQ(client_->Of(stands).response->finish, Finish::kCancelled);
  const RequestId undone = Start(session, SomeTokens(7, 7), 5);
  engine_->Cancel(undone, CancelledTurn::kUndone);
  Settle();
  EXPECT_EQ(Turn(session, SomeTokens(1, 1), 1).prompt_tokens, 83u);
  Restart();
  EXPECT_EQ(Turn(OpenAgain("s"), {}, 1).prompt_tokens, 84u);
}

TEST_F(SessionRestartTest, AForkOfATextInAFileNeedsNoFile) {
  engine_options_.idle_text_bytes = 0;
  Make(64);
  const SessionId session = OpenNew("s", kSampled);
  const SessionId plain = engine_->OpenSession({.sampling = kSampled}).value();
  for (const SessionId each : {session, plain}) Turn(each, SomeTokens(20, 1), 5);
  // None of these has a text yet when the next is made of it.
  const SessionId fork = engine_->ForkSession(session).value();
  const SessionId second = engine_->ForkSession(fork).value();
  const SessionId named = engine_->ForkSession(second, "t", Expected(true)).value();
  const SessionId ended = engine_->ForkSession(fork, "u", Expected(false)).value();
  ASSERT_TRUE(engine_->EndSession(ended).has_value());
  Turn(session, SomeTokens(9, 9), 3);  // its file is another one then
  const Response expected = Turn(plain, SomeTokens(7, 2), 5);
  for (const SessionId each : {fork, second, named}) {
    const Response response = Turn(each, SomeTokens(7, 2), 5);
    EXPECT_EQ(response.prompt_tokens, expected.prompt_tokens) << response.error.message;
    EXPECT_EQ(response.tokens, expected.tokens);
  }
  EXPECT_EQ(settled_, 3);
  Restart();
  EXPECT_GT(sessions_->found()[1].head.opened_unix_us, sessions_->found()[0].head.opened_unix_us);
  EXPECT_EQ(Turn(OpenAgain("t"), {}, 1).prompt_tokens, 37u);
}

TEST_F(SessionRestartTest, AForkThatCannotBeWrittenHasItsText) {
  engine_options_.idle_text_bytes = 0;
  Make(64);
  const SessionId session = OpenNew("s", kSampled);
  Turn(session, SomeTokens(20, 1), 5);
  files_.set_disk_bytes(files_.bytes_used() + 10);
  const SessionId fork = engine_->ForkSession(session, "t", Expected(false)).value();
  const Response said = Turn(fork, SomeTokens(3, 1), 2);
  EXPECT_EQ(said.prompt_tokens, 28u) << said.error.message;
  EXPECT_EQ(said.tokens, Turn(session, SomeTokens(3, 1), 2).tokens);
  files_.set_disk_bytes(1 << 20);
  Turn(fork, {}, 1);
  Restart();
  EXPECT_EQ(Turn(OpenAgain("t"), {}, 1).prompt_tokens, 31u);
}

TEST_F(SessionRestartTest, AForkIsClosedOnceItsTextHasCome) {
  engine_options_.idle_text_bytes = 0;
  Make(64);
  const SessionId session = OpenNew("s", kSampled);
  Turn(session, SomeTokens(20, 1), 5);
  const SessionId fork = engine_->ForkSession(session, "t", Expected(true)).value();
  ASSERT_TRUE(engine_->CloseSession(fork, Expected(true)).has_value());
  Turn(session, SomeTokens(9, 9), 3);
  EXPECT_EQ(settled_, 3);
  EXPECT_EQ(Turn(OpenAgain("t"), {}, 1).prompt_tokens, 25u);
  // What has no file in the end is not said to have one.
  files_.set_disk_bytes(files_.bytes_used());
  const SessionId second = engine_->ForkSession(session, "u", Expected(false)).value();
  ASSERT_TRUE(engine_->CloseSession(second, Expected(false)).has_value());
  Settle();
  EXPECT_EQ(settled_, 6);
  EXPECT_EQ(engine_->OpenSession({.name = "u", .stored = true}).error().code, ErrorCode::kNotFound);
  EXPECT_TRUE(engine_->OpenSession({.name = "u"}).has_value());
}

TEST_F(SessionRestartTest, AnErasedTenantLeavesNoForkThatIsBeingClosed) {
  engine_options_.idle_text_bytes = 0;
  Make(64);
  const TenantId a = cache_->AddTenant({.name = "a"}).value();
  const SessionId session = OpenNew("s", {}, a);
  Turn(session, SomeTokens(20, 1), 5);
  const SessionId fork = engine_->ForkSession(session, "t", Expected(false)).value();
  ASSERT_TRUE(engine_->CloseSession(fork, Expected(false)).has_value());
  engine_->EndSessionsOf(a, Expected(true));
  Settle();
  EXPECT_EQ(settled_, 4);
  EXPECT_EQ(files_.Paths(), std::vector<std::string>{"sessions/.lock"});
}

TEST_F(SessionRestartTest, AForkWhoseTextDoesNotComeFails) {
  engine_options_.idle_text_bytes = 0;
  Make(64);
  const SessionId session = OpenNew("s");
  Turn(session, SomeTokens(20, 1), 5);
  files_.Contents("sessions/s")->resize(20);
  const SessionId fork = engine_->ForkSession(session).value();
  const SessionId named = engine_->ForkSession(fork, "t", Expected(false)).value();
  Settle();
  EXPECT_EQ(settled_, 2);
  const SessionId late = engine_->ForkSession(fork, "u", Expected(false)).value();
  TickEngine(1);
  EXPECT_EQ(settled_, 3);  // at once
  for (const SessionId each : {fork, named, late}) {
    const Response response = Turn(each, SomeTokens(3, 1), 1);
    EXPECT_EQ(response.finish, Finish::kFailed);
    EXPECT_EQ(response.error.code, ErrorCode::kCorrupt) << response.error.message;
  }
  ASSERT_TRUE(engine_->CloseSession(named, Expected(false)).has_value());
  Settle();
  EXPECT_EQ(settled_, 4);
}

TEST_F(SessionRestartTest, AnEarlierWriteDoesNotMakeATextDurable) {
  engine_options_.idle_text_bytes = 0;
  Make(64);
  const SessionId session = engine_->OpenSession({.name = "s"}).value();
  const RequestId turn = Start(session, SomeTokens(30, 1), 5);
  TickEngine(20);                                    // the turn has ended, and neither is written
  files_.set_disk_bytes(files_.bytes_used() + 200);  // room for the file without a text
  testing::internal::CaptureStderr();
  Settle();
  EXPECT_NE(testing::internal::GetCapturedStderr(), "");
  EXPECT_EQ(client_->Of(turn).response->finish, Finish::kLength);
  EXPECT_EQ(engine_->stats().session_write_failures, 1u);
  files_.set_disk_bytes(1 << 20);
  EXPECT_EQ(Turn(session, SomeTokens(4, 2), 1).prompt_tokens, 39u);
}

TEST_F(SessionRestartTest, ATextThatComesTwiceOverwritesNothing) {
  Make(64);
  Turn(OpenNew("s", kSampled), SomeTokens(20, 1), 5);
  Restart();
  const SessionId session = OpenAgain("s");
  const RequestId undone = Start(session, SomeTokens(7, 7), 5);
  TickEngine(1);  // its text is asked for
  engine_->Cancel(undone, CancelledTurn::kUndone);
  TickEngine(1);
  const RequestId turn = Start(session, SomeTokens(3, 3), 5);
  sessions_->Tick();  // the text comes, and this turn goes on from it, which asks for it too
  TickEngine(20);
  Settle();
  EXPECT_EQ(client_->Of(turn).response->prompt_tokens, 28u);
  EXPECT_EQ(Turn(session, {}, 1).prompt_tokens, 33u);
}

TEST_F(SessionRestartTest, TextsThatIdledLongestLeaveMemoryFirst) {
  engine_options_.idle_text_bytes = 100 * sizeof(TokenId);
  Make(64);
  std::vector<SessionId> sessions;
  for (const char* const name : {"a", "b", "c"}) sessions.push_back(OpenNew(name));
  // Two texts fit (25 tokens each, in vectors that have grown from 20 to 36), so that of the second
  // session goes: its turn ended first.
  for (const size_t i : {1, 2, 0}) Turn(sessions[i], SomeTokens(20, 1 + i), 5);
  for (const size_t i : {0, 2, 1}) {
    const RequestId id = Start(sessions[i], SomeTokens(4, 1), 1);
    TickEngine(5);  // the store stands still
    EXPECT_EQ(client_->Of(id).tokens.empty(), i == 1) << i;
  }
  Settle();
}

TEST_F(SessionRestartTest, DamageIsARefusalNeverAText) {
  Make(64);
  Turn(OpenNew("s"), SomeTokens(30, 1), 5);
  files_.Contents("sessions/s")->back() ^= std::byte{1};
  Restart();
  const SessionId session = OpenAgain("s");
  const Response response = Turn(session, SomeTokens(3, 1), 5);
  EXPECT_EQ(response.finish, Finish::kFailed);
  EXPECT_EQ(response.error.code, ErrorCode::kCorrupt);
  EXPECT_NE(response.error.message.find("sessions/s"), std::string::npos);
  EXPECT_TRUE(response.tokens.empty());
  EXPECT_NE(files_.Contents("sessions/s"), nullptr);
}

TEST_F(SessionRestartTest, TokensThatTheModelHasNotAreRefused) {
  Make(64);
  const auto turn = [&](const std::string& name, std::vector<TokenId> text) {
    sessions_->Write({.head = {.name = name, .tenant = "default"},
                      .sampler = model::Sampler(model::SamplingOptions{}).state(),
                      .text = std::move(text)},
                     [](const Result<void>&) {});
    Settle();
    return Turn(OpenAgain(name), {}, 1);
  };
  EXPECT_EQ(turn("ends", {0, kTestVocab - 1}).finish, Finish::kLength);
  EXPECT_EQ(turn("beyond", {1, kTestVocab}).error.code, ErrorCode::kCorrupt);
  EXPECT_EQ(turn("below", {1, -1}).error.code, ErrorCode::kCorrupt);
}

TEST_F(SessionRestartTest, ANameThatFoundNoRoomIsFree) {
  engine_options_.sessions_max = 1;
  Make(64);
  const SessionId a = OpenNew("a");
  EXPECT_EQ(engine_->OpenSession({.name = "b"}).error().code, ErrorCode::kNoSpace);
  EXPECT_EQ(engine_->ForkSession(a, "b").error().code, ErrorCode::kNoSpace);
  ASSERT_TRUE(engine_->EndSession(a, Expected(true)).has_value());
  Settle();
  OpenNew("b");
  Settle();
  EXPECT_EQ(settled_, 3);
}

TEST_F(SessionRestartTest, WithoutAFileThereIsNothingToWaitFor) {
  Make(64);
  const SessionId plain = engine_->OpenSession({}, Expected(true)).value();
  const SessionId fork = engine_->ForkSession(plain, {}, Expected(true)).value();
  EXPECT_EQ(settled_, 2);
  ASSERT_TRUE(engine_->EndSession(plain, Expected(true)).has_value());
  ASSERT_TRUE(engine_->CloseSession(fork, Expected(true)).has_value());
  engine_->EndSessionsOf(TenantId{4711}, Expected(true));  // there is none
  EXPECT_TRUE(engine_->Tick().settled);
  EXPECT_EQ(settled_, 5);
  EXPECT_FALSE(sessions_->Tick());
}

TEST_F(SessionRestartTest, ATenantsSessionIsItsOwnWhateverItsId) {
  Make(64);
  ASSERT_TRUE(cache_->AddTenant({.name = "a"}).has_value());
  const TenantId b = cache_->AddTenant({.name = "b"}).value();
  Turn(OpenNew("s", {}, b), SomeTokens(30, 1), 5);
  Restart();
  EXPECT_EQ(sessions_->found()[0].head.tenant, "b");
  const TenantId b_again = cache_->AddTenant({.name = "b"}).value();
  ASSERT_NE(b, b_again);
  // Another tenant that is given its name hears nothing of it.
  const SessionId wrong = OpenAgain("s");
  EXPECT_EQ(Turn(wrong, SomeTokens(3, 1), 5).error.code, ErrorCode::kCorrupt);
  ASSERT_TRUE(engine_->CloseSession(wrong).has_value());
  Settle();
  EXPECT_EQ(Turn(OpenAgain("s", b_again), SomeTokens(3, 1), 5).prompt_tokens, 38u);
}

TEST_F(SessionRestartTest, AnErasedTenantLeavesNoSession) {
  Make(64);
  const TenantId a = cache_->AddTenant({.name = "a"}).value();
  Turn(OpenNew("of_a", {}, a), SomeTokens(30, 1), 5);
  Turn(OpenNew("other"), SomeTokens(30, 1), 5);
  Restart();
  const TenantId again = cache_->AddTenant({.name = "a"}).value();
  const SessionId open = OpenNew("of_a_too", {}, again);
  const RequestId running = Start(open, SomeTokens(9, 1), 50);
  TickEngine(3);
  engine_->EndSessionsOf(again, Expected(true));
  Settle();
  EXPECT_EQ(client_->Of(running).response->finish, Finish::kCancelled);
  EXPECT_EQ(engine_->EndSession(open).error().code, ErrorCode::kNotFound);
  Restart();
  ASSERT_EQ(sessions_->found().size(), 1u);
  EXPECT_EQ(sessions_->found()[0].head.name, "other");
}

TEST_F(SessionRestartTest, ATenantMayBeRemovedBeforeTheEngineHearsOfIt) {
  Make(64);
  Turn(OpenNew("s", {}, cache_->AddTenant({.name = "a"}).value()), SomeTokens(30, 1), 5);
  Restart();
  const TenantId again = cache_->AddTenant({.name = "a"}).value();
  engine_->EndSessionsOf(again, Expected(true));
  ASSERT_TRUE(cache_->RemoveTenant(again).has_value());
  Settle();
  EXPECT_EQ(settled_, 2);
  EXPECT_EQ(files_.Paths(), std::vector<std::string>{"sessions/.lock"});
}

TEST_F(SessionRestartTest, ADriverEndsOnceAllIsSettled) {
  Make(64);
  sessions_->Start();
  RequestId id;
  {
    Driver driver(*engine_);
    const SessionId session = OpenNew("s");
    id =
        engine_->Submit({.prompt = SomeTokens(30, 1), .max_tokens = 4, .session = session}).value();
    while (auto event = engine_->Await(id)) {
      if (std::holds_alternative<Response>(*event)) break;
    }
    id = engine_->Submit({.prompt = SomeTokens(30, 1), .max_tokens = 900, .session = session})
             .value();
  }
  std::optional<Response> last;
  while (auto event = engine_->Next(id)) {
    if (auto* response = std::get_if<Response>(&*event)) last = std::move(*response);
  }
  EXPECT_EQ(last.value().finish, Finish::kCancelled);
  // Its thread ends before the files are killed; it writes nothing more on its way.
  client_.reset();
  engine_.reset();
  sessions_.reset();
  Restart();
  EXPECT_EQ(sessions_->found()[0].head.tokens, 34u);  // the turn that was cut is undone
}

}  // namespace
}  // namespace quire::serve
