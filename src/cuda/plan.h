// How one call of attention is cut into launches on a device. The cut never shows in the bits.
#ifndef QUIRE_CUDA_PLAN_H_
#define QUIRE_CUDA_PLAN_H_

#include <cstdint>
#include <span>
#include <vector>

#include "cuda/attend.h"
#include "quire/attention.h"

namespace quire::cuda {

/// What is launched at once: splits, then the fold of all their states.
struct Wave {
  std::vector<Tile> tiles;
  std::vector<uint32_t> tile_blocks;  // [tiles + 1]
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

/// Waves of at most `states_limit` states, but for one row and all its heads, or one cascade, that
/// has more. `blocks_wanted`: blocks of threads that keep the device busy.
///
/// Needs: tasks that are valid (attention/plan.h)
/// Cost:  O(rows * query_heads)
AttendPlan MakePlan(const AttentionShape& shape, const BlockTables& tables,
                    std::span<const AttentionTask> tasks, uint64_t states_limit,
                    uint32_t blocks_wanted);

}  // namespace quire::cuda

#endif  // QUIRE_CUDA_PLAN_H_
