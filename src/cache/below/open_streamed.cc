// Opening sequences that stream: they begin with what the store has, and take room for the last
// tokens alone.
#include <fmt/format.h>

#include <algorithm>
#include <new>
#include <optional>
#include <utility>
#include <vector>

#include "base/bits.h"
#include "cache/below/record_reads.h"
#include "cache/below/run_entries.h"
#include "cache/below/sequence_stream.h"
#include "cache/verbs/admit.h"
#include "cache/verbs/hit_length.h"

namespace quire::cache {
namespace {

constexpr size_t kReadsAtOnce = 64;
// Of runs that one group alone wants the rest is read too, and dropped: of so many bytes at a time.
constexpr uint64_t kBesideBytes = uint64_t{16} << 20;
// Each begins before what did not come to the one before; after these it begins with nothing.
constexpr int kOpenAttempts = 4;
// For what memory has and the store is still being given. What does not come is computed again.
constexpr uint64_t kWrittenWaitUs = 1'000'000;

/// A sealed form of a block that has to be in memory, and where.
struct Resident {
  uint64_t block = 0;
  uint32_t group = 0;
  SlotId slot{};
};

/// What a query after the first `blocks` blocks has to have in memory, in the last slots of each
/// class.
std::vector<Resident> ResidentOf(const SlotClasses& classes, uint64_t blocks,
                                 const OwnedSlots& slots) {
  std::vector<Resident> resident;
  for (uint32_t group = 0; group < classes.group_count(); ++group) {
    size_t next = slots[group].size();
    for (uint64_t block = blocks; block > 0; --block) {
      if (!classes.IsNeeded(group, block - 1, blocks * classes.block_tokens())) continue;
      resident.push_back({.block = block - 1, .group = group, .slot = slots[group][--next]});
    }
  }
  std::ranges::sort(resident, {},
                    [](const Resident& each) { return std::pair(each.block, each.group); });
  return resident;
}

/// Adds the next of them, or those of its run where the store has that one; how many.
size_t AddNext(const RecordChain& chain, std::span<const Resident> resident, RecordReads& reads) {
  const RecordShapes& shapes = chain.cache().shapes();
  const Resident& first = resident.front();
  if (!chain.HasRun(first.block)) {
    const SectionRange sections = shapes.sections(first.group);
    const RecordReads::To to{.slot = first.slot,
                             .bytes = chain.cache().classes().slot_bytes(first.group),
                             .sections = sections.count};
    reads.AddBlock(chain, first.block, sections.first, {&to, 1});
    return 1;
  }
  std::vector<PerGroup<SlotId>> slots(shapes.run_blocks());
  size_t count = 0;
  for (; count < resident.size(); ++count) {
    const uint64_t number = resident[count].block - first.block;
    if (number >= slots.size()) break;
    slots[number][resident[count].group] = resident[count].slot;
  }
  std::vector<RecordReads::To> to;
  for (const LayerBytes& layer : shapes.layers()) {
    for (const PerGroup<SlotId>& of_block : slots) {
      to.push_back({.slot = of_block[layer.group],
                    .offset = layer.offset,
                    .bytes = layer.bytes,
                    .sections = 1});
    }
  }
  reads.AddRun(chain, first.block, 0, to);
  return count;
}

PerClass<uint64_t> CountsOf(std::span<const Resident> resident) {
  PerClass<uint64_t> counts{};
  for (const Resident& each : resident) ++counts[each.group];
  return counts;
}

/// Waits until the store has what memory has of the prompt, takes all room, and reads what stays in
/// memory, some records at a time.
class StreamOpening final : public Opening {
 public:
  StreamOpening(const SequenceVerbs& verbs, Plan plan, const SequenceOptions& options,
                const StreamNeeds& needs)
      : verbs_(verbs),
        cache_(verbs.cache),
        options_(options),
        needs_(needs),
        plan_(std::move(plan)),
        location_(state().location),
        prompt_tokens_(state().prompt_tokens),
        asked_(state().missing.front().reason != MissReason::kNotAsked),
        chain_(cache_, location_),
        ends_(*cache_.transfers()),
        reads_(cache_) {
    location_.may_evict = options.on_full != OnFull::kNoEvict;
    hit_ = std::max<uint64_t>(state().load.blocks, state().path.size());
    const std::span<const TokenId> tokens =
        state().prompt.empty() ? std::span(state().resident_tokens) : std::span(state().prompt);
    const uint64_t run_blocks = cache_.shapes().run_blocks();
    const uint64_t blocks = RoundDown(hit_, run_blocks) + run_blocks;
    chain_.Add(tokens.first(std::min<uint64_t>(tokens.size(), blocks * cache_.block_tokens())));
  }

  bool IsDone(uint64_t wait_us) override {
    cache_.transfers()->MoveOn(nullptr);
    if (HasEnded()) return true;
    if (wait_us == 0) return false;
    const transfer::Transfers::Turning here;
    return cache_.transfers()->Await([this] { return HasEnded(); }, wait_us, &here);
  }
  Result<std::unique_ptr<Sequence>> Take() override {
    const transfer::Transfers::Turning here;
    cache_.transfers()->Await([this] { return HasEnded(); }, UINT64_MAX, &here);
    if (failed_) return std::unexpected(*std::move(failed_));
    return MakeSequence();
  }
  /// As far as it goes without waiting; whether all is there.
  Result<bool> GoOn() {
    if (is_there_) return true;
    if (plan_) {
      if (!IsWritten() || !HasSearched()) return false;
      QUIRE_TRY(TakeRoom());
    }
    while (reads_.IsDone()) {
      // All have ended, so only copies to a device are waited for.
      const auto came = reads_.Await(/*cancel=*/nullptr);
      if (!came || *came) {
        const uint64_t failed = came ? (*came)->block : unread_first_;
        const uint64_t there = IsInOther(failed) ? own_ : failed;
        if (IsInOther(failed)) other_.reset();
        BeginWith(++attempts_ == kOpenAttempts ? 0 : there);
      } else if (unread_.empty()) {
        is_there_ = true;
        return true;
      }
      ReadNext();
    }
    return false;
  }

 private:
  const PlanState& state() const { return PlanState::Of(*plan_); }
  bool HasEnded() {
    if (failed_) return true;
    try {
      const Result<bool> is_there = GoOn();
      if (is_there) return *is_there;
      failed_ = is_there.error();
    } catch (const std::bad_alloc&) {
      reads_.Cancel();
      failed_ = {ErrorCode::kNoSpace, "open: the system has no memory left"};
    }
    return true;
  }
  bool IsWritten();
  bool Has(uint64_t blocks);
  bool HasSearched();
  bool IsInOther(uint64_t block) const {
    return other_ && block >= other_->blocks() - cache_.shapes().run_blocks();
  }
  Result<void> TakeRoom();
  void BeginWith(uint64_t blocks);
  void ReadNext();
  Result<std::unique_ptr<Sequence>> MakeSequence();

  const SequenceVerbs& verbs_;
  LockedState& cache_;
  const SequenceOptions options_;
  const StreamNeeds needs_;
  std::optional<Plan> plan_;  // until room is taken
  PublishLocation location_;
  const uint64_t prompt_tokens_;
  const bool asked_;
  RecordChain chain_;      // of the hit, with the keys of all of the run that it ends in
  uint64_t hit_ = 0;       // blocks
  uint64_t there_ = 0;     // of these, from the front on: what it begins with
  uint64_t until_us_ = 0;  // it waits for what is being written; 0: it did not have to yet
  bool is_flushed_ = false;
  std::optional<RunEntrySearch> search_{};  // for a run that goes on as the prompt does
  std::optional<RecordChain> other_{};      // of that run, whose beginning is the prompt's
  uint64_t own_ = 0;                        // there_ without it
  bool is_there_ = false;
  std::optional<Error> failed_{};
  std::unique_ptr<const SlotClasses> classes_{};
  uint64_t blocks_ = 0;  // that it has room for
  Holds::Allocation taken_{};
  OwnedSlots ring_{};
  std::optional<Reservation> states_{};
  std::vector<Resident> resident_{};
  std::span<const Resident> unread_{};  // of these
  uint64_t unread_first_ = 0;           // the first block of those being read
  int attempts_ = 0;
  transfer::Ends ends_;
  RecordReads reads_;  // ends before the slots that it reads into
};

// What the store has of the hit from the front on, in memory or not.
bool StreamOpening::Has(uint64_t blocks) {
  while (there_ < blocks) {
    if (chain_.HasRun(there_)) {
      there_ += cache_.shapes().run_blocks();
      continue;
    }
    if (cache_.transfers()->PresenceOf(chain_.key(there_)) != tier::Presence::kPresent) {
      return false;
    }
    ++there_;
  }
  return true;
}

bool StreamOpening::IsWritten() {
  transfer::Transfers& transfers = *cache_.transfers();
  if (!Has(state().path.size())) {
    if (until_us_ == 0) {
      until_us_ = transfers.NowMicros() + kWrittenWaitUs;
      transfers.FlushAll(ends_, [this](const tier::StoreCompletion&) { is_flushed_ = true; });
    }
    ends_.Run();
    if (!is_flushed_ && transfers.NowMicros() < until_us_) return false;
    transfers.Forget(ends_);
  }
  Has(hit_);
  there_ = std::min(there_, hit_);
  return true;
}

// What follows the hit may be the beginning of a run that goes on in another way.
bool StreamOpening::HasSearched() {
  if (!asked_) return true;
  if (!search_) {
    search_.emplace(chain_, there_, ReusableBlocks(prompt_tokens_, cache_.block_tokens()));
  }
  if (!search_->IsDone()) return false;
  if (auto found = search_->Take()) {
    own_ = there_;
    there_ = found->blocks;
    other_ = std::move(found->chain);
  }
  return true;
}

Result<void> StreamOpening::TakeRoom() {
  plan_.reset();  // it holds nothing of what is in memory already
  search_.reset();
  const uint64_t most = std::max(options_.reserve_tokens, prompt_tokens_);
  const uint64_t tokens = options_.on_full == OnFull::kHalt ? prompt_tokens_ : most;
  blocks_ = DivUp(tokens, uint64_t{cache_.block_tokens()});
  classes_ =
      std::make_unique<const SlotClasses>(cache_.classes().WithResident(options_.resident_tokens));
  PerClass<uint64_t> counts = classes_->OwnSlots(/*shared=*/0, blocks_, options_.step_tokens);
  counts[needs_.slot_class] += needs_.ring_slots;
  auto taken =
      verbs_.holds.Allocate(location_, counts, StreamedMetadata(cache_.classes(), needs_, blocks_));
  if (!taken) {
    taken.error().message = fmt::format("open: to stream {} tokens with {} resident: {}", tokens,
                                        options_.resident_tokens, taken.error().message);
    return std::unexpected(std::move(taken).error());
  }
  taken_ = *std::move(taken);
  PerClass<uint64_t> ring{};
  ring[needs_.slot_class] = needs_.ring_slots;
  ring_ = taken_.slots.Take(ring);
  QUIRE_ASSIGN(auto states,
               Reservation::CreateCommitted(cache_.slots().memory(), needs_.state_bytes));
  states_.emplace(std::move(states));
  BeginWith(there_);
  return {};
}

void StreamOpening::BeginWith(uint64_t blocks) {
  there_ = blocks;
  resident_ = ResidentOf(*classes_, there_, taken_.slots);
  unread_ = resident_;
  reads_.Clear();
}

void StreamOpening::ReadNext() {
  if (unread_.empty()) return;
  unread_first_ = unread_.front().block;
  reads_.Clear();
  const bool on_host = cache_.slots().on_host();  // else they pass through memory of ours
  for (size_t added = 0;
       added < kReadsAtOnce && reads_.beside().size() < kBesideBytes && !unread_.empty();) {
    const bool in_other = IsInOther(unread_.front().block);
    const size_t next = AddNext(in_other ? *other_ : chain_, unread_, reads_);
    unread_ = unread_.subspan(next);
    added += on_host ? 1 : next;
  }
  reads_.Begin();
}

Result<std::unique_ptr<Sequence>> StreamOpening::MakeSequence() {
  chain_.Cut(there_ * cache_.block_tokens());
  BlockList list(cache_.classes().count(), cache_.block_tokens(), /*keeps_tokens=*/false);
  list.Resize(chain_.blocks());
  std::vector<SlotId> held;
  for (const Resident& each : resident_) {
    list.SetSlot(each.group, each.block, each.slot);
    held.push_back(each.slot);
  }
  OwnedSlots in_list = taken_.slots.Take(CountsOf(resident_));
  Lease lease = verbs_.holds.MakeLease(std::move(held));
  in_list.Disown();
  const uint64_t found = chain_.blocks() * cache_.block_tokens();
  const uint64_t front = classes_->first_whole(found);
  const uint64_t rewriting =
      StreamRewrites::IsNeeded(chain_, front) ? StreamRewrites::Bytes(cache_, front) : 0;
  auto stream = std::make_unique<SequenceStream>(
      std::move(chain_), needs_, options_, std::move(ring_),
      taken_.metadata.Split(needs_.metadata_bytes), *std::move(states_));
  if (rewriting > 0) {
    auto paid = verbs_.holds.Allocate(location_, {}, rewriting);
    if (paid) stream->Rewrite(front, std::move(paid->metadata));  // else it stays as it is
  }
  return std::make_unique<SequenceImpl>(verbs_,
                                        SequenceImpl::Start{.location = std::move(location_),
                                                            .prompt_tokens = prompt_tokens_,
                                                            .tokens = found,
                                                            .asked = asked_,
                                                            .blocks = std::move(list),
                                                            .charge = std::move(taken_.metadata),
                                                            .lease = std::move(lease),
                                                            .stream = std::move(stream),
                                                            .classes = std::move(classes_)},
                                        std::move(taken_.slots), blocks_,
                                        cache_.options().tokens_max, options_);
}

}  // namespace

uint64_t StreamedBytes(const SlotClasses& classes, const StreamNeeds& needs, uint64_t blocks,
                       const SequenceOptions& options) {
  const SlotClasses resident = classes.WithResident(options.resident_tokens);
  PerClass<uint64_t> counts = resident.OwnSlots(/*shared=*/0, blocks, options.step_tokens);
  counts[needs.slot_class] += needs.ring_slots;
  return CheckedAdd(resident.Charge(counts), StreamedMetadata(classes, needs, blocks))
      .value_or(UINT64_MAX);
}

// Of the sequence, its list, its keys and tokens, and what reading takes.
uint64_t StreamedMetadata(const SlotClasses& classes, const StreamNeeds& needs, uint64_t blocks) {
  const BlockList list(classes.count(), classes.block_tokens(), /*keeps_tokens=*/false);
  const uint64_t per_block = list.block_bytes() + RecordChain::BlockBytes(classes.block_tokens());
  return SequenceImpl::FixedBytes(classes) + needs.metadata_bytes + blocks * per_block;
}

Result<void> Admission::CheckStreamFits(const PublishLocation& location, const StreamNeeds& needs,
                                        uint64_t tokens, const SequenceOptions& options) {
  const uint64_t blocks = DivUp(tokens, uint64_t{cache_.block_tokens()});
  const uint64_t bytes = StreamedBytes(cache_.classes(), needs, blocks, options);
  const uint64_t most = cache_.With([&](State& state) {
    const Charges& charges = state.accounts.charges();
    const uint64_t bytes_max =
        std::min(charges.ledger().limit_bytes(), charges.account(location.tenant).quota_bytes());
    if (bytes > bytes_max) {
      ++state.counters.refused_total;
      ++state.accounts.counters(location.tenant).refused_total;
    }
    return bytes_max;
  });
  if (bytes > most) {
    return Fail(ErrorCode::kTooLarge,
                fmt::format("open: can never fit: to stream {} tokens with {} resident and steps "
                            "of {} takes {} bytes ({} of these for lane states), and there are {}; "
                            "lower resident_tokens or step_tokens, or raise hot_bytes",
                            tokens, options.resident_tokens, options.step_tokens, bytes,
                            needs.state_bytes, most));
  }
  // The store recycles what was used longest ago, and others write too.
  const uint64_t stored = blocks * cache_.shapes().sealed().record_bytes();
  const auto [quota, ttl_us] = cache_.Look([&](const State& state) {
    const TenantOptions& account = state.accounts.tenants().options(state.account_of(location));
    return std::pair(account.store_quota_bytes, account.ttl_us);
  });
  if (ttl_us != 0) {
    return Fail(ErrorCode::kUnsupported,
                "open: resident_tokens: what a tenant with a ttl computes is kept in memory alone; "
                "use a tenant without one");
  }
  const uint64_t cap = cache_.transfers()->stats().bytes_cap;
  const uint64_t holds = std::min(cap, quota == 0 ? UINT64_MAX : quota) / 4 * 3;
  if (stored <= holds) return {};
  return Fail(ErrorCode::kTooLarge,
              fmt::format("open: to stream {} tokens takes {} bytes of the store, and three "
                          "quarters of its {} are {}; raise its cap (or the tenant's quota there) "
                          "to {}",
                          tokens, stored, quota == 0 || cap < quota ? cap : quota, holds,
                          StoreBytesFor(stored)));
}

Result<std::unique_ptr<Opening>> Admission::BeginOpen(Plan plan, const SequenceOptions& options) {
  PlanState& state = PlanState::Of(plan);
  QUIRE_TRY(CheckLength(state, options));
  if (options.resident_tokens == 0) {
    return Fail(ErrorCode::kInvalidArgument,
                "open: resident_tokens is 0: nothing is waited for, so use Open");
  }
  if (state.arrival != nullptr) {
    return Fail(ErrorCode::kUnsupported, "open: a sequence that streams waits for a load's end");
  }
  const uint64_t most = std::max(options.reserve_tokens, state.prompt_tokens);
  QUIRE_ASSIGN(const StreamNeeds needs, StreamNeedsOf(cache_, options));
  QUIRE_TRY(CheckStreamFits(state.location, needs, most, options));
  auto opening = std::make_unique<StreamOpening>(verbs_, std::move(plan), options, needs);
  QUIRE_TRY(opening->GoOn());
  return opening;
}

}  // namespace quire::cache
