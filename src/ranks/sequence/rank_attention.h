// Attention over a context whose splits lie on several ranks.
#ifndef QUIRE_RANKS_SEQUENCE_RANK_ATTENTION_H_
#define QUIRE_RANKS_SEQUENCE_RANK_ATTENTION_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "quire/attention.h"
#include "ranks/group.h"
#include "ranks/sequence/lane_share.h"

namespace quire::ranks::sequence {

/// Every rank makes the same calls, with the same queries, over tables in which its own splits have
/// slots. Each attends to its own lanes, and merges their states on its subtree of the fixed tree.
/// One all-gather brings what all ranks have together, and every rank merges that on the rest of
/// the tree: the bits of one process, on every rank. Of a chunk some rows are computed while the
/// states of those before them travel.
///
/// A plan has lane states of its step: rows * query_heads * (value.dim + 2) floats, about 20 times.
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
};

}  // namespace quire::ranks::sequence

#endif  // QUIRE_RANKS_SEQUENCE_RANK_ATTENTION_H_
