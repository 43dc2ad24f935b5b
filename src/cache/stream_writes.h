// The writing half of a sequence that streams: its blocks go to the store as soon as they are
// whole, and may leave memory when they are durable there.
#ifndef QUIRE_CACHE_STREAM_WRITES_H_
#define QUIRE_CACHE_STREAM_WRITES_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cache/record_chain.h"
#include "quire/error.h"
#include "tier/store.h"

namespace quire::cache {

/// Threads:  one at a time, the sequence's writer
/// Lifetime: the chain must outlive it
class StreamWrites {
 public:
  /// The store has the first `durable` blocks.
  StreamWrites(const RecordChain& chain, uint64_t durable);
  /// Waits for what is under way, or takes it back.
  ~StreamWrites();
  StreamWrites(const StreamWrites&) = delete;
  StreamWrites& operator=(const StreamWrites&) = delete;

  /// Blocks that were given to the store, or that it had.
  uint64_t begun() const { return durable_ + writes_.size(); }
  /// Writes the block after these, which the chain has. Its slots stay as they are until it is
  /// durable or cut. Shape: slots of all groups
  void Write(const PerClass<SlotId>& slots);
  /// Returns whether the first `blocks` blocks are durable, waiting so long for it.
  bool Await(uint64_t blocks, uint64_t timeout_us);
  /// Blocks that are durable, each with all before it.
  uint64_t durable() const { return durable_; }
  /// Blocks from here on are not its own any more; nothing reads their slots when it returns.
  void Cut(uint64_t blocks);
  /// Why the block after the durable ones is not, as far as is known. Empty: nothing failed.
  std::string failure() const;

 private:
  class BlockWrite;

  void TakeEnded();
  Mover& mover() const { return *chain_.cache().mover(); }

  const RecordChain& chain_;
  uint64_t durable_;
  std::deque<std::shared_ptr<BlockWrite>> writes_;  // of blocks [durable_, begun())
  std::optional<tier::StoreOutcome> failure_{};     // of the first of them
};

}  // namespace quire::cache

#endif  // QUIRE_CACHE_STREAM_WRITES_H_
