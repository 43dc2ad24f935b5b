#include "attention/plan.h"

#include <algorithm>

#include "attention/shape.h"

namespace quire::attention {
namespace {

/// Items per worker that keep all of them busy to the end although they run at different speeds.
constexpr uint64_t kItemsPerWorker = 4;

/// Rows of a task that may form one item, from `begin`: all rows of an item must agree on which
/// form of a block they read, so where the two differ an item stays inside one block.
uint32_t TileRows(const AttentionShape& shape, const AttentionTask& task, uint32_t begin) {
  const uint32_t group = shape.query_heads / shape.key.heads;
  const uint32_t rows = std::min(std::max(1u, kTileQueries / group), task.rows - begin);
  const uint64_t block_tokens = shape.key.block_tokens;
  const uint64_t position = task.first_position + begin;
  const uint64_t first_block = position / block_tokens;
  const uint64_t last_block = (position + rows - 1) / block_tokens;
  bool same = true;
  for (uint64_t block = first_block; block <= last_block; ++block) {
    same = same && task.open[block] == task.sealed[block];
  }
  if (same) return rows;
  const auto rows_in_block = static_cast<uint32_t>(block_tokens - position % block_tokens);
  return std::min(rows, rows_in_block);
}

/// Multiply-adds of an item, up to a factor: query vectors times tokens in sight of its last row.
uint64_t Cost(const AttentionShape& shape, const Item& item) {
  const uint64_t tokens = item.task->first_position + item.row_begin + item.rows;
  const uint64_t in_sight =
      shape.window_tokens == 0
          ? tokens
          : std::min<uint64_t>(tokens, uint64_t{shape.window_tokens} + shape.sink_tokens);
  return in_sight * item.queries();
}

/// Parts an item is cut into so that no part is much larger than a fair share.
uint32_t PartsFor(const AttentionShape& shape, const Item& item, uint64_t fair_cost) {
  const uint64_t cost = Cost(shape, item);
  const uint64_t splits = cost / item.queries() / kSplitTokens + 1;
  uint32_t parts = 1;
  while (parts < kLanes && parts < splits && cost / parts > fair_cost) parts *= 2;
  return parts;
}

}  // namespace

void MakePlan(const AttentionShape& shape, std::span<const AttentionTask> tasks, uint32_t workers,
              Plan* plan) {
  *plan = Plan{.items = std::move(plan->items)};
  plan->items.clear();
  uint64_t total_cost = 0;
  for (const AttentionTask& task : tasks) {
    // Heads outermost: the tiles of one head follow each other and find its K and V in the cache.
    for (uint32_t head = 0; head < shape.key.heads; ++head) {
      for (uint32_t row = 0; row < task.rows;) {
        Item item{.shape = &shape, .task = &task, .kv_head = head, .row_begin = row};
        item.rows = TileRows(shape, task, row);
        row += item.rows;
        plan->queries_max = std::max(plan->queries_max, item.queries());
        plan->expands = plan->expands || item.rows > 1;
        total_cost += Cost(shape, item);
        plan->items.push_back(item);
      }
    }
  }
  if (workers == 1) return;

  const uint64_t fair_cost = total_cost / (workers * kItemsPerWorker);
  const size_t whole_items = plan->items.size();
  for (size_t i = 0; i < whole_items; ++i) {
    const uint32_t parts = PartsFor(shape, plan->items[i], fair_cost);
    if (parts == 1) continue;
    plan->items[i].lane_step = parts;
    plan->items[i].tile = plan->tiles++;
    plan->items[i].parts_begin = plan->part_states;
    plan->part_states += parts;
    for (uint32_t part = 1; part < parts; ++part) {
      Item copy = plan->items[i];
      copy.first_lane = part;
      plan->items.push_back(copy);
    }
  }
}

}  // namespace quire::attention
