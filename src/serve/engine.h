// Runs requests and sessions on one model and one cache: a state machine that a thread turns.
//
//   auto engine = Engine::Create(parts, identity, {});
//   auto id = (*engine)->Submit({.prompt = prompt});       // any thread
//   while ((*engine)->Tick().worked) {}                    // one thread; see driver.h
//   while (auto event = (*engine)->Next(*id)) ...          // any thread; the last is a Response
#ifndef QUIRE_SERVE_ENGINE_H_
#define QUIRE_SERVE_ENGINE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "env/clock.h"
#include "model/model.h"
#include "model/step_flow.h"
#include "model/step_runner.h"
#include "quire/attention.h"
#include "quire/cache.h"
#include "quire/env.h"
#include "serve/adapters.h"
#include "serve/engine_options.h"
#include "serve/flow_stepper.h"
#include "serve/mailbox.h"
#include "serve/preemption.h"
#include "serve/prompt_loads.h"
#include "serve/request.h"
#include "serve/sequence_list.h"
#include "serve/session_keeper.h"
#include "serve/starter.h"
#include "serve/state.h"
#include "serve/step_planner.h"
#include "serve/stepper.h"
#include "serve/streamer.h"
#include "serve/waiting.h"

namespace quire::serve {

struct TickReport {
  bool worked = false;  // or may at once: call again
  // Else: after how long to call again, if no caller changes anything before.
  uint64_t wait_us = UINT64_MAX;
  bool settled = true;  // no session is on its way to its file or from it
};

/// What decides which request goes on:
/// - Each step has one token of every request that generates, and at most one chunk of prompts
///   besides: of the least served tenant's requests first, of those the one that was read least.
/// - Waiting requests start in the order of tenants by what they were served, then by priority,
///   deadline and age. Those behind one that finds no room wait for it, as long as the engine
///   holds any that it may get.
/// - A request whose next blocks another one is computing, or loading, starts when that has them.
/// - Room is taken from idle sessions first, then from requests whose readers are slow, then from
///   lower priorities of the same tenant. A request that grows takes it from the latest request of
///   the most served tenant, which may be itself; the oldest request is spared, so it always ends.
/// - A request that may spill gives its room away too, and goes on at once with a context that
///   streams from the store; when there is room for all of it, it is loaded.
///
/// Threads:  Submit, Cancel, Next, Await, sessions, GiveWay, Demote, CallBetweenSteps: any. Tick,
///           stats and sequences: one at a time; work is spread over the executor, and nothing in
///           Tick waits for a caller
/// Lifetime: everything given to Create must outlive it
class Engine {
 public:
  struct Components {
    model::Model& model;
    Cache& cache;
    AttentionBackend& attention;
    Executor& executor;
    const Clock& clock;
    model::StepRunner* steps = nullptr;  // takes the steps; null: the model. A request that streams
                                         // is the model's
    // Steps pass through these stages, of which `model` is the first and `cache` has the sequences;
    // `steps` is not asked then. Null: the model has all layers.
    model::StepFlow* flow = nullptr;
  };

  /// Errors: kInvalidArgument names the option
  static Result<std::unique_ptr<Engine>> Create(const Components& components,
                                                const Identity& identity,
                                                const EngineOptions& options);
  ~Engine();

  /// Takes a request in. Its time to the first token counts from here.
  ///
  /// Errors: kInvalidArgument what can never be run; kUnsupported it spills, and the engine streams
  ///         nothing; kNoSpace requests_max; kNotFound no such session or adapter; kBusy the
  ///         session's last request has not finished. What shows later comes as a Response that
  ///         says kFailed
  Result<RequestId> Submit(Request request);
  /// Ends a request at the next Tick. False: it has ended, or there is none.
  bool Cancel(RequestId id, CancelledTurn turn = CancelledTurn::kStands) {
    return mailbox_.Cancel(id, turn);
  }
  /// Cancels all; turns of sessions are undone.
  void CancelAll() { mailbox_.CancelAll(); }
  /// The next thing a request has to say; none: nothing now, or it has said all.
  std::optional<Event> Next(RequestId id) { return mailbox_.Next(id); }
  /// The same, but waits for it; none: it has said all. Another thread must turn the engine.
  std::optional<Event> Await(RequestId id) { return mailbox_.Await(id); }

  /// A conversation: see Request::session. With EngineOptions::sessions its Responses come once
  /// it outlives the process; where the file cannot be written it comes all the same, and the
  /// session goes on in memory. What a turn was fed is undone where the process is killed before.
  ///
  /// `settled`, here and below, hears when what was asked for outlives the process; without a file
  /// at once. Where it fails the session is there as long as the process: end it.
  ///
  /// A session keeps the name and digest of its adapter: a turn fails with kNotFound while none of
  /// that name is loaded, and with kUnsupported while that is another one.
  ///
  /// Errors: kNoSpace sessions_max; kNotFound no such adapter; kInvalidArgument, kBusy and
  ///         kNotFound the name, as SessionStore::ClaimNew and ClaimStored. After an error
  ///         `settled` is not called
  Result<SessionId> OpenSession(const SessionOptions& options, OnSettled settled = {});
  /// A second session with the same text and sampler; shares what the first one holds. Where its
  /// file cannot be written it goes on in memory. `settled` hears kCancelled where it was ended
  /// before it had a text that could be written.
  ///
  /// Errors: kNotFound; kBusy; kNoSpace, kInvalidArgument as OpenSession
  Result<SessionId> ForkSession(SessionId session, const std::string& name = {},
                                OnSettled settled = {});
  /// Cancels its request, if one is under way, and forgets it.
  ///
  /// Errors: kNotFound
  Result<void> EndSession(SessionId session, OnSettled settled = {});
  /// The same, but it can be opened again by its name, as it was before that request.
  ///
  /// Errors: kNotFound; kUnsupported the engine has no files
  Result<void> CloseSession(SessionId session, OnSettled settled = {});

  /// Ends all sessions of a tenant, and removes their files, those too that were not opened since
  /// the process began: besides Cache::Erase, for a tenant that wants to be forgotten. Before the
  /// tenant is removed. `settled` hears an error of SessionStore::RemoveAllOf, which names a
  /// session whose text is left: ask again then.
  void EndSessionsOf(TenantId tenant, OnSettled settled = {});

  void SetTenant(const TenantShare& share) { mailbox_.Tell(SetTenantCommand{share}); }
  /// For an owner outside, such as a training run, that found no room on the budget: the next Tick
  /// preempts a request or releases an idle session, and does not start it again before
  /// outside_retry_us (a tenth of a second where that is 0). Try again then, and ask again if that
  /// was not enough.
  void GiveWay() { mailbox_.Tell(GiveWayCommand{}); }
  /// While a part of the cache is leased, requests that do not fit into the rest wait. True: before
  /// the cache gets smaller, which waits for `settled`. False: once it is whole again. Either way
  /// the engine looks at all waiting requests again.
  void SetLeased(bool leased, OnSettled settled = {}) {
    mailbox_.Tell(LeaseCommand{.leased = leased, .settled = std::move(settled)});
  }

  /// For an operator that wants memory now: a request that runs goes on with a context that streams
  /// from the store, until memory has room again; a session that idles lets its sequence go, whose
  /// blocks stay cached. `settled` hears on the engine's thread. Numbers as in sequences().
  ///
  /// Errors (to `settled`): kNotFound there is none, or it has ended; kUnsupported the engine
  ///         streams nothing, or not this request; kBusy the session is in a turn
  void Demote(RequestId request, OnSettled settled) {
    mailbox_.Tell(DemoteCommand{.request = request, .session = {}, .settled = std::move(settled)});
  }
  void Demote(SessionId session, OnSettled settled) {
    mailbox_.Tell(DemoteCommand{.request = {}, .session = session, .settled = std::move(settled)});
  }

  /// Calls it on the engine's thread, at the next Tick, before that starts or computes anything:
  /// for caches that one thread uses at a time (ranks).
  void CallBetweenSteps(std::move_only_function<void()> call) {
    mailbox_.Tell(CallCommand{.call = std::move(call)});
  }

  /// Takes in what callers asked for, starts what can start and computes one step.
  TickReport Tick();
  /// Returns when a caller changed something since the last Tick began, or after `timeout_us`:
  /// whether anything was changed.
  bool AwaitChange(uint64_t timeout_us) { return mailbox_.AwaitChange(timeout_us); }
  void Wake() { mailbox_.Wake(); }
  EngineStats stats() const;
  std::vector<SequenceEntry> sequences() const { return ListSequences(state_); }
  /// Of what all requests of the base model compute, but for their tenants.
  const Identity& identity() const { return identity_; }
  /// What requests and sessions may name. Threads: any
  AdapterTable& adapters() { return adapters_; }

 private:
  Engine(const Components& components, const Identity& identity, const EngineOptions& options);
  Result<void> GiveAdapter(Task& task, const Session& session);
  Result<bool> ClaimName(const std::string& name, bool stored) const;

  void TakeCommands();
  void Take(SubmitCommand command);
  void Take(const CancelCommand& command);
  void Take(EndSessionCommand command);
  void Take(SessionReadCommand command);
  void Take(const SetTenantCommand& command);
  void Take(CallCommand command);
  void Take(const GiveWayCommand&) { preemption_.GiveWay(); }
  void Take(LeaseCommand command);
  void Take(DemoteCommand command);
  Result<void> Demote(RequestId request);
  template <typename SessionCommand>  // any other
  void Take(SessionCommand command) {
    keeper_.Take(std::move(command));
  }
  void EndExpired(uint64_t now_us);
  uint64_t WaitUs(uint64_t now_us) const;

  const Components components_;
  const Identity identity_;
  AdapterTable adapters_;
  Mailbox mailbox_;
  Stepper stepper_;
  std::optional<FlowStepper> flow_;
  SessionKeeper keeper_;  // before state_: its tasks end first
  Retainer retainer_;     // the same
  EngineState state_;
  Waiting waiting_;
  Preemption preemption_;
  PromptLoads loads_;
  Starter starter_;
  StepPlanner planner_;
  Streamer streamer_;
};

}  // namespace quire::serve

#endif  // QUIRE_SERVE_ENGINE_H_
