#include "serve/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "base/canary.h"

namespace quire::serve {

namespace {

constexpr uint32_t kEventsMin = 8;

Result<void> CheckOptions(const EngineOptions& options) {
  const auto bad = [](std::string what) {
    return Fail(ErrorCode::kInvalidArgument, "engine options: " + std::move(what));
  };
  if (options.chunk_tokens_min == 0) return bad("chunk_tokens_min is 0");
  if (options.chunk_tokens_max < options.chunk_tokens_min) {
    return bad(fmt::format("chunk_tokens_max {} is below chunk_tokens_min {}",
                           options.chunk_tokens_max, options.chunk_tokens_min));
  }
  if (options.running_max == 0) return bad("running_max is 0");
  if (options.aging_us == 0) return bad("aging_us is 0");
  if (options.events_max < kEventsMin) {
    return bad(
        fmt::format("events_max is {}, must be at least {}", options.events_max, kEventsMin));
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<Engine>> Engine::Create(const Components& components,
                                               const Identity& identity,
                                               const EngineOptions& options) {
  QUIRE_TRY(CheckOptions(options));
  return std::unique_ptr<Engine>(new Engine(components, identity, options));
}

Engine::Engine(const Components& components, const Identity& identity, const EngineOptions& options)
    : components_(components),
      identity_(identity),
      options_(options),
      mailbox_({.requests_max = options.requests_max,
                .sessions_max = options.sessions_max,
                .events_max = options.events_max},
               options.on_event),
      stepper_(components.model, components.attention, components.executor,
               components.cache.options().profile),
      chunk_(options.chunk_tokens_min, options.chunk_tokens_max),
      keeper_(mailbox_, components.cache, options.sessions, components.model.config().vocab,
              options.idle_text_bytes) {}

Engine::~Engine() = default;

Result<void> Engine::Check(const Request& request) const {
  const auto vocab = static_cast<TokenId>(components_.model.config().vocab);
  const auto bad = [](std::string what) {
    return Fail(ErrorCode::kInvalidArgument, std::move(what));
  };
  for (size_t i = 0; i < request.prompt.size(); ++i) {
    if (request.prompt[i] < 0 || request.prompt[i] >= vocab) {
      return bad(fmt::format("prompt: token {} at position {} is not in the vocabulary of {}",
                             request.prompt[i], i, vocab));
    }
  }
  const bool in_session = !request.session.is_none();
  if (request.prompt.empty() && !in_session) return bad("prompt: no tokens");
  if (!(request.keep.share > 0.0 && request.keep.share <= 1.0)) {
    return bad(fmt::format("keep.share is {}, must be above 0 and at most 1", request.keep.share));
  }
  if (in_session && !request.keep.keeps_all()) return bad("keep: not in a session");
  if (!request.keep.keeps_all() && HasWindows(components_.cache.options().geometry)) {
    return bad("keep: not with this model, which has layers with a window");
  }
  if (in_session && request.on_full == OnFull::kFewer) return bad("on_full: kFewer in a session");
  return {};
}

Result<RequestId> Engine::Submit(Request request) {
  QUIRE_TRY(Check(request));
  return mailbox_.Submit(std::move(request), components_.clock.NowMicros());
}

// Whether the session has a file.
Result<bool> Engine::ClaimName(const std::string& name, bool stored) const {
  if (options_.sessions == nullptr || name.empty()) return false;
  QUIRE_TRY(stored ? options_.sessions->ClaimStored(name) : options_.sessions->ClaimNew(name));
  return true;
}

Result<SessionId> Engine::OpenSession(const SessionOptions& options, OnSettled settled) {
  if (options.stored && (options_.sessions == nullptr || options.name.empty())) {
    return Fail(ErrorCode::kNotFound, "session: the engine has none that outlived a process");
  }
  QUIRE_ASSIGN(const bool file, ClaimName(options.name, options.stored));
  const bool writes = file && !options.stored;
  auto id = mailbox_.OpenSession(options, writes ? std::exchange(settled, {}) : OnSettled());
  if (!id && file) options_.sessions->GiveBack(options.name);
  if (id && settled) settled({});
  return id;
}

Result<SessionId> Engine::ForkSession(SessionId session, const std::string& name,
                                      OnSettled settled) {
  QUIRE_ASSIGN(const bool file, ClaimName(name, /*stored=*/false));
  auto id = mailbox_.ForkSession(session, name, file ? std::exchange(settled, {}) : OnSettled());
  if (!id && file) options_.sessions->GiveBack(name);
  if (id && settled) settled({});
  return id;
}

Result<void> Engine::EndSession(SessionId session, OnSettled settled) {
  const bool files = options_.sessions != nullptr;
  QUIRE_TRY(mailbox_.EndSession(session, SessionFile::kRemoved,
                                files ? std::exchange(settled, {}) : OnSettled()));
  if (settled) settled({});
  return {};
}

Result<void> Engine::CloseSession(SessionId session, OnSettled settled) {
  if (options_.sessions == nullptr) {
    return Fail(ErrorCode::kUnsupported, "session: it has no file to be opened from again");
  }
  return mailbox_.EndSession(session, SessionFile::kKept, std::move(settled));
}

// Its name is asked for here: the tenant may be gone before the next Tick.
void Engine::EndSessionsOf(TenantId tenant, OnSettled settled) {
  const auto stats = components_.cache.tenant_stats(tenant);
  mailbox_.EndSessionsOf(tenant, stats ? stats->name : std::string(), std::move(settled));
}

Result<void> Engine::GiveWay() {
  if (options_.outside_retry_us == 0) {
    return Fail(ErrorCode::kUnsupported, "engine: outside_retry_us is 0, so it gives no way");
  }
  mailbox_.GiveWay();
  return {};
}

TickReport Engine::Tick() {
  TakeCommands();
  const uint64_t now_us = components_.clock.NowMicros();
  EndExpired(now_us);
  LookAtReaders(now_us);
  RetryOutside(now_us);
  RemoveEnded();
  TakeLoads();
  Admit(now_us);
  std::vector<BatchEntry> entries = PlanStep();
  ReserveCapacity(entries);
  const uint64_t step_us = components_.clock.NowMicros();
  stepper_.Step(entries);
  const uint64_t took_us = components_.clock.NowMicros() - step_us;
  stats_.step_us += took_us;
  if (std::ranges::none_of(entries, &BatchEntry::decoded)) {
    stats_.read_us += took_us;
    for (const BatchEntry& entry : entries) stats_.read_tokens += entry.tokens;
  }
  TakeIn(entries);
  RemoveEnded();
  const bool settled = keeper_.settled();
  if (!entries.empty() || may_start_) return {.worked = true, .settled = settled};
  return {.wait_us = WaitUs(now_us), .settled = settled};
}

void Engine::TakeCommands() {
  for (Command& command : mailbox_.TakeCommands()) {
    std::visit([this](auto& each) { Take(std::move(each)); }, command);
  }
}

void Engine::Take(SubmitCommand command) {
  const RequestId id = command.id;
  const SessionId in = command.request.session;
  Session* const session = in.is_none() ? nullptr : keeper_.Find(in);
  const bool grows = options_.admission == Admission::kGrow &&
                     command.request.on_full == OnFull::kReject && command.request.keep.keeps_all();
  auto task = std::make_unique<Task>(std::move(command), session, /*starts_whole=*/!grows, mailbox_,
                                     keeper_, components_.clock);
  if (session != nullptr) keeper_.BeginTurn(*session);
  shares_.Enter(task->tenant());
  tasks_.emplace(id, std::move(task));
  may_start_ = true;
}

void Engine::Take(const CancelCommand& command) {
  const auto found = tasks_.find(command.id);
  if (found == tasks_.end() || found->second->ended()) return;  // it has just ended
  if (found->second->waits() == Waits::kText && command.turn == CancelledTurn::kStands) {
    return found->second->CancelOnceRead();
  }
  found->second->End(Finish::kCancelled, command.turn);
  RemoveEnded();  // now: the command that ends its session may follow
}

void Engine::Take(EndSessionCommand command) {
  keeper_.Take(std::move(command));
  CapacityCameBack();
}

void Engine::Take(SessionReadCommand command) {
  const SessionId id = command.id;
  const auto read = keeper_.Take(std::move(command));
  for (const auto& [request, task] : tasks_) {
    if (task->request().session != id || task->waits() != Waits::kText || task->ended()) continue;
    if (read) {
      task->TakeText();
      may_start_ = true;
    } else {
      task->Fail(read.error());
    }
  }
  RemoveEnded();
}

void Engine::Take(const SetTenantCommand& command) {
  const TenantShare& share = command.share;
  shares_.SetWeight(share.tenant, share.weight);
  if (share.domain.is_none()) {
    domains_.erase(share.tenant);
  } else {
    domains_[share.tenant] = share.domain;
  }
}

void Engine::Take(const GiveWayCommand&) {
  if (ReleaseIdleSession()) return;
  Task* const victim = VictimFor(/*spare_oldest=*/false);
  if (victim == nullptr) return;
  TakeSequence(*victim, Waits::kRoom);  // what it held is not for others of the engine's
}

void Engine::EndExpired(uint64_t now_us) {
  for (const auto& [id, task] : tasks_) {
    const uint64_t deadline_us = task->request().deadline_us;
    if (deadline_us == 0 || now_us < deadline_us || task->ended()) continue;
    task->Fail({ErrorCode::kDeadline, fmt::format("request {}: its deadline was {} us ago",
                                                  id.number(), now_us - deadline_us)});
  }
}

void Engine::LookAtReaders(uint64_t now_us) {
  std::vector<Task*> stalled;
  for (Task* const task : running_) {
    if (task->ended()) continue;
    if (mailbox_.HasCapacity(task->id(), Task::kEventsOfAStep)) {
      task->SetPaused(std::nullopt);
    } else if (!task->paused_us()) {
      task->SetPaused(now_us);
      CapacityCameBack();  // who waits for room may take it from this one
    } else if (now_us - *task->paused_us() >= options_.stall_us &&
               !Planted(Canary::kStopForReader)) {
      stalled.push_back(task);
    }
  }
  for (Task* const task : stalled) Preempt(*task, Waits::kReader);
  for (const auto& [id, task] : tasks_) {
    if (task->ended() || task->running() || task->waits() != Waits::kReader) continue;
    if (!mailbox_.IsDrained(id)) continue;
    task->WaitFor(Waits::kNothing);
    may_start_ = true;
  }
  WakePrefixWaiters();  // of those that stand still
}

void Engine::RetryOutside(uint64_t now_us) {
  if (now_us < retry_outside_us_) return;
  retry_outside_us_ = UINT64_MAX;
  CapacityCameBack();
}

void Engine::RemoveEnded() {
  std::erase_if(running_, [](const Task* task) { return task->ended(); });
  const size_t before = tasks_.size();
  for (auto each = tasks_.begin(); each != tasks_.end();) {
    const auto next = std::next(each);
    const Task& task = *each->second;
    if (task.ended()) {
      shares_.Leave(task.tenant());
      loads_.erase(task.id());
      tasks_.erase(each);
    }
    each = next;
  }
  if (tasks_.size() == before) return;
  CapacityCameBack();
  WakePrefixWaiters();
}

uint64_t Engine::WaitUs(uint64_t now_us) const {
  uint64_t next_us = retry_outside_us_;
  for (const auto& [id, task] : tasks_) {
    if (task->request().deadline_us != 0) {
      next_us = std::min(next_us, task->request().deadline_us);
    }
    if (task->paused_us()) next_us = std::min(next_us, *task->paused_us() + options_.stall_us);
  }
  return next_us == UINT64_MAX ? UINT64_MAX : next_us - std::min(next_us, now_us);
}

EngineStats Engine::stats() const {
  EngineStats stats = stats_;
  stats.running = static_cast<uint32_t>(running_.size());
  stats.waiting = static_cast<uint32_t>(tasks_.size() - running_.size());
  stats.chunk_tokens = chunk_.tokens();
  stats.session_write_failures = keeper_.write_failures();
  return stats;
}

}  // namespace quire::serve
