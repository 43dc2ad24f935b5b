// Which kernels of the class mma16 compute which tasks of a call, and how K and V come to them. It
// never shows in the bits.
#ifndef QUIRE_CUDA_MMA_TASKS_H_
#define QUIRE_CUDA_MMA_TASKS_H_

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "cuda/kernels/mma_attend.h"
#include "quire/attention.h"

namespace quire::cuda {

/// `shared_bytes_max`: of a block of the device's threads.
///
/// Errors: kUnsupported names what this class cannot do with the shape
Result<void> SupportsMma(const AttentionShape& shape, uint32_t shared_bytes_max);

/// Errors: kUnsupported slots are not aligned to 16 bytes
Result<void> CheckAlignment(const BlockTables& tables);

/// Whether sealed and open blocks of a call are the same bytes.
bool IsOneForm(const AttentionShape& shape, const BlockTables& tables);

/// How K and V of a call come into shared memory. `bulk_copies`: the device has them.
Staging StagingOf(const AttentionShape& shape, const BlockTables& tables, bool bulk_copies);

/// K and V of all slots, as Staging::kBulk copies them: what MmaArgs::boxes are made of.
std::array<BoxedArray, kBoxedArrays> BoxedArrays(const AttentionShape& shape,
                                                 const BlockTables& tables);

struct MmaTasks {
  std::vector<AttentionTask> split;   // a block has splits of a tile and leaves their states
  std::vector<AttentionTask> folded;  // four warps have all splits of a tile
};

/// Needs: valid tasks
MmaTasks SortTasks(const AttentionShape& shape, std::span<const AttentionTask> tasks,
                   uint32_t folded_tiles_min);

}  // namespace quire::cuda

#endif  // QUIRE_CUDA_MMA_TASKS_H_
