#include "serve/task.h"

#include <algorithm>
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
           SessionKeeper& keeper, Retainer& retainer, const NumericProfile& profile,
           const Clock& clock)
    : id_(command.id),
      request_(std::move(command.request)),
      adapter_(std::move(command.adapter)),
      submitted_us_(command.submitted_us),
      session_(session),
      mailbox_(mailbox),
      keeper_(keeper),
      retainer_(retainer),
      profile_(profile),
      text_(request_),
      answer_(id_, request_, submitted_us_, mailbox, clock),
      kept_(request_.keep),
      starts_whole_(starts_whole) {
  if (session_ == nullptr) return;
  has_text_ = false;
  if (session_->in_memory) {
    TakeText();
  } else {
    wait_ = {.what = Waits::kText};
  }
}

void Task::TakeText() {
  text_.PutBefore(session_->text);
  std::vector<TokenId>().swap(session_->text);
  answer_.SetSampler(session_->sampler);
  has_text_ = true;
  wait_ = {};
  if (cancel_once_read_) End(Finish::kCancelled);
}

// One that was opened to evict, or not to, cannot do otherwise: it is let go.
std::unique_ptr<Sequence> Task::TakeFromSession(Endings& endings) {
  if (session_ == nullptr) return nullptr;
  auto sequence = std::move(session_->sequence);
  const bool evicts = request_.on_full != OnFull::kNoEvict;
  if (session_->evicts != evicts) endings.Take(std::move(sequence));
  return sequence;
}

void Task::Start(std::unique_ptr<Sequence> sequence, std::vector<MissRun> missing,
                 uint64_t loaded_tokens) {
  sequence_ = std::move(sequence);
  is_approximate_ = sequence_->stats().tokens_approximate > 0;
  ++starts_;
  wait_ = {};
  took_room_ = false;
  kept_.Begin(text_.prompt_tokens());
  StopAt(UINT64_MAX);
  if (std::exchange(begins_again_, false) && !began_at_.insert(position()).second) {
    ++renewals_in_vain_;
  }
  origins_before_ = origins_;
  origins_.Start(position(), std::move(missing), loaded_tokens);
}

void Task::Join(std::unique_ptr<Sequence> sequence, std::vector<MissRun> missing) {
  StopAt(UINT64_MAX);
  if (sequence != nullptr) {
    aside_.reset();
    sequence_ = std::move(sequence);
    ++starts_;
  }
  origins_.Join(position(), std::move(missing));
}

std::unique_ptr<Sequence> Task::Withdraw() {
  aside_.reset();
  paused_us_.reset();
  origins_ = std::move(origins_before_);
  return std::move(sequence_);
}

std::unique_ptr<Sequence> Task::Preempt() {
  if (Planted(Canary::kForgetSampler)) {
    answer_.SetSampler(model::Sampler(request_.sampling).state());
  }
  aside_.reset();
  paused_us_.reset();
  // What it began with did not come.
  if (sequence_->arrives()) origins_ = std::move(origins_before_);
  origins_.Preempt();
  return std::move(sequence_);
}

bool Task::decoding() const {
  return text_.generated_tokens() > 0 && text_.goal() - position() == 1;
}

std::span<const TokenId> Task::NextTokens(uint64_t tokens_max) const {
  const KeepOptions& keep = request_.keep;
  if (keep.blocks_max > 0) {
    const uint64_t most = keep.blocks_max * profile_.block_tokens;
    const uint64_t left = most - std::min(most, sequence_->length());
    const uint64_t after_choice = (keep.blocks_max - keep.blocks_after()) * profile_.block_tokens;
    tokens_max = std::min(tokens_max, left == 0 ? after_choice : left);
  }
  return text_.Next(position(), tokens_max);
}

bool Task::GaveBack() {
  const uint64_t before = held_bytes_;
  NoteHeld();
  return held_bytes_ < before;
}

Result<void> Task::Reserve(uint64_t tokens) {
  const bool is_bounded = request_.keep.blocks_max > 0;
  const bool is_full =
      is_bounded && sequence_->length() == request_.keep.blocks_max * profile_.block_tokens;
  const bool chooses = !is_bounded && !request_.keep.keeps_all() && !kept_.selected() &&
                       position() == text_.prompt_tokens();
  if (is_full || chooses) {
    QUIRE_ASSIGN(sequence_, kept_.Select(*sequence_, profile_));
  }
  // One that started with room for all that it may need has it again.
  const bool may_end_early =
      request_.on_full == OnFull::kHalt || request_.on_full == OnFull::kFewer;
  uint64_t held = sequence_->length() + tokens;
  if (kept_.selected() && !may_end_early) {
    held = std::min(tokens_held_at_most(), text_.tokens_at_most() - sequence_->dropped_tokens());
  }
  return sequence_->Reserve(held);
}

bool Task::Draws(const TokenRange& step) const {
  return step.end >= text_.goal() && request_.max_tokens != 0;
}

void Task::Choose(const TokenRange& step, std::span<const float> logits, uint64_t vocab) {
  if (Draws(step)) answer_.Choose(logits.last(vocab), text_.tokens());
}

uint64_t Task::Advance(const TokenRange& step, std::span<const float> logits, uint64_t vocab) {
  const uint64_t at = step.end;
  const uint64_t tokens = step.end - step.begin;
  const uint64_t fresh = origins_.Advance(tokens, at);
  if (request_.all_logits && fresh > 0) {
    const std::span<const float> rows = logits.subspan((tokens - fresh) * vocab);
    mailbox_.Post(id_, Logits{.first_position = at - fresh, .rows = {rows.begin(), rows.end()}});
  }
  if (request_.prompt_logprobs && fresh > 0) {
    const auto said = SayPrompt(at - fresh, logits.subspan((tokens - fresh) * vocab), vocab);
    if (!said) {
      Fail(said.error());
      return fresh;
    }
  }
  if (text_.generated_tokens() == 0 && fresh > 0) {
    mailbox_.Post(id_, Progress{.done = at, .total = text_.prompt_tokens()});
  }
  if (Draws(step)) {
    Draw(logits.last(vocab));
  } else if (at >= text_.goal()) {
    End(Finish::kLength);
  }
  return fresh;
}

// Of the tokens behind `from`, as far as the prompt goes: the last row is for the answer.
Result<void> Task::SayPrompt(uint64_t from, std::span<const float> logits, uint64_t vocab) {
  if (from + 1 >= text_.prompt_tokens()) return {};
  const uint64_t count =
      std::min<uint64_t>(logits.size() / vocab, text_.prompt_tokens() - (from + 1));
  return answer_.SayPrompt(text_.tokens().subspan(from + 1, count), from + 1,
                           logits.first(count * vocab));
}

void Task::Draw(std::span<const float> logits) {
  const auto drawn = answer_.Draw(logits, text_.tokens());
  if (!drawn) return Fail(drawn.error());
  text_.Append(drawn->token);
  origins_.Generate();
  if (drawn->ends) End(*drawn->ends);
}

void Task::End(Finish finish, CancelledTurn turn) {
  ended_ = true;
  aside_.reset();  // nothing that is not committed stays in its sequence
  if (sequence_ != nullptr && sequence_->arrives()) Withdraw().reset();
  Response response = answer_.Take(finish);
  response.error = std::move(error_);
  response.prompt_tokens = text_.prompt_tokens();
  response.dropped_tokens = kept_.dropped_tokens();
  response.differs_at = differs_at_;
  std::move(origins_).Tell(response);
  if (sequence_ != nullptr) {
    response.sequence = sequence_->stats();
    response.kv_bytes = response.sequence.bytes;
  }
  if (finish != Finish::kFailed) {
    const uint64_t computed = sequence_ == nullptr ? 0 : position();
    response.retained =
        retainer_.Apply(request_, tenant(), adapter(), text_.tokens().first(computed));
  }
  if (session_ != nullptr) return EndTurn(turn, std::move(response));
  EndSequence();
  mailbox_.PostLast(id_, std::move(response));
}

// One that streams is taken with TakeSequence.
void Task::EndSequence() {
  if (sequence_ != nullptr && sequence_->streamed() == nullptr) sequence_.reset();
}

void Task::EndTurn(CancelledTurn turn, Response response) {
  session_->in_turn = false;
  const bool stands = turn == CancelledTurn::kStands;
  if (has_text_) {
    if (!stands) text_.Undo();
    // A sequence holds at most all tokens but the last.
    if (sequence_ != nullptr && position() < text_.tokens().size()) {
      session_->sequence = std::move(sequence_);
      session_->evicts = request_.on_full != OnFull::kNoEvict;
    }
    session_->text = text_.Take();
  }
  EndSequence();
  if (!stands) return mailbox_.PostLast(id_, std::move(response));
  session_->sampler = answer_.sampler();
  keeper_.EndTurn(*session_, id_, std::move(response));
}

void Task::Fail(Error error) {
  error_ = std::move(error);
  End(Finish::kFailed, CancelledTurn::kUndone);
}

}  // namespace quire::serve
