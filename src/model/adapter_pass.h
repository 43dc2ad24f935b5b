// What adapters add to the products of a pass: each row by itself, in an order of sums that neither
// other rows nor workers change.
#ifndef QUIRE_MODEL_ADAPTER_PASS_H_
#define QUIRE_MODEL_ADAPTER_PASS_H_

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "model/adapter.h"
#include "model/matmul.h"
#include "quire/env.h"
#include "quire/identity.h"

namespace quire::model {

/// Rows one behind the other, on the host.
/// Shape: [rows, values]
template <typename Value>
struct RowBlock {
  Value* data = nullptr;
  uint64_t values = 0;

  Value* row(uint32_t row) const { return data + row * values; }
};

/// Threads: one pass at a time; work runs on its executor
class AdapterPass {
 public:
  /// A pass over rows begins. Rows of no adapter are named by null.
  /// Shape: adapters [rows]
  void Begin(std::span<const Adapter* const> adapters);
  /// No row has an adapter.
  bool empty() const { return chunks_.empty(); }

  /// y = Round(y + up (scale (down x))), both products as Matmul and unrounded, for what each row's
  /// adapter has of a product of a layer. y is that product of the base model, rounded.
  ///
  /// Source: docs/numerics.md section 3
  void Add(uint32_t layer, std::vector<LowRank> AdapterLayer::* product,
           const RowBlock<const float>& x, const RowBlock<float>& y, ComputeType round,
           Executor& executor);

 private:
  // Rows of one adapter that share its products.
  struct Chunk {
    const Adapter* adapter;
    uint32_t first;  // of rows_
    uint32_t rows;
  };
  // Some outputs of one low-rank product for a chunk.
  struct Piece {
    const Chunk* chunk;
    const LowRank* low_rank;
    uint64_t inner;         // where down x begins in inner_
    uint32_t first_column;  // of its outputs
    uint32_t columns;
  };
  // Of one worker.
  struct Scratch {
    MatmulScratch matmul;
    std::vector<float> rows;       // [chunk rows, the larger of inputs and a piece's outputs]
    std::vector<float*> pointers;  // [chunk rows]
  };

  void GrowScratch(uint64_t values, uint32_t workers);
  void MultiplyDown(const Piece& piece, const RowBlock<const float>& x, Scratch& scratch);
  void MultiplyUp(const Piece& piece, const RowBlock<float>& y, ComputeType round,
                  Scratch& scratch) const;

  std::vector<uint32_t> rows_;  // of each chunk in turn
  std::vector<Chunk> chunks_;
  std::vector<Piece> downs_;
  std::vector<Piece> ups_;
  std::vector<std::pair<size_t, size_t>> ends_;  // of each chunk's pieces in both
  std::vector<float> inner_;                     // of each chunk and product [chunk rows, rank]
  std::vector<Scratch> scratch_;
};

}  // namespace quire::model

#endif  // QUIRE_MODEL_ADAPTER_PASS_H_
