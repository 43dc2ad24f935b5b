#include "serve/waiting.h"

#include <algorithm>
#include <utility>

#include "base/bits.h"
#include "base/canary.h"

namespace quire::serve {

namespace {

// The same weights under the same name, loaded once or twice.
bool HaveOneAdapter(const Task& a, const Task& b) {
  if (a.adapter() == nullptr || b.adapter() == nullptr) return a.adapter() == b.adapter();
  return a.adapter()->identity == b.adapter()->identity;
}

// What is approximate of the other one is of no use to it.
bool AcceptsLess(const Task& task, const Task& owner) {
  return task.request().approximate_error_max < owner.request().approximate_error_max;
}

}  // namespace

void Waiting::SetDomain(TenantId tenant, TenantId domain) {
  if (domain.is_none()) {
    domains_.erase(tenant);
  } else {
    domains_[tenant] = domain;
  }
}

bool Waiting::Shares(const Task& a, const Task& b) const {
  if (!HaveOneAdapter(a, b)) return false;
  if (a.tenant() == b.tenant()) return true;
  const auto one = domains_.find(a.tenant());
  const auto other = domains_.find(b.tenant());
  return one != domains_.end() && other != domains_.end() && one->second == other->second;
}

std::optional<Wait> Waiting::ForPrefix(const Task& task) const {
  if (!task.request().reuses()) return std::nullopt;
  const auto computed = ForComputed(task);
  return computed ? computed : ForLoaded(task);
}

// The most that a running task has in common with this one and has not computed yet.
std::optional<Wait> Waiting::ForComputed(const Task& task) const {
  const NumericProfile& profile = state_.cache.options().profile;
  const uint32_t block = profile.block_tokens;
  const std::span<const TokenId> text = task.text().tokens();
  const uint64_t usable = RoundDown<uint64_t>(text.size() - 1, block);
  std::optional<Wait> most;
  for (const Task* const owner : state_.tasks.running()) {
    if (owner->paused_us() || !owner->request().publishes() || !Shares(task, *owner)) continue;
    if (owner->is_approximate() && AcceptsLess(task, *owner)) continue;
    const uint64_t there = RoundDown<uint64_t>(owner->position(), block);
    const uint64_t known = owner->text().prompt_tokens();  // only what it reads, beforehand
    if (there >= known) continue;
    const auto theirs = owner->text().tokens().first(known);
    const auto differ = std::ranges::mismatch(text.first(usable), theirs);
    const uint64_t common =
        RoundDown<uint64_t>(static_cast<uint64_t>(differ.in1 - text.begin()), block);
    if (common <= there || (most && common <= most->tokens)) continue;
    // With residual_tokens others can go on only where a prompt ends.
    const bool usable_there =
        profile.residual_tokens == 0 || common >= RoundDown<uint64_t>(known - 1, block);
    if (usable_there) {
      most = Wait{.what = Waits::kPrefix, .owner = owner->id(), .tokens = common};
    }
  }
  return most;
}

// The most that is being loaded of what this one begins with too. A sequence that is being opened
// goes on to compute what the store does not have.
std::optional<Wait> Waiting::ForLoaded(const Task& task) const {
  const uint32_t block = state_.cache.options().profile.block_tokens;
  const std::span<const TokenId> text = task.text().tokens();
  std::optional<Wait> most;
  const auto look_at = [&](const Task& owner, uint64_t there, uint64_t comes) {
    if (!Shares(task, owner) || AcceptsLess(task, owner)) return;
    const auto differ = std::ranges::mismatch(text, owner.text().tokens());
    const uint64_t common = std::min(
        comes, RoundDown<uint64_t>(static_cast<uint64_t>(differ.in1 - text.begin()), block));
    if (common <= there || (most && common <= most->tokens)) return;
    most = Wait{.what = Waits::kPrefix, .owner = owner.id(), .tokens = common};
  };
  for (const auto& [id, load] : state_.loads) {
    const Task& owner = *state_.tasks.Find(id);
    const uint64_t there = load.computes ? owner.position() : load.resident;
    look_at(owner, there, load.resident + load.tokens);
  }
  for (const auto& [id, start] : state_.openings) {
    look_at(*state_.tasks.Find(id), start.there, UINT64_MAX);
  }
  return most;
}

void Waiting::WakeForPrefix() {
  for (const auto& [id, task] : state_.tasks.all()) {
    const Wait& wait = task->wait();
    if (wait.what != Waits::kPrefix) continue;
    const Task* const owner = state_.tasks.Find(wait.owner);
    if (Planted(Canary::kForgetWaiters) && owner == nullptr) continue;
    if (owner != nullptr) {
      const auto load = state_.loads.find(owner->id());
      const bool arrives = load != state_.loads.end() && load->second.arrives;
      const bool is_there = owner->running() && !arrives && owner->position() >= wait.tokens;
      const bool loads = load != state_.loads.end() || state_.openings.contains(owner->id());
      if (!owner->ended() && !is_there && loads) continue;
      const bool goes_on = owner->running() && !owner->ended() && !owner->paused_us();
      if (goes_on && owner->position() < wait.tokens) continue;
    }
    task->WaitFor({});
    state_.may_start = true;
  }
}

bool Waiting::CanWaitForRoom() const {
  return !state_.tasks.running().empty() || !state_.loads.empty() || !state_.openings.empty() ||
         !state_.endings.empty() || state_.keeper.any_sequence() ||
         state_.options.outside_retry_us > 0 || state_.leased;
}

void Waiting::WaitForRoom(Task& task) {
  task.WaitFor({.what = Waits::kRoom});
  for (Task* const running : state_.tasks.running()) {
    if (!running->ended()) running->NoteHeld();
  }
  RetryLater();
}

void Waiting::RetryLater() {
  if (state_.options.outside_retry_us > 0) RetryIn(state_.options.outside_retry_us);
}

void Waiting::RetryIn(uint64_t us) {
  retry_outside_us_ = std::min(retry_outside_us_, state_.clock.NowMicros() + us);
}

void Waiting::WakeForRoom() {
  state_.may_start = true;
  for (const auto& [id, task] : state_.tasks.all()) {
    if (task->wait().what == Waits::kRoom) task->WaitFor({});
  }
}

void Waiting::LookForRoom() {
  const auto waits_for_room = [](const auto& each) {
    return each.second->wait().what == Waits::kRoom;
  };
  if (std::ranges::none_of(state_.tasks.all(), waits_for_room)) return;
  for (Task* const task : state_.tasks.running()) {
    if (!task->ended() && task->GaveBack()) WakeForRoom();
  }
}

void Waiting::RetryOutside(uint64_t now_us) {
  if (now_us < retry_outside_us_) return;
  retry_outside_us_ = UINT64_MAX;
  WakeForRoom();
}

// It waits for the store only where nothing else is to be done.
void Waiting::EndStreamed(uint64_t wait_us) {
  if (state_.endings.empty()) return;
  const bool is_alone = state_.tasks.running().empty() && !state_.may_start;
  if (!state_.endings.EndSome(is_alone ? wait_us : 0)) return;
  WakeForRoom();
  for (const auto& [id, task] : state_.tasks.all()) {
    const bool is_loaded = state_.loads.contains(id) || state_.openings.contains(id);
    if (task->wait().what == Waits::kLoad && !is_loaded) task->WaitFor({});
  }
}

void Waiting::RemoveEnded() {
  const auto ended = state_.tasks.TakeEnded();
  for (const auto& task : ended) {
    state_.shares.Leave(task->tenant());
    state_.loads.erase(task->id());
    state_.openings.erase(task->id());
    state_.endings.Take(task->TakeSequence());
  }
  EndStreamed(ended.empty() ? 0 : kAloneWaitUs);
  if (ended.empty()) return;
  WakeForRoom();
  WakeForPrefix();
}

}  // namespace quire::serve
