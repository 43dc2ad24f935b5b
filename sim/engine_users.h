// The users of the simulated engine, and what they check of its reports.
#ifndef QUIRE_SIM_ENGINE_USERS_H_
#define QUIRE_SIM_ENGINE_USERS_H_

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/hash.h"
#include "base/prng.h"
#include "env/clock.h"
#include "serve/engine.h"
#include "sim/engine_oracle.h"
#include "sim/engine_setup.h"
#include "sim/session_files.h"
#include "sim/sim.h"

namespace quire::sim {

/// Requests outside sessions, and sessions with their turns. All that outlives a restart is here.
class EngineUsers {
 public:
  /// Reports what is wrong: the counter of the report, and words.
  using Tell = std::function<void(uint64_t SimReport::* counter, const std::string& what)>;

  EngineUsers(const EngineSetup& setup, EngineOracle& oracle, const ManualClock& clock, Prng& prng,
              Blake2b<16>& digest, const SessionFiles& files, Tell tell)
      : setup_(setup),
        oracle_(oracle),
        clock_(clock),
        prng_(prng),
        digest_(digest),
        files_(files),
        tell_(std::move(tell)) {}

  // The process.

  /// An engine began. Sessions that have files continue.
  void Begin(serve::Engine& engine, const std::array<TenantId, kEngineParties.size()>& tenants,
             const std::vector<serve::StoredSession>& found);
  /// The engine ended. Requests without an answer will never get one.
  void End();

  // Requests and sessions.

  /// A text of the account that pays for a party.
  std::vector<TokenId> SomeText(uint32_t party);
  void Submit();
  /// A request of so many tokens, more than memory holds.
  void SubmitLong(uint64_t tokens);
  void Ask();  // a turn of a session
  void CancelOne();
  /// Turns are undone.
  void CancelAll();
  /// Cancels requests that need more room than they can ever get, for which an engine may wait.
  void CancelTooLarge();
  void OpenTalk();
  void ForkTalk();
  void EndTalk();
  void CloseTalk();
  /// The blocks of an account go, though requests of it are under way.
  void NoteErased(uint32_t account);
  /// Ends all sessions of a tenant when its blocks are erased. `settled` is called with whether
  /// they are gone.
  void EraseParty(uint32_t party, std::function<void(bool gone)> settled = {});
  uint32_t AnyParty();

  // Reports from the engine.

  enum class Readers : uint8_t { kQuick, kSlow, kAll };
  void Hear(Readers readers);
  /// A tick that began at this time is over.
  void NoteTick(uint64_t begin_us);
  /// The budget of the cache, now.
  void NoteBudget(uint64_t bytes);
  /// Whether all requests have ended whose readers read.
  bool AllEnded(Readers readers) const { return Unended(readers).empty(); }
  std::string FirstUnended(Readers readers) const;
  uint64_t answers() const { return answers_; }
  /// Requests for which the store brought some tokens.
  uint64_t loaded() const { return loaded_; }
  /// Whole answers to prompts larger than memory.
  uint64_t streamed() const { return streamed_; }
  /// Requests that went on by layer behind what was loaded, in engines that have ended.
  uint64_t arrived() const { return arrived_; }

 private:
  enum class Reader : uint8_t { kQuick, kSlow, kAbsent };
  struct Asked {
    serve::Request request{};
    uint32_t party = 0;
    std::string talk{};  // its name; empty: it is of no session
    Reader reader = Reader::kQuick;
    bool is_long = false;
    bool erased = false;              // its account was erased meanwhile
    uint64_t budget_bytes_least = 0;  // while it was there
    uint64_t ends_by_tick = UINT64_MAX;
    bool cancelled = false;
    bool stands = false;           // its tokens stay in the session
    bool cancelled_again = false;  // cancelled again, so it may not stand after all
    uint64_t failures = 0;         // of the files of sessions, when it was asked
    std::vector<TokenId> said{};
    uint64_t read = 0;    // tokens, as reported
    uint64_t logits = 0;  // position after the reported ones
    const Answer* want = nullptr;

    /// Its answer depends on what is cached.
    bool is_approximate() const { return request.approximate_error_max > 0; }
  };
  using Requests = std::map<serve::RequestId, Asked>;
  bool Fits(const Asked& asked, uint64_t prompt_tokens) const;

  struct Talk {
    uint32_t party = 0;
    bool named = false;
    serve::SessionId id{};
    std::vector<Moment> moments{};  // after each turn that stands
    size_t durable = 0;             // its file is never older than this one
    bool opened = false;            // the engine reported a file
    bool open = true;               // in the engine
    bool closed = false;            // and it has its file, as it was
    bool ending = false;
    bool gone = false;         // removed; its turn may still report
    serve::RequestId turn{};   // none: it idles
    bool unheard = false;      // a turn of an earlier process may have ended without a report
    serve::Request last{};     // of that turn
    bool last_stands = false;  // it was cancelled, and its tokens stay
    std::optional<TurnAnswer> want{};
  };
  using Talks = std::map<std::string, Talk>;

  void DrawSpill(serve::Request& request);
  serve::KeepOptions SomeKeep();
  serve::Request SomeRequest(uint32_t party);
  Talks::iterator AnyTalk();
  std::optional<serve::RequestId> Send(Asked asked);
  void Note(uint64_t number) { digest_.UpdateNumber(number); }
  std::vector<serve::RequestId> Unended(Readers readers) const;
  uint64_t open_talks() const;
  serve::OnSettled Settled(const std::string& name, void (*hear)(Talk& talk));
  void BeginToEnd(Talk& talk);
  void RemoveWhereGone(const std::string& name);
  void Forget(const Talk& talk);

  const TurnAnswer& WantOf(Talk& talk);
  const serve::Response& WantOf(Asked& asked);
  void Hear(serve::RequestId id);
  void HearToken(serve::RequestId id, Asked& asked, TokenId token);
  void HearLogits(serve::RequestId id, Asked& asked, const serve::Logits& logits);
  void HearLast(serve::RequestId id, Asked& asked, const serve::Response& response);
  void CheckFinish(serve::RequestId id, Asked& asked, const serve::Response& response);
  void CheckFailure(serve::RequestId id, const Asked& asked, const serve::Response& response);
  void EndTurn(const Asked& asked, const serve::Response& response);
  void Adopt(const serve::StoredSession& found, Talk& talk);
  Moment MomentFound(const std::string& name, uint64_t tokens, Talk& talk);

  const EngineSetup& setup_;
  EngineOracle& oracle_;
  const ManualClock& clock_;
  Prng& prng_;
  Blake2b<16>& digest_;
  const SessionFiles& files_;
  const Tell tell_;
  serve::Engine* engine_ = nullptr;
  std::array<TenantId, kEngineParties.size()> tenants_{};
  uint64_t life_ = 0;  // number of the process: reports to an earlier one are dropped
  Requests asked_;
  Talks talks_;
  uint64_t names_ = 0;
  uint64_t ticks_ = 0;
  uint64_t tick_us_ = 0;  // when the last one began
  uint64_t budget_bytes_ = 0;
  uint64_t answers_ = 0;
  uint64_t loaded_ = 0;
  uint64_t streamed_ = 0;
  uint64_t arrived_ = 0;
};

}  // namespace quire::sim

#endif  // QUIRE_SIM_ENGINE_USERS_H_
