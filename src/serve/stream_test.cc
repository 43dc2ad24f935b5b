// Requests that memory does not hold whole: with a store below they stream, and no answer changes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cache/below/test_store.h"
#include "serve/test_client.h"
#include "serve/test_util.h"

namespace quire::serve {
namespace {

class StreamTest : public EngineTest {
 protected:
  StreamTest() {
    store_ = machine_.store.get();
    engine_options_.resident_tokens = 100;
  }
  ~StreamTest() override { End(); }

  void End() {
    engine_.reset();
    cache_.reset();
  }
  /// An engine whose cache holds about 1,700 tokens, or what a stream takes and a little more.
  void MakeSmall() { Make(105, /*chunk_tokens=*/16); }
  static Request Of(uint64_t seed, uint64_t tokens) {
    return {.prompt = SomeTokens(tokens, seed), .max_tokens = 6};
  }
  static Request LongAnswer() {
    Request request = Of(1, 1400);
    request.max_tokens = 300;
    return request;
  }
  /// Such a request, which has said some of its answer.
  RequestId BeginGenerating(TestClient& client, const Request& request) {
    const RequestId id = client.Submit(request);
    for (int i = 0; i < 120; ++i) {
      engine_->Tick();
      client.Take(id);
    }
    return id;
  }
  /// What an engine with enough memory answers, and no store.
  Response Whole(Request request) {
    StreamJudge judge;
    judge.Make(400);
    request.spills = false;
    return judge.RunOne(request);
  }
  void ExpectWholeAnswers(const std::vector<Request>& requests) {
    const std::vector<Response> responses = Run(requests);
    for (size_t i = 0; i < requests.size(); ++i) {
      ASSERT_EQ(responses[i].finish, Finish::kLength) << responses[i].error.message;
      EXPECT_EQ(responses[i].logits_digest, Whole(requests[i]).logits_digest) << i;
    }
  }

 private:
  class StreamJudge : public EngineTest {
   public:
    using EngineTest::Make;
    using EngineTest::RunOne;
    void TestBody() override {}
  };

 protected:
  cache::TestStore machine_{uint64_t{64} << 20};
};

TEST_F(StreamTest, AnswersAsWithEnoughMemory) {
  MakeSmall();
  const Request request = Of(1, 2500);
  const Response response = RunOne(request);
  ASSERT_EQ(response.finish, Finish::kLength) << response.error.message;
  EXPECT_EQ(response.logits_digest, Whole(request).logits_digest);
  EXPECT_EQ(response.reused_tokens, 0);
  EXPECT_EQ(response.computed_tokens, 2500);
  EXPECT_EQ(response.sequence.tokens_streamed, 2304);
  EXPECT_EQ(engine_->stats().streamed, 1);
  EXPECT_LE(cache_->stats().hot_bytes_peak, cache_->stats().hot_bytes_limit);
  // Asked again it goes on with what the store has.
  const Response again = RunOne(request);
  EXPECT_EQ(again.logits_digest, response.logits_digest);
  EXPECT_EQ(again.loaded_tokens, 2496);
  EXPECT_EQ(again.reused_tokens, 2496);
  EXPECT_EQ(again.computed_tokens, 4);
}

TEST_F(StreamTest, APromptThatDiffersInsideARunIsComputedFromTheBlockThatDiffers) {
  MakeSmall();
  Request request = Of(1, 2500);
  RunOne(request);
  request.prompt[1100] += 1;
  const Response response = RunOne(request);
  EXPECT_EQ(response.reused_tokens, 1088);
  EXPECT_EQ(response.logits_digest, Whole(request).logits_digest);
  request.reuse = false;
  EXPECT_EQ(RunOne(request).reused_tokens, 0);
}

TEST_F(StreamTest, IsRefusedWithoutIt) {
  engine_options_.resident_tokens = 0;
  MakeSmall();
  const Response response = RunOne(Of(1, 2500));
  EXPECT_EQ(response.finish, Finish::kFailed);
  EXPECT_EQ(response.error.code, ErrorCode::kTooLarge);
}

TEST_F(StreamTest, WhatFitsDoesNotStream) {
  MakeSmall();
  EXPECT_EQ(RunOne(Of(1, 500)).finish, Finish::kLength);
  EXPECT_EQ(engine_->stats().streamed, 0);
  EXPECT_GT(cache_->stats().published_blocks, 0);
}

TEST_F(StreamTest, OthersRunBeside) {
  Make(150, /*chunk_tokens=*/16);
  ExpectWholeAnswers({Of(1, 2600), Of(2, 90), Of(3, 130), Of(4, 60)});
  EXPECT_EQ(engine_->stats().streamed, 1);
}

TEST_F(StreamTest, AnApproximationIsRefused) {
  MakeSmall();
  Request request = Of(1, 2500);
  request.keep.share = 0.5;
  const Response response = RunOne(request);
  EXPECT_EQ(response.error.code, ErrorCode::kTooLarge) << response.error.message;
}

TEST_F(StreamTest, ASessionGoesOnStreaming) {
  MakeSmall();
  const SessionId session = engine_->OpenSession({}).value();
  const std::vector<TokenId> first = SomeTokens(2300, 1);
  const std::vector<TokenId> second = SomeTokens(300, 2);
  const Response one = RunOne({.prompt = first, .max_tokens = 5, .session = session});
  ASSERT_EQ(one.finish, Finish::kLength) << one.error.message;
  const Response two = RunOne({.prompt = second, .max_tokens = 5, .session = session});
  ASSERT_EQ(two.finish, Finish::kLength) << two.error.message;
  Request whole{.prompt = first, .max_tokens = 5};
  whole.prompt.insert(whole.prompt.end(), one.tokens.begin(), one.tokens.end());
  whole.prompt.insert(whole.prompt.end(), second.begin(), second.end());
  EXPECT_EQ(two.logits_digest, Whole(whole).logits_digest);
  EXPECT_LT(two.computed_tokens, 400);
}

TEST_F(StreamTest, BeginsAgainBeforeABlockThatIsLost) {
  MakeSmall();
  const Request request = Of(1, 2500);
  TestClient client(*engine_);
  const RequestId id = client.Submit(request);
  while (client.Of(id).progress.empty() || client.Of(id).progress.back() < 2000) {
    engine_->Tick();
    client.Take(id);
  }
  machine_.DamageSegments(1 << 20);
  while (!client.Of(id).response) {
    engine_->Tick();
    client.Take(id);
  }
  const Response& response = *client.Of(id).response;
  ASSERT_EQ(response.finish, Finish::kLength) << response.error.message;
  EXPECT_EQ(response.logits_digest, Whole(request).logits_digest);
  EXPECT_GE(engine_->stats().streams_renewed, 1);
  EXPECT_GT(response.recomputed_tokens, 0);
}

TEST_F(StreamTest, WhatIsDamagedInManyPlacesIsComputedAgain) {
  MakeSmall();
  const Request request = Of(1, 2500);
  const Response whole = RunOne(request);
  ASSERT_EQ(whole.finish, Finish::kLength) << whole.error.message;
  cache::Must(machine_.store->Flush());
  machine_.DamageSegments(64 << 10);
  const Response again = RunOne(request);
  ASSERT_EQ(again.finish, Finish::kLength) << again.error.message;
  EXPECT_EQ(again.logits_digest, whole.logits_digest);
  EXPECT_GT(engine_->stats().streams_renewed, 4) << "the test must be able to fail";
}

TEST_F(StreamTest, ReadsThatFailNowAndThenAreAskedForAgain) {
  MakeSmall();
  const Request request = Of(1, 2500);
  const uint64_t before = machine_.files.faults();
  machine_.files.set_rates({.read_error = 1000});
  const Response response = RunOne(request);
  machine_.files.set_rates({});
  ASSERT_EQ(response.finish, Finish::kLength) << response.error.message;
  EXPECT_EQ(response.logits_digest, Whole(request).logits_digest);
  EXPECT_GT(machine_.files.faults(), before) << "the test must be able to fail";
}

TEST_F(StreamTest, WhereTheSameIsLostAgainAndAgainItEnds) {
  MakeSmall();
  TestClient client(*engine_);
  const RequestId id = client.Submit(Of(1, 2500));
  while (!client.Of(id).response) {
    engine_->Tick();
    client.Take(id);
    const auto& progress = client.Of(id).progress;
    if (!progress.empty() && progress.back() >= 2000) machine_.DamageSegments(4 << 10);
  }
  EXPECT_EQ(client.Of(id).response->error.code, ErrorCode::kCorrupt);
  EXPECT_GE(engine_->stats().streams_renewed, 4);
  EXPECT_LT(engine_->stats().streams_renewed, 30);  // of 156 blocks
}

TEST_F(StreamTest, AnErasureEndsIt) {
  MakeSmall();
  TestClient client(*engine_);
  const RequestId id = client.Submit(Of(1, 2500));
  while (client.Of(id).progress.empty() || client.Of(id).progress.back() < 2000) {
    engine_->Tick();
    client.Take(id);
  }
  ASSERT_TRUE(cache_->Erase(kDefaultTenant).has_value());
  while (!client.Of(id).response) {
    engine_->Tick();
    client.Take(id);
  }
  EXPECT_EQ(client.Of(id).response->error.code, ErrorCode::kNotFound);
  EXPECT_THAT(client.Of(id).response->error.message, testing::HasSubstr("erased"));
}

TEST_F(StreamTest, CancelGivesEverythingBack) {
  MakeSmall();
  TestClient client(*engine_);
  const RequestId id = client.Submit(Of(1, 2500));
  while (client.Of(id).progress.empty() || client.Of(id).progress.back() < 1500) {
    engine_->Tick();
    client.Take(id);
  }
  engine_->Cancel(id);
  while (!client.Of(id).response) {
    engine_->Tick();
    client.Take(id);
  }
  EXPECT_EQ(client.Of(id).response->finish, Finish::kCancelled);
  EXPECT_EQ(cache_->stats().hot_bytes_used, 0);
}

// A disk that hangs holds up the request that reads from it, and no other.
TEST_F(StreamTest, OthersGoOnWhileTheDiskHangs) {
  Make(150, /*chunk_tokens=*/16);
  TestClient client(*engine_);
  const Request streams = Of(1, 2500);
  const RequestId id = client.Submit(streams);
  while (client.Of(id).progress.empty() || client.Of(id).progress.back() < 2000) {
    engine_->Tick();
    client.Take(id);
  }
  machine_.files.set_latency_us_max(1'000'000'000);  // of what is asked for from now on
  const std::vector<Request> others = {Of(2, 90), Of(3, 130)};
  std::vector<RequestId> ids;
  for (const Request& request : others) ids.push_back(client.Submit(request));
  const uint64_t begin_us = machine_.clock.NowMicros();
  for (size_t i = 0; i < others.size(); ++i) {
    while (!client.Of(ids[i]).response) {
      engine_->Tick();
      client.Take(ids[i]);
    }
    EXPECT_EQ(client.Of(ids[i]).response->logits_digest, Whole(others[i]).logits_digest) << i;
  }
  EXPECT_LT(machine_.clock.NowMicros() - begin_us, 1'000'000) << "nobody waited for the disk";
  EXPECT_FALSE(client.Of(id).response);
  machine_.files.set_latency_us_max(100);
  machine_.clock.Advance(1'000'000'000);
  while (!client.Of(id).response) {
    engine_->Tick();
    client.Take(id);
  }
}

// What stays in memory is read while others go on.
TEST_F(StreamTest, OthersGoOnWhileOneIsOpened) {
  Make(150, /*chunk_tokens=*/16);
  const Request streams = Of(1, 2500);
  const Response first = RunOne(streams);
  ASSERT_EQ(first.finish, Finish::kLength) << first.error.message;
  TestClient client(*engine_);
  machine_.files.set_latency_us_max(1'000'000'000);  // of what is asked for from now on
  const RequestId id = client.Submit(streams);
  engine_->Tick();
  ASSERT_EQ(engine_->sequences().size(), 1);
  EXPECT_EQ(engine_->sequences()[0].stage, Stage::kLoading);
  const uint64_t begin_us = machine_.clock.NowMicros();
  const Request other = Of(2, 130);
  const RequestId beside = client.Submit(other);
  while (!client.Of(beside).response) {
    engine_->Tick();
    client.TakeAll();
  }
  EXPECT_EQ(client.Of(beside).response->logits_digest, Whole(other).logits_digest);
  EXPECT_LT(machine_.clock.NowMicros() - begin_us, 1'000'000) << "nothing waited for the disk";
  EXPECT_FALSE(client.Of(id).response);
  machine_.files.set_latency_us_max(100);
  machine_.clock.Advance(1'000'000'000);
  client.Finish();
  EXPECT_EQ(client.Of(id).response->logits_digest, first.logits_digest);
}

TEST_F(StreamTest, OneThatIsCancelledWhileItIsOpenedGivesEverythingBack) {
  MakeSmall();
  ASSERT_EQ(RunOne(Of(1, 2500)).finish, Finish::kLength);
  const uint64_t before = cache_->stats().hot_bytes_used;
  TestClient client(*engine_);
  machine_.files.set_latency_us_max(1'000'000'000);
  const RequestId id = client.Submit(Of(1, 2500));
  engine_->Tick();
  EXPECT_GT(cache_->stats().hot_bytes_used, before);
  engine_->Cancel(id);
  machine_.files.set_latency_us_max(100);
  machine_.clock.Advance(1'000'000'000);
  client.Finish();
  EXPECT_EQ(client.Of(id).response->finish, Finish::kCancelled);
  EXPECT_EQ(cache_->stats().hot_bytes_used, before);
}

TEST_F(StreamTest, OthersGoOnWhileOneEnds) {
  Make(150, /*chunk_tokens=*/16);
  const Request other = Of(2, 130);
  TestClient client(*engine_);
  const RequestId id = client.Submit(Of(1, 2500));
  while (client.Of(id).progress.empty() || client.Of(id).progress.back() < 2000) {
    engine_->Tick();
    client.Take(id);
  }
  machine_.files.set_latency_us_max(5'000'000);
  const RequestId beside = client.Submit(other);
  engine_->Tick();
  const uint64_t begin_us = machine_.clock.NowMicros();
  engine_->Cancel(id);
  while (!client.Of(beside).response) {
    engine_->Tick();
    client.TakeAll();
  }
  EXPECT_EQ(client.Of(beside).response->logits_digest, Whole(other).logits_digest);
  EXPECT_EQ(client.Of(id).response->finish, Finish::kCancelled);
  EXPECT_LT(machine_.clock.NowMicros() - begin_us, 1'000'000) << "nothing waited for the disk";
  // Another one that streams begins when the store has what it computed.
  machine_.files.set_latency_us_max(100);
  machine_.clock.Advance(5'000'000);
  const Response again = RunOne(Of(1, 2500));
  EXPECT_GE(again.loaded_tokens, 2000);
  EXPECT_EQ(again.logits_digest, Whole(Of(1, 2500)).logits_digest);
}

// A session's sequence ends where the session does, or where another request wants its room.
TEST_F(StreamTest, OthersGoOnWhileTheSequenceOfASessionEnds) {
  for (const bool wants_room : {false, true}) {
    Make(200, /*chunk_tokens=*/16);
    TestClient client(*engine_);
    const SessionId session = engine_->OpenSession({}).value();
    ASSERT_EQ(RunOne({.prompt = SomeTokens(2300, 1), .max_tokens = 5, .session = session}).finish,
              Finish::kLength);
    const RequestId beside = client.Submit(Of(2, 130));
    engine_->Tick();
    machine_.files.set_latency_us_max(5'000'000);
    const uint64_t begin_us = machine_.clock.NowMicros();
    const Request large = Of(3, 2600);
    std::optional<RequestId> waits;
    if (wants_room) {
      waits = client.Submit(large);
    } else {
      ASSERT_TRUE(engine_->EndSession(session).has_value());
    }
    while (!client.Of(beside).response) {
      engine_->Tick();
      client.TakeAll();
    }
    EXPECT_EQ(client.Of(beside).response->logits_digest, Whole(Of(2, 130)).logits_digest);
    EXPECT_LT(machine_.clock.NowMicros() - begin_us, 1'000'000) << "nothing waited for the disk";
    EXPECT_EQ(engine_->stats().sessions_released, wants_room ? 1 : 0);
    machine_.files.set_latency_us_max(100);
    machine_.clock.Advance(5'000'000);
    client.Finish();
    if (waits) {
      EXPECT_EQ(client.Of(*waits).response->logits_digest, Whole(large).logits_digest);
      EXPECT_EQ(engine_->stats().preemptions, 0);
    }
    End();
  }
}

TEST_F(StreamTest, OneThatIsPreemptedGoesOnWhenTheStoreHasWhatItComputed) {
  Make(200, /*chunk_tokens=*/16);
  TestClient client(*engine_);
  const RequestId id = client.Submit(Of(1, 2500));
  while (client.Of(id).progress.empty() || client.Of(id).progress.back() < 2000) {
    engine_->Tick();
    client.Take(id);
  }
  machine_.files.set_latency_us_max(5'000'000);
  const uint64_t begin_us = machine_.clock.NowMicros();
  Request urgent = Of(3, 2600);
  urgent.priority = 200;
  const RequestId waits = client.Submit(urgent);
  for (int i = 0; i < 20; ++i) engine_->Tick();
  EXPECT_EQ(engine_->stats().preemptions, 1);
  EXPECT_LT(machine_.clock.NowMicros() - begin_us, 1'000'000) << "nothing waited for the disk";
  machine_.files.set_latency_us_max(100);
  machine_.clock.Advance(5'000'000);
  client.Finish();
  EXPECT_EQ(client.Of(waits).response->logits_digest, Whole(urgent).logits_digest);
  EXPECT_EQ(client.Of(id).response->logits_digest, Whole(Of(1, 2500)).logits_digest);
  EXPECT_LT(client.Of(id).response->computed_tokens, 2700) << "it went on behind what it had";
}

// It waits a second for what is being written, and computes it then.
TEST_F(StreamTest, OneMovedBelowStartsThoughTheDiskTakesNothing) {
  Make(200, /*chunk_tokens=*/16);
  const Request request = LongAnswer();
  TestClient client(*engine_);
  const RequestId id = BeginGenerating(client, request);
  machine_.files.set_latency_us_max(1'000'000'000);
  engine_->Demote(id, [](Result<void>) {});
  const RequestId beside = client.Submit(Of(2, 130));
  const uint64_t begin_us = machine_.clock.NowMicros();
  while (!client.Of(beside).response) {
    engine_->Tick();
    client.TakeAll();
  }
  EXPECT_LT(machine_.clock.NowMicros() - begin_us, 1'000'000) << "nothing waited for the disk";
  machine_.files.set_latency_us_max(100);
  machine_.clock.Advance(1'100'000);
  engine_->Tick();
  ASSERT_EQ(engine_->sequences().size(), 1);
  EXPECT_NE(engine_->sequences()[0].stage, Stage::kLoading);
  machine_.clock.Advance(1'000'000'000);
  client.Finish();
  EXPECT_EQ(client.Of(id).response->logits_digest, Whole(request).logits_digest);
}

TEST_F(StreamTest, SeveralStreamAtATime) {
  Make(230, /*chunk_tokens=*/16);
  ExpectWholeAnswers({Of(1, 4050), Of(2, 4080), Of(3, 50)});
  EXPECT_EQ(engine_->stats().streamed, 2);
}

TEST_F(StreamTest, OneThatIsCancelledWhileItIsAsideLeavesItsSessionAsItWas) {
  MakeSmall();
  TestClient client(*engine_);
  const SessionId session = engine_->OpenSession({}).value();
  const std::vector<TokenId> first = SomeTokens(2300, 1);
  const Response one = RunOne({.prompt = first, .max_tokens = 5, .session = session});
  ASSERT_EQ(one.finish, Finish::kLength) << one.error.message;
  machine_.files.set_latency_us_max(1'000'000'000);
  const RequestId id =
      client.Submit({.prompt = SomeTokens(300, 2), .max_tokens = 5, .session = session});
  for (int i = 0; i < 5; ++i) engine_->Tick();
  engine_->Cancel(id);
  machine_.files.set_latency_us_max(100);
  machine_.clock.Advance(1'000'000'000);
  while (!client.Of(id).response) {
    engine_->Tick();
    client.Take(id);
  }
  EXPECT_EQ(client.Of(id).response->finish, Finish::kCancelled);
  const Response next = RunOne({.prompt = SomeTokens(30, 3), .max_tokens = 5, .session = session});
  EXPECT_EQ(next.finish, Finish::kLength) << next.error.message;
}

// Both fit alone, not together.
TEST_F(StreamTest, ItSpillsInsteadOfBeingPreempted) {
  Make(160, /*chunk_tokens=*/16);
  Request first = Of(1, 1200);
  first.max_tokens = 400;
  first.spills = true;
  Request second = Of(2, 700);
  second.max_tokens = 400;
  TestClient client(*engine_);
  const RequestId a = client.Submit(first);
  const RequestId b = client.Submit(second);
  while (!client.Of(a).response || !client.Of(b).response) {
    engine_->Tick();
    client.Take(a);
    client.Take(b);
  }
  for (const auto& [id, request] : {std::pair(a, first), std::pair(b, second)}) {
    const Response& response = *client.Of(id).response;
    ASSERT_EQ(response.finish, Finish::kLength) << response.error.message;
    EXPECT_EQ(response.logits_digest, Whole(request).logits_digest);
  }
  EXPECT_EQ(engine_->stats().spilled, 1);
  EXPECT_EQ(engine_->stats().streamed, 1);
  EXPECT_LE(client.Of(a).response->recomputed_tokens, 16) << "the rest came from the store";
  EXPECT_EQ(client.Of(b).response->preemptions, 0);
  EXPECT_LE(cache_->stats().hot_bytes_peak, cache_->stats().hot_bytes_limit);
}

TEST_F(StreamTest, ItIsInMemoryAgainWhenThereIsRoom) {
  Make(160, /*chunk_tokens=*/16);
  const Request first = Of(1, 1400);
  Request second = Of(2, 1600);
  second.max_tokens = 200;
  second.spills = true;
  TestClient client(*engine_);
  const RequestId a = client.Submit(first);
  engine_->Tick();
  const RequestId b = client.Submit(second);
  while (!client.Of(b).response) {
    if (client.Of(a).response) clock_.Advance(20'000);
    engine_->Tick();
    machine_.transfers->Tick(1000);
    client.Take(a);
    client.Take(b);
  }
  const Response& response = *client.Of(b).response;
  ASSERT_EQ(response.finish, Finish::kLength) << response.error.message;
  EXPECT_EQ(response.logits_digest, Whole(second).logits_digest);
  EXPECT_EQ(engine_->stats().spilled, 1);
  EXPECT_EQ(engine_->stats().brought_back, 1);
  EXPECT_EQ(response.sequence.tokens_streamed, 0) << "it ended in memory";
}

TEST_F(StreamTest, AnOperatorMovesARequestBelow) {
  Make(200, /*chunk_tokens=*/16);
  const Request request = LongAnswer();
  TestClient client(*engine_);
  const RequestId id = BeginGenerating(client, request);
  ASSERT_EQ(engine_->sequences().size(), 1);
  EXPECT_EQ(engine_->sequences()[0].request, id);
  EXPECT_EQ(engine_->sequences()[0].stage, Stage::kGenerating);
  const uint64_t before = engine_->sequences()[0].sequence.bytes;
  std::optional<Result<void>> settled;
  const auto demote = [&](auto number) {
    engine_->Demote(number, [&](Result<void> outcome) { settled = std::move(outcome); });
    engine_->Tick();
    return *std::exchange(settled, std::nullopt);
  };
  EXPECT_TRUE(demote(id).has_value());
  EXPECT_TRUE(demote(id).has_value());  // it does already
  EXPECT_EQ(engine_->stats().spilled, 1);
  while (engine_->sequences()[0].sequence.tokens_streamed == 0) engine_->Tick();
  EXPECT_LT(engine_->sequences()[0].sequence.bytes, before / 2);
  client.Finish();
  const Response& response = *client.Of(id).response;
  ASSERT_EQ(response.finish, Finish::kLength) << response.error.message;
  EXPECT_EQ(response.logits_digest, Whole(request).logits_digest);
  EXPECT_EQ(demote(id).error().code, ErrorCode::kNotFound);

  const SessionId session = engine_->OpenSession({}).value();
  RunOne({.prompt = SomeTokens(100, 3), .max_tokens = 2, .session = session});
  const auto list = engine_->sequences();
  ASSERT_EQ(list.size(), 1);
  EXPECT_EQ(list[0].stage, Stage::kIdle);
  EXPECT_EQ(list[0].sequence.tokens_used, 101);
  EXPECT_TRUE(demote(session).has_value());
  EXPECT_EQ(engine_->sequences()[0].sequence.bytes, 0);
  EXPECT_EQ(demote(SessionId(99)).error().code, ErrorCode::kNotFound);
}

TEST_F(StreamTest, WhatCannotStreamIsNotMovedBelow) {
  engine_options_.resident_tokens = 0;
  MakeSmall();
  TestClient client(*engine_);
  const RequestId id = client.Submit(Of(1, 100));
  engine_->Tick();
  std::optional<Result<void>> settled;
  engine_->Demote(id, [&](Result<void> outcome) { settled = std::move(outcome); });
  engine_->Tick();
  ASSERT_TRUE(settled.has_value());
  EXPECT_EQ(settled->error().code, ErrorCode::kUnsupported);
  client.Finish();
  EXPECT_EQ(client.Of(id).response->finish, Finish::kLength);
}

// What the blocks of a text would fit into, and what belongs to it besides not.
TEST_F(StreamTest, NothingIsBetweenWhatFitsWholeAndWhatMayStream) {
  for (uint64_t tokens = 1500; tokens < 1800; tokens += 20) {
    MakeSmall();
    const Request request = Of(1, tokens);
    const Response response = RunOne(request);
    ASSERT_EQ(response.finish, Finish::kLength) << tokens << ": " << response.error.message;
    End();
  }
}

TEST_F(StreamTest, SpillingNeedsAStoreAndWhatItMaySpillTo) {
  engine_options_.resident_tokens = 0;
  MakeSmall();
  Request request = Of(1, 100);
  request.spills = true;
  EXPECT_EQ(engine_->Submit(request).error().code, ErrorCode::kUnsupported);
  End();
  engine_options_.resident_tokens = 100;
  MakeSmall();
  request.on_full = OnFull::kHalt;
  EXPECT_EQ(engine_->Submit(request).error().code, ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace quire::serve
