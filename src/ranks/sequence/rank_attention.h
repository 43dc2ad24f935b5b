// Attention over a context whose splits lie on several ranks.
#ifndef QUIRE_RANKS_SEQUENCE_RANK_ATTENTION_H_
#define QUIRE_RANKS_SEQUENCE_RANK_ATTENTION_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "base/mutex.h"
#include "quire/attention.h"
#include "ranks/group.h"
#include "ranks/sequence/lane_share.h"
#include "ranks/sequence/row_share.h"

namespace quire::ranks::sequence {

/// Every rank makes the same calls, with the same queries, over tables in which its own splits have
/// slots. Each attends to its own lanes, and merges their states on its subtree of the fixed tree.
/// What all ranks have of a row comes together at the rank that it belongs to (RowShare), or of few
/// rows at every rank, and is merged there on the rest of the tree: the bits of one process. The
/// rows of other ranks have no output. The states of one rank's rows travel while those of the next
/// are computed.
///
/// A plan has lane states of its step: of `values` = rows * query_heads * (value.dim + 2) floats
/// about values * (1 + 32 / ranks).
///
/// Errors of Attend and Run: as AttentionBackend; those of Group
/// Threads:  as AttentionBackend
/// Lifetime: `inner` and `group` must outlive it
class RankAttention final : public AttentionBackend {
 public:
  RankAttention(AttentionBackend& inner, Group& group, const LaneShare& share)
      : inner_(inner), group_(group), share_(share) {}

  std::string_view name() const override { return inner_.name(); }
  std::string_view target() const override { return inner_.target(); }
  Result<void> Supports(const AttentionShape& shape) const override {
    return inner_.Supports(shape);
  }
  /// The memory of the last plan, so that the next one need not ask the system.
  class Memory {
   public:
    /// Shape: at least [count], of any values
    std::vector<float> Take(uint64_t count);
    void Give(std::vector<float> floats);

   private:
    Mutex mutex_{LockRank::kLeaf};
    std::vector<float> spare_ QUIRE_GUARDED_BY(mutex_);
  };

  /// Needs whole tasks: ranks make partial ones themselves.
  Result<void> Attend(const AttentionShape& shape, const BlockTables& tables,
                      std::span<const AttentionTask> tasks, Executor& executor) override;
  Result<std::unique_ptr<AttentionPlan>> Prepare(const AttentionShape& shape,
                                                 const BlockTables& tables,
                                                 std::span<const AttentionTask> tasks,
                                                 Executor& executor) override;

 private:
  AttentionBackend& inner_;
  Group& group_;
  const LaneShare share_;
  Memory memory_;
};

}  // namespace quire::ranks::sequence

#endif  // QUIRE_RANKS_SEQUENCE_RANK_ATTENTION_H_
