// A table by block id that grows as ids do, without ever moving what it holds.
#ifndef QUIRE_EVICT_PER_BLOCK_H_
#define QUIRE_EVICT_PER_BLOCK_H_

#include <cstddef>
#include <memory>
#include <vector>

#include "quire/identity.h"

namespace quire::evict {

/// A T for each block id up to the highest one used. Ids are dense, so no more than the last piece
/// is ever paid for in vain.
template <typename T, size_t kPiece = 64>
class PerBlock {
 public:
  T& At(BlockId block) {
    const size_t piece = block.number() / kPiece;
    if (piece >= pieces_.size()) pieces_.resize(piece + 1);
    if (pieces_[piece] == nullptr) pieces_[piece] = std::make_unique<T[]>(kPiece);
    return pieces_[piece][block.number() % kPiece];
  }

  bool contains(BlockId block) const {
    const size_t piece = block.number() / kPiece;
    return piece < pieces_.size() && pieces_[piece] != nullptr;
  }
  /// Of an id that the table contains.
  T& operator[](BlockId block) { return pieces_[block.number() / kPiece][block.number() % kPiece]; }
  const T& operator[](BlockId block) const {
    return pieces_[block.number() / kPiece][block.number() % kPiece];
  }

  /// The block will be asked for soon. Any id will do.
  void Prefetch(BlockId block) const {
    if (contains(block)) __builtin_prefetch(&(*this)[block]);
  }

 private:
  std::vector<std::unique_ptr<T[]>> pieces_;
};

}  // namespace quire::evict

#endif  // QUIRE_EVICT_PER_BLOCK_H_
