// Requests whose text a store has: loaded, or computed where that is faster, or both at once from
// the two ends. Attention is causal, so the front can be computed while the end is read.
#include <algorithm>
#include <utility>

#include "base/bits.h"
#include "serve/engine.h"

namespace quire::serve {

namespace {

// Both at once takes 1 / (1 / a + 1 / b) of the time of either. Where one is so many times as fast
// as the other that is less than a fifth off, and the slower one is better left to others.
constexpr double kBothWithin = 4.0;

double PerUnit(uint64_t us, uint64_t count) {
  return static_cast<double>(us) / static_cast<double>(count);
}

}  // namespace

// None: not both were measured yet.
std::optional<Engine::Costs> Engine::CostsOf(uint64_t tokens, uint64_t bytes) const {
  if (stats_.load_bytes == 0 || stats_.read_tokens == 0) return std::nullopt;
  return Costs{
      .load_us = PerUnit(stats_.load_us, stats_.load_bytes) * static_cast<double>(bytes),
      .compute_us = PerUnit(stats_.read_us, stats_.read_tokens) * static_cast<double>(tokens)};
}

// Layers with a window see the tail of what is loaded alone, twins are at its end, so with these
// there is no front that could be computed instead. A request that must not evict finds no room for
// it. Where others run, what is computed for one is not computed for another.
bool Engine::CanComputeBeside(const Task& task) const {
  const CacheOptions& options = components_.cache.options();
  return !HasWindows(options.geometry) && options.profile.residual_tokens == 0 &&
         running_.empty() && task.request().on_full != OnFull::kNoEvict;
}

// Where nothing was measured yet, it is done both ways, or else loaded.
Engine::Bring Engine::HowToBring(const Task& task, const Plan& plan) const {
  if (plan.loadable_tokens() == 0 || options_.load == LoadPolicy::kNever) return Bring::kCompute;
  if (options_.load == LoadPolicy::kAlways) return Bring::kLoad;
  const auto costs = CostsOf(plan.loadable_tokens(), plan.loadable_bytes());
  if (!costs) return CanComputeBeside(task) ? Bring::kBoth : Bring::kLoad;
  const auto [less, more] = std::minmax(costs->load_us, costs->compute_us);
  if (more < kBothWithin * less && CanComputeBeside(task)) return Bring::kBoth;
  return costs->load_us < costs->compute_us ? Bring::kLoad : Bring::kCompute;
}

Result<void> Engine::StartLoad(Task& task, Plan plan, const SequenceOptions& options, Bring how) {
  const uint64_t now_us = components_.clock.NowMicros();
  const uint64_t deadline_us = task.request().deadline_us;
  const uint64_t left_us = deadline_us <= now_us ? 1 : deadline_us - now_us;
  const LoadOptions load = {
      .timeout_us = deadline_us == 0 ? 0 : left_us,
      .order = how == Bring::kBoth ? LoadOrder::kFromEnd : LoadOrder::kFromFront,
      .on_done = [this] { mailbox_.Wake(); }};
  const uint64_t resident = plan.resident_tokens();
  const uint64_t tokens = plan.loadable_tokens();
  std::vector<MissRun> missing(plan.missing().begin(), plan.missing().end());
  QUIRE_ASSIGN(Ticket ticket, components_.cache.Load(std::move(plan), load));
  Loading& loading = loads_
                         .emplace(task.id(), Loading{.ticket = std::move(ticket),
                                                     .options = options,
                                                     .resident = resident,
                                                     .tokens = tokens})
                         .first->second;
  ++stats_.loads;
  task.WaitFor(Waits::kLoad);
  if (how == Bring::kBoth) StartFront(task, loading, std::move(missing));
  return {};
}

// The front has room for what it computes next, no more: what is loaded has its room already, and
// gives it back as the front grows. Where there is none, all of it is loaded.
void Engine::StartFront(Task& task, Loading& load, std::vector<MissRun> missing) {
  SequenceOptions options = load.options;
  options.on_full = OnFull::kHalt;
  auto front = components_.cache.Open(load.ticket.Front(load.resident + 1), options);
  if (!front) return;
  ++stats_.loads_from_end;
  load.computes = true;
  Run(task, *std::move(front), std::move(missing), /*loaded_tokens=*/0);
  MeetLoad(task, load);
}

// Says how far the front is, and how far it goes next: to where the two are likely to meet, so that
// what has come does not wait for a long step.
void Engine::MeetLoad(Task& task, Loading& load) const {
  const uint64_t position = task.position();
  load.ticket.Meet(position);
  const LoadProgress progress = load.ticket.progress();
  const uint64_t unread = progress.meet_tokens - std::min(progress.meet_tokens, position);
  double share = 0.5;
  if (const auto costs = CostsOf(load.tokens, progress.bytes)) {
    share = costs->load_us / std::max(costs->load_us + costs->compute_us, 1.0);
  }
  const auto next = static_cast<uint64_t>(share * static_cast<double>(unread));
  const uint64_t block = components_.cache.options().profile.block_tokens;
  task.StopAt(
      std::min(progress.meet_tokens, RoundDown(position, block) + RoundUp(next + 1, block)));
}

// Those that have ended start, or go on. Where there is no room any more they wait like any other;
// what was loaded is in the cache as long as there is room for it.
void Engine::TakeLoads() {
  for (auto each = loads_.begin(); each != loads_.end();) {
    Task& task = *tasks_.at(each->first);
    Loading& load = each->second;
    if (!load.ticket.IsDone()) {
      if (load.computes) MeetLoad(task, load);
      ++each;
      continue;
    }
    Loading ended = std::move(load);
    each = loads_.erase(each);
    TakeLoad(task, std::move(ended));
  }
  RemoveEnded();
  WakePrefixWaiters();
}

void Engine::TakeLoad(Task& task, Loading load) {
  const LoadProgress progress = load.ticket.progress();
  Plan plan = load.ticket.Take();
  const uint64_t before = load.computes ? task.position() : load.resident;
  const uint64_t came = plan.resident_tokens() - std::min(plan.resident_tokens(), before);
  stats_.loaded_tokens += came;
  const MissReason reason = plan.reason();
  const bool failed = reason == MissReason::kLoadFailed || reason == MissReason::kLoadLate;
  if (!failed && progress.blocks_ready > 0) {
    stats_.load_us += progress.elapsed_us;
    stats_.load_bytes += progress.bytes / progress.blocks * progress.blocks_ready;
  }
  CapacityCameBack();  // what did not come is not held any more, nor what the front has computed
  if (load.computes) return Join(task, load, std::move(plan));
  task.WaitFor(Waits::kNothing);
  const auto opened = OpenWith(task, std::move(plan), load.options, came);
  if (!opened && opened.error().code != ErrorCode::kNoSpace) task.Fail(opened.error());
}

// Goes on behind what came, or with what it computed where nothing did.
void Engine::Join(Task& task, const Loading& load, Plan plan) {
  const uint64_t resident = plan.resident_tokens();
  const uint64_t computed_to = std::min(task.position(), resident);
  std::vector<MissRun> missing;
  if (computed_to >= load.resident) {
    if (computed_to > load.resident) {
      missing.push_back({.reason = MissReason::kNotLoaded, .tokens = computed_to - load.resident});
    }
    missing.insert(missing.end(), plan.missing().begin(), plan.missing().end());
  }
  if (resident <= task.position()) {
    task.Join(nullptr, std::move(missing));
    // The front had room for its next steps alone.
    const bool is_whole = load.options.on_full != OnFull::kHalt;
    if (is_whole && !task.sequence().Reserve(load.options.reserve_tokens)) {
      Preempt(task, Waits::kNothing);
    }
    return;
  }
  auto sequence = components_.cache.Open(std::move(plan), load.options);
  if (!sequence) {
    if (sequence.error().code != ErrorCode::kNoSpace) return task.Fail(sequence.error());
    return Preempt(task, Waits::kNothing);
  }
  task.Join(*std::move(sequence), std::move(missing));
  task.NoteHeld();
  if (task.position() >= task.goal()) task.End(Finish::kLength);  // a session's, all read
}

// Requests that hold a sequence, or room for one.
uint64_t Engine::holders() const {
  const auto waiting =
      std::ranges::count_if(loads_, [](const auto& each) { return !each.second.computes; });
  return running_.size() + static_cast<uint64_t>(waiting);
}

// The most that is being loaded of what this one begins with too.
std::optional<Engine::Prefix> Engine::LoadingPrefix(const Task& task) const {
  if (!task.reuses()) return std::nullopt;
  const uint32_t block = components_.cache.options().profile.block_tokens;
  std::optional<Prefix> most;
  for (const auto& [id, load] : loads_) {
    const Task& owner = *tasks_.at(id);
    if (!Shares(task, owner)) continue;
    const auto differ = std::ranges::mismatch(task.text(), owner.text());
    const uint64_t common = std::min(
        load.resident + load.tokens,
        RoundDown<uint64_t>(static_cast<uint64_t>(differ.in1 - task.text().begin()), block));
    const uint64_t there = owner.running() ? owner.position() : load.resident;
    if (common <= there || (most && common <= most->tokens)) continue;
    most = Prefix{.owner = id, .tokens = common};
  }
  return most;
}

}  // namespace quire::serve
