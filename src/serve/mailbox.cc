#include "serve/mailbox.h"

#include <fmt/format.h>

#include <utility>

namespace quire::serve {

void Mailbox::Send(Command command) {
  commands_.push_back(std::move(command));
  is_changed_ = true;
  changed_.NotifyAll();
}

Result<void> Mailbox::CheckFree(SessionId session) const {
  const auto found = sessions_.find(session);
  if (found == sessions_.end()) {
    return Fail(ErrorCode::kNotFound, fmt::format("there is no session {}", session.number()));
  }
  if (found->second.turn.is_none()) return {};
  return Fail(ErrorCode::kBusy, fmt::format("session {}: request {} has not finished",
                                            session.number(), found->second.turn.number()));
}

Result<RequestId> Mailbox::Submit(Request request, uint64_t now_us,
                                  std::shared_ptr<const ServedAdapter> adapter) {
  MutexLock lock(mutex_);
  if (outboxes_.size() >= limits_.requests_max) {
    return Fail(ErrorCode::kNoSpace,
                fmt::format("engine: the queue is full: {} requests have not been answered, or "
                            "their answer was not taken (requests_max)",
                            limits_.requests_max));
  }
  const bool in_session = !request.session.is_none();
  if (in_session) QUIRE_TRY(CheckFree(request.session));
  const RequestId id(next_request_++);
  outboxes_.emplace(id, Outbox{.session = request.session});
  if (in_session) sessions_.at(request.session).turn = id;
  Send(SubmitCommand{.id = id,
                     .request = std::move(request),
                     .submitted_us = now_us,
                     .adapter = std::move(adapter)});
  return id;
}

bool Mailbox::Cancel(RequestId id, CancelledTurn turn) {
  MutexLock lock(mutex_);
  const auto found = outboxes_.find(id);
  if (found == outboxes_.end() || found->second.ended) return false;
  Send(CancelCommand{.id = id, .turn = turn});
  return true;
}

void Mailbox::CancelAll() {
  MutexLock lock(mutex_);
  for (const auto& [id, outbox] : outboxes_) {
    if (!outbox.ended) Send(CancelCommand{.id = id, .turn = CancelledTurn::kUndone});
  }
  is_changed_ = true;  // also where there is none: a caller waits for it
  changed_.NotifyAll();
}

std::optional<Event> Mailbox::TakeFirst(std::map<RequestId, Outbox>::iterator found) {
  Outbox& outbox = found->second;
  if (outbox.events.empty()) return std::nullopt;
  Event event = std::move(outbox.events.front());
  outbox.events.pop_front();
  if (std::holds_alternative<Response>(event)) {
    outboxes_.erase(found);
  } else if (!outbox.ended) {
    is_changed_ = true;  // the request may have stopped for want of room here
    changed_.NotifyAll();
  }
  return event;
}

std::optional<Event> Mailbox::Next(RequestId id) {
  MutexLock lock(mutex_);
  const auto found = outboxes_.find(id);
  if (found == outboxes_.end()) return std::nullopt;
  return TakeFirst(found);
}

std::optional<Event> Mailbox::Await(RequestId id) {
  MutexLock lock(mutex_);
  while (true) {
    const auto found = outboxes_.find(id);
    if (found == outboxes_.end()) return std::nullopt;
    if (auto event = TakeFirst(found)) return event;
    posted_.Wait(mutex_);
  }
}

Result<SessionId> Mailbox::Enter(TenantId tenant) {
  if (sessions_.size() >= limits_.sessions_max) {
    return Fail(ErrorCode::kNoSpace,
                fmt::format("engine: there are {} sessions (sessions_max)", limits_.sessions_max));
  }
  const SessionId id(next_session_++);
  sessions_.emplace(id, Talk{.tenant = tenant});
  return id;
}

Result<SessionId> Mailbox::OpenSession(const SessionOptions& options, OnSettled settled,
                                       const Digest& adapter_digest) {
  MutexLock lock(mutex_);
  QUIRE_ASSIGN(const SessionId id, Enter(options.tenant));
  Send(OpenSessionCommand{.id = id,
                          .options = options,
                          .adapter_digest = adapter_digest,
                          .settled = std::move(settled)});
  return id;
}

Result<SessionId> Mailbox::ForkSession(SessionId session, std::string name, OnSettled settled) {
  MutexLock lock(mutex_);
  QUIRE_TRY(CheckFree(session));
  QUIRE_ASSIGN(const SessionId id, Enter(sessions_.at(session).tenant));
  Send(ForkSessionCommand{
      .from = session, .to = id, .name = std::move(name), .settled = std::move(settled)});
  return id;
}

Result<void> Mailbox::EndSession(SessionId session, SessionFile file, OnSettled settled) {
  MutexLock lock(mutex_);
  const auto found = sessions_.find(session);
  if (found == sessions_.end()) {
    return Fail(ErrorCode::kNotFound, fmt::format("there is no session {}", session.number()));
  }
  End(found, file, std::move(settled));
  return {};
}

void Mailbox::EndSessionsOf(TenantId tenant, std::string name, OnSettled settled) {
  MutexLock lock(mutex_);
  for (auto each = sessions_.begin(); each != sessions_.end();) {
    each = each->second.tenant == tenant ? End(each, SessionFile::kRemoved, {}) : std::next(each);
  }
  Send(EndTenantCommand{.tenant = tenant, .name = std::move(name), .settled = std::move(settled)});
}

Mailbox::Talks::iterator Mailbox::End(Talks::iterator session, SessionFile file,
                                      OnSettled settled) {
  const auto& [id, talk] = *session;
  if (!talk.turn.is_none()) {
    Send(CancelCommand{.id = talk.turn, .turn = CancelledTurn::kUndone});
  }
  Send(EndSessionCommand{.id = id, .file = file, .settled = std::move(settled)});
  return sessions_.erase(session);
}

void Mailbox::Tell(Command command) {
  MutexLock lock(mutex_);
  Send(std::move(command));
}

std::vector<Command> Mailbox::TakeCommands() {
  MutexLock lock(mutex_);
  is_changed_ = false;
  return std::exchange(commands_, {});
}

bool Mailbox::HasCapacity(RequestId id, uint32_t events) const {
  MutexLock lock(mutex_);
  return outboxes_.at(id).events.size() + events <= limits_.events_max;
}

bool Mailbox::IsDrained(RequestId id) const {
  MutexLock lock(mutex_);
  return outboxes_.at(id).events.size() <= limits_.events_max / 2;
}

void Mailbox::Post(RequestId id, Event event) {
  {
    MutexLock lock(mutex_);
    outboxes_.at(id).events.push_back(std::move(event));
    posted_.NotifyAll();
  }
  if (on_posted_) on_posted_(id);
}

void Mailbox::PostLast(RequestId id, Response response) {
  {
    MutexLock lock(mutex_);
    Outbox& outbox = outboxes_.at(id);
    outbox.ended = true;
    if (const auto session = sessions_.find(outbox.session); session != sessions_.end()) {
      session->second.turn = RequestId::None();
    }
    outbox.events.emplace_back(std::move(response));
    posted_.NotifyAll();
  }
  if (on_posted_) on_posted_(id);
}

void Mailbox::Wake() {
  MutexLock lock(mutex_);
  is_changed_ = true;
  changed_.NotifyOne();
}

bool Mailbox::AwaitChange(uint64_t timeout_us) {
  MutexLock lock(mutex_);
  if (!is_changed_ && timeout_us > 0) changed_.WaitFor(mutex_, timeout_us);
  return is_changed_;
}

}  // namespace quire::serve
