// Steps that fail inside the engine: whose fault it was, and that it does not show elsewhere.
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <new>

#include "serve/test_util.h"

namespace quire::serve {
namespace {

/// Requests that are told from each other by the length of their prompt: 20, 21, 22 ...
class EngineFaultsTest : public EngineTest {
 protected:
  static constexpr uint64_t kFirstPrompt = 20;
  static constexpr uint32_t kMaxTokens = 12;

  EngineFaultsTest() { faults_ = &cache_faults_; }

  static std::vector<Request> Requests(uint64_t count) {
    std::vector<Request> requests;
    for (uint64_t i = 0; i < count; ++i) {
      requests.push_back({.prompt = SomeTokens(kFirstPrompt + i, 100 + i),
                          .max_tokens = kMaxTokens,
                          .reuse = false});
    }
    return requests;
  }

  /// What each gives alone, without faults.
  std::vector<Response> Alone(const std::vector<Request>& requests) {
    std::vector<Response> responses;
    for (const Request& request : requests) responses.push_back(RunOne(request));
    return responses;
  }

  /// Which of the Requests a sequence belongs to, while its output grows to kMaxTokens: the engine
  /// admits them in order, one sequence each.
  uint64_t NumberOf(const Sequence& sequence) {
    const auto [place, added] = numbers_.try_emplace(sequence.id().number(), numbers_.size());
    return place->second;
  }

  void ExpectNothingLeft() {
    EXPECT_EQ(cache_->stats().sequences, 0u);
    EXPECT_EQ(cache_->stats().sealed.slots_used, cache_->stats().published_blocks);
  }

  CacheFaults cache_faults_;
  std::map<uint64_t, uint64_t> numbers_;
};

TEST_F(EngineFaultsTest, OnlyTheRequestFailsThatCannotBeComputed) {
  constexpr uint64_t kCount = 5;
  for (uint64_t bad = 0; bad < kCount; ++bad) {
    for (const uint32_t layer : {0u, 1u}) {
      cache_faults_ = {};
      Make(64);
      std::vector<Request> requests = Requests(kCount);
      requests[1].all_logits = true;
      const std::vector<Response> alone = Alone(requests);
      uint64_t positions = 0;
      const auto on_event = [&](size_t index, const Event& event) {
        if (const auto* logits = std::get_if<Logits>(&event)) {
          EXPECT_EQ(index, 1u);
          EXPECT_EQ(logits->first_position, positions);  // each once, whatever was tried again
          positions += logits->rows.size() / kTestVocab;
        }
        return true;
      };
      numbers_.clear();
      cache_faults_.append = [&](Sequence& sequence, uint32_t at) -> Result<void> {
        if (NumberOf(sequence) != bad || at != layer) return {};
        if (sequence.length() < kFirstPrompt + bad + 3) return {};  // three tokens are fed back
        return Fail(ErrorCode::kNoSpace, "injected");
      };
      const std::vector<Response> responses = Run(requests, on_event);
      EXPECT_EQ(positions, kFirstPrompt + 1 + responses[1].tokens.size() - 1);
      for (uint64_t i = 0; i < kCount; ++i) {
        SCOPED_TRACE(testing::Message() << "bad " << bad << " layer " << layer << " request " << i);
        if (i == bad) {
          EXPECT_EQ(responses[i].finish, Finish::kFailed);
          EXPECT_EQ(responses[i].error.code, ErrorCode::kNoSpace);
          EXPECT_EQ(responses[i].error.message, "injected");
          // What came before the fault stands.
          ASSERT_EQ(responses[i].tokens.size(), 4u);
          EXPECT_TRUE(std::equal(responses[i].tokens.begin(), responses[i].tokens.end(),
                                 alone[i].tokens.begin()));
        } else {
          EXPECT_EQ(responses[i].finish, Finish::kLength) << responses[i].error.message;
          EXPECT_EQ(responses[i].tokens, alone[i].tokens);
          EXPECT_EQ(responses[i].logits_digest, alone[i].logits_digest);
        }
      }
      ExpectNothingLeft();
    }
  }
}

TEST_F(EngineFaultsTest, AFaultOfAllFailsEachWithItsOwnError) {
  Make(64);
  const std::vector<Request> requests = Requests(3);
  cache_faults_.append = [&](Sequence& sequence, uint32_t layer) -> Result<void> {
    const uint64_t number = NumberOf(sequence);
    // The first decodes alone before it can meet the others; from then on nothing works.
    if (numbers_.size() < 3 || layer == 0) return {};
    return Fail(ErrorCode::kIo, "injected for " + std::to_string(number));
  };
  const std::vector<Response> responses = Run(requests);
  for (uint64_t i = 0; i < 3; ++i) {
    EXPECT_EQ(responses[i].finish, Finish::kFailed);
    EXPECT_EQ(responses[i].error.code, ErrorCode::kIo);
    EXPECT_EQ(responses[i].error.message, "injected for " + std::to_string(i));
  }
  ExpectNothingLeft();
}

/// Lets a step fail at its second layer where two sequences or more are in it.
class FailsTogether {
 public:
  void Install(CacheFaults& faults, std::function<bool(Sequence&)> applies) {
    faults.append = [this, applies = std::move(applies)](Sequence& sequence,
                                                         uint32_t layer) -> Result<void> {
      if (layer == 0) {
        ++in_step_;
        armed_ = armed_ || applies(sequence);
        return {};
      }
      if (in_step_ < 2 || !armed_) return {};
      ++failed_;
      return Fail(ErrorCode::kIo, "injected");
    };
    faults.commit = [this](Sequence&) { Begin(); };
    faults.rollback = [this](Sequence&) -> Result<void> {
      Begin();
      return {};
    };
  }
  uint64_t failed() const { return failed_; }

 private:
  void Begin() {
    in_step_ = 0;
    armed_ = false;
  }

  uint64_t in_step_ = 0;
  bool armed_ = false;
  uint64_t failed_ = 0;
};

TEST_F(EngineFaultsTest, AFaultOfTheBatchAloneFailsNobodyAndHoldsNobodyUp) {
  Make(64);
  const std::vector<Request> requests = Requests(4);
  const std::vector<Response> alone = Alone(requests);
  numbers_.clear();
  FailsTogether together;
  together.Install(cache_faults_, [](Sequence&) { return true; });
  std::vector<RequestId> ids;
  for (const Request& request : requests) ids.push_back(engine_->Submit(request).value());
  std::vector<uint64_t> tokens(requests.size());
  std::vector<Response> responses(requests.size());
  bool more = true;
  for (uint64_t tick = 0; more; ++tick) {
    more = engine_->Tick().worked;
    for (uint64_t i = 0; i < requests.size(); ++i) {
      uint64_t now = 0;
      while (auto event = engine_->Next(ids[i])) {
        if (std::holds_alternative<NewToken>(*event)) ++now;
        if (auto* last = std::get_if<Response>(&*event)) responses[i] = std::move(*last);
      }
      // From its first one on, each gets one token a step.
      const bool generates = tokens[i] > 0 && tokens[i] < kMaxTokens;
      EXPECT_TRUE(generates ? now == 1 : now <= 1) << tick << " " << i;
      tokens[i] += now;
    }
  }
  EXPECT_GT(together.failed(), 20u);
  for (uint64_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(responses[i].finish, Finish::kLength) << responses[i].error.message;
    EXPECT_EQ(responses[i].tokens, alone[i].tokens) << i;
    EXPECT_EQ(responses[i].logits_digest, alone[i].logits_digest) << i;
  }
  ExpectNothingLeft();
}

TEST_F(EngineFaultsTest, AStepThatIsTakenAgainObservesOnce) {
  Make(64);
  std::vector<Request> requests = Requests(4);
  for (Request& request : requests) request.max_tokens = 40;  // longer than it takes to read this:
  requests.push_back({.prompt = SomeTokens(400, 7),
                      .max_tokens = kMaxTokens,
                      .keep = {.share = 0.5, .by = KeepBy::kObserved}});
  const std::vector<Response> alone = Alone(requests);
  numbers_.clear();
  FailsTogether together;
  // At the second layer, so that what the first looks at would weigh more if it were kept.
  together.Install(cache_faults_, [&](Sequence& sequence) {
    return NumberOf(sequence) == 4 && sequence.length() < 400;
  });
  const std::vector<Response> responses = Run(requests);
  EXPECT_GT(together.failed(), 5u);
  EXPECT_GT(responses[4].dropped_tokens, 0u);
  for (uint64_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(responses[i].finish, Finish::kLength) << responses[i].error.message;
    EXPECT_EQ(responses[i].logits_digest, alone[i].logits_digest) << i;
  }
}

TEST_F(EngineFaultsTest, MemoryThatRunsOutInAStepFailsWhoNeedsIt) {
  for (const bool at_commit : {false, true}) {
    cache_faults_ = {};
    Make(64);
    const std::vector<Request> requests = Requests(4);
    const std::vector<Response> alone = Alone(requests);
    numbers_.clear();
    const auto fail = [&](Sequence& sequence) {
      if (NumberOf(sequence) == 2 && sequence.length() >= kFirstPrompt + 5) throw std::bad_alloc();
    };
    if (at_commit) {
      cache_faults_.commit = fail;
    } else {
      cache_faults_.append = [&](Sequence& sequence, uint32_t) -> Result<void> {
        fail(sequence);
        return {};
      };
    }
    const std::vector<Response> responses = Run(requests);
    for (uint64_t i = 0; i < requests.size(); ++i) {
      SCOPED_TRACE(testing::Message() << "at commit " << at_commit << " request " << i);
      if (i == 2) {
        EXPECT_EQ(responses[i].finish, Finish::kFailed);
        EXPECT_EQ(responses[i].error.code, ErrorCode::kNoSpace);
        EXPECT_NE(responses[i].error.message.find("memory"), std::string::npos);
        continue;
      }
      EXPECT_EQ(responses[i].finish, Finish::kLength) << responses[i].error.message;
      EXPECT_EQ(responses[i].tokens, alone[i].tokens);
      EXPECT_EQ(responses[i].logits_digest, alone[i].logits_digest);
    }
    ExpectNothingLeft();
  }
}

TEST_F(EngineFaultsTest, ASequenceThatCannotGoBackFailsWithoutTheOthers) {
  Make(64);
  const std::vector<Request> requests = Requests(3);
  const std::vector<Response> alone = Alone(requests);
  numbers_.clear();
  bool thrown = false;
  cache_faults_.append = [&](Sequence& sequence, uint32_t layer) -> Result<void> {
    if (NumberOf(sequence) == 1 && layer == 1 && sequence.length() > kFirstPrompt + 4) {
      thrown = true;
      throw std::bad_alloc();
    }
    return {};
  };
  cache_faults_.rollback = [&](Sequence& sequence) -> Result<void> {
    if (thrown && NumberOf(sequence) == 1) return Fail(ErrorCode::kNoSpace, "injected");
    return {};
  };
  const std::vector<Response> responses = Run(requests);
  EXPECT_EQ(responses[1].finish, Finish::kFailed);
  EXPECT_EQ(responses[1].error.message, "injected");
  for (const uint64_t i : {0, 2}) {
    EXPECT_EQ(responses[i].finish, Finish::kLength) << responses[i].error.message;
    EXPECT_EQ(responses[i].logits_digest, alone[i].logits_digest);
  }
  ExpectNothingLeft();
}

}  // namespace
}  // namespace quire::serve
