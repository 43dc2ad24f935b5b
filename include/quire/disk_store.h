// The store below memory: published blocks are written there in the background, and a later process
// finds them.
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
#include "quire/store.h"

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
  // Blocks published within this time may be lost in a crash. They are written evenly over three
  // quarters of it, and committed in the last: a longer interval disturbs computation less.
  uint64_t commit_interval_us = 1'000'000;
  // Memory in front of the disk that also keeps written and loaded records: for caches on a device.
  // Hard; 0: none. Without a directory it ends with the process.
  uint64_t warm_bytes = 0;
  // The allocator of that memory, which is taken when the store is opened: pinned, for a device.
  // Null, or when it refuses (with one warning): ordinary memory. It must outlive the store.
  HostAllocator* host_allocator = nullptr;
  // Memory for bytes on their way to and from the disk. Besides it a store takes its index, and up
  // to 16 MiB of headers where contexts stream.
  uint64_t staging_bytes = uint64_t{64} << 20;
  uint64_t scrub_bytes_per_s = uint64_t{8} << 20;  // re-reads its records at this rate; 0: never
  // A service that many machines share, behind all others: redis://HOST, rediss://HOST or
  // s3://BUCKET (docs/remote.md). Empty: none.
  std::string remote{};
  // A file of 32 random bytes that those machines have in common, without which they find nothing
  // of one another. With it Secret() is the same on all of them.
  std::string fleet_key_file{};
  RemoteWrites remote_writes = RemoteWrites::kReused;
  // Of an encrypted directory. Memory is not encrypted; a remote is, by the fleet's key.
  StoreKeys keys{};
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

/// Counters and sizes of a store.
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
/// It writes the blocks that they publish, a commit interval later at the latest, also if they are
/// evicted meanwhile; no call waits for it. One process at a time owns a directory.
///
/// Threads:  any
/// Lifetime: must outlive the caches that name it, and their tickets
class DiskStore {
 public:
  /// Opens the store in a directory, or makes one.
  ///
  /// Errors: kInvalidArgument the options, for example neither a directory nor warm_bytes nor a
  ///         remote, or keys that are not those of the store; kCorrupt its wrapped keys are
  ///         damaged; kBusy another process has it; kUnsupported a newer version wrote it;
  ///         kNotFound a file that opens the remote, or a key file; kNoSpace; kIo
  /// Cost:   reads the catalogue, not the payload; waits up to 2 s for a remote that does not
  ///         answer, which is no error
  static Result<std::unique_ptr<DiskStore>> Open(const DiskStoreOptions& options);
  /// Ends without waiting for records that are not durable yet: call Flush before.
  ~DiskStore();
  DiskStore(const DiskStore&) = delete;
  DiskStore& operator=(const DiskStore&) = delete;

  /// Returns when every block that was published before is durable, or cannot be written.
  /// Errors: kIo, kNoSpace some of it could not be written
  Result<void> Flush();
  DiskStoreStats stats() const;
  /// A secret for Domain::secret, made with the store and kept beside it in a file that its owner
  /// alone may read; without a directory it ends with the store. With a fleet's key it follows from
  /// that, and with keys from what they wrap: then it is in no file. Without the secret nothing in
  /// the store is found.
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
  kFromFront = 1,  // so that loaded blocks can be used even if later ones fail
  // The last one first, for a caller that computes from the beginning meanwhile and reports its
  // progress with Ticket::Meet. Loaded blocks are found once they follow on computed ones.
  kFromEnd = 2,
  // The first layers of all blocks, then the next ones, for a caller that computes what follows
  // meanwhile, layer by layer: Ticket::Arriving. It asks the store more often, for less.
  kByLayer = 3,
};

struct LoadOptions {
  uint64_t timeout_us = 0;  // blocks that are not there by then count as not loaded; 0: no limit
  LoadOrder order = LoadOrder::kFromFront;
  // kByLayer: in so many slices the layers of a block are read, 1 to 8.
  uint32_t slices = 2;
  // kByLayer: called each time that layers_ready has grown before the end, as on_done is. May be
  // empty.
  std::function<void()> on_layers{};
  // Called once, when the load has ended, on a thread of the store. That thread, and the end of the
  // ticket, wait for it. May be empty.
  std::function<void()> on_done{};
};

struct LoadProgress {
  uint64_t blocks = 0;        // to be loaded
  uint64_t blocks_ready = 0;  // loaded and verified, all layers
  uint64_t bytes = 0;         // of all blocks but those that another load brought
  // kFromEnd: tokens of the prompt before the loaded blocks. Computing beyond them is of no use.
  uint64_t meet_tokens = 0;
  // kByLayer: the first so many layers of all blocks that the load brings are there and verified;
  // all layers when it has ended, unless one did not come. 0 where it comes as from the front.
  uint32_t layers_ready = 0;
  uint64_t elapsed_us = 0;  // by the store's clock, to its end
};

/// A load under way. Loaded blocks are held until the ticket ends.
///
/// Threads:  one at a time
/// Lifetime: the cache must outlive it
class Ticket {
 public:
  Ticket(Ticket&&) noexcept;
  Ticket& operator=(Ticket&&) noexcept;
  /// Cancels the blocks that have not come.
  ~Ticket();

  bool IsDone() const;
  LoadProgress progress() const;
  /// For a load kFromEnd: a plan of the first `tokens` of the prompt, to compute from, with the
  /// blocks that were resident when the load began, pinned once more. At least one token is
  /// missing. It counts as no lookup: the plan of Take does.
  Plan Front(uint64_t tokens) const;
  /// For a load kFromEnd: the first `tokens` of the prompt are computed and published, and the
  /// caller holds them until the ticket ends. Blocks that end there are not read any more, and
  /// their room comes back; the load is done when all later blocks have come. Fewer tokens than
  /// before change nothing.
  void Meet(uint64_t tokens);
  /// For a load kByLayer some of whose layers are ready: a plan that has the blocks on their way as
  /// resident ones, pinned. It counts as no lookup: the plan of Take does. A sequence that is
  /// opened from it has the tokens of a layer when Sequence::AwaitLayer says so. Where a block does
  /// not come, AwaitLayer fails, and what was computed from the others is to be dropped.
  ///
  /// Errors: kUnsupported not kByLayer; kBusy no layer is ready, or the load has ended or fails:
  ///         wait for its end
  Result<Plan> Arriving() const;
  /// Waits at most so long; whether the load has ended.
  bool WaitFor(uint64_t timeout_us) const;
  /// Cancels reading: blocks that have not come will not be waited for.
  void Cancel();
  /// Waits for the end. Returns the plan that the load was made from, with every loaded block
  /// resident and pinned; its misses give the reasons for the others. Uses the ticket up.
  Plan Take();

 private:
  friend class cache::Loading;
  explicit Ticket(std::shared_ptr<cache::LoadJob> job);
  void Drop();
  std::shared_ptr<cache::LoadJob> job_;
};

}  // namespace quire

#endif  // QUIRE_DISK_STORE_H_
