// What the parts of a cold store share: its options, segments, index, counters, and the way to the
// disk and back. The driver's thread owns it; only the index and the roots may be asked by others.
#ifndef QUIRE_TIER_COLD_STATE_H_
#define QUIRE_TIER_COLD_STATE_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "env/files.h"
#include "quire/env.h"
#include "tier/cold_index.h"
#include "tier/cold_options.h"
#include "tier/epochs.h"
#include "tier/roots.h"
#include "tier/segments.h"
#include "tier/staging.h"
#include "tier/store.h"

namespace quire::tier {

/// Who asked the disk for something.
enum class IoOwner : uint8_t { kWriter = 1, kReader = 2, kEraser = 3, kRemover = 4 };

/// Things that are under way, by small numbers that come back with completions.
template <typename Item>
class InFlight {
 public:
  uint32_t Add(Item item) {
    if (free_.empty()) {
      free_.push_back(static_cast<uint32_t>(items_.size()));
      items_.emplace_back();
    }
    const uint32_t number = free_.back();
    free_.pop_back();
    items_[number] = std::move(item);
    return number;
  }
  Item Take(uint32_t number) {
    free_.push_back(number);
    return std::exchange(items_[number], Item());
  }

 private:
  std::vector<Item> items_;
  std::vector<uint32_t> free_;
};

struct ColdState {
  ColdState(const ColdOptions& cold_options, Files& cold_files, const Clock& cold_clock,
            const SegmentTable::Options& segment_options);

  void Submit(IoOwner owner, uint32_t number, IoRequest request);
  void End(uint64_t tag, StoreOutcome outcome, RecordMiss miss = RecordMiss::kNone);
  std::string PathOf(std::string_view name) const;

  /// Counts a record that was inserted into the index, or taken out of it.
  void CountIn(const ColdEntry& entry);
  void CountOut(const ColdEntry& entry);
  /// A record was read or written.
  void Use(const KeyPrefix& key, uint32_t segment);
  /// Forgets one damaged record.
  void Quarantine(const ColdEntry& entry);
  /// Forgets all records of a segment; their number.
  uint64_t ForgetSegment(uint32_t number);
  /// Whether what a publisher made in an epoch may be served.
  bool Serves(const PublisherId& publisher, uint64_t erase_epoch) const;

  const ColdOptions options;
  Files& files;
  const Clock& clock;
  SegmentTable segments;
  ColdIndex index;
  RootTable roots;
  Staging write_staging;
  Staging read_staging;
  EpochTable epochs;           // what is served
  EpochTable durable_epochs;   // what a restart will find
  bool epochs_failed = false;  // the last attempt to make them durable
  bool epochs_damaged = false;
  bool directory_stale = false;  // names that a power cut may forget
  uint64_t generation = 0;       // the highest of any segment
  uint64_t sequence = 0;         // records written
  uint32_t uses = 0;
  StoreStats stats;
  std::vector<StoreCompletion> done;
};

}  // namespace quire::tier

#endif  // QUIRE_TIER_COLD_STATE_H_
