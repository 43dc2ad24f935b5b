// Which block goes first when room is needed. A policy decides and does nothing: no lock, no clock,
// no I/O, no knowledge of the index.
#ifndef QUIRE_EVICT_POLICY_H_
#define QUIRE_EVICT_POLICY_H_

#include <cstdint>
#include <optional>
#include <string_view>

#include "quire/ids.h"

namespace quire::evict {

/// The set of evictable blocks and an order on it. The same calls give the same victims.
///
/// The caller keeps two promises, and the victim is then always a leaf of the index, so that
/// evicting never cuts a path in two:
///   1. a lease covers a whole path from the root, so an evictable block has no leased descendant;
///   2. when a lease ends, its blocks are added deepest first, so a parent is more recent than its
///      descendants.
///
/// Errors:  none; adding a block twice or removing one that is not here stops (QUIRE_CHECK)
/// Threads: not synchronised; the caller holds its lock
class Policy {
 public:
  virtual ~Policy() = default;

  virtual std::string_view name() const = 0;
  /// The block became evictable (nobody leases it) and is now the most recently used.
  virtual void Add(BlockId block) = 0;
  /// The block is leased again, or gone.
  virtual void Remove(BlockId block) = 0;
  /// What goes first; nothing changes until it is removed. Empty when nothing is evictable.
  virtual std::optional<BlockId> Victim() const = 0;
  /// Evictable blocks.
  virtual uint64_t size() const = 0;
};

}  // namespace quire::evict

#endif  // QUIRE_EVICT_POLICY_H_
