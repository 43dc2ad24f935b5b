// Which kernels of the class mma16 compute which tasks of a call. It never shows in the bits.
#ifndef QUIRE_CUDA_MMA_TASKS_H_
#define QUIRE_CUDA_MMA_TASKS_H_

#include <cstdint>
#include <span>
#include <vector>

#include "quire/attention.h"

namespace quire::cuda {

/// Errors: kUnsupported names what this class cannot do with the shape
Result<void> SupportsMma(const AttentionShape& shape);

/// Errors: kUnsupported slots are not aligned to 16 bytes
Result<void> CheckAlignment(const BlockTables& tables);

/// Whether sealed and open blocks of a call are the same bytes.
bool IsOneForm(const AttentionShape& shape, const BlockTables& tables);

struct MmaTasks {
  std::vector<AttentionTask> split;   // a warp has splits of a tile and leaves their states
  std::vector<AttentionTask> folded;  // four warps have all splits of a tile
};

/// Needs: valid tasks
MmaTasks SortTasks(const AttentionShape& shape, std::span<const AttentionTask> tasks,
                   uint32_t folded_tiles_min);

}  // namespace quire::cuda

#endif  // QUIRE_CUDA_MMA_TASKS_H_
