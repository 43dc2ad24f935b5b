#include "cache/below/loading.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "base/bits.h"
#include "base/canary.h"
#include "base/hash.h"
#include "base/sync_point.h"
#include "cache/below/write_back.h"
#include "cache/verbs/evict.h"
#include "cache/verbs/leases.h"
#include "cache/verbs/quarantine.h"
#include "cache/verbs/tenants.h"

namespace quire::cache {

namespace {

// A form of a block came from the store, which need not be given it again if it has it for good.
void NoteLoaded(State& state, BlockId block, bool twins, bool is_durable) {
  state.directory.touched().Count(1);
  state.directory.SetLoaded(block);
  if (!is_durable && !Planted(Canary::kTrustWarm)) return;
  state.directory.SetBelow(block, twins, Below::kDurable);
  state.directory.write_behind().Unqueue(block);
}

// The tenant that it is loaded for was erased after its plan was made.
bool WasErased(const LoadJob& job) {
  return job.loading.cache().transfers()->EpochOf(job.publisher) !=
         PlanState::Of(*job.plan).location.below_epoch;
}

}  // namespace

tier::RecordIdentity LoadJob::RecordAt(size_t i, const LoadList::Run* run) const {
  const PlanState& state = PlanState::Of(*plan);
  const LockedState& cache = loading.cache();
  const uint64_t index = run != nullptr ? run->first : state.path.size() + i;
  const uint64_t blocks = run != nullptr ? cache.shapes().run_blocks() : 1;
  tier::RecordIdentity record = {
      .publisher = publisher,
      .erase_epoch = state.location.below_epoch,
      .block_index = index,
      .tokens = std::span<const TokenId>(state.prompt)
                    .subspan(index * cache.block_tokens(), blocks * cache.block_tokens())};
  if (run != nullptr) {
    record.key = run->key;
  } else {
    record.key = state.load.keys[i];
    record.parent = i == 0 ? state.load.parent_key : state.load.keys[i - 1];
  }
  return record;
}

const LoadList::Run* LoadJob::RunOf(size_t i) const {
  const PlanState& state = PlanState::Of(*plan);
  const uint64_t block = state.path.size() + i;
  const std::vector<LoadList::Run>& runs = state.load.runs;
  const auto after = std::ranges::upper_bound(runs, block, {}, &LoadList::Run::first);
  if (after == runs.begin()) return nullptr;
  const LoadList::Run& run = *std::prev(after);
  return block < run.first + loading.cache().shapes().run_blocks() ? &run : nullptr;
}

size_t LoadJob::FirstOf(const LoadList::Run& run) const {
  const uint64_t resident = PlanState::Of(*plan).path.size();
  return run.first - std::min(resident, run.first);
}

size_t LoadJob::EndOf(const LoadList::Run& run) const {
  return run.first + loading.cache().shapes().run_blocks() - PlanState::Of(*plan).path.size();
}

size_t LoadJob::NumberIn(const LoadList::Run& run, size_t entry) const {
  return PlanState::Of(*plan).path.size() + entry - run.first;
}

bool LoadJob::Await(uint64_t timeout_us) const {
  return left || loading.cache().transfers()->Await([&] { return left.load(); }, timeout_us);
}

uint64_t LoadJob::TokensBefore(size_t i) const {
  return (PlanState::Of(*plan).path.size() + i) * loading.cache().block_tokens();
}

size_t LoadJob::EntriesIn(uint64_t tokens) const {
  const PlanState& state = PlanState::Of(*plan);
  const uint64_t blocks = tokens / loading.cache().block_tokens();
  return std::min(blocks - std::min<uint64_t>(blocks, state.path.size()), state.load.keys.size());
}

Result<Ticket> Loading::Load(Plan plan, const LoadOptions& options) {
  QUIRE_ASSIGN(auto job, Begin(std::move(plan), options, /*has_ticket=*/true));
  return Ticket(std::move(job));
}

Result<uint64_t> Loading::Prefetch(Plan plan) {
  const uint64_t tokens = plan.loadable_tokens();
  if (tokens > 0) QUIRE_TRY(Begin(std::move(plan), {}, /*has_ticket=*/false));
  return tokens;
}

Result<std::shared_ptr<LoadJob>> Loading::Begin(Plan plan, const LoadOptions& options,
                                                bool has_ticket) {
  const PlanState& state = PlanState::Of(plan);
  const LoadList& load = state.load;
  auto job = std::make_shared<LoadJob>(*this, std::move(plan), options, has_ticket);
  if (options.order == LoadOrder::kFromEnd && !loads_from_end()) {
    return Fail(ErrorCode::kUnsupported,
                "load: from the end, but layers have a window, or there are residual tokens");
  }
  const bool by_layer = options.order == LoadOrder::kByLayer;
  if (by_layer && (options.slices == 0 || options.slices > LayerSlices::kSlicesMax)) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("load: in {} slices; 1 to {} are possible", options.slices,
                            LayerSlices::kSlicesMax));
  }
  job->begin_us = transfers_ != nullptr ? transfers_->NowMicros() : 0;
  if (load.keys.empty()) {
    job->end_us = job->begin_us.load();
    job->done = true;
    job->left = true;
    return job;
  }
  PerClass<uint64_t> counts{};
  for (const PerClass<bool>& wanted : load.wanted) {
    for (uint32_t c = 0; c < cache_.classes().count(); ++c) counts[c] += wanted[c] ? 1 : 0;
  }
  auto taken = verbs_.holds.Allocate(state.location, counts, /*metadata_bytes=*/0);
  if (!taken) {
    taken.error().message = fmt::format("load: {} tokens: {}", load.tokens, taken.error().message);
    return std::unexpected(std::move(taken).error());
  }
  job->slots.resize(load.keys.size());
  job->crcs.resize(load.keys.size());
  job->durable.resize(load.keys.size());
  job->errors.resize(load.keys.size());
  job->path.reserve(load.keys.size());
  job->held.reserve(load.keys.size() * cache_.classes().count());
  PerClass<size_t> next{};
  for (size_t i = 0; i < load.keys.size(); ++i) {
    for (uint32_t c = 0; c < cache_.classes().count(); ++c) {
      if (load.wanted[i][c]) job->slots[i][c] = taken->slots[c][next[c]++];
    }
  }
  if (by_layer) CutByLayer(*job);
  job->unread = load.keys.size();
  job->publisher = PublisherOf(cache_, state.location.tenant);
  if (options.timeout_us != 0) job->deadline_us = job->begin_us + options.timeout_us;
  job->pending.resize(load.keys.size());
  job->end = job->next = job->came = load.keys.size();
  {
    MutexLock lock(new_mutex_);
    new_jobs_.push_back(job);
    if (!has_ticket) ++prefetches_;
  }
  transfers_->Wake();
  taken->slots.Disown();  // they are the job's
  return job;
}

// Where each layer of a block can be read by itself, into a slot that the host reaches.
void Loading::CutByLayer(LoadJob& job) const {
  const RecordShapes& shapes = cache_.shapes();
  const LoadList& load = PlanState::Of(*job.plan).load;
  const auto layers = static_cast<uint32_t>(shapes.layers().size());
  const uint32_t slices = std::min(job.options.slices, layers);
  if (slices < 2 || !loads_from_end() || !load.runs.empty()) return;
  if (!cache_.slots().on_host() || cache_.classes().reencodes()) return;
  job.arrival = std::make_shared<Arrival>(*transfers_, layers);
  job.layers = std::make_unique<LayerSlices>(shapes, slices, load.keys.size(), job.arrival);
}

// All layers see all of a prompt, and nothing but whole blocks.
bool Loading::loads_from_end() const {
  return cache_.classes().group_count() == 1 && !cache_.classes().reach(0).windowed() &&
         cache_.classes().residual_blocks() == 0;
}

Plan Loading::FrontOf(const LoadJob& job, uint64_t tokens) {
  const PlanState& all = PlanState::Of(*job.plan);
  auto front = std::make_unique<PlanState>();
  front->location = all.location;
  front->resident = all.resident;
  front->prompt_tokens = std::clamp(tokens, all.resident + 1, all.prompt_tokens);
  front->resident_tokens = all.resident_tokens;
  front->path = all.path;
  front->slots = all.slots;
  front->missing.push_back(
      {.reason = MissReason::kNotLoaded, .tokens = front->prompt_tokens - front->resident});
  front->lease = verbs_.holds.Share(all.lease);
  return PlanState::Wrap(std::move(front));
}

// Holds the slots besides the job. It has one layer group, so each block has one slot.
Result<Plan> Loading::ArrivingOf(const LoadJob& job) {
  if (job.options.order != LoadOrder::kByLayer) {
    return Fail(ErrorCode::kUnsupported, "load: it comes block by block, not by layer");
  }
  MutexLock lock(mutex_);
  const size_t arriving = job.layers != nullptr ? job.layers->arriving() : 0;
  if (arriving == 0 || job.end != arriving || job.done) {
    return Fail(ErrorCode::kBusy, "load: no layer is ready, or it has ended or fails");
  }
  const PlanState& all = PlanState::Of(*job.plan);
  const uint64_t block_tokens = cache_.block_tokens();
  auto plan = std::make_unique<PlanState>();
  plan->location = all.location;
  plan->prompt_tokens = all.prompt_tokens;
  plan->path = all.path;
  plan->path.insert(plan->path.end(), job.path.begin(), job.path.end());  // published by now
  plan->arrival = job.arrival;
  plan->resident = (all.path.size() + arriving) * block_tokens;
  const auto tokens = std::span<const TokenId>(all.prompt).first(plan->resident);
  plan->resident_tokens.assign(tokens.begin(), tokens.end());
  plan->slots = all.slots;
  std::vector<SlotId> held;
  for (uint32_t c = 0; c < cache_.classes().count(); ++c) {
    std::vector<SlotId>& slots = plan->slots[c];
    for (size_t i = 0; i < arriving; ++i) {
      const bool is_published = c == 0 && i < job.attached;  // its slot is not the job's any more
      slots.push_back(is_published ? job.held[i] : job.slots[i][c]);
    }
    std::ranges::copy_if(slots, std::back_inserter(held), [](SlotId s) { return !s.is_none(); });
  }
  if (const uint64_t absent = all.load.keys.size() - arriving; absent > 0) {
    plan->missing.push_back({.reason = job.failure, .tokens = absent * block_tokens});
  }
  std::ranges::copy_if(
      all.missing, std::back_inserter(plan->missing),
      [](const MissRun& run) { return run.reason != MissReason::kNotLoaded; });
  plan->lease = verbs_.holds.Share(std::move(held));
  return PlanState::Wrap(std::move(plan));
}

bool Loading::Adopt(LoadJob& job, size_t count) {
  if (count == 0) return true;
  const PlanState& plan = PlanState::Of(*job.plan);
  const uint64_t blocks = plan.path.size() + count;
  const auto prompt =
      std::span<const TokenId>(plan.prompt).first(blocks * cache_.block_tokens() + 1);
  FoundPath path = search_.FindPath(prompt, plan.location);
  CutToHit(cache_.classes(), prompt.size(), path);
  if (path.blocks.size() < blocks) return false;
  // Once they are held nothing may fail.
  job.path.reserve(count + plan.load.keys.size());
  job.held.reserve((blocks + plan.load.keys.size()) * cache_.classes().count());
  job.path.assign(path.blocks.begin() + static_cast<ptrdiff_t>(plan.path.size()),
                  path.blocks.end());
  if (search_.LeasePath(path, job.held)) return true;
  job.path.clear();
  return false;
}

size_t Loading::AttachLoaded(LoadJob& job, size_t first, size_t count) {
  // What was erased since is on its way nowhere.
  if (WasErased(job) && !Planted(Canary::kAttachErased)) return 0;
  const auto is_loaded = [&](size_t i) {
    const auto groups = std::span(job.slots[i]).first(cache_.classes().group_count());
    return std::ranges::any_of(groups, [](SlotId slot) { return !slot.is_none(); });
  };
  // A block of which nothing was loaded is not held until it is leased, so it ends a run.
  size_t attached = 0;
  while (attached < count) {
    size_t run = 1;
    while (attached + run < count && is_loaded(first + attached + run - 1)) ++run;
    const size_t done = AttachRun(job, first + attached, run);
    attached += done;
    if (done < run) break;
  }
  return attached;
}

size_t Loading::AttachRun(LoadJob& job, size_t first, size_t count) {
  const PlanState& plan = PlanState::Of(*job.plan);
  std::vector<NewBlock> blocks;
  for (size_t i = first; i < first + count; ++i) {
    NewBlock& block = blocks.emplace_back(NewBlock{.tokens = job.RecordAt(i, nullptr).tokens});
    for (uint32_t group = 0; group < cache_.classes().group_count(); ++group) {
      block.slots[group] = job.slots[i][group];
    }
    block.crcs = &job.crcs[i];
    block.error = job.errors[i];
  }
  if (first > 0) {
    blocks[0].parent = job.path.back();
  } else if (!plan.path.empty()) {
    blocks[0].parent = plan.path.back();
  }
  std::vector<Published> answers;
  std::vector<SlotId> spare;
  spare.reserve(count *
                cache_.classes().group_count());  // once others know of them nothing may fail
  // They have their checksums: no device is asked for anything.
  QUIRE_CHECK(verbs_.publishing.Publish(plan.location, blocks, answers).has_value());
  size_t attached = 0;
  for (; attached < answers.size() && !answers[attached].block.is_none(); ++attached) {
    const Published& answer = answers[attached];
    job.path.push_back(answer.block);
    for (uint32_t group = 0; group < cache_.classes().group_count(); ++group) {
      SlotId& own = job.slots[first + attached][group];
      if (!own.is_none() && own != answer.slots[group]) spare.push_back(own);
      own = SlotId::None();
      if (!answer.slots[group].is_none()) job.held.push_back(answer.slots[group]);
    }
  }
  cache_.ReleaseSlots(spare);
  if (attached == 0) return 0;
  const LoadList& load = plan.load;
  cache_.With([&](State& state) {
    const BlockId last = job.path.back();
    const bool is_there = state.directory.contains(last) &&
                          state.directory.at(last).key == load.keys[first + attached - 1];
    if (is_there) {
      AddLease(state, last);
      if (!job.leased.is_none()) DropLease(state, job.leased);
      job.leased = last;
    } else {  // nothing of it was held
      job.path.pop_back();
      --attached;
    }
  });
  // The lease keeps them all.
  LockedState::ForPieces(attached, [&](size_t begin, size_t end) {
    cache_.With([&](State& state) {
      for (size_t i = first + begin; i < first + end; ++i) {
        const auto sealed = std::span(load.wanted[i]).first(cache_.classes().group_count());
        if (std::ranges::none_of(sealed, [](bool wanted) { return wanted; })) continue;
        NoteLoaded(state, job.path[i], /*twins=*/false, job.durable[i].sealed);
        Offer(state, job.path[i]);  // it, or its twins, may have to be written still
        ++state.counters.loaded_total;
      }
    });
  });
  return attached;
}

void Loading::AttachTwins(LoadJob& job) {
  const uint32_t groups = cache_.classes().group_count();
  const PlanState& plan = PlanState::Of(*job.plan);
  const uint64_t hit = plan.load.blocks;
  const uint64_t count = std::min<uint64_t>(hit, cache_.classes().residual_blocks());
  if (count == 0 || cache_.classes().has_ladder() || WasErased(job)) return;
  std::vector<BlockId> blocks;
  PerGroup<std::vector<SlotId>> slots;
  for (uint64_t i = hit - count; i < hit; ++i) {
    const bool is_loaded = i >= plan.path.size();
    blocks.push_back(is_loaded ? job.path[i - plan.path.size()] : plan.path[i]);
    for (uint32_t group = 0; group < groups; ++group) {
      slots[group].push_back(is_loaded ? job.slots[i - plan.path.size()][groups + group]
                                       : SlotId::None());
    }
  }
  // Where a resident one went meanwhile there is nothing to add in its place.
  bool all = true;
  LockedState::ForPieces(blocks.size(), [&](size_t begin, size_t end) {
    if (!all) return;
    cache_.With([&](State& state) {
      for (size_t i = begin; i < end; ++i) {
        state.directory.touched().Count(1);
        for (uint32_t group = 0; group < groups; ++group) {
          const bool there = !state.directory.at(blocks[i]).slots[groups + group].is_none();
          all = all && (there || !slots[group][i].is_none());
        }
      }
    });
  });
  if (!all) return;
  verbs_.publishing.KeepTwins(plan.location, blocks, slots);
  LockedState::ForPieces(blocks.size(), [&](size_t begin, size_t end) {
    cache_.With([&](State& state) {
      for (size_t i = begin; i < end; ++i) {
        const SlotId slot = slots[0][i];
        if (slot.is_none() || state.directory.InSlot(slot) != blocks[i]) continue;
        const size_t entry = hit - count + i - plan.path.size();
        NoteLoaded(state, blocks[i], /*twins=*/true, job.durable[entry].twins);
        Offer(state, blocks[i]);
      }
    });
  });
}

// What an erasure overtook may have been written by another member of the domain than the one whose
// slots these are: that they are given back does not zero them.
void Loading::Release(const LoadJob& job, std::span<const SlotId> slots) {
  cache_.ReleaseSlots(slots);
  if (slots.empty() || !WasErased(job) || Planted(Canary::kKeepLoaded)) return;
  verbs_.holds.ZeroIfFree(slots);
}

void Loading::Drop(LoadJob& job) {
  std::vector<SlotId> read;
  for (const PerClass<SlotId>& slots : job.slots) {
    for (const SlotId slot : slots) {
      if (!slot.is_none() && !Planted(Canary::kLeakSlots)) read.push_back(slot);
    }
  }
  if (Planted(Canary::kReleaseTwice)) cache_.ReleaseSlots(read);
  job.slots.clear();
  cache_.ReleaseSlots(std::exchange(job.held, {}));
  Release(job, read);
  const BlockId leased = std::exchange(job.leased, BlockId::None());
  if (!leased.is_none()) cache_.With([&](State& state) { DropLease(state, leased); });
  job.plan.reset();
}

// What came is held by the job until the new plan holds it.
Plan Loading::Take(LoadJob& job) {
  if (PlanState::Of(*job.plan).load.keys.empty()) return *std::exchange(job.plan, std::nullopt);
  PlanState& before = PlanState::Of(*job.plan);
  auto plan = std::make_unique<PlanState>();
  plan->location = before.location;
  plan->prompt_tokens = before.prompt_tokens;
  plan->error_max = before.error_max;
  LoadList failed;
  failed.blocks = before.load.blocks;
  failed.keys = before.load.keys;
  const auto filled = admission_.FillPlan(
      *plan, before.prompt, {.looks_below = false, .failed = &failed, .failure = job.failure});
  QUIRE_CHECK(filled.has_value());  // it asks for no room
  admission_.Count(before, -1);
  // What the ticket's holder computed meanwhile was not found.
  const uint64_t came = plan->resident - std::min(plan->resident, before.resident);
  admission_.Count(*plan, +1, std::min(came, job.computed * cache_.block_tokens()));
  // The first plan was not used: the new one is it.
  before.lease.Release();
  Drop(job);
  return PlanState::Wrap(std::move(plan));
}

}  // namespace quire::cache

namespace quire {

Ticket::Ticket(std::shared_ptr<cache::LoadJob> job) : job_(std::move(job)) {}
Ticket::Ticket(Ticket&&) noexcept = default;
Ticket& Ticket::operator=(Ticket&& other) noexcept {
  if (this != &other) {
    Drop();
    job_ = std::move(other.job_);
  }
  return *this;
}
Ticket::~Ticket() { Drop(); }

void Ticket::Drop() {
  if (job_ == nullptr) return;
  Cancel();
  job_->Await(UINT64_MAX);
  job_->loading.Drop(*job_);
  job_ = nullptr;
}

bool Ticket::IsDone() const { return job_->done; }

LoadProgress Ticket::progress() const {
  const cache::LoadList& load = cache::PlanState::Of(*job_->plan).load;
  const uint64_t end_us =
      job_->done ? job_->end_us.load() : job_->loading.cache().transfers()->NowMicros();
  const uint64_t adopted = job_->adopted;
  const uint64_t block_bytes = load.keys.empty() ? 0 : load.bytes / load.keys.size();
  return {.blocks = load.keys.size(),
          .blocks_ready = job_->blocks_ready + adopted,
          .bytes = load.bytes - adopted * block_bytes,
          .meet_tokens = job_->TokensBefore(job_->unread),
          .layers_ready = job_->arrival != nullptr ? job_->arrival->ready() : 0,
          .elapsed_us = end_us - std::min<uint64_t>(end_us, job_->begin_us)};
}

Plan Ticket::Front(uint64_t tokens) const { return job_->loading.FrontOf(*job_, tokens); }

Result<Plan> Ticket::Arriving() const { return job_->loading.ArrivingOf(*job_); }

void Ticket::Meet(uint64_t tokens) {
  const uint64_t computed = job_->EntriesIn(tokens);
  if (computed <= job_->computed) return;
  job_->computed = computed;
  if (!job_->done) job_->loading.cache().transfers()->Wake();
}

bool Ticket::WaitFor(uint64_t timeout_us) const { return job_->Await(timeout_us); }

void Ticket::Cancel() {
  job_->cancelled = true;
  if (!job_->done) job_->loading.cache().transfers()->Wake();
}

Plan Ticket::Take() {
  job_->Await(UINT64_MAX);
  Plan plan = job_->loading.Take(*job_);
  job_ = nullptr;
  return plan;
}

}  // namespace quire
