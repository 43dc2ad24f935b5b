#include "attention/plan.h"

#include <algorithm>
#include <utility>

#include "attention/cascade.h"
#include "attention/shape.h"
#include "base/bits.h"
#include "base/check.h"
#include "codec/planes.h"

namespace quire::attention {
namespace {

/// Items per worker that keep all of them busy to the end although they run at different speeds.
constexpr uint64_t kItemsPerWorker = 8;

/// Bytes of K that an item of one row should find side by side in a block: enough heads that the
/// hardware's prefetchers run at full speed, few enough that their scores and sums stay in the
/// cache.
constexpr uint64_t kRunBytes = uint64_t{64} << 10;

/// Tokens a row at the end of a task sees and a cascade has not computed.
uint64_t TokensInSight(const AttentionShape& shape, const AttentionTask& task,
                       uint64_t shared_splits) {
  const uint64_t tokens = task.first_position + task.rows - shared_splits * kSplitTokens;
  if (shape.window_tokens == 0) return tokens;
  return std::min<uint64_t>(tokens, uint64_t{shape.window_tokens} + shape.sink_tokens);
}

/// KV heads that an item reads together where it streams.
uint32_t HeadsPerRun(const AttentionShape& shape) {
  const StreamLayout& key = shape.key;
  const uint64_t plane_bytes = codec::PlaneBytes(key.codec, key.inner, key.dim, key.block_tokens);
  return static_cast<uint32_t>(std::clamp<uint64_t>(kRunBytes / plane_bytes, 1, key.heads));
}

uint32_t RowsPerTile(const AttentionShape& shape) {
  return std::max(1u, kTileQueries / (shape.query_heads / shape.key.heads));
}

/// What a task has of a cascade.
struct Shared {
  uint64_t splits = 0;
  LaneStates lanes{};
  uint32_t sequence = 0;
};

/// Adds the items of one task, each with its lanes in `parts` parts.
class TaskPlanner {
 public:
  TaskPlanner(const AttentionShape& shape, const AttentionTask& task, const Shared& shared,
              Plan* plan)
      : shape_(shape), task_(task), shared_(shared), plan_(plan) {}

  /// One row: as many heads together as make long runs; `pieces` items if that many are possible.
  /// Lanes are cut first, heads only where the context is too short for that.
  void AddRow(uint64_t pieces) {
    const uint64_t splits = TokensInSight(shape_, task_, shared_.splits) / kSplitTokens + 1;
    uint32_t parts = 1;
    while (parts < kLanes && parts < pieces && uint64_t{parts} * 4 <= splits) parts *= 2;
    const uint64_t runs = DivUp(shape_.key.heads, HeadsPerRun(shape_));
    const auto cuts = static_cast<uint32_t>(
        std::min<uint64_t>(shape_.key.heads, std::max(runs, (pieces + parts - 1) / parts)));
    const uint32_t heads = (shape_.key.heads + cuts - 1) / cuts;
    for (uint32_t head = 0; head < shape_.key.heads; head += heads) {
      Item item{.shape = &shape_,
                .task = &task_,
                .head_begin = head,
                .rows = 1,
                .shared_splits = shared_.splits,
                .lanes = shared_.lanes,
                .sequence = shared_.sequence};
      item.heads = std::min(heads, shape_.key.heads - head);
      Add(item, parts);
    }
  }

  /// Several rows: tiles of one head, which share what is expanded. The tiles of a head follow each
  /// other and find its K and V in the cache.
  void AddTiles(uint64_t pieces) {
    const uint64_t splits = TokensInSight(shape_, task_, shared_.splits) / kSplitTokens + 1;
    const uint32_t tile_rows = RowsPerTile(shape_);
    const uint64_t tiles = uint64_t{shape_.key.heads} * ((task_.rows + tile_rows - 1) / tile_rows);
    uint32_t parts = 1;
    while (parts < kLanes && parts < splits && parts * tiles < pieces) parts *= 2;
    for (uint32_t head = 0; head < shape_.key.heads; ++head) {
      for (uint32_t row = 0; row < task_.rows;) {
        Item item{.shape = &shape_, .task = &task_, .head_begin = head, .row_begin = row};
        item.rows = TileRows(row);
        row += item.rows;
        plan_->expands = plan_->expands || !item.streams();
        Add(item, parts);
      }
    }
  }

 private:
  /// Rows that may form one item, from `begin`: all rows of an item must agree on which form of a
  /// block they read, so where the two differ an item stays inside one block.
  uint32_t TileRows(uint32_t begin) const {
    const uint32_t rows = std::min(RowsPerTile(shape_), task_.rows - begin);
    const uint64_t block_tokens = shape_.key.block_tokens;
    const uint64_t position = task_.first_position + begin;
    bool same = !HasOpenForm(shape_);
    for (uint64_t block = FirstOpenBlock(shape_, position);
         block <= (position + rows - 1) / block_tokens; ++block) {
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
  const Shared& shared_;
  Plan* plan_;
};

/// First items of one cascade whose sequences are the last `count` of the plan, in enough parts by
/// lanes for all workers: few sequences with as many heads as make long runs, many in tiles of one
/// head.
void AddFirstItems(const AttentionShape& shape, const AttentionTask& task, const Shared& shared,
                   uint32_t first_sequence, uint32_t count, uint32_t workers, Plan* plan) {
  const bool streams = Streams(shape, count);
  const uint32_t heads = streams ? HeadsPerRun(shape) : 1;
  const uint32_t rows = streams ? count : RowsPerTile(shape);
  const uint64_t tiles = uint64_t{DivUp(shape.key.heads, heads)} * DivUp(count, rows);
  uint32_t parts = 1;
  while (parts < kLanes && parts < shared.splits && parts * tiles < workers * kItemsPerWorker) {
    parts *= 2;
  }
  for (uint32_t head = 0; head < shape.key.heads; head += heads) {
    for (uint32_t row = 0; row < count; row += rows) {
      Item item{.shape = &shape,
                .task = &task,
                .head_begin = head,
                .heads = std::min(heads, shape.key.heads - head),
                .row_begin = row,
                .rows = std::min(rows, count - row),
                .lane_step = parts,
                .sequences = plan->sequences.data() + first_sequence,
                .shared_splits = shared.splits,
                .lanes = shared.lanes,
                .sequence = first_sequence};
      plan->queries_max = std::max(plan->queries_max, item.queries());
      plan->expands = plan->expands || !item.streams();
      for (item.first_lane = 0; item.first_lane < parts; ++item.first_lane) {
        plan->first_items.push_back(item);
      }
    }
  }
}

/// Finds the cascades, adds their first items; `shared` says what every task then has.
void AddCascades(const AttentionShape& shape, std::span<const AttentionTask> tasks,
                 uint32_t workers, Plan* plan, std::vector<Shared>* shared) {
  const std::vector<Cascade> cascades = FindCascades(shape, tasks);
  for (const Cascade& cascade : cascades) {
    for (const uint32_t task : cascade.tasks) plan->sequences.push_back(&tasks[task]);
    AttentionTask of_all = tasks[cascade.tasks.front()];
    of_all.queries = nullptr;
    of_all.out = nullptr;
    of_all.rows = static_cast<uint32_t>(cascade.tasks.size());
    // What they share is sealed for all of them.
    of_all.first_position =
        cascade.splits * kSplitTokens + uint64_t{shape.open_blocks} * shape.key.block_tokens;
    plan->shared_tasks.push_back(of_all);
  }
  // From here on nothing that items point to moves.
  for (size_t c = 0; c < cascades.size(); ++c) {
    const uint32_t first = plan->cascaded;
    Shared of_cascade{
        .splits = cascades[c].splits,
        .lanes = {.query_heads = shape.query_heads, .out_stride = OutStride(shape.value.dim)}};
    for (const uint32_t task : cascades[c].tasks) {
      of_cascade.sequence = plan->cascaded++;
      (*shared)[task] = of_cascade;
    }
    AddFirstItems(shape, plan->shared_tasks[c], of_cascade, first, plan->cascaded - first, workers,
                  plan);
  }
}

}  // namespace

void Plan::SetLaneMemory(float* memory) {
  for (Item& item : first_items) item.lanes.memory = memory;
  for (Item& item : items) item.lanes.memory = memory;
}

void MakePlan(const AttentionShape& shape, std::span<const AttentionTask> tasks, uint32_t workers,
              Plan* plan) {
  QUIRE_CHECK(workers > 0);
  Plan used = std::move(*plan);
  used.first_items.clear();
  used.items.clear();
  used.sequences.clear();
  used.shared_tasks.clear();
  *plan = Plan{.first_items = std::move(used.first_items),
               .items = std::move(used.items),
               .sequences = std::move(used.sequences),
               .shared_tasks = std::move(used.shared_tasks)};
  std::vector<Shared> shared(tasks.size());
  AddCascades(shape, tasks, workers, plan, &shared);
  uint64_t total = 0;
  const auto work = [&](size_t task) {
    return TokensInSight(shape, tasks[task], shared[task].splits) * tasks[task].rows;
  };
  for (size_t i = 0; i < tasks.size(); ++i) total += tasks[i].rows == 0 ? 0 : work(i);
  // A task gets items in proportion to its work, so that all workers end at about the same time.
  const uint64_t fair = std::max<uint64_t>(1, total / (workers * kItemsPerWorker));
  for (size_t i = 0; i < tasks.size(); ++i) {
    const AttentionTask& task = tasks[i];
    if (task.rows == 0) continue;
    const uint64_t pieces = workers == 1 ? 1 : (work(i) + fair - 1) / fair;
    TaskPlanner planner(shape, task, shared[i], plan);
    if (task.rows == 1 && Streams(shape, 1)) {
      planner.AddRow(pieces);
    } else {
      planner.AddTiles(pieces);
    }
  }
}

}  // namespace quire::attention
