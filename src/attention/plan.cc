#include "attention/plan.h"

#include <algorithm>

#include "attention/shape.h"
#include "codec/planes.h"

namespace quire::attention {
namespace {

/// Items per worker that keep all of them busy to the end although they run at different speeds.
constexpr uint64_t kItemsPerWorker = 4;

/// Bytes of K that an item of one row should find side by side in a block: enough heads that the
/// hardware's prefetchers run at full speed, few enough that their scores and sums stay in the
/// cache.
constexpr uint64_t kRunBytes = 64 * 1024;

/// Tokens a row at the end of a task sees.
uint64_t TokensInSight(const AttentionShape& shape, const AttentionTask& task) {
  const uint64_t tokens = task.first_position + task.rows;
  if (shape.window_tokens == 0) return tokens;
  return std::min<uint64_t>(tokens, uint64_t{shape.window_tokens} + shape.sink_tokens);
}

/// Adds the items of one task, each with its lanes in `parts` parts.
class TaskPlanner {
 public:
  TaskPlanner(const AttentionShape& shape, const AttentionTask& task, Plan* plan)
      : shape_(shape), task_(task), plan_(plan) {}

  /// One row: as many heads together as make long runs; `pieces` items if that many are possible.
  /// Lanes are cut first, heads only where the context is too short for that.
  void AddRow(uint64_t pieces) {
    const uint64_t splits = TokensInSight(shape_, task_) / kSplitTokens + 1;
    uint32_t parts = 1;
    while (parts < kLanes && parts < pieces && parts * 4 <= splits) parts *= 2;
    const uint64_t plane_bytes = codec::PlaneBytes(shape_.key.codec, shape_.key.inner,
                                                   shape_.key.dim, shape_.key.block_tokens);
    const uint64_t runs = std::max<uint64_t>(1, shape_.key.heads * plane_bytes / kRunBytes);
    const auto cuts = static_cast<uint32_t>(
        std::min<uint64_t>(shape_.key.heads, std::max(runs, (pieces + parts - 1) / parts)));
    const uint32_t heads = (shape_.key.heads + cuts - 1) / cuts;
    for (uint32_t head = 0; head < shape_.key.heads; head += heads) {
      Item item{.shape = &shape_, .task = &task_, .head_begin = head, .rows = 1};
      item.heads = std::min(heads, shape_.key.heads - head);
      Add(item, parts);
    }
  }

  /// Several rows: tiles of one head, which share what is expanded. The tiles of a head follow each
  /// other and find its K and V in the cache.
  void AddTiles(uint64_t pieces) {
    const uint64_t splits = TokensInSight(shape_, task_) / kSplitTokens + 1;
    const uint32_t tile_rows = RowsPerTile();
    const uint64_t tiles = uint64_t{shape_.key.heads} * ((task_.rows + tile_rows - 1) / tile_rows);
    uint32_t parts = 1;
    while (parts < kLanes && parts < splits && parts * tiles < pieces) parts *= 2;
    for (uint32_t head = 0; head < shape_.key.heads; ++head) {
      for (uint32_t row = 0; row < task_.rows;) {
        Item item{.shape = &shape_, .task = &task_, .head_begin = head, .row_begin = row};
        item.rows = TileRows(row);
        row += item.rows;
        plan_->expands = plan_->expands || !StreamsOneRow(shape_, item.rows);
        Add(item, parts);
      }
    }
  }

 private:
  uint32_t RowsPerTile() const {
    return std::max(1u, kTileQueries / (shape_.query_heads / shape_.key.heads));
  }

  /// Rows that may form one item, from `begin`: all rows of an item must agree on which form of a
  /// block they read, so where the two differ an item stays inside one block.
  uint32_t TileRows(uint32_t begin) const {
    const uint32_t rows = std::min(RowsPerTile(), task_.rows - begin);
    const uint64_t block_tokens = shape_.key.block_tokens;
    const uint64_t position = task_.first_position + begin;
    bool same = !HasOpenForm(shape_);
    for (uint64_t block = position / block_tokens; block <= (position + rows - 1) / block_tokens;
         ++block) {
      same = same && task_.open[block] == task_.sealed[block];
    }
    if (same) return rows;
    return std::min(rows, static_cast<uint32_t>(block_tokens - position % block_tokens));
  }

  void Add(Item item, uint32_t parts) {
    plan_->queries_max = std::max(plan_->queries_max, item.queries());
    item.lane_step = parts;
    if (parts > 1) {
      item.tile = plan_->tiles++;
      item.parts_begin = plan_->part_states;
      plan_->part_states += parts;
    }
    for (item.first_lane = 0; item.first_lane < parts; ++item.first_lane) {
      plan_->items.push_back(item);
    }
  }

  const AttentionShape& shape_;
  const AttentionTask& task_;
  Plan* plan_;
};

}  // namespace

void MakePlan(const AttentionShape& shape, std::span<const AttentionTask> tasks, uint32_t workers,
              Plan* plan) {
  *plan = Plan{.items = std::move(plan->items)};
  plan->items.clear();
  uint64_t total = 0;
  for (const AttentionTask& task : tasks) total += TokensInSight(shape, task) * task.rows;
  // A task gets items in proportion to its work, so that all workers end at about the same time.
  const uint64_t fair = std::max<uint64_t>(1, total / (workers * kItemsPerWorker));
  for (const AttentionTask& task : tasks) {
    if (task.rows == 0) continue;
    const uint64_t pieces =
        workers == 1 ? 1 : (TokensInSight(shape, task) * task.rows + fair - 1) / fair;
    TaskPlanner planner(shape, task, plan);
    if (StreamsOneRow(shape, task.rows)) {
      planner.AddRow(pieces);
    } else {
      planner.AddTiles(pieces);
    }
  }
}

}  // namespace quire::attention
