#include "serve/session_keeper.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/canary.h"

namespace quire::serve {
namespace {

Result<void> EndedTooSoon(const std::string& name) {
  return Fail(ErrorCode::kCancelled,
              fmt::format("session '{}': it was ended before it had a file", name));
}

}  // namespace

SessionKeeper::~SessionKeeper() {
  if (store_ != nullptr) store_->Detach();
}

Session* SessionKeeper::Find(SessionId id) {
  const auto found = sessions_.find(id);
  return found == sessions_.end() ? nullptr : found->second.get();
}

SessionRecord SessionKeeper::RecordOf(const Session& session) const {
  const auto tenant = cache_.tenant_stats(session.tenant);
  return {.head = {.name = session.name,
                   .tenant = tenant ? tenant->name : std::string(),  // it was removed meanwhile
                   .opened_unix_us = session.opened_unix_us,
                   .adapter = session.adapter,
                   .adapter_digest = session.adapter_digest},
          .sampler = session.sampler,
          .text = session.text};
}

// The engine hears of it before the caller, whose next turn comes behind that.
OnSettled SessionKeeper::ThenSettle(SessionId id, uint64_t write, OnSettled settled) {
  ++unsettled_;
  return [this, id, write, settled = std::move(settled)](Result<void> outcome) mutable {
    mailbox_.Tell(SessionSettledCommand{.id = id, .write = write, .saved = outcome.has_value()});
    if (settled) settled(std::move(outcome));
  };
}

void SessionKeeper::Write(Session& session, OnSettled settled) {
  store_->Write(RecordOf(session), ThenSettle(session.id, ++session.writes, std::move(settled)));
}

void SessionKeeper::Take(OpenSessionCommand command) {
  auto session =
      std::make_unique<Session>(Session{.id = command.id,
                                        .tenant = command.options.tenant,
                                        .sampler = model::Sampler(command.options.sampling).state(),
                                        .adapter = command.options.adapter,
                                        .adapter_digest = command.adapter_digest});
  if (store_ != nullptr && !command.options.name.empty()) {
    session->name = command.options.name;
    session->saved = command.options.stored;
    session->in_memory = !command.options.stored;
    session->opened_unix_us = store_->UnixMicros();
    if (!command.options.stored) Write(*session, std::move(command.settled));
  }
  sessions_.emplace(command.id, std::move(session));
}

void SessionKeeper::Take(ForkSessionCommand command) {
  const Session& from = *sessions_.at(command.from);
  auto fork = std::make_unique<Session>(Session{.id = command.to,
                                                .tenant = from.tenant,
                                                .sampler = from.sampler,
                                                .text = from.text,
                                                .turns_ended = from.turns_ended,
                                                .name = std::move(command.name),
                                                .in_memory = from.in_memory,
                                                .adapter = from.adapter,
                                                .adapter_digest = from.adapter_digest});
  if (from.sequence != nullptr) {
    // Without room for a copy of the open block it finds what is published, and computes the rest.
    if (auto forked = from.sequence->Fork(); forked) fork->sequence = *std::move(forked);
    fork->evicts = from.evicts;
  }
  if (store_ != nullptr && !fork->name.empty()) {
    fork->opened_unix_us = store_->UnixMicros();
    if (fork->in_memory) Write(*fork, std::move(command.settled));
  }
  if (!fork->in_memory) BringText(*fork, from, std::move(command.settled));
  sessions_.emplace(command.to, std::move(fork));
}

// The text of a fork whose original has it in a file alone. What the original does next is behind
// this in the store's queue, so it is the text of now. The fork has it in memory then, whether it
// can be written to a file of its own or not.
void SessionKeeper::BringText(Session& fork, const Session& from, OnSettled settled) {
  if (from.lost) {
    fork.text_from = from.text_from;
    fork.lost = from.lost;
    if (settled) settled(std::unexpected(*from.lost));
    return;
  }
  fork.opened = std::move(settled);
  if (!from.text_from.is_none()) {  // it waits for its own
    fork.text_from = from.text_from;
    return;
  }
  fork.text_from = fork.id;
  ++unsettled_;
  store_->Read(from.name, [this, id = fork.id](Result<SessionRecord> record) {
    mailbox_.Tell(SessionReadCommand{.id = id, .record = std::move(record)});
  });
}

void SessionKeeper::PostReadOf(SessionId id, Result<SessionRecord> record) {
  ++unsettled_;
  mailbox_.Tell(SessionReadCommand{.id = id, .record = std::move(record)});
}

void SessionKeeper::Take(EndSessionCommand command, Endings& endings) {
  const auto found = sessions_.find(command.id);
  Session& session = *found->second;
  const bool has_file = store_ != nullptr && !session.name.empty();
  const bool awaits_text = !session.text_from.is_none() && !session.lost;
  // Before its end is settled, or a demotion that follows finds its blocks in use. One that streams
  // has none in the cache.
  endings.Take(std::move(session.sequence));
  if (has_file && command.file == SessionFile::kKept && awaits_text) {
    session.closing = true;
    session.opened = [opened = std::move(session.opened),
                      closed = ThenGiveBack(session.name, std::move(command.settled))](
                         const Result<void>& outcome) mutable {
      if (opened) opened(outcome);
      closed(outcome);
    };
    return;
  }
  if (session.opened) session.opened(EndedTooSoon(session.name));
  if (!has_file) {
    if (command.settled) command.settled({});
  } else if (command.file == SessionFile::kKept) {
    Close(session, std::move(command.settled));
  } else {
    store_->Remove(session.name, ThenSettle(SessionId::None(), 0, std::move(command.settled)));
  }
  sessions_.erase(found);
}

void SessionKeeper::Take(EndTenantCommand command) {
  if (store_ == nullptr || command.name.empty()) {
    if (command.settled) command.settled({});
    return;
  }
  // Callers do not know those any more that wait for their text to be closed.
  std::erase_if(sessions_, [&](const auto& each) {
    Session& session = *each.second;
    if (!session.closing || session.tenant != command.tenant) return false;
    session.opened(EndedTooSoon(session.name));
    return true;
  });
  // Those that were not opened in this process too.
  store_->RemoveAllOf(std::move(command.name),
                      ThenSettle(SessionId::None(), 0, std::move(command.settled)));
}

OnSettled SessionKeeper::ThenGiveBack(const std::string& name, OnSettled settled) {
  return [store = store_, name, settled = std::move(settled)](Result<void> outcome) mutable {
    store->GiveBack(name);
    if (settled) settled(std::move(outcome));
  };
}

void SessionKeeper::Close(Session& session, OnSettled settled) {
  OnSettled give_back = ThenGiveBack(session.name, std::move(settled));
  if (session.in_memory && !session.saved) return Write(session, std::move(give_back));
  give_back(session.lost ? Result<void>(std::unexpected(*session.lost)) : Result<void>());
}

void SessionKeeper::Take(const SessionSettledCommand& command) {
  --unsettled_;
  if (!command.id.is_none() && !command.saved) ++write_failures_;
  Session* const session = Find(command.id);
  if (session == nullptr) return;
  session->saved = command.saved && command.write == session->writes;
  LimitTexts();
}

Result<void> SessionKeeper::Take(SessionReadCommand command) {
  --unsettled_;
  for (const auto& [id, other] : sessions_) {  // forks of a fork
    if (other->text_from == command.id && id != command.id) PostReadOf(id, command.record);
  }
  Session* const session = Find(command.id);
  if (session == nullptr) return {};
  // It was asked for twice: by a turn that was cancelled, and by one that may have gone on from it.
  if (session->in_memory) return {};
  Result<void> taken = command.record ? TakeText(*session, *std::move(command.record))
                                      : std::unexpected(std::move(command.record).error());
  if (session->text_from.is_none()) return taken;
  if (!taken) {
    session->lost = taken.error();
    if (session->opened) std::exchange(session->opened, {})(taken);
  } else {
    session->text_from = SessionId::None();
    if (!session->name.empty()) Write(*session, std::exchange(session->opened, {}));
  }
  if (session->closing) sessions_.erase(command.id);
  return taken;
}

Result<void> SessionKeeper::TakeText(Session& session, SessionRecord record) {
  const auto tenant = cache_.tenant_stats(session.tenant);
  if (!tenant || tenant->name != record.head.tenant) {
    return Fail(ErrorCode::kCorrupt, fmt::format("session '{}': its file is of tenant '{}'",
                                                 session.name, record.head.tenant));
  }
  const auto known = [this](TokenId token) {
    return token >= 0 && static_cast<uint64_t>(token) < vocab_;
  };
  if (!std::ranges::all_of(record.text, known)) {
    return Fail(
        ErrorCode::kCorrupt,
        fmt::format("session '{}': its file has tokens that the model has not", session.name));
  }
  session.text = std::move(record.text);
  session.sampler = record.sampler;
  session.adapter = std::move(record.head.adapter);
  session.adapter_digest = record.head.adapter_digest;
  if (session.text_from.is_none()) session.opened_unix_us = record.head.opened_unix_us;
  session.in_memory = true;
  return {};
}

void SessionKeeper::BeginTurn(Session& session) {
  session.in_turn = true;
  if (session.in_memory) return;
  if (session.lost) return PostReadOf(session.id, std::unexpected(*session.lost));
  if (!session.text_from.is_none()) return;  // it comes
  ++unsettled_;
  store_->Read(session.name, [this, id = session.id](Result<SessionRecord> record) {
    mailbox_.Tell(SessionReadCommand{.id = id, .record = std::move(record)});
  });
}

void SessionKeeper::EndTurn(Session& session, RequestId request, Response response) {
  session.turns_ended = ++turns_ended_;
  if (store_ == nullptr || session.name.empty()) {
    return mailbox_.PostLast(request, std::move(response));
  }
  session.saved = false;
  if (Planted(Canary::kAnswerEarly)) {
    mailbox_.PostLast(request, std::move(response));
    return Write(session, {});
  }
  Write(session, [this, request, response = std::move(response)](const Result<void>&) mutable {
    mailbox_.PostLast(request, std::move(response));
  });
}

bool SessionKeeper::any_sequence() const {
  return std::ranges::any_of(sessions_,
                             [](const auto& each) { return each.second->sequence != nullptr; });
}

bool SessionKeeper::ReleaseOldest(Endings& endings) {
  Session* oldest = nullptr;
  for (const auto& [id, session] : sessions_) {
    if (session->sequence == nullptr) continue;
    if (oldest == nullptr || session->turns_ended < oldest->turns_ended) oldest = session.get();
  }
  if (oldest == nullptr) return false;
  endings.Take(std::move(oldest->sequence));
  DropText(*oldest);
  return true;
}

Result<void> SessionKeeper::Release(SessionId id, Endings& endings) {
  Session* const session = Find(id);
  if (session == nullptr) {
    return Fail(ErrorCode::kNotFound, fmt::format("session {}: there is none", id.number()));
  }
  if (session->in_turn) {
    return Fail(ErrorCode::kBusy, fmt::format("session {}: it is in a turn", id.number()));
  }
  endings.Take(std::move(session->sequence));
  DropText(*session);
  return {};
}

void SessionKeeper::DropText(Session& session) const {
  if (!session.saved || session.in_turn || !session.in_memory) return;
  session.in_memory = false;
  std::vector<TokenId>().swap(session.text);
}

void SessionKeeper::LimitTexts() {
  while (true) {
    uint64_t bytes = 0;
    Session* oldest = nullptr;
    for (const auto& [id, session] : sessions_) {
      if (!session->saved || session->in_turn || session->text.empty()) continue;
      bytes += session->text.capacity() * sizeof(TokenId);
      if (oldest == nullptr || session->turns_ended < oldest->turns_ended) oldest = session.get();
    }
    if (bytes <= idle_text_bytes_) return;
    DropText(*oldest);
  }
}

}  // namespace quire::serve
