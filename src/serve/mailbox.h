// The door between callers on any thread and the engine, which is turned by one.
#ifndef QUIRE_SERVE_MAILBOX_H_
#define QUIRE_SERVE_MAILBOX_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "base/mutex.h"
#include "base/thread_annotations.h"
#include "quire/error.h"
#include "serve/request.h"

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
};

// What callers asked for, in order.
struct SubmitCommand {
  RequestId id;
  Request request;
  uint64_t submitted_us;
};
struct CancelCommand {
  RequestId id;
};
struct OpenSessionCommand {
  SessionId id;
  SessionOptions options;
};
struct ForkSessionCommand {
  SessionId from;
  SessionId to;
};
struct EndSessionCommand {
  SessionId id;
};
struct SetTenantCommand {
  TenantShare share;
};
struct GiveWayCommand {};
using Command = std::variant<SubmitCommand, CancelCommand, OpenSessionCommand, ForkSessionCommand,
                             EndSessionCommand, SetTenantCommand, GiveWayCommand>;

struct MailboxLimits {
  uint32_t requests_max;  // whose Response was not taken yet
  uint32_t sessions_max;
  uint32_t events_max;  // of one request, the Response besides
};

/// Called after a request has posted an event, without the mailbox's lock.
using OnPosted = std::function<void(RequestId)>;

/// Commands one way, events the other. Every queue is bounded: a command is refused where there is
/// no room, and a request whose events nobody takes does not go on.
///
/// Threads: any. One lock, never held while anything is computed
class Mailbox {
 public:
  explicit Mailbox(const MailboxLimits& limits, OnPosted on_posted = {})
      : limits_(limits), on_posted_(std::move(on_posted)) {}

  // Callers; see Engine.
  Result<RequestId> Submit(Request request, uint64_t now_us);
  bool Cancel(RequestId id);
  void CancelAll();
  std::optional<Event> Next(RequestId id);
  std::optional<Event> Await(RequestId id);
  Result<SessionId> OpenSession(const SessionOptions& options);
  Result<SessionId> ForkSession(SessionId session);
  Result<void> EndSession(SessionId session);
  void SetTenant(const TenantShare& share);
  void GiveWay();
  /// Whoever turns the engine looks at it again.
  void Wake();

  // The engine.
  std::vector<Command> TakeCommands();
  /// Whether the request may make `events` more.
  bool HasRoom(RequestId id, uint32_t events) const;
  /// Whether at least half of its queue is free.
  bool IsDrained(RequestId id) const;
  void Post(RequestId id, Event event);
  /// The last event of a request; its session, if any, is free for the next one.
  void PostLast(RequestId id, Response response);

  // Whoever turns the engine.
  /// Returns when a caller changed something since the last call of TakeCommands, or `timeout_us`
  /// have passed.
  void AwaitChange(uint64_t timeout_us);

 private:
  struct Outbox {
    std::deque<Event> events{};
    SessionId session{};
    bool ended = false;  // its Response is the last of `events`
  };

  std::optional<Event> TakeFirst(std::map<RequestId, Outbox>::iterator found)
      QUIRE_REQUIRES(mutex_);
  Result<void> CheckFree(SessionId session) const QUIRE_REQUIRES(mutex_);
  void Send(Command command) QUIRE_REQUIRES(mutex_);

  const MailboxLimits limits_;
  const OnPosted on_posted_;
  mutable Mutex mutex_{LockRank{1}};
  CondVar changed_;  // for who turns the engine
  CondVar posted_;   // for callers that await an event
  bool is_changed_ QUIRE_GUARDED_BY(mutex_) = false;
  std::vector<Command> commands_ QUIRE_GUARDED_BY(mutex_);
  std::map<RequestId, Outbox> outboxes_ QUIRE_GUARDED_BY(mutex_);
  std::map<SessionId, RequestId> sessions_ QUIRE_GUARDED_BY(mutex_);  // none: it is idle
  uint64_t next_request_ QUIRE_GUARDED_BY(mutex_) = 1;
  uint64_t next_session_ QUIRE_GUARDED_BY(mutex_) = 1;
};

}  // namespace quire::serve

#endif  // QUIRE_SERVE_MAILBOX_H_
