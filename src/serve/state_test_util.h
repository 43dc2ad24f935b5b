// The state of an engine that no engine turns: tests drive each of its objects alone.
#ifndef QUIRE_SERVE_STATE_TEST_UTIL_H_
#define QUIRE_SERVE_STATE_TEST_UTIL_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "cache/test_util.h"
#include "serve/state.h"

namespace quire::serve {

/// On a small cache and a pretended model, which draws token 0 from all its logits.
class StateTest : public testing::Test {
 protected:
  static constexpr uint64_t kVocab = 8;
  static constexpr uint32_t kBlock = cache::kBlock;

  /// Room for `slots` blocks.
  void Make(uint64_t slots, const EngineOptions& options = {}, CacheOptions cache_options = {},
            const NumericProfile& profile = NumericProfile::Uniform(Codec::kF16)) {
    End();
    cache_options.clock = &clock_;
    test_.emplace(slots, cache::SmallGeometry(), profile, 0, std::move(cache_options));
    mailbox_.emplace(MailboxLimits{.requests_max = 1000, .sessions_max = 10, .events_max = 8});
    keeper_.emplace(*mailbox_, *test_->cache, nullptr, kVocab, 0);
    retainer_.emplace(*test_->cache, test_->identity, RetainLimits());
    state_.reset(new EngineState{.cache = *test_->cache,
                                 .clock = clock_,
                                 .mailbox = *mailbox_,
                                 .keeper = *keeper_,
                                 .options = options,
                                 .stages = stages_});
  }
  ~StateTest() override { End(); }
  void End() {
    state_.reset();
    keeper_.reset();
    retainer_.reset();
    test_.reset();
  }

  static std::vector<TokenId> Tokens(uint64_t count, uint64_t seed) {
    return cache::SomeTokens(count, seed);
  }

  /// A request that waits.
  Task& Add(Request request, bool starts_whole = true) {
    const RequestId id = mailbox_->Submit(std::move(request), clock_.NowMicros()).value();
    auto commands = mailbox_->TakeCommands();
    auto& command = std::get<SubmitCommand>(commands.back());
    const SessionId in = command.request.session;
    Session* const session = in.is_none() ? nullptr : keeper_->Find(in);
    auto task =
        std::make_unique<Task>(std::move(command), session, starts_whole, *mailbox_, *keeper_,
                               *retainer_, test_->cache->options().profile, clock_);
    if (session != nullptr) keeper_->BeginTurn(*session);
    state_->shares.Enter(task->tenant());
    state_->tasks.Add(std::move(task));
    return *state_->tasks.Find(id);
  }
  /// Gives it a sequence with room for its prompt alone.
  void Start(Task& task) {
    auto plan = test_->cache->Acquire({.tenant = task.tenant(),
                                       .identity = &test_->identity,
                                       .tokens = task.text().tokens(),
                                       .reuse = task.request().reuses()});
    const SequenceOptions options{.reserve_tokens = task.text().tokens().size(),
                                  .on_full = OnFull::kHalt,
                                  .publish = task.request().publishes()};
    state_->tasks.Start(task, test_->cache->Open(*std::move(plan), options).value(), {}, 0);
  }
  /// One that runs, and has computed so many tokens.
  Task& AddRunning(Request request, uint64_t computed = 0, bool starts_whole = true) {
    Task& task = Add(std::move(request), starts_whole);
    Start(task);
    if (computed > 0) Compute(task, computed);
    return task;
  }
  /// The next tokens of its text, as a step does.
  uint64_t Compute(Task& task, uint64_t tokens) {
    const uint64_t rows = task.text().LogitsOf(task.position(), tokens);
    const auto upto = task.text().tokens().first(task.position() + tokens);
    cache::Must(test_->model.Feed(task.sequence(), upto));
    std::vector<float> logits(rows * kVocab);
    for (uint64_t row = 0; row < rows; ++row) logits[row * kVocab] = 1.0f;
    const uint64_t at = task.position();
    return task.Advance({.begin = at - tokens, .end = at}, logits, kVocab);
  }
  /// Until its reader is too slow for it to go on.
  void FillEvents(Task& task) {
    while (mailbox_->HasCapacity(task.id(), Task::kEventsOfAStep)) {
      mailbox_->Post(task.id(), NewToken{});
    }
  }
  void TakeEvents(const Task& task) {
    while (mailbox_->Next(task.id())) {
    }
  }
  /// The answer of a request that has ended.
  std::optional<Response> ResponseOf(RequestId id) {
    while (auto event = mailbox_->Next(id)) {
      if (auto* response = std::get_if<Response>(&*event)) return std::move(*response);
    }
    return std::nullopt;
  }

  ManualClock clock_;
  std::optional<cache::TestCache> test_;
  uint32_t stages_ = 1;  // of the state that Make makes
  std::optional<Mailbox> mailbox_;
  std::optional<SessionKeeper> keeper_;
  std::optional<Retainer> retainer_;
  std::unique_ptr<EngineState> state_;
};

}  // namespace quire::serve

#endif  // QUIRE_SERVE_STATE_TEST_UTIL_H_
