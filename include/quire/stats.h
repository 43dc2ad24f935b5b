// Statistics of a cache.
#ifndef QUIRE_STATS_H_
#define QUIRE_STATS_H_

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "quire/identity.h"

namespace [[gnu::visibility("default")]] quire {

/// One slot class (open or sealed) of the pool.
struct SlotClassStats {
  uint64_t slot_bytes = 0;
  uint64_t slots_max = 0;
  uint64_t slots_used = 0;
  uint64_t slots_used_peak = 0;
};

/// How the free slots of one slot class lie.
struct FreeRuns {
  std::string slots{};  // the class, by its name in CacheStats
  uint64_t free_slots = 0;
  uint64_t runs = 0;     // of free slots, each as long as it can be
  uint64_t largest = 0;  // slots of the longest

  /// 0: all free slots are one run; towards 1: they are scattered over many short ones.
  double fragmentation() const {
    return free_slots == 0 ? 0.0
                           : 1.0 - static_cast<double>(largest) / static_cast<double>(free_slots);
  }
};

/// Counters of one cache since it was made. All numbers come from the allocator and the ledger, not
/// from formulas.
struct CacheStats {
  uint64_t hot_bytes_limit = 0;  // the budget
  uint64_t hot_bytes_used = 0;   // slots in use with their metadata, and sequence_bytes
  uint64_t hot_bytes_peak = 0;   // since it was made or resized
  SlotClassStats sealed;
  SlotClassStats sealed_second;  // of the other layers, where full attention and a window are mixed
  SlotClassStats open;           // zero slots when every codec stores values as they are
  SlotClassStats open_second;
  uint64_t published_blocks = 0;  // in the index now
  uint64_t evictable_blocks = 0;  // published and not leased
  uint64_t passed_blocks = 0;  // leased, but windows have passed them and some bytes are not held
  uint64_t hollow_blocks = 0;  // of which windows kept nothing; found on the way to later ones
  uint64_t pinned_blocks = 0;  // that Pin keeps
  uint64_t twin_slots = 0;     // open forms of published blocks, kept for residual_tokens
  uint64_t sequences = 0;
  uint64_t sequence_bytes = 0;  // of hot_bytes_used: what sequences take besides their slots
  uint64_t lookups = 0;
  uint64_t lookup_tokens = 0;  // prompt tokens asked for
  uint64_t hit_tokens = 0;     // of these, found
  // With a precision ladder: of the tokens found, those in the lower precision; blocks that were
  // left in it alone; and the mean of the errors measured when blocks were encoded.
  uint64_t approximate_hit_tokens = 0;
  uint64_t evicted_twins_total = 0;
  double key_error_mean = 0.0;
  double value_error_mean = 0.0;
  uint64_t published_total = 0;
  uint64_t deduplicated_total = 0;  // blocks two sequences computed at once; one copy was kept
  uint64_t evicted_total = 0;
  uint64_t evicted_passed_total = 0;  // blocks that lost what windows had passed
  uint64_t refused_total = 0;         // requests the budget refused
  // Of published blocks, with a store below: those it has too, those waiting to be written, blocks
  // that went before they were, and blocks that came back from there.
  uint64_t stored_blocks = 0;
  uint64_t unwritten_blocks = 0;
  uint64_t evicted_unwritten_total = 0;
  uint64_t loaded_total = 0;
  // Of sequences that stream: bytes read back while layers attended, and how long attention waited
  // for them.
  uint64_t streamed_requests_total = 0;  // of the store, for these bytes
  uint64_t streamed_bytes_total = 0;
  uint64_t stream_wait_us_total = 0;
  uint64_t codec_fallbacks = 0;  // streams whose codec gave way to one that can be used here
};

/// Why tokens of a prompt were not found. The numbers are frozen.
enum class MissReason : uint8_t {
  kNeverSeen = 1,     // no published block continues the prompt here, as far as is remembered
  kPartialBlock = 2,  // only the last, incomplete block (or the last token) is left to compute
  kDamaged = 3,       // the next block failed a re-check
  kNotAsked = 4,      // the request said reuse = false
  kWindowPassed = 5,  // known, but the bytes that windowed layers need here are gone
  kEvicted = 6,       // it was here, and was evicted because others needed the room
  // Here under other weights, adapter, version or position encoding; in a store also under another
  // profile or geometry.
  kOtherProfile = 7,
  kExpired = 8,  // it was here, and was not used for the tenant's ttl
  kQuota = 9,    // it was here, and was evicted because the tenant's own quota was full
  kNoTwin = 10,  // here, but not the open forms that residual_tokens would read where it ends
  // 11 was kSpilled.
  kNotLoaded = 12,   // the store has it, and it was not loaded
  kLoadFailed = 13,  // it did not come: damaged, gone, or the disk or the device failed
  kLoadLate = 14,    // it did not come in time, or was cancelled
  // Known in the lower precision of a ladder alone, with an error that the request does not accept.
  kApproximate = 15,
};
inline constexpr uint32_t kMissReasonsEnd = 16;
std::string_view MissReasonName(MissReason reason);

/// Consecutive missing tokens with one reason.
struct MissRun {
  MissReason reason = MissReason::kNeverSeen;
  uint64_t tokens = 0;
  uint64_t gone_us = 0;  // when the first of them went, by the cache's clock, if that is known

  bool operator==(const MissRun&) const = default;
};

/// Hits that an LRU cache of another size would have had.
struct LruEstimate {
  double size = 0;      // as a share of the tenant's quota, or of the budget
  uint64_t blocks = 0;  // the size in blocks
  double hit_ratio = 0;
};

/// One tenant or domain, now and since it was made.
struct TenantStats {
  std::string name{};
  uint64_t quota_bytes = 0;  // 0: none
  uint64_t floor_bytes = 0;
  uint64_t bytes_used = 0;  // slots charged to it, and the bookkeeping of its sequences
  uint64_t bytes_peak = 0;
  uint64_t evictable_bytes = 0;   // of these, not leased
  uint64_t published_blocks = 0;  // charged to it
  uint64_t lookups = 0;
  uint64_t lookup_tokens = 0;
  uint64_t hit_tokens = 0;
  std::array<uint64_t, kMissReasonsEnd> missed_tokens{};  // by MissReason
  uint64_t evicted_total = 0;
  uint64_t refused_total = 0;
  uint64_t erased_total = 0;         // calls of Erase
  uint64_t erase_pending_slots = 0;  // written before the last of them and still held; 0: done
  uint64_t pinned_blocks = 0;        // of its account, that Pin keeps
  uint64_t pinned_bytes = 0;
  // In the store below, if there is one: of all caches, and of earlier processes too.
  uint64_t store_records = 0;      // blocks and twins that can be found
  uint64_t store_bytes = 0;        // of these
  uint64_t store_space_bytes = 0;  // on the disk, in whole segments, as its limits there count them
  uint64_t store_quota_bytes = 0;  // 0: as much as the store
  uint64_t store_floor_bytes = 0;
  // Estimates for the blocks that prompts of this account looked up, since it was made or last
  // erased, from a sample chosen by key; requests of other accounts have no influence. A member of
  // a domain has no account: look at the domain's.
  uint64_t reuse_lookup_blocks = 0;
  std::array<LruEstimate, 4> lru_estimates{{{.size = 0.5}, {.size = 1}, {.size = 2}, {.size = 4}}};
};

/// One published block, as Cache::Entries saw it.
struct CacheEntry {
  // The start of its key: it stands for the block's tokens, all before them and their identity.
  uint64_t key = 0;
  uint64_t parent_key = 0;  // of the block before it; 0: it is the first of its path
  TenantId account{};       // the account that pays for it: a tenant, or the domain it was
                            // published to
  uint64_t first_token = 0;
  uint32_t holders = 0;    // sequences, plans and views that hold it now
  bool pinned = false;     // Pin keeps it
  bool in_memory = false;  // all its bytes are; else windows have passed some or all of them
  bool in_store = false;   // the store below has a durable copy
  uint64_t age_s = 0;      // since it was published here, or loaded
  uint64_t idle_s = 0;     // since the last holder of it and of its descendants ended; 0: held

  bool operator==(const CacheEntry&) const = default;
};

/// One sequence, now.
struct SequenceStats {
  uint64_t tokens_used = 0;         // committed
  uint64_t tokens_reserved = 0;     // room in the blocks it holds
  uint64_t tokens_max = 0;          // most it may hold; under OnFull::kFewer the admitted tokens
  uint32_t blocks_shared = 0;       // published blocks it leases
  uint32_t blocks_own = 0;          // private blocks
  uint64_t bytes = 0;               // of all slots it holds, shared ones included
  uint64_t tokens_streamed = 0;     // of its context, that only the store has
  uint64_t tokens_approximate = 0;  // of its context, in the lower precision of a ladder
  float approximate_error = 0.0f;   // the largest of theirs
};

/// The same as one JSON object and as aligned text for people.
std::string ToJson(const CacheStats& stats);
std::string ToText(const CacheStats& stats);
std::string ToJson(const SequenceStats& stats);
std::string ToJson(const TenantStats& stats);
std::string ToText(const TenantStats& stats);
/// A JSON array of objects with the same names; keys as 16 hexadecimal digits, parent_key null
/// where there is none.
std::string ToJson(std::span<const CacheEntry> entries);
/// A JSON array of {"slots", "free_slots", "runs", "largest", "fragmentation"}.
std::string ToJson(std::span<const FreeRuns> classes);

}  // namespace quire

#endif  // QUIRE_STATS_H_
