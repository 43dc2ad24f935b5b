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
  if (found->second.is_none()) return {};
  return Fail(ErrorCode::kBusy, fmt::format("session {}: request {} has not finished",
                                            session.number(), found->second.number()));
}

Result<RequestId> Mailbox::Submit(Request request, uint64_t now_us) {
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
  if (in_session) sessions_[request.session] = id;
  Send(SubmitCommand{.id = id, .request = std::move(request), .submitted_us = now_us});
  return id;
}

bool Mailbox::Cancel(RequestId id) {
  MutexLock lock(mutex_);
  const auto found = outboxes_.find(id);
  if (found == outboxes_.end() || found->second.ended) return false;
  Send(CancelCommand{id});
  return true;
}

void Mailbox::CancelAll() {
  MutexLock lock(mutex_);
  for (const auto& [id, outbox] : outboxes_) {
    if (!outbox.ended) Send(CancelCommand{id});
  }
  is_changed_ = true;  // also where there is none: somebody waits for this call
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

Result<SessionId> Mailbox::OpenSession(const SessionOptions& options) {
  MutexLock lock(mutex_);
  if (sessions_.size() >= limits_.sessions_max) {
    return Fail(ErrorCode::kNoSpace,
                fmt::format("engine: there are {} sessions (sessions_max)", limits_.sessions_max));
  }
  const SessionId id(next_session_++);
  sessions_.emplace(id, RequestId::None());
  Send(OpenSessionCommand{.id = id, .options = options});
  return id;
}

Result<SessionId> Mailbox::ForkSession(SessionId session) {
  MutexLock lock(mutex_);
  QUIRE_TRY(CheckFree(session));
  if (sessions_.size() >= limits_.sessions_max) {
    return Fail(ErrorCode::kNoSpace,
                fmt::format("engine: there are {} sessions (sessions_max)", limits_.sessions_max));
  }
  const SessionId id(next_session_++);
  sessions_.emplace(id, RequestId::None());
  Send(ForkSessionCommand{.from = session, .to = id});
  return id;
}

Result<void> Mailbox::EndSession(SessionId session) {
  MutexLock lock(mutex_);
  const auto found = sessions_.find(session);
  if (found == sessions_.end()) {
    return Fail(ErrorCode::kNotFound, fmt::format("there is no session {}", session.number()));
  }
  if (!found->second.is_none()) Send(CancelCommand{found->second});
  Send(EndSessionCommand{session});
  sessions_.erase(found);
  return {};
}

void Mailbox::SetTenant(const TenantShare& share) {
  MutexLock lock(mutex_);
  Send(SetTenantCommand{share});
}

void Mailbox::GiveWay() {
  MutexLock lock(mutex_);
  Send(GiveWayCommand{});
}

std::vector<Command> Mailbox::TakeCommands() {
  MutexLock lock(mutex_);
  is_changed_ = false;
  return std::exchange(commands_, {});
}

bool Mailbox::HasRoom(RequestId id, uint32_t events) const {
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
      session->second = RequestId::None();
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

void Mailbox::AwaitChange(uint64_t timeout_us) {
  MutexLock lock(mutex_);
  if (!is_changed_) changed_.WaitFor(mutex_, timeout_us);
}

}  // namespace quire::serve
