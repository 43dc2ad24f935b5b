#include "cuda/attention.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>
#include <utility>
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

constexpr uint64_t kSlotsRoomBytes = 4096;  // steps in which a table's room grows

/// A plan on the device: its tables, and the arguments of its launches.
struct SentPlan {
  explicit SentPlan(Device& device) : memory(device) {}

  // Where the arrays of a launch lie in `memory`.
  struct Launch {
    uint64_t rows = 0;
    uint64_t tiles = 0;
    uint64_t work = 0;
    uint64_t arrived = 0;
    uint64_t vectors = 0;
    uint32_t tile_count = 0;
    uint32_t vector_count = 0;
    uint32_t blocks = 0;  // of threads
    uint32_t splits_per_block = 1;
  };

  AttentionShape shape{};
  BlockTables on_device{};
  bool one_form = false;
  std::vector<Launch> folds{};  // one or none
  std::vector<Launch> waves{};
  uint32_t queries_max = 0;  // of the waves
  uint64_t states_max = 0;   // likewise
  DeviceBuffer memory;
};

class DeviceAttention final : public AttentionBackend {
 public:
  DeviceAttention(Device& device, const AttentionOptions& options)
      : device_(device),
        options_(options),
        sender_(device),
        of_calls_(device),
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
    if (shape.open_blocks == kOpenWherePresent) return cannot("open_blocks is kOpenWherePresent");
    if (shape.sink_logits != nullptr) return cannot("sink_logits are set");
    if (shape.alibi_slopes != nullptr) return cannot("alibi_slopes are set");
    if (options_.arithmetic == Arithmetic::kMma16) {
      return SupportsMma(shape, device_.shared_bytes_max());
    }
    return {};
  }

  Result<void> Attend(const AttentionShape& shape, const BlockTables& tables,
                      std::span<const AttentionTask> tasks, Executor& executor) override {
    (void)executor;
    QUIRE_TRY(Send(shape, tables, tasks, of_calls_));
    return Run(shape, of_calls_);
  }

  Result<std::unique_ptr<AttentionPlan>> Prepare(const AttentionShape& shape,
                                                 const BlockTables& tables,
                                                 std::span<const AttentionTask> tasks,
                                                 Executor& executor) override {
    (void)executor;
    auto prepared = std::make_unique<Prepared>(*this);
    QUIRE_TRY(Send(shape, tables, tasks, *prepared->sent));
    return prepared;
  }

 private:
  // The next plan uses its memory: both are in the order of the device's stream.
  struct Prepared final : public AttentionPlan {
    explicit Prepared(DeviceAttention& of) : backend(of), sent(of.TakeSpare()) {}
    ~Prepared() override { backend.spare_.push_back(std::move(sent)); }

    Result<void> Run(const AttentionShape& shape, Executor& executor) override {
      (void)executor;
      QUIRE_TRY(backend.Supports(shape));
      QUIRE_TRY(attention::CheckPlanned(sent->shape, shape));
      return backend.Run(shape, *sent);
    }

    DeviceAttention& backend;
    std::unique_ptr<SentPlan> sent;
  };

  std::unique_ptr<SentPlan> TakeSpare() {
    if (spare_.empty()) {
      spare_.reserve(++plans_);  // so that giving it back needs no memory
      return std::make_unique<SentPlan>(device_);
    }
    std::unique_ptr<SentPlan> taken = std::move(spare_.back());
    spare_.pop_back();
    return taken;
  }

  /// The work that does not depend on where the streams of a layer lie in their slots.
  Result<void> Send(const AttentionShape& shape, const BlockTables& tables,
                    std::span<const AttentionTask> tasks, SentPlan& plan) {
    QUIRE_TRY(Supports(shape));
    QUIRE_TRY(attention::ValidateTasks(shape, tables, tasks));
    plan.shape = shape;
    plan.folds.clear();
    plan.waves.clear();
    plan.queries_max = 0;
    plan.states_max = 0;
    upload_.Clear();
    if (options_.arithmetic == Arithmetic::kFma32) {
      AddWaves(tables, tasks, plan);
    } else {
      QUIRE_TRY(CheckAlignment(tables));
      plan.one_form = IsOneForm(shape, tables);
      const MmaTasks sorted = SortTasks(shape, tasks, options_.folded_tiles_min);
      AddFold(sorted.folded, plan);
      AddWaves(tables, sorted.split, plan);
    }
    // Last, as they grow most often: what lies elsewhere than in the plan before changes arguments
    // of all layers.
    const auto [sealed, open] = AddTables(tables);
    QUIRE_TRY(plan.memory.Reserve(RoundUp(upload_.bytes().size(), kSlotsRoomBytes)));
    sender_.Send(upload_.bytes().data(), upload_.bytes().size(), plan.memory.as<void>());
    const auto placed = [&](BlockTable table, const TableAt& at) {
      const auto* const base = plan.memory.as<std::byte>();
      table.indptr = reinterpret_cast<const uint64_t*>(base + at.indptr);
      table.slots = reinterpret_cast<const uint32_t*>(base + at.slots);
      return table;
    };
    plan.on_device = {placed(tables.sealed, sealed), placed(tables.open, open)};
    return {};
  }

  /// Where its arrays lie in an upload.
  struct TableAt {
    uint64_t indptr = 0;
    uint64_t slots = 0;
  };
  std::pair<TableAt, TableAt> AddTables(const BlockTables& tables) {
    const auto indptr = [this](const BlockTable& table) {
      return upload_.Add(table.indptr, uint64_t{table.sequences} + 1);
    };
    const auto slots = [this](const BlockTable& table) {
      return upload_.Add(table.slots, table.indptr[table.sequences]);
    };
    TableAt sealed{.indptr = indptr(tables.sealed)};
    TableAt open = sealed;
    const bool one = tables.open.indptr == tables.sealed.indptr &&
                     tables.open.slots == tables.sealed.slots &&
                     tables.open.sequences == tables.sealed.sequences;
    if (!one) open.indptr = indptr(tables.open);
    open.slots = sealed.slots = slots(tables.sealed);
    if (!one) {
      upload_.Pad(kSlotsRoomBytes);
      open.slots = slots(tables.open);
    }
    return {sealed, open};
  }

  /// Splits, then the fold of those states that their tiles do not merge.
  void AddWaves(const BlockTables& tables, std::span<const AttentionTask> tasks, SentPlan& plan) {
    if (tasks.empty()) return;
    static_assert(kTileQueriesMax == kMmaQueriesMax);
    const bool merges =
        options_.arithmetic == Arithmetic::kMma16 && plan.shape.value.dim <= kMmaChannels;
    const AttendPlan made =
        MakePlan(plan.shape, tables, tasks,
                 {.states = kStatesBytesMax / StateBytes(plan.shape),
                  .blocks_wanted = options_.blocks_wanted,
                  .lane_blocks_wanted = merges ? options_.lane_blocks_wanted : 0,
                  .tiles_merge = merges});
    plan.queries_max = made.queries_max;
    plan.states_max = made.states_max;
    AddLaunches(made, plan.waves);
  }

  void AddFold(std::span<const AttentionTask> tasks, SentPlan& plan) {
    if (tasks.empty()) return;
    AddLaunches(MakeFoldPlan(plan.shape, tasks, kMmaWarps * kMmaQueriesMax), plan.folds);
  }

  void AddLaunches(const AttendPlan& plan, std::vector<SentPlan::Launch>& launches) {
    const uint64_t rows = upload_.Add(plan.rows);
    for (const Wave& wave : plan.waves) {
      launches.push_back({.rows = rows,
                          .tiles = upload_.Add(wave.tiles),
                          .work = upload_.Add(wave.work),
                          .arrived = upload_.AddZeros<uint32_t>(wave.tiles.size()),
                          .vectors = upload_.Add(wave.vectors),
                          .tile_count = static_cast<uint32_t>(wave.tiles.size()),
                          .vector_count = static_cast<uint32_t>(wave.vectors.size()),
                          .blocks = static_cast<uint32_t>(wave.work.size()),
                          .splits_per_block = wave.splits_per_block});
    }
  }

  Result<void> Run(const AttentionShape& shape, const SentPlan& plan) {
    if (options_.arithmetic != Arithmetic::kFma32) {
      QUIRE_TRY(ChooseStaging(shape, plan.on_device));
      QUIRE_TRY(Fold(shape, plan));
    }
    const uint64_t states_max = RoundUp(plan.states_max, uint64_t{4});  // sixteen bytes of sums
    QUIRE_TRY(states_.Reserve(states_max * StateBytes(shape)));
    auto* const floats = states_.as<float>();
    const SplitStates states{
        .max = floats, .sum = floats + states_max, .out = floats + 2 * states_max};
    for (const SentPlan::Launch& wave : plan.waves) {
      SplitsArgs args = ArgsOf(shape, plan, wave);
      args.states = states;
      if (wave.tile_count != 0) LaunchSplits(args, plan, wave);
      if (wave.vector_count == 0) continue;
      const auto* const vectors = plan.memory.as<std::byte>() + wave.vectors;
      device_.Launch(FoldArgs{.value = shape.value,
                              .vectors = reinterpret_cast<const FoldVector*>(vectors),
                              .states = states},
                     wave.vector_count);
    }
    return {};
  }

  void LaunchSplits(const SplitsArgs& args, const SentPlan& plan, const SentPlan::Launch& wave) {
    if (options_.arithmetic == Arithmetic::kFma32) {
      device_.Launch(args, SplitsLaunch{.blocks = wave.blocks, .queries_max = plan.queries_max});
    } else {
      const uint32_t tiles = plan.queries_max <= kMmaColumns ? 1 : kQueryTilesMax;
      device_.Launch(MmaArgsOf(args, plan, /*folds=*/false, staging_, tiles),
                     MmaLaunch{.blocks = wave.blocks, .staging = staging_, .query_tiles = tiles});
    }
  }

  Result<void> Fold(const AttentionShape& shape, const SentPlan& plan) {
    for (const SentPlan::Launch& fold : plan.folds) {
      const uint32_t blocks = std::min(fold.tile_count, options_.folding_blocks);
      QUIRE_TRY(waiting_.Reserve(WaitingFloats(blocks) * sizeof(float)));
      MmaArgs args =
          MmaArgsOf(ArgsOf(shape, plan, fold), plan, /*folds=*/true, staging_, kQueryTilesMax);
      args.waiting = waiting_.as<float>();
      args.blocks = blocks;
      device_.Launch(args, MmaLaunch{.blocks = blocks, .folds = true, .staging = staging_});
    }
    return {};
  }

  /// How K and V of a layer come into shared memory.
  Result<void> ChooseStaging(const AttentionShape& shape, const BlockTables& tables) {
    staging_ = StagingOf(shape, tables, options_.bulk_copies && device_.has_bulk_copies());
    if (staging_ != Staging::kBulk) return {};
    const auto arrays = BoxedArrays(shape, tables);
    for (size_t i = 0; i < arrays.size(); ++i) {
      QUIRE_ASSIGN(boxes_[i], device_.MakeMap(arrays[i]));
    }
    return {};
  }

  static SplitsArgs ArgsOf(const AttentionShape& shape, const SentPlan& plan,
                           const SentPlan::Launch& launch) {
    auto* const base = plan.memory.as<std::byte>();
    return {.shape = shape,
            .tables = plan.on_device,
            .rows = reinterpret_cast<const QueryRow*>(base + launch.rows),
            .tiles = reinterpret_cast<const Tile*>(base + launch.tiles),
            .work = reinterpret_cast<const BlockWork*>(base + launch.work),
            .arrived = reinterpret_cast<uint32_t*>(base + launch.arrived),
            .tile_count = launch.tile_count,
            .splits_per_block = launch.splits_per_block};
  }

  MmaArgs MmaArgsOf(const SplitsArgs& splits, const SentPlan& plan, bool folds, Staging staging,
                    uint32_t query_tiles) const {
    return {.splits = splits,
            .shared = SharedOf(splits.shape, folds, staging, query_tiles, options_.buffers),
            .key_mids = codec::HasMids(splits.shape.key.codec),
            .value_mids = codec::HasMids(splits.shape.value.codec),
            .one_form = plan.one_form,
            .boxes = boxes_};
  }

  static uint64_t StateBytes(const AttentionShape& shape) {
    return (uint64_t{shape.value.dim} + 2) * sizeof(float);
  }

  Device& device_;
  const AttentionOptions options_;
  Upload upload_;
  Sender sender_;
  SentPlan of_calls_;
  std::vector<std::unique_ptr<SentPlan>> spare_;  // whose memory the next ones take
  size_t plans_ = 0;                              // that there are, spare or not
  DeviceBuffer states_;
  DeviceBuffer waiting_;  // states of blocks that fold
  // Of the layer:
  Staging staging_ = Staging::kCopied;
  std::array<TensorMap, kBoxedArrays> boxes_{};
};

}  // namespace

std::unique_ptr<AttentionBackend> MakeAttention(Device& device, const AttentionOptions& options) {
  return std::make_unique<DeviceAttention>(device, options);
}

}  // namespace quire::cuda
