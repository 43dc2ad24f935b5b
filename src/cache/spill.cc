// Offering what leaves to the spill. A victim leaves the index at once, under the lock, exactly as
// when it is only evicted; but its slots stay charged to the budget until the spill has answered,
// and what the request needs besides is promised to it. So nobody can read, write, move or lease
// those slots meanwhile, nobody can take the room, and what was decided at first cannot fail later.
#include <algorithm>
#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "cache/core.h"

namespace quire::cache {

Leaving::~Leaving() {
  if (!empty()) core_.mutex_.Run([&]() QUIRE_REQUIRES(core_.mutex_) { core_.LetGo(*this); });
}

// A record of what is about to leave, and room for it. Nothing: it is not to be offered, because
// nobody asked for that, it must not be found again, or it has no bytes.
std::optional<LeavingRecord> Core::Describe(BlockId block, const PerPart<SlotId>& slots,
                                            Leaving* leaving) const {
  const BlockRecord& record = blocks_.at(block);
  if (leaving == nullptr || record.standing != Standing::kGood) return std::nullopt;
  if (std::ranges::all_of(slots, &SlotId::is_none)) return std::nullopt;
  if (leaving->records_.size() == leaving->records_.capacity()) {
    leaving->records_.reserve(std::max<size_t>(8, 2 * leaving->records_.size()));
  }
  const BlockId parent = index_.parent(block);
  const auto tokens = index_.tokens(block);
  const Tenant& account = TenantOf(record.account);
  LeavingRecord made{.key = record.key,
                     .parent_key = parent.is_none() ? roots_[index_.root(block).number()].key
                                                    : blocks_.at(parent).key,
                     .index = index_.depth(block),
                     .tokens = {tokens.begin(), tokens.end()},
                     .slots = slots,
                     .account = record.account,
                     .erasures = account.erasures,
                     .account_name = account.options.name,
                     .publisher_name = TenantOf(record.publisher).options.name,
                     .retained_until_us = record.retained_until_us};
  if (record.retained_until_us > 0) made.priority = record.priority;
  std::copy_n(record.crcs.begin(), made.crcs.size(), made.crcs.begin());
  return made;
}

// The slots were held by the index alone, which has just let go of them.
void Core::Depart(LeavingRecord record, Leaving& leaving) {
  for (const SlotId slot : record.slots) {
    if (slot.is_none()) continue;
    const uint64_t bytes = charges_[ClassOf(slot)];
    SlotOwner& owner = owners_[slot.number()];
    TenantOf(std::exchange(owner.charged, TenantId::None())).account.Refund(bytes);
    PoolOf(slot).Renew(Local(slot));  // views that pinned nothing must not get it back
    leaving.bytes_ += bytes;
    spilling_bytes_ += bytes;
  }
  leaving.records_.push_back(std::move(record));  // Describe made room
}

// Keeps the room for `bytes` until what leaves is let go of. False: others took some of a shared
// budget.
bool Core::Promise(const Place& place, uint64_t bytes, Leaving& leaving) {
  const uint64_t free_bytes = bytes - std::min(bytes, leaving.bytes_);
  if (!ledger_.TryCharge(free_bytes)) return false;
  spilling_bytes_ += free_bytes;
  TenantOf(place.tenant).account.Charge(bytes);
  leaving.promised_to_ = place.tenant;
  leaving.promised_bytes_ = bytes;
  leaving.promised_free_bytes_ = free_bytes;
  return true;
}

void Core::LetGo(Leaving& leaving) {
  for (const LeavingRecord& record : leaving.records_) {
    Tenant& account = TenantOf(record.account);
    uint64_t bytes = 0;
    for (const SlotId slot : record.slots) {
      if (slot.is_none()) continue;
      bytes += slot_bytes(ClassOf(slot));
      FreeIfLast(slot);
    }
    const bool stored = record.answer == Answer::kStored;
    const bool failed = record.answer == Answer::kFailed;
    counters_.spilled_total += stored ? 1 : 0;
    counters_.spilled_bytes += stored ? bytes : 0;
    counters_.spill_failed_total += failed ? 1 : 0;
    account.stats.spilled_total += stored ? 1 : 0;
    account.stats.spilled_bytes += stored ? bytes : 0;
    account.stats.spill_failed_total += failed ? 1 : 0;
    // Of what stays the index says why it is missing; what was erased has never been.
    if (!record.stays.is_none() || record.erasures != account.erasures) continue;
    if (stored) account.ghosts.SetReason(record.key, MissReason::kSpilled);
    if (record.answer == Answer::kDamaged) {
      account.ghosts.SetReason(record.key, MissReason::kDamaged);
    }
  }
  spilling_bytes_ -= leaving.bytes_ + leaving.promised_free_bytes_;
  ledger_.Refund(leaving.promised_free_bytes_);
  if (!leaving.promised_to_.is_none()) {
    TenantOf(leaving.promised_to_).account.Refund(leaving.promised_bytes_);
  }
  leaving.records_.clear();
  leaving.bytes_ = leaving.promised_bytes_ = leaving.promised_free_bytes_ = 0;
}

void Core::OfferAndLetGo(Leaving& leaving) {
  if (leaving.empty()) return;
  Offer(leaving);
  mutex_.Run([&]() QUIRE_REQUIRES(mutex_) { LetGo(leaving); });
}

// Without a lock. Whatever is thrown, by the spill or for want of memory, is a block not stored.
void Core::Offer(Leaving& leaving) noexcept {
  FindDamage(leaving);
  for (LeavingRecord& record : leaving.records_) {
    if (record.answer == Answer::kDamaged) continue;
    try {
      const bool erased = mutex_.Run([&]() QUIRE_REQUIRES(mutex_) {
        return TenantOf(record.account).erasures != record.erasures;
      });
      if (erased) continue;
      record.answer = Store(record) ? Answer::kStored : Answer::kFailed;
    } catch (...) {
      record.answer = Answer::kFailed;
    }
  }
}

// What fails the check is not stored, nor is what continues it: that may have been computed from
// it. Of a block that stays the rest is quarantined.
void Core::FindDamage(Leaving& leaving) {
  std::vector<LeavingRecord>& records = leaving.records_;
  bool more = false;
  for (LeavingRecord& record : records) {
    for (uint32_t part = 0; part < layout_.part_count(); ++part) {
      const SlotId slot = record.slots[part];
      if (slot.is_none() || Checksum(slot) == record.crcs[part]) continue;
      record.answer = Answer::kDamaged;
      more = true;
    }
  }
  while (more) {  // passes, until one finds nothing more: this is rare
    more = false;
    for (LeavingRecord& record : records) {
      const bool continues = std::ranges::any_of(records, [&](const LeavingRecord& other) {
        return other.answer == Answer::kDamaged &&
               (other.key == record.parent_key || other.key == record.key);
      });
      if (!continues || record.answer == Answer::kDamaged) continue;
      record.answer = Answer::kDamaged;
      more = true;
    }
  }
  for (const LeavingRecord& record : records) {
    if (record.answer != Answer::kDamaged || record.stays.is_none()) continue;
    mutex_.Run([&]() QUIRE_REQUIRES(mutex_) {
      const BlockId block = record.stays;
      if (!blocks_.contains(block) || blocks_.at(block).key != record.key) return;  // it went too
      Quarantine(block, Standing::kDamaged);
    });
  }
}

bool Core::Store(const LeavingRecord& record) {
  PerPart<LeavingPart> parts;
  PerPart<std::vector<std::span<const std::byte>>> pieces;
  uint32_t count = 0;
  for (uint32_t part = 0; part < layout_.part_count(); ++part) {
    const SlotId slot = record.slots[part];
    if (slot.is_none()) continue;
    const pool::Pool& pool = PoolOf(slot);
    const uint64_t piece_bytes = pool.slot_bytes() / pool.pieces();
    for (uint32_t piece = 0; piece < pool.pieces(); ++piece) {
      pieces[part].emplace_back(data(slot) + piece * pool.piece_stride_bytes(), piece_bytes);
    }
    parts[count++] = {.part = part, .crc32c = record.crcs[part], .pieces = pieces[part]};
  }
  const LeavingBlock block{.key = record.key,
                           .parent_key = record.parent_key,
                           .index = record.index,
                           .tokens = record.tokens,
                           .parts = std::span(parts).first(count),
                           .publisher = record.publisher_name,
                           .account = record.account_name,
                           .erase_epoch = record.erasures,
                           .priority = record.priority,
                           .retained_until_us = record.retained_until_us};
  return options_.spill->Store(block).has_value();
}

}  // namespace quire::cache
