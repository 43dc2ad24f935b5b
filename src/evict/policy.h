// Which block goes first when room is needed. A policy decides and does nothing: no lock, no clock,
// no I/O, no knowledge of the index.
#ifndef QUIRE_EVICT_POLICY_H_
#define QUIRE_EVICT_POLICY_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "quire/identity.h"

namespace quire::evict {

/// Facts about a block that becomes evictable. A policy uses those that it understands; a missing
/// fact makes its choice worse, never incorrect.
struct BlockFacts {
  /// Names the block's tokens with all before them: uniform bits, equal for equal content, so that
  /// a block is known again after it was evicted. 0: unknown.
  uint64_t key = 0;
  /// The block before it. None: the first of its path, or unknown.
  BlockId parent = {};
  /// Blocks before it in its path.
  uint32_t depth = 0;
  /// 0 to 100: the lowest goes first. Holds until expires_ms, then counts as unset.
  uint8_t priority = 50;
  /// In the time of RequestFacts. 0: never.
  uint64_t expires_ms = 0;
};

/// A use of one whole path.
struct RequestFacts {
  uint64_t time_ms = 0;  // never goes back
  /// BlockFacts::key of the path's whole blocks, the prompt's and then the generated ones, first
  /// block first. Read before the call returns.
  std::span<const uint64_t> keys = {};
  uint64_t prompt_tokens = 0;
  uint64_t output_tokens = 0;
  /// Of the keys' blocks, from the first on: those that it asked for, and of these those that were
  /// there. The rest is new, or must be computed in any case.
  uint64_t asked_blocks = 0;
  uint64_t hit_blocks = 0;
};

/// The set of evictable blocks and an order on it. The same calls give the same victims.
///
/// The caller keeps two promises, and the victim is then always a leaf of the index, so that
/// evicting never cuts a path in two:
///   1. a lease covers a whole path from the root, so an evictable block has no leased descendant;
///   2. when a lease ends, its blocks are added deepest first, so a parent is more recent than its
///      descendants.
/// Policies with another order than recency also need BlockFacts::parent for that.
///
/// Errors:  none; adding a block twice or removing one that is not here stops (QUIRE_CHECK)
/// Threads: not synchronised; the caller holds its lock
class Policy {
 public:
  virtual ~Policy() = default;

  virtual std::string_view name() const = 0;
  /// A policy of the same kind for other blocks of the same cache. What both keep by block id lies
  /// in one table: a block is known to one of them at a time.
  virtual std::unique_ptr<Policy> MakeSibling() const = 0;
  /// Most heap that a block in the cache takes, all siblings together.
  virtual uint64_t bytes_per_block() const = 0;
  /// Whether it remembers blocks that left the cache.
  virtual bool has_history() const { return false; }
  /// Limits the heap for that; unlimited before the first call.
  virtual void SetHistory(uint64_t bytes) { (void)bytes; }
  /// Whether it uses Begin; the facts for Begin cost the caller a walk over the path.
  virtual bool hears_requests() const { return false; }
  /// Whether it uses BlockFacts::priority and expires_ms.
  virtual bool heeds_priorities() const { return false; }
  /// Whether it uses Advance.
  virtual bool hears_time() const { return false; }
  /// Sets the current time, which never goes back.
  virtual void Advance(uint64_t time_ms) { (void)time_ms; }
  /// The blocks added until End were used by this request. A block added outside of a request (by a
  /// view or a pin that held it last) only becomes recent: its class, and what counts requests,
  /// stay as they were.
  virtual void Begin(const RequestFacts& request) { (void)request; }
  virtual void End() {}
  /// The policy's own state of one request while other calls come in between.
  struct Use {
    virtual ~Use() = default;
  };
  /// Begin in pieces, for long paths: takes in some of the request, looking at `keys_left` keys at
  /// most, which it counts down. False: there is more, to be asked for with the same request and
  /// `use`, null at first. In between other calls may come; the request is under way when this was
  /// true.
  virtual bool BeginSome(const RequestFacts& request, std::unique_ptr<Use>& use,
                         uint64_t& keys_left) {
    (void)use;
    (void)keys_left;
    Begin(request);
    return true;
  }
  /// Between Begin and End other calls may come that belong to no request, or to another one: Pause
  /// takes out what Begin has set, until Resume puts it back. Null: nothing was set.
  virtual std::unique_ptr<Use> Pause() { return nullptr; }
  virtual void Resume(std::unique_ptr<Use> use) { (void)use; }
  /// The block became evictable (its last lease ended) and is now the most recently used.
  virtual void Add(BlockId block) = 0;
  virtual void Add(BlockId block, const BlockFacts& facts) {
    (void)facts;
    Add(block);
  }
  /// The block is leased again.
  virtual void Remove(BlockId block) = 0;
  /// The block is gone because room was needed: removed, and remembered where a policy learns from
  /// that. Its id may stand for another block next.
  virtual void Evict(BlockId block) { Remove(block); }
  /// The block is gone for another reason, which teaches nothing.
  virtual void Forget(BlockId block) { Evict(block); }
  /// The block to evict next; nothing changes until it is removed. Empty when nothing is evictable.
  virtual std::optional<BlockId> Victim() const = 0;
  /// Evictable blocks.
  virtual uint64_t size() const = 0;
};

}  // namespace quire::evict

#endif  // QUIRE_EVICT_POLICY_H_
