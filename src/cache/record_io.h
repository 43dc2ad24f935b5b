// Records on their way between the store and callers of their own: what a sequence that streams
// writes and reads back (sequence_stream.h). Blocks of the directory go through Storing and Loads.
#ifndef QUIRE_CACHE_RECORD_IO_H_
#define QUIRE_CACHE_RECORD_IO_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "quire/env.h"
#include "tier/store.h"

namespace quire::cache {

/// Sections of one record.
struct SectionRead {
  tier::LoadRequest request{};  // all but its tag
  // Once it has ended:
  tier::StoreOutcome outcome = tier::StoreOutcome::kOk;
  tier::RecordMiss miss = tier::RecordMiss::kNone;
};

/// Reads that somebody waits for together.
///
/// Threads:  the mover's from Mover::Begin on until none is left, or Mover::Cancel has returned
/// Lifetime: likewise
struct ReadBatch {
  std::vector<SectionRead> reads{};
  uint64_t deadline_us = 0;      // by the store's clock; 0: none
  std::atomic<size_t> left = 0;  // reads that have not ended
};

/// A record to be written. Called by the mover.
class RecordWrite {
 public:
  virtual ~RecordWrite() = default;
  /// Gives it to the store with this tag. May be asked for again where the store is busy. False:
  /// the device failed that has its bytes, and the store has nothing.
  virtual bool Put(tier::Store& store, uint64_t tag) = 0;
  /// What became of it. Nothing of its sequence is looked at any more.
  virtual void End(tier::StoreOutcome outcome) = 0;
};

/// The reads and writes of a mover.
///
/// Threads: one at a time
class RecordIo {
 public:
  /// Tags are taken from `next_tag`, which others count on, too.
  RecordIo(tier::Store& store, const Clock& clock, uint64_t& next_tag)
      : store_(store), clock_(clock), next_tag_(next_tag) {}

  void Begin(ReadBatch& batch);
  /// When it returns nothing of the batch is touched any more.
  void Cancel(ReadBatch& batch);
  void Write(std::shared_ptr<RecordWrite> write);
  /// It is not put any more, and its end not said.
  void Forget(const RecordWrite& write);
  /// Puts what waits. `hurries`: what was put shall be durable soon. True: something was done.
  bool Advance(bool hurries);
  /// Writes that the store was not given.
  bool has_waiting() const { return !waiting_.empty(); }
  /// Whether a request has that tag; End is for such.
  bool Has(uint64_t tag) const {
    return reads_.contains(tag) || writes_.contains(tag) || tag == flush_tag_;
  }
  void End(const tier::StoreCompletion& ended);

 private:
  struct Read {
    ReadBatch* batch = nullptr;
    SectionRead* read = nullptr;
  };
  struct Put {
    uint64_t order = 0;
    std::shared_ptr<RecordWrite> write;  // null: forgotten
  };

  static void EndRead(const Read& read, const tier::StoreCompletion& ended);

  tier::Store& store_;
  const Clock& clock_;
  uint64_t& next_tag_;
  std::map<uint64_t, Read> reads_;                            // by tag
  std::map<uint64_t, Put> writes_;                            // by tag, that the store was given
  std::map<uint64_t, std::shared_ptr<RecordWrite>> waiting_;  // in order
  uint64_t next_order_ = 1;
  uint64_t put_after_us_ = 0;
  uint64_t flush_tag_ = 0;  // 0: no flush is under way
};

}  // namespace quire::cache

#endif  // QUIRE_CACHE_RECORD_IO_H_
