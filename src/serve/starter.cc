#include "serve/starter.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "base/bits.h"
#include "serve/spill.h"

namespace quire::serve {

namespace {

// Blocks that a growing request finds room for, besides those of what it has, before it starts
// beside others: else it would be preempted at once.
constexpr uint64_t kHeadroomBlocks = 4;

// What is kept of a prompt is a second sequence for a moment: with a copy of the last block, and
// with what a sequence takes besides its blocks.
constexpr uint64_t kBlocksToSelect = 2;

// A request that streams does so for at least so long, and room for one is looked for so often.
constexpr uint64_t kBringBackUs = 1'000'000;

bool IsInLine(const Task& task, bool passes_waiting_for_room) {
  if (task.running() || task.ended()) return false;
  const Waits what = task.wait().what;
  return what == Waits::kNothing || (what == Waits::kRoom && !passes_waiting_for_room);
}

// Of each tenant the highest priority for which room was taken, where that is being loaded or in
// line: had lower ones it meanwhile, it would be taken from them again, and what was loaded might
// be gone, for ever.
std::map<TenantId, uint8_t> RoomTaken(const EngineState& state, bool passes_waiting_for_room) {
  std::map<TenantId, uint8_t> taken;
  for (const auto& [id, task] : state.tasks.all()) {
    const bool loads = !task->ended() && task->wait().what == Waits::kLoad;
    if (!task->took_room() || !(loads || IsInLine(*task, passes_waiting_for_room))) continue;
    uint8_t& highest = taken[task->tenant()];
    highest = std::max(highest, task->request().priority);
  }
  return taken;
}

}  // namespace

Task* FirstInLine(const EngineState& state, uint64_t now_us) {
  std::map<TenantId, uint64_t> coming;
  for (const Task* const task : state.tasks.running()) {
    const uint64_t at_most = task->text().tokens_at_most();
    coming[task->tenant()] += at_most - std::min(task->position(), at_most);
  }
  const auto place = [&](const Task& task) {
    const uint64_t waited_us = now_us - std::min(now_us, task.submitted_us());
    const uint64_t urgency = task.request().priority + waited_us / state.options.aging_us;
    const uint64_t deadline_us = task.request().deadline_us;
    return std::tuple(state.shares.ServedAfter(task.tenant(), coming[task.tenant()]), task.tenant(),
                      UINT64_MAX - urgency, deadline_us == 0 ? UINT64_MAX : deadline_us, task.id());
  };
  const bool passes_waiting_for_room = state.holders() == 0;
  const std::map<TenantId, uint8_t> taken = RoomTaken(state, passes_waiting_for_room);
  Task* first = nullptr;
  for (const auto& [id, task] : state.tasks.all()) {
    if (!IsInLine(*task, passes_waiting_for_room)) continue;
    const auto before = taken.find(task->tenant());
    if (before != taken.end() && task->request().priority < before->second) continue;
    if (first == nullptr || place(*task) < place(*first)) first = task.get();
  }
  return first;
}

void Starter::StartSome(uint64_t now_us) {
  const auto is_full = [&] { return state_.holders() >= state_.options.running_max; };
  while (state_.may_start && !is_full()) {
    Task* const first = FirstInLine(state_, now_us);
    if (first == nullptr || first->wait().what == Waits::kRoom) {
      state_.may_start = false;
      break;
    }
    ++state_.stats.looks;
    Look(*first);
    waiting_.RemoveEnded();
  }
  // A request that ends, or loses its sequence, sets it again.
  if (is_full()) state_.may_start = false;
}

void Starter::Look(Task& task) {
  if (task.text().tokens().empty()) {
    return task.Fail({ErrorCode::kInvalidArgument, "session: it has no text to go on from"});
  }
  if (task.text().goal() == 0) return task.End(Finish::kLength);
  if (ContinueSession(task)) return;
  // It may begin with what one of these has computed.
  const auto any_ends = [&] { return !state_.endings.empty(); };
  if (any_ends() && Streams(state_, task)) return task.WaitFor({.what = Waits::kLoad});
  if (BroughtBack(task)) return;
  if (const auto prefix = waiting_.ForPrefix(task)) {
    ++state_.stats.prefix_waits;
    return task.WaitFor(*prefix);
  }
  bool reuse = task.request().reuses();
  while (true) {
    auto started = Start(task, reuse);
    if (started) return;
    if (any_ends() && started.error().code == ErrorCode::kNoSpace)
      return waiting_.WaitForRoom(task);
    // One that takes free room alone waits for none: what others give back is cached, not free.
    const bool no_room =
        started.error().code == ErrorCode::kNoSpace && task.request().on_full != OnFull::kNoEvict;
    if (no_room && preemption_.MakeRoomToStart(task)) continue;
    const bool too_large = started.error().code == ErrorCode::kTooLarge;
    if ((no_room && MaySpill(state_, task)) ||
        (too_large && CanStream(state_, task) && !Streams(state_, task))) {
      Spill(state_, task);
      continue;
    }
    if (no_room && MayComputeAll(reuse)) {
      reuse = false;
      continue;
    }
    if ((no_room && waiting_.CanWaitForRoom()) || (too_large && state_.leased)) {
      return waiting_.WaitForRoom(task);
    }
    return task.Fail(std::move(started).error());
  }
}

// A turn goes on with what its session holds, unless that has no room to grow, or has blocks in a
// lower precision than the turn accepts: then it is let go, and the turn starts like any other.
bool Starter::ContinueSession(Task& task) {
  auto sequence = task.TakeFromSession(state_.endings);
  if (sequence == nullptr) return false;
  if (const SequenceStats held = sequence->stats(); held.tokens_approximate > 0) {
    if (held.approximate_error > task.request().approximate_error_max) return false;
  }
  const uint64_t at_most = task.text().tokens_at_most();
  const uint64_t tokens = task.starts_whole() ? at_most : task.text().goal();
  const bool streams = sequence->streamed() != nullptr;
  if ((!streams && !MayFit(state_.cache, at_most)) || !sequence->Reserve(tokens)) {
    state_.endings.Take(std::move(sequence));
    return false;
  }
  if (streams) task.Spill(state_.clock.NowMicros());
  const uint64_t computes = task.text().tokens().size() - sequence->length();
  state_.tasks.Start(task, std::move(sequence),
                     {{.reason = MissReason::kPartialBlock, .tokens = computes}},
                     /*loaded_tokens=*/0);
  return true;
}

Result<void> Starter::Start(Task& task, bool reuse) {
  const bool is_last = !waiting_.CanWaitForRoom() && !MayComputeAll(reuse);
  const uint64_t at_most = task.tokens_held_at_most();
  const uint64_t now = std::min<uint64_t>(task.text().tokens().size(), at_most);
  SequenceOptions options{.reserve_tokens = at_most,
                          .step_tokens = state_.options.chunk_tokens_min,
                          .on_full = task.request().on_full,
                          .publish = task.request().publishes()};
  const bool streams = Streams(state_, task);
  if (streams) options = AsStream(state_, task, options);
  const bool grows = !task.starts_whole() && !streams && MayFit(state_.cache, at_most);
  // Where it can wait, it is not counted before there is room. One that grows starts with less than
  // it may need; what can never fit is left to the cache to refuse.
  SequenceOptions asked = options;
  if (!task.request().keep.keeps_all() && task.request().max_tokens > 1) {
    asked.reserve_tokens += kBlocksToSelect * state_.cache.options().profile.block_tokens;
  }
  auto plan = Acquire(task, reuse, grows || !is_last ? &asked : nullptr);
  if (grows) {
    if (!plan && plan.error().code == ErrorCode::kNoSpace) {
      SequenceOptions first = options;
      const uint64_t headroom = kHeadroomBlocks * state_.cache.options().profile.block_tokens;
      first.reserve_tokens = std::min(at_most, now + headroom);
      plan = Acquire(task, reuse, is_last ? nullptr : &first);
    }
    options.on_full = OnFull::kHalt;
    options.reserve_tokens = now;
  }
  if (!plan) return std::unexpected(std::move(plan).error());
  task.NoteDifference(plan->differs_at());
  return loads_.Start(task, *std::move(plan), options);
}

const Identity& Starter::IdentityOf(const Task& task) const {
  return task.adapter() == nullptr ? identity_ : task.adapter()->identity;
}

Result<Plan> Starter::Acquire(const Task& task, bool reuse, const SequenceOptions* open_as) {
  // What holds only so many blocks has no room for more of its text.
  const uint64_t most = std::max<uint64_t>(task.tokens_held_at_most(), 1);
  const std::span<const TokenId> text = task.text().tokens();
  return state_.cache.Acquire({.tenant = task.tenant(),
                               .identity = &IdentityOf(task),
                               .tokens = text.first(std::min<uint64_t>(text.size(), most)),
                               .reuse = reuse,
                               .open_as = open_as,
                               .approximate_error_max = task.request().approximate_error_max});
}

// Where no request will give anything back: what is pinned to be shared, its twins too, or what is
// to be loaded, may take more room than computing it again.
bool Starter::MayComputeAll(bool reuse) const {
  const bool may_share =
      state_.cache.stats().published_blocks > 0 || state_.cache.options().store != nullptr;
  return reuse && state_.holders() == 0 && may_share;
}

void Starter::BringBack(uint64_t now_us) {
  if (now_us < bring_back_us_ || IsBringingBack()) return;
  const auto waits = [](const auto& each) { return IsInLine(*each.second, false); };
  if (std::ranges::any_of(state_.tasks.all(), waits)) return;
  for (Task* const task : state_.tasks.running()) {
    const auto since_us = task->spilled_us();
    if (!since_us || now_us < *since_us + kBringBackUs || task->ended()) continue;
    if (task->paused_us() || task->aside() != nullptr || !HasRoomFor(*task)) continue;
    bring_back_us_ = now_us + kBringBackUs;
    brings_back_ = task->id();
    state_.endings.Take(state_.tasks.Stop(*task));
    task->WaitFor({.what = state_.endings.empty() ? Waits::kNothing : Waits::kLoad});
    state_.may_start = true;
    return;
  }
}

// One at a time: it is not seen how much room the next one would leave.
bool Starter::IsBringingBack() {
  const Task* const task = brings_back_ ? state_.tasks.Find(*brings_back_) : nullptr;
  if (task == nullptr || task->ended() || task->running()) brings_back_.reset();
  return brings_back_.has_value();
}

// The store has all of it by now.
bool Starter::BroughtBack(Task& task) {
  if (brings_back_ != task.id()) return false;
  brings_back_.reset();
  const SequenceOptions whole{.reserve_tokens = task.text().tokens_at_most(),
                              .step_tokens = state_.options.chunk_tokens_min};
  auto plan = Acquire(task, task.request().reuses(), &whole);
  if (!plan || !loads_.Resume(task, *std::move(plan), whole)) {
    task.Spill(state_.clock.NowMicros());  // it streams again
    return false;
  }
  task.BringBack();
  ++state_.stats.brought_back;
  return true;
}

// With what it gives back.
bool Starter::HasRoomFor(const Task& task) const {
  const CacheStats stats = state_.cache.stats();
  const uint64_t block_bytes = state_.cache.block_bytes();
  const uint64_t free_bytes =
      stats.hot_bytes_limit - stats.hot_bytes_used + StreamBytes(state_, task);
  const uint64_t tokens = task.text().tokens_at_most();
  const uint64_t blocks = DivUp<uint64_t>(tokens, state_.cache.options().profile.block_tokens);
  return MayFit(state_.cache, tokens) &&
         free_bytes / block_bytes + stats.evictable_blocks >= blocks + kHeadroomBlocks;
}

}  // namespace quire::serve
