// What a cold store is opened with, and what the parts of it share: segments, index, counters, and
// the way to the disk and back. The driver's thread owns it; only the index, the roots and the
// epochs may be asked by others.
#ifndef QUIRE_TIER_COLD_STATE_H_
#define QUIRE_TIER_COLD_STATE_H_

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "env/files.h"
#include "keys/key_ring.h"
#include "quire/env.h"
#include "quire/error.h"
#include "tier/cold_index.h"
#include "tier/epochs.h"
#include "tier/known_headers.h"
#include "tier/segments.h"
#include "tier/staging.h"
#include "tier/store.h"
#include "tier/store_files.h"
#include "tier/use_clock.h"

namespace quire::tier {

struct ColdOptions {
  std::string directory{};
  uint64_t bytes_cap = uint64_t{8} << 30;       // of all files of the store together
  uint64_t segment_bytes = 0;                   // 0: by the cap. A store that exists keeps its own
  uint64_t catalogue_bytes_max = 0;             // 0: by the cap
  uint64_t commit_interval_us = 1'000'000;      // what a crash may lose
  uint64_t staging_bytes = uint64_t{64} << 20;  // of memory, half for writes and half for loads
  uint64_t chunk_bytes = uint64_t{1} << 20;     // of one request of the disk
  uint32_t reads_max = 16;                      // requests for loads in flight
  uint64_t headers_bytes_max = uint64_t{16} << 20;  // of memory: of records read by section
  uint64_t scrub_bytes_per_s = uint64_t{8} << 20;   // 0: no scrubbing
  // Of what an old data key sealed, to be sealed with the one of now; 0: it stays.
  uint64_t renew_bytes_per_s = uint64_t{32} << 20;
  std::vector<PublisherLimits> limits{};
  uint64_t bytes_beside = 0;  // of the cap, for files of others: the keys of an encrypted store
};

/// The options with every 0 replaced, all sums done.
struct ColdSizes {
  uint64_t segment_bytes = 0;
  uint32_t segments_max = 0;
  uint64_t catalogue_bytes_max = 0;
};

inline constexpr uint64_t kLockBytesMax = 4096;

/// Errors: kInvalidArgument sizes that no store can have, or a cap below two segments
Result<ColdSizes> ResolveSizes(const ColdOptions& options);

/// The part of the store that asked the disk for something.
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
  ColdState(const ColdOptions& cold_options, const ColdSizes& cold_sizes, Files& cold_files,
            const Clock& cold_clock);

  void Submit(IoOwner owner, uint32_t number, IoRequest request);
  void End(uint64_t tag, StoreOutcome outcome, RecordMiss miss = RecordMiss::kNone);
  std::string PathOf(std::string_view name) const;

  /// Counts a record that was inserted into the index, or taken out of it.
  void CountIn(const ColdEntry& entry);
  void CountOut(const ColdEntry& entry);
  /// A record is read, or in use elsewhere: whether it is there.
  bool Use(const KeyPrefix& key, uint64_t block_index);
  /// Forgets one damaged record.
  void Quarantine(const ColdEntry& entry);
  /// Forgets all records of a segment; their number.
  uint64_t ForgetSegment(uint32_t number);
  /// Whether what a publisher made in an epoch may be served.
  bool Serves(const PublisherId& publisher, uint64_t erase_epoch) const;
  /// Something was erased, in this run or before.
  bool MayBeErased() const { return epochs.version() > 0 || epochs_damaged; }
  /// What was erased may lie where no zeros reach it: in a segment that cannot be used, or, without
  /// good epochs, in any of a named publisher.
  bool MayHideErased() const {
    return MayBeErased() && (segments.HasLost() || (epochs_damaged && segments.HasNamed()));
  }
  /// The cap leaves room for the epochs of so many publishers. Segments may have to give way: there
  /// are more files than segments_max() then.
  bool ReserveEpochs(uint64_t publishers);
  /// A publisher's epoch will be made durable, if it was raised. False: the cap has no room for it.
  bool KeepEpoch(const PublisherId& publisher);

  const ColdOptions options;
  std::unique_ptr<keys::KeyRing> keys{};  // null: the store is not encrypted
  const ColdSizes sizes;
  Files& files;
  const Clock& clock;
  SegmentTable segments;
  ColdIndex index;
  RootTable roots;
  Staging write_staging;
  Staging read_staging;
  KnownHeaders headers;
  ServedEpochs epochs;
  bool epochs_failed = false;  // the last attempt to make them durable
  bool epochs_damaged = false;
  std::set<PublisherId> stored;  // have a segment, or had one in this run
  bool may_have_more = false;    // publishers, in what cannot be read
  bool directory_stale = false;  // names that a power cut may forget
  uint64_t generation = 0;       // the highest of any segment
  uint64_t sequence = 0;         // records written
  UseClock uses;
  StoreStats stats;
  std::vector<StoreCompletion> done;
};

}  // namespace quire::tier

#endif  // QUIRE_TIER_COLD_STATE_H_
