#include "cuda/plan.h"

#include <algorithm>
#include <array>

#include "attention/plan.h"
#include "attention/visible.h"
#include "base/bits.h"

namespace quire::cuda {
namespace {

// Splits of one block of threads are at most so many: its work for the queries is then little
// beside them, and the last blocks do not run alone for long.
constexpr uint64_t kSplitsPerBlockMax = 8;

/// Splits of some rows in which they see something: at most the sinks and the window.
std::array<SplitRange, 2> SeenSplits(const AttentionShape& shape, uint64_t position_min,
                                     uint64_t position_max, const SplitRange& wanted) {
  const uint64_t end = std::min(wanted.end, position_max / kSplitTokens + 1);
  const auto range = [&](uint64_t from, uint64_t to) {
    from = std::max(from, wanted.begin);
    return SplitRange{from, std::max(from, std::min(to, end))};
  };
  const uint64_t passed = shape.window_tokens == 0 || position_min < shape.window_tokens
                              ? 0
                              : (position_min + 1 - shape.window_tokens) / kSplitTokens;
  const uint64_t sinks = DivUp(uint64_t{shape.sink_tokens}, kSplitTokens);
  if (sinks >= passed) return {range(0, end), SplitRange{0, 0}};
  return {range(0, sinks), range(passed, end)};
}

class Planner {
 public:
  Planner(const AttentionShape& shape, const BlockTables& tables,
          std::span<const AttentionTask> tasks, const PlanLimits& limits)
      : shape_(shape),
        tables_(tables),
        tasks_(tasks),
        limits_(limits),
        group_(shape.query_heads / shape.key.heads) {}

  AttendPlan Make() {
    AddRows();
    by_lanes_ = limits_.lane_blocks_wanted != 0 && LaneBlocks() >= limits_.lane_blocks_wanted;
    std::vector<bool> in_cascade(tasks_.size(), false);
    for (const attention::Cascade& cascade :
         attention::FindCascades(shape_, tables_.sealed, tasks_)) {
      AddCascade(cascade);
      for (const uint32_t task : cascade.tasks) in_cascade[task] = true;
    }
    for (uint32_t task = 0; task < tasks_.size(); ++task) {
      if (!in_cascade[task]) AddTask(task);
    }
    for (Wave& wave : plan_.waves) CutIntoBlocks(wave, limits_.blocks_wanted);
    return std::move(plan_);
  }

  AttendPlan MakeFolded() {
    AddRows();
    Wave& wave = plan_.waves.emplace_back();
    const uint32_t rows_at_once = std::max(1u, limits_.tile_queries / group_);
    for (uint32_t number = 0; number < tasks_.size(); ++number) {
      const AttentionTask& task = tasks_[number];
      // The last rows see most: their tiles take longest and go first.
      for (uint32_t end = task.rows; end > 0;) {
        const uint32_t rows = (end - 1) % rows_at_once + 1;
        end -= rows;
        const uint64_t position = task.first_position + end;
        Tile tile{.row_begin = first_rows_[number] + end,
                  .rows = rows,
                  .sequence = task.sequence,
                  .position_min = position,
                  .position_max = position + rows - 1,
                  .split_end = (position + rows - 1) / kSplitTokens + 1};
        ForTilesOfHeads(tile, [&](const Tile& of_heads) { wave.tiles.push_back(of_heads); });
      }
    }
    return std::move(plan_);
  }

 private:
  /// Blocks of threads that there are if each has a lane of a tile.
  uint64_t LaneBlocks() const {
    const uint32_t rows_at_once = std::max(1u, limits_.tile_queries / group_);
    const uint32_t tiles_of_head = DivUp(group_, limits_.tile_queries);
    uint64_t blocks = 0;
    for (const AttentionTask& task : tasks_) {
      const SplitRange splits = attention::SplitsOf(task);
      blocks += uint64_t{DivUp(task.rows, rows_at_once)} * shape_.key.heads * tiles_of_head *
                std::min<uint64_t>(kLanes, splits.end - std::min(splits.begin, splits.end));
    }
    return blocks;
  }

  void AddRows() {
    for (const AttentionTask& task : tasks_) {
      first_rows_.push_back(static_cast<uint32_t>(plan_.rows.size()));
      for (uint64_t row = 0; row < task.rows; ++row) {
        const float* const queries = task.queries == nullptr
                                         ? nullptr
                                         : task.queries + row * shape_.query_heads * shape_.key.dim;
        float* const out =
            task.out == nullptr ? nullptr : task.out + row * shape_.query_heads * shape_.value.dim;
        plan_.rows.push_back({queries, out, task.first_position + row});
      }
    }
  }

  void AddTask(uint32_t number) {
    const AttentionTask& task = tasks_[number];
    const uint32_t rows_at_once = std::max(1u, limits_.tile_queries / group_);
    for (uint32_t row = 0; row < task.rows; row += rows_at_once) {
      const uint32_t rows = std::min(rows_at_once, task.rows - row);
      const uint64_t position = task.first_position + row;
      const SplitRange wanted = attention::SplitsOf(task);
      const auto ranges = SeenSplits(shape_, position, position + rows - 1, wanted);
      StartWave((ranges[0].end - ranges[0].begin + ranges[1].end - ranges[1].begin) * rows *
                shape_.query_heads);
      Tile tile{.row_begin = first_rows_[number] + row,
                .rows = rows,
                .sequence = task.sequence,
                .position_min = position,
                .position_max = position + rows - 1};
      const auto set_splits = [&tile](const SplitRange& splits) {
        tile.split_begin = splits.begin;
        tile.split_end = splits.end;
      };
      const bool is_first_empty = ranges[0].begin == ranges[0].end;
      if (limits_.tiles_merge && task.out != nullptr && task.from.lanes == 0 &&
          is_first_empty != (ranges[1].begin == ranges[1].end)) {
        set_splits(ranges[is_first_empty ? 1 : 0]);
        tile.by_lanes = by_lanes_ && tile.states() > kLanes;
        tile.merges = tile.states() <= kLanes;
        if (tile.merges) {
          AddTilesOfHeads(tile, [](const Tile&) {});
          continue;
        }
      }
      const uint64_t first = AddVectors(number, row, rows);
      for (size_t i = 0; i < ranges.size(); ++i) {
        set_splits(ranges[i]);
        AddTiles(tile, i, [&](uint32_t r, uint32_t head) {
          return first + uint64_t{r} * shape_.query_heads + head;
        });
      }
    }
  }

  // Computes the shared splits of its tasks at once; then each continues by itself.
  void AddCascade(const attention::Cascade& cascade) {
    uint64_t states = 0;
    for (const uint32_t number : cascade.tasks) {
      states += attention::SplitsOf(tasks_[number]).end;
    }
    StartWave(states * shape_.query_heads);
    std::vector<uint64_t> first;
    for (const uint32_t number : cascade.tasks) {
      const AttentionTask& task = tasks_[number];
      first.push_back(AddVectors(number, 0, 1));
      AddTiles({.row_begin = first_rows_[number],
                .rows = 1,
                .sequence = task.sequence,
                .position_min = task.first_position,
                .position_max = task.first_position,
                .split_begin = cascade.splits,
                .split_end = attention::SplitsOf(task).end},
               1, [&](uint32_t, uint32_t head) { return first.back() + head; });
    }
    const uint32_t rows_at_once = std::max(1u, limits_.tile_queries / group_);
    for (uint32_t begin = 0; begin < cascade.tasks.size(); begin += rows_at_once) {
      const uint32_t rows =
          std::min(rows_at_once, static_cast<uint32_t>(cascade.tasks.size()) - begin);
      Tile tile{.row_begin = static_cast<uint32_t>(plan_.rows.size()),
                .rows = rows,
                .sequence = tasks_[cascade.tasks[begin]].sequence,
                .position_min = UINT64_MAX,
                .split_end = cascade.splits};
      for (uint32_t i = begin; i < begin + rows; ++i) {
        const QueryRow row = plan_.rows[first_rows_[cascade.tasks[i]]];
        tile.position_min = std::min(tile.position_min, row.position);
        tile.position_max = std::max(tile.position_max, row.position);
        plan_.rows.push_back(row);
      }
      AddTiles(tile, 0, [&](uint32_t r, uint32_t head) { return first[begin + r] + head; });
    }
  }

  void StartWave(uint64_t states) {
    if (plan_.waves.empty() || plan_.waves.back().states + states > limits_.states) {
      plan_.waves.emplace_back();
    }
  }

  /// The first of the vectors of some rows: [rows, query_heads].
  uint64_t AddVectors(uint32_t number, uint32_t row_begin, uint32_t rows) {
    const AttentionTask& task = tasks_[number];
    std::vector<FoldVector>& vectors = plan_.waves.back().vectors;
    const uint64_t first = vectors.size();
    for (uint32_t row = row_begin; row < row_begin + rows; ++row) {
      for (uint32_t head = 0; head < shape_.query_heads; ++head) {
        const uint64_t at = uint64_t{row} * shape_.query_heads + head;
        FoldVector& vector = vectors.emplace_back();
        vector.from_row = at;
        vector.from = task.from;
        vector.to = task.to;
        if (task.out != nullptr) vector.out = task.out + at * shape_.value.dim;
      }
    }
    return first;
  }

  /// f(tile) for every KV head, or several tiles where it has many query heads.
  template <typename F>
  void ForTilesOfHeads(Tile tile, const F& f) const {
    for (uint32_t head = 0; head < shape_.query_heads; head += tile.heads) {
      tile.head_begin = head;
      tile.heads = std::min(limits_.tile_queries, group_ - head % group_);
      f(tile);
    }
  }

  /// Adds them to the wave, each after f(tile), which sees where its states begin.
  template <typename F>
  void AddTilesOfHeads(const Tile& tile, const F& f) {
    Wave& wave = plan_.waves.back();
    ForTilesOfHeads(tile, [&](Tile of_heads) {
      of_heads.states_begin = wave.states;
      f(of_heads);
      wave.states += of_heads.states() * of_heads.queries();
      plan_.states_max = std::max(plan_.states_max, wave.states);
      plan_.queries_max = std::max(plan_.queries_max, of_heads.queries());
      wave.tiles.push_back(of_heads);
    });
  }

  /// Segment `segment` of the vector of (row, query head) becomes the tile's splits. Lanes begin
  /// with the first segment of a vector that has no states from before.
  template <typename VectorOf>
  void AddTiles(Tile tile, size_t segment, const VectorOf& vector_of) {
    Wave& wave = plan_.waves.back();
    if (tile.states() == 0) return;
    bool by_lanes = by_lanes_ && segment == 0 && tile.states() > kLanes;
    for (uint32_t q = 0; by_lanes && q < tile.rows; ++q) {
      by_lanes = wave.vectors[vector_of(q, 0)].from.lanes == 0;
    }
    tile.by_lanes = by_lanes;
    AddTilesOfHeads(tile, [&](const Tile& of_heads) {
      for (uint32_t q = 0; q < of_heads.queries(); ++q) {
        const uint64_t vector =
            vector_of(q / of_heads.heads, of_heads.head_begin + q % of_heads.heads);
        wave.vectors[vector].segments[segment] = {of_heads.split_begin,
                                                  of_heads.split_begin + of_heads.states(),
                                                  of_heads.states_begin + q, of_heads.queries()};
      }
    });
  }

  static void CutIntoBlocks(Wave& wave, uint32_t blocks_wanted) {
    uint64_t splits = 0;
    for (const Tile& tile : wave.tiles) splits += tile.split_end - tile.split_begin;
    wave.splits_per_block = static_cast<uint32_t>(
        std::clamp<uint64_t>(splits / std::max(1u, blocks_wanted), 1, kSplitsPerBlockMax));
    for (uint32_t number = 0; number < wave.tiles.size(); ++number) {
      const Tile& tile = wave.tiles[number];
      const uint32_t at_once = tile.by_lanes ? 1 : wave.splits_per_block;
      for (uint32_t block = 0; block < tile.blocks(wave.splits_per_block); ++block) {
        wave.work.push_back(
            {.tile = number, .split = tile.split_begin + uint64_t{block} * at_once});
      }
    }
  }

  const AttentionShape& shape_;
  const BlockTables tables_;
  const std::span<const AttentionTask> tasks_;
  const PlanLimits limits_;
  const uint32_t group_;
  bool by_lanes_ = false;
  std::vector<uint32_t> first_rows_;  // of each task
  AttendPlan plan_;
};

}  // namespace

AttendPlan MakePlan(const AttentionShape& shape, const BlockTables& tables,
                    std::span<const AttentionTask> tasks, const PlanLimits& limits) {
  return Planner(shape, tables, tasks, limits).Make();
}

AttendPlan MakeFoldPlan(const AttentionShape& shape, std::span<const AttentionTask> tasks,
                        uint32_t tile_queries) {
  return Planner(shape, {}, tasks, {.tile_queries = tile_queries}).MakeFolded();
}

}  // namespace quire::cuda
