// Taking records out of a cold store for good: all of a publisher's past, and single ones.
#ifndef QUIRE_TIER_COLD_ERASER_H_
#define QUIRE_TIER_COLD_ERASER_H_

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "tier/cold_state.h"
#include "tier/cold_writer.h"
#include "tier/epoch_saver.h"

namespace quire::tier {

// Erasing a publisher's past: its epoch is raised in memory, made durable in both copies of the
// epochs, and its bytes are overwritten: whole segments of its own, and what it left in those that
// have another owner by now, behind the bytes of that one. A segment is overwritten from its end to
// its start, so that its owner can go on writing meanwhile.

class ColdEraser {
 public:
  /// `copies` of the epochs: nothing for one that is to be replaced.
  ColdEraser(ColdState& state, const std::array<std::optional<EpochFile>, 2>& copies);

  void Erase(const PublisherId& publisher, uint64_t epoch, uint64_t tag);
  void Tick(uint64_t now_us);
  void OnIo(uint32_t number, const IoCompletion& completion);
  /// Closes the copies; nothing may be in flight.
  void CloseFiles() { saver_.CloseFiles(); }
  /// Marks a segment whose records no longer count; it will be overwritten.
  void Discard(uint32_t number);
  /// What earlier owners left in a segment will be overwritten.
  void WipeLeftovers(uint32_t number);

  /// True when every erasure is durable, as far as it can be, and everything erased is overwritten.
  bool idle() const { return saver_.idle() && to_wipe_ == 0 && !wiping_; }
  /// Saves of the epochs and overwrites that failed so far; each is tried again.
  uint64_t failures() const { return saver_.failures() + failures_; }

 private:
  static constexpr uint32_t kWipeNumber = EpochSaver::kIoNumber + 1;

  void ShrinkToCap();
  std::optional<uint32_t> Dispensable() const;
  bool IsWiping(uint32_t number) const { return wiping_ && wiping_->number == number; }
  void StartWipe();
  void WipeStep();
  void OnWiped(const IoCompletion& completion);
  void EndWipe(bool wiped);

  ColdState& state_;
  EpochSaver saver_;

  Staging zeros_;
  uint32_t to_wipe_ = 0;  // segments
  // The one that is being overwritten.
  struct Wiping {
    uint32_t number = 0;
    bool whole = false;        // not only what lies behind its owner's bytes
    uint64_t front = 0;        // of a whole one: bytes that go when all behind them is gone
    uint64_t top = 0;          // what lies behind this is done
    uint64_t step_bytes = 0;   // of the write that is under way; 0: of the sync
    uint64_t paged_until = 0;  // down to here one page at a time: some are bad
    uint64_t pages_failed = 0;
  };
  std::optional<Wiping> wiping_;
  uint32_t wiped_last_ = 0;
  uint64_t failures_ = 0;
  uint64_t retry_us_ = 0;  // a failed overwrite is tried again then
};

// Removing single records from a cold store: at once for lookups, and for good when a void
// (docs/format/record.md) lies where the record's header was.

class ColdRemover {
 public:
  /// `writer` says which records are not durable yet: their removal waits until they are.
  ColdRemover(ColdState& state, const ColdWriter& writer);

  void Remove(const Digest& key, uint64_t tag);
  /// Overwrites the header of a record that is counted there and not found there any more, when no
  /// load reads that segment.
  void RemoveAt(const ColdEntry& entry);
  void Tick();
  void OnIo(uint32_t number, const IoCompletion& completion);
  /// The records of a segment, those with it whose headers RemoveAt has not overwritten for good: a
  /// catalogue must name them, so that a start finds which of two records is the older one.
  std::vector<ColdEntry> EntriesOf(uint32_t segment) const;

  /// True when every removal ended. Places that records have left may still have their headers:
  /// opening takes the newer of two records.
  bool idle() const { return waiting_.empty() && batch_.empty(); }

 private:
  static constexpr uint32_t kBatchMax = 64;  // headers that are overwritten at the same time

  struct Waiting {
    KeyPrefix key{};
    uint64_t tag = 0;
  };
  struct Place {
    ColdEntry entry{};
    uint64_t generation = 0;  // of its segment
  };
  struct Removal {
    std::optional<uint64_t> tag{};  // none: nothing ends with it
    ColdEntry entry{};
    bool failed = false;
  };

  void StartBatch();
  bool Remove(const Waiting& removal);
  bool OverwriteAt(const Place& place);
  void Overwrite(const ColdEntry& entry, std::optional<uint64_t> tag);
  void SyncSegments();
  void EndBatch();

  ColdState& state_;
  const ColdWriter& writer_;
  Staging pages_;  // [kBatchMax]
  std::vector<Waiting> waiting_;
  std::vector<Place> places_;
  std::vector<Removal> batch_;  // being made durable
  uint32_t requests_ = 0;       // of the batch, in flight
  bool syncing_ = false;
};

}  // namespace quire::tier

#endif  // QUIRE_TIER_COLD_ERASER_H_
