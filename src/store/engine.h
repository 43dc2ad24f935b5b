// What a BlockStore does, without its thread: requests about single blocks become requests of the
// cold tier, and end.
#ifndef QUIRE_STORE_ENGINE_H_
#define QUIRE_STORE_ENGINE_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <vector>

#include "env/files.h"
#include "quire/env.h"
#include "quire/store.h"
#include "store/opaque.h"
#include "tier/cold.h"
#include "tier/warm.h"
#include "transfer/transfers.h"

namespace quire::store {

enum class RequestKind : uint8_t { kPut, kGet, kRemove, kErase, kFlush };

/// One block of a batch, from Begin until a Turn that says it ended. Stays where it is meanwhile.
struct Request {
  RequestKind kind = RequestKind::kFlush;
  tier::RecordIdentity identity{};
  std::span<const std::byte> data{};      // Put
  std::span<std::byte> out{};             // Get
  std::unique_ptr<LastPage> last_page{};  // Get
  void* owner = nullptr;                  // of the batch, which hears of the end
  uint32_t index = 0;                     // in its batch
  BlockResult result{};

  // The engine's.
  std::optional<tier::RecordLayout> layout{};  // Get, while the cold tier reads
  std::array<std::span<std::byte>, 2> sections{};
  std::array<uint32_t, 2> crcs{};  // of these
  uint64_t body_bytes = 0;
  std::optional<uint64_t> refused_us{};  // Put: when the cold tier was first too busy for it
};

/// The cold tier's options for a store of blocks, with every 0 replaced.
/// Errors: kInvalidArgument
Result<tier::ColdOptions> ToColdOptions(const BlockStoreOptions& options);

/// A client of the transfers of a cold tier behind a warm one, which give it its turns.
///
/// Threads: one at a time, but for EpochOf, Find, stats, puts_lost, memory_hits, block_bytes_max
class BlockEngine {
 public:
  /// `files` and `clock` must outlive it.
  /// Errors: as BlockStore::Open
  static Result<std::unique_ptr<BlockEngine>> Open(const BlockStoreOptions& options, Files& files,
                                                   const Clock& clock);

  /// Begins a request; a later Turn ends it.
  void Begin(Request& request);
  /// Gives what waits, and appends what ended.
  transfer::Worker::Turned Turn(std::vector<Request*>& ended);
  /// Requests that began and did not end.
  uint64_t under_way() const { return under_way_; }
  /// Some of them are not given yet.
  bool has_waiting() const { return !waiting_.empty(); }

  transfer::Transfers& transfers() { return transfers_; }
  uint64_t EpochOf(const tier::PublisherId& publisher) const {
    return transfers_.EpochOf(publisher);
  }
  /// Most bytes that the block of a key may have; nothing when it is not there.
  std::optional<uint64_t> Find(const Digest& key) const;
  tier::StoreStats stats() const { return transfers_.stats(); }
  uint64_t puts_lost() const { return puts_lost_; }
  uint64_t memory_hits() const { return memory_.warm_stats().loads; }
  uint64_t block_bytes_max() const { return block_bytes_max_; }

 private:
  BlockEngine(const BlockStoreOptions& options, const Clock& clock,
              std::unique_ptr<tier::WarmStore> memory, uint64_t block_bytes_max);

  void GiveWaiting();
  void Put(Request& request);
  void Get(Request& request);
  void TakePut(Request& request, tier::StoreOutcome outcome);
  void TakeAccepted(const Digest& key, tier::StoreOutcome outcome);
  void TakeGet(Request& request, tier::StoreOutcome outcome);
  void End(Request& request, BlockOutcome outcome, uint64_t bytes = 0);

  const BlockStoreOptions options_;
  const Clock& clock_;
  const tier::WarmStore& memory_;  // of the transfers
  transfer::Transfers transfers_;
  transfer::Ends ends_{transfers_, /*wakes=*/true};
  const uint64_t block_bytes_max_;
  LastPage last_page_{};          // of the block that is being put
  std::deque<Request*> waiting_;  // Puts and Flushes, in their order
  uint32_t flushes_waiting_ = 0;  // of these
  std::set<Digest> accepted_;     // keys of Puts that have ended and are not durable yet
  std::atomic<uint64_t> puts_lost_ = 0;
  bool loses_puts_ = false;  // the last accepted one was lost
  uint64_t under_way_ = 0;
  std::vector<Request*> ended_;
};

}  // namespace quire::store

#endif  // QUIRE_STORE_ENGINE_H_
