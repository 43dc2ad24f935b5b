// Blocks on their way to the store: verbs under the lock, and what runs them for the mover. Bytes
// are read and checked between holds.
#ifndef QUIRE_CACHE_BELOW_H_
#define QUIRE_CACHE_BELOW_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cache/locked_state.h"

namespace quire::cache {

/// Most blocks that wait for the store to hear of their use.
inline constexpr size_t kUsedBelowMax = 4096;

/// A form of a published block: all its sealed slots, or its open ones.
struct StoredForm {
  BlockId block{};
  Digest key{};  // of the block; its id may be another's later
  uint64_t block_index = 0;
  bool twins = false;
};

/// What the store is to be given.
struct BlockToWrite {
  StoredForm form{};
  Digest parent_key{};
  uint64_t erase_epoch = 0;  // of the account in the store when it was published
  std::string account{};     // name of who pays for it; empty: the default tenant
  std::vector<TokenId> tokens{};
  PerClass<SlotId> slots{};   // of the form
  PerClass<uint32_t> crcs{};  // of each
  bool is_last = true;        // no other form of the block waits
};

/// A block is to be written, as far as the store lacks it: unless its account keeps nothing below
/// memory, or the block before it will not be there either.
void Offer(State& state, BlockId block);
/// Takes the next block out of the queue. Its slots are State::reading, beside those of others that
/// were taken, until EndReading.
std::optional<BlockToWrite> NextWrite(State& state);
/// A block is handed out: the store shall hear of it.
void NoteUsed(State& state, BlockId block);
/// What of the blocks that were used since is durable below, as far as is remembered; some of it.
std::vector<StoredForm> TakeUsed(State& state);
/// The store lost this, which was durable: it is to be written again.
void OfferAgain(State& state, std::span<const StoredForm> lost);
/// What became of what NextWrite gave. kNothing with `again`: it is the next one again.
void EndWrite(State& state, const StoredForm& form, Below below, bool again);

/// The sections of a record that is to be written.
struct RecordSections {
  std::vector<std::span<const std::byte>> bytes{};
  std::vector<uint32_t> crcs{};  // of each
};

/// What writes records.
struct RecordSink {
  /// As tier::Store::Place and Withdraw.
  std::function<std::span<std::byte>(const BlockToWrite& block)> place{};
  std::function<void(const BlockToWrite& block)> withdraw{};
  /// The bytes are there until it returns.
  std::function<void(const BlockToWrite& block, const RecordSections& sections)> write{};
};

/// Begins to copy slots of one form out as the payload of a record; bytes and checksums are there
/// when a fence of RecordCopies is done. Shape: payload [payload_bytes]
void CopySections(const LockedState& cache, const PerClass<SlotId>& slots, bool twins,
                  std::span<std::byte> payload, RecordSections& sections);

/// What the mover asks of each cache.
///
/// Threads: any
class Storing {
 public:
  explicit Storing(LockedState& cache) : cache_(cache) {}

  const LockedState& cache() const { return cache_; }
  struct Backlog {
    uint64_t queued = 0;      // blocks that wait to be written
    uint64_t lost_total = 0;  // and those that left memory unwritten
  };
  Backlog backlog() const;
  /// Writes the next blocks, at most so many forms: whether there were any. Of a device's a few are
  /// always on their way; where the host copies it is one. It ends early when the store has no
  /// memory for more, and when somebody let go of slots that are still read. A block that does not
  /// have its checksum any more is quarantined instead, and those after it are offered again.
  ///
  /// Errors: kIo names the device that failed before their bytes were on the host: `failed` forms
  ///         are not written
  Result<bool> WriteNext(uint64_t most, const RecordSink& sink, uint64_t& failed);
  void EndWrite(const StoredForm& form, Below below, bool again);
  /// What was handed out of memory since the last call and is durable below; some of it, in the
  /// order of use.
  std::vector<StoredForm> TakeUsed();
  /// Of that, the store does not have this any more.
  void OfferAgain(std::span<const StoredForm> lost);

 private:
  /// A form on its way: taken out of the queue, until it is given to the store or put back.
  struct Taken {
    BlockToWrite block{};
    bool placed = false;              // in the store's memory
    std::optional<uint32_t> chunk{};  // else of the staging memory, if it is copied
    std::unique_ptr<Fence> there{};   // when it is
    RecordSections sections{};
  };

  void TakeNext(std::deque<Taken>& coming, uint64_t most, const RecordSink& sink);
  bool EndTaken(const Taken& taken);
  void Fetch(Taken& taken, const RecordSink& sink);
  Result<void> Await(const Taken& taken) const;
  bool IsIntact(const Taken& taken) const;

  LockedState& cache_;
};

}  // namespace quire::cache

#endif  // QUIRE_CACHE_BELOW_H_
