// Plans, sequences and the room they need: everything is checked before anything is taken.
#include <fmt/format.h>

#include <utility>

#include "base/bits.h"
#include "cache/core.h"
#include "cache/hit_length.h"
#include "cache/sequence_impl.h"

namespace quire {

std::string_view MissReasonName(MissReason reason) {
  switch (reason) {
    case MissReason::kNeverSeen: return "never_seen";
    case MissReason::kPartialBlock: return "partial_block";
    case MissReason::kDamaged: return "damaged";
    case MissReason::kNotAsked: return "not_asked";
    case MissReason::kWindowPassed: return "window_passed";
  }
  return "unknown";
}

Plan::Plan(std::unique_ptr<cache::PlanState> state) : state_(std::move(state)) {}
Plan::Plan(Plan&&) noexcept = default;
Plan& Plan::operator=(Plan&&) noexcept = default;
Plan::~Plan() = default;

uint64_t Plan::resident_tokens() const { return state_->resident; }
uint64_t Plan::missing_tokens() const { return state_->prompt_tokens - resident_tokens(); }
MissReason Plan::reason() const { return state_->reason; }

namespace cache {

Result<Plan> Core::Acquire(const AcquireRequest& request) {
  if (request.identity == nullptr) {
    return Fail(ErrorCode::kInvalidArgument, "acquire: no identity");
  }
  const uint64_t tokens = request.tokens.size();
  if (tokens == 0) return Fail(ErrorCode::kInvalidArgument, "acquire: the prompt has no tokens");
  if (tokens > options_.tokens_max) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("acquire: a prompt of {} tokens is over the limit of {} (tokens_max)",
                            tokens, options_.tokens_max));
  }

  auto state = std::make_unique<PlanState>();
  state->prompt_tokens = tokens;
  state->place.root_key = RootKey(*request.identity, options_.geometry, options_.profile);
  state->place.domain = std::make_shared<const Domain>(request.identity->domain);
  std::vector<SlotId> held;
  {
    MutexLock lock(mutex_);
    ++counters_.lookups;
    counters_.lookup_tokens += tokens;
    state->reason = request.reuse ? FindPath(request.tokens, *state) : MissReason::kNotAsked;
    const uint64_t blocks = state->path.size();
    state->resident = blocks * block_tokens();
    counters_.hit_tokens += state->resident;
    for (uint64_t i = 0; i < blocks; ++i) {
      const BlockRecord& record = blocks_.at(state->path[i]);
      for (uint32_t part = 0; part < layout_.part_count(); ++part) {
        const Reach& reach = reaches_[part];
        const bool needed = i < reach.sink_blocks() || i >= reach.first_needed(state->resident);
        state->slots[part].push_back(needed ? record.slots[part] : SlotId::None());
        if (needed) held.push_back(record.slots[part]);
      }
    }
    for (const SlotId slot : held) HoldSlot(slot);
  }
  const auto resident_tokens = request.tokens.first(state->resident);
  state->resident_tokens.assign(resident_tokens.begin(), resident_tokens.end());
  state->lease = Lease(this, std::move(held));
  return Plan(std::move(state));
}

MissReason Core::FindPath(std::span<const TokenId> prompt, PlanState& state) {
  const uint64_t reusable = ReusableBlocks(prompt.size(), block_tokens());
  const auto root = index_.FindRoot(state.place.root_key);
  if (root) index_.Find(*root, prompt.first(reusable * block_tokens()), state.path);
  auto reason = state.path.size() >= reusable ? MissReason::kPartialBlock : MissReason::kNeverSeen;
  for (size_t i = 0; i < state.path.size(); ++i) {
    const Standing standing = blocks_.at(state.path[i]).standing;
    if (standing == Standing::kGood) continue;
    state.path.resize(i);
    reason = standing == Standing::kDamaged ? MissReason::kDamaged : MissReason::kWindowPassed;
    break;
  }
  BlockTable* const blocks = &blocks_;  // HitBlocks calls back while the lock is held
  const uint64_t hit =
      HitBlocks(prompt.size(), block_tokens(), state.path.size(),
                reaches().first(layout_.part_count()), [&](uint32_t part, uint64_t block) {
                  return !blocks->at(state.path[block]).slots[part].is_none();
                });
  if (hit < state.path.size()) reason = MissReason::kWindowPassed;
  state.path.resize(hit);
  return reason;
}

Result<std::unique_ptr<Sequence>> Core::Open(Plan plan, const SequenceOptions& options) {
  PlanState& state = *plan.state_;
  const uint64_t wanted = std::max(options.reserve_tokens, state.prompt_tokens);
  if (wanted > options_.tokens_max) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("open: {} tokens are over the limit of {} (tokens_max)", wanted,
                            options_.tokens_max));
  }
  if (options.contiguous) QUIRE_TRY(CheckContiguous(state.resident));
  const uint64_t shared = state.path.size();
  const uint64_t blocks_wanted = DivUp(wanted, block_tokens());
  const uint64_t reserve = options.on_full == OnFull::kReject ? wanted : state.prompt_tokens;
  // With kHalt the output may never fit; the prompt must.
  const uint64_t blocks = DivUp(reserve, block_tokens());
  PerClass<uint64_t> own{};
  uint64_t bytes_in_all = 0;  // the sequence's, when nothing else is there
  for (uint32_t c = 0; c < class_count(); ++c) {
    const uint64_t live = reaches_[c].blocks_max(options.step_tokens);
    own[c] = std::min(blocks - shared, live);
    bytes_in_all += std::min(blocks, live) * charges_[c];
  }
  if (bytes_in_all > ledger_.limit_bytes()) {
    MutexLock lock(mutex_);
    ++counters_.refused_total;
    return Fail(
        ErrorCode::kNoSpace,
        fmt::format("open: can never fit: {} tokens need {} blocks, hot_bytes {} holds {}", reserve,
                    blocks, options_.hot_bytes, ledger_.limit_bytes() / (bytes_in_all / blocks)));
  }
  auto slots = options.contiguous ? AllocateRun(own[0]) : AllocateSlots(own);
  if (!slots) {
    Error error = std::move(slots).error();
    error.message = fmt::format("open: {} tokens need {} shared and {} own blocks of {}; {}",
                                reserve, shared, blocks - shared, blocks_wanted, error.message);
    return std::unexpected(std::move(error));
  }
  return std::make_unique<SequenceImpl>(*this, std::move(state), *std::move(slots), blocks,
                                        options);
}

Result<PerClass<std::vector<SlotId>>> Core::AllocateSlots(const PerClass<uint64_t>& counts) {
  PerClass<std::vector<SlotId>> slots;
  uint64_t bytes = 0;
  for (uint32_t c = 0; c < class_count(); ++c) {
    const auto added = CheckedProduct(counts[c], charges_[c]);
    bytes = added && *added <= UINT64_MAX - bytes ? bytes + *added : UINT64_MAX;
  }
  if (bytes == 0) return slots;
  MutexLock lock(mutex_);
  if (bytes > ledger_.available_bytes() + evictable_bytes_) {
    ++counters_.refused_total;
    return Fail(ErrorCode::kNoSpace, RoomMessage(counts));
  }
  for (uint32_t c = 0; c < class_count(); ++c) slots[c].resize(counts[c]);
  while (ledger_.available_bytes() < bytes) EvictOne();
  // Each pool has as many slots as the budget can pay for, so it has room when the ledger has.
  QUIRE_CHECK(ledger_.TryCharge(bytes));
  for (uint32_t c = 0; c < class_count(); ++c) {
    QUIRE_CHECK(pools_[c]->Allocate(slots[c]));
    for (SlotId& slot : slots[c]) slot = Global(c, slot);
  }
  return slots;
}

Result<void> Core::CheckContiguous(uint64_t resident_tokens) const {
  if (options_.placement == Placement::kFreeList) {
    return Fail(ErrorCode::kUnsupported,
                "open: contiguous needs a cache with placement first_fit, "
                "best_fit or buddy; this one has free_list");
  }
  if (class_count() > 1 || reaches_[0].windowed()) {
    return Fail(ErrorCode::kUnsupported,
                "open: contiguous: the model has layers with a window, or the codec encodes");
  }
  if (resident_tokens > 0) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("open: contiguous with a plan that shares {} tokens; acquire it with "
                            "reuse = false",
                            resident_tokens));
  }
  return {};
}

Result<PerClass<std::vector<SlotId>>> Core::AllocateRun(uint64_t count) {
  PerClass<std::vector<SlotId>> slots;
  QUIRE_TRY(ExtendRun(slots[0], count));
  return slots;
}

Result<void> Core::ExtendRun(std::vector<SlotId>& slots, uint64_t count) {
  if (count == 0) return {};
  MutexLock lock(mutex_);
  const auto charge = CheckedMul(count, charges_[0]);
  if (!charge || !ledger_.TryCharge(*charge)) {
    ++counters_.refused_total;
    return Fail(ErrorCode::kNoSpace,
                fmt::format("{} more consecutive blocks needed, {} bytes of {} (hot_bytes) free",
                            count, ledger_.available_bytes(), options_.hot_bytes));
  }
  pool::SlotRun run;
  Result<void> taken;
  if (slots.empty()) {
    auto first = pools_[0]->AllocateRun(static_cast<uint32_t>(count));
    if (first) run = *first;
    if (!first) taken = std::unexpected(std::move(first).error());
  } else {
    run = {.first = slots.front(), .count = static_cast<uint32_t>(slots.size())};
    taken = pools_[0]->GrowRun(run, static_cast<uint32_t>(slots.size() + count));
  }
  if (!taken) {
    ledger_.Refund(*charge);
    ++counters_.refused_total;
    return taken;
  }
  while (slots.size() < run.count) slots.push_back(run.slot(static_cast<uint32_t>(slots.size())));
  return {};
}

std::string Core::RoomMessage(const PerClass<uint64_t>& counts) const {
  const uint64_t bytes = ledger_.available_bytes() + evictable_bytes_;
  if (class_count() == 1) {
    return fmt::format("{} blocks needed, {} free or evictable of {} (hot_bytes {})", counts[0],
                       bytes / charges_[0], pools_[0]->slots_max(), options_.hot_bytes);
  }
  std::string needed;
  for (uint32_t c = 0; c < class_count(); ++c) {
    if (counts[c] == 0) continue;
    const uint32_t part = c % layout_.part_count();
    needed += fmt::format("{}{} {} blocks{}", needed.empty() ? "" : ", ", counts[c],
                          c == part ? "sealed" : "open",
                          reaches_[part].windowed() ? " of layers with a window" : "");
  }
  return fmt::format("{} needed, {} bytes free or evictable of {} (hot_bytes)", needed, bytes,
                     options_.hot_bytes);
}

}  // namespace cache
}  // namespace quire
