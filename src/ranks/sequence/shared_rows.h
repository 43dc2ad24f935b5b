// What a pass computes between attention calls, its rows shared out among ranks.
#ifndef QUIRE_RANKS_SEQUENCE_SHARED_ROWS_H_
#define QUIRE_RANKS_SEQUENCE_SHARED_ROWS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "model/operators.h"
#include "quire/identity.h"
#include "ranks/group.h"
#include "ranks/sequence/row_share.h"

namespace quire::ranks::sequence {

/// Every rank makes the same calls. Of a pass with many rows each rank computes its own (RowShare),
/// with the bits that they have on one rank; all-gathers in each layer bring queries, K and V of
/// all rows to all ranks, which attend to all of them, each over its own lanes (RankAttention).
/// Many rows of a rank are two slices: those of the first travel while the second is computed.
///
/// Errors:   where the group fails, the attention that follows, or Logits, says so
/// Threads:  as Operators
/// Lifetime: the group must outlive it
class SharedRows final : public model::Operators {
 public:
  using Slices = std::array<std::unique_ptr<model::Operators>, 2>;

  /// `slices`: of the processor, and of a model of this shape.
  SharedRows(Slices slices, Group& group, const model::ModelConfig& config, ComputeType compute);

  bool on_host() const override { return true; }
  Result<void> Begin(std::span<const TokenId> tokens, std::span<const uint64_t> positions,
                     Executor& executor) override;
  /// Where rows are shared out: queries, K and V (kQkv has nothing else) and what was attended have
  /// all rows; the others are not shown.
  float* Data(model::Rows rows) override;
  void Norm(const std::vector<float>& weight) override;
  /// That to kQkv is taken by Rotate.
  void Multiply(const model::PackedMatrix& matrix, const std::vector<float>& bias, model::Rows x,
                model::Rows y) override;
  void Rotate(const model::LayerWeights& layer, bool factors) override;
  void RoundAttended() override;
  void Gate() override;
  void Add() override;
  void AddNorm(const std::vector<float>& weight) override;
  Result<void> Logits(std::span<const uint32_t> rows, std::span<float* const> outputs) override;

 private:
  /// Rows that one rank computes together.
  struct Run {
    uint64_t first = 0;
    uint64_t count = 0;
  };
  Run RunOf(uint32_t rank, uint32_t slice) const;
  Run OwnRun(uint32_t slice) const { return RunOf(group_.rank(), slice); }
  /// Of what one rank sends of a slice.
  uint64_t SliceBytes() const;
  std::span<std::byte> Own(uint32_t slice);
  std::span<std::byte> Gathered(uint32_t slice);
  void Pack(uint32_t slice);
  void Unpack(uint32_t slice, const model::LayerWeights& layer, bool factors);
  Result<void> GatherHidden(std::span<const uint32_t> rows);

  const Slices inner_;
  Group& group_;
  const uint64_t hidden_;
  const uint64_t query_dim_;
  const uint64_t qkv_dim_;
  const bool is_bf16_;  // queries, K and V are, and travel so

  // Of the pass under way.
  Executor* executor_ = nullptr;
  std::span<const TokenId> tokens_{};
  std::span<const uint64_t> positions_{};
  RowShare share_{};
  uint32_t slices_ = 1;
  const model::PackedMatrix* qkv_matrix_ = nullptr;
  const std::vector<float>* qkv_bias_ = nullptr;
  std::vector<std::byte> own_{};       // [slices][rows of one rank, qkv_dim]: on its way
  std::vector<std::byte> gathered_{};  // [slices][ranks] of that
  std::vector<float> qkv_{};           // [rows, qkv_dim], queries missing
  std::vector<float> queries_{};       // [rows, query_dim]
  std::vector<float> attended_{};      // [rows, query_dim]
  std::vector<float> last_{};          // [rows whose logits are wanted, hidden]
};

}  // namespace quire::ranks::sequence

#endif  // QUIRE_RANKS_SEQUENCE_SHARED_ROWS_H_
