// Places in the one order in which locks are taken, and the check that every thread keeps it.
#ifndef QUIRE_BASE_LOCK_RANKS_H_
#define QUIRE_BASE_LOCK_RANKS_H_

#include <cstdint>

namespace quire {

/// A place in the one order in which locks are taken: a thread that holds rank r may only take a
/// rank above r, so two threads cannot wait for each other. Write LockRank{20}.
enum class LockRank : uint16_t {
  kLeaf = 65535,  // nothing else is taken while it is held
};

/// What the calling thread holds; nothing is kept or checked without QUIRE_DEBUG_CHECKS.
namespace lock_ranks {

/// Stops if a lock of this rank may not be waited for now.
void CheckOrder(LockRank rank);
/// The thread holds one; it may be below others if it could not have waited for it.
void Remember(LockRank rank);
/// It does no longer. Stops if it never did.
void Forget(LockRank rank);

}  // namespace lock_ranks
}  // namespace quire

#endif  // QUIRE_BASE_LOCK_RANKS_H_
