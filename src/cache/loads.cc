#include "cache/loads.h"

#include <algorithm>
#include <new>
#include <optional>
#include <utility>

#include "base/canary.h"
#include "base/log.h"
#include "cache/load_job.h"
#include "cache/records.h"
#include "tier/staging.h"

namespace quire::cache {
namespace {

using tier::StoreCompletion;
using tier::StoreOutcome;

constexpr size_t kPublishBlocksMax = 32;  // at once: others wait for the cache's lock meanwhile

MissReason ReasonOf(StoreOutcome outcome) {
  const bool late = outcome == StoreOutcome::kDeadline || outcome == StoreOutcome::kCancelled;
  return late ? MissReason::kLoadLate : MissReason::kLoadFailed;
}

bool AnyOf(const PerClass<SlotId>& slots, uint32_t begin, uint32_t end) {
  return std::any_of(slots.begin() + begin, slots.begin() + end,
                     [](SlotId slot) { return !slot.is_none(); });
}

}  // namespace

/// A load of one record of a job.
struct Loads::Get {
  Get() = default;
  ~Get() {
    if (chunk) staging->Give(*chunk);
    if (loan.number != 0) store->Return(loan, /*damaged=*/false);
  }
  Get(const Get&) = delete;
  Get& operator=(const Get&) = delete;

  ActiveLoad* load = nullptr;
  size_t entry = 0;
  bool twins = false;
  std::vector<std::span<std::byte>> out{};
  std::vector<uint32_t> crcs{};  // of each
  // Where the host cannot reach the slots, they are copied from a payload: in staging memory, or in
  // the store's own.
  tier::Staging* staging = nullptr;
  std::optional<uint32_t> chunk{};  // of it
  tier::Store* store = nullptr;
  tier::Loan loan{};
  std::vector<SlotSection> sections{};  // of one slot after the other
  std::vector<uint32_t> arrived{};      // checksums of the sections as they are in the slots
  std::unique_ptr<Fence> in_slots{};    // when all that is there
};

/// A job under way.
struct Loads::ActiveLoad {
  explicit ActiveLoad(std::shared_ptr<LoadJob> of)
      : job(std::move(of)),
        pending(job->slots.size()),
        end(job->slots.size()),
        meets(job->options.order == LoadOrder::kFromEnd),
        next(end),
        came(end) {}

  bool IsWanted(size_t entry) const { return entry >= computed && entry < end; }

  std::shared_ptr<LoadJob> job;
  std::vector<uint8_t> pending;  // records of each entry that are being loaded
  size_t started = 0;            // entries
  size_t attached = 0;
  size_t end;  // entries that may still come
  // From the end, until it has met what was computed.
  bool meets;
  size_t next;          // entries from here on were started
  size_t came;          // and those from here on have come
  size_t computed = 0;  // entries before this one are the caller's own
  uint32_t gets = 0;
  bool twins_failed = false;
  bool device_failed = false;  // what came is not in its slots
};

std::shared_ptr<Loads::ActiveLoad> Loads::Make(std::shared_ptr<LoadJob> job) {
  return std::make_shared<ActiveLoad>(std::move(job));
}

void Loads::Start(std::vector<std::shared_ptr<ActiveLoad>>& loads) {
  loads_.reserve(loads_.size() + loads.size());
  for (auto& load : loads) loads_.push_back(std::move(load));
  loads.clear();
}

bool Loads::Advance() {
  bool worked = Land();
  for (const auto& load : loads_) {
    if (load->job->cancelled && load->attached < load->end) {
      load->job->failure = MissReason::kLoadLate;
      load->end = load->attached;
      CancelGets(*load);
    }
    if (load->meets) TakeComputed(*load);
    StartGets(*load);
    if (load->meets) MeetComputed(*load);
    worked = AttachReady(*load) || worked;
    StartGets(*load);
  }
  for (size_t i = 0; i < loads_.size();) {
    ActiveLoad& load = *loads_[i];
    if (load.attached < load.end || load.gets > 0) {
      ++i;
      continue;
    }
    End(load);
    ended_.push_back(std::move(load.job));
    loads_.erase(loads_.begin() + static_cast<ptrdiff_t>(i));
    worked = true;
  }
  return worked;
}

std::optional<size_t> Loads::NextToStart(ActiveLoad& load) {
  if (load.meets) {
    const bool any = load.next > load.computed && load.next <= load.end;
    if (!any || load.gets >= kLoadBlocksInFlight) return std::nullopt;
    return --load.next;
  }
  if (load.started >= std::min(load.end, load.attached + kLoadBlocksInFlight)) return std::nullopt;
  return load.started++;
}

void Loads::StartGets(ActiveLoad& load) {
  const SlotClasses& classes = load.job->loading.cache().classes();
  const tier::Staging* const staging = load.job->loading.cache().load_staging();
  constexpr uint32_t kChunksOfBlock = 2;  // its sealed form and its twins
  while (staging == nullptr || staging->free_chunks() >= kChunksOfBlock) {
    const auto entry = NextToStart(load);
    if (!entry) return;
    const PerClass<SlotId>& slots = load.job->slots[*entry];
    for (const bool twins : {false, true}) {
      const bool wanted = twins ? AnyOf(slots, classes.group_count(), classes.count())
                                : AnyOf(slots, 0, classes.group_count());
      if (!wanted || StartGet(load, *entry, twins)) continue;
      NotComing(load, *entry, twins, MissReason::kLoadFailed);
      break;
    }
  }
}

// All pieces that are wanted follow one another, so one request reads them. False: memory ran out,
// and nothing of it is under way.
bool Loads::StartGet(ActiveLoad& load, size_t entry, bool twins) {
  const uint64_t tag = next_tag_++;
  try {
    AskFor(load, entry, twins, tag);
  } catch (const std::bad_alloc&) {
    if (gets_.contains(tag)) store_.Cancel(tag);  // however much of it the store knows
    gets_.erase(tag);
    return false;
  }
  ++load.pending[entry];
  ++load.gets;
  return true;
}

void Loads::AskFor(ActiveLoad& load, size_t entry, bool twins, uint64_t tag) {
  const LoadJob& job = *load.job;
  LockedState& cache = job.loading.cache();
  const RecordShapes& shapes = cache.shapes();
  const RecordWanted wanted = job.WantedAt(entry);
  auto get = std::make_shared<Get>();
  get->load = &load;
  get->entry = entry;
  get->twins = twins;
  get->staging = cache.load_staging();
  get->store = &store_;
  const PerClass<SlotId>& slots = job.slots[entry];
  const auto is_wanted = [&](uint32_t c) {
    return !slots[c].is_none() && cache.classes().is_sealed(c) != twins;
  };
  bool reachable = true;
  for (uint32_t c = 0; c < cache.classes().count(); ++c) {
    if (is_wanted(c)) reachable = reachable && !cache.slots().HostBytes(slots[c]).empty();
  }
  std::span<std::byte> payload;
  if (!reachable) {
    get->chunk = get->staging->Take();
    payload = (*get->staging)[*get->chunk];
  }
  tier::LoadRequest request = {
      .identity = {.key = twins ? TwinKey(wanted.key) : wanted.key,
                   .parent = twins ? wanted.key : wanted.parent_key,
                   .profile = shapes.profile(),
                   .geometry = shapes.geometry(),
                   .publisher = job.publisher,
                   .erase_epoch = PlanState::Of(*job.plan).location.below_epoch,
                   .block_index = wanted.block_index,
                   .tokens = wanted.tokens},
      .layout = &shapes.record(twins),
      .tag = tag};
  const tier::RecordLayout& layout = *request.layout;
  for (uint32_t c = 0; c < cache.classes().count(); ++c) {
    if (!is_wanted(c)) continue;
    const auto [first, count] = shapes.sections(c);
    if (request.section_count == 0) request.section_first = first;
    request.section_count += count;
    if (reachable) {
      shapes.Cut(c, cache.slots().HostBytes(slots[c]), get->out);
      continue;
    }
    for (uint32_t i = first; i < first + count; ++i) {
      get->out.push_back(payload.subspan(layout.offset(i), layout.sections()[i].bytes));
    }
  }
  get->crcs.resize(get->out.size());
  request.out = get->out;
  request.crcs = get->crcs;
  if (!reachable) {
    request.loan = &get->loan;
    get->arrived.resize(get->out.size());
    get->sections.reserve(get->out.size());
  }
  landing_.reserve(landing_.size() + gets_.size() + 1);
  gets_[tag] = std::move(get);
  store_.Get({&request, 1}, job.deadline_us);
}

void Loads::EndGet(const StoreCompletion& ended) {
  const auto found = gets_.find(ended.tag);
  const std::shared_ptr<Get> get = std::move(found->second);
  gets_.erase(found);
  if (Planted(Canary::kForgetLate) && get->load == nullptr) return;
  const bool came = ended.outcome == StoreOutcome::kOk || Planted(Canary::kTrustFailed);
  if (came && get->entry >= get->load->computed) {
    ++counters_.loaded;
    LoadJob::Durable& durable = get->load->job->durable[get->entry];
    (get->twins ? durable.twins : durable.sealed) = ended.is_durable;
    get->in_slots = TakeIn(*get);
    if (get->in_slots != nullptr) {
      ++counters_.landing;
      landing_.push_back(get);
      return;
    }
    if (get->chunk) return EndLanding(*get);
  }
  ActiveLoad& load = *get->load;
  --load.gets;
  --load.pending[get->entry];
  if (get->entry < load.computed) return GiveBack(load, get->entry);
  if (!came) NotComing(load, get->entry, get->twins, ReasonOf(ended.outcome));
}

// What was read counts as what the store compared, or is compared when it is in its slots: its
// checksums go with the bytes. Returns when they are there; null: they are.
std::unique_ptr<Fence> Loads::TakeIn(Get& get) {
  LoadJob& job = *get.load->job;
  const LockedState& cache = job.loading.cache();
  std::byte* payload = nullptr;
  if (get.chunk) payload = (*get.staging)[*get.chunk].data();
  if (get.loan.number != 0) payload = const_cast<std::byte*>(get.loan.payload.data());
  uint32_t done = 0;
  for (uint32_t c = 0; c < cache.classes().count(); ++c) {
    const SlotId slot = job.slots[get.entry][c];
    if (slot.is_none() || cache.classes().is_sealed(c) == get.twins) continue;
    const uint32_t count = cache.shapes().sections(c).count;
    job.crcs[get.entry][c] = cache.shapes().Join(c, std::span(get.crcs).subspan(done, count));
    if (payload != nullptr) {
      get.sections.clear();
      cache.shapes().CutPayload(c, payload, std::span(get.arrived).subspan(done, count),
                                get.sections);
      cache.slots().CopyIn(get.sections, slot);
    }
    done += count;
  }
  return payload != nullptr ? cache.slots().ops().RecordCopies(CopyWay::kIn) : nullptr;
}

// Copies take place one after the other, so the first one that is not done holds up the others.
bool Loads::Land() {
  size_t landed = 0;
  for (; landed < landing_.size() && landing_[landed]->in_slots->IsDone(); ++landed) {
    Get& get = *landing_[landed];
    --counters_.landing;
    EndLanding(get);
  }
  landing_.erase(landing_.begin(), landing_.begin() + static_cast<ptrdiff_t>(landed));
  return landed > 0;
}

// A record that was lent, and does not have its checksums, is the store's to forget. Whether it has
// another copy is told by asking once more.
void Loads::EndLanding(Get& get) {
  ActiveLoad& load = *get.load;
  const Result<void> landed = load.job->loading.cache().slots().ops().outcome();
  --load.gets;
  --load.pending[get.entry];
  if (!landed && !load.device_failed) {
    load.device_failed = true;
    LogWarn("load: {}; what did not come is computed", landed.error().message);
  }
  if (get.entry < load.computed) return GiveBack(load, get.entry);
  const bool same = get.arrived == get.crcs || Planted(Canary::kTrustArrived);
  const bool intact = landed && same;
  if (intact || get.entry >= load.end) return;
  if (landed && get.loan.number != 0) {
    store_.Return(std::exchange(get.loan, {}), /*damaged=*/true);
    get.staging->Give(*std::exchange(get.chunk, std::nullopt));  // it is taken again
    --counters_.loaded;
    if (StartGet(load, get.entry, get.twins)) return;
  }
  NotComing(load, get.entry, get.twins, MissReason::kLoadFailed);
}

bool Loads::AwaitLanding() {
  if (landing_.empty()) return false;
  landing_.front()->in_slots->Wait();
  return true;
}

void Loads::NotComing(ActiveLoad& load, size_t entry, bool twins, MissReason reason) {
  ++counters_.failures;
  if (entry >= load.end) return;  // it is not wanted any more
  if (twins) {
    load.twins_failed = true;
    return;
  }
  load.job->failure = reason;
  load.end = entry;
  CancelGets(load);
}

// What comes after the end, or was computed, is of no use any more.
void Loads::CancelGets(ActiveLoad& load) {
  for (const auto& [tag, get] : gets_) {
    if (get->load != &load || load.IsWanted(get->entry)) continue;
    if (Planted(Canary::kForgetLate)) {
      --load.gets;
      get->load = nullptr;
      continue;
    }
    store_.Cancel(tag);
  }
}

bool Loads::IsReady(const ActiveLoad& load, size_t entry) {
  return load.pending[entry] == 0 || Planted(Canary::kAttachEarly);
}

// How far the caller has computed by now: what lies before that is not read any more.
void Loads::TakeComputed(ActiveLoad& load) {
  const size_t computed = load.job->computed;
  if (computed <= load.computed) return;
  const size_t before = std::exchange(load.computed, computed);
  CancelGets(load);
  for (size_t entry = before; entry < computed; ++entry) {
    if (load.pending[entry] == 0) GiveBack(load, entry);
  }
}

void Loads::GiveBack(ActiveLoad& load, size_t entry) {
  PerClass<SlotId>& slots = load.job->slots[entry];
  PerClass<SlotId> given = slots;
  const auto end =
      std::remove_if(given.begin(), given.end(), [](SlotId slot) { return slot.is_none(); });
  slots.fill(SlotId::None());
  load.job->loading.cache().ReleaseSlots({given.begin(), end});
}

// When all has come that was not computed, what was computed is what it is attached to.
void Loads::MeetComputed(ActiveLoad& load) {
  load.came = std::min(load.came, load.end);
  while (load.came > std::max(load.next, load.computed) && IsReady(load, load.came - 1)) {
    --load.came;
  }
  load.job->unread = load.came;
  load.job->blocks_ready = load.end - load.came;
  if (load.came > load.computed) return;
  const size_t first = std::min(load.computed, load.end);
  if (first < load.end && !load.job->loading.AdoptComputed(*load.job, first)) {
    load.end = load.attached;  // nobody holds it any more, or it may not be published
    return;
  }
  load.meets = false;
  load.attached = first;
  load.started = load.end;
}

bool Loads::AttachReady(ActiveLoad& load) {
  if (load.meets) return false;
  bool worked = false;
  while (load.attached < load.end) {
    size_t ready = load.attached;
    while (ready < std::min(load.end, load.started) && IsReady(load, ready) &&
           ready < load.attached + kPublishBlocksMax) {
      ++ready;
    }
    if (ready == load.attached) return worked;
    const size_t count = ready - load.attached;
    const size_t attached = load.job->loading.AttachLoaded(*load.job, load.attached, count);
    load.attached += attached;
    load.job->blocks_ready = load.attached - load.computed;
    worked = true;
    if (attached == count) continue;
    load.end = load.attached;  // it may not be published any more
    CancelGets(load);
  }
  return worked;
}

void Loads::End(ActiveLoad& load) {
  LoadJob& job = *load.job;
  if (!load.twins_failed && load.end == job.slots.size()) job.loading.AttachTwins(job);
  if (load.twins_failed && job.failure == MissReason::kNeverSeen) {
    job.failure = MissReason::kLoadFailed;
  }
  job.end_us = clock_.NowMicros();
  job.done = true;
}

}  // namespace quire::cache
