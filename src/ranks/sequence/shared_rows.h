// What a pass computes between attention calls, its rows shared out among ranks.
#ifndef QUIRE_RANKS_SEQUENCE_SHARED_ROWS_H_
#define QUIRE_RANKS_SEQUENCE_SHARED_ROWS_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/bits.h"
#include "model/operators.h"
#include "ranks/group.h"
#include "ranks/sequence/row_share.h"

namespace quire::ranks::sequence {

/// Every rank makes the same calls. Of a pass with many rows each rank computes its own (RowShare),
/// with the bits that they have on one rank; one all-gather a layer brings queries, K and V of all
/// rows to all ranks, which attend to all of them, each over its own lanes (RankAttention).
///
/// Errors:   where the group fails, the attention that follows, or Logits, says so
/// Threads:  as Operators
/// Lifetime: the group must outlive it
class SharedRows final : public model::Operators {
 public:
  /// `inner`: of the processor, and of a model of this shape.
  SharedRows(std::unique_ptr<model::Operators> inner, Group& group,
             const model::ModelConfig& config);

  bool on_host() const override { return true; }
  Result<void> Begin(std::span<const TokenId> tokens, std::span<const uint64_t> positions,
                     Executor& executor) override;
  /// Where rows are shared out: queries, K and V (kQkv has nothing else) and what was attended have
  /// all rows; the others the own ones.
  float* Data(model::Rows rows) override;
  void Norm(const std::vector<float>& weight) override { inner_->Norm(weight); }
  void Multiply(const model::PackedMatrix& matrix, const std::vector<float>& bias, model::Rows x,
                model::Rows y) override {
    inner_->Multiply(matrix, bias, x, y);
  }
  void Rotate(const model::LayerWeights& layer, bool factors) override;
  void RoundAttended() override;
  void Gate() override { inner_->Gate(); }
  void Add() override { inner_->Add(); }
  Result<void> Logits(std::span<const uint32_t> rows, std::span<float* const> outputs) override;

 private:
  uint64_t own_first() const { return share_.FirstOf(group_.rank()); }
  uint64_t own_count() const { return share_.CountOf(group_.rank()); }
  /// Values of own_, of which each rank sends as many.
  uint64_t OwnFloats() const { return DivUp(share_.rows, uint64_t{share_.ranks}) * qkv_dim_; }
  Result<void> GatherHidden(std::span<const uint32_t> rows);

  const std::unique_ptr<model::Operators> inner_;
  Group& group_;
  const uint64_t hidden_;
  const uint64_t query_dim_;
  const uint64_t qkv_dim_;

  // Of the pass under way.
  Executor* executor_ = nullptr;
  std::span<const TokenId> tokens_{};
  std::span<const uint64_t> positions_{};
  RowShare share_{};
  std::vector<float> own_{};       // [rows of one rank, qkv_dim]: on its way to the others
  std::vector<float> gathered_{};  // [ranks] of that
  std::vector<float> qkv_{};       // [rows, qkv_dim], queries missing
  std::vector<float> queries_{};   // [rows, query_dim]
  std::vector<float> attended_{};  // [rows, query_dim]
  std::vector<float> last_{};      // [rows whose logits are wanted, hidden]
};

}  // namespace quire::ranks::sequence

#endif  // QUIRE_RANKS_SEQUENCE_SHARED_ROWS_H_
