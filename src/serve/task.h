// One request on its way: waiting, then reading its prompt, then generating, then ended.
#ifndef QUIRE_SERVE_TASK_H_
#define QUIRE_SERVE_TASK_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <unordered_set>
#include <utility>
#include <vector>

#include "model/model.h"
#include "quire/env.h"
#include "serve/adapters.h"
#include "serve/answer.h"
#include "serve/keep.h"
#include "serve/mailbox.h"
#include "serve/request.h"
#include "serve/retainer.h"
#include "serve/session_keeper.h"
#include "serve/text.h"

namespace quire::serve {

/// What a task waits for, when it holds no sequence.
enum class Waits : uint8_t {
  kNothing = 1,  // it has not been looked at since something changed for it
  kRoom = 2,     // until another gives some back
  kPrefix = 3,   // until another task has computed what both begin with
  kReader = 4,   // until its events are taken
  kLoad = 5,     // until what the store has of its text was loaded, or may be
  kText = 6,     // until the text of its session was read
};

struct Wait {
  Waits what = Waits::kNothing;
  // Of kPrefix: whose, and how many tokens of it.
  RequestId owner{};
  uint64_t tokens = 0;
};

/// All of its text but the last generated token has to be in its sequence before the next token can
/// be drawn; where a preempted task lost its sequence, the text is read again. What it has drawn,
/// hashed and said is never done twice.
///
/// Threads: one
class Task {
 public:
  /// `session` is the one the request names, or null; it must outlive the task.
  Task(SubmitCommand command, Session* session, bool starts_whole, Mailbox& mailbox,
       SessionKeeper& keeper, Retainer& retainer, const NumericProfile& profile,
       const Clock& clock);

  RequestId id() const { return id_; }
  /// But for its prompt, which text() has.
  const Request& request() const { return request_; }
  TenantId tenant() const { return session_ != nullptr ? session_->tenant : request_.tenant; }
  /// What it is computed with; null: the base model.
  const ServedAdapter* adapter() const { return adapter_.get(); }
  const model::Adapter* weights_adapter() const {
    return adapter_ == nullptr ? nullptr : adapter_->adapter.get();
  }
  /// That of its session, before it starts.
  void SetAdapter(std::shared_ptr<const ServedAdapter> adapter) { adapter_ = std::move(adapter); }
  uint64_t submitted_us() const { return submitted_us_; }
  const Text& text() const { return text_; }
  bool ended() const { return ended_; }

  /// It starts with room for all it may need, whatever the engine does with others.
  bool starts_whole() const { return starts_whole_; }
  void StartWhole() { starts_whole_ = true; }

  // Waiting.
  const Wait& wait() const { return wait_; }
  void WaitFor(const Wait& wait) { wait_ = wait; }
  /// The text of its session has come.
  void TakeText();
  /// It ends as cancelled then, and what it was to feed stands.
  void CancelOnceRead() { cancel_once_read_ = true; }
  /// A request of a lower priority gave its room up so that this one can start.
  void TakeRoom() { took_room_ = true; }
  /// Whether that has not been used yet.
  bool took_room() const { return took_room_; }
  /// The sequence that its session kept; null if there is none. One that cannot be used goes to
  /// `endings`.
  std::unique_ptr<Sequence> TakeFromSession(Endings& endings);

  /// Where its text differs from what is cached: what is said first counts.
  void NoteDifference(std::optional<uint64_t> at) {
    if (!std::exchange(was_compared_, true)) differs_at_ = at;
  }

  // Running.
  bool running() const { return sequence_ != nullptr; }
  Sequence& sequence() { return *sequence_; }
  /// Some of what its sequence began with is in the lower precision of a ladder.
  bool is_approximate() const { return is_approximate_; }
  /// Goes on with this; the first time, counts what of it was reused.
  void Start(std::unique_ptr<Sequence> sequence, std::vector<MissRun> missing,
             uint64_t loaded_tokens);
  /// Goes on with a sequence that is longer by what was loaded while it computed; with the one it
  /// has where that is null.
  void Join(std::unique_ptr<Sequence> sequence, std::vector<MissRun> missing);
  /// Reads no further for now: what comes after so many tokens of the text is being loaded.
  void StopAt(uint64_t tokens) { text_.StopAt(tokens); }
  /// Returns its sequence, of which some blocks do not come. It has to be started again, and is
  /// as it was before.
  std::unique_ptr<Sequence> Withdraw();
  /// Returns its sequence, or null. It has to be started again.
  std::unique_ptr<Sequence> Preempt();
  /// Of one that has ended: a sequence that streams, which may wait for the store; else null.
  std::unique_ptr<Sequence> TakeSequence() { return std::move(sequence_); }
  /// Its step under way, where that is put aside from time to time; null: none is.
  model::StepAside* aside() const { return aside_.get(); }
  void PutAside(std::unique_ptr<model::StepAside> step) {
    aside_ = std::move(step);
    aside_us_ = 0;
  }
  std::unique_ptr<model::StepAside> TakeAside() {
    aside_step_us_ = aside_us_;
    return std::move(aside_);
  }
  void CountAside(uint64_t us) { aside_us_ += us; }
  /// How long the last step took that was put aside, without what it was aside.
  uint64_t aside_step_us() const { return aside_step_us_; }
  /// What streams may begin again where the store has lost a block. What is lost is written anew,
  /// so where one begins again at the same block as before, it comes no further: that may be a few
  /// times. Counts.
  bool MayBeginAgain() {
    begins_again_ = true;
    return renewals_in_vain_ < kRenewalsInVainMax;
  }
  /// From its next start on it streams.
  void Spill(uint64_t now_us) { spilled_us_ = now_us; }
  void BringBack() { spilled_us_.reset(); }
  /// Since when, if it does though it might fit.
  std::optional<uint64_t> spilled_us() const { return spilled_us_; }

  /// Tokens behind it, those dropped too.
  uint64_t position() const { return sequence_->length() + sequence_->dropped_tokens(); }
  /// How many sequences it has had: steps under way add to one of them.
  uint64_t starts() const { return starts_; }
  /// It has one token to feed, the one it generated last.
  bool decoding() const;
  /// Of the text, at most `tokens_max`; of a text with KeepOptions::blocks_max no more than these
  /// have room for, after some went where they are full.
  std::span<const TokenId> NextTokens(uint64_t tokens_max) const;
  /// Most tokens that it may hold at a time.
  uint64_t tokens_held_at_most() const {
    const uint64_t bounded = request_.keep.blocks_max * profile_.block_tokens;
    const uint64_t at_most = text_.tokens_at_most();
    return bounded == 0 ? at_most : std::min(bounded, at_most);
  }
  /// Makes room for so many tokens more. Behind a prompt of which a part is kept, or where
  /// KeepOptions::blocks_max are full, it goes on with a part first, and gives the rest back.
  ///
  /// Errors: as Sequence::Reserve and Sequence::Select; it can be tried again
  Result<void> Reserve(uint64_t tokens);
  /// Events that its next step may make.
  static constexpr uint32_t kEventsOfAStep = 3;
  uint32_t EventsOfAStep() const { return kEventsOfAStep + (request_.prompt_logprobs ? 1 : 0); }
  /// What it goes on with of its prompt.
  KeptBlocks& kept() { return kept_; }

  /// Slow readers: since when it stands still, if it does.
  std::optional<uint64_t> paused_us() const { return paused_us_; }
  void SetPaused(std::optional<uint64_t> since_us) { paused_us_ = since_us; }

  /// What it holds from now on, until GaveBack.
  void NoteHeld() { held_bytes_ = sequence_->stats().bytes; }
  /// Whether it holds less than it did at the last call of the two.
  bool GaveBack();

  /// Computes the token that Advance with the same arguments draws, if it draws one.
  ///
  /// Threads: any, beside other tasks'
  void Choose(const TokenRange& step, std::span<const float> logits, uint64_t vocab);
  /// Takes in a step over these tokens of its text, which ended with logits as Text::LogitsOf said.
  /// Returns how many of the tokens were computed for the first time.
  ///
  /// Shape: logits [rows, vocab]
  uint64_t Advance(const TokenRange& step, std::span<const float> logits, uint64_t vocab);

  /// Of a session: `turn` says whether what was fed and said stands.
  void End(Finish finish, CancelledTurn turn = CancelledTurn::kStands);
  /// What a session was fed is undone.
  void Fail(Error error);

 private:
  bool Draws(const TokenRange& step) const;
  void Draw(std::span<const float> logits);
  Result<void> SayPrompt(uint64_t from, std::span<const float> logits, uint64_t vocab);
  void EndTurn(CancelledTurn turn, Response response);
  void EndSequence();

  const RequestId id_;
  Request request_;
  std::shared_ptr<const ServedAdapter> adapter_;  // ends behind all that computes with it
  const uint64_t submitted_us_;
  Session* const session_;
  Mailbox& mailbox_;
  SessionKeeper& keeper_;
  Retainer& retainer_;
  const NumericProfile& profile_;

  Text text_;
  Answer answer_;
  Origins origins_;
  Origins origins_before_;  // its sequence
  KeptBlocks kept_;
  std::unique_ptr<Sequence> sequence_;
  uint64_t starts_ = 0;
  bool is_approximate_ = false;
  std::unique_ptr<model::StepAside> aside_;  // ends before its sequence
  uint64_t aside_us_ = 0;                    // that it took so far
  uint64_t aside_step_us_ = 0;
  Error error_{};
  static constexpr uint32_t kRenewalsInVainMax = 4;
  uint32_t renewals_in_vain_ = 0;
  bool begins_again_ = false;
  std::unordered_set<uint64_t> began_at_{};  // after a loss, in tokens
  std::optional<uint64_t> spilled_us_;
  bool starts_whole_;
  bool took_room_ = false;
  bool was_compared_ = false;
  std::optional<uint64_t> differs_at_{};
  bool has_text_ = true;  // its session's, if it has one
  bool cancel_once_read_ = false;
  bool ended_ = false;
  Wait wait_{};
  std::optional<uint64_t> paused_us_;
  uint64_t held_bytes_ = 0;
};

}  // namespace quire::serve

#endif  // QUIRE_SERVE_TASK_H_
