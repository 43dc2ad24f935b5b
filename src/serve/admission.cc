// Which waiting requests start, and what the others wait for.
#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "base/bits.h"
#include "base/canary.h"
#include "serve/engine.h"

namespace quire::serve {

namespace {

// Blocks that a growing request finds room for, besides those of what it has, before it starts
// beside others: else it would be preempted at once.
constexpr uint64_t kHeadroomBlocks = 4;

// Where nobody will give anything back: what is pinned to be shared, its twins too, or what is to
// be loaded, may take more room than computing it again.
bool MayComputeAll(bool reuse, uint64_t holders) { return reuse && holders == 0; }

}  // namespace

void Engine::CapacityCameBack() {
  may_start_ = true;
  for (const auto& [id, task] : tasks_) {
    if (task->waits() == Waits::kRoom) task->WaitFor(Waits::kNothing);
  }
}

// Those whose prefix is there, or is not being computed any more.
void Engine::WakePrefixWaiters() {
  for (const auto& [id, task] : tasks_) {
    if (task->waits() != Waits::kPrefix) continue;
    const auto found = tasks_.find(task->prefix_owner());
    if (Planted(Canary::kForgetWaiters) && found == tasks_.end()) continue;
    if (found != tasks_.end()) {
      const Task& owner = *found->second;
      const bool is_there = owner.running() && owner.position() >= task->prefix_tokens();
      if (!owner.ended() && !is_there && loads_.contains(owner.id())) continue;
      const bool goes_on = owner.running() && !owner.ended() && !owner.paused_us();
      if (goes_on && owner.position() < task->prefix_tokens()) continue;
    }
    task->WaitFor(Waits::kNothing);
    may_start_ = true;
  }
}

void Engine::Admit(uint64_t now_us) {
  const auto is_full = [&] { return holders() >= options_.running_max; };
  while (may_start_ && !is_full()) {
    // Where the engine holds nothing, who waits for room waits for somebody outside: others go on.
    Task* const first = FirstInLine(now_us, /*beyond_waiting=*/holders() == 0);
    if (first == nullptr || first->waits() == Waits::kRoom) {
      may_start_ = false;
      break;
    }
    ++stats_.looks;
    Look(*first);
    RemoveEnded();
  }
  // Whoever ends, or loses its sequence, sets it again.
  if (is_full()) may_start_ = false;
}

// By tenant: what it was served and what its running requests still may be. In a tenant: priority,
// deadline, age.
Task* Engine::FirstInLine(uint64_t now_us, bool beyond_waiting) {
  std::map<TenantId, uint64_t> coming;
  for (const Task* const task : running_) {
    coming[task->tenant()] +=
        task->tokens_at_most() - std::min(task->position(), task->tokens_at_most());
  }
  const auto place = [&](const Task& task) {
    const uint64_t waited_us = now_us - std::min(now_us, task.submitted_us());
    const uint64_t urgency = task.request().priority + waited_us / options_.aging_us;
    const uint64_t deadline_us = task.request().deadline_us;
    return std::tuple(shares_.ServedAfter(task.tenant(), coming[task.tenant()]), task.tenant(),
                      UINT64_MAX - urgency, deadline_us == 0 ? UINT64_MAX : deadline_us, task.id());
  };
  Task* first = nullptr;
  for (const auto& [id, task] : tasks_) {
    if (task->running() || task->ended()) continue;
    const Waits waits = task->waits();
    if (waits == Waits::kPrefix || waits == Waits::kReader || waits == Waits::kLoad ||
        waits == Waits::kText || (beyond_waiting && waits == Waits::kRoom)) {
      continue;
    }
    if (first == nullptr || place(*task) < place(*first)) first = task.get();
  }
  return first;
}

void Engine::Look(Task& task) {
  if (task.text().empty()) {
    return task.Fail({ErrorCode::kInvalidArgument, "session: it has no text to go on from"});
  }
  if (task.goal() == 0) return task.End(Finish::kLength);
  if (ContinueSession(task)) return;
  auto prefix = PendingPrefix(task);
  if (!prefix) prefix = LoadingPrefix(task);
  if (prefix) {
    ++stats_.prefix_waits;
    return task.WaitForPrefix(prefix->owner, prefix->tokens);
  }
  bool reuse = task.reuses();
  while (true) {
    auto opened = Open(task, reuse);
    if (opened) return;
    // Who takes free room alone waits for nobody: what others give back is cached, not free.
    const bool no_capacity =
        opened.error().code == ErrorCode::kNoSpace && task.request().on_full != OnFull::kNoEvict;
    if (no_capacity && FreeCapacityToStart(task)) continue;
    if (no_capacity && MayComputeAll(reuse, holders())) {
      reuse = false;
      continue;
    }
    if (no_capacity && CanWait()) return WaitForCapacity(task);
    return task.Fail(std::move(opened).error());
  }
}

// What others hold may be free later; what nobody can give back is refused for good.
bool Engine::CanWait() const {
  return !running_.empty() || !loads_.empty() || keeper_.any_sequence() ||
         options_.outside_retry_us > 0;
}

void Engine::WaitForCapacity(Task& task) {
  task.WaitFor(Waits::kRoom);
  for (Task* const running : running_) running->NoteHeld();
  if (options_.outside_retry_us > 0) {
    retry_outside_us_ =
        std::min(retry_outside_us_, components_.clock.NowMicros() + options_.outside_retry_us);
  }
}

Result<Plan> Engine::Acquire(const Task& task, bool reuse, const SequenceOptions* open_as) {
  return components_.cache.Acquire({.tenant = task.tenant(),
                                    .identity = &identity_,
                                    .tokens = task.text(),
                                    .reuse = reuse,
                                    .open_as = open_as});
}

// False where the cache is sure to call it too large: layers without a window need a slot for each
// block.
bool Engine::MayFit(uint64_t tokens) const {
  const CacheOptions& options = components_.cache.options();
  const bool all_windowed = std::ranges::none_of(
      options.geometry.groups, [](const LayerGroup& group) { return group.window_tokens == 0; });
  const CacheStats stats = components_.cache.stats();
  return all_windowed || DivUp(tokens, uint64_t{options.profile.block_tokens}) <=
                             std::max(stats.sealed.slots_max, stats.sealed_second.slots_max);
}

Result<void> Engine::Open(Task& task, bool reuse) {
  const bool is_last = !CanWait() && !MayComputeAll(reuse, holders());
  SequenceOptions options{.reserve_tokens = task.tokens_at_most(),
                          .step_tokens = options_.chunk_tokens_min,
                          .on_full = task.request().on_full,
                          .publish = task.publishes()};
  const bool grows = !task.starts_whole() && MayFit(task.tokens_at_most());
  // Where it can wait, it is not counted before there is room. One that grows starts with less than
  // it may need; what can never fit is left to the cache to refuse.
  auto plan = Acquire(task, reuse, grows || !is_last ? &options : nullptr);
  if (grows) {
    if (!plan && plan.error().code == ErrorCode::kNoSpace) {
      SequenceOptions first = options;
      first.reserve_tokens = std::min(
          task.tokens_at_most(),
          task.text().size() + kHeadroomBlocks * components_.cache.options().profile.block_tokens);
      plan = Acquire(task, reuse, is_last ? nullptr : &first);
    }
    options.on_full = OnFull::kHalt;
    options.reserve_tokens = task.text().size();
  }
  if (!plan) return std::unexpected(std::move(plan).error());
  const Bring how = HowToBring(task, *plan);
  if (how != Bring::kCompute) return StartLoad(task, *std::move(plan), options, how);
  return OpenWith(task, *std::move(plan), options, /*loaded_tokens=*/0);
}

Result<void> Engine::OpenWith(Task& task, Plan plan, const SequenceOptions& options,
                              uint64_t loaded_tokens) {
  std::vector<MissRun> missing(plan.missing().begin(), plan.missing().end());
  QUIRE_ASSIGN(auto sequence, components_.cache.Open(std::move(plan), options));
  Run(task, std::move(sequence), std::move(missing), loaded_tokens);
  return {};
}

// A turn goes on with what its session holds, unless that has no room to grow: then it is let go,
// and the turn starts like any other.
bool Engine::ContinueSession(Task& task) {
  auto sequence = task.TakeFromSession();
  if (sequence == nullptr) return false;
  const uint64_t tokens = task.starts_whole() ? task.tokens_at_most() : task.goal();
  if (!MayFit(task.tokens_at_most()) || !sequence->Reserve(tokens)) return false;
  const uint64_t held = sequence->length();
  Run(task, std::move(sequence),
      {{.reason = MissReason::kPartialBlock, .tokens = task.text().size() - held}},
      /*loaded_tokens=*/0);
  return true;
}

void Engine::Run(Task& task, std::unique_ptr<Sequence> sequence, std::vector<MissRun> missing,
                 uint64_t loaded_tokens) {
  task.Start(std::move(sequence), std::move(missing), loaded_tokens);
  task.NoteHeld();
  if (task.position() >= task.goal()) return task.End(Finish::kLength);  // a session's, all read
  running_.insert(std::ranges::lower_bound(running_, task.id(), {}, &Task::id), &task);
}

bool Engine::Shares(const Task& a, const Task& b) const {
  if (a.tenant() == b.tenant()) return true;
  const auto one = domains_.find(a.tenant());
  const auto other = domains_.find(b.tenant());
  return one != domains_.end() && other != domains_.end() && one->second == other->second;
}

// The most that a running task has in common with this one and has not computed yet.
std::optional<Engine::Prefix> Engine::PendingPrefix(const Task& task) const {
  if (!task.reuses()) return std::nullopt;
  const NumericProfile& profile = components_.cache.options().profile;
  const uint32_t block = profile.block_tokens;
  const uint64_t usable = RoundDown<uint64_t>(task.text().size() - 1, block);
  std::optional<Prefix> most;
  for (const Task* const owner : running_) {
    if (owner->paused_us() || !owner->publishes() || !Shares(task, *owner)) continue;
    const uint64_t there = RoundDown<uint64_t>(owner->position(), block);
    if (there >= owner->prompt_tokens()) continue;  // only what it reads is known beforehand
    const std::span<const TokenId> theirs = owner->text().first(owner->prompt_tokens());
    const auto differ = std::ranges::mismatch(task.text().first(usable), theirs);
    const uint64_t common =
        RoundDown<uint64_t>(static_cast<uint64_t>(differ.in1 - task.text().begin()), block);
    if (common <= there || (most && common <= most->tokens)) continue;
    // With residual_tokens others can go on only where a prompt ends.
    const bool usable_there = profile.residual_tokens == 0 ||
                              common >= RoundDown<uint64_t>(owner->prompt_tokens() - 1, block);
    if (usable_there) most = Prefix{.owner = owner->id(), .tokens = common};
  }
  return most;
}

}  // namespace quire::serve
