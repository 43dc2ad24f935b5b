// Runs requests and sessions on one model and one cache: a state machine that a thread turns.
//
//   auto engine = Engine::Create(parts, identity, {});
//   auto id = (*engine)->Submit({.prompt = prompt});       // any thread
//   while ((*engine)->Tick().worked) {}                    // one thread; see driver.h
//   while (auto event = (*engine)->Next(*id)) ...          // any thread; the last is a Response
#ifndef QUIRE_SERVE_ENGINE_H_
#define QUIRE_SERVE_ENGINE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "env/clock.h"
#include "model/model.h"
#include "quire/attention.h"
#include "quire/cache.h"
#include "quire/env.h"
#include "serve/mailbox.h"
#include "serve/request.h"
#include "serve/scheduling.h"
#include "serve/session_keeper.h"
#include "serve/stepper.h"
#include "serve/task.h"

namespace quire::serve {

/// What a request takes when it starts.
enum class Admission : uint8_t {
  kWhole = 1,  // room for its prompt and all it may generate, so that it is never short of it
  // Room for what it has, and more as it grows. Where there is none, a request is preempted. More
  // run together, and some work is done twice.
  kGrow = 2,
};

/// Whether what a store has of a prompt is loaded or computed.
enum class LoadPolicy : uint8_t {
  kAlways = 1,
  // What is fastest, as far as the engine has seen: one of the two, or, where nobody else runs,
  // both at once: the end is loaded and the front computed, until they meet.
  kAuto = 2,
  kNever = 3,
};

struct EngineOptions {
  // Prompt tokens per step, over all requests: between these, by headroom, and the lower one while
  // anybody generates. At least 1.
  uint32_t chunk_tokens_min = 512;
  uint32_t chunk_tokens_max = 2048;
  Admission admission = Admission::kWhole;  // of requests with OnFull::kReject that keep all
  uint32_t running_max = 256;               // requests that hold a sequence
  uint32_t requests_max = 1024;             // whose Response was not taken; more are refused
  uint32_t sessions_max = 1024;
  uint32_t events_max = 256;      // that wait for their reader, of one request; at least 8
  uint64_t stall_us = 1'000'000;  // a request whose reader takes nothing for so long is preempted
  uint64_t aging_us = 1'000'000;  // a request that waited so long counts as one priority higher
  // Others hold room on the same budget, such as training runs: what finds none is tried again
  // after so long, where nothing of the engine's could give any back. 0: it is refused then.
  uint64_t outside_retry_us = 0;
  LoadPolicy load = LoadPolicy::kAlways;
  // Called on the thread that turns the engine after a request has something new to say, for
  // callers that have no thread to wait in Await. It must return at once and call no Tick.
  OnPosted on_event{};
  // Where sessions outlive the process; null: nowhere. Must outlive the engine, and have no other
  // one meanwhile.
  SessionStore* sessions = nullptr;
  uint64_t idle_text_bytes = uint64_t{64} << 20;  // of sessions there, that stays in memory
};

struct TickReport {
  bool worked = false;  // or may at once: call again
  // Else: after how long to call again, if no caller changes anything before.
  uint64_t wait_us = UINT64_MAX;
  bool settled = true;  // no session is on its way to its file or from it
};

/// Counters since it was made, and what is there now.
struct EngineStats {
  uint64_t steps = 0;          // of the model
  uint64_t step_us = 0;        // time of these, by the engine's clock
  uint64_t prompt_tokens = 0;  // computed: read for the first time, or again after a preemption
  uint64_t decode_tokens = 0;
  uint64_t recomputed_tokens = 0;       // of both
  uint64_t step_prompt_tokens_max = 0;  // most of one step
  uint64_t looks = 0;                   // at waiting requests: whether they can start
  uint64_t loads = 0;                   // of requests, from the store
  uint64_t loads_from_end = 0;          // of these, beside which the front was computed
  uint64_t loaded_tokens = 0;           // that these brought
  uint64_t load_us = 0;                 // of those that did not fail, by the store's clock
  uint64_t load_bytes = 0;              // that these brought
  uint64_t read_us = 0;                 // of steps that read prompts and did nothing else
  uint64_t read_tokens = 0;             // in these
  uint64_t prefix_waits = 0;            // requests that waited for what another computes
  uint64_t preemptions = 0;
  uint64_t sessions_released = 0;       // idle sessions that lost their sequence
  uint64_t session_write_failures = 0;  // files of sessions that could not be written
  uint32_t waiting = 0;
  uint32_t running = 0;
  uint32_t chunk_tokens = 0;  // of the next step
};

/// What decides who goes on:
/// - Each step has one token of every request that generates, and at most one chunk of prompts
///   besides: of the least served tenant's requests first, of those the one that was read least.
/// - Waiting requests start in the order of tenants by what they were served, then by priority,
///   deadline and age. Who finds no room is waited for by those behind it, as long as the engine
///   holds any that it may get.
/// - A request whose next blocks another one is computing, or loading, starts when that has them.
/// - Room is taken from idle sessions first, then from requests whose readers are slow, then from
///   lower priorities of the same tenant. A request that grows takes it from the latest request of
///   the most served tenant, which may be itself; the oldest request is spared, so it always ends.
///
/// Threads:  Submit, Cancel, Next, Await, sessions and GiveWay: any. Tick and stats: one at a time;
///           work is spread over the executor, and nothing in Tick waits for a caller
/// Lifetime: everything given to Create must outlive it
class Engine {
 public:
  struct Components {
    model::Model& model;
    Cache& cache;
    AttentionBackend& attention;
    Executor& executor;
    const Clock& clock;
  };

  /// Errors: kInvalidArgument names the option
  static Result<std::unique_ptr<Engine>> Create(const Components& components,
                                                const Identity& identity,
                                                const EngineOptions& options);
  ~Engine();

  /// Takes a request in. Its time to the first token counts from here.
  ///
  /// Errors: kInvalidArgument what can never be run; kNoSpace requests_max; kNotFound no such
  ///         session; kBusy the session's last request has not finished. What shows later comes as
  ///         a Response that says kFailed
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
  /// Errors: kNoSpace sessions_max; kInvalidArgument, kBusy and kNotFound the name, as
  ///         SessionStore::ClaimNew and ClaimStored. After an error `settled` is not called
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
  /// the process began: besides Cache::Erase, for who wants to be forgotten. Before the tenant is
  /// removed. `settled` hears an error of SessionStore::RemoveAllOf, which names a session whose
  /// text is left: ask again then.
  void EndSessionsOf(TenantId tenant, OnSettled settled = {});

  void SetTenant(const TenantShare& share) { mailbox_.SetTenant(share); }
  /// For an owner outside, such as a training run, that found no room on the budget: the next Tick
  /// preempts a request or releases an idle session, and does not start it again before
  /// outside_retry_us. Try again then, and ask again if that was not enough.
  ///
  /// Errors: kUnsupported outside_retry_us is 0
  Result<void> GiveWay();

  /// Takes in what callers asked for, starts what can start and computes one step.
  TickReport Tick();
  /// Returns when a caller changed something since the last Tick began, or after `timeout_us`:
  /// whether anything was changed.
  bool AwaitChange(uint64_t timeout_us) { return mailbox_.AwaitChange(timeout_us); }
  EngineStats stats() const;

 private:
  struct Prefix {
    RequestId owner;
    uint64_t tokens;
  };

  /// How a request comes by what the store has of its text.
  enum class Bring : uint8_t { kCompute = 1, kLoad = 2, kBoth = 3 };
  /// What the store has of a request's text, on its way. The request waits, or computes the front.
  struct Loading {
    Ticket ticket;
    SequenceOptions options;  // to open it with
    uint64_t resident;        // tokens before it
    uint64_t tokens;          // to be loaded
    bool computes = false;    // the request runs
  };
  struct Costs {
    double load_us = 0;
    double compute_us = 0;
  };

  Engine(const Components& components, const Identity& identity, const EngineOptions& options);
  Result<void> Check(const Request& request) const;
  Result<bool> ClaimName(const std::string& name, bool stored) const;

  // engine.cc: what callers asked for, and what ends.
  void TakeCommands();
  void Take(SubmitCommand command);
  void Take(const CancelCommand& command);
  void Take(OpenSessionCommand command) { keeper_.Take(std::move(command)); }
  void Take(ForkSessionCommand command) { keeper_.Take(std::move(command)); }
  void Take(EndSessionCommand command);
  void Take(EndTenantCommand command) { keeper_.Take(std::move(command)); }
  void Take(const SessionSettledCommand& command) { keeper_.Take(command); }
  void Take(SessionReadCommand command);
  void Take(const SetTenantCommand& command);
  void Take(const GiveWayCommand& command);
  void EndExpired(uint64_t now_us);
  void LookAtReaders(uint64_t now_us);
  void RetryOutside(uint64_t now_us);
  void RemoveEnded();
  uint64_t WaitUs(uint64_t now_us) const;

  // admission.cc: who starts.
  void Admit(uint64_t now_us);
  Task* FirstInLine(uint64_t now_us, bool beyond_waiting);
  void Look(Task& task);
  Result<void> Open(Task& task, bool reuse);
  Result<Plan> Acquire(const Task& task, bool reuse, const SequenceOptions* open_as);
  bool MayFit(uint64_t tokens) const;
  bool ContinueSession(Task& task);
  void Run(Task& task, std::unique_ptr<Sequence> sequence, std::vector<MissRun> missing,
           uint64_t loaded_tokens);
  Result<void> OpenWith(Task& task, Plan plan, const SequenceOptions& options,
                        uint64_t loaded_tokens);
  // loading.cc: what comes from the store.
  std::optional<Costs> CostsOf(uint64_t tokens, uint64_t bytes) const;
  bool CanComputeBeside(const Task& task) const;
  Bring HowToBring(const Task& task, const Plan& plan) const;
  Result<void> StartLoad(Task& task, Plan plan, const SequenceOptions& options, Bring how);
  void StartFront(Task& task, Loading& load, std::vector<MissRun> missing);
  void MeetLoad(Task& task, Loading& load) const;
  void TakeLoads();
  void TakeLoad(Task& task, Loading load);
  void Join(Task& task, const Loading& load, Plan plan);
  uint64_t holders() const;
  std::optional<Prefix> LoadingPrefix(const Task& task) const;
  bool CanWait() const;
  void WaitForCapacity(Task& task);
  std::optional<Prefix> PendingPrefix(const Task& task) const;
  bool Shares(const Task& a, const Task& b) const;
  void WakePrefixWaiters();
  void CapacityCameBack();

  // planning.cc: what a step computes, and room for it.
  std::vector<BatchEntry> PlanStep();
  void DivideChunk(std::span<BatchEntry> prompts, uint64_t chunk);
  void ReserveCapacity(std::vector<BatchEntry>& entries);
  bool ReserveCapacity(BatchEntry& entry);
  bool FreeCapacityToStart(const Task& task);
  Task* VictimFor(bool spare_oldest) const;
  void Preempt(Task& task, Waits waits);
  void TakeSequence(Task& task, Waits waits);
  bool ReleaseIdleSession();
  bool PreemptPaused(const Task* except);
  void TakeIn(std::span<const BatchEntry> entries);

  const Components components_;
  const Identity identity_;
  const EngineOptions options_;
  Mailbox mailbox_;
  Stepper stepper_;
  ChunkSize chunk_;
  FairShare shares_;
  std::map<TenantId, TenantId> domains_;  // of tenants that share one
  SessionKeeper keeper_;                  // before tasks_: they end first
  std::map<RequestId, std::unique_ptr<Task>> tasks_;
  std::map<RequestId, Loading> loads_;
  std::vector<Task*> running_;  // oldest first
  bool may_start_ = false;      // something changed for a waiting request
  uint64_t retry_outside_us_ = UINT64_MAX;
  EngineStats stats_;
};

}  // namespace quire::serve

#endif  // QUIRE_SERVE_ENGINE_H_
