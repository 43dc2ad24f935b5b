// A store of opaque blocks on a local disk: bytes by (namespace, key), under a hard cap, found
// again after a restart. The caller decides what a block contains; everything that decides its
// bytes belongs into the key or the namespace (engine and version, weights, dtype, block size,
// parallel layout). One process owns a directory; others use it through that one's socket
// (`quire store serve`).
#ifndef QUIRE_STORE_H_
#define QUIRE_STORE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "quire/error.h"

namespace [[gnu::visibility("default")]] quire {

/// What opens an encrypted store (docs/encryption.md): one of these, or nothing for a store that is
/// not. A store that has nothing yet is encrypted when one is given, and needs it from then on.
struct StoreKeys {
  // A file of 32 bytes, or of 64 hexadecimal digits, that its owner alone may read.
  std::string file{};
  // A command of the operator's, for a key management service: /bin/sh runs it with ` wrap` or
  // ` unwrap` behind it, and it turns what it reads into what the other one reads.
  std::string command{};
  // 32 bytes, overwritten when this goes.
  std::vector<uint8_t> key{};

  ~StoreKeys() {
    volatile uint8_t* const bytes = key.data();
    for (size_t i = 0; i < key.size(); ++i) bytes[i] = 0;
  }
  bool empty() const { return file.empty() && command.empty() && key.empty(); }
};

struct BlockStoreOptions {
  // Made when it does not exist; its parent must. "unix:PATH": the store that another process
  // serves at this socket; everything below is its owner's choice then, and is not looked at, but
  // for keys, which are refused.
  std::string directory{};
  uint64_t bytes_cap = uint64_t{8} << 30;  // of all files of the store together, never exceeded
  // Longest block, up to 2 GiB - 12 KiB. 0: 64 MiB, or a sixteenth of the cap where that is less. A
  // store that exists may allow less (BlockStoreStats::block_bytes_max): its segments stay as long
  // as they were made.
  uint64_t block_bytes_max = 0;
  // What a crash may lose. A Put that no other follows is made durable at once.
  uint64_t commit_interval_us = 20'000;
  uint64_t scrub_bytes_per_s = uint64_t{8} << 20;  // read again in the background; 0: nothing
  uint32_t disk_requests_max = 64;  // that the disk works on at the same time; at most 4,096
  // Of the blocks that were put or read last, which are kept in memory too; 0: none.
  uint64_t memory_bytes = uint64_t{256} << 20;
  // A Put ends when its block can be found: in memory, if it has room there. It becomes durable
  // soon after; when a later Flush ends it is, or the disk did not take it
  // (BlockStoreStats::puts_lost). false: a Put ends when it is durable.
  bool accepts_puts = false;
  StoreKeys keys{};  // of an encrypted store
};

/// How a request about one block ended. The numbers are frozen.
enum class BlockOutcome : uint8_t {
  kOk = 0,        // Put: durable, or accepted. Remove: durable. Get: verified and copied. Exists:
                  // it is there
  kPresent = 1,   // Put: it was there, or is being written, and stays as it is
  kAbsent = 2,    // Get, Exists, Remove: it is not there
  kDamaged = 3,   // Get: the bytes were not those of the block, which is forgotten. A miss, as
                  // kAbsent is
  kTooSmall = 4,  // Get: it is longer than `out`
  kTooLarge = 5,  // longer than block_bytes_max; a key or a namespace that no socket takes
  kNoSpace = 6,   // Put: the disk is full, or the quota below what the store recycles at once
  kIo = 7,        // the disk failed. Remove: not found any more, but it may be after a restart
  kClosed = 8,    // the store was closed before
  kUnreachable = 9,  // the process that serves the store went away, or is not there. What was to be
                     // changed may have been
};
inline constexpr size_t kBlockOutcomeCount = 10;

/// Name of an outcome as in logs, for example "absent".
std::string_view BlockOutcomeName(BlockOutcome outcome);

struct BlockResult {
  BlockOutcome outcome = BlockOutcome::kOk;
  // Get: the block's length, with kOk and kTooSmall. Exists: most that it may have, at most 4,095
  // above its length.
  uint64_t bytes = 0;

  bool operator==(const BlockResult&) const = default;
};

/// A block to write: any number of bytes up to block_bytes_max, also none. `data` is read until the
/// batch ends.
struct BlockPut {
  std::string_view key{};
  std::span<const std::byte> data{};
};

/// A block to read. `out` is written until the batch ends. Only with kOk it holds the block, in its
/// first BlockResult::bytes; else nothing in it means anything.
struct BlockGet {
  std::string_view key{};
  std::span<std::byte> out{};
};

/// A batch that ended: one result for each of its blocks, in their order.
struct BlockBatch {
  uint64_t id = 0;
  std::vector<BlockResult> results{};
};

/// Numbers of the store; counters are of this opening.
struct BlockStoreStats {
  uint64_t blocks = 0;           // that are durable
  uint64_t bytes = 0;            // of all files, what is preallocated included
  uint64_t bytes_cap = 0;        //
  uint64_t bytes_live = 0;       // that blocks take on disk
  uint64_t block_bytes_max = 0;  // longest block
  uint64_t memory_bytes = 0;     // index, staging, and blocks in memory
  uint64_t bytes_written = 0;    // to the disk
  uint64_t bytes_read = 0;       // from the disk
  uint64_t evicted = 0;          // blocks that made room for others
  uint64_t damaged = 0;          // blocks that were found damaged, and forgotten
  uint64_t puts = 0;             // that ended with kOk
  uint64_t puts_present = 0;     // kPresent
  uint64_t puts_failed = 0;      // anything else
  uint64_t hits = 0;             // Gets that ended with kOk
  uint64_t misses = 0;           // kAbsent, kDamaged
  uint64_t gets_failed = 0;      // anything else
  uint64_t removed = 0;          // Removes that ended with kOk
  bool disk_full = false;        // no more files can be made
  uint64_t puts_lost = 0;        // that were accepted, and which the disk did not take
  uint64_t memory_hits = 0;      // of `hits`: out of memory
  uint64_t clients = 0;          // connected to the process that serves it; 0: it is not served
};

/// How much of a store one namespace may and will have, in bytes of files; rounded down to what the
/// store recycles at once (twice block_bytes_max, by and large).
struct NamespaceLimits {
  uint64_t bytes_quota = ~uint64_t{0};  // never more
  uint64_t bytes_floor = 0;             // others never make it less
};

/// What one namespace has on disk.
struct NamespaceUsage {
  uint64_t blocks = 0;      // that can be found
  uint64_t bytes_live = 0;  // of these
  uint64_t bytes = 0;       // of the files that are its own: what limits are compared with

  bool operator==(const NamespaceUsage&) const = default;
};

/// A store: a directory, owned by one process at a time, or a connection to its owner.
///
/// Put, Get, Exists, Remove, Erase and Flush hand in a batch and return its number at once;
/// failures are in the results. A batch ends once: in the call of Wait for it, else in Drain.
/// Batches that are under way at the same time take effect in any order.
///
/// Names:    namespaces do not see each other's keys. Each is written to files of its own, so there
///           should be fewer of them than a quarter of bytes_cap / (2 * block_bytes_max)
/// Contents: a key names its bytes for good: Put leaves a block that is there as it is. To replace
///           one, Remove it first and wait
/// Room:     when the cap is reached the blocks that were used longest ago go, by files
/// Crashes: durable blocks are found after kill -9 and after a power cut, unless room was needed.
///           Wrong bytes never come back (docs/durability.md)
/// Owner:    when the process that serves the store goes away, what is under way ends with
///           kUnreachable. The next batch connects again if it is back
/// Threads:  any, for all calls at once, but for the destructor
class BlockStore {
 public:
  /// Opens the store in a directory, or makes one; or connects to the process that serves one.
  ///
  /// Errors: kInvalidArgument no directory, sizes that no store can have, or keys that are not
  ///         those of the store; kCorrupt its wrapped keys are damaged; kBusy another process
  ///         (or object) has it, or its owner serves as many clients as it may; kUnsupported a
  ///         newer version wrote it, or serves it; kNotFound no such socket, or no key
  ///         file; kDeadline its owner does not answer; kNoSpace; kIo
  static Result<std::unique_ptr<BlockStore>> Open(const BlockStoreOptions& options);
  /// Close.
  ~BlockStore();
  BlockStore(const BlockStore&) = delete;
  BlockStore& operator=(const BlockStore&) = delete;

  /// Writes blocks. They can be found when the batch ends, and are durable then unless the store
  /// accepts_puts.
  /// Cost: one hash per key now; bytes are copied and checksummed by the store's thread
  uint64_t Put(std::string_view name_space, std::span<const BlockPut> blocks);
  uint64_t Get(std::string_view name_space, std::span<const BlockGet> blocks);
  /// Looks into the index alone: a block that is there may still be a miss when it is read. Without
  /// a socket the batch ends before this returns.
  uint64_t Exists(std::string_view name_space, std::span<const std::string_view> keys);
  uint64_t Remove(std::string_view name_space, std::span<const std::string_view> keys);
  /// Forgets everything in a namespace, for good: one result, kOk when that is durable. Puts that
  /// are under way in it may be forgotten too, and end with kOk then. A later Flush ends when the
  /// bytes are overwritten.
  uint64_t Erase(std::string_view name_space);
  /// Ends, without results, when everything handed in before is durable or failed. Nothing waits
  /// for the commit interval then.
  uint64_t Flush();

  /// Waits for the end of one batch and takes it.
  ///
  /// Errors: kDeadline not in time, it goes on; kNotFound no such batch, or it was taken
  Result<BlockBatch> Wait(uint64_t batch, uint64_t timeout_us = ~uint64_t{0});
  /// Takes the batches that ended and that no call waits for, in the order in which they ended.
  std::vector<BlockBatch> Drain();
  /// A descriptor for poll and event loops: readable when Drain may have something. It is the
  /// store's; do not read or close it.
  int event_fd() const;

  /// Limits a namespace, as long as its directory stays open. What it has beyond its quota goes
  /// when it is written to again.
  ///
  /// Errors: kIo, kDeadline of a store that is served: its owner does not answer
  Result<void> SetLimits(std::string_view name_space, const NamespaceLimits& limits);
  /// Errors: as SetLimits; kInvalidArgument the store is closed
  Result<NamespaceUsage> Usage(std::string_view name_space) const;

  /// Ends everything that was handed in, makes it durable and lets go of the directory. Batches
  /// that ended can still be taken; those handed in from now on end with kClosed.
  void Close();
  /// Of a store that is served: of its owner, over all its clients; the last known ones while that
  /// does not answer.
  BlockStoreStats stats() const;

  class Impl;

 private:
  explicit BlockStore(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace quire

#endif  // QUIRE_STORE_H_
