// The store below memory: what a cache publishes is written there behind its back, and a later
// process finds it.
//
//   auto store = DiskStore::Open({.directory = "/var/cache/quire"});
//   auto cache = Cache::Create({..., .store = store->get()});
//   auto plan = (*cache)->Acquire(request);                       // says what the store has
//   if ((*plan).loadable_tokens() > 0) {
//     auto ticket = (*cache)->Load(*std::move(plan), {});          // reads while others go on
//     plan = ticket->Take();                                      // waits for it
//   }
#ifndef QUIRE_DISK_STORE_H_
#define QUIRE_DISK_STORE_H_

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "quire/error.h"
#include "quire/identity.h"

namespace quire::cache {
class Core;
class Loading;
struct LoadJob;
struct StoreState;
}  // namespace quire::cache

namespace [[gnu::visibility("default")]] quire {

class HostAllocator;
class Plan;

/// What is written to a remote that stands behind a directory.
enum class RemoteWrites : uint8_t {
  kReused = 1,  // what is used again; without a directory, all
  kAll = 2,
};

struct DiskStoreOptions {
  // Made if there is none. Empty: nothing is on disk, there are warm_bytes or a remote alone.
  std::string directory{};
  uint64_t bytes_cap = uint64_t{8} << 30;  // hard: of all files of the store together
  // What a crash may lose. What is published is written evenly over three quarters of it, and
  // committed in the last: the longer, the less others notice.
  uint64_t commit_interval_us = 1'000'000;
  // Memory in which what was written or loaded stays too, in front of the disk: for caches on a
  // device. Hard; 0: none. Without a directory it ends with the process.
  uint64_t warm_bytes = 0;
  // Of that memory, all of which is taken when the store is opened: pinned, for a device. Null:
  // ordinary memory, as where it has none to give (with one warning). It must outlive the store.
  HostAllocator* host_allocator = nullptr;
  // Memory for bytes on their way to and from the disk: all that a store takes besides its index,
  // and up to 16 MiB of headers where contexts stream.
  uint64_t staging_bytes = uint64_t{64} << 20;
  uint64_t scrub_bytes_per_s = uint64_t{8} << 20;  // re-reads what it has, so fast; 0: never
  // A service that many machines share, behind all others: redis://HOST, rediss://HOST or
  // s3://BUCKET (docs/remote.md). Empty: none.
  std::string remote{};
  // A file of 32 random bytes that those machines have in common, without which they find nothing
  // of one another. With it Secret() is the same on all of them.
  std::string fleet_key_file{};
  RemoteWrites remote_writes = RemoteWrites::kReused;
};

/// Whether a remote is asked.
enum class BreakerState : uint8_t {
  kClosed = 0,   // it is
  kOpen = 1,     // it fails, and is left alone until the next probe
  kProbing = 2,  // one request is on its way, which decides
};
std::string_view BreakerStateName(BreakerState state);

/// What a remote did.
struct RemoteStats {
  std::string where{};  // its address, without what opens it
  BreakerState breaker = BreakerState::kOpen;
  bool epochs_known = false;                // what was erased elsewhere: named tenants are served
  uint64_t breaker_opened = 0;              //
  uint64_t hits = 0;                        // records that came
  uint64_t misses = 0;                      // it did not have them
  uint64_t rejected = 0;                    // what came is not what was wanted: not authentic
  uint64_t late = 0;                        // reads that did not end in time
  uint64_t failures = 0;                    // requests that failed, or were refused
  uint64_t retries = 0;                     //
  uint64_t written = 0;                     // records
  uint64_t writes_failed = 0;               //
  uint64_t writes_skipped = 0;              // too much was on its way, or the remote was left alone
  uint64_t bytes_read = 0;                  // sealed
  uint64_t bytes_written = 0;               //
  uint64_t reading = 0;                     // records under way
  uint64_t writing = 0;                     //
  uint64_t read_us_total = 0;               // of hits
  uint64_t write_us_total = 0;              // of what was written
  std::array<uint64_t, 32> read_us_log2{};  // as DiskStoreStats::load_us_log2
  std::array<uint64_t, 32> write_us_log2{};  //
};

/// What a store did and holds.
struct DiskStoreStats {
  uint64_t records = 0;       // blocks and twins that can be found
  uint64_t bytes = 0;         // of all files, what is preallocated included
  uint64_t bytes_cap = 0;     //
  uint64_t memory_bytes = 0;  // index, staging, and headers of records read by section
  uint64_t records_written = 0;
  uint64_t bytes_put = 0;      // of records given to it
  uint64_t bytes_written = 0;  // to the disk; / bytes_put is the write amplification
  uint64_t bytes_read = 0;     // from the disk
  uint64_t read_requests = 0;  // of the disk, for loads
  uint64_t records_loaded = 0;
  uint64_t loads_failed = 0;      // damaged, erased, gone, too late, or the disk failed
  uint64_t records_dropped = 0;   // not written: the disk or a quota is full, or it failed
  uint64_t records_recycled = 0;  // overwritten by newer ones
  uint64_t records_damaged = 0;   // found damaged, and forgotten
  uint64_t in_flight = 0;         // requests of the disk
  uint64_t writes_pending = 0;    // records given to it that are not durable yet
  bool disk_full = false;
  uint64_t warm_records = 0;       // in the memory in front of the disk
  uint64_t warm_bytes = 0;         // of these, with their bookkeeping
  uint64_t warm_loads = 0;         // loads that it answered
  uint64_t warm_pinned_bytes = 0;  // of the memory taken for them: all that was asked for, or none
  // Loads by their time: entry i counts [2^i, 2^(i+1)) microseconds.
  std::array<uint64_t, 32> load_us_log2{};
  std::optional<RemoteStats> remote{};  // none: there is no remote
};

/// The same as one JSON object.
std::string ToJson(const DiskStoreStats& stats);

/// The store in one directory of a local disk (docs/durability.md). Several caches may share one.
/// It writes what they publish, a commit interval after that at the latest, whatever becomes of the
/// blocks in memory meanwhile; no call waits for it. One process at a time owns a directory.
///
/// Threads:  any
/// Lifetime: must outlive the caches that name it, and their tickets
class DiskStore {
 public:
  /// Opens the store in a directory, or makes one.
  ///
  /// Errors: kInvalidArgument the options, for example neither a directory nor warm_bytes nor a
  ///         remote; kBusy another process has it; kUnsupported a newer version wrote it;
  ///         kNotFound a file that opens the remote; kNoSpace; kIo
  /// Cost:   reads the catalogue, not the payload; waits up to 2 s for a remote that does not
  ///         answer, which is no error
  static Result<std::unique_ptr<DiskStore>> Open(const DiskStoreOptions& options);
  /// Ends without waiting for what is not durable yet: call Flush before.
  ~DiskStore();
  DiskStore(const DiskStore&) = delete;
  DiskStore& operator=(const DiskStore&) = delete;

  /// Returns when everything that was published before is durable, or cannot be.
  /// Errors: kIo, kNoSpace some of it could not be written
  Result<void> Flush();
  DiskStoreStats stats() const;
  /// A secret for Domain::secret, made with the store and kept beside it in a file that its owner
  /// alone may read; without a directory it ends with the store. With a fleet's key it follows from
  /// that. Without the secret nothing in the store is found.
  ///
  /// Errors: kCorrupt the file is not what was written; kNoSpace; kIo
  Result<Digest> Secret() const;

 private:
  friend class cache::Core;
  friend struct cache::StoreState;
  explicit DiskStore(std::unique_ptr<cache::StoreState> state);
  const std::unique_ptr<cache::StoreState> state_;
};

/// Which blocks of a load are read first.
enum class LoadOrder : uint8_t {
  kFromFront = 1,  // so that what comes can be used even where the rest does not
  // The last one first, for a caller that computes from the front meanwhile and says with
  // Ticket::Meet how far it is. Nothing is found before it all follows on what was computed.
  kFromEnd = 2,
};

struct LoadOptions {
  uint64_t timeout_us = 0;  // what is not there by then is not waited for; 0: no limit
  LoadOrder order = LoadOrder::kFromFront;
  // Called once, when the load has ended, on a thread of the store, which waits for it, and so does
  // the end of the ticket. May be empty.
  std::function<void()> on_done{};
};

struct LoadProgress {
  uint64_t blocks = 0;        // to be loaded
  uint64_t blocks_ready = 0;  // loaded and verified, all layers
  uint64_t bytes = 0;         // of all blocks
  // kFromEnd: tokens of the prompt before what has come. Computing on from there is of no use.
  uint64_t meet_tokens = 0;
  uint64_t elapsed_us = 0;  // by the store's clock, to its end
};

/// A load under way. What has come is held until the ticket ends.
///
/// Threads:  one at a time
/// Lifetime: the cache must outlive it
class Ticket {
 public:
  Ticket(Ticket&&) noexcept;
  Ticket& operator=(Ticket&&) noexcept;
  /// Cancels what has not come.
  ~Ticket();

  bool IsDone() const;
  LoadProgress progress() const;
  /// Of a load kFromEnd: what was resident when it began, pinned once more, as a plan of the first
  /// `tokens` of the prompt, to compute from. At least one token of it is missing. It counts as no
  /// lookup: the plan of Take does.
  Plan Front(uint64_t tokens) const;
  /// Of a load kFromEnd: the first `tokens` of a prompt are computed and published, and the caller
  /// holds them until this ends. Blocks that end there are not read any more, and their room comes
  /// back; when all after them have come it is done. More than before, or it changes nothing.
  void Meet(uint64_t tokens);
  /// Returns when it has ended, or after so long: whether it has.
  bool WaitFor(uint64_t timeout_us) const;
  /// What has not come yet will not be waited for.
  void Cancel();
  /// Waits for the end. The plan it was made from, with everything that was loaded resident and
  /// pinned; its misses say why the rest was not. Uses the ticket up.
  Plan Take();

 private:
  friend class cache::Loading;
  explicit Ticket(std::shared_ptr<cache::LoadJob> job);
  void Drop();
  std::shared_ptr<cache::LoadJob> job_;
};

}  // namespace quire

#endif  // QUIRE_DISK_STORE_H_
