// Places in the one order in which locks are taken, and the check that every thread keeps it.
#ifndef QUIRE_BASE_LOCK_RANKS_H_
#define QUIRE_BASE_LOCK_RANKS_H_

#include <cstdint>

namespace quire {

/// A place in the one order in which locks are taken: a thread that holds rank r may only take a
/// rank above r, so two threads cannot wait for each other. All of them, lowest first:
enum class LockRank : uint16_t {
  kRegistryResize = 1,  // registry::Registry: one Resize at a time
  kRegistry = 2,        // registry::Registry: which owners and caches there are
  kOwner = 3,           // registry::OwnerCache: the blocks of its sequence
  kOwnerLayer = 4,      // registry::OwnerCache: one writer of a layer
  kCachePin = 5,        // cache::Core: one Pin at a time
  kCacheResize = 6,     // cache::Core: one Resize at a time
  kMover = 7,           // cache::Mover: one Tick at a time
  kSequences = 8,       // cache::Core: which sequences there are
  kReading = 9,         // cache::Core: one block is read without a hold
  kSequence = 10,       // cache::SequenceImpl
  kCache = 20,          // cache::Core: index, accounts, slots
  kPool = 30,           // pool::Pool
  kDeviceOps = 35,      // cuda: staging memory of block operations
  kBlockStoreC = 39,    // embed: batches of a quire_store that ended
  kBlockStore = 40,     // store: batches of a BlockStore
  kLeaf = 65535,        // nothing else is taken while it is held
};

/// What the calling thread holds; nothing is kept or checked without QUIRE_DEBUG_CHECKS.
namespace lock_ranks {

/// Stops if a lock of this rank may not be waited for now.
void CheckOrder(LockRank rank);
/// The thread holds one, of the highest rank so far.
void Remember(LockRank rank);
/// It does no longer. Stops if it never did.
void Forget(LockRank rank);

}  // namespace lock_ranks
}  // namespace quire

#endif  // QUIRE_BASE_LOCK_RANKS_H_
