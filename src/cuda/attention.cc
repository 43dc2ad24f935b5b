#include "cuda/attention.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <vector>

#include "attention/plan.h"
#include "attention/shape.h"
#include "base/bits.h"
#include "codec/formats.h"
#include "cuda/mma_tasks.h"
#include "cuda/plan.h"
#include "cuda/sender.h"
#include "cuda/upload.h"

namespace quire::cuda {
namespace {

constexpr uint64_t kStatesBytes = uint64_t{256} << 20;  // of a wave
constexpr uint32_t kBlocksWanted = 4096;
constexpr uint32_t kFoldBlocks = 264;  // that are there at once: two for each of 132 processors

class DeviceAttention final : public AttentionBackend {
 public:
  DeviceAttention(Device& device, const AttentionOptions& options)
      : device_(device),
        options_(options),
        sender_(device),
        arguments_(device),
        tables_(device),
        states_(device),
        waiting_(device) {}

  std::string_view name() const override { return "cuda"; }
  std::string_view target() const override { return device_.target(); }

  Result<void> Supports(const AttentionShape& shape) const override {
    QUIRE_TRY(attention::ValidateShape(shape));
    const auto cannot = [](const std::string& what) -> Result<void> {
      return Fail(ErrorCode::kUnsupported, "attention on a device: " + what);
    };
    for (const auto& [name, dim] : {std::pair{"key", shape.key.dim}, {"value", shape.value.dim}}) {
      if (dim > kDimMax) return cannot(fmt::format("{}.dim is {}, at most {}", name, dim, kDimMax));
    }
    if (!IsIdentity(attention::OpenKey(shape).codec)) return cannot("open_key encodes");
    if (!IsIdentity(attention::OpenValue(shape).codec)) return cannot("open_value encodes");
    if (options_.arithmetic == Arithmetic::kMma16) return SupportsMma(shape);
    return {};
  }

  Result<void> Attend(const AttentionShape& shape, const BlockTables& tables,
                      std::span<const AttentionTask> tasks, Executor& executor) override {
    (void)executor;
    QUIRE_TRY(Supports(shape));
    QUIRE_TRY(attention::ValidateTasks(shape, tables, tasks));
    QUIRE_TRY(CopyTables(tables));
    if (options_.arithmetic == Arithmetic::kFma32) return RunWaves(shape, tables, tasks);
    QUIRE_TRY(CheckAlignment(tables));
    QUIRE_TRY(ChooseStaging(shape));
    one_form_ = IsOneForm(shape, tables);
    const MmaTasks sorted = SortTasks(shape, tasks, options_.folded_tiles_min);
    QUIRE_TRY(Fold(shape, sorted.folded));
    return RunWaves(shape, tables, sorted.split);
  }

 private:
  Result<void> CopyTables(const BlockTables& tables) {
    const auto add = [&](const BlockTable& table) {
      return std::pair{upload_.Add(table.indptr, uint64_t{table.sequences} + 1),
                       upload_.Add(table.slots, table.indptr[table.sequences])};
    };
    upload_.Clear();
    const auto sealed = add(tables.sealed);
    const auto open = add(tables.open);
    QUIRE_TRY(tables_.Reserve(upload_.bytes().size()));
    sender_.Send(upload_.bytes().data(), upload_.bytes().size(), tables_.as<void>());
    const auto placed = [&](BlockTable table, const std::pair<uint64_t, uint64_t>& at) {
      table.indptr = reinterpret_cast<const uint64_t*>(tables_.as<std::byte>() + at.first);
      table.slots = reinterpret_cast<const uint32_t*>(tables_.as<std::byte>() + at.second);
      return table;
    };
    on_device_ = {placed(tables.sealed, sealed), placed(tables.open, open)};
    return {};
  }

  /// Splits, then the fold of their states.
  Result<void> RunWaves(const AttentionShape& shape, const BlockTables& tables,
                        std::span<const AttentionTask> tasks) {
    if (tasks.empty()) return {};
    const uint64_t state_bytes = (uint64_t{shape.value.dim} + 2) * sizeof(float);
    static_assert(kTileQueriesMax == kMmaRows);
    const AttendPlan plan =
        MakePlan(shape, tables, tasks,
                 {.states = kStatesBytes / state_bytes, .blocks_wanted = kBlocksWanted});
    QUIRE_TRY(states_.Reserve(plan.states_max * state_bytes));
    auto* const floats = states_.as<float>();
    const SplitStates states{
        .max = floats, .sum = floats + plan.states_max, .out = floats + 2 * plan.states_max};
    for (const Wave& wave : plan.waves) {
      QUIRE_ASSIGN(SplitsArgs args, Send(shape, plan, wave));
      args.states = states;
      if (!wave.tiles.empty()) LaunchSplits(args, plan);
      device_.Launch({.value = shape.value, .vectors = vectors_, .states = states},
                     static_cast<uint32_t>(wave.vectors.size()));
    }
    return {};
  }

  void LaunchSplits(const SplitsArgs& args, const AttendPlan& plan) {
    if (options_.arithmetic == Arithmetic::kFma32) {
      device_.Launch(args, SplitsLaunch{.blocks = blocks_, .queries_max = plan.queries_max});
    } else {
      device_.Launch(ArgsOf(args, /*folds=*/false),
                     MmaLaunch{.blocks = blocks_, .staging = staging_});
    }
  }

  Result<void> Fold(const AttentionShape& shape, std::span<const AttentionTask> tasks) {
    if (tasks.empty()) return {};
    const AttendPlan plan = MakeFoldPlan(shape, tasks, kMmaWarps * kMmaRows);
    const Wave& wave = plan.waves.front();
    const uint32_t blocks = std::min(static_cast<uint32_t>(wave.tiles.size()), kFoldBlocks);
    QUIRE_TRY(waiting_.Reserve(WaitingFloats(blocks) * sizeof(float)));
    QUIRE_ASSIGN(const SplitsArgs args, Send(shape, plan, wave));
    MmaArgs folded = ArgsOf(args, /*folds=*/true);
    folded.waiting = waiting_.as<float>();
    folded.blocks = blocks;
    device_.Launch(folded, MmaLaunch{.blocks = blocks, .folds = true, .staging = staging_});
    return {};
  }

  /// How K and V of a call come into shared memory.
  Result<void> ChooseStaging(const AttentionShape& shape) {
    staging_ = StagingOf(shape, on_device_, options_.bulk_copies && device_.has_bulk_copies());
    if (staging_ != Staging::kBulk) return {};
    const auto arrays = BoxedArrays(shape, on_device_);
    for (size_t i = 0; i < arrays.size(); ++i) {
      QUIRE_ASSIGN(boxes_[i], device_.MakeMap(arrays[i]));
    }
    return {};
  }

  MmaArgs ArgsOf(const SplitsArgs& splits, bool folds) const {
    return {.splits = splits,
            .shared = SharedOf(splits.shape, folds, staging_),
            .key_mids = codec::HasMids(splits.shape.key.codec),
            .value_mids = codec::HasMids(splits.shape.value.codec),
            .one_form = one_form_,
            .boxes = boxes_};
  }

  /// Copies what a wave has; its vectors are at `vectors_` then.
  Result<SplitsArgs> Send(const AttentionShape& shape, const AttendPlan& plan, const Wave& wave) {
    upload_.Clear();
    const uint64_t rows = upload_.Add(plan.rows);
    const uint64_t tiles = upload_.Add(wave.tiles);
    const uint64_t blocks = upload_.Add(wave.tile_blocks);
    const uint64_t vectors = upload_.Add(wave.vectors);
    QUIRE_TRY(arguments_.Reserve(upload_.bytes().size()));
    sender_.Send(upload_.bytes().data(), upload_.bytes().size(), arguments_.as<void>());
    const auto* const base = arguments_.as<std::byte>();
    vectors_ = reinterpret_cast<const FoldVector*>(base + vectors);
    blocks_ = wave.tile_blocks.empty() ? 0 : wave.tile_blocks.back();
    return SplitsArgs{.shape = shape,
                      .tables = on_device_,
                      .rows = reinterpret_cast<const QueryRow*>(base + rows),
                      .tiles = reinterpret_cast<const Tile*>(base + tiles),
                      .tile_blocks = reinterpret_cast<const uint32_t*>(base + blocks),
                      .tile_count = static_cast<uint32_t>(wave.tiles.size()),
                      .splits_per_block = wave.splits_per_block};
  }

  Device& device_;
  const AttentionOptions options_;
  Upload upload_;
  Sender sender_;
  DeviceBuffer arguments_;
  DeviceBuffer tables_;
  DeviceBuffer states_;
  DeviceBuffer waiting_;  // states of blocks that fold
  // Of the call, on the device:
  BlockTables on_device_{};
  Staging staging_ = Staging::kDecoded;
  std::array<TensorMap, kBoxedArrays> boxes_{};
  bool one_form_ = false;
  const FoldVector* vectors_ = nullptr;  // of the wave
  uint32_t blocks_ = 0;                  // of threads, likewise
};

}  // namespace

std::unique_ptr<AttentionBackend> MakeAttention(Device& device, const AttentionOptions& options) {
  return std::make_unique<DeviceAttention>(device, options);
}

}  // namespace quire::cuda
