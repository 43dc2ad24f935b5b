#include "attention/plan.h"

#include <algorithm>
#include <utility>

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

/// Tokens that a row at the end of a task sees in these splits.
uint64_t TokensInSight(const AttentionShape& shape, const AttentionTask& task,
                       const SplitRange& splits) {
  if (splits.begin >= splits.end) return 0;
  const uint64_t end =
      std::min(task.first_position + task.rows, splits.end * uint64_t{kSplitTokens});
  const uint64_t tokens = end - splits.begin * kSplitTokens;
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

/// The work of a task: all that it asks for, or the rest after its cascade.
struct Work {
  SplitRange splits{};
  const LaneStates* from = nullptr;
  uint64_t states_row = 0;  // of `from`: that of the task's first row
};

Work WorkOf(const AttentionTask& task) {
  return {.splits = SplitsOf(task), .from = task.from.lanes == 0 ? nullptr : &task.from};
}

/// Adds an item for each subtree of lanes that has some which are wanted.
void AddSubtrees(Item item, uint32_t subtrees, Plan* plan, std::vector<Item>* items) {
  plan->queries_max = std::max(plan->queries_max, item.queries());
  const LaneSet wanted = item.to == nullptr ? kAllLanes : item.to->lanes;
  item.lane_step = subtrees;
  for (item.first_lane = 0; item.first_lane < subtrees; ++item.first_lane) {
    item.lanes = SubtreeLanes(item.first_lane, subtrees) & wanted;
    if (item.lanes != 0) items->push_back(item);
  }
}

/// Adds the items of one task, each with its lanes in so many subtrees.
class TaskPlanner {
 public:
  TaskPlanner(const AttentionTask& task, const Work& work, Plan* plan)
      : shape_(plan->shape), tables_(plan->tables), task_(task), work_(work), plan_(plan) {}

  /// One row: as many heads together as make long runs; `pieces` items if that many are possible.
  /// Lanes are cut first, heads only where the context is too short for that.
  void AddRow(uint64_t pieces) {
    const uint64_t splits = TokensInSight(shape_, task_, work_.splits) / kSplitTokens + 1;
    uint32_t subtrees = 1;
    while (subtrees < kLanes && subtrees < pieces && uint64_t{subtrees} * 4 <= splits)
      subtrees *= 2;
    const uint64_t runs = DivUp(shape_.key.heads, HeadsPerRun(shape_));
    const auto cuts = static_cast<uint32_t>(
        std::min<uint64_t>(shape_.key.heads, std::max(runs, (pieces + subtrees - 1) / subtrees)));
    const uint32_t heads = (shape_.key.heads + cuts - 1) / cuts;
    for (uint32_t head = 0; head < shape_.key.heads; head += heads) {
      Item item = MakeItem(head, 0);
      item.rows = 1;
      item.heads = std::min(heads, shape_.key.heads - head);
      Add(item, subtrees);
    }
  }

  /// Several rows: tiles of one head, which share the expanded panels. The tiles of a head follow
  /// each other and find its K and V in the cache.
  void AddTiles(uint64_t pieces) {
    const uint64_t splits = TokensInSight(shape_, task_, work_.splits) / kSplitTokens + 1;
    const uint32_t tile_rows = RowsPerTile(shape_);
    const uint64_t tiles = uint64_t{shape_.key.heads} * ((task_.rows + tile_rows - 1) / tile_rows);
    uint32_t subtrees = 1;
    while (subtrees < kLanes && subtrees < splits && subtrees * tiles < pieces) subtrees *= 2;
    for (uint32_t head = 0; head < shape_.key.heads; ++head) {
      for (uint32_t row = 0; row < task_.rows;) {
        Item item = MakeItem(head, row);
        item.rows = TileRows(row);
        row += item.rows;
        plan_->expands = plan_->expands || !item.streams();
        Add(item, subtrees);
      }
    }
  }

 private:
  Item MakeItem(uint32_t head, uint32_t row) const {
    return {.shape = &shape_,
            .task = &task_,
            .tables = &tables_,
            .head_begin = head,
            .row_begin = row,
            .splits = work_.splits,
            .from = work_.from,
            .to = task_.out == nullptr ? &task_.to : nullptr,
            .states_row = work_.states_row + row};
  }

  /// Rows that may form one item, from `begin`: all rows of an item must agree on which form of a
  /// block they read, so where the two differ an item stays inside one block.
  uint32_t TileRows(uint32_t begin) const {
    const uint32_t rows = std::min(RowsPerTile(shape_), task_.rows - begin);
    const uint64_t block_tokens = shape_.key.block_tokens;
    const uint64_t position = task_.first_position + begin;
    bool same = !HasOpenForm(shape_) || shape_.open_blocks == kOpenWherePresent;
    const uint64_t blocks_per_split = kSplitTokens / block_tokens;
    const uint64_t first =
        std::max(FirstOpenBlock(shape_, position), work_.splits.begin * blocks_per_split);
    const uint64_t end =
        std::min((position + rows - 1) / block_tokens + 1, work_.splits.end * blocks_per_split);
    for (uint64_t block = first; block < end; ++block) {
      same = same && tables_.open.BlockAt(task_.sequence, block) ==
                         tables_.sealed.BlockAt(task_.sequence, block);
    }
    if (same) return rows;
    return std::min(rows, static_cast<uint32_t>(block_tokens - position % block_tokens));
  }

  void Add(Item item, uint32_t subtrees) {
    if (subtrees > 1 && item.to == nullptr) {
      item.tile = plan_->tiles++;
      item.subtrees_begin = plan_->subtree_states;
      plan_->subtree_states += subtrees;
    }
    AddSubtrees(item, subtrees, plan_, &plan_->items);
  }

  const AttentionShape& shape_;
  const BlockTables& tables_;
  const AttentionTask& task_;
  const Work& work_;
  Plan* plan_;
};

/// First items of one cascade of `count` sequences, which share so many splits, in enough lane
/// subtrees for all workers: few sequences with as many heads as make long runs, many in tiles of
/// one head.
void AddFirstItems(const AttentionTask& task, uint64_t splits, uint32_t first_sequence,
                   uint32_t workers, Plan* plan) {
  const AttentionShape& shape = plan->shape;
  const uint32_t count = task.rows;
  const bool streams = Streams(shape, count);
  const uint32_t heads = streams ? HeadsPerRun(shape) : 1;
  const uint32_t rows = streams ? count : RowsPerTile(shape);
  const uint64_t tiles = uint64_t{DivUp(shape.key.heads, heads)} * DivUp(count, rows);
  uint32_t subtrees = 1;
  while (subtrees < kLanes && subtrees < splits && subtrees * tiles < workers * kItemsPerWorker)
    subtrees *= 2;
  for (uint32_t head = 0; head < shape.key.heads; head += heads) {
    for (uint32_t row = 0; row < count; row += rows) {
      const Item item{.shape = &shape,
                      .task = &task,
                      .tables = &plan->tables,
                      .head_begin = head,
                      .heads = std::min(heads, shape.key.heads - head),
                      .row_begin = row,
                      .rows = std::min(rows, count - row),
                      .splits = {.begin = 0, .end = splits},
                      .to = &plan->cascade_states,
                      .states_row = uint64_t{first_sequence} + row,
                      .sequences = plan->sequences.data() + first_sequence};
      plan->expands = plan->expands || !item.streams();
      AddSubtrees(item, subtrees, plan, &plan->first_items);
    }
  }
}

/// Finds the cascades and adds their first items; `work` is the work that is left.
void AddCascades(uint32_t workers, Plan* plan, std::vector<Work>* work) {
  const AttentionShape& shape = plan->shape;
  const std::vector<AttentionTask>& tasks = plan->tasks;
  const std::vector<Cascade> cascades = FindCascades(shape, plan->tables.sealed, tasks);
  for (const Cascade& cascade : cascades) {
    for (const uint32_t task : cascade.tasks) plan->sequences.push_back(&tasks[task]);
    AttentionTask of_all = tasks[cascade.tasks.front()];
    of_all.queries = nullptr;
    of_all.out = nullptr;
    of_all.rows = static_cast<uint32_t>(cascade.tasks.size());
    // The shared splits are sealed for all of them.
    of_all.first_position =
        cascade.splits * kSplitTokens + uint64_t{shape.open_blocks} * shape.key.block_tokens;
    plan->shared_tasks.push_back(of_all);
  }
  // From here on nothing that items point to moves.
  for (size_t c = 0; c < cascades.size(); ++c) {
    const uint32_t first = plan->cascade_rows;
    for (const uint32_t task : cascades[c].tasks) {
      (*work)[task].splits.begin = cascades[c].splits;
      (*work)[task].from = &plan->cascade_states;
      (*work)[task].states_row = plan->cascade_rows++;
    }
    AddFirstItems(plan->shared_tasks[c], cascades[c].splits, first, workers, plan);
  }
}

}  // namespace

void MakePlan(const AttentionShape& shape, const BlockTables& tables,
              std::span<const AttentionTask> tasks, uint32_t workers, Plan* plan) {
  QUIRE_CHECK(workers > 0);
  Plan used = std::move(*plan);
  used.first_items.clear();
  used.items.clear();
  used.sequences.clear();
  used.shared_tasks.clear();
  used.tasks.assign(tasks.begin(), tasks.end());
  *plan = Plan{.shape = shape,
               .tables = tables,
               .tasks = std::move(used.tasks),
               .first_items = std::move(used.first_items),
               .items = std::move(used.items),
               .sequences = std::move(used.sequences),
               .shared_tasks = std::move(used.shared_tasks)};
  std::vector<Work> work(tasks.size());
  for (size_t i = 0; i < tasks.size(); ++i) {
    if (tasks[i].rows != 0) work[i] = WorkOf(plan->tasks[i]);
  }
  AddCascades(workers, plan, &work);
  uint64_t total = 0;
  const auto cost = [&](size_t task) {
    return TokensInSight(shape, tasks[task], work[task].splits) * tasks[task].rows;
  };
  for (size_t i = 0; i < tasks.size(); ++i) total += tasks[i].rows == 0 ? 0 : cost(i);
  // A task gets items in proportion to its cost, so that all workers end at about the same time.
  const uint64_t fair = std::max<uint64_t>(1, total / (workers * kItemsPerWorker));
  for (size_t i = 0; i < tasks.size(); ++i) {
    const AttentionTask& task = plan->tasks[i];
    if (task.rows == 0) continue;
    const uint64_t pieces = workers == 1 ? 1 : (cost(i) + fair - 1) / fair;
    TaskPlanner planner(task, work[i], plan);
    if (task.rows == 1 && Streams(shape, 1)) {
      planner.AddRow(pieces);
    } else {
      planner.AddTiles(pieces);
    }
  }
}

}  // namespace quire::attention
