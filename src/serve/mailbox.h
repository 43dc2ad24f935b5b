// The door between callers on any thread and the engine, which is turned by one.
#ifndef QUIRE_SERVE_MAILBOX_H_
#define QUIRE_SERVE_MAILBOX_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/mutex.h"
#include "quire/error.h"
#include "serve/adapters.h"
#include "serve/request.h"
#include "serve/session_store.h"

namespace quire::serve {

/// How a tenant stands to others.
struct TenantShare {
  TenantId tenant = kDefaultTenant;
  double weight = 1;  // of the tokens that are computed; above 0
  // The shared domain it publishes in. Requests wait for prefixes that others of their own domain
  // are computing; without one, of their own tenant only.
  TenantId domain{};
};

/// What a session is made with.
struct SessionOptions {
  TenantId tenant = kDefaultTenant;
  model::SamplingOptions sampling{};  // one generator for all its answers
  // With EngineOptions::sessions: the name of its file, by which it goes on after a restart. Empty:
  // it ends with the process.
  std::string name{};
  bool stored = false;    // it goes on from that file, `sampling` and `adapter` too
  std::string adapter{};  // of Engine::adapters, of all its turns; empty: the base model
};

/// What becomes of the turn that is cancelled, if it is one.
enum class CancelledTurn : uint8_t {
  kStands = 1,  // what was fed and said stays in the session
  kUndone = 2,  // the session is as before it, so that the turn may be sent again
};

/// What becomes of the file of a session that ends.
enum class SessionFile : uint8_t {
  kRemoved = 1,
  kKept = 2,  // it can be opened again
};

// What callers asked for, in order.
struct SubmitCommand {
  RequestId id;
  Request request;
  uint64_t submitted_us;
  std::shared_ptr<const ServedAdapter> adapter{};  // null: the base model, or its session's
};
struct CancelCommand {
  RequestId id;
  CancelledTurn turn;
};
struct OpenSessionCommand {
  SessionId id;
  SessionOptions options;
  Digest adapter_digest;  // of its adapter, if it has one
  OnSettled settled;
};
struct ForkSessionCommand {
  SessionId from;
  SessionId to;
  std::string name;  // of `to`
  OnSettled settled;
};
struct EndSessionCommand {
  SessionId id;
  SessionFile file;
  OnSettled settled;
};
struct EndTenantCommand {  // its sessions were ended before
  TenantId tenant;
  std::string name;  // which it had at the call; empty: there was none
  OnSettled settled;
};
struct SetTenantCommand {
  TenantShare share;
};
struct DemoteCommand {
  RequestId request;  // or none: the session
  SessionId session;
  OnSettled settled;
};
// For what only the engine's thread may call.
struct CallCommand {
  std::move_only_function<void()> call;
};
struct GiveWayCommand {};
struct LeaseCommand {
  bool leased;  // a part of the cache, from now on
  OnSettled settled;
};
// What the store of sessions has to say.
struct SessionSettledCommand {
  SessionId id;    // whose file was to be written; none: files were to be removed
  uint64_t write;  // which of its writes, as Session::writes
  bool saved;
};
struct SessionReadCommand {
  SessionId id;
  Result<SessionRecord> record;
};
using Command =
    std::variant<SubmitCommand, CancelCommand, OpenSessionCommand, ForkSessionCommand,
                 EndSessionCommand, EndTenantCommand, SetTenantCommand, DemoteCommand, CallCommand,
                 GiveWayCommand, LeaseCommand, SessionSettledCommand, SessionReadCommand>;

struct MailboxLimits {
  uint32_t requests_max;  // whose Response was not taken yet
  uint32_t sessions_max;
  uint32_t events_max;  // of one request, the Response besides
};

/// Called after a request has posted an event, without the mailbox's lock.
using OnPosted = std::function<void(RequestId)>;

/// Commands one way, events the other. Every queue is bounded: a command is refused where there is
/// no room, and a request whose events are not taken does not go on.
///
/// Threads: any. One lock, never held while anything is computed
class Mailbox {
 public:
  explicit Mailbox(const MailboxLimits& limits, OnPosted on_posted = {})
      : limits_(limits), on_posted_(std::move(on_posted)) {}

  // Callers; see Engine.
  Result<RequestId> Submit(Request request, uint64_t now_us,
                           std::shared_ptr<const ServedAdapter> adapter = nullptr);
  bool Cancel(RequestId id, CancelledTurn turn);
  void CancelAll();
  std::optional<Event> Next(RequestId id);
  std::optional<Event> Await(RequestId id);
  Result<SessionId> OpenSession(const SessionOptions& options, OnSettled settled,
                                const Digest& adapter_digest = {});
  Result<SessionId> ForkSession(SessionId session, std::string name, OnSettled settled);
  Result<void> EndSession(SessionId session, SessionFile file, OnSettled settled);
  void EndSessionsOf(TenantId tenant, std::string name, OnSettled settled);
  /// A command that needs no room here, from a caller or from the store of sessions.
  void Tell(Command command);
  /// The thread that turns the engine looks at it again.
  void Wake();

  // The engine.
  std::vector<Command> TakeCommands();
  /// Whether the request may make `events` more.
  bool HasCapacity(RequestId id, uint32_t events) const;
  /// Whether at least half of its queue is free.
  bool IsDrained(RequestId id) const;
  void Post(RequestId id, Event event);
  /// The last event of a request; its session, if any, is free for the next one.
  void PostLast(RequestId id, Response response);

  // The thread that turns the engine.
  /// Returns when a caller changed something since the last call of TakeCommands, or `timeout_us`
  /// have passed: whether anything was changed.
  bool AwaitChange(uint64_t timeout_us);

 private:
  struct Outbox {
    std::deque<Event> events{};
    SessionId session{};
    bool ended = false;  // its Response is the last of `events`
  };

  struct Talk {
    TenantId tenant;
    RequestId turn{};  // none: it is idle
  };
  using Talks = std::map<SessionId, Talk>;

  std::optional<Event> TakeFirst(std::map<RequestId, Outbox>::iterator found)
      QUIRE_REQUIRES(mutex_);
  Result<void> CheckFree(SessionId session) const QUIRE_REQUIRES(mutex_);
  Result<SessionId> Enter(TenantId tenant) QUIRE_REQUIRES(mutex_);
  Talks::iterator End(Talks::iterator session, SessionFile file, OnSettled settled)
      QUIRE_REQUIRES(mutex_);
  void Send(Command command) QUIRE_REQUIRES(mutex_);

  const MailboxLimits limits_;
  const OnPosted on_posted_;
  mutable Mutex mutex_{LockRank{1}};
  CondVar changed_;  // for the thread that turns the engine
  CondVar posted_;   // for callers that await an event
  bool is_changed_ QUIRE_GUARDED_BY(mutex_) = false;
  std::vector<Command> commands_ QUIRE_GUARDED_BY(mutex_);
  std::map<RequestId, Outbox> outboxes_ QUIRE_GUARDED_BY(mutex_);
  Talks sessions_ QUIRE_GUARDED_BY(mutex_);
  uint64_t next_request_ QUIRE_GUARDED_BY(mutex_) = 1;
  uint64_t next_session_ QUIRE_GUARDED_BY(mutex_) = 1;
};

}  // namespace quire::serve

#endif  // QUIRE_SERVE_MAILBOX_H_
