// What a cold store holds, in memory: where the record of a key lies (about 50 bytes per record),
// and under which roots there are records.
#ifndef QUIRE_TIER_COLD_INDEX_H_
#define QUIRE_TIER_COLD_INDEX_H_

#include <array>
#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/mutex.h"
#include "tier/record.h"
#include "tier/store.h"

namespace quire::tier {

/// The first half of a key. The whole one is compared when the record is read.
using KeyPrefix = std::array<uint8_t, 16>;
KeyPrefix PrefixOf(const Digest& key);

/// A record of the index: where it lies, in units of kRecordAlignment.
struct ColdEntry {
  KeyPrefix key{};
  uint32_t segment = 0;
  uint32_t page = 0;   // in the segment
  uint32_t pages = 0;  // of the record
  uint32_t used = 0;   // time of its last use, by the store's UseClock
  uint32_t next = 0;   // of the same segment, or of the free list
};
static_assert(sizeof(ColdEntry) == 36);

/// Threads: any; takes its own lock, below which nothing is taken
class ColdIndex {
 public:
  static constexpr uint32_t kNone = ~uint32_t{0};

  ColdIndex();
  ~ColdIndex();

  /// False when the key is there already: nothing changes. What is hidden is not there, and goes.
  bool Insert(const ColdEntry& entry);
  std::optional<ColdEntry> Find(const KeyPrefix& key) const;
  void Find(std::span<const Digest> keys, std::span<Presence> out) const;
  /// Sets the time of the last use; returns the record as it was. Nothing when it is not there.
  std::optional<ColdEntry> Touch(const KeyPrefix& key, uint32_t used);
  /// A record that still lies there is now at another place, with the use that it has. Returns it
  /// as it was; nothing when it does not lie there.
  std::optional<ColdEntry> Move(const ColdEntry& from, const ColdEntry& to);
  /// Forgets a record if it still lies there.
  bool Remove(const KeyPrefix& key, uint32_t segment, uint32_t page);
  /// Forgets all records of a segment; their number.
  uint64_t RemoveSegment(uint32_t segment);
  /// From now on nothing of the segment is found, until RemoveSegment. Constant time.
  void Hide(uint32_t segment);
  /// The records of a segment by ascending place.
  std::vector<ColdEntry> EntriesOf(uint32_t segment) const;
  /// What the records of a segment are worth together at this time.
  double WorthOf(uint32_t segment, uint32_t now) const;

  uint64_t records() const;
  uint64_t memory_bytes() const;

 private:
  struct Tables;  // Abseil stays out of headers
  mutable Mutex mutex_{LockRank::kLeaf};
  std::unique_ptr<Tables> tables_ QUIRE_GUARDED_BY(mutex_);
};

/// Under which roots a cold store has records: what lets a miss say that the prompt is there under
/// another profile, geometry or model. A root is the parent of a first block's key.
///
/// The roots of each segment, as far as it has records of first blocks: they go with it.
///
/// Threads: any; takes its own lock, below which nothing is taken
class RootTable {
 public:
  static constexpr uint32_t kOfSegmentMax = 16;    // more are not remembered
  static constexpr uint32_t kOfPublisherMax = 64;  // more are not told

  /// A segment has a record whose parent is this root.
  void Add(uint32_t segment, const PublisherId& publisher, const RecordRoot& root);
  void Forget(uint32_t segment);
  std::vector<RecordRoot> OfSegment(uint32_t segment) const;
  std::vector<RecordRoot> Of(const PublisherId& publisher) const;

 private:
  struct OfSegmentRoots {
    PublisherId publisher{};
    std::vector<RecordRoot> roots{};
  };
  using Counts = std::map<RecordRoot, uint32_t>;  // segments that have it

  mutable Mutex mutex_{LockRank::kLeaf};
  std::map<uint32_t, OfSegmentRoots> segments_ QUIRE_GUARDED_BY(mutex_);
  std::map<PublisherId, Counts> publishers_ QUIRE_GUARDED_BY(mutex_);
};

}  // namespace quire::tier

#endif  // QUIRE_TIER_COLD_INDEX_H_
