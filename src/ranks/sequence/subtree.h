// Merging lane states on the part of the fixed tree that one rank owns.
#ifndef QUIRE_RANKS_SEQUENCE_SUBTREE_H_
#define QUIRE_RANKS_SEQUENCE_SUBTREE_H_

#include <cstdint>

namespace quire::ranks::sequence {

/// Lane states of some rows and heads, in one piece of memory: max [vectors], sum [vectors],
/// out [vectors, dim].
struct States {
  static uint64_t Floats(uint64_t vectors, uint64_t dim) { return vectors * (dim + 2); }
  float* max() const { return data; }
  float* sum() const { return data + vectors; }
  float* out() const { return data + 2 * vectors; }

  uint64_t vectors = 0;
  uint64_t dim = 0;
  float* data = nullptr;
};

/// Merges `lanes` states of each of the vectors [begin, end) of `merged`, those of a whole subtree
/// in ascending order of its lanes, on the tree of docs/numerics.md. `own` has lanes * as many
/// vectors, and is used up. The result stands for the subtree's lowest lane, with the others empty:
/// merging with an empty state changes no bit.
///
/// Needs lanes a power of two.
/// Threads: different vectors on different threads
void MergeSubtrees(const States& own, uint32_t lanes, uint64_t begin, uint64_t end,
                   const States& merged);

}  // namespace quire::ranks::sequence

#endif  // QUIRE_RANKS_SEQUENCE_SUBTREE_H_
