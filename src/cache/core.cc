#include "cache/core.h"

#include <fmt/format.h>

#include <limits>
#include <utility>

#include "base/bits.h"
#include "evict/lru.h"

namespace quire {

Result<std::unique_ptr<Cache>> Cache::Create(CacheOptions options) {
  auto memory = MakeHostMemory(options.huge_pages);
  QUIRE_ASSIGN(auto core, cache::Core::Make(std::move(options), std::move(memory)));
  return core;
}

namespace cache {

namespace {

/// What one slot costs the budget: its pages, the pool's bookkeeping, the index entry and record
/// (256), and its tokens, once in the index and once in the sequence.
uint64_t ChargeBytes(uint64_t slot_bytes, uint32_t block_tokens) {
  return RoundUp(slot_bytes, pool::Pool::kSlotAlignment) + pool::Pool::kMetadataBytesPerSlot + 256 +
         2 * sizeof(TokenId) * uint64_t{block_tokens};
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

Result<std::unique_ptr<Core>> Core::Make(CacheOptions options,
                                         std::unique_ptr<DeviceMemory> memory) {
  if (options.tokens_max == 0) {
    return Fail(ErrorCode::kInvalidArgument, "cache options: tokens_max is 0");
  }
  if (ArenaLayoutName(options.layout) == "unknown") {
    return Fail(ErrorCode::kUnsupported,
                fmt::format("cache options: arena layout {}", static_cast<int>(options.layout)));
  }
  QUIRE_TRY(CheckCodecs(options.profile));
  QUIRE_TRY(options.geometry.Validate());
  QUIRE_ASSIGN(auto layout,
               codec::SlotLayout::Create(options.geometry, options.profile, options.layout));
  const uint64_t charge = ChargeBytes(layout.slot_bytes(), options.profile.block_tokens);
  const uint64_t slots = options.hot_bytes / charge;
  if (slots == 0) {
    return Fail(ErrorCode::kNoSpace,
                fmt::format("cache options: hot_bytes {} holds no blocks: one of {} tokens and its "
                            "bookkeeping takes {} bytes; raise hot_bytes",
                            options.hot_bytes, options.profile.block_tokens, charge));
  }
  // Ids are 32 bits wide and the largest is "none".
  constexpr uint64_t kSlotsMax = std::numeric_limits<uint32_t>::max() - 1;
  QUIRE_ASSIGN(auto sealed,
               pool::Pool::Create({.name = "sealed",
                                   .slot_bytes = layout.slot_bytes(),
                                   .slots_max = static_cast<uint32_t>(std::min(slots, kSlotsMax))},
                                  *memory));
  return std::unique_ptr<Core>(new Core(std::move(options), std::move(layout), charge,
                                        std::move(memory), std::move(sealed)));
}

Core::Core(CacheOptions options, codec::SlotLayout layout, uint64_t charge_bytes,
           std::unique_ptr<DeviceMemory> memory, std::unique_ptr<pool::Pool> sealed)
    : options_(std::move(options)),
      layout_(std::move(layout)),
      charge_bytes_(charge_bytes),
      memory_(std::move(memory)),
      sealed_(std::move(sealed)),
      ledger_(options_.hot_bytes),
      index_(options_.profile.block_tokens),
      policy_(std::make_unique<evict::LruPolicy>()) {}

Core::~Core() { QUIRE_CHECK_MSG(sequences_ == 0, "a sequence outlives its cache"); }

CacheStats Core::stats() const {
  MutexLock lock(mutex_);
  CacheStats stats = counters_;
  stats.hot_bytes_limit = ledger_.limit_bytes();
  stats.hot_bytes_used = ledger_.used_bytes();
  stats.hot_bytes_peak = ledger_.peak_bytes();
  stats.sealed = sealed_->stats();
  stats.published_blocks = blocks_.size();
  stats.evictable_blocks = policy_->size();
  stats.sequences = sequences_;
  return stats;
}

std::string Core::BlockMap() const {
  // The marks are taken first: the pool's lock is held while it asks for them.
  std::vector<char> marks;
  {
    MutexLock lock(mutex_);
    blocks_.ForEach([&marks](BlockId, const BlockRecord& record) {
      const uint32_t slot = record.slot.number();
      if (slot >= marks.size()) marks.resize(slot + 1, 'p');
      marks[slot] = record.leases == 0 ? 's' : 'S';
    });
  }
  return sealed_->Map([&marks](SlotId slot, uint32_t) {
    return slot.number() < marks.size() ? marks[slot.number()] : 'p';
  });
}

}  // namespace cache
}  // namespace quire
