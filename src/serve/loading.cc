// Requests whose text a store has: loaded, or computed where that is faster.
#include <algorithm>
#include <utility>

#include "base/bits.h"
#include "serve/engine.h"

namespace quire::serve {

// Where nothing was measured yet, it is loaded.
bool Engine::ShouldLoad(const Plan& plan) const {
  const uint64_t tokens = plan.loadable_tokens();
  if (tokens == 0 || options_.load == LoadPolicy::kNever) return false;
  if (options_.load == LoadPolicy::kAlways) return true;
  if (stats_.load_bytes == 0 || stats_.prompt_tokens == 0) return true;
  const auto per = [](uint64_t us, uint64_t count) {
    return static_cast<double>(us) / static_cast<double>(count);
  };
  const double load_us =
      per(stats_.load_us, stats_.load_bytes) * static_cast<double>(plan.loadable_bytes());
  const double compute_us = per(stats_.step_us, stats_.prompt_tokens + stats_.decode_tokens) *
                            static_cast<double>(tokens);
  return load_us < compute_us;
}

Result<void> Engine::StartLoad(Task& task, Plan plan, const SequenceOptions& options) {
  const uint64_t now_us = parts_.clock.NowMicros();
  const uint64_t deadline_us = task.request().deadline_us;
  const uint64_t left_us = deadline_us <= now_us ? 1 : deadline_us - now_us;
  const LoadOptions load = {.timeout_us = deadline_us == 0 ? 0 : left_us,
                            .on_done = [this] { mailbox_.Wake(); }};
  const uint64_t resident = plan.resident_tokens();
  const uint64_t tokens = plan.loadable_tokens();
  const uint64_t bytes = plan.loadable_bytes();
  QUIRE_ASSIGN(Ticket ticket, parts_.cache.Load(std::move(plan), load));
  loads_.emplace(task.id(), Loading{.ticket = std::move(ticket),
                                    .options = options,
                                    .resident = resident,
                                    .tokens = tokens,
                                    .bytes = bytes,
                                    .begin_us = now_us});
  ++stats_.loads;
  task.WaitFor(Waits::kLoad);
  return {};
}

// Those that have ended start. Where there is no room any more they wait like any other; what was
// loaded is in the cache as long as there is room for it.
void Engine::TakeLoads() {
  for (auto each = loads_.begin(); each != loads_.end();) {
    if (!each->second.ticket.IsDone()) {
      ++each;
      continue;
    }
    Loading& load = each->second;
    Task& task = *tasks_.at(each->first);
    Plan plan = load.ticket.Take();
    const uint64_t came = plan.resident_tokens() - std::min(plan.resident_tokens(), load.resident);
    stats_.loaded_tokens += came;
    if (came == load.tokens) {
      stats_.load_us += parts_.clock.NowMicros() - load.begin_us;
      stats_.load_bytes += load.bytes;
    }
    const SequenceOptions options = load.options;
    each = loads_.erase(each);
    task.WaitFor(Waits::kNothing);
    may_start_ = true;
    const auto opened = OpenWith(task, std::move(plan), options, came);
    if (!opened && opened.error().code != ErrorCode::kNoSpace) task.Fail(opened.error());
  }
  RemoveEnded();
  WakePrefixWaiters();
}

// The most that is being loaded of what this one begins with too.
std::optional<Engine::Prefix> Engine::LoadingPrefix(const Task& task) const {
  if (!task.reuses()) return std::nullopt;
  const uint32_t block = parts_.cache.options().profile.block_tokens;
  std::optional<Prefix> most;
  for (const auto& [id, load] : loads_) {
    const Task& owner = *tasks_.at(id);
    if (!Shares(task, owner)) continue;
    const auto differ = std::ranges::mismatch(task.text(), owner.text());
    const uint64_t common = std::min(
        load.resident + load.tokens,
        RoundDown<uint64_t>(static_cast<uint64_t>(differ.in1 - task.text().begin()), block));
    if (common <= load.resident || (most && common <= most->tokens)) continue;
    most = Prefix{.owner = id, .tokens = common};
  }
  return most;
}

}  // namespace quire::serve
