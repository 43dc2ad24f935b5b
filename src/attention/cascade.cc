#include "attention/plan.h"

#include <algorithm>
#include <utility>

#include "attention/kernels.h"
#include "attention/shape.h"

namespace quire::attention {
namespace {

/// Whole splits before the blocks that the task's row reads open.
uint64_t SealedSplits(const AttentionShape& shape, const AttentionTask& task) {
  return FirstOpenBlock(shape, task.first_position) * shape.key.block_tokens / kSplitTokens;
}

/// Whether it asks for all splits from the first one on. (Partial ones are few and long.)
bool IsWhole(const AttentionTask& task) {
  return task.out != nullptr && task.from.lanes == 0 && task.splits.begin == 0 &&
         task.splits.end > task.first_position / kSplitTokens;
}

uint64_t CommonSplits(const AttentionShape& shape, const BlockTable& sealed, const AttentionTask& a,
                      const AttentionTask& b) {
  const uint64_t splits = std::min(SealedSplits(shape, a), SealedSplits(shape, b));
  const uint64_t blocks = splits * (kSplitTokens / shape.key.block_tokens);
  const uint32_t* const row = sealed.Row(a.sequence);
  const auto parted = std::mismatch(row, row + blocks, sealed.Row(b.sequence)).first;
  return static_cast<uint64_t>(parted - row) * shape.key.block_tokens / kSplitTokens;
}

}  // namespace

std::vector<Cascade> FindCascades(const AttentionShape& shape, const BlockTable& sealed,
                                  std::span<const AttentionTask> tasks) {
  std::vector<Cascade> cascades;
  if (tasks.size() < 2 || shape.window_tokens != 0) return cascades;
  std::vector<uint32_t> alone;
  for (uint32_t i = 0; i < tasks.size(); ++i) {
    if (tasks[i].rows == 1 && IsWhole(tasks[i]) && Streams(shape, 1)) alone.push_back(i);
  }
  std::vector<std::pair<uint64_t, uint32_t>> shared;  // splits with the first, task
  while (alone.size() > 1) {
    const uint32_t first = alone.front();
    shared.clear();
    for (size_t i = 1; i < alone.size(); ++i) {
      const uint64_t splits = CommonSplits(shape, sealed, tasks[first], tasks[alone[i]]);
      if (splits > 0) shared.emplace_back(splits, alone[i]);
    }
    std::sort(shared.begin(), shared.end(), [](const auto& a, const auto& b) {
      return a.first != b.first ? a.first > b.first : a.second < b.second;
    });
    // The first k of them save k times what the last of these shares.
    size_t best = 0;
    for (size_t k = 1; k <= shared.size(); ++k) {
      if (best == 0 || k * shared[k - 1].first > best * shared[best - 1].first) best = k;
    }
    Cascade cascade{.tasks = {first}};
    for (size_t k = 0; k < best; ++k) cascade.tasks.push_back(shared[k].second);
    std::erase_if(alone, [&](uint32_t task) {
      return std::find(cascade.tasks.begin(), cascade.tasks.end(), task) != cascade.tasks.end();
    });
    if (best == 0) continue;
    cascade.splits = shared[best - 1].first;
    cascades.push_back(std::move(cascade));
  }
  return cascades;
}

}  // namespace quire::attention
