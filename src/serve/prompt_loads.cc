#include "serve/prompt_loads.h"

#include <algorithm>
#include <utility>

#include "base/bits.h"

namespace quire::serve {

namespace {

// Both at once takes 1 / (1 / a + 1 / b) of the time of either. Where one is so many times as fast
// as the other that is less than a fifth off, and the slower one is better left to others.
constexpr double kBothWithin = 4.0;
// More slices hide more of what is computed, and ask the store more often.
constexpr uint32_t kSlicesMax = 2;
// They hide half of the shorter one of loading and computing at most, and make loading up to a
// seventh longer (docs/lab/remote.md): computing must take at least so much of it.
constexpr double kRestShare = 0.5;
// Of a token, computing takes at least so many times as long as loading, as long as the engine has
// not seen both.
constexpr double kComputeFactor = 32.0;

}  // namespace

std::optional<Costs> CostsOf(const EngineState& state, uint64_t tokens, uint64_t bytes) {
  const uint64_t now_us = state.clock.NowMicros();
  const auto load = state.stats.load_rate.UsPerUnit(now_us);
  const auto read = state.stats.read_rate.UsPerUnit(now_us);
  if (!load || !read) return std::nullopt;
  return Costs{.load_us = *load * static_cast<double>(bytes),
               .compute_us = *read * static_cast<double>(tokens)};
}

Bring HowToBring(LoadPolicy policy, const std::optional<Costs>& costs, bool can_both) {
  if (policy == LoadPolicy::kNever) return Bring::kCompute;
  if (policy == LoadPolicy::kAlways) return Bring::kLoad;
  if (policy == LoadPolicy::kBoth) return can_both ? Bring::kBoth : Bring::kLoad;
  if (!costs) return Bring::kLoad;
  const auto [less, more] = std::minmax(costs->load_us, costs->compute_us);
  if (more < kBothWithin * less && can_both) return Bring::kBoth;
  return costs->load_us < costs->compute_us ? Bring::kLoad : Bring::kCompute;
}

uint32_t SlicesToLoad(const Costs& costs, uint64_t block_bytes, uint64_t slice_bytes_min) {
  if (costs.compute_us < kRestShare * costs.load_us) return 1;
  const uint64_t slices = block_bytes / std::max<uint64_t>(slice_bytes_min, 1);
  return static_cast<uint32_t>(std::clamp<uint64_t>(slices, 1, kSlicesMax));
}

uint64_t FrontTokens(const std::optional<Costs>& costs, uint64_t unread_tokens) {
  double share = 0.5;
  if (costs) share = costs->load_us / std::max(costs->load_us + costs->compute_us, 1.0);
  return static_cast<uint64_t>(share * static_cast<double>(unread_tokens)) + 1;
}

Result<void> PromptLoads::Start(Task& task, Plan plan, const SequenceOptions& options) {
  if (options.resident_tokens > 0) return Stream(task, std::move(plan), options);
  if (plan.loadable_tokens() > 0) {
    const auto costs = CostsOf(state_, plan.loadable_tokens(), plan.loadable_bytes());
    const Bring how = HowToBring(state_.options.load, costs, CanComputeBeside(task));
    if (how == Bring::kLoad) return Load(task, std::move(plan), options, LoadOrder::kByLayer);
    if (how == Bring::kBoth) return Load(task, std::move(plan), options, LoadOrder::kFromEnd);
  }
  return Open(task, std::move(plan), options, /*loaded_tokens=*/0);
}

Result<void> PromptLoads::Resume(Task& task, Plan plan, const SequenceOptions& options) {
  if (plan.loadable_tokens() == 0) return Open(task, std::move(plan), options, 0);
  return Load(task, std::move(plan), options, LoadOrder::kFromFront);
}

// Layers with a window see the tail of what is loaded alone, twins are at its end, so with these
// there is no front that could be computed instead. A request that must not evict finds no room for
// it. Where others run, what is computed for one is not computed for another.
bool PromptLoads::CanComputeBeside(const Task& task) const {
  const CacheOptions& options = state_.cache.options();
  return !HasWindows(options.geometry) && options.profile.residual_tokens == 0 &&
         state_.tasks.running().empty() && task.request().on_full != OnFull::kNoEvict;
}

// A step that is put aside is not observed, so nothing is chosen of a prompt beside a load. What a
// remote may have, and has not, is computed.
uint32_t PromptLoads::SlicesOf(const Task& task, const Plan& plan) const {
  const KeepOptions& keep = task.request().keep;
  if (!state_.steps_aside || !keep.keeps_all() || keep.blocks_max > 0) return 1;
  if (task.request().handed_over) return 1;
  const uint64_t tokens = plan.loadable_tokens();
  const uint64_t rest = plan.missing_tokens() - tokens + plan.uncertain_tokens();
  const Costs guess = {.load_us = static_cast<double>(tokens),
                       .compute_us = kComputeFactor * static_cast<double>(rest)};
  const uint64_t blocks = tokens / state_.cache.options().profile.block_tokens;
  return SlicesToLoad(CostsOf(state_, rest, plan.loadable_bytes()).value_or(guess),
                      plan.loadable_bytes() / blocks, state_.options.load_slice_bytes);
}

Result<void> PromptLoads::Open(Task& task, Plan plan, const SequenceOptions& options,
                               uint64_t loaded_tokens) {
  std::vector<MissRun> missing(plan.missing().begin(), plan.missing().end());
  QUIRE_ASSIGN(auto sequence, state_.cache.Open(std::move(plan), options));
  state_.tasks.Start(task, std::move(sequence), std::move(missing), loaded_tokens);
  return {};
}

// It begins with what the store has: what stays in memory is read while others go on, the rest as
// layers attend to it.
Result<void> PromptLoads::Stream(Task& task, Plan plan, const SequenceOptions& options) {
  StreamStart start{.opening = nullptr,
                    .prompt = plan.resident_tokens() + plan.missing_tokens(),
                    .there = plan.resident_tokens() + plan.loadable_tokens(),
                    .reason = plan.reason(),
                    .missing = {}};
  for (const MissRun& run : plan.missing()) {
    if (run.reason != MissReason::kNotLoaded) start.missing.push_back(run);
  }
  QUIRE_ASSIGN(start.opening, state_.cache.BeginOpen(std::move(plan), options));
  if (start.opening->IsDone(/*wait_us=*/0)) return StartStream(task, std::move(start));
  task.WaitFor({.what = Waits::kLoad});
  state_.openings.emplace(task.id(), std::move(start));
  return {};
}

Result<void> PromptLoads::StartStream(Task& task, StreamStart start) {
  QUIRE_ASSIGN(auto sequence, start.opening->Take());
  const uint64_t found = sequence->length();
  if (found != start.there) {
    start.missing.assign(1, {.reason = start.reason, .tokens = start.prompt - found});
  }
  ++state_.stats.streamed;
  state_.stats.loaded_tokens += found;
  state_.tasks.Start(task, std::move(sequence), std::move(start.missing),
                     /*loaded_tokens=*/found);
  return {};
}

// They wait for the store only where nothing else is to be done.
void PromptLoads::TakeOpened() {
  for (auto each = state_.openings.begin(); each != state_.openings.end();) {
    const bool is_alone = state_.tasks.running().empty() && !state_.may_start;
    if (!each->second.opening->IsDone(is_alone ? kAloneWaitUs / state_.openings.size() : 0)) {
      ++each;
      continue;
    }
    Task& task = *state_.tasks.Find(each->first);
    StreamStart start = std::move(each->second);
    each = state_.openings.erase(each);
    task.WaitFor({});
    waiting_.WakeForRoom();  // what memory had of it is not held any more
    const auto started = StartStream(task, std::move(start));
    if (!started && started.error().code != ErrorCode::kNoSpace) task.Fail(started.error());
  }
}

Result<void> PromptLoads::Load(Task& task, Plan plan, const SequenceOptions& options,
                               LoadOrder order) {
  const uint64_t now_us = state_.clock.NowMicros();
  const uint64_t deadline_us = task.request().deadline_us;
  const uint64_t left_us = deadline_us <= now_us ? 1 : deadline_us - now_us;
  const auto wake = [&mailbox = state_.mailbox] { mailbox.Wake(); };
  const LoadOptions load = {.timeout_us = deadline_us == 0 ? 0 : left_us,
                            .order = order,
                            .slices = order == LoadOrder::kByLayer ? SlicesOf(task, plan) : 1,
                            .on_layers = wake,
                            .on_done = wake};
  const uint64_t resident = plan.resident_tokens();
  const uint64_t tokens = plan.loadable_tokens();
  std::vector<MissRun> missing(plan.missing().begin(), plan.missing().end());
  QUIRE_ASSIGN(Ticket ticket, state_.cache.Load(std::move(plan), load));
  const auto [loading, is_new] = state_.loads.emplace(
      task.id(),
      Loading{
          .ticket = std::move(ticket), .options = options, .resident = resident, .tokens = tokens});
  ++state_.stats.loads;
  task.WaitFor({.what = Waits::kLoad});
  if (order == LoadOrder::kFromEnd) StartFront(task, loading->second, std::move(missing));
  return {};
}

// The front has room for what it computes next, no more: what is loaded has its room already, and
// gives it back as the front grows. Where there is none, all of it is loaded.
void PromptLoads::StartFront(Task& task, Loading& load, std::vector<MissRun> missing) {
  SequenceOptions options = load.options;
  options.on_full = OnFull::kHalt;
  auto front = state_.cache.Open(load.ticket.Front(load.resident + 1), options);
  if (!front) return;
  ++state_.stats.loads_from_end;
  load.computes = true;
  state_.tasks.Start(task, *std::move(front), std::move(missing), /*loaded_tokens=*/0);
  Meet(task, load);
}

// Goes on behind what is loaded, in the layers that have come. Where there is no room, or nothing
// to compute, it waits for all of them.
void PromptLoads::StartArriving(Task& task, Loading& load) {
  auto plan = load.ticket.Arriving();
  if (!plan) return;
  const uint64_t there = plan->resident_tokens();
  load.may_arrive = there < task.text().goal();
  if (!load.may_arrive) return;
  std::vector<MissRun> missing(plan->missing().begin(), plan->missing().end());
  auto sequence = state_.cache.Open(*std::move(plan), load.options);
  load.may_arrive = sequence.has_value();
  if (!sequence) return;
  ++state_.stats.loads_by_layer;
  load.arrives = true;
  state_.tasks.Start(task, *std::move(sequence), std::move(missing), there - load.resident);
}

// Says how far the front is, and how far it goes next, so that what has come does not wait for a
// long step.
void PromptLoads::Meet(Task& task, Loading& load) const {
  const uint64_t position = task.position();
  load.ticket.Meet(position);
  const LoadProgress progress = load.ticket.progress();
  const uint64_t unread = progress.meet_tokens - std::min(progress.meet_tokens, position);
  const uint64_t next = FrontTokens(CostsOf(state_, load.tokens, progress.bytes), unread);
  const uint64_t block = state_.cache.options().profile.block_tokens;
  task.StopAt(std::min(progress.meet_tokens, RoundDown(position, block) + RoundUp(next, block)));
}

void PromptLoads::TakeDone() {
  for (auto each = state_.loads.begin(); each != state_.loads.end();) {
    Task& task = *state_.tasks.Find(each->first);
    Loading& load = each->second;
    if (!load.ticket.IsDone()) {
      if (load.computes) Meet(task, load);
      const bool may_arrive = load.may_arrive && !load.arrives;
      if (may_arrive && load.ticket.progress().layers_ready > 0) StartArriving(task, load);
      ++each;
      continue;
    }
    Loading ended = std::move(load);
    each = state_.loads.erase(each);
    Take(task, std::move(ended));
  }
  TakeOpened();
  waiting_.EndStreamed(kAloneWaitUs);
  waiting_.RemoveEnded();
  waiting_.WakeForPrefix();
}

void PromptLoads::TakeArrived() {
  const uint32_t layers = state_.cache.options().geometry.layer_count();
  for (auto each = state_.loads.begin(); each != state_.loads.end();) {
    const Loading& load = each->second;
    if (!load.arrives || load.ticket.progress().layers_ready < layers) {
      ++each;
      continue;
    }
    Task& task = *state_.tasks.Find(each->first);
    Loading ended = std::move(each->second);
    each = state_.loads.erase(each);
    Take(task, std::move(ended));
  }
}

void PromptLoads::Take(Task& task, Loading load) {
  const LoadProgress progress = load.ticket.progress();
  // One that has failed is let go of first, so that nothing holds what the load gives back.
  if (load.arrives && task.running() && task.sequence().arrives()) {
    state_.tasks.Withdraw(task).reset();
    load.arrives = false;
  }
  Plan plan = load.ticket.Take();
  const uint64_t before = load.computes ? task.position() : load.resident;
  const uint64_t came = plan.resident_tokens() - std::min(plan.resident_tokens(), before);
  state_.stats.loaded_tokens += came;
  const MissReason reason = plan.reason();
  const bool failed = reason == MissReason::kLoadFailed || reason == MissReason::kLoadLate;
  if (!failed && progress.blocks_ready > 0) {
    const uint64_t bytes = progress.bytes / progress.blocks * progress.blocks_ready;
    state_.stats.load_us += progress.elapsed_us;
    state_.stats.load_bytes += bytes;
    state_.stats.load_rate.Add(progress.elapsed_us, bytes, state_.clock.NowMicros());
  }
  waiting_.WakeForRoom();  // what did not come is not held any more, nor what the front computed
  if (load.arrives) return;
  if (load.computes) return Join(task, load, std::move(plan));
  task.WaitFor({});
  const auto opened = Open(task, std::move(plan), load.options, came);
  if (!opened && opened.error().code != ErrorCode::kNoSpace) task.Fail(opened.error());
}

// Goes on behind what came, or with what it computed where nothing did.
void PromptLoads::Join(Task& task, const Loading& load, Plan plan) {
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
      preemption_.Preempt(task, Waits::kNothing);
    }
    return;
  }
  auto sequence = state_.cache.Open(std::move(plan), load.options);
  if (!sequence) {
    if (sequence.error().code != ErrorCode::kNoSpace) return task.Fail(sequence.error());
    return preemption_.Preempt(task, Waits::kNothing);
  }
  task.Join(*std::move(sequence), std::move(missing));
  task.NoteHeld();
  if (task.position() >= task.text().goal()) task.End(Finish::kLength);  // a session's, all read
}

}  // namespace quire::serve
