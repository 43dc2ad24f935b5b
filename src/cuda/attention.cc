#include "cuda/attention.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "attention/plan.h"
#include "attention/shape.h"
#include "base/bits.h"
#include "cuda/plan.h"

namespace quire::cuda {
namespace {

constexpr uint64_t kStatesBytes = uint64_t{256} << 20;  // of a wave
constexpr uint32_t kBlocksWanted = 4096;

/// Arrays that go to the device as one copy.
class Upload {
 public:
  /// Where the array will be, from the beginning of the copy.
  template <typename T>
  uint64_t Add(const std::vector<T>& values) {
    return Add(values.data(), values.size());
  }
  template <typename T>
  uint64_t Add(const T* values, uint64_t count) {
    static_assert(std::is_trivially_copyable_v<T> && alignof(T) <= kAlignment);
    bytes_.resize(RoundUp(bytes_.size(), kAlignment));
    const uint64_t at = bytes_.size();
    const auto* const first = reinterpret_cast<const std::byte*>(values);
    bytes_.insert(bytes_.end(), first, first + count * sizeof(T));
    return at;
  }
  const std::vector<std::byte>& bytes() const { return bytes_; }
  void Clear() { bytes_.clear(); }

 private:
  static constexpr size_t kAlignment = 16;
  std::vector<std::byte> bytes_;
};

class DeviceAttention final : public AttentionBackend {
 public:
  explicit DeviceAttention(Device& device)
      : device_(device), arguments_(device), tables_(device), states_(device) {}

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
    return {};
  }

  Result<void> Attend(const AttentionShape& shape, const BlockTables& tables,
                      std::span<const AttentionTask> tasks, Executor& executor) override {
    (void)executor;
    QUIRE_TRY(Supports(shape));
    QUIRE_TRY(attention::ValidateTasks(shape, tables, tasks));
    const uint64_t state_bytes = (uint64_t{shape.value.dim} + 2) * sizeof(float);
    const AttendPlan plan =
        MakePlan(shape, tables, tasks, kStatesBytes / state_bytes, kBlocksWanted);
    QUIRE_TRY(states_.Reserve(plan.states_max * state_bytes));
    QUIRE_TRY(CopyTables(tables));
    for (const Wave& wave : plan.waves) QUIRE_TRY(Run(shape, plan, wave));
    return {};
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
    device_.CopyIn(upload_.bytes().data(), upload_.bytes().size(), tables_.as<void>());
    const auto placed = [&](BlockTable table, const std::pair<uint64_t, uint64_t>& at) {
      table.indptr = reinterpret_cast<const uint64_t*>(tables_.as<std::byte>() + at.first);
      table.slots = reinterpret_cast<const uint32_t*>(tables_.as<std::byte>() + at.second);
      return table;
    };
    on_device_ = {placed(tables.sealed, sealed), placed(tables.open, open)};
    return {};
  }

  Result<void> Run(const AttentionShape& shape, const AttendPlan& plan, const Wave& wave) {
    upload_.Clear();
    const uint64_t rows = upload_.Add(plan.rows);
    const uint64_t tiles = upload_.Add(wave.tiles);
    const uint64_t blocks = upload_.Add(wave.tile_blocks);
    const uint64_t vectors = upload_.Add(wave.vectors);
    QUIRE_TRY(arguments_.Reserve(upload_.bytes().size()));
    device_.CopyIn(upload_.bytes().data(), upload_.bytes().size(), arguments_.as<void>());
    const auto* const base = arguments_.as<std::byte>();
    auto* const floats = states_.as<float>();
    const SplitStates states{
        .max = floats, .sum = floats + plan.states_max, .out = floats + 2 * plan.states_max};
    if (!wave.tiles.empty()) {
      device_.Launch(
          {.shape = shape,
           .tables = on_device_,
           .rows = reinterpret_cast<const QueryRow*>(base + rows),
           .tiles = reinterpret_cast<const Tile*>(base + tiles),
           .tile_blocks = reinterpret_cast<const uint32_t*>(base + blocks),
           .tile_count = static_cast<uint32_t>(wave.tiles.size()),
           .splits_per_block = wave.splits_per_block,
           .states = states},
          SplitsLaunch{.blocks = wave.tile_blocks.back(), .queries_max = plan.queries_max});
    }
    device_.Launch({.value = shape.value,
                    .vectors = reinterpret_cast<const FoldVector*>(base + vectors),
                    .states = states},
                   static_cast<uint32_t>(wave.vectors.size()));
    return {};
  }

  Device& device_;
  Upload upload_;
  DeviceBuffer arguments_;
  DeviceBuffer tables_;
  DeviceBuffer states_;
  BlockTables on_device_{};
};

}  // namespace

std::unique_ptr<AttentionBackend> MakeAttention(Device& device) {
  return std::make_unique<DeviceAttention>(device);
}

}  // namespace quire::cuda
