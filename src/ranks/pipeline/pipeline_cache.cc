#include "ranks/pipeline/pipeline_cache.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "cache/verbs/admit.h"

namespace quire::ranks::pipeline {

namespace {

// Of what the rank with the least room promises: with kFewer each rank has its own most.
uint64_t ReservedBy(const SequenceOptions& options, uint64_t prompt_tokens) {
  switch (options.on_full) {
    case OnFull::kReject:
    case OnFull::kNoEvict: return std::max(options.reserve_tokens, prompt_tokens);
    case OnFull::kHalt:
    case OnFull::kFewer: return prompt_tokens;
  }
  return 0;
}

// Where another rank has less of the prompt than this one's plan, which is of as much.
void BlameLeast(MissReason reason, Plan& plan) {
  std::vector<MissRun>& missing = cache::PlanState::Of(plan).missing;
  missing.assign(1, {.reason = reason, .tokens = plan.missing_tokens()});
}

}  // namespace

PipelineSequence::~PipelineSequence() {
  if (asked_) leader_.Forget(*asked_);
  static_cast<void>(leader_.Tell({.command = Command::kEnd, .sequence = number_}));
}

Result<void> PipelineSequence::Reserve(uint64_t tokens) {
  if (asked_ && !room_.Has(tokens)) QUIRE_TRY(leader_.Await(*asked_));
  const auto ask = [this](uint64_t asked) -> Result<void> {
    QUIRE_TRY(own_->Reserve(asked));
    QUIRE_ASSIGN(
        const Message all,
        leader_.Call({.command = Command::kReserve, .sequence = number_, .position = asked}));
    if (all.error) return std::unexpected(*all.error);
    return {};
  };
  QUIRE_TRY(room_.Grow(tokens, ask));
  ReserveAhead(tokens);
  return {};
}

// What one rank has not is asked for when it is needed.
void PipelineSequence::ReserveAhead(uint64_t tokens) {
  const auto ahead = room_.AskAhead(tokens);
  if (!grows_ || asked_ || !ahead || *ahead == ahead_tokens_) return;
  ahead_tokens_ = *ahead;
  if (!own_->Reserve(*ahead)) return;
  const auto asked =
      leader_.Ask({.command = Command::kReserve, .sequence = number_, .position = *ahead},
                  [this, tokens = *ahead](const Message& all) {
                    asked_.reset();
                    if (!all.error) room_.Have(tokens);
                  });
  if (asked) asked_ = *asked;
}

Result<void> PipelineSequence::Rollback(uint64_t position) {
  if (position != own_->length()) return Refuse("cut");
  return own_->Rollback(position);
}

// The others' are gone too: the next use of it is refused by the first of them.
void PipelineSequence::Reset() {
  if (asked_) leader_.Forget(*std::exchange(asked_, std::nullopt));
  own_->Reset();
  room_.Forget();
  static_cast<void>(leader_.Tell({.command = Command::kEnd, .sequence = number_}));
}

std::unexpected<Error> PipelineSequence::Refuse(std::string_view what) {
  return Fail(ErrorCode::kUnsupported,
              fmt::format("sequence: it lies on all ranks of a pipeline and is not {}; open "
                          "another one, which finds its blocks",
                          what));
}

Result<void> PipelineCache::TellOthers(const TenantChange& change,
                                       const std::function<void()>& meanwhile) {
  std::optional<Error> refused;
  QUIRE_ASSIGN(const uint64_t asked,
               leader_.Ask({.command = Command::kTenant, .text = Write(change)},
                           [&refused](const Message& all) { refused = all.error; }));
  meanwhile();
  if (auto answered = leader_.Await(asked); !answered) {
    leader_.Forget(asked);
    return answered;
  }
  if (refused) return std::unexpected(*std::move(refused));
  return {};
}

// Once a rank has less than another, all of them look again at no more than that: a rank whose
// layers have windows may not be able to go on from there, and then has still less.
Result<Plan> PipelineCache::Acquire(const AcquireRequest& request) {
  const bool opens = request.open_as != nullptr;
  std::optional<MissReason> reason;
  uint64_t tokens_max = request.tokens.size();
  while (true) {
    QUIRE_ASSIGN(Plan plan, FindPrefix(inner(), request, tokens_max, leader_.setup().loads));
    Message message = {.command = Command::kAcquire,
                       .tenant = request.tenant,
                       .position = tokens_max,
                       .tokens_least = plan.resident_tokens(),
                       .tokens_most = plan.resident_tokens(),
                       .reason = plan.reason(),
                       .reuse = request.reuse,
                       .opens = opens,
                       .options = opens ? *request.open_as : SequenceOptions{}};
    message.tokens.assign(request.tokens.begin(), request.tokens.end());
    QUIRE_ASSIGN(const Message all, leader_.Call(std::move(message)));
    if (all.error) return std::unexpected(*all.error);
    if (all.tokens_least == all.tokens_most) {
      if (reason) BlameLeast(*reason, plan);
      return plan;
    }
    reason = all.reason;
    tokens_max = all.tokens_least + 1;
  }
}

Result<std::unique_ptr<Sequence>> PipelineCache::Open(Plan plan, const SequenceOptions& options) {
  if (options.contiguous || options.resident_tokens > 0) {
    return Refuse("contiguous or streamed sequences");
  }
  const uint64_t prompt_tokens = plan.resident_tokens() + plan.missing_tokens();
  const uint64_t found = plan.resident_tokens();
  QUIRE_ASSIGN(auto own, inner().Open(std::move(plan), options));
  const uint64_t number = ++last_number_;
  Message message = {.command = Command::kOpen,
                     .sequence = number,
                     .tokens_least = found,
                     .tokens_most = found,
                     .options = options};
  QUIRE_ASSIGN(const Message all, leader_.Call(std::move(message)));
  // What reserves more than its prompt says how long it will be.
  auto sequence = std::make_unique<PipelineSequence>(
      std::move(own), number, ReservedRoom(inner().options(), ReservedBy(options, prompt_tokens)),
      /*grows=*/options.reserve_tokens <= prompt_tokens, leader_);
  if (all.error) return std::unexpected(*all.error);  // those that opened it end it
  sequence->ReserveAhead(prompt_tokens);
  return sequence;
}

}  // namespace quire::ranks::pipeline
