// The sessions of one engine: what each keeps between its turns, which there are, and what of them
// is in memory and in files.
#ifndef QUIRE_SERVE_SESSION_KEEPER_H_
#define QUIRE_SERVE_SESSION_KEEPER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "model/sampling.h"
#include "quire/cache.h"
#include "quire/sequence.h"
#include "serve/endings.h"
#include "serve/mailbox.h"
#include "serve/request.h"
#include "serve/session_store.h"

namespace quire::serve {

/// A session is its text and its sampler; the sequence only saves work. A session that idles may
/// lose it when room is needed: the next turn then finds in the cache what is still there and
/// computes the rest. With a SessionStore it may lose its text too, which is then read again.
struct Session {
  SessionId id;
  TenantId tenant;
  model::SamplerState sampler;
  std::vector<TokenId> text{};  // fed and generated
  // Holds at most text.size() - 1 tokens. Null while a turn has it, and after it was let go.
  std::unique_ptr<Sequence> sequence{};
  bool evicts = true;        // the sequence grows at the expense of what is cached
  uint64_t turns_ended = 0;  // by the engine's count, at its last turn: the least goes first
  std::string name{};        // of its file; empty: it has none
  uint64_t opened_unix_us = 0;
  bool in_memory = true;  // text and sampler; else they are in the file alone
  std::string adapter{};  // empty: the base model; known once it is in memory
  Digest adapter_digest{};
  bool in_turn = false;  // a turn has its text, or waits for it
  uint64_t writes = 0;   // of its file, that were asked for
  bool saved = false;    // the last of them was done: the file has text and sampler as they are
  // Of a fork whose text was in the other one's file alone: what is read for this session brings
  // it. None: the text is here, or in a file of its own.
  SessionId text_from{};
  std::optional<Error> lost{};  // why it did not come
  OnSettled opened{};           // hears of a file of its own, which is written once it has come
  bool closing = false;         // and then it goes, which `opened` hears too
};

/// Without a store sessions live in memory and what is said of files does not happen.
///
/// Threads: the one that turns the engine. What the store's thread has to say comes as commands
///          through the mailbox
class SessionKeeper {
 public:
  /// `store` may be null. `idle_text_bytes`: what the texts of idle sessions that are in files too
  /// may take of memory.
  SessionKeeper(Mailbox& mailbox, Cache& cache, SessionStore* store, uint64_t vocab,
                uint64_t idle_text_bytes)
      : mailbox_(mailbox),
        cache_(cache),
        store_(store),
        vocab_(vocab),
        idle_text_bytes_(idle_text_bytes) {}
  ~SessionKeeper();
  SessionKeeper(const SessionKeeper&) = delete;
  SessionKeeper& operator=(const SessionKeeper&) = delete;

  /// Null: it was ended.
  Session* Find(SessionId id);
  const std::map<SessionId, std::unique_ptr<Session>>& all() const { return sessions_; }

  void Take(OpenSessionCommand command);
  void Take(ForkSessionCommand command);
  /// Its sequence goes to `endings`; so in the calls below.
  void Take(EndSessionCommand command, Endings& endings);
  void Take(EndTenantCommand command);
  /// A change has settled, or has not.
  void Take(const SessionSettledCommand& command);
  /// Its text has come. The error, if it has not.
  Result<void> Take(SessionReadCommand command);

  /// A turn begins: reads the text where it is not in memory.
  void BeginTurn(Session& session);
  /// A turn ended and `session` is as it left it: tells the caller once that outlives the process.
  void EndTurn(Session& session, RequestId request, Response response);

  bool any_sequence() const;
  /// Lets the sequence go of the one whose last turn ended first. False: there is none.
  bool ReleaseOldest(Endings& endings);
  /// The same of this one; without a sequence nothing happens.
  /// Errors: kNotFound; kBusy it is in a turn
  Result<void> Release(SessionId id, Endings& endings);
  /// Nothing is on its way to a file or from one.
  bool settled() const { return unsettled_ == 0; }
  /// How often a session's file could not be written.
  uint64_t write_failures() const { return write_failures_; }

 private:
  SessionRecord RecordOf(const Session& session) const;
  void Write(Session& session, OnSettled settled);
  OnSettled ThenSettle(SessionId id, uint64_t write, OnSettled settled);
  OnSettled ThenGiveBack(const std::string& name, OnSettled settled);
  void Close(Session& session, OnSettled settled);
  void LimitTexts();
  void DropText(Session& session) const;
  void BringText(Session& fork, const Session& from, OnSettled settled);
  void PostReadOf(SessionId id, Result<SessionRecord> record);
  Result<void> TakeText(Session& session, SessionRecord record);

  Mailbox& mailbox_;
  Cache& cache_;
  SessionStore* const store_;
  const uint64_t vocab_;
  const uint64_t idle_text_bytes_;
  std::map<SessionId, std::unique_ptr<Session>> sessions_;
  uint64_t turns_ended_ = 0;
  uint64_t unsettled_ = 0;
  uint64_t write_failures_ = 0;
};

}  // namespace quire::serve

#endif  // QUIRE_SERVE_SESSION_KEEPER_H_
