// KV events: tells routers which blocks a cache has, as they come and go, over ZeroMQ and in the
// format of vLLM (docs/events.md).
//
//   auto cache = Cache::Create({..., .announce = true});
//   auto publisher = EventPublisher::Start(
//       *(*cache)->changes(), {.endpoint = "tcp://*:5557", .replay_endpoint = "tcp://*:5558"});
#ifndef QUIRE_EVENTS_H_
#define QUIRE_EVENTS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "quire/error.h"
#include "quire/identity.h"

namespace [[gnu::visibility("default")]] quire {

enum class BlockChangeKind : uint8_t {
  kStored = 1,   // lookups find the block
  kRemoved = 2,  // lookups no longer find it in memory
  kDurable = 3,  // the store below has it too
};

struct BlockChange {
  BlockChangeKind kind = BlockChangeKind::kStored;
  Digest key{};                        // of the block, chained from the key of its identity
  std::optional<Digest> parent_key{};  // kStored: of the block before it; none: it is the first
  std::span<const TokenId> tokens{};   // kStored: [block_tokens], in BlockChanges::tokens
};

/// Some changes, and the memory of their tokens.
struct BlockChanges {
  std::vector<BlockChange> blocks{};
  std::vector<TokenId> tokens{};
};

/// What changed in a cache, for one follower. It is made from the difference between what the cache
/// has and what the follower was told, so no change is lost however seldom it asks, and a block
/// that came and went meanwhile is no change.
///
/// Threads:  one at a time; each call takes the cache's lock for at most 128 blocks at once
/// Lifetime: that of the cache
class ChangeFeed {
 public:
  virtual ~ChangeFeed() = default;

  virtual uint32_t block_tokens() const = 0;
  /// Replaces `changes` by the next ones: first blocks that are gone, then new ones, each after its
  /// parent. False: there are no more now.
  virtual bool Take(BlockChanges& changes) = 0;
  /// Calls visit with the blocks that Take has told of and that are still there, some at a time,
  /// each after its parent, as kStored. One that goes meanwhile, and may be left out, is told of by
  /// Take, also if it comes back.
  virtual void ForEachTold(const std::function<void(const BlockChanges&)>& visit) = 0;
  /// Whether the store below has these blocks for certain; false too where only a remote may.
  ///
  /// Shape: keys and out [n]
  virtual void InStore(std::span<const Digest> keys, std::span<bool> out) = 0;
};

/// As vLLM's KVEventsConfig has them.
struct EventOptions {
  // Where events are published: with '*', or of ipc:// or inproc://, it is bound; else the
  // publisher connects, and the subscriber binds.
  std::string endpoint{};
  // Where missed events are asked for; bound. Empty: nothing repairs what a subscriber missed.
  std::string replay_endpoint{};
  std::string topic{};
  uint64_t buffer_steps = 10'000;  // messages that are kept for it
  uint32_t hwm = 100'000;          // messages that wait for one subscriber; more are lost to it
};

struct EventStats {
  uint64_t messages = 0;   // published
  uint64_t stored = 0;     // blocks
  uint64_t removed = 0;    // blocks
  uint64_t replays = 0;    // answers to subscribers that missed something
  uint64_t snapshots = 0;  // of these, with all blocks
};

/// Publishes the changes of a cache on a thread of its own.
///
/// Threads:  any
/// Lifetime: the feed, and so its cache, must outlive it
class EventPublisher {
 public:
  /// Errors: kUnsupported libzmq is not installed; kInvalidArgument an endpoint that ZeroMQ does
  ///         not know, or no endpoint; kIo it cannot be bound
  static Result<std::unique_ptr<EventPublisher>> Start(ChangeFeed& feed,
                                                       const EventOptions& options);
  /// Publishes what changed until now, and waits for subscribers for at most a second.
  virtual ~EventPublisher() = default;

  virtual EventStats stats() const = 0;
};

}  // namespace quire

#endif  // QUIRE_EVENTS_H_
