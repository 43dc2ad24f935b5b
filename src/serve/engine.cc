#include "serve/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "base/canary.h"
#include "serve/spill.h"

namespace quire::serve {

namespace {

constexpr uint32_t kEventsMin = 8;
constexpr uint64_t kStoreWaitUs = 200;  // between two looks at what only waits for the store

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

Result<void> CheckRequest(const Request& request, TokenId vocab, const Geometry& geometry) {
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
  const uint64_t blocks_max = request.keep.blocks_max;
  if (blocks_max > 0 && blocks_max < KeepOptions::kBlocksMaxLeast) {
    return bad(fmt::format("keep.blocks_max is {}, must be 0 or at least {}", blocks_max,
                           KeepOptions::kBlocksMaxLeast));
  }
  if (blocks_max > 0 && request.keep.share < 1.0) return bad("keep: share and blocks_max at once");
  if (in_session && !request.keep.keeps_all()) return bad("keep: not in a session");
  if (!request.keep.keeps_all() && HasWindows(geometry)) {
    return bad("keep: not with this model, which has layers with a window");
  }
  if (in_session && request.on_full == OnFull::kFewer) return bad("on_full: kFewer in a session");
  if (request.spills && (request.on_full != OnFull::kReject || !request.publishes())) {
    return bad("spills: with another on_full, or with a part of the prompt kept");
  }
  if (in_session && !request.adapter.empty()) return bad("adapter: a session has its own");
  if (in_session && request.prompt_logprobs) return bad("prompt_logprobs: not in a session");
  return model::CheckLogitRules(request.rules, vocab);
}

}  // namespace

std::optional<LoadPolicy> LoadPolicyOf(std::string_view name) {
  if (name == "always") return LoadPolicy::kAlways;
  if (name == "auto") return LoadPolicy::kAuto;
  if (name == "never") return LoadPolicy::kNever;
  if (name == "both") return LoadPolicy::kBoth;
  return std::nullopt;
}

bool SetOnFull(std::string_view name, Request& request) {
  const bool spills = name == "spill";
  if (!spills && name != "reject" && name != "halt") return false;
  request.spills = spills;
  request.on_full = name == "halt" ? OnFull::kHalt : OnFull::kReject;
  return true;
}

Result<std::unique_ptr<Engine>> Engine::Create(const Components& components,
                                               const Identity& identity,
                                               const EngineOptions& options) {
  QUIRE_TRY(CheckOptions(options));
  return std::unique_ptr<Engine>(new Engine(components, identity, options));
}

Engine::Engine(const Components& components, const Identity& identity, const EngineOptions& options)
    : components_(components),
      identity_(identity),
      adapters_(components.model.config(), identity_, options.adapters,
                components.model.may_step_aside()),
      mailbox_({.requests_max = options.requests_max,
                .sessions_max = options.sessions_max,
                .events_max = options.events_max},
               options.on_event),
      stepper_(components.model, components.attention, components.executor, components.steps),
      keeper_(mailbox_, components.cache, options.sessions, components.model.config().vocab,
              options.idle_text_bytes),
      retainer_(components.cache, identity_, options.retain),
      state_{.cache = components.cache,
             .clock = components.clock,
             .mailbox = mailbox_,
             .keeper = keeper_,
             .options = options,
             .query_heads = components.model.config().query_heads,
             .stages = components.flow == nullptr ? 1 : components.flow->stages(),
             .steps_aside = components.model.may_step_aside() && components.steps == nullptr &&
                            components.flow == nullptr},
      waiting_(state_),
      preemption_(state_, waiting_),
      loads_(state_, waiting_, preemption_),
      starter_(state_, identity_, waiting_, preemption_, loads_),
      planner_(state_, waiting_, preemption_),
      streamer_({.model = components.model,
                 .attention = components.attention,
                 .executor = components.executor},
                state_, planner_, preemption_) {
  if (components.flow != nullptr) flow_.emplace(*components.flow, components.model.config().vocab);
}

Engine::~Engine() = default;

Result<RequestId> Engine::Submit(Request request) {
  QUIRE_TRY(CheckRequest(request, static_cast<TokenId>(components_.model.config().vocab),
                         components_.cache.options().geometry));
  if (request.spills && !CanStream(state_)) {
    return Fail(ErrorCode::kUnsupported,
                "request: spills: the engine streams nothing; give the cache a store, and "
                "resident_tokens");
  }
  const bool others_compute = components_.steps != nullptr || components_.flow != nullptr;
  if (others_compute && !request.keep.keeps_all()) {
    return Fail(ErrorCode::kUnsupported,
                "request: keep: ranks do not observe what is attended to; use one process, or keep "
                "all of the prompt");
  }
  std::shared_ptr<const ServedAdapter> adapter;
  if (!request.adapter.empty()) {
    QUIRE_ASSIGN(adapter, adapters_.Find(request.adapter));
  }
  return mailbox_.Submit(std::move(request), components_.clock.NowMicros(), std::move(adapter));
}

// Whether the session has a file.
Result<bool> Engine::ClaimName(const std::string& name, bool stored) const {
  if (state_.options.sessions == nullptr || name.empty()) return false;
  QUIRE_TRY(stored ? state_.options.sessions->ClaimStored(name)
                   : state_.options.sessions->ClaimNew(name));
  return true;
}

Result<SessionId> Engine::OpenSession(const SessionOptions& options, OnSettled settled) {
  if (options.stored && (state_.options.sessions == nullptr || options.name.empty())) {
    return Fail(ErrorCode::kNotFound, "session: the engine has none that outlived a process");
  }
  Digest adapter_digest{};
  if (!options.adapter.empty() && !options.stored) {
    QUIRE_ASSIGN(const auto adapter, adapters_.Find(options.adapter));
    adapter_digest = adapter->adapter->digest();
  }
  QUIRE_ASSIGN(const bool file, ClaimName(options.name, options.stored));
  const bool writes = file && !options.stored;
  auto id = mailbox_.OpenSession(options, writes ? std::exchange(settled, {}) : OnSettled(),
                                 adapter_digest);
  if (!id && file) state_.options.sessions->GiveBack(options.name);
  if (id && settled) settled({});
  return id;
}

Result<SessionId> Engine::ForkSession(SessionId session, const std::string& name,
                                      OnSettled settled) {
  QUIRE_ASSIGN(const bool file, ClaimName(name, /*stored=*/false));
  auto id = mailbox_.ForkSession(session, name, file ? std::exchange(settled, {}) : OnSettled());
  if (!id && file) state_.options.sessions->GiveBack(name);
  if (id && settled) settled({});
  return id;
}

Result<void> Engine::EndSession(SessionId session, OnSettled settled) {
  const bool files = state_.options.sessions != nullptr;
  QUIRE_TRY(mailbox_.EndSession(session, SessionFile::kRemoved,
                                files ? std::exchange(settled, {}) : OnSettled()));
  if (settled) settled({});
  return {};
}

Result<void> Engine::CloseSession(SessionId session, OnSettled settled) {
  if (state_.options.sessions == nullptr) {
    return Fail(ErrorCode::kUnsupported, "session: it has no file to be opened from again");
  }
  return mailbox_.EndSession(session, SessionFile::kKept, std::move(settled));
}

// Its name is asked for here: the tenant may be gone before the next Tick.
void Engine::EndSessionsOf(TenantId tenant, OnSettled settled) {
  const auto stats = components_.cache.tenant_stats(tenant);
  mailbox_.EndSessionsOf(tenant, stats ? stats->name : std::string(), std::move(settled));
}

void Engine::Take(LeaseCommand command) {
  state_.leased = command.leased;
  waiting_.WakeForRoom();
  if (command.settled) command.settled({});
}

TickReport Engine::Tick() {
  TakeCommands();
  const uint64_t now_us = components_.clock.NowMicros();
  EndExpired(now_us);
  preemption_.LookAtReaders(now_us);
  waiting_.RetryOutside(now_us);
  waiting_.RemoveEnded();
  loads_.TakeDone();
  starter_.StartSome(now_us);
  std::vector<BatchEntry> entries = planner_.Plan();
  const uint64_t step_us = components_.clock.NowMicros();
  if (flow_) {
    entries = flow_->Step(entries, state_.tasks);
  } else {
    stepper_.Step(entries);
  }
  const uint64_t took_us = components_.clock.NowMicros() - step_us;
  EngineStats& stats = state_.stats;
  stats.step_us += took_us;
  if (std::ranges::none_of(entries, &BatchEntry::decoded)) {
    uint64_t tokens = 0;
    for (const BatchEntry& entry : entries) tokens += entry.tokens;
    stats.read_us += took_us;
    stats.read_tokens += tokens;
    state_.stats.read_rate.Add(took_us, tokens, step_us + took_us);
  }
  planner_.TakeIn(entries);
  for (const BatchEntry& entry : entries) {
    if (!entry.lost || entry.task->ended()) continue;
    ++stats.streams_renewed;
    preemption_.Preempt(*entry.task, Waits::kNothing);
  }
  const Streamer::Report streamed =
      streamer_.GoOn(entries.empty() ? 0 : std::max<uint64_t>(took_us, 1));
  loads_.TakeArrived();
  waiting_.RemoveEnded();
  starter_.BringBack(now_us);
  const bool settled = keeper_.settled();
  if (!entries.empty() || streamed.worked || state_.may_start || (flow_ && flow_->is_busy())) {
    return {.worked = true, .settled = settled};
  }
  const uint64_t wait_us = WaitUs(now_us);
  const bool waits = streamed.waits || !state_.openings.empty() || !state_.endings.empty();
  return {.wait_us = waits ? std::min(wait_us, kStoreWaitUs) : wait_us, .settled = settled};
}

void Engine::TakeCommands() {
  for (Command& command : mailbox_.TakeCommands()) {
    std::visit([this](auto& each) { Take(std::move(each)); }, command);
  }
}

void Engine::Take(SubmitCommand command) {
  const Request& request = command.request;
  Session* const session = request.session.is_none() ? nullptr : keeper_.Find(request.session);
  const bool grows = (state_.options.admission == Admission::kGrow || request.spills) &&
                     request.on_full == OnFull::kReject && request.keep.keeps_all();
  auto task =
      std::make_unique<Task>(std::move(command), session, /*starts_whole=*/!grows, mailbox_,
                             keeper_, retainer_, state_.cache.options().profile, components_.clock);
  state_.shares.Enter(task->tenant());
  if (session != nullptr) {
    keeper_.BeginTurn(*session);
    if (session->in_memory) {
      if (const auto given = GiveAdapter(*task, *session); !given) task->Fail(given.error());
    }
  }
  state_.tasks.Add(std::move(task));
  state_.may_start = true;
}

Result<void> Engine::GiveAdapter(Task& task, const Session& session) {
  if (session.adapter.empty()) return {};
  QUIRE_ASSIGN(auto adapter, adapters_.Find(session.adapter));
  if (adapter->adapter->digest() != session.adapter_digest) {
    return Fail(ErrorCode::kUnsupported,
                fmt::format("adapter '{}': it has other weights than when the session was opened",
                            session.adapter));
  }
  task.SetAdapter(std::move(adapter));
  return {};
}

void Engine::Take(const CancelCommand& command) {
  Task* const task = state_.tasks.Find(command.id);
  if (task == nullptr || task->ended()) return;  // it has just ended
  if (task->wait().what == Waits::kText && command.turn == CancelledTurn::kStands) {
    return task->CancelOnceRead();
  }
  task->End(Finish::kCancelled, command.turn);
  waiting_.RemoveEnded();  // now: the command that ends its session may follow
}

void Engine::Take(EndSessionCommand command) {
  keeper_.Take(std::move(command), state_.endings);
  waiting_.WakeForRoom();
}

void Engine::Take(SessionReadCommand command) {
  const SessionId id = command.id;
  const auto read = keeper_.Take(std::move(command));
  for (const auto& [request, task] : state_.tasks.all()) {
    const bool waits = task->wait().what == Waits::kText && !task->ended();
    if (!waits || task->request().session != id) continue;
    const Result<void> given = read ? GiveAdapter(*task, *keeper_.Find(id)) : read;
    if (given) {
      task->TakeText();
      state_.may_start = true;
    } else {
      task->Fail(given.error());
    }
  }
  waiting_.RemoveEnded();
}

void Engine::Take(const SetTenantCommand& command) {
  const TenantShare& share = command.share;
  state_.shares.SetWeight(share.tenant, share.weight);
  waiting_.SetDomain(share.tenant, share.domain);
  retainer_.SetDomain(share.tenant, share.domain);
}

void Engine::Take(DemoteCommand command) {
  command.settled(command.request.is_none() ? keeper_.Release(command.session, state_.endings)
                                            : Demote(command.request));
  waiting_.WakeForRoom();
}

// It may have made room, or taken some.
void Engine::Take(CallCommand command) {
  command.call();
  waiting_.WakeForRoom();
}

Result<void> Engine::Demote(RequestId request) {
  Task* const task = state_.tasks.Find(request);
  if (task == nullptr || task->ended()) {
    return Fail(ErrorCode::kNotFound,
                fmt::format("request {}: it has ended, or there is none", request.number()));
  }
  if (task->spilled_us() || (task->running() && task->sequence().streamed() != nullptr)) return {};
  if (!CanStream(state_, *task)) {
    return Fail(ErrorCode::kUnsupported,
                fmt::format("request {}: it cannot stream; that needs a store and "
                            "resident_tokens, and a request that keeps all of its prompt",
                            request.number()));
  }
  Spill(state_, *task);
  if (task->running()) preemption_.Preempt(*task, Waits::kNothing);
  return {};
}

void Engine::EndExpired(uint64_t now_us) {
  for (const auto& [id, task] : state_.tasks.all()) {
    const uint64_t deadline_us = task->request().deadline_us;
    if (deadline_us == 0 || now_us < deadline_us || task->ended()) continue;
    task->Fail({ErrorCode::kDeadline, fmt::format("request {}: its deadline was {} us ago",
                                                  id.number(), now_us - deadline_us)});
  }
}

uint64_t Engine::WaitUs(uint64_t now_us) const {
  uint64_t next_us = waiting_.retry_outside_us();
  for (const auto& [id, task] : state_.tasks.all()) {
    if (task->request().deadline_us != 0) {
      next_us = std::min(next_us, task->request().deadline_us);
    }
    if (task->paused_us())
      next_us = std::min(next_us, *task->paused_us() + state_.options.stall_us);
  }
  return next_us == UINT64_MAX ? UINT64_MAX : next_us - std::min(next_us, now_us);
}

EngineStats Engine::stats() const {
  EngineStats stats = state_.stats;
  stats.running = static_cast<uint32_t>(state_.tasks.running().size());
  stats.waiting = static_cast<uint32_t>(state_.tasks.all().size()) - stats.running;
  stats.chunk_tokens = planner_.chunk_tokens();
  stats.adapters = adapters_.count();
  stats.adapter_bytes = adapters_.bytes();
  stats.session_write_failures = keeper_.write_failures();
  return stats;
}

}  // namespace quire::serve
