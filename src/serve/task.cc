#include "serve/task.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/canary.h"

namespace quire::serve {

std::string_view FinishName(Finish finish) {
  switch (finish) {
    case Finish::kLength: return "length";
    case Finish::kStop: return "stop";
    case Finish::kNoSpace: return "no_space";
    case Finish::kCancelled: return "cancelled";
    case Finish::kFailed: return "failed";
  }
  return "unknown";
}

Task::Task(SubmitCommand command, Session* session, bool starts_whole, Mailbox& mailbox,
           SessionKeeper& keeper, const Clock& clock)
    : id_(command.id),
      request_(std::move(command.request)),
      submitted_us_(command.submitted_us),
      session_(session),
      mailbox_(mailbox),
      keeper_(keeper),
      clock_(clock),
      text_(request_.prompt),
      prompt_tokens_(text_.size()),
      sampler_(request_.sampling),
      starts_whole_(starts_whole) {
  response_.prompt_tokens = prompt_tokens_;
  if (session_ == nullptr) return;
  has_text_ = false;
  if (session_->in_memory) {
    TakeText();
  } else {
    waits_ = Waits::kText;
  }
}

void Task::TakeText() {
  text_.insert(text_.begin(), session_->text.begin(), session_->text.end());
  tokens_before_ = session_->text.size();
  std::vector<TokenId>().swap(session_->text);
  sampler_ = model::Sampler(session_->sampler);
  has_text_ = true;
  waits_ = Waits::kNothing;
  prompt_tokens_ = text_.size();
  response_.prompt_tokens = prompt_tokens_;
  if (cancel_once_read_) End(Finish::kCancelled);
}

uint64_t Task::tokens_at_most() const {
  // The last generated token is never fed back, so its K and V need no room.
  return prompt_tokens_ + std::max<uint64_t>(request_.max_tokens, 1) - 1;
}

void Task::WaitForPrefix(RequestId owner, uint64_t tokens) {
  waits_ = Waits::kPrefix;
  prefix_owner_ = owner;
  prefix_tokens_ = tokens;
}

void Task::Start(std::unique_ptr<Sequence> sequence, std::vector<MissRun> missing,
                 uint64_t loaded_tokens) {
  sequence_ = std::move(sequence);
  waits_ = Waits::kNothing;
  observer_.reset();
  if (!request_.keep.keeps_all() && request_.keep.by != KeepBy::kRecent && !kept_) {
    observer_.emplace(ObservedFrom(request_.keep, prompt_tokens_));
  }
  stop_at_ = UINT64_MAX;
  if (started_) {
    SkipComputed();
    return;
  }
  started_ = true;
  furthest_ = position();
  response_.reused_tokens = furthest_;
  response_.loaded_tokens = loaded_tokens;
  if (!missing.empty()) response_.miss_reason = missing.front().reason;
  response_.missing = std::move(missing);
}

// What lies between where it was and where it is now was not computed for it. Returns the tokens.
uint64_t Task::SkipComputed() {
  if (tokens_generated() > 0 || position() <= furthest_) return 0;
  const uint64_t tokens = position() - furthest_;
  furthest_ = position();
  response_.reused_tokens += tokens;
  return tokens;
}

void Task::Join(std::unique_ptr<Sequence> sequence, std::vector<MissRun> missing) {
  stop_at_ = UINT64_MAX;
  if (sequence != nullptr) sequence_ = std::move(sequence);
  response_.loaded_tokens += SkipComputed();
  if (response_.preemptions > 0 || missing.empty()) return;
  response_.miss_reason = missing.front().reason;
  response_.missing = std::move(missing);
}

std::unique_ptr<Sequence> Task::TakeFromSession() {
  return session_ != nullptr ? std::move(session_->sequence) : nullptr;
}

void Task::Preempt() {
  if (Planted(Canary::kForgetSampler)) sampler_ = model::Sampler(request_.sampling);
  sequence_.reset();
  paused_us_.reset();
  ++response_.preemptions;
}

uint64_t Task::goal() const {
  // The logits after a session's last token are for the turn that generates: it feeds that token.
  const bool feeds_only = session_ != nullptr && request_.max_tokens == 0;
  return text_.size() - (feeds_only ? 1 : 0);
}

std::span<const TokenId> Task::NextTokens(uint64_t tokens_max) const {
  const uint64_t at = position();
  // What is kept of a prompt is chosen where the prompt ends, so a step ends there.
  const uint64_t end = !publishes() && at < prompt_tokens_ ? prompt_tokens_ : goal();
  const uint64_t stop = std::max(at, std::min(end, stop_at_));
  return std::span(text_).subspan(at, std::min(stop - at, tokens_max));
}

uint64_t Task::LogitsOf(uint64_t tokens) const {
  if (request_.all_logits) return tokens;
  return request_.max_tokens > 0 && position() + tokens == goal() ? 1 : 0;
}

model::ImportanceObserver* Task::observer() {
  return observer_ && position() < prompt_tokens_ ? &*observer_ : nullptr;
}

void Task::ForgetObservedSince(std::optional<model::ImportanceObserver> before) {
  observer_.reset();
  if (before) observer_.emplace(*std::move(before));
}

bool Task::GaveBack() {
  const uint64_t before = held_bytes_;
  NoteHeld();
  return held_bytes_ < before;
}

// At the end of the prompt: goes on with what is to be kept of it, and gives the rest back.
Result<void> Task::Keep(const NumericProfile& profile) {
  if (publishes() || position() != prompt_tokens_) return {};
  if (!kept_) {
    kept_ = BlocksToKeep(request_.keep, sequence_->length() / profile.block_tokens, profile,
                         observer_ ? observer_->importance() : std::span<const double>{});
  }
  QUIRE_ASSIGN(auto selected, sequence_->Select(*kept_));
  sequence_ = std::move(selected);
  response_.dropped_tokens = sequence_->dropped_tokens();
  return sequence_->Reserve(tokens_at_most() - sequence_->dropped_tokens());
}

uint64_t Task::Advance(uint64_t tokens, std::span<const float> logits, uint64_t vocab,
                       const NumericProfile& profile) {
  const uint64_t at = position();
  const uint64_t before = std::min(tokens, furthest_ - std::min(furthest_, at - tokens));
  const uint64_t fresh = tokens - before;
  furthest_ = std::max(furthest_, at);
  response_.recomputed_tokens += before;
  if (request_.all_logits && fresh > 0) {
    const std::span<const float> rows = logits.subspan(before * vocab);
    mailbox_.Post(id_, Logits{.first_position = at - fresh, .rows = {rows.begin(), rows.end()}});
  }
  if (auto kept = Keep(profile); !kept) {
    Fail(std::move(kept).error());
    return fresh;
  }
  if (tokens_generated() == 0 && fresh > 0) {
    response_.computed_tokens = furthest_ - response_.reused_tokens;
    mailbox_.Post(id_, Progress{.done = at, .total = prompt_tokens_});
  }
  if (position() < goal()) return fresh;
  if (request_.max_tokens == 0) {
    End(Finish::kLength);
  } else {
    Draw(logits.last(vocab));
  }
  return fresh;
}

namespace {

void AddLogprobs(std::span<const float> logits, uint32_t likeliest, NewToken& event) {
  const double most = *std::ranges::max_element(logits);
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - most);
  const double log_sum = most + std::log(sum);
  const auto logprob = [&](TokenId token) {
    return static_cast<float>(logits[static_cast<size_t>(token)] - log_sum);
  };
  event.logprob = logprob(event.token);
  std::vector<TokenId> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  const size_t count = std::min<size_t>(likeliest, ids.size());
  std::partial_sort(ids.begin(), ids.begin() + static_cast<int64_t>(count), ids.end(),
                    [&](TokenId a, TokenId b) {
                      const float one = logits[static_cast<size_t>(a)];
                      const float other = logits[static_cast<size_t>(b)];
                      return one != other ? one > other : a < b;
                    });
  for (size_t i = 0; i < count; ++i) event.likeliest.push_back({ids[i], logprob(ids[i])});
}

}  // namespace

void Task::Draw(std::span<const float> logits) {
  if (!std::ranges::all_of(logits, [](float logit) { return std::isfinite(logit); })) {
    // No token is the most likely one, nor are there probabilities to draw by.
    return Fail({ErrorCode::kCorrupt,
                 fmt::format("the logits after position {} are not finite: the weights hold NaN "
                             "or infinity, or what is computed from them overflows",
                             position() - 1)});
  }
  digest_.Update(std::as_bytes(logits));
  const TokenId token = sampler_.Next(logits);
  response_.tokens.push_back(token);
  text_.push_back(token);
  last_us_ = clock_.NowMicros();
  if (tokens_generated() == 1) first_us_ = last_us_;
  NewToken event{.token = token};
  if (request_.logprobs) AddLogprobs(logits, *request_.logprobs, event);
  mailbox_.Post(id_, std::move(event));
  if (std::ranges::find(request_.stop_tokens, token) != request_.stop_tokens.end()) {
    return End(Finish::kStop);
  }
  if (tokens_generated() == request_.max_tokens) End(Finish::kLength);
}

void Task::End(Finish finish, CancelledTurn turn) {
  ended_ = true;
  response_.finish = finish;
  response_.logits_digest = digest_.Finish();
  const size_t generated = tokens_generated();
  if (generated > 0) response_.ttft_ms = static_cast<double>(first_us_ - submitted_us_) / 1e3;
  if (generated > 1) {
    response_.ms_per_token =
        static_cast<double>(last_us_ - first_us_) / 1e3 / static_cast<double>(generated - 1);
  }
  if (sequence_ != nullptr) {
    response_.sequence = sequence_->stats();
    response_.kv_bytes = response_.sequence.bytes;
  }
  if (session_ != nullptr) return EndTurn(turn);
  sequence_.reset();
  mailbox_.PostLast(id_, std::move(response_));
}

void Task::EndTurn(CancelledTurn turn) {
  session_->in_turn = false;
  const bool stands = turn == CancelledTurn::kStands;
  if (has_text_) {
    if (!stands) text_.resize(tokens_before_);
    // A sequence holds at most all tokens but the last.
    if (sequence_ != nullptr && position() < text_.size()) {
      session_->sequence = std::move(sequence_);
    }
    session_->text = std::move(text_);
  }
  sequence_.reset();
  if (!stands) return mailbox_.PostLast(id_, std::move(response_));
  session_->sampler = sampler_.state();
  keeper_.EndTurn(*session_, id_, std::move(response_));
}

void Task::Fail(Error error) {
  response_.error = std::move(error);
  End(Finish::kFailed, CancelledTurn::kUndone);
}

}  // namespace quire::serve
