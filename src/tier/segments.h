// The segments of a cold store and their publishers: which is written, and which goes when there
// is no room. Pure bookkeeping; a segment holds records of one publisher and one erase epoch only.
#ifndef QUIRE_TIER_SEGMENTS_H_
#define QUIRE_TIER_SEGMENTS_H_

#include <cstdint>
#include <expected>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "env/files.h"
#include "tier/cold_index.h"
#include "tier/record.h"
#include "tier/store.h"

namespace quire::tier {

enum class SegmentState : uint8_t {
  kMissing,  // no file
  kFree,     // a file without records
  kActive,   // being written
  kSealed,   // full, or not written to any more
  kErased,   // to be overwritten
  kLost,     // what has its name cannot be used in this run
};

/// What an earlier owner of a segment wrote there, up to this offset.
struct Leftover {
  std::optional<PublisherId> publisher{};  // nothing: it is unknown
  uint64_t end = 0;
};

struct Segment {
  static constexpr uint64_t kNowhere = ~uint64_t{0};

  SegmentState state = SegmentState::kMissing;
  FileId file{};
  PublisherId publisher{};
  uint64_t erase_epoch = 0;
  uint64_t generation = 0;
  uint64_t tail = 0;        // bytes from the start that records and voids take
  uint64_t end = 0;         // bytes from the start that were written, or are on their way
  uint64_t records = 0;     // that the index has
  uint64_t bytes_live = 0;  // of these
  uint64_t used_sum = 0;    // of their times of last use
  uint32_t reads = 0;       // in flight
  uint32_t writes = 0;      // in flight
  bool failed = false;      // a write or sync failed: nothing more is written behind it
  uint32_t failures = 0;    // commits that failed, one after the other
  bool catalogue_stale = false;
  std::vector<Leftover> leftovers{};  // behind `end`; what reaches furthest is first
  bool to_wipe = false;               // what was erased is to be overwritten
  uint64_t wiping_from = kNowhere;    // that is under way from here on

  /// Whether bytes of a publisher may lie behind those of the segment's owner.
  bool MayHoldBehind(const PublisherId& of) const;
  /// Whether others than a publisher may have left something in it.
  bool HasLeftoversBeside(const PublisherId& of) const;
  /// Where the bytes of earlier owners end; `end` when there are none.
  uint64_t LeftoverEnd() const;
  /// A write failed: behind its records bytes of any publisher may lie, up to where it wrote.
  void Fail();
  /// The segment gets a new owner, which writes from its start on.
  void Leave();
  bool has_file() const { return state != SegmentState::kMissing && state != SegmentState::kLost; }
  /// Mean time of last use of the records; 0 without records. Where writing failed again and again
  /// it is as if they were in use: such a segment is written anew when there is no other.
  uint64_t Recency() const {
    if (failures > 1) return kNowhere;
    return records == 0 ? 0 : used_sum / records;
  }

 private:
  // Up to `end`.
  void LeaveBehind(const std::optional<PublisherId>& of);
};

class SegmentTable {
 public:
  struct Options {
    uint64_t segment_bytes = 0;
    uint32_t segments_max = 0;
    std::vector<PublisherLimits> limits{};
  };
  explicit SegmentTable(const Options& options);

  uint64_t segment_bytes() const { return segment_bytes_; }
  /// Of the longest record: a void may lie in front of it.
  uint64_t record_bytes_max() const { return segment_bytes_ - kRecordAlignment; }
  uint32_t segments_max() const { return segments_max_; }
  void set_segments_max(uint32_t segments_max) { segments_max_ = segments_max; }
  uint32_t size() const { return static_cast<uint32_t>(segments_.size()); }
  Segment& operator[](uint32_t number) { return segments_[number]; }
  const Segment& operator[](uint32_t number) const { return segments_[number]; }
  /// From now on segments have this length. Needs that none has a file.
  void Cut(uint64_t segment_bytes, uint32_t segments_max);
  /// Makes room for a number that a file has.
  void Reserve(uint32_t number);
  /// Segments that have a file.
  uint32_t files() const;
  /// Whether one cannot be used in this run.
  bool HasLost() const;
  /// Whether one belongs to a named publisher.
  bool HasNamed() const;
  void SetLimits(const PublisherLimits& limits) { limits_[limits.publisher] = limits; }

  /// Counts a record that comes, goes, or is used at this time.
  void CountIn(const ColdEntry& entry);
  void CountOut(const ColdEntry& entry);
  void CountUse(const ColdEntry& before, uint32_t used) {
    uint64_t& sum = segments_[before.segment].used_sum;
    sum = sum - before.used + used;  // which may lie before the time before
  }

  /// The segment that a publisher is writing.
  std::optional<uint32_t> ActiveOf(const PublisherId& publisher) const;

  /// What the records of a segment are worth together.
  using WorthOf = std::function<double(uint32_t segment)>;
  enum class Refusal : uint8_t { kQuota, kBusy, kProtected };
  /// A segment for the next records of a publisher, by number and by what has to go:
  ///   kMissing  no file yet: make one
  ///   kFree     as it is
  ///   kSealed   its records must be forgotten first
  ///   kActive   of another publisher: sealed, then the same. These go last
  ///
  /// A publisher at its quota gives up one of its own; else a free place is taken; else one goes
  /// whose publisher stays at or above its floor (one's own always may). Segments that are read or
  /// written are left alone. Of the least recent ones that one goes which is worth least.
  std::expected<uint32_t, Refusal> Choose(const PublisherId& publisher, bool may_make,
                                          const WorthOf& worth_of) const;

  /// Segments with a file that belong to a publisher.
  uint32_t CountOf(const PublisherId& publisher) const;
  /// What each publisher has.
  std::map<PublisherId, PublisherUsage> Usage() const;

 private:
  std::optional<uint32_t> LeastWorth(const PublisherId& publisher, SegmentState state,
                                     bool own_only, const WorthOf& worth_of) const;
  uint32_t FloorOf(const PublisherId& publisher) const;
  uint32_t QuotaOf(const PublisherId& publisher) const;

  uint64_t segment_bytes_;
  uint32_t segments_max_;
  std::map<PublisherId, PublisherLimits> limits_;
  std::vector<Segment> segments_;
};

/// The name of a segment's file, and its number from the name.
std::string SegmentName(uint32_t number);
std::optional<uint32_t> ParseSegmentName(std::string_view name);

}  // namespace quire::tier

#endif  // QUIRE_TIER_SEGMENTS_H_
