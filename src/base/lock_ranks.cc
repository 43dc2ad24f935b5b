#include "base/lock_ranks.h"

#include <array>
#include <cstddef>
#include <string>

#include "base/check.h"

namespace quire::lock_ranks {

#if defined(QUIRE_DEBUG_CHECKS)

namespace {

// The ranks this thread holds, in rising order because each taken lock must be above the last. They
// may be given back in any order.
struct HeldRanks {
  std::array<LockRank, 16> ranks;
  size_t count = 0;
};
thread_local HeldRanks held;

}  // namespace

void CheckOrder(LockRank rank) {
  if (held.count == 0) return;
  const LockRank top = held.ranks[held.count - 1];
  QUIRE_CHECK_MSG(rank > top, "taking a lock of rank " + std::to_string(static_cast<int>(rank)) +
                                  " while holding rank " + std::to_string(static_cast<int>(top)));
}

void Remember(LockRank rank) {
  QUIRE_CHECK(held.count < held.ranks.size());
  held.ranks[held.count++] = rank;
}

void Forget(LockRank rank) {
  size_t place = held.count;
  while (place > 0 && held.ranks[place - 1] != rank) --place;
  QUIRE_CHECK_MSG(place > 0, "giving back a lock that this thread does not hold");
  for (; place < held.count; ++place) held.ranks[place - 1] = held.ranks[place];
  --held.count;
}

#else

void CheckOrder(LockRank) {}
void Remember(LockRank) {}
void Forget(LockRank) {}

#endif

}  // namespace quire::lock_ranks
