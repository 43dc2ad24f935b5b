// Writing to a cold store: records become one stream per segment, the stream goes to disk in large
// requests, and a commit makes everything durable that was put before it.
#ifndef QUIRE_TIER_COLD_WRITER_H_
#define QUIRE_TIER_COLD_WRITER_H_

#include <cstdint>
#include <expected>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "tier/cold_state.h"
#include "tier/record_seal.h"

namespace quire::tier {

class ColdWriter {
 public:
  explicit ColdWriter(ColdState& state) : state_(state) {}

  void Put(const PutRequest& request);
  /// Writes a record that is there already to another segment, where it is found when it is
  /// durable; its former place is one of TakeStale() then. It has no completion.
  ///
  /// Needs: the segment of `from` is in use until the call returns
  /// Returns kOk: it is under way; else why not
  StoreOutcome Rewrite(const PutRequest& request, const ColdEntry& from);
  /// Records whose rewriting the disk refused: they are where they were.
  uint64_t rewrites_failed() const { return rewrites_failed_; }
  /// Goes on appending to a segment that a store left unfinished.
  void Resume(uint32_t segment);
  /// Ends the segment that a publisher is writing.
  void Close(const PublisherId& publisher);
  /// Begins and ends commits. `flush`: without waiting for the interval.
  void Tick(uint64_t now_us, bool flush);
  void OnIo(uint32_t number, const IoCompletion& completion);

  /// Segments in which commits failed since it was asked last: what lies behind their records is to
  /// be overwritten.
  std::vector<uint32_t> TakeFailed() { return std::exchange(failed_, {}); }
  /// Places of records that are of no use any more, since it was asked last: their headers are to
  /// be overwritten.
  std::vector<ColdEntry> TakeStale() { return std::exchange(stale_, {}); }

  /// A record of this key was put and is not durable yet.
  bool IsWriting(const KeyPrefix& key) const { return pending_.contains(key); }
  /// What was put before this call is in a commit of at most this number.
  uint64_t commit_of_now() const { return open_.records.empty() ? commits_ : commits_ + 1; }
  /// Commits that ended have numbers up to this one.
  uint64_t commits_done() const { return closing_ ? commits_ - 1 : commits_; }

 private:
  // The end of a segment that is being written.
  struct Stream {
    std::optional<uint32_t> chunk{};  // staging that is being filled
    uint64_t chunk_begin = 0;         // its place in the segment
  };
  struct Write {
    uint32_t segment = 0;
    uint32_t chunk = 0;
    uint64_t bytes = 0;
    bool sync = false;
    bool front = false;  // of the void that a segment begins with, not of a commit
    uint64_t commit = 0;
  };
  struct Held {  // a write that waits for the eraser, or for the front of its segment
    uint32_t number = 0;
    uint32_t segment = 0;
    IoRequest request{};
  };
  struct Pending {
    uint64_t tag = 0;
    ColdEntry entry{};
    PublisherId publisher{};
    uint64_t erase_epoch = 0;
    std::optional<RecordRoot> root{};  // of a first block
    std::optional<ColdEntry> from{};   // of one that is written anew
  };
  struct Commit {
    uint64_t begin_us = 0;  // when its first record was put
    std::vector<Pending> records{};
    std::set<uint32_t> segments{};
    uint32_t requests = 0;  // writes, then syncs, in flight
    bool syncing = false;
  };

  std::optional<RecordRoot> RootOf(const PutRequest& request) const;
  std::optional<StoreOutcome> Refuse(const PutRequest& request);
  std::optional<StoreOutcome> RefuseEpoch(const RecordIdentity& identity);
  bool IsTooLarge(const RecordLayout& layout) const;
  Pending& AppendTo(uint32_t segment, const PutRequest& request);
  std::expected<uint32_t, StoreOutcome> SegmentFor(const PutRequest& request);
  std::expected<uint32_t, StoreOutcome> NewSegment(const PublisherId& publisher);
  bool MakeSegment(uint32_t number);
  void Begin(uint32_t number, const PublisherId& publisher, uint64_t erase_epoch);
  void WriteFront(uint32_t number);
  void OnFront(const Write& write);
  bool StagingHas(uint64_t bytes, uint64_t room) const;
  void Seal(uint32_t number);
  void Append(uint32_t number, std::span<const std::byte> bytes);
  void AppendSealed(uint32_t number, const PutRequest& request, const RecordLocation& location);
  std::vector<std::span<std::byte>> Room(uint32_t number, uint64_t bytes);
  void AppendZeros(uint32_t number, uint64_t count);
  void AppendRecord(uint32_t number, const PutRequest& request, const RecordLocation& location);
  void SendChunk(uint32_t number);
  void SubmitHeld();
  void Sync(const Write& write);
  void EndWrite(const Write& write);
  void StartCommit();
  void SyncSegments();
  void EndCommit();
  StoreOutcome Enter(const Pending& pending);

  ColdState& state_;
  std::map<uint32_t, Stream> streams_;  // by segment
  // Records that are not durable yet, with the tags of requests that put one again meanwhile.
  std::map<KeyPrefix, std::vector<uint64_t>> pending_;
  Commit open_;                           // takes records
  std::optional<Commit> closing_;         // is being made durable
  uint64_t commits_ = 0;                  // begun
  uint64_t make_after_us_ = 0;            // segments, when the disk was full
  uint64_t recycle_failed_after_us_ = 0;  // segments in which a write or sync failed
  InFlight<Write> writes_;
  std::vector<Held> held_;
  std::map<uint32_t, Staging> fronts_;  // by segment: on their way
  std::vector<std::byte> header_;
  std::vector<uint32_t> crcs_;
  bool holds_back_ = false;       // what is full: some of it is not filled in yet
  std::vector<uint32_t> failed_;  // segments
  std::vector<ColdEntry> stale_;
  uint64_t rewrites_failed_ = 0;
};

}  // namespace quire::tier

#endif  // QUIRE_TIER_COLD_WRITER_H_
