// A store: a tier below memory. Asynchronous and batched, it takes records and finds them by key,
// and answers with the bytes of exactly that identity or with a reason.
#ifndef QUIRE_TIER_STORE_H_
#define QUIRE_TIER_STORE_H_

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "tier/record.h"

namespace quire::tier {

/// How a request ended. The numbers are indices of counters.
enum class StoreOutcome : uint8_t {
  kOk = 0,            // Put: durable. Get: verified and copied. Erase, Flush: durable
  kPresent = 1,       // Put: the store has it, durable
  kAbsent = 2,        // Get: the store does not have it
  kMiss = 3,          // Get: what lies there is not it; StoreCompletion::miss says why
  kErased = 4,        // from before its publisher was erased
  kUnknownEpoch = 5,  // Put: the store was not told of this erase epoch, or lost its own
  kIo = 6,            // the disk failed; Put: also while the epoch cannot be made durable
  kDeadline = 7,      // Get: not in time
  kCancelled = 8,     //
  kBusy = 9,          // Put: everything that may be in flight is, or its epoch is not durable yet
  kNoSpace = 10,      // Put: the disk is full, or everything is protected by floors
  kQuota = 11,        // Put: the publisher's quota is below one segment
  kTooLarge = 12,     // a record that can never be stored or loaded here
};
inline constexpr size_t kStoreOutcomeCount = 13;
constexpr std::string_view StoreOutcomeName(StoreOutcome outcome) {
  switch (outcome) {
    case StoreOutcome::kOk: return "ok";
    case StoreOutcome::kPresent: return "present";
    case StoreOutcome::kAbsent: return "absent";
    case StoreOutcome::kMiss: return "miss";
    case StoreOutcome::kErased: return "erased";
    case StoreOutcome::kUnknownEpoch: return "unknown_epoch";
    case StoreOutcome::kIo: return "io";
    case StoreOutcome::kDeadline: return "deadline";
    case StoreOutcome::kCancelled: return "cancelled";
    case StoreOutcome::kBusy: return "busy";
    case StoreOutcome::kNoSpace: return "no_space";
    case StoreOutcome::kQuota: return "quota";
    case StoreOutcome::kTooLarge: return "too_large";
  }
  return "unknown";
}

struct StoreCompletion {
  uint64_t tag = 0;
  StoreOutcome outcome = StoreOutcome::kOk;
  RecordMiss miss = RecordMiss::kNone;  // with kMiss
  // Get, with kOk. False: the record is in memory alone, and is worth being Put again.
  bool is_durable = true;

  bool operator==(const StoreCompletion&) const = default;
};

/// A record to write. Everything it points to is the caller's again when Put returns.
struct PutRequest {
  RecordIdentity identity{};
  const RecordLayout* layout = nullptr;
  // [layout->sections()], each of its bytes. Those that lie where Store::Place said are not copied.
  std::span<const std::span<const std::byte>> sections{};
  /// [layout->sections()], the CRC32C of each, where the caller knows them; empty: the store
  /// takes them.
  std::span<const uint32_t> crcs{};
  uint64_t tag = 0;
};

/// A record in the memory of a store, for a caller that reads it there. It stays until
/// Store::Return.
struct Loan {
  uint64_t number = 0;  // 0: nothing was lent
  std::span<const std::byte> payload{};
};

/// Sections of a record to read. Everything it points to, `out` included, must stay until the
/// completion, or until Cancel returns. What `out` and `crcs` hold is of use only when the outcome
/// is kOk; nothing of another record is left there.
struct LoadRequest {
  RecordIdentity identity{};
  const RecordLayout* layout = nullptr;
  uint32_t section_first = 0;
  uint32_t section_count = 0;
  std::span<const std::span<std::byte>> out{};  // [section_count], each of its section's bytes
  std::span<uint32_t> crcs{};  // [section_count], the CRC32C of each; empty: not wanted
  /// Not null: a store that has the record in memory may lend it instead of copying. Its bytes have
  /// been compared with nothing then: that they have the checksums in `crcs` is for the caller to
  /// find out.
  Loan* loan = nullptr;
  uint64_t tag = 0;
};

/// What the keys of a tree of records begin with, and how many tokens its blocks have.
struct RecordRoot {
  Digest key{};
  uint32_t block_tokens = 0;

  auto operator<=>(const RecordRoot&) const = default;
};

enum class Presence : uint8_t { kAbsent, kPresent, kUnknown };

/// A record that is in use.
struct RecordUse {
  Digest key{};
  uint64_t block_index = 0;  // as in its identity
};

/// How much of a store one publisher may and will have, in bytes; a store rounds them down to what
/// it recycles at once.
struct PublisherLimits {
  PublisherId publisher{};
  uint64_t bytes_quota = ~uint64_t{0};  // never more
  uint64_t bytes_floor = 0;             // others never make it less
};

/// What one publisher has in a store.
struct PublisherUsage {
  uint64_t records = 0;     // that can be found
  uint64_t bytes_live = 0;  // of these
  uint64_t bytes = 0;       // of what the store recycles at once: what limits are compared with

  bool operator==(const PublisherUsage&) const = default;
};

struct StoreStats {
  uint64_t records = 0;
  uint64_t bytes = 0;           // of all files, what is preallocated included
  uint64_t bytes_cap = 0;       //
  uint64_t bytes_live = 0;      // of the records that can be found
  uint64_t bytes_erased = 0;    // of erased segments that are not overwritten yet
  uint64_t memory_bytes = 0;    // index, staging, headers
  uint64_t bytes_put = 0;       // of records taken by Put
  uint64_t bytes_written = 0;   // to the disk; / bytes_put is the write amplification
  uint64_t bytes_read = 0;      // from the disk
  uint64_t read_requests = 0;   // of the disk, for loads
  uint64_t bytes_scrubbed = 0;  //
  uint64_t evicted = 0;         // records that went because their segment was written anew
  uint64_t damaged = 0;         // records found to be damaged, and forgotten
  uint64_t renewed = 0;         // records that were sealed with a newer key
  uint64_t in_flight = 0;       // requests of the disk
  uint64_t in_flight_max = 0;   // most there have been
  uint64_t writes_pending = 0;  // records that are not durable yet
  uint64_t loads_pending = 0;   //
  bool disk_full = false;       // no segment can be made
  bool epochs_damaged = false;  // named tenants get nothing until `quire store repair`
  std::array<uint64_t, kStoreOutcomeCount> puts{};   // by outcome
  std::array<uint64_t, kStoreOutcomeCount> loads{};  // by outcome
  std::array<uint64_t, kRecordMissCount> misses{};   // of loads, by reason
  // Loads that were kOk by their time: entry i counts [2^i, 2^(i+1)) microseconds.
  std::array<uint64_t, 32> load_us_log2{};
};

/// A store.
///
/// Every request that has a tag ends with one completion, also those refused at once; completions
/// come out of Tick. No call waits for a request, and none calls back.
///
/// Threads: Find, RecordBytesOf, RootsOf, Stats and UsageOf any thread; everything else one thread
///          at a time, the driver's
class Store {
 public:
  virtual ~Store() = default;

  /// Takes records to write. They can be found once they are durable.
  /// Ends: kOk, kPresent, kErased, kUnknownEpoch, kBusy, kNoSpace, kQuota, kTooLarge; kIo, also
  ///       while the epoch of an erasure cannot be made durable
  /// Cost: copies the bytes, and takes their checksums where the request has none
  virtual void Put(std::span<const PutRequest> requests) = 0;

  /// Memory of the store in which the payload of a record may be made, before it is Put with its
  /// sections there, or withdrawn. Empty: the store has none for it.
  virtual std::span<std::byte> Place(const RecordIdentity& identity, const RecordLayout& layout) {
    (void)identity;
    (void)layout;
    return {};
  }
  /// What Place gave for this key is not to be Put.
  virtual void Withdraw(const Digest& key) { (void)key; }

  /// Which keys the store has: kUnknown where only asking a remote peer would tell.
  virtual void Find(std::span<const Digest> keys, std::span<Presence> out) const = 0;

  /// Roots under which a publisher has first blocks, as far as they are remembered.
  virtual std::vector<RecordRoot> RootsOf(const PublisherId& publisher) const = 0;

  /// From now on. Segments that a publisher has beyond its quota stay until it writes again.
  virtual void SetLimits(const PublisherLimits& limits) = 0;

  /// Records of this length will come: a store that has nothing yet is made for them, as far as its
  /// cap lets it. Bytes of the longest record that it takes.
  virtual uint64_t FitRecords(uint64_t record_bytes) {
    (void)record_bytes;
    return ~uint64_t{0};
  }

  /// These records are in use, as if they had been read; `out` says which are durable.
  virtual void Touch(std::span<const RecordUse> uses, std::span<Presence> out) = 0;

  /// Reads sections of records. `deadline_us` is a time of the store's clock; 0: none.
  /// Ends: kOk, kAbsent, kMiss, kErased, kIo, kDeadline, kCancelled, kTooLarge
  virtual void Get(std::span<const LoadRequest> loads, uint64_t deadline_us) = 0;

  /// Gives back what a Get has lent. `damaged`: it does not have its checksums, and the store shall
  /// not give it again.
  virtual void Return(const Loan& loan, bool damaged) {
    (void)loan;
    (void)damaged;
  }

  /// Ends loads with this tag as kCancelled. When it returns nothing of theirs is touched any more.
  virtual void Cancel(uint64_t tag) = 0;

  /// Forgets everything of a publisher from before `epoch`: at once for lookups, for good when
  /// it completes. Afterwards the space is overwritten.
  /// Ends: kOk durable; kIo not durable, though nothing of it is found until a restart;
  ///       kUnknownEpoch, kNoSpace the same: the table of epochs is damaged, or full
  virtual void Erase(const PublisherId& publisher, uint64_t epoch, uint64_t tag) = 0;

  /// Forgets one record: lookups miss it at once, a restart does when it completes. One that is
  /// being written is removed when it is durable. Its payload stays on a disk until that is
  /// recycled.
  /// Ends: kOk durable; kAbsent; kIo not durable, though it is not found until a restart
  virtual void Remove(const Digest& key, uint64_t tag) = 0;

  /// Bytes of the record of a key, its header included; nothing when the store does not have it.
  virtual std::optional<uint64_t> RecordBytesOf(const Digest& key) const = 0;

  /// Epoch of a publisher: what it publishes must have it.
  virtual uint64_t EpochOf(const PublisherId& publisher) const = 0;

  /// Completes when everything put before is durable (or failed) and everything erased before is
  /// overwritten.
  /// Ends: kOk; kIo something erased is not overwritten, or not durable, and is tried again; or may
  ///       lie where the disk gives no access, or as the table of epochs is damaged, until the
  ///       store is opened again and they are good
  virtual void Flush(uint64_t tag) = 0;

  /// Moves everything on, and appends what ended to `done`. Waits up to `wait_us` for the disk when
  /// nothing can be done at once.
  virtual void Tick(std::vector<StoreCompletion>& done, uint64_t wait_us) = 0;

  virtual StoreStats Stats() const = 0;
  /// As of the last Tick.
  virtual PublisherUsage UsageOf(const PublisherId& publisher) const = 0;
};

}  // namespace quire::tier

#endif  // QUIRE_TIER_STORE_H_
