#include "cache/state/lease_counts.h"

namespace quire::cache {

uint32_t LeaseCounts::LeasedBlocks(BlockId block) const {
  uint32_t leased = 0;  // a lower bound
  uint32_t end = tree_.depth(block) + 1;
  while (leased < end) {
    const uint32_t middle = leased + (end - leased) / 2;
    touched_.Count(1);
    if (of(tree_.AncestorAt(block, middle)) > 0) {
      leased = middle + 1;
    } else {
      end = middle;
    }
  }
  return leased;
}

}  // namespace quire::cache
