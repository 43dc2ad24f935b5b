// What goes to the store and comes back: bytes are read and checked between holds of the lock.
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/bits.h"
#include "base/canary.h"
#include "base/hash.h"
#include "base/sync_point.h"
#include "cache/below.h"
#include "cache/core.h"
#include "cache/evict.h"
#include "cache/leases.h"
#include "cache/load_job.h"
#include "cache/mover.h"
#include "cache/quarantine.h"

namespace quire::cache {

// Writing.

Core::Backlog Core::backlog() const {
  MutexLock lock(mutex_);
  return {.queued = state_->directory.queued(),
          .lost_total = state_->counters.evicted_unwritten_total};
}

bool Core::WriteNext(const Writer& write) {
  MutexLock one_at_a_time(reading_mutex_);
  const auto block = With([](State& state) { return NextWrite(state); });
  if (!block) return false;
  bool given = false;
  struct EndAtEnd {
    ~EndAtEnd() {
      core.With([&](State& state) { EndReading(state); });
      if (!given) core.EndWrite(form, Below::kNothing, /*again=*/false);
    }
    Core& core;
    const StoredForm& form;
    const bool& given;
  } end{.core = *this, .form = block->form, .given = given};

  PerClass<std::vector<std::byte>> copies;
  Sections sections;
  for (uint32_t c = 0; c < classes_.count(); ++c) {
    const SlotId slot = block->slots[c];
    if (slot.is_none()) continue;
    std::span<const std::byte> bytes = slots_->HostBytes(slot);
    if (bytes.empty()) {
      copies[c].resize(classes_.slot_bytes(c));
      slots_->CopyOut(slot, copies[c].data());
      bytes = copies[c];
    }
    shapes_->Cut(c, bytes, sections.bytes);
  }
  slots_->ops().Synchronize();
  // One pass over the bytes: those of the sections say what the checksum of the slot is.
  for (const auto& bytes : sections.bytes) sections.crcs.push_back(Crc32c(bytes));
  bool same = true;
  for (uint32_t c = 0; c < classes_.count(); ++c) {
    if (block->slots[c].is_none()) continue;
    const auto [first, count] = shapes_->sections(c);
    const auto crcs = std::span<const uint32_t>(sections.crcs).subspan(first, count);
    same = same && shapes_->Join(c, crcs) == block->crcs[c];
  }
  AtSyncPoint("write: a block was read");
  if (same) {
    write(*block, sections);
    given = true;
    return true;
  }
  With([&](State& state) {
    // Unless it went meanwhile.
    const StoredForm& form = block->form;
    if (!state.directory.contains(form.block)) return;
    if (state.directory.at(form.block).key == form.key) {
      Quarantine(state, form.block, BlockState::kDamaged);
    }
  });
  return true;
}

void Core::EndWrite(const StoredForm& form, Below below, bool again) {
  With([&](State& state) { cache::EndWrite(state, form, below, again); });
}

std::vector<StoredForm> Core::TakeUsed() {
  return With([](State& state) { return cache::TakeUsed(state); });
}

void Core::OfferAgain(std::span<const StoredForm> lost) {
  With([&](State& state) { cache::OfferAgain(state, lost); });
}

std::string Core::PublisherName(TenantId tenant) const {
  MutexLock lock(mutex_);
  const TenantId account = state_->accounts.account_of(tenant);
  return account == kDefaultTenant ? std::string() : state_->accounts.options(account).name;
}

// A record says whose account it belongs to, not who of a domain wrote it: when one of them is
// erased, what was loaded counts as written by that one. Returns how many slots that are.
uint64_t Core::DisownLoaded(TenantId erased) {
  uint64_t slots = 0;
  const uint32_t end = With([](State& state) { return state.directory.ids_end(); });
  ForPieces(end, [&](size_t first, size_t last) {
    With([&](State& state) {
      const Slots::Writer gone = {.tenant = erased, .epoch = state.accounts.epoch(erased) - 1};
      for (size_t i = first; i < last; ++i) {
        const BlockId block(static_cast<uint32_t>(i));
        if (!state.directory.contains(block)) continue;
        const BlockRecord& record = state.directory.at(block);
        if (!record.loaded || record.account != state.accounts.account_of(erased)) continue;
        state.directory.SetPublisher(block, gone.tenant, gone.epoch);  // it may have no slot now
        for (const SlotId slot : record.slots) {
          if (slot.is_none()) continue;
          const Slots::Writer writer = state.slots.writer(slot);
          if (writer.epoch != state.accounts.epoch(writer.tenant)) continue;
          state.accounts.CountWritten(writer.tenant, writer.epoch, -1);
          state.slots.Claim(slot, gone);
          state.accounts.CountWritten(gone.tenant, gone.epoch, +1);
          ++slots;
        }
      }
    });
  });
  return slots;
}

// Of a domain everything below went, whoever wrote it. What is left of it in memory is its other
// members', and is written when it is used again.
void Core::WriteAgain(TenantId erased) {
  const uint64_t epoch = mover_->EpochOf(tier::PublisherOf(PublisherName(erased)));
  const uint32_t end = With([](State& state) { return state.directory.ids_end(); });
  ForPieces(end, [&](size_t first, size_t last) {
    With([&](State& state) {
      for (size_t i = first; i < last; ++i) {
        const BlockId block(static_cast<uint32_t>(i));
        if (!state.directory.contains(block)) continue;
        const BlockRecord& record = state.directory.at(block);
        if (record.account != state.accounts.account_of(erased)) continue;
        if (BlockStateOf(state, block) != BlockState::kGood) continue;
        state.directory.SetBelowEpoch(block, epoch);
        for (const bool twins : {false, true}) {
          const Below below = twins ? record.twins_below : record.sealed_below;
          if (below == Below::kDurable) state.directory.SetBelow(block, twins, Below::kNothing);
        }
      }
    });
  });
}

// Looking.

// The keys of blocks that nobody knows are hashed forward from where the tree ends, as long as the
// store has them. Then the hit is counted as if all that were here.
void Core::FindBelow(std::span<const TokenId> prompt, const PublishLocation& location,
                     const FoundPath& path, LoadList& load) const {
  constexpr uint64_t kKeysAtOnce = 32;
  if (!path.bad.empty()) return;  // what stands there is in the way
  const uint64_t known = path.blocks.size();
  const uint64_t reusable = ReusableBlocks(prompt.size(), block_tokens());
  const auto has = [&](uint32_t slot_class, uint64_t block) {
    return block < known && !path.slots[slot_class][block].is_none();
  };
  const uint64_t resident = UsableBlocks(classes_, prompt.size(), known, has).first;
  if (resident == reusable) return;

  std::vector<Digest> beyond;  // keys of blocks [known, ...) that the store has
  std::vector<tier::Presence> present;
  Digest key = path.last_key;
  for (uint64_t wanted = 1; known + beyond.size() < reusable; wanted = kKeysAtOnce) {
    const size_t before = beyond.size();
    const uint64_t count = std::min(wanted, reusable - known - before);
    for (uint64_t i = 0; i < count; ++i) {
      const TokenId* const tokens = &prompt[(known + beyond.size()) * block_tokens()];
      key = ChildKey(*location.domain, key, tokens, block_tokens());
      beyond.push_back(key);
    }
    present.assign(count, tier::Presence::kAbsent);
    mover_->Find(std::span(beyond).subspan(before), present);
    auto absent = std::ranges::find(present, tier::Presence::kAbsent);
    if (Planted(Canary::kTrustChildren)) {
      absent = std::find(present.rbegin(), present.rend(), tier::Presence::kPresent).base();
    }
    beyond.resize(before + static_cast<size_t>(absent - present.begin()));
    if (absent != present.end()) break;
  }
  const auto key_of = [&](uint64_t block) -> const Digest& {
    return block < known ? path.digests[block] : beyond[block - known];
  };
  const auto store_has = [&](const Digest& wanted) {
    tier::Presence presence = tier::Presence::kAbsent;
    mover_->Find({&wanted, 1}, {&presence, 1});
    return presence != tier::Presence::kAbsent;
  };
  // Each block is asked for once, however often the hit's length looks at it.
  enum class Known : uint8_t { kNo, kAbsent, kPresent };
  std::vector<Known> sealed_below(known, Known::kNo);
  std::vector<Known> twins_below(known + beyond.size(), Known::kNo);
  const auto below = [&](uint32_t slot_class, uint64_t block) {
    const bool is_sealed = classes_.is_sealed(slot_class);
    if (is_sealed && block >= known) return true;
    Known& memo = is_sealed ? sealed_below[block] : twins_below[block];
    if (memo == Known::kNo) {
      const bool found = store_has(is_sealed ? key_of(block) : TwinKey(key_of(block)));
      memo = found ? Known::kPresent : Known::kAbsent;
    }
    return memo == Known::kPresent;
  };
  const auto could_have = [&](uint32_t slot_class, uint64_t block) {
    return has(slot_class, block) || below(slot_class, block);
  };
  const uint64_t hit =
      UsableBlocks(classes_, prompt.size(), known + beyond.size(), could_have).first;
  if (hit <= resident) return;

  load.blocks = hit;
  load.tokens = (hit - resident) * block_tokens();
  load.parent_key = resident == 0                                   ? location.root_key
                    : resident - 1 < known && !path.digests.empty() ? path.digests[resident - 1]
                                                                    : path.last_key;
  for (uint64_t i = resident; i < hit; ++i) {
    PerClass<bool>& wanted = load.wanted.emplace_back();
    load.keys.push_back(key_of(i));
    bool any_needed = false;
    for (uint32_t c = 0; c < classes_.count(); ++c) {
      if (!classes_.IsNeeded(c, i, hit * block_tokens())) continue;
      any_needed = any_needed || classes_.is_sealed(c);
      wanted[c] = !has(c, i);
    }
    // Where every layer looks through a window, those after it are found through its bytes.
    for (uint32_t group = 0; group < classes_.group_count() && !any_needed && i >= known; ++group) {
      wanted[group] = true;
    }
    for (uint32_t c = 0; c < classes_.count(); ++c) {
      if (wanted[c]) load.bytes += classes_.slot_bytes(c);
    }
  }
}

// How many blocks of a prompt the account has below under another root: of other weights, or made
// in another way. Roots of other domains lead nowhere, because keys are hashed with the secret.
uint64_t Core::FindElsewhereBelow(std::span<const TokenId> prompt,
                                  const PublishLocation& location) const {
  const auto publisher = tier::PublisherOf(PublisherName(location.tenant));
  for (const tier::RecordRoot& root : mover_->RootsOf(publisher)) {
    if (root.key == location.root_key || root.block_tokens == 0) continue;
    Digest key = root.key;
    uint64_t tokens = 0;
    while (prompt.size() - tokens >= root.block_tokens) {
      key = ChildKey(*location.domain, key, &prompt[tokens], root.block_tokens);
      tier::Presence presence = tier::Presence::kAbsent;
      mover_->Find({&key, 1}, {&presence, 1});
      if (presence == tier::Presence::kAbsent) break;
      tokens += root.block_tokens;
    }
    if (tokens > 0) return DivUp(tokens, uint64_t{block_tokens()});  // the others cost as much
  }
  return 0;
}

// Loading.

RecordWanted LoadJob::WantedAt(size_t i) const {
  const PlanState& state = Core::StateOf(*plan);
  const uint64_t index = state.path.size() + i;
  const uint32_t block_tokens = core.block_tokens();
  return {
      .key = state.load.keys[i],
      .parent_key = i == 0 ? state.load.parent_key : state.load.keys[i - 1],
      .block_index = index,
      .tokens = std::span<const TokenId>(state.prompt).subspan(index * block_tokens, block_tokens)};
}

uint64_t LoadJob::TokensBefore(size_t i) const {
  return (Core::StateOf(*plan).path.size() + i) * core.block_tokens();
}

size_t LoadJob::EntriesIn(uint64_t tokens) const {
  const PlanState& state = Core::StateOf(*plan);
  const uint64_t blocks = tokens / core.block_tokens();
  return std::min(blocks - std::min<uint64_t>(blocks, state.path.size()), state.load.keys.size());
}

Result<Ticket> Core::Load(Plan plan, const LoadOptions& options) {
  const PlanState& state = *plan.state_;
  const LoadList& load = state.load;
  auto job = std::make_shared<LoadJob>(*this, std::move(plan), options);
  if (options.order == LoadOrder::kFromEnd && !loads_from_end()) {
    return Fail(ErrorCode::kUnsupported,
                "load: from the end, but layers have a window, or there are residual tokens");
  }
  job->begin_us = mover_ != nullptr ? mover_->NowMicros() : 0;
  if (load.keys.empty()) {
    job->end_us = job->begin_us;
    job->done = true;
    job->left = true;
    return Ticket(std::move(job));
  }
  PerClass<uint64_t> counts{};
  for (const PerClass<bool>& wanted : load.wanted) {
    for (uint32_t c = 0; c < classes_.count(); ++c) counts[c] += wanted[c] ? 1 : 0;
  }
  auto taken = Allocate(state.location, counts, /*metadata_bytes=*/0);
  if (!taken) {
    taken.error().message = fmt::format("load: {} tokens: {}", load.tokens, taken.error().message);
    return std::unexpected(std::move(taken).error());
  }
  job->slots.resize(load.keys.size());
  job->crcs.resize(load.keys.size());
  job->path.reserve(load.keys.size());
  job->held.reserve(load.keys.size() * classes_.count());
  PerClass<size_t> next{};
  for (size_t i = 0; i < load.keys.size(); ++i) {
    for (uint32_t c = 0; c < classes_.count(); ++c) {
      if (load.wanted[i][c]) job->slots[i][c] = taken->slots[c][next[c]++];
    }
  }
  job->unread = load.keys.size();
  job->publisher = tier::PublisherOf(PublisherName(state.location.tenant));
  if (options.timeout_us != 0) job->deadline_us = job->begin_us + options.timeout_us;
  mover_->Load(job);
  taken->slots.Disown();  // they are the job's
  return Ticket(std::move(job));
}

// All layers see all of a prompt, and nothing but whole blocks.
bool Core::loads_from_end() const {
  return classes_.group_count() == 1 && !classes_.reach(0).windowed() &&
         classes_.residual_blocks() == 0;
}

Plan Core::FrontOf(const LoadJob& job, uint64_t tokens) {
  const PlanState& all = StateOf(*job.plan);
  auto front = std::make_unique<PlanState>();
  front->location = all.location;
  front->resident = all.resident;
  front->prompt_tokens = std::clamp(tokens, all.resident + 1, all.prompt_tokens);
  front->resident_tokens = all.resident_tokens;
  front->path = all.path;
  front->slots = all.slots;
  front->missing.push_back(
      {.reason = MissReason::kNotLoaded, .tokens = front->prompt_tokens - front->resident});
  std::vector<SlotId> held(all.lease.slots_);
  HoldSlots(held);
  front->lease = Lease(this, std::move(held));
  return Plan(std::move(front));
}

bool Core::AdoptComputed(LoadJob& job, size_t count) {
  if (count == 0) return true;
  const PlanState& plan = StateOf(*job.plan);
  const uint64_t blocks = plan.path.size() + count;
  const auto prompt = std::span<const TokenId>(plan.prompt).first(blocks * block_tokens() + 1);
  FoundPath path = FindPath(prompt, plan.location);
  CutToHit(classes_, prompt.size(), path);
  if (path.blocks.size() < blocks) return false;
  // Once they are held nothing may fail.
  job.path.assign(path.blocks.begin() + static_cast<ptrdiff_t>(plan.path.size()),
                  path.blocks.end());
  job.path.reserve(plan.load.keys.size());
  job.held.reserve((blocks + plan.load.keys.size()) * classes_.count());
  return LeasePath(path, job.held);
}

size_t Core::AttachLoaded(LoadJob& job, size_t first, size_t count) {
  // What was erased since is on its way nowhere.
  const uint64_t epoch = mover_->EpochOf(job.publisher);
  if (epoch != StateOf(*job.plan).location.below_epoch) return 0;
  const auto is_loaded = [&](size_t i) {
    const auto groups = std::span(job.slots[i]).first(classes_.group_count());
    return std::ranges::any_of(groups, [](SlotId slot) { return !slot.is_none(); });
  };
  // A block of which nothing was loaded is held by nobody until it is leased, so it ends a run.
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

size_t Core::AttachRun(LoadJob& job, size_t first, size_t count) {
  const PlanState& plan = StateOf(*job.plan);
  std::vector<NewBlock> blocks;
  for (size_t i = first; i < first + count; ++i) {
    NewBlock& block = blocks.emplace_back(NewBlock{.tokens = job.WantedAt(i).tokens});
    for (uint32_t group = 0; group < classes_.group_count(); ++group) {
      block.slots[group] = job.slots[i][group];
    }
    block.crcs = &job.crcs[i];
  }
  if (first > 0) {
    blocks[0].parent = job.path.back();
  } else if (!plan.path.empty()) {
    blocks[0].parent = plan.path.back();
  }
  std::vector<Published> answers;
  std::vector<SlotId> spare;
  spare.reserve(count * classes_.group_count());  // once others know of them nothing may fail
  Publish(plan.location, blocks, answers);
  size_t attached = 0;
  for (; attached < answers.size() && !answers[attached].block.is_none(); ++attached) {
    const Published& answer = answers[attached];
    job.path.push_back(answer.block);
    for (uint32_t group = 0; group < classes_.group_count(); ++group) {
      SlotId& own = job.slots[first + attached][group];
      if (!own.is_none() && own != answer.slots[group]) spare.push_back(own);
      own = SlotId::None();
      if (!answer.slots[group].is_none()) job.held.push_back(answer.slots[group]);
    }
  }
  ReleaseSlots(spare);
  if (attached == 0) return 0;
  const LoadList& load = plan.load;
  With([&](State& state) {
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
    for (size_t i = first; i < first + attached; ++i) {
      const auto sealed = std::span(load.wanted[i]).first(classes_.group_count());
      if (std::ranges::none_of(sealed, [](bool wanted) { return wanted; })) continue;
      const BlockId block = job.path[i];
      state.directory.SetLoaded(block);
      state.directory.SetBelow(block, /*twins=*/false, Below::kDurable);
      state.directory.Unqueue(block);
      Offer(state, block);  // its twins may have to be written still
      ++state.counters.loaded_total;
    }
  });
  return attached;
}

void Core::AttachTwins(LoadJob& job) {
  const uint32_t groups = classes_.group_count();
  const PlanState& plan = StateOf(*job.plan);
  const uint64_t hit = plan.load.blocks;
  const uint64_t count = std::min<uint64_t>(hit, classes_.residual_blocks());
  if (count == 0 || mover_->EpochOf(job.publisher) != plan.location.below_epoch) return;
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
  const bool all = With([&](State& state) {
    for (size_t i = 0; i < blocks.size(); ++i) {
      for (uint32_t group = 0; group < groups; ++group) {
        const bool there = !state.directory.at(blocks[i]).slots[groups + group].is_none();
        if (!there && slots[group][i].is_none()) return false;
      }
    }
    return true;
  });
  if (!all) return;
  KeepTwins(plan.location, blocks, slots);
  With([&](State& state) {
    for (size_t i = 0; i < blocks.size(); ++i) {
      const SlotId slot = slots[0][i];
      if (slot.is_none() || state.directory.InSlot(slot) != blocks[i]) continue;
      state.directory.SetLoaded(blocks[i]);
      state.directory.SetBelow(blocks[i], /*twins=*/true, Below::kDurable);
      state.directory.Unqueue(blocks[i]);
    }
  });
}

void Core::DropLoad(LoadJob& job) {
  std::vector<SlotId> held = std::move(job.held);
  for (const PerClass<SlotId>& slots : job.slots) {
    for (const SlotId slot : slots) {
      if (!slot.is_none() && !Planted(Canary::kLeakSlots)) held.push_back(slot);
    }
  }
  if (Planted(Canary::kReleaseTwice)) ReleaseSlots(held);
  job.slots.clear();
  job.held.clear();
  ReleaseSlots(held);
  const BlockId leased = std::exchange(job.leased, BlockId::None());
  if (!leased.is_none()) With([&](State& state) { DropLease(state, leased); });
  job.plan.reset();
}

// What came is held by the job until the new plan holds it.
Plan Core::TakeLoaded(LoadJob& job) {
  if (StateOf(*job.plan).load.keys.empty()) return *std::exchange(job.plan, std::nullopt);
  PlanState& before = *job.plan->state_;
  auto plan = std::make_unique<PlanState>();
  plan->location = before.location;
  plan->prompt_tokens = before.prompt_tokens;
  LoadList failed;
  failed.blocks = before.load.blocks;
  failed.keys = before.load.keys;
  const auto filled = FillPlan(*plan, before.prompt,
                               {.looks_below = false, .failed = &failed, .failure = job.failure});
  QUIRE_CHECK(filled.has_value());  // it asks for no room
  Count(before, -1);
  // What the ticket's holder computed meanwhile was found by nobody.
  const uint64_t came = plan->resident - std::min(plan->resident, before.resident);
  Count(*plan, +1, std::min(came, job.computed * block_tokens()));
  // Nobody used the first plan: the new one is it.
  ReleaseSlots(before.lease.slots_);
  Disarm(before.lease);
  DropLoad(job);
  return Plan(std::move(plan));
}

bool Core::Await(const LoadJob& job, uint64_t timeout_us) {
  return job.core.mover_->Await(job, timeout_us);
}

void Core::Wake(const LoadJob& job) { job.core.mover_->Wake(); }

uint64_t Core::NowOf(const LoadJob& job) { return job.core.mover_->NowMicros(); }

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
  if (!job_->left) cache::Core::Await(*job_, UINT64_MAX);
  job_->core.DropLoad(*job_);
  job_ = nullptr;
}

bool Ticket::IsDone() const { return job_->done; }

LoadProgress Ticket::progress() const {
  const cache::LoadList& load = cache::Core::StateOf(*job_->plan).load;
  const uint64_t end_us = job_->done ? job_->end_us.load() : cache::Core::NowOf(*job_);
  return {.blocks = load.keys.size(),
          .blocks_ready = job_->blocks_ready,
          .bytes = load.bytes,
          .meet_tokens = job_->TokensBefore(job_->unread),
          .elapsed_us = end_us - job_->begin_us};
}

Plan Ticket::Front(uint64_t tokens) const { return job_->core.FrontOf(*job_, tokens); }

void Ticket::Meet(uint64_t tokens) {
  const uint64_t computed = job_->EntriesIn(tokens);
  if (computed <= job_->computed) return;
  job_->computed = computed;
  if (!job_->done) cache::Core::Wake(*job_);
}

bool Ticket::WaitFor(uint64_t timeout_us) const {
  return job_->left || cache::Core::Await(*job_, timeout_us);
}

void Ticket::Cancel() {
  job_->cancelled = true;
  if (!job_->done) cache::Core::Wake(*job_);
}

Plan Ticket::Take() {
  if (!job_->left) cache::Core::Await(*job_, UINT64_MAX);
  Plan plan = job_->core.TakeLoaded(*job_);
  job_ = nullptr;
  return plan;
}

}  // namespace quire
