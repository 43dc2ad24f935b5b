// An array that grows without moving its elements.
#ifndef QUIRE_INDEX_PIECES_H_
#define QUIRE_INDEX_PIECES_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "base/bits.h"

namespace quire::index {

/// Elements in pieces of kPieceElements. As std::deque, but a place is found with a shift and a
/// mask, and a piece is as long as the caller says.
///
/// Threads: none
template <typename Element, uint64_t kPieceElements>
class Pieces {
  static_assert(IsPow2(kPieceElements));

 public:
  uint64_t size() const { return size_; }
  const Element& operator[](uint64_t index) const {
    return pieces_[index / kPieceElements][index % kPieceElements];
  }
  Element& operator[](uint64_t index) {
    return pieces_[index / kPieceElements][index % kPieceElements];
  }

  /// Memory for so many elements. If it runs out, the elements are as they were.
  void Reserve(uint64_t size) {
    while (pieces_.size() * kPieceElements < size) {
      pieces_.push_back(std::make_unique<Element[]>(kPieceElements));
    }
  }
  /// New elements are as they are made. Needs size >= size().
  void Grow(uint64_t size) {
    Reserve(size);
    size_ = size;
  }

  uint64_t piece_count() const { return pieces_.size(); }
  static constexpr uint64_t kPieceBytes = kPieceElements * sizeof(Element);

 private:
  std::vector<std::unique_ptr<Element[]>> pieces_;
  uint64_t size_ = 0;
};

}  // namespace quire::index

#endif  // QUIRE_INDEX_PIECES_H_
