// What a cache can say about itself.
#ifndef QUIRE_STATS_H_
#define QUIRE_STATS_H_

#include <cstdint>
#include <string>

namespace [[gnu::visibility("default")]] quire {

/// One slot class (open or sealed) of the pool.
struct SlotClassStats {
  uint64_t slot_bytes = 0;
  uint64_t slots_max = 0;
  uint64_t slots_used = 0;
  uint64_t slots_used_peak = 0;
};

/// Counters of one cache since it was made. All numbers come from the allocator and the ledger, not
/// from formulas.
struct CacheStats {
  uint64_t hot_bytes_limit = 0;  // the budget
  uint64_t hot_bytes_used = 0;   // slots in use and their metadata
  uint64_t hot_bytes_peak = 0;
  SlotClassStats sealed;
  SlotClassStats sealed_second;  // of the other layers, where full attention and a window are mixed
  SlotClassStats open;           // zero slots when every codec stores values as they are
  SlotClassStats open_second;
  uint64_t published_blocks = 0;  // in the index now
  uint64_t evictable_blocks = 0;  // published and leased by nobody
  uint64_t passed_blocks = 0;  // leased, but windows have passed them and nobody holds some bytes
  uint64_t hollow_blocks = 0;  // of which windows kept nothing; found on the way to later ones
  uint64_t sequences = 0;
  uint64_t lookups = 0;
  uint64_t lookup_tokens = 0;  // prompt tokens asked for
  uint64_t hit_tokens = 0;     // of these, found
  uint64_t published_total = 0;
  uint64_t deduplicated_total = 0;  // blocks two sequences computed at once; one copy was kept
  uint64_t evicted_total = 0;
  uint64_t evicted_passed_total = 0;  // blocks that lost what windows had passed
  uint64_t refused_total = 0;         // requests the budget refused
};

/// One sequence, now.
struct SequenceStats {
  uint64_t tokens_used = 0;      // committed
  uint64_t tokens_reserved = 0;  // room in the blocks it holds
  uint32_t blocks_shared = 0;    // published blocks it leases
  uint32_t blocks_own = 0;       // private blocks
  uint64_t bytes = 0;            // of all slots it holds, shared ones included
};

/// The same as one JSON object and as aligned text for people.
std::string ToJson(const CacheStats& stats);
std::string ToText(const CacheStats& stats);
std::string ToJson(const SequenceStats& stats);

}  // namespace quire

#endif  // QUIRE_STATS_H_
