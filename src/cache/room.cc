// The room that sequences need: everything is checked before anything is taken.
#include <fmt/format.h>

#include <utility>

#include "base/bits.h"
#include "cache/core.h"

namespace quire::cache {

uint64_t Core::Charge(const PerClass<uint64_t>& counts) const {
  uint64_t bytes = 0;
  for (uint32_t c = 0; c < class_count(); ++c) {
    const auto added = CheckedProduct(counts[c], charges_[c]);
    bytes = added && *added <= UINT64_MAX - bytes ? bytes + *added : UINT64_MAX;
  }
  return bytes;
}

// A sequence of `tokens` tokens alone in the cache, and alone in its tenant's quota.
Result<void> Core::CheckCanFit(const Place& place, uint64_t tokens, uint64_t blocks,
                               uint64_t step_tokens, uint64_t metadata_bytes) {
  const uint64_t bytes =
      CheckedAdd(Charge(OwnSlots(0, blocks, step_tokens)), metadata_bytes).value_or(UINT64_MAX);
  return mutex_.Run([&]() QUIRE_REQUIRES(mutex_) -> Result<void> {
    Tenant& tenant = TenantOf(place.tenant);
    const uint64_t limit_bytes = ledger_.limit_bytes();
    if (bytes <= std::min(limit_bytes, tenant.account.quota_bytes())) return {};
    ++counters_.refused_total;
    ++tenant.stats.refused_total;
    if (bytes > limit_bytes) {
      return Fail(
          ErrorCode::kTooLarge,
          fmt::format("open: can never fit: {} tokens need {} blocks, hot_bytes {} holds {}",
                      tokens, blocks, room_.hot_bytes, limit_bytes / (bytes / blocks)));
    }
    return Fail(ErrorCode::kTooLarge,
                fmt::format("open: can never fit: {} tokens need {} bytes, the quota of tenant "
                            "\"{}\" is {}",
                            tokens, bytes, tenant.options.name, tenant.account.quota_bytes()));
  });
}

Result<OwnedSlots> Core::AllocateSlots(const Place& place, const PerClass<uint64_t>& counts) {
  QUIRE_ASSIGN(Allocation allocation, Allocate(place, counts, 0));
  return std::move(allocation.slots);
}

Result<Core::Allocation> Core::Allocate(const Place& place, const PerClass<uint64_t>& counts,
                                        uint64_t metadata_bytes) {
  const uint64_t bytes = CheckedAdd(Charge(counts), metadata_bytes).value_or(UINT64_MAX);
  if (bytes == 0) return Allocation();
  PerClass<std::vector<SlotId>> slots;
  std::vector<SlotId> to_zero;
  Leaving leaving(*this);
  auto taken = mutex_.Run([&]() QUIRE_REQUIRES(mutex_) {
    auto room = MakeRoom(place, bytes, leaving);
    uint64_t total = 0;
    for (uint32_t c = 0; room && c < class_count(); ++c) {
      slots[c].resize(counts[c]);
      total += counts[c];
    }
    to_zero.reserve(total);
    if (room && leaving.empty()) room = TakeSlots(place, bytes, metadata_bytes, slots, to_zero);
    if (room && !leaving.empty() && !Promise(place, bytes, leaving)) {
      room = Fail(ErrorCode::kNoSpace, "");
    }
    if (!room) CountRefusal(place, counts, room.error());
    return room;
  });
  if (!leaving.empty()) {
    Offer(leaving);
    mutex_.Run([&]() QUIRE_REQUIRES(mutex_) {
      LetGo(leaving);
      if (!taken) return;
      taken = TakeSlots(place, bytes, metadata_bytes, slots, to_zero);
      if (!taken) CountRefusal(place, counts, taken.error());
    });
  }
  QUIRE_TRY(std::move(taken));
  for (const SlotId slot : to_zero) Zero(slot);
  return Allocation{OwnedSlots(*this, std::move(slots)),
                    MetadataCharge(*this, place.tenant, metadata_bytes)};
}

// Fills `slots`, which have their sizes. There is room but for what others may have taken of a
// shared budget meanwhile.
Result<void> Core::TakeSlots(const Place& place, uint64_t bytes, uint64_t metadata_bytes,
                             PerClass<std::vector<SlotId>>& slots, std::vector<SlotId>& to_zero) {
  if (!ledger_.TryCharge(bytes)) return Fail(ErrorCode::kNoSpace, "");
  // Each pool has as many slots as the budget can pay for, so it has room when the ledger has.
  for (uint32_t c = 0; c < class_count(); ++c) {
    QUIRE_CHECK(pools_[c]->Allocate(slots[c]));
    for (SlotId& slot : slots[c]) slot = Global(c, slot);
  }
  AddOwners(slots, bytes);
  for (const std::vector<SlotId>& of_class : slots) Claim(place, of_class, to_zero);
  TenantOf(place.tenant).account.Charge(metadata_bytes);
  sequence_bytes_ += metadata_bytes;
  return {};
}

void Core::RefundMetadata(TenantId tenant, uint64_t bytes) {
  mutex_.Run([&]() QUIRE_REQUIRES(mutex_) {
    TenantOf(tenant).account.Refund(bytes);
    ledger_.Refund(bytes);
    sequence_bytes_ -= bytes;
  });
}

MetadataCharge& MetadataCharge::operator=(MetadataCharge&& other) noexcept {
  if (this != &other) {
    Refund();
    core_ = other.core_;
    tenant_ = other.tenant_;
    bytes_ = std::exchange(other.bytes_, 0);
  }
  return *this;
}

MetadataCharge MetadataCharge::Split(uint64_t bytes) {
  if (core_ == nullptr) return {};
  const uint64_t taken = std::min(bytes, bytes_);
  bytes_ -= taken;
  return {*core_, tenant_, taken};
}

void MetadataCharge::Add(MetadataCharge more) {
  if (bytes_ == 0) {
    *this = std::move(more);
    return;
  }
  bytes_ += std::exchange(more.bytes_, 0);
}

void MetadataCharge::Refund() {
  if (const uint64_t bytes = std::exchange(bytes_, 0); bytes > 0) {
    core_->RefundMetadata(tenant_, bytes);
  }
}

// An error without a message is the budget's.
void Core::CountRefusal(const Place& place, const PerClass<uint64_t>& counts, Error& error) {
  ++counters_.refused_total;
  ++TenantOf(place.tenant).stats.refused_total;
  if (error.message.empty()) error.message = RoomMessage(place, counts);
}

// Most bytes that could be taken for a place now.
uint64_t Core::RoomBytes(const Place& place) const {
  const Tenant& tenant = TenantOf(place.tenant);
  const uint64_t quota_bytes = tenant.account.room_bytes();
  const uint64_t free_bytes = ledger_.available_bytes();
  if (!place.may_evict) return std::min(quota_bytes, free_bytes);
  const uint64_t own_bytes = std::min(UINT64_MAX - quota_bytes, tenant.evictable_bytes);
  return std::min(quota_bytes + own_bytes, free_bytes + EvictableFor(&tenant));
}

uint64_t Core::RoomWanted(evict::BatchSize& batch, uint64_t needed, uint64_t unused,
                          uint64_t capacity) const {
  if (options_.eviction_batch == EvictionBatch::kExact) return needed;
  return std::max(needed, unused + batch.Next(needed, unused, capacity));
}

// Whether `bytes` more fit into the tenant's quota and into the budget, when all that may go for
// them has gone. An empty message: it is the budget.
Result<void> Core::CheckRoom(const Place& place, uint64_t bytes) const {
  const Tenant& tenant = TenantOf(place.tenant);
  const quota::Account& account = tenant.account;
  const uint64_t own_bytes = place.may_evict ? tenant.evictable_bytes : 0;
  if (bytes - std::min(bytes, account.room_bytes()) > own_bytes) {
    return Fail(ErrorCode::kNoSpace,
                fmt::format("{} bytes needed, the quota of tenant \"{}\" is {}, of which {} are "
                            "free or evictable",
                            bytes, tenant.options.name, account.quota_bytes(),
                            account.room_bytes() + own_bytes));
  }
  if (bytes > RoomBytes(place)) return Fail(ErrorCode::kNoSpace, "");
  return {};
}

// Evicts until `bytes` more fit; nothing if they never will. What is leaving counts as free. Errors
// as CheckRoom.
Result<void> Core::MakeRoom(const Place& place, uint64_t bytes, Leaving& leaving) {
  LetTimePass();
  QUIRE_TRY(CheckRoom(place, bytes));
  if (!place.may_evict) return {};
  Tenant& tenant = TenantOf(place.tenant);
  const quota::Account& account = tenant.account;
  Leaving* const offered = place.spill ? &leaving : nullptr;
  const uint64_t of_quota =
      RoomWanted(tenant.batch, bytes, account.room_bytes(), account.quota_bytes());
  while (account.room_bytes() < of_quota) {
    const auto victim = VictimOf(tenant);
    if (!victim) break;
    EvictVictim(*victim, MissReason::kQuota, offered);
  }
  const auto free_bytes = [&] { return ledger_.available_bytes() + leaving.bytes(); };
  const uint64_t of_budget = RoomWanted(batch_, bytes, free_bytes(), ledger_.limit_bytes());
  while (free_bytes() < of_budget) {
    const auto victim = VictimFor(&tenant);
    if (!victim) break;
    EvictVictim(*victim, MissReason::kEvicted, offered);
  }
  return {};
}

PerClass<uint64_t> Core::OwnSlots(uint64_t shared, uint64_t blocks, uint64_t step_tokens) const {
  PerClass<uint64_t> own{};
  for (uint32_t c = 0; c < class_count(); ++c) {
    own[c] = std::min(blocks - shared, reaches_[c].blocks_max(step_tokens));
  }
  return own;
}

// The most of `blocks` that there is room for now, at least those of the prompt.
uint64_t Core::FittingBlocks(const PlanState& state, uint64_t blocks,
                             const SequenceOptions& options) {
  const uint64_t shared = state.path.size();
  MutexLock lock(mutex_);
  const uint64_t room_bytes = RoomBytes(state.place);
  uint64_t fits = DivUp(state.prompt_tokens, uint64_t{block_tokens()});
  while (fits < blocks) {
    const uint64_t middle = fits + (blocks - fits + 1) / 2;
    const uint64_t slot_bytes = Charge(OwnSlots(shared, middle, options.step_tokens));
    const auto bytes = CheckedAdd(slot_bytes, SequenceBytes(shared, middle, options));
    if (bytes && *bytes <= room_bytes) {
      fits = middle;
    } else {
      blocks = middle - 1;
    }
  }
  return fits;
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

Result<OwnedSlots> Core::ExtendRun(const Place& place, std::span<const SlotId> run,
                                   uint64_t count) {
  if (count == 0) return OwnedSlots();
  PerClass<std::vector<SlotId>> added;
  std::vector<SlotId> to_zero;
  QUIRE_TRY(TakeRun(place, run, count, added, to_zero));
  for (const SlotId slot : to_zero) Zero(slot);
  return OwnedSlots(*this, std::move(added));
}

Result<void> Core::TakeRun(const Place& place, std::span<const SlotId> run, uint64_t count,
                           PerClass<std::vector<SlotId>>& added, std::vector<SlotId>& to_zero) {
  MutexLock lock(mutex_);
  Tenant& tenant = TenantOf(place.tenant);
  const auto charge = CheckedMul(count, charges_[0]);
  if (charge && *charge > tenant.account.room_bytes()) {
    ++counters_.refused_total;
    ++tenant.stats.refused_total;
    return Fail(ErrorCode::kNoSpace,
                fmt::format("{} more consecutive blocks needed, {} bytes of {} (quota of tenant "
                            "\"{}\") free",
                            count, tenant.account.room_bytes(), tenant.account.quota_bytes(),
                            tenant.options.name));
  }
  const bool fits = charge && *charge <= ledger_.available_bytes();
  if (fits) {  // memory for the lists before anything is taken
    added[0].reserve(count);
    to_zero.reserve(count);
  }
  if (!fits || !ledger_.TryCharge(*charge)) {
    ++counters_.refused_total;
    ++tenant.stats.refused_total;
    return Fail(ErrorCode::kNoSpace,
                fmt::format("{} more consecutive blocks needed, {} bytes of {} (hot_bytes) free",
                            count, ledger_.available_bytes(), room_.hot_bytes));
  }
  pool::SlotRun whole;
  Result<void> taken;
  if (run.empty()) {
    auto first = pools_[0]->AllocateRun(static_cast<uint32_t>(count));
    if (first) whole = *first;
    if (!first) taken = std::unexpected(std::move(first).error());
  } else {
    whole = {.first = run.front(), .count = static_cast<uint32_t>(run.size())};
    taken = pools_[0]->GrowRun(whole, static_cast<uint32_t>(run.size() + count));
  }
  if (!taken) {
    ledger_.Refund(*charge);
    ++counters_.refused_total;
    ++tenant.stats.refused_total;
    return std::unexpected(std::move(taken).error());
  }
  for (auto i = static_cast<uint32_t>(run.size()); i < whole.count; ++i) {
    added[0].push_back(whole.slot(i));
  }
  AddOwners(added, *charge);
  Claim(place, added[0], to_zero);
  return {};
}

std::string Core::RoomMessage(const Place& place, const PerClass<uint64_t>& counts) const {
  const uint64_t bytes = RoomBytes(place);
  const std::string_view kind = place.may_evict ? "free or evictable" : "free";
  if (counts == PerClass<uint64_t>{}) {
    return fmt::format("bookkeeping of a sequence needed, {} bytes {} of {} (hot_bytes)", bytes,
                       kind, room_.hot_bytes);
  }
  if (class_count() == 1) {
    return fmt::format("{} blocks needed, {} {} of {} (hot_bytes {})", counts[0],
                       bytes / charges_[0], kind, room_.slots[0], room_.hot_bytes);
  }
  std::string needed;
  for (uint32_t c = 0; c < class_count(); ++c) {
    if (counts[c] == 0) continue;
    const uint32_t part = c % layout_.part_count();
    needed += fmt::format("{}{} {} blocks{}", needed.empty() ? "" : ", ", counts[c],
                          c == part ? "sealed" : "open",
                          reaches_[part].windowed() ? " of layers with a window" : "");
  }
  return fmt::format("{} needed, {} bytes {} of {} (hot_bytes)", needed, bytes, kind,
                     room_.hot_bytes);
}

}  // namespace quire::cache
