// Which rows of a step are a rank's.
#ifndef QUIRE_RANKS_SEQUENCE_ROW_SHARE_H_
#define QUIRE_RANKS_SEQUENCE_ROW_SHARE_H_

#include <cstdint>

namespace quire::ranks::sequence {

/// The rows of all items of a step, one after the other, in as many runs as there are ranks. Few
/// rows belong to every rank: reading the weights is what takes time then.
struct RowShare {
  bool is_shared() const { return ranks > 1 && rows >= uint64_t{kRowsOfRankMin} * ranks; }
  /// The first row of a rank; behind the last rank the end.
  uint64_t FirstOf(uint32_t rank) const { return rows * rank / ranks; }
  uint64_t CountOf(uint32_t rank) const { return FirstOf(rank + 1) - FirstOf(rank); }

  static constexpr uint32_t kRowsOfRankMin = 16;

  uint64_t rows = 0;
  uint32_t ranks = 1;
};

}  // namespace quire::ranks::sequence

#endif  // QUIRE_RANKS_SEQUENCE_ROW_SHARE_H_
