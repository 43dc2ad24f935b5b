#include <algorithm>
#include <new>
#include <optional>
#include <utility>

#include "base/canary.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/wiped_vector.h"
#include "cache/below/loading.h"
#include "cache/state/forms.h"
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

bool IsReady(const LoadJob& job, size_t entry) {
  return job.pending[entry] == 0 || Planted(Canary::kAttachEarly);
}

}  // namespace

/// A load of one record of a job.
struct LoadJob::Get {
  using Entries = Loading::Entries;

  explicit Get(LockedState& cache) : staging(cache.load_staging()), transfers(*cache.transfers()) {}
  ~Get() {
    if (chunk) staging->Give(*chunk);
    if (loan.number != 0) transfers.Return(loan, /*damaged=*/false);
  }
  Get(const Get&) = delete;
  Get& operator=(const Get&) = delete;

  LoadJob* job = nullptr;
  Entries entries{};
  bool twins = false;
  const LoadList::Run* run = nullptr;  // that these are read with
  size_t slice = 0;                    // of its layers
  bool is_question = false;            // it was not known whether the store has it
  uint64_t read = 0;                   // of the transfers
  std::vector<std::span<std::byte>> out{};
  std::vector<uint32_t> crcs{};  // of each
  FormError error{};             // with a precision ladder, as it was read
  // Blocks of a run that are not wanted; of a device all of them, one after the other. With a
  // precision ladder a block in the form that the store has, if slots have another one.
  WipedVector<std::byte> beside{};
  // Where the host cannot reach the slots, they are copied from a payload: in staging memory, or in
  // the store's own.
  tier::Staging* const staging;
  std::optional<uint32_t> chunk{};  // of it
  transfer::Transfers& transfers;
  tier::Loan loan{};
  std::vector<SlotSection> sections{};  // of one slot after the other
  std::vector<uint32_t> arrived{};      // checksums of the sections as they are in the slots
  std::unique_ptr<Fence> in_slots{};    // when all that is there
};

Loading::Loading(Search& search, Admission& admission, const SequenceVerbs& verbs)
    : cache_(verbs.cache),
      search_(search),
      admission_(admission),
      verbs_(verbs),
      transfers_(verbs.cache.transfers()) {
  if (transfers_ == nullptr) return;
  ends_.emplace(*transfers_, /*wakes=*/true);
  transfers_->Attach(*this);
}

Loading::~Loading() {
  if (transfers_ == nullptr) return;
  EndPrefetches();
  transfers_->Detach(*this);
}

// Tickets have ended before. What is being prefetched is given up.
void Loading::EndPrefetches() {
  {
    MutexLock lock(mutex_);
    for (const auto& job : jobs_) job->cancelled = true;
    MutexLock new_lock(new_mutex_);
    for (const auto& job : new_jobs_) job->cancelled = true;
  }
  if (prefetches_ == 0) return;
  transfers_->Wake();
  transfers_->Await([this] { return prefetches_ == 0; }, UINT64_MAX);
}

// If memory runs out, none.
bool Loading::TakeNew() {
  std::vector<std::shared_ptr<LoadJob>> taken;
  {
    MutexLock lock(new_mutex_);
    if (new_jobs_.empty()) return false;
    ended_.reserve(jobs_.size() + new_jobs_.size());
    grown_.reserve(jobs_.size() + new_jobs_.size());
    jobs_.reserve(jobs_.size() + new_jobs_.size());
    taken.swap(new_jobs_);
  }
  for (std::shared_ptr<LoadJob>& job : taken) {
    FindAhead(*job);
    jobs_.push_back(std::move(job));
  }
  return true;
}

// A prompt that is asked for while it is prefetched, or prefetched twice, is read once. Where
// blocks have more forms than one, another load may bring others than those that are wanted. It is
// waited for only if it has begun to read what this one begins with.
void Loading::FindAhead(LoadJob& job) {
  if (job.meets || !loads_from_end()) return;
  const std::vector<Digest>& keys = PlanState::Of(*job.plan).load.keys;
  for (const std::shared_ptr<LoadJob>& other : jobs_) {
    if (other->meets) continue;
    const std::vector<Digest>& theirs = PlanState::Of(*other->plan).load.keys;
    const auto first = std::ranges::find(theirs, keys.front());
    const auto entry = static_cast<size_t>(first - theirs.begin());
    if (entry >= other->end || !other->HasReached(entry)) continue;
    const auto common = std::mismatch(first, theirs.end(), keys.begin(), keys.end()).first;
    const auto count = static_cast<size_t>(common - first);
    if (count <= job.ahead_count) continue;
    job.ahead = other;
    job.ahead_first = entry;
    job.ahead_count = count;
  }
  if (job.ahead != nullptr) job.layers.reset();
}

// When the other load has attached what both want, or has ended, this one goes on behind what is
// there; where that has gone again, it reads all of it itself.
bool Loading::WaitsForAhead(LoadJob& job) {
  if (job.ahead == nullptr) return false;
  const LoadJob& ahead = *job.ahead;
  const size_t there =
      std::min(ahead.attached - std::min(ahead.attached, job.ahead_first), job.ahead_count);
  const bool is_late = job.deadline_us != 0 && transfers_->NowMicros() >= job.deadline_us;
  const bool is_wanted = job.attached < job.end;
  if (is_wanted && there < job.ahead_count && !ahead.done && !is_late) return true;
  if (is_wanted && there > 0 && Adopt(job, there)) {
    for (size_t entry = 0; entry < there; ++entry) GiveBack(job, entry);
    job.attached = job.started = job.front = job.adopted = there;
  }
  job.ahead.reset();
  job.begin_us = transfers_->NowMicros();
  return false;
}

transfer::Worker::Turned Loading::Turn() {
  Turned turned;
  std::vector<std::shared_ptr<LoadJob>> ended;
  std::vector<std::shared_ptr<LoadJob>> grown;
  {
    MutexLock lock(mutex_);
    const bool began = TakeNew();
    turned.worked = ends_->Run() || began;
    turned.worked = Advance() || turned.worked;
    turned.copies = !landing_.empty();
    ended = ended_;
    grown = grown_;
    // Nothing fails any more; their memory stays.
    ended_.clear();
    grown_.clear();
    for (const auto& job : grown) ++job->telling;
  }
  for (const auto& job : grown) {
    job->options.on_layers();
    MutexLock lock(mutex_);
    --job->telling;
    turned.worked = true;
  }
  for (const auto& job : ended) {
    if (job->options.on_done) job->options.on_done();
    if (!job->has_ticket) Drop(*job);
    // The ticket may end now, and the cache when this turn has.
    transfers_->Notify([&] {
      job->left = true;
      if (!job->has_ticket) --prefetches_;
    });
  }
  return turned;
}

bool Loading::Advance() {
  bool worked = Land();
  for (const auto& each : jobs_) {
    LoadJob& job = *each;
    if (job.cancelled && job.attached < job.end) {
      job.failure = MissReason::kLoadLate;
      job.end = job.attached;
      CancelGets(job);
    }
    if (WaitsForAhead(job)) continue;
    if (job.meets) TakeComputed(job);
    StartGets(job);
    if (job.meets) MeetComputed(job);
    const bool more_layers = job.layers != nullptr && job.layers->Tell(job.end);
    if (more_layers && job.options.on_layers) grown_.push_back(each);
    worked = AttachReady(job) || worked;
    StartGets(job);
  }
  for (size_t i = 0; i < jobs_.size();) {
    LoadJob& job = *jobs_[i];
    if (job.attached < job.end || job.gets > 0 || job.telling > 0) {
      ++i;
      continue;
    }
    End(job);
    ended_.push_back(std::move(jobs_[i]));
    jobs_.erase(jobs_.begin() + static_cast<ptrdiff_t>(i));
    worked = true;
  }
  return worked;
}

std::optional<Loading::Entries> Loading::NextToStart(LoadJob& job) {
  if (job.meets) {
    const bool any = job.next > job.front && job.next <= job.end;
    if (!any || job.gets >= kLoadBlocksInFlight) return std::nullopt;
    const size_t end = job.next--;
    if (const LoadList::Run* const run = job.RunOf(job.next)) {
      job.next = std::max(job.front, job.FirstOf(*run));
    }
    return Entries{.first = job.next, .count = end - job.next};
  }
  if (job.started >= std::min(job.end, job.attached + kLoadBlocksInFlight)) return std::nullopt;
  const size_t first = job.started++;
  if (const LoadList::Run* const run = job.RunOf(first)) {
    job.started = std::min(job.slots.size(), job.EndOf(*run));
  }
  return Entries{.first = first, .count = job.started - first};
}

void Loading::StartSlices(LoadJob& job) {
  while (job.gets < kLoadBlocksInFlight) {
    const auto next = job.layers->TakeNext(job.end);
    if (!next) return;
    if (StartGet(job, {.first = next->block}, /*twins=*/false, next->slice)) continue;
    NotComing(job, next->block, /*twins=*/false, MissReason::kLoadFailed);
  }
}

void Loading::StartGets(LoadJob& job) {
  if (job.layers != nullptr) return StartSlices(job);
  const SlotClasses& classes = cache_.classes();
  const tier::Staging* const staging = cache_.load_staging();
  constexpr uint32_t kChunksOfBlock = 2;  // its sealed form and its twins
  while (staging == nullptr || staging->free_chunks() >= kChunksOfBlock) {
    const auto entries = NextToStart(job);
    if (!entries) return;
    const auto slots = std::span(job.slots).subspan(entries->first, entries->count);
    for (const bool twins : {false, true}) {
      const bool wanted = std::ranges::any_of(slots, [&](const PerClass<SlotId>& of_block) {
        return twins ? AnyOf(of_block, classes.group_count(), classes.count())
                     : AnyOf(of_block, 0, classes.group_count());
      });
      if (!wanted || StartGet(job, *entries, twins)) continue;
      NotComing(job, entries->first, twins, MissReason::kLoadFailed);
      break;
    }
  }
}

// All pieces that are wanted follow one another, so one request reads them. False: memory ran out,
// and nothing of it is under way.
bool Loading::StartGet(LoadJob& job, const Entries& entries, bool twins, size_t slice) {
  try {
    AskFor(job, entries, twins, slice);
  } catch (const std::bad_alloc&) {
    return false;
  }
  for (size_t i = 0; i < entries.count; ++i) ++job.pending[entries.first + i];
  ++job.gets;
  ++gets_;
  return true;
}

void Loading::AskFor(LoadJob& job, const Entries& entries, bool twins, size_t slice) {
  const RecordShapes& shapes = cache_.shapes();
  auto get = std::make_shared<Get>(cache_);
  get->job = &job;
  get->entries = entries;
  get->twins = twins;
  get->slice = slice;
  get->run = twins ? nullptr : job.RunOf(entries.first);
  tier::LoadRequest request = {.identity =
                                   shapes.IdentityOf(job.RecordAt(entries.first, get->run), twins)};
  get->is_question = transfers_->PresenceOf(request.identity.key) == tier::Presence::kUnknown;
  if (get->run != nullptr) {
    AskForRun(*get, request);
  } else if (job.layers != nullptr) {
    AskForSlice(*get, request);
  } else {
    AskForBlock(*get, request);
  }
  get->crcs.resize(get->out.size());
  request.out = get->out;
  request.crcs = get->crcs;
  landing_.reserve(gets_ + 1);
  job.reading.push_back(get);
  try {
    get->read = transfers_->Read(request, job.deadline_us, *ends_,
                                 [this, get](const StoreCompletion& ended)
                                     QUIRE_REQUIRES(mutex_) { EndGet(get, ended); });
  } catch (const std::bad_alloc&) {
    job.reading.pop_back();
    throw;
  }
}

void Loading::AskForBlock(Get& get, tier::LoadRequest& request) {
  const RecordShapes& shapes = cache_.shapes();
  const PerClass<SlotId>& slots = get.job->slots[get.entries.first];
  const auto is_wanted = [&](uint32_t c) {
    return !slots[c].is_none() && cache_.classes().is_sealed(c) != get.twins;
  };
  bool reachable = true;
  for (uint32_t c = 0; c < cache_.classes().count(); ++c) {
    if (is_wanted(c)) reachable = reachable && !cache_.slots().HostBytes(slots[c]).empty();
  }
  std::span<std::byte> payload;
  if (!reachable) {
    get.chunk = get.staging->Take();
    payload = (*get.staging)[*get.chunk];
  }
  request.layout = &shapes.record(get.twins);
  const tier::RecordLayout& layout = *request.layout;
  for (uint32_t c = 0; c < cache_.classes().count(); ++c) {
    if (!is_wanted(c)) continue;
    const auto [first, count] = shapes.sections(c);
    if (request.section_count == 0) request.section_first = first;
    request.section_count += count;
    if (reachable) {
      const bool reencodes = cache_.classes().reencodes();
      if (reencodes) get.beside.resize(cache_.classes().store_layout().slot_bytes(0));
      shapes.Cut(c, reencodes ? std::span(get.beside) : cache_.slots().HostBytes(slots[c]),
                 get.out);
      continue;
    }
    for (uint32_t i = first; i < first + count; ++i) {
      get.out.push_back(payload.subspan(layout.offset(i), layout.sections()[i].bytes));
    }
  }
  if (shapes.has_error()) {
    get.out.push_back(std::as_writable_bytes(std::span(&get.error, 1)));
    ++request.section_count;
  }
  if (!reachable) {
    request.loan = &get.loan;
    get.arrived.resize(get.out.size());
    get.sections.reserve(get.out.size());
  }
}

// Of its only slot, which the host reaches.
void Loading::AskForSlice(Get& get, tier::LoadRequest& request) {
  const SectionRange slice = get.job->layers->sections(get.slice);
  const SlotId slot = get.job->slots[get.entries.first].front();
  std::vector<std::span<std::byte>> sections;
  cache_.shapes().Cut(0, cache_.slots().HostBytes(slot), sections);
  const auto wanted = std::span(sections).subspan(slice.first, slice.count);
  get.out.assign(wanted.begin(), wanted.end());
  request.layout = &cache_.shapes().sealed();
  request.section_first = slice.first;
  request.section_count = slice.count;
}

// What is not wanted of a run, or has to be copied to a device, is read beside the slots.
void Loading::AskForRun(Get& get, tier::LoadRequest& request) {
  const RecordShapes& shapes = cache_.shapes();
  const uint32_t group_count = cache_.classes().group_count();
  std::vector<BlockSlots<std::byte>> blocks(shapes.run_blocks());
  uint64_t beside = shapes.run_blocks() * shapes.block_bytes();
  for (size_t i = 0; i < get.entries.count; ++i) {
    const size_t entry = get.entries.first + i;
    BlockSlots<std::byte>& block = blocks[get.job->NumberIn(*get.run, entry)];
    for (uint32_t group = 0; group < group_count; ++group) {
      const SlotId slot = get.job->slots[entry][group];
      if (!slot.is_none()) block[group] = cache_.slots().HostBytes(slot);
      beside -= block[group].size();
    }
  }
  get.beside.resize(beside);
  std::span<std::byte> rest = get.beside;
  for (BlockSlots<std::byte>& block : blocks) {
    for (uint32_t group = 0; group < group_count; ++group) {
      if (!block[group].empty()) continue;
      block[group] = rest.first(shapes.slot_bytes(group));
      rest = rest.subspan(shapes.slot_bytes(group));
    }
  }
  shapes.CutRun(blocks, get.out);
  request.layout = &shapes.run();
  request.section_count = static_cast<uint32_t>(get.out.size());
  if (!cache_.slots().on_host()) get.chunk = get.staging->Take();
}

void Loading::EndGet(const std::shared_ptr<Get>& get, const StoreCompletion& ended) {
  if (Planted(Canary::kForgetLate) && get->job == nullptr) {
    --gets_;
    return;
  }
  LoadJob& job = *get->job;
  std::erase(job.reading, get);
  const auto [first, count] = get->entries;
  const bool came = ended.outcome == StoreOutcome::kOk || Planted(Canary::kTrustFailed);
  if (came && first + count > job.front) {
    for (size_t entry = first; entry < first + count; ++entry) {
      bool& durable = get->twins ? job.durable[entry].twins : job.durable[entry].sealed;
      durable = ended.is_durable && (job.layers == nullptr || durable);
    }
    get->in_slots = TakeIn(*get);
    if (job.layers == nullptr || job.layers->has_all(first)) ++cache_.store()->loaded;
    if (get->in_slots != nullptr) return landing_.push_back(get);
    if (get->chunk) return EndLanding(*get);
  }
  NoLongerPending(*get);
  if (came || first + count <= job.front) return;
  // What a remote might have had, and has not, is missing for the reason that memory knows.
  const bool was_asked = get->is_question && ended.outcome == StoreOutcome::kAbsent;
  NotComing(job, std::max(first, job.front), get->twins,
            was_asked ? MissReason::kNeverSeen : ReasonOf(ended.outcome));
}

// What was computed meanwhile is given back.
void Loading::NoLongerPending(Get& get) {
  LoadJob& job = *get.job;
  --gets_;
  --job.gets;
  const auto [first, count] = get.entries;
  for (size_t entry = first; entry < first + count; ++entry) {
    --job.pending[entry];
    if (entry < job.front) GiveBack(job, entry);
  }
}

// What was read counts as what the store compared, or is compared when it is in its slots: its
// checksums go with the bytes. Returns when they are there; null: they are.
std::unique_ptr<Fence> Loading::TakeIn(Get& get) {
  LoadJob& job = *get.job;
  if (get.run != nullptr) {
    TakeRunIn(get);
    return nullptr;
  }
  if (job.layers != nullptr) {
    const size_t entry = get.entries.first;
    if (job.layers->Add({.block = entry, .slice = get.slice}, get.crcs)) {
      job.crcs[entry].front() = cache_.shapes().Join(0, job.layers->crcs(entry));
    }
    return nullptr;
  }
  job.errors[get.entries.first] = get.error.Checked();
  if (cache_.classes().reencodes()) {
    ReencodeIn(get);
    return nullptr;
  }
  std::byte* payload = nullptr;
  if (get.chunk) payload = (*get.staging)[*get.chunk].data();
  if (get.loan.number != 0) payload = const_cast<std::byte*>(get.loan.payload.data());
  uint32_t done = 0;
  for (uint32_t c = 0; c < cache_.classes().count(); ++c) {
    const SlotId slot = job.slots[get.entries.first][c];
    if (slot.is_none() || cache_.classes().is_sealed(c) == get.twins) continue;
    const uint32_t count = cache_.shapes().sections(c).count;
    job.crcs[get.entries.first][c] =
        cache_.shapes().Join(c, std::span(get.crcs).subspan(done, count));
    if (payload != nullptr) {
      get.sections.clear();
      cache_.shapes().CutPayload(c, payload, std::span(get.arrived).subspan(done, count),
                                 get.sections);
      cache_.slots().CopyIn(get.sections, slot);
    }
    done += count;
  }
  return payload != nullptr ? cache_.slots().ops().RecordCopies(CopyWay::kIn) : nullptr;
}

// From the form that the store has.
void Loading::ReencodeIn(const Get& get) {
  const size_t entry = get.entries.first;
  const SlotId slot = get.job->slots[entry].front();
  if (slot.is_none()) return;
  const SlotClasses& classes = cache_.classes();
  const std::span<std::byte> bytes = cache_.slots().HostBytes(slot);
  FormError& error = get.job->errors[entry];
  error = error.Then(Reencode(cache_.slots().ops(), {classes.store_layout(), get.beside.data()},
                              classes.layout(), bytes.data()));
  get.job->crcs[entry].front() = Crc32c(bytes);
}

// Blocks that were computed meanwhile have no slot, nor those that a window has passed. To a device
// slots go one by one, through the one chunk of pinned memory that a get has.
void Loading::TakeRunIn(Get& get) {
  LoadJob& job = *get.job;
  const RecordShapes& shapes = cache_.shapes();
  if (get.chunk) get.arrived = get.crcs;  // those that are copied take their own
  for (size_t i = 0; i < get.entries.count; ++i) {
    const size_t entry = get.entries.first + i;
    const auto block = static_cast<uint32_t>(job.NumberIn(*get.run, entry));
    for (uint32_t group = 0; group < cache_.classes().group_count(); ++group) {
      const SlotId slot = job.slots[entry][group];
      if (slot.is_none()) continue;
      job.crcs[entry][group] = shapes.JoinRun(group, block, get.crcs);
      if (get.chunk) CopyOfRunIn(get, block, group, slot);
    }
  }
}

void Loading::CopyOfRunIn(Get& get, uint32_t block, uint32_t group, SlotId slot) {
  const RecordShapes& shapes = cache_.shapes();
  const Slots& slots = cache_.slots();
  const std::span<std::byte> bytes = shapes.BlocksIn(std::span(get.beside))[block][group];
  std::byte* const pinned = (*get.staging)[*get.chunk].data();
  std::copy_n(bytes.data(), bytes.size(), pinned);
  get.sections.clear();
  uint32_t section = block;
  for (const LayerBytes& layer : shapes.layers()) {
    if (layer.group == group) {
      get.sections.push_back(
          {.host = pinned + layer.offset, .bytes = layer.bytes, .crc = &get.arrived[section]});
    }
    section += shapes.run_blocks();
  }
  slots.CopyIn(get.sections, slot);
  static_cast<void>(slots.ops().SynchronizeCopies(CopyWay::kIn));  // EndLanding asks how it went
}

// Copies take place one after the other, so the first one that is not done holds up the others.
bool Loading::Land() {
  size_t landed = 0;
  for (; landed < landing_.size() && landing_[landed]->in_slots->IsDone(); ++landed) {
    EndLanding(*landing_[landed]);
  }
  landing_.erase(landing_.begin(), landing_.begin() + static_cast<ptrdiff_t>(landed));
  return landed > 0;
}

// A record that was lent, and does not have its checksums, is the store's to forget. Whether it has
// another copy is told by asking once more.
void Loading::EndLanding(Get& get) {
  LoadJob& job = *get.job;
  const Result<void> landed = cache_.slots().ops().outcome();
  NoLongerPending(get);
  if (!landed && !job.device_failed) {
    job.device_failed = true;
    LogWarn("load: {}; what did not come is computed", landed.error().message);
  }
  const size_t entry = get.entries.first;
  if (entry < job.front) return;
  const bool same = get.arrived == get.crcs || Planted(Canary::kTrustArrived);
  const bool intact = landed && same;
  if (intact || entry >= job.end) return;
  if (landed && get.loan.number != 0) {
    transfers_->Return(std::exchange(get.loan, {}), /*damaged=*/true);
    get.staging->Give(*std::exchange(get.chunk, std::nullopt));  // it is taken again
    --cache_.store()->loaded;
    if (StartGet(job, get.entries, get.twins)) return;
  }
  NotComing(job, entry, get.twins, MissReason::kLoadFailed);
}

bool Loading::AwaitCopies() {
  MutexLock lock(mutex_);
  if (landing_.empty()) return false;
  landing_.front()->in_slots->Wait();
  return true;
}

void Loading::NotComing(LoadJob& job, size_t entry, bool twins, MissReason reason) {
  if (reason != MissReason::kNeverSeen) ++cache_.store()->loads_failed;
  if (entry >= job.end) return;  // it is not wanted any more
  if (twins) {
    job.twins_failed = true;
    return;
  }
  job.failure = reason;
  job.end = entry;
  CancelGets(job);
}

// What comes after the end, or was computed, is of no use any more.
void Loading::CancelGets(LoadJob& job) {
  for (const auto& get : job.reading) {
    const auto [first, count] = get->entries;
    if (get->job == nullptr || job.IsWanted(first, count)) continue;
    if (Planted(Canary::kForgetLate)) {
      --job.gets;
      get->job = nullptr;
      continue;
    }
    transfers_->Cancel(get->read);
  }
}

// How far the caller has computed by now: what lies before that is not read any more.
void Loading::TakeComputed(LoadJob& job) {
  const size_t computed = job.computed;
  if (computed <= job.front) return;
  const size_t before = std::exchange(job.front, computed);
  CancelGets(job);
  for (size_t entry = before; entry < computed; ++entry) {
    if (job.pending[entry] == 0) GiveBack(job, entry);
  }
}

void Loading::GiveBack(LoadJob& job, size_t entry) {
  PerClass<SlotId>& slots = job.slots[entry];
  PerClass<SlotId> given = slots;
  const auto end =
      std::remove_if(given.begin(), given.end(), [](SlotId slot) { return slot.is_none(); });
  slots.fill(SlotId::None());
  Release(job, {given.begin(), end});
}

// When all has come that was not computed, what was computed is what it is attached to.
void Loading::MeetComputed(LoadJob& job) {
  job.came = std::min(job.came, job.end);
  while (job.came > std::max(job.next, job.front) && IsReady(job, job.came - 1)) {
    --job.came;
  }
  job.unread = job.came;
  job.blocks_ready = job.end - job.came;
  if (job.came > job.front) return;
  const size_t first = std::min(job.front, job.end);
  if (first < job.end && !Adopt(job, first)) {
    job.end = job.attached;  // it is held no more, or may not be published
    return;
  }
  job.meets = false;
  job.attached = first;
  job.started = job.end;
}

bool Loading::AttachReady(LoadJob& job) {
  if (job.meets) return false;
  bool worked = false;
  while (job.attached < job.end) {
    const size_t started = job.layers != nullptr ? job.layers->started_whole() : job.started;
    size_t ready = job.attached;
    while (ready < std::min(job.end, started) && IsReady(job, ready) &&
           ready < job.attached + kPublishBlocksMax) {
      ++ready;
    }
    if (ready == job.attached) return worked;
    const size_t count = ready - job.attached;
    const size_t attached = AttachLoaded(job, job.attached, count);
    job.attached += attached;
    job.blocks_ready = job.attached - job.front;
    worked = true;
    if (attached == count) continue;
    job.end = job.attached;  // it may not be published any more
    CancelGets(job);
  }
  return worked;
}

void Loading::End(LoadJob& job) {
  if (!job.twins_failed && job.end == job.slots.size()) AttachTwins(job);
  if (job.twins_failed && job.failure == MissReason::kNeverSeen) {
    job.failure = MissReason::kLoadFailed;
  }
  job.end_us = transfers_->NowMicros();
  if (job.arrival != nullptr) {
    const size_t arriving = job.layers != nullptr ? job.layers->arriving() : 0;
    job.arrival->End(arriving > 0 && job.attached == arriving);
  }
  job.done = true;
}

}  // namespace quire::cache
