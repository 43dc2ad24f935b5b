#include "attention/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "attention/shape.h"

namespace quire::attention {
namespace {

/// Blocks [begin, end).
struct BlockRange {
  uint64_t begin = 0;
  uint64_t end = 0;

  BlockRange After(uint64_t first) const { return {std::max(begin, first), end}; }
  BlockRange Before(uint64_t last_end) const { return {begin, std::min(end, last_end)}; }
};

/// Checks one task.
class TaskCheck {
 public:
  TaskCheck(const AttentionShape& shape, const BlockTables& tables, const AttentionTask& task,
            size_t index)
      : shape_(shape), tables_(tables), task_(task), index_(index) {}

  Result<void> Run() const {
    if (task_.rows == 0) return {};
    QUIRE_TRY(CheckStates());
    if (task_.first_position > UINT64_MAX - task_.rows) {
      return Bad(fmt::format("rows: {} from position {} on", task_.rows, task_.first_position));
    }
    const SplitRange splits = SplitsOf(task_);
    if (splits.begin >= splits.end) return {};
    if (task_.queries == nullptr) return Bad("queries is null");
    const uint64_t blocks_per_split = kSplitTokens / shape_.key.block_tokens;
    const BlockRange asked{splits.begin * blocks_per_split,
                           std::min(splits.end * blocks_per_split, BlockOf(last_position()) + 1)};
    QUIRE_TRY(CheckRow("sealed", tables_.sealed, asked.end));
    QUIRE_TRY(CheckRow("open", tables_.open, asked.end));
    return CheckSeen(asked);
  }

 private:
  std::unexpected<Error> Bad(const std::string& what) const {
    return Fail(ErrorCode::kInvalidArgument, fmt::format("tasks[{}].{}", index_, what));
  }

  uint64_t BlockOf(uint64_t token) const { return token / shape_.key.block_tokens; }
  uint64_t last_position() const { return task_.first_position + task_.rows - 1; }

  Result<void> CheckStates() const {
    const LaneStates& from = task_.from;
    const LaneStates& to = task_.to;
    if ((task_.out != nullptr) == (to.lanes != 0)) {
      return Bad(task_.out != nullptr ? "out is asked for, and to.lanes too"
                                      : "out is null, and to has no lanes");
    }
    QUIRE_TRY(CheckMemory("from", from));
    QUIRE_TRY(CheckMemory("to", to));
    const LaneSet needed = task_.out != nullptr ? kAllLanes : to.lanes;
    if (from.lanes != 0 && (needed & ~from.lanes) != 0) {
      return Bad(fmt::format("from.lanes is {:#x}, lacks {:#x}", from.lanes, needed & ~from.lanes));
    }
    if (from.lanes == 0 || from.lanes == to.lanes || from.max != to.max) return {};
    return Bad("to has the memory of from, but other lanes");
  }

  Result<void> CheckMemory(std::string_view name, const LaneStates& states) const {
    if ((states.lanes & ~kAllLanes) != 0) {
      return Bad(fmt::format("{}.lanes is {:#x}, there are {} lanes", name, states.lanes, kLanes));
    }
    const bool has_memory = states.max != nullptr && states.sum != nullptr && states.out != nullptr;
    if (states.lanes == 0 || has_memory) return {};
    return Bad(fmt::format("{}.max, sum or out is null", name));
  }

  /// Whether the sequence has so many blocks.
  Result<void> CheckRow(std::string_view name, const BlockTable& table, uint64_t blocks) const {
    if (task_.sequence >= table.sequences) {
      return Bad(fmt::format("sequence: {} of the {} that the {} table has", task_.sequence,
                             table.sequences, name));
    }
    if (table.indptr == nullptr) {
      return Bad(fmt::format("sequence: indptr of the {} table is null", name));
    }
    const uint64_t has = table.BlockCount(task_.sequence);
    if (has < blocks) {
      return Bad(fmt::format(
          "rows: {} from position {} on, but sequence {} has {} blocks of {} "
          "tokens in the {} table",
          task_.rows, task_.first_position, task_.sequence, has, shape_.key.block_tokens, name));
    }
    if (table.base != nullptr && table.slots != nullptr) return {};
    return Bad(fmt::format("sequence: {} of the {} table is null",
                           table.base == nullptr ? "base" : "slots", name));
  }

  /// The rows together see the sinks, and from the first row's window on everything.
  Result<void> CheckSeen(BlockRange asked) const {
    const uint64_t window = shape_.window_tokens == 0 ? UINT64_MAX : shape_.window_tokens;
    const uint64_t seen = task_.first_position < window ? 0 : task_.first_position + 1 - window;
    QUIRE_TRY(CheckForms(asked.After(BlockOf(seen)), window));
    if (seen == 0 || shape_.sink_tokens == 0) return {};
    const uint64_t sinks = std::min<uint64_t>(shape_.sink_tokens, seen);
    return CheckForms(asked.Before(BlockOf(sinks - 1) + 1), UINT64_MAX);
  }

  /// A block is read open by the first row that comes to it, if not by the first of all, and sealed
  /// by those that have left it more than open_blocks behind and see back so far.
  Result<void> CheckForms(BlockRange blocks, uint64_t window) const {
    if (shape_.open_blocks == kOpenWherePresent) return CheckEitherForm(blocks);
    const uint64_t first_open = FirstOpenBlock(shape_, task_.first_position);
    QUIRE_TRY(CheckSlots(tables_.open, blocks.After(first_open)));
    QUIRE_TRY(CheckSlots(tables_.sealed, blocks.Before(first_open)));
    const uint64_t open_tokens = uint64_t{shape_.open_blocks} * shape_.key.block_tokens;
    if (window <= open_tokens + 1) return {};
    return CheckSlots(tables_.sealed,
                      blocks.After(first_open).Before(FirstOpenBlock(shape_, last_position())));
  }

  Result<void> CheckEitherForm(BlockRange blocks) const {
    const uint32_t* const open = tables_.open.Row(task_.sequence);
    const uint64_t blocks_per_split = kSplitTokens / shape_.key.block_tokens;
    for (uint64_t block = blocks.begin; block < blocks.end; ++block) {
      if (open[block] != kNoSlot) continue;
      QUIRE_TRY(CheckSlots(tables_.sealed, {.begin = block, .end = block + 1}));
      const bool is_first = block == blocks.begin || block % blocks_per_split == 0;
      if (is_first || open[block - 1] == kNoSlot || !IsAsked(block)) continue;
      return Bad(fmt::format("sequence: {} has block {} in the open table, and not block {} of the "
                             "same split",
                             task_.sequence, block - 1, block));
    }
    return {};
  }

  /// Whether the block lies in a lane that is asked for.
  bool IsAsked(uint64_t block) const {
    if (task_.out != nullptr) return true;
    const uint64_t split = block / (kSplitTokens / shape_.key.block_tokens);
    return (task_.to.lanes >> split % kLanes & 1) != 0;
  }

  Result<void> CheckSlots(const BlockTable& table, BlockRange blocks) const {
    if (blocks.begin >= blocks.end) return {};
    const uint32_t* const row = table.Row(task_.sequence);
    const uint32_t* const end = row + blocks.end;
    const uint32_t* none = std::find(row + blocks.begin, end, kNoSlot);
    while (none != end && !IsAsked(static_cast<uint64_t>(none - row))) {
      none = std::find(none + 1, end, kNoSlot);
    }
    if (none == end) return {};
    const std::string sees =
        fmt::format("first_position: {} rows from {} on see block {} of sequence {}", task_.rows,
                    task_.first_position, none - row, task_.sequence);
    const bool encoded_only = row != tables_.sealed.Row(task_.sequence) &&
                              tables_.sealed.Row(task_.sequence)[none - row] != kNoSlot;
    return Bad(sees + (encoded_only ? " as it was written, but it is encoded only"
                                    : ", which has no slot: its window has passed it"));
  }

  const AttentionShape& shape_;
  const BlockTables& tables_;
  const AttentionTask& task_;
  const size_t index_;
};

}  // namespace

Result<void> ValidateTasks(const AttentionShape& shape, const BlockTables& tables,
                           std::span<const AttentionTask> tasks) {
  for (size_t i = 0; i < tasks.size(); ++i) {
    QUIRE_TRY(TaskCheck(shape, tables, tasks[i], i).Run());
  }
  return {};
}

}  // namespace quire::attention
