#include "cache/core.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstring>
#include <limits>
#include <utility>

#include "base/bits.h"
#include "base/hash.h"
#include "cache/fallback.h"
#include "env/clock.h"
#include "evict/policies.h"

namespace quire {

Result<std::unique_ptr<Cache>> Cache::Create(CacheOptions options) {
  auto memory = MakeHostMemory(options.huge_pages);
  QUIRE_ASSIGN(auto core, cache::Core::Make(std::move(options), std::move(memory)));
  return core;
}

namespace cache {

namespace {

/// Where windows look back no block keeps its bytes for ever, but those after it can only be found
/// through it. So many such blocks are paid for by each slot.
constexpr uint64_t kHollowPerSlot = 8;

bool HasFullAttention(const codec::SlotLayout& layout) {
  for (uint32_t part = 0; part < layout.part_count(); ++part) {
    if (layout.part(part).kind == LayerKind::kFull) return true;
  }
  return false;
}

/// What one slot costs the budget: its pages, the pool's bookkeeping and the name of its owner.
uint64_t SlotCharge(uint64_t slot_bytes, Placement placement) {
  return RoundUp(slot_bytes, pool::Pool::kSlotAlignment) +
         pool::Pool::MetadataBytesPerSlot(placement) + sizeof(SlotOwner);
}

/// What a sealed slot costs besides: for its block, and hollow ones, the index entry and record
/// (256), the places in the eviction lists, and the tokens, once in the index and once in the
/// sequence. And what is remembered of a block that is gone, of one that is watched for the
/// statistics, and by the policy.
uint64_t BlockCharge(const codec::SlotLayout& layout, const EvictionLists& lists,
                     uint64_t history_bytes) {
  const uint64_t blocks = HasFullAttention(layout) ? 1 : 1 + kHollowPerSlot;
  return blocks * (256 + lists.bytes_per_block() +
                   2 * sizeof(TokenId) * uint64_t{layout.block_tokens()}) +
         Ghosts::kBytesEach + evict::ReuseEstimator::kBytesEach + history_bytes;
}

Result<void> CheckCodecs(const NumericProfile& profile) {
  const auto check = [](Codec codec, std::string_view field) -> Result<void> {
    if (CodecName(codec) != "unknown") return {};
    return Fail(ErrorCode::kUnsupported,
                fmt::format("cache options: profile.{}: codec {}", field, static_cast<int>(codec)));
  };
  QUIRE_TRY(check(profile.open_dtype, "open_dtype"));
  for (const CodecRule& rule : profile.codecs) QUIRE_TRY(check(rule.codec, "codecs"));
  return {};
}

}  // namespace

Result<std::unique_ptr<Core>> Core::Make(CacheOptions options, std::unique_ptr<DeviceMemory> memory,
                                         quota::Ledger* shared) {
  if (options.tokens_max == 0) {
    return Fail(ErrorCode::kInvalidArgument, "cache options: tokens_max is 0");
  }
  if (ArenaLayoutName(options.layout) == "unknown") {
    return Fail(ErrorCode::kUnsupported,
                fmt::format("cache options: arena layout {}", static_cast<int>(options.layout)));
  }
  if (PlacementName(options.placement) == "unknown") {
    return Fail(ErrorCode::kUnsupported,
                fmt::format("cache options: placement {}", static_cast<int>(options.placement)));
  }
  if (options.huge_pages && options.layout != ArenaLayout::kBlockMajor) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("cache options: huge_pages with layout {}, whose slots share pages",
                            ArenaLayoutName(options.layout)));
  }
  if (options.eviction_batch != EvictionBatch::kExact &&
      options.eviction_batch != EvictionBatch::kAdaptive) {
    return Fail(ErrorCode::kInvalidArgument, fmt::format("cache options: eviction_batch {}",
                                                         static_cast<int>(options.eviction_batch)));
  }
  if (evict::MakePolicy(options.policy) == nullptr) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("cache options: policy \"{}\" is none of {}", options.policy,
                            fmt::join(evict::PolicyNames(), ", ")));
  }
  QUIRE_TRY(CheckCodecs(options.profile));
  QUIRE_TRY(options.geometry.Validate());
  const uint32_t fallbacks = options.fallback_kernels != nullptr ? ApplyFallback(options) : 0;
  options.fallback_kernels = nullptr;  // need not outlive this
  QUIRE_ASSIGN(Parts parts, MakeParts(options));
  parts.codec_fallbacks = fallbacks;
  parts.memory = std::move(memory);
  if (options.hot_bytes_max != 0 && options.hot_bytes_max < options.hot_bytes) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("cache options: hot_bytes_max {} is below hot_bytes {}",
                            options.hot_bytes_max, options.hot_bytes));
  }
  QUIRE_TRY(MakePools(options, parts));
  return std::unique_ptr<Core>(new Core(std::move(options), std::move(parts), shared));
}

Result<Core::Parts> Core::MakeParts(const CacheOptions& options) {
  QUIRE_ASSIGN(auto layout,
               codec::SlotLayout::Create(options.geometry, options.profile, options.layout));
  if (layout.part_count() > kPartsMax) {
    return Fail(ErrorCode::kUnsupported,
                fmt::format("cache options: geometry has layers of {} different windows, at most "
                            "{} are possible (full attention counts as one)",
                            layout.part_count(), kPartsMax));
  }
  Parts parts{.layout = std::move(layout), .open_layout = std::nullopt, .memory = nullptr};
  if (!parts.layout.identity()) {
    QUIRE_ASSIGN(parts.open_layout,
                 codec::SlotLayout::CreateOpen(options.geometry, options.profile));
  } else if (options.profile.residual_tokens != 0) {
    return Fail(ErrorCode::kUnsupported,
                fmt::format("cache options: profile.residual_tokens is {}, but the codecs store "
                            "what was written: there is nothing to keep open, only 0 is possible",
                            options.profile.residual_tokens));
  }
  const uint32_t part_count = parts.layout.part_count();
  const EvictionLists lists(options.policy);  // asked for what they cost
  if (lists.whole->has_history()) {
    parts.history_bytes = evict::HistoryBytesPerSlot(parts.layout.slot_bytes(0));
  }
  for (uint32_t part = 0; part < part_count; ++part) {
    parts.charges[part] = SlotCharge(parts.layout.slot_bytes(part), options.placement) +
                          BlockCharge(parts.layout, lists, parts.history_bytes);
    if (!parts.open_layout) continue;
    parts.charges[part_count + part] =
        SlotCharge(parts.open_layout->slot_bytes(part), Placement::kFreeList);
  }
  if (auto holds = CheckHoldsABlock(options.hot_bytes, options.profile.block_tokens, parts.charges);
      !holds) {
    return Fail(holds.error().code,
                "cache options: " + holds.error().message + "; raise hot_bytes");
  }
  return parts;
}

// A block needs a slot of every class at once.
Result<void> Core::CheckHoldsABlock(uint64_t hot_bytes, uint32_t block_tokens,
                                    const PerClass<uint64_t>& charges) {
  uint64_t block_charge = 0;
  for (const uint64_t charge : charges) block_charge += charge;
  if (hot_bytes >= block_charge) return {};
  return Fail(
      ErrorCode::kNoSpace,
      fmt::format("hot_bytes {} holds no blocks: one of {} tokens and its bookkeeping takes "
                  "{} bytes",
                  hot_bytes, block_tokens, block_charge));
}

Core::Room Core::RoomFor(uint64_t hot_bytes, uint32_t classes, const PerClass<uint64_t>& charges) {
  // Ids are 32 bits wide, shared by all classes, and the largest is "none". A larger budget than
  // they can name stays unused.
  const uint64_t slots_max = (std::numeric_limits<uint32_t>::max() - 1) / classes;
  Room room{.hot_bytes = hot_bytes, .ledger_bytes = hot_bytes};
  for (uint32_t c = 0; c < classes; ++c) {
    const uint64_t slots = std::min(hot_bytes / charges[c], slots_max);
    room.slots[c] = static_cast<uint32_t>(slots);
    room.ledger_bytes = std::min(room.ledger_bytes, (slots + 1) * charges[c] - 1);
  }
  return room;
}

Result<void> Core::MakePools(const CacheOptions& options, Parts& parts) {
  const uint32_t part_count = parts.layout.part_count();
  const uint32_t classes = part_count * (parts.open_layout ? 2 : 1);
  const Room room = RoomFor(options.hot_bytes, classes, parts.charges);
  const Room most =
      RoomFor(std::max(options.hot_bytes, options.hot_bytes_max), classes, parts.charges);
  for (uint32_t c = 0; c < classes; ++c) {
    const bool sealed = c < part_count;
    const codec::SlotLayout& layout = sealed ? parts.layout : *parts.open_layout;
    const uint32_t part = c % part_count;
    QUIRE_ASSIGN(
        parts.pools[c],
        pool::Pool::Create({.name = fmt::format("{}{}", sealed ? "sealed" : "open", part),
                            .slot_bytes = layout.slot_bytes(part),
                            .slots = room.slots[c],
                            .slots_max = most.slots[c],
                            .pieces = layout.pieces(part),
                            .placement = sealed ? options.placement : Placement::kFreeList},
                           *parts.memory));
    if (sealed) parts.layout.PlaceArena(part, parts.pools[c]->piece_stride_bytes());
  }
  return {};
}

Core::Core(CacheOptions options, Parts parts, quota::Ledger* shared)
    : options_(std::move(options)),
      layout_(std::move(parts.layout)),
      open_layout_(std::move(parts.open_layout)),
      charges_(parts.charges),
      history_bytes_(parts.history_bytes),
      heeds_priorities_(evict::MakePolicy(options_.policy)->heeds_priorities()),
      hears_time_(evict::MakePolicy(options_.policy)->hears_time()),
      clock_(options_.clock != nullptr ? *options_.clock : SystemClock()),
      memory_(std::move(parts.memory)),
      pools_(std::move(parts.pools)),
      ledger_(RoomFor(options_.hot_bytes, class_count(), charges_).ledger_bytes, shared),
      index_(options_.profile.block_tokens) {
  counters_.codec_fallbacks = parts.codec_fallbacks;
  for (uint32_t c = 0; c < class_count(); ++c) {
    reaches_[c] = c < layout_.part_count() ? Reach(layout_.part(c), layout_.block_tokens())
                                           : Reach::OfOpenForm(options_.profile);
  }
  tenants_.push_back(std::make_unique<Tenant>(TenantOptions{.name = "default"}, kDefaultTenant,
                                              /*quota_bytes=*/UINT64_MAX,
                                              EvictionLists(options_.policy)));
  MutexLock lock(mutex_);
  SetRoom(RoomFor(options_.hot_bytes, class_count(), charges_));
}

Core::~Core() { QUIRE_CHECK_MSG(sequence_count_ == 0, "a sequence outlives its cache"); }

void Core::SetRoom(const Room& to) {
  room_ = to;
  // One less per slot: a block is counted as hollow before the number can be limited.
  hollow_max_ =
      HasFullAttention(layout_) ? 0 : (kHollowPerSlot - 1) * (to.ledger_bytes / charges_[0]);
  // One for every slot that the budget pays for.
  ghosts_max_ = to.ledger_bytes / charges_[0];
  ShareMemory();
}

uint64_t Core::block_bytes() const {
  uint64_t bytes = 0;
  for (uint32_t part = 0; part < layout_.part_count(); ++part) bytes += layout_.slot_bytes(part);
  return bytes;
}

uint32_t Core::Checksum(SlotId slot) const {
  const pool::Pool& pool = PoolOf(slot);
  const uint64_t piece_bytes = pool.slot_bytes() / pool.pieces();
  uint32_t crc = 0;
  for (uint32_t piece = 0; piece < pool.pieces(); ++piece) {
    crc = Crc32c({data(slot) + piece * pool.piece_stride_bytes(), piece_bytes}, crc);
  }
  return crc;
}

void Core::CopySlot(SlotId from, SlotId to) const {
  const pool::Pool& pool = PoolOf(from);
  for (uint32_t piece = 0; piece < pool.pieces(); ++piece) {
    const uint64_t offset_bytes = piece * pool.piece_stride_bytes();
    std::memcpy(data(to) + offset_bytes, data(from) + offset_bytes,
                pool.slot_bytes() / pool.pieces());
  }
}

uint64_t Core::Trim() {
  uint64_t bytes = 0;
  for (uint32_t c = 0; c < class_count(); ++c) bytes += pools_[c]->Trim();
  return bytes;
}

CacheStats Core::stats() const {
  MutexLock lock(mutex_);
  CacheStats stats = counters_;
  stats.hot_bytes_limit = room_.hot_bytes;
  stats.hot_bytes_used = ledger_.used_bytes();
  stats.hot_bytes_peak = ledger_.peak_bytes();
  stats.sealed = pools_[0]->stats();
  if (layout_.part_count() > 1) stats.sealed_second = pools_[1]->stats();
  if (open_layout_) stats.open = pools_[OpenClassOf(0)]->stats();
  if (open_layout_ && layout_.part_count() > 1) stats.open_second = pools_[OpenClassOf(1)]->stats();
  stats.published_blocks = blocks_.size();
  for (const auto& tenant : tenants_) {
    stats.evictable_blocks += tenant->lists.whole->size();
    stats.passed_blocks += tenant->lists.passed->size();
    stats.pinned_blocks += tenant->pinned_blocks;
  }
  stats.hollow_blocks = hollow_;
  stats.twin_slots = twin_slots_;
  stats.sequence_bytes = sequence_bytes_;
  stats.sequences = sequence_count_;
  return stats;
}

std::string Core::BlockMap() const {
  // The marks are taken first: the pool's lock is held while it asks for them.
  PerClass<std::vector<char>> marks;
  {
    MutexLock lock(mutex_);
    blocks_.ForEach([&](BlockId, const BlockRecord& record) {
      for (uint32_t c = 0; c < class_count(); ++c) {
        if (record.slots[c].is_none()) continue;
        const uint32_t slot = Local(record.slots[c]).number();
        if (slot >= marks[c].size()) marks[c].resize(slot + 1, 'p');
        const bool unheld = references(record.slots[c]) == 1 && reaches_[c].windowed();
        marks[c][slot] = record.leases == 0 ? 's' : unheld ? 'w' : 'S';
      }
    });
  }
  std::string map;
  for (uint32_t c = 0; c < class_count(); ++c) {
    const uint32_t part = c % layout_.part_count();
    if (class_count() > 1) {
      const std::string layers =
          !reaches_[part].windowed()
              ? std::string("full attention")
              : fmt::format("a window of {} tokens", layout_.part(part).window_tokens);
      map += fmt::format("{} slots, layers with {}:\n", c == part ? "sealed" : "open", layers);
    }
    map += pools_[c]->Map([&](SlotId slot, uint32_t) {
      const std::vector<char>& of_class = marks[c];
      return slot.number() < of_class.size() ? of_class[slot.number()] : 'p';
    });
  }
  return map;
}

}  // namespace cache
}  // namespace quire
