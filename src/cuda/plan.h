// How one call of attention is cut into launches on a device. The cut never shows in the bits.
#ifndef QUIRE_CUDA_PLAN_H_
#define QUIRE_CUDA_PLAN_H_

#include <cstdint>
#include <span>
#include <vector>

#include "cuda/kernels/attend.h"
#include "quire/attention.h"

namespace quire::cuda {

/// One launch of splits, then the fold of the states that their tiles do not merge.
struct Wave {
  std::vector<Tile> tiles;
  std::vector<BlockWork> work;  // of each block of threads; of blocks that fold none
  std::vector<FoldVector> vectors;
  uint64_t states = 0;
  uint32_t splits_per_block = 1;
};

struct AttendPlan {
  std::vector<QueryRow> rows;  // of all tasks, one after the other
  std::vector<Wave> waves;
  uint32_t queries_max = 0;  // of the largest tile
  uint64_t states_max = 0;   // of the largest wave
};

struct PlanLimits {
  uint64_t states = 0;         // of a wave; one row with all its heads, or a cascade, may have more
  uint32_t blocks_wanted = 0;  // of threads, that keep the device busy
  uint32_t tile_queries = kTileQueriesMax;
  // So many blocks of threads, of a lane each, keep the device busy: they fold the splits of their
  // lane. 0: none do.
  uint32_t lane_blocks_wanted = 0;
  // Tiles merge their states where each query vector has at most one for each lane and nothing
  // else.
  bool tiles_merge = false;
};

/// Needs: tasks that are valid (attention/plan.h)
/// Cost:  O(rows * query_heads)
AttendPlan MakePlan(const AttentionShape& shape, const BlockTables& tables,
                    std::span<const AttentionTask> tasks, const PlanLimits& limits);

/// The arguments of blocks that fold (cuda/kernels/mma_attend.h): one wave, whose tiles have all
/// splits of their rows; no states.
///
/// Needs: valid tasks that ask for whole attention
AttendPlan MakeFoldPlan(const AttentionShape& shape, std::span<const AttentionTask> tasks,
                        uint32_t tile_queries);

}  // namespace quire::cuda

#endif  // QUIRE_CUDA_PLAN_H_
