// One request on its way: waiting, then reading its prompt, then generating, then ended.
#ifndef QUIRE_SERVE_TASK_H_
#define QUIRE_SERVE_TASK_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/hash.h"
#include "model/forward.h"
#include "model/sampling.h"
#include "quire/env.h"
#include "serve/mailbox.h"
#include "serve/request.h"
#include "serve/session_keeper.h"

namespace quire::serve {

/// What a task waits for, when it holds no sequence.
enum class Waits : uint8_t {
  kNothing = 1,  // it has not been looked at since something changed for it
  kRoom = 2,     // until somebody gives some back
  kPrefix = 3,   // until another task has computed what both begin with
  kReader = 4,   // until its events are taken
  kLoad = 5,     // until what the store has of its text was loaded
  kText = 6,     // until the text of its session was read
};

/// Its text is the prompt and what it generated. All of the text but the last generated token has
/// to be in the sequence before the next token can be drawn; where a preempted task lost its
/// sequence, the text is read again. What it has drawn, hashed and said is never done twice.
///
/// Threads: one
class Task {
 public:
  /// `session` is the one the request names, or null; it must outlive the task.
  Task(SubmitCommand command, Session* session, bool starts_whole, Mailbox& mailbox,
       SessionKeeper& keeper, const Clock& clock);

  RequestId id() const { return id_; }
  const Request& request() const { return request_; }
  TenantId tenant() const { return session_ != nullptr ? session_->tenant : request_.tenant; }
  uint64_t submitted_us() const { return submitted_us_; }
  std::span<const TokenId> text() const { return text_; }
  uint64_t prompt_tokens() const { return prompt_tokens_; }
  bool ended() const { return ended_; }
  /// Tokens it may hold in all.
  uint64_t tokens_at_most() const;
  /// Others may use what it computes.
  bool publishes() const { return request_.keep.keeps_all(); }
  bool reuses() const { return request_.reuse && request_.keep.keeps_all(); }

  /// It starts with room for all it may need, whatever the engine does with others.
  bool starts_whole() const { return starts_whole_; }
  void StartWhole() { starts_whole_ = true; }

  // Waiting.
  Waits waits() const { return waits_; }
  /// Of kPrefix: whose, and how many tokens of it.
  RequestId prefix_owner() const { return prefix_owner_; }
  uint64_t prefix_tokens() const { return prefix_tokens_; }
  void WaitFor(Waits what) { waits_ = what; }
  void WaitForPrefix(RequestId owner, uint64_t tokens);

  // Running.
  bool running() const { return sequence_ != nullptr; }
  Sequence& sequence() { return *sequence_; }
  const Sequence& sequence() const { return *sequence_; }
  /// The text of its session has come.
  void TakeText();
  /// It ends as cancelled then, and what it was to feed stands.
  void CancelOnceRead() { cancel_once_read_ = true; }
  /// Goes on with this; the first time, counts what of it was reused.
  void Start(std::unique_ptr<Sequence> sequence, std::vector<MissRun> missing,
             uint64_t loaded_tokens);
  /// Goes on with a sequence that is longer by what was loaded while it computed; with the one it
  /// has where that is null.
  void Join(std::unique_ptr<Sequence> sequence, std::vector<MissRun> missing);
  /// Reads no further for now: what comes after so many tokens of the text is being loaded.
  void StopAt(uint64_t tokens) { stop_at_ = tokens; }
  /// The sequence that its session kept; null if there is none.
  std::unique_ptr<Sequence> TakeFromSession();
  /// Gives its sequence back. It has to be started again.
  void Preempt();

  /// Tokens behind it, those dropped too.
  uint64_t position() const { return sequence_->length() + sequence_->dropped_tokens(); }
  /// Tokens that must be in the sequence before it can draw, or end.
  uint64_t goal() const;
  /// It has one token to feed, the one it generated last.
  bool decoding() const { return tokens_generated() > 0 && goal() - position() == 1; }
  /// Of the text, at most `tokens_max`.
  std::span<const TokenId> NextTokens(uint64_t tokens_max) const;
  /// Rows of logits that a step over so many of them has to give: all, the last, or none.
  uint64_t LogitsOf(uint64_t tokens) const;
  /// Events that its next step may make.
  static constexpr uint32_t kEventsOfAStep = 3;

  /// Slow readers: since when it stands still, if it does.
  std::optional<uint64_t> paused_us() const { return paused_us_; }
  void SetPaused(std::optional<uint64_t> since_us) { paused_us_ = since_us; }

  // Who looks at the attention of the next step, and how to go back.
  model::ImportanceObserver* observer();
  std::optional<model::ImportanceObserver> ObservedSoFar() const { return observer_; }
  void ForgetObservedSince(std::optional<model::ImportanceObserver> before);

  /// What it holds from now on, until GaveBack.
  void NoteHeld() { held_bytes_ = sequence_->stats().bytes; }
  /// Whether it holds less than it did at the last call of the two.
  bool GaveBack();

  /// Takes in a step over `tokens` tokens, which ended with logits as LogitsOf said. Returns how
  /// many of the tokens were computed for the first time.
  ///
  /// Shape: logits [rows, vocab]
  uint64_t Advance(uint64_t tokens, std::span<const float> logits, uint64_t vocab,
                   const NumericProfile& profile);

  /// Of a session: `turn` says whether what was fed and said stands.
  void End(Finish finish, CancelledTurn turn = CancelledTurn::kStands);
  /// What a session was fed is undone.
  void Fail(Error error);

 private:
  uint64_t tokens_generated() const { return response_.tokens.size(); }
  uint64_t SkipComputed();
  Result<void> Keep(const NumericProfile& profile);
  void EndTurn(CancelledTurn turn);
  void Draw(std::span<const float> logits);

  const RequestId id_;
  const Request request_;
  const uint64_t submitted_us_;
  Session* const session_;
  Mailbox& mailbox_;
  SessionKeeper& keeper_;
  const Clock& clock_;

  std::vector<TokenId> text_;
  uint64_t tokens_before_ = 0;  // of its session, when it began
  bool has_text_ = true;        // its session's, if it has one
  bool cancel_once_read_ = false;
  uint64_t prompt_tokens_ = 0;
  model::Sampler sampler_;
  std::unique_ptr<Sequence> sequence_;
  std::optional<model::ImportanceObserver> observer_;
  std::optional<std::vector<uint64_t>> kept_;  // blocks of the prompt, once it was read
  Response response_;
  Blake2b<16> digest_;
  bool starts_whole_;
  bool started_ = false;
  bool ended_ = false;
  uint64_t stop_at_ = UINT64_MAX;
  uint64_t furthest_ = 0;  // position that was reached, also before it was preempted
  Waits waits_ = Waits::kNothing;
  RequestId prefix_owner_{};
  uint64_t prefix_tokens_ = 0;
  std::optional<uint64_t> paused_us_;
  uint64_t held_bytes_ = 0;
  uint64_t first_us_ = 0;  // of the first generated token
  uint64_t last_us_ = 0;
};

}  // namespace quire::serve

#endif  // QUIRE_SERVE_TASK_H_
