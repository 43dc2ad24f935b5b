#include "cache/state/slot_classes.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "base/bits.h"
#include "cache/state/accounts.h"
#include "cache/state/ghosts.h"
#include "cache/state/slots.h"
#include "cache/state/told_blocks.h"
#include "evict/policies.h"
#include "evict/reuse_estimator.h"
#include "pool/pool.h"

namespace quire::cache {
namespace {

/// Where all layers have windows no block keeps its bytes for ever, but later blocks are found
/// through it. Each slot pays for so many blocks without bytes.
constexpr uint64_t kEmptyPerSlot = 8;

/// What one slot costs the budget: its pages, the pool's bookkeeping, its payer and its writer.
uint64_t SlotCharge(uint64_t slot_bytes, Placement placement) {
  return RoundUp(slot_bytes, pool::Pool::kSlotAlignment) +
         pool::Pool::MetadataBytesPerSlot(placement) + Slots::kBytesPerSlot +
         Charges::kBytesPerSlot;
}

/// What a sealed slot costs besides: for its block, and blocks without bytes, the index entry and
/// record (256), what the follower knows of it, the places in the eviction lists, and the tokens,
/// once in the index and once in the sequence; and memory for a block that is gone, for one that is
/// watched for the statistics, and for the policy.
uint64_t BlockCharge(uint64_t blocks, const CacheOptions& options, const EvictionLists& lists,
                     uint64_t memory_bytes) {
  return blocks * (256 + (options.announce ? ToldBlocks::kBytesEach : 0) + lists.bytes_per_block() +
                   2 * sizeof(TokenId) * uint64_t{options.profile.block_tokens}) +
         memory_bytes;
}

Result<void> CheckLadder(const CacheOptions& options, const codec::SlotLayout& layout) {
  const auto refuse = [](std::string_view what) {
    return Fail(
        ErrorCode::kUnsupported,
        fmt::format("cache options: a precision ladder (profile.residual_tokens) {}", what));
  };
  for (const LayerGroup& group : options.geometry.groups) {
    if (group.kind == LayerKind::kWindow) return refuse("with layers that have a window");
  }
  if (layout.group_count() > 1) return refuse("with layers of more than one kind");
  if (options.memory != nullptr && !options.memory->host_accessible()) {
    return refuse("in memory that the host cannot reach");
  }
  return {};
}

// What a store is given where a precision ladder has a step for it.
Result<codec::SlotLayout> StoreLayout(const CacheOptions& options) {
  NumericProfile profile = options.profile;
  const Codec codec = *profile.store_codec;
  if (!profile.has_ladder() || IsIdentity(codec)) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("cache options: profile.store_codec is {}: it is the last step of a "
                            "precision ladder (profile.residual_tokens), and encodes",
                            CodecName(codec)));
  }
  for (CodecRule& rule : profile.codecs) rule.codec = codec;
  return codec::SlotLayout::Create(options.geometry, profile, options.layout);
}

}  // namespace

Result<SlotClasses> SlotClasses::Create(const CacheOptions& options) {
  QUIRE_ASSIGN(auto layout,
               codec::SlotLayout::Create(options.geometry, options.profile, options.layout));
  if (layout.group_count() > kGroupsMax) {
    return Fail(ErrorCode::kUnsupported,
                fmt::format("cache options: geometry has layers of {} different windows, at most "
                            "{} are possible (full attention counts as one)",
                            layout.group_count(), kGroupsMax));
  }
  std::optional<codec::SlotLayout> open_layout;
  if (!layout.identity()) {
    QUIRE_ASSIGN(open_layout, codec::SlotLayout::CreateOpen(options.geometry, options.profile));
  } else if (options.profile.residual_tokens != 0) {
    return Fail(ErrorCode::kUnsupported,
                fmt::format("cache options: profile.residual_tokens is {}, but the codecs store "
                            "what was written: there is nothing to keep open, only 0 is possible",
                            options.profile.residual_tokens));
  }
  if (options.profile.has_ladder()) QUIRE_TRY(CheckLadder(options, layout));
  SlotClasses classes(std::move(layout), std::move(open_layout), options);
  if (options.profile.store_codec) {
    QUIRE_ASSIGN(classes.store_layout_, StoreLayout(options));
  }
  if (auto holds = classes.CheckHoldsABlock(options.hot_bytes); !holds) {
    return Fail(holds.error().code,
                "cache options: " + holds.error().message + "; raise hot_bytes");
  }
  return classes;
}

SlotClasses::SlotClasses(codec::SlotLayout layout, std::optional<codec::SlotLayout> open_layout,
                         const CacheOptions& options)
    : layout_(std::move(layout)),
      open_layout_(std::move(open_layout)),
      residual_tokens_(options.profile.residual_tokens),
      residual_blocks_(options.profile.residual_blocks()) {
  for (uint32_t c = 0; c < count(); ++c) {
    reaches_[c] = is_sealed(c) ? WindowReach(layout_.group(c), block_tokens())
                               : WindowReach::OfOpenForm(options.profile);
  }
  const EvictionLists lists(options.policy, has_ladder());  // asked for what they cost
  if (lists.whole->has_history()) {
    history_bytes_ = evict::HistoryBytesPerSlot(layout_.slot_bytes(0));
  }
  const uint64_t blocks = only_windows() ? 1 + kEmptyPerSlot : 1;
  for (uint32_t c = 0; c < count(); ++c) {
    charges_[c] =
        SlotCharge(slot_bytes(c), is_sealed(c) ? options.placement : Placement::kFreeList);
    if (is_sealed(c)) charges_[c] += BlockCharge(blocks, options, lists, memory_bytes());
  }
}

SlotClasses SlotClasses::WithResident(uint64_t resident_tokens) const {
  SlotClasses classes = *this;
  for (uint32_t group = 0; group < group_count(); ++group) {
    WindowReach& reach = classes.reaches_[group];
    reach = reach.windowed() ? reach.BySplits()
                             : WindowReach::OfResident(resident_tokens, block_tokens());
  }
  return classes;
}

uint64_t SlotClasses::first_whole(uint64_t tokens) const {
  uint64_t first = 0;
  for (const WindowReach& reach : reaches().first(group_count())) {
    first = std::max(first, reach.first_needed(tokens));
  }
  return first;
}

bool SlotClasses::only_windows() const {
  return std::ranges::all_of(reaches().first(group_count()), &WindowReach::windowed);
}

PerClass<uint64_t> SlotClasses::OwnSlots(uint64_t shared, uint64_t blocks,
                                         uint64_t step_tokens) const {
  PerClass<uint64_t> own{};
  for (uint32_t c = 0; c < count(); ++c) {
    own[c] = std::min(blocks - shared, reaches_[c].blocks_max(step_tokens));
  }
  return own;
}

uint64_t SlotClasses::block_charge_bytes() const {
  uint64_t bytes = 0;
  for (uint32_t group = 0; group < group_count(); ++group) bytes += charges_[group];
  return bytes;
}

uint64_t SlotClasses::Charge(const PerClass<uint64_t>& counts) const {
  uint64_t bytes = 0;
  for (uint32_t c = 0; c < count(); ++c) {
    const auto added = CheckedProduct(counts[c], charges_[c]);
    bytes = added && *added <= UINT64_MAX - bytes ? bytes + *added : UINT64_MAX;
  }
  return bytes;
}

uint64_t SlotClasses::memory_bytes() const {
  return Ghosts::kBytesEach + evict::ReuseEstimator::kBytesEach + history_bytes_;
}

// A block needs a slot of every class at once.
Result<void> SlotClasses::CheckHoldsABlock(uint64_t hot_bytes) const {
  uint64_t block_charge = 0;
  for (const uint64_t charge : charges_) block_charge += charge;
  if (hot_bytes >= block_charge) return {};
  return Fail(
      ErrorCode::kNoSpace,
      fmt::format("hot_bytes {} holds no blocks: one of {} tokens and its bookkeeping takes "
                  "{} bytes",
                  hot_bytes, block_tokens(), block_charge));
}

Capacity SlotClasses::CapacityFor(uint64_t hot_bytes) const {
  // Ids are 32 bits wide, shared by all classes, and the largest is "none". Bytes for more slots
  // than that stay unused.
  const uint64_t slots_max = (std::numeric_limits<uint32_t>::max() - 1) / count();
  Capacity capacity{.hot_bytes = hot_bytes, .ledger_bytes = hot_bytes};
  for (uint32_t c = 0; c < count(); ++c) {
    const uint64_t slots = std::min(hot_bytes / charges_[c], slots_max);
    capacity.slots[c] = static_cast<uint32_t>(slots);
    capacity.ledger_bytes = std::min(capacity.ledger_bytes, (slots + 1) * charges_[c] - 1);
  }
  return capacity;
}

uint64_t SlotClasses::EmptyMax(const Capacity& capacity) const {
  // One less per slot: a block is counted as empty before the number can be limited.
  return only_windows() ? (kEmptyPerSlot - 1) * (capacity.ledger_bytes / charges_[0]) : 0;
}

}  // namespace quire::cache
