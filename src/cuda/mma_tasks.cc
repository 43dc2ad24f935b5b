#include "cuda/mma_tasks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

#include "attention/plan.h"
#include "base/bits.h"
#include "cuda/kernels/mma_attend.h"

namespace quire::cuda {
namespace {

constexpr uint64_t kAligned = 16;  // a copy beside the threads
constexpr uint64_t kStrideBytesMax = UINT32_MAX - 15;

std::unexpected<Error> Cannot(const std::string& what) {
  return Fail(ErrorCode::kUnsupported,
              "attention in mma16: " + what + "; fma32 has no such limit (--arithmetic fma32)");
}

bool SameTable(const BlockTable& a, const BlockTable& b) {
  if (a.base != b.base || a.slot_stride_bytes != b.slot_stride_bytes ||
      a.sequences != b.sequences) {
    return false;
  }
  if (a.indptr == b.indptr && a.slots == b.slots) return true;
  return std::equal(a.indptr, a.indptr + a.sequences + 1, b.indptr) &&
         std::equal(a.slots, a.slots + a.indptr[a.sequences], b.slots);
}

/// Asks for all its splits at once.
bool IsWhole(const AttentionTask& task) {
  const uint64_t end = (task.first_position + task.rows - 1) / kSplitTokens + 1;
  return task.out != nullptr && task.from.lanes == 0 && task.splits.begin == 0 &&
         task.splits.end >= end;
}

}  // namespace

Result<void> SupportsMma(const AttentionShape& shape, uint32_t shared_bytes_max) {
  for (const auto& [name, stream] : {std::pair{"key", &shape.key}, {"value", &shape.value}}) {
    if (stream->dim % kMmaDimStep != 0 || stream->dim > kMmaDimMax) {
      return Cannot(fmt::format("{}.dim is {}, only multiples of {} up to {}", name, stream->dim,
                                kMmaDimStep, kMmaDimMax));
    }
  }
  const StreamLayout& open_key = attention::OpenKey(shape);
  const StreamLayout& open_value = attention::OpenValue(shape);
  for (const auto& [name, stream] : {std::pair{"key", &shape.key},
                                     {"value", &shape.value},
                                     {"open_key", &open_key},
                                     {"open_value", &open_value}}) {
    if (stream->codec == Codec::kF32) {
      return Cannot(fmt::format("{} is stored as f32, and products are of 16 bits", name));
    }
    if (stream->offset_bytes % kAligned != 0 || stream->head_stride_bytes % kAligned != 0) {
      return Cannot(fmt::format("{} is not aligned to {} bytes", name, kAligned));
    }
  }
  if (shape.value.inner != InnerAxis::kDim || open_value.inner != InnerAxis::kDim) {
    return Cannot("value is not stored channel by channel");
  }
  // Boxes need less.
  const Staging staging = IsEncoded(shape) ? Staging::kCodes : Staging::kCopied;
  const uint32_t bytes = SharedOf(shape, /*folds=*/false, staging).bytes;
  if (bytes > shared_bytes_max) {
    return Cannot(
        fmt::format("{} and {} channels take {} bytes of the device's shared memory, of {}",
                    shape.key.dim, shape.value.dim, bytes, shared_bytes_max));
  }
  return {};
}

Result<void> CheckAlignment(const BlockTables& tables) {
  for (const BlockTable* table : {&tables.sealed, &tables.open}) {
    if (reinterpret_cast<uintptr_t>(table->base) % kAligned != 0 ||
        table->slot_stride_bytes % kAligned != 0) {
      return Cannot(fmt::format("slots are not aligned to {} bytes", kAligned));
    }
  }
  return {};
}

bool IsOneForm(const AttentionShape& shape, const BlockTables& tables) {
  return shape.open_key.heads == 0 && shape.open_value.heads == 0 && IsIdentity(shape.key.codec) &&
         IsIdentity(shape.value.codec) && SameTable(tables.sealed, tables.open);
}

Staging StagingOf(const AttentionShape& shape, const BlockTables& tables, bool bulk_copies) {
  if (IsEncoded(shape)) return Staging::kCodes;
  const auto has_boxes = [](const BlockTable& table, const StreamLayout& key,
                            const StreamLayout& value) {
    // Rows of boxes of K are tokens of a channel.
    return table.base != nullptr && key.inner == InnerAxis::kToken &&
           std::max({table.slot_stride_bytes, key.head_stride_bytes, value.head_stride_bytes}) <=
               kStrideBytesMax;
  };
  const bool bulk = bulk_copies && has_boxes(tables.sealed, shape.key, shape.value) &&
                    has_boxes(tables.open, attention::OpenKey(shape), attention::OpenValue(shape));
  return bulk ? Staging::kBulk : Staging::kCopied;
}

std::array<BoxedArray, kBoxedArrays> BoxedArrays(const AttentionShape& shape,
                                                 const BlockTables& tables) {
  const auto array = [](const BlockTable& table, const StreamLayout& stream) {
    const bool by_token = stream.inner == InnerAxis::kDim;
    const uint32_t inner = by_token ? stream.dim : stream.block_tokens;
    const uint32_t outer = by_token ? stream.block_tokens : stream.dim;
    const uint32_t box_tokens = BoxTokens(stream.block_tokens);
    return BoxedArray{
        .base = table.base + stream.offset_bytes,
        .counts = {inner, outer, stream.heads, kCoordinatesMax},
        .strides_bytes = {uint64_t{inner} * 2, stream.head_stride_bytes, table.slot_stride_bytes},
        .box = {by_token ? kBoxChannels : box_tokens, by_token ? box_tokens : stream.dim}};
  };
  return {array(tables.sealed, shape.key), array(tables.open, attention::OpenKey(shape)),
          array(tables.sealed, shape.value), array(tables.open, attention::OpenValue(shape))};
}

MmaTasks SortTasks(const AttentionShape& shape, std::span<const AttentionTask> tasks,
                   uint32_t folded_tiles_min) {
  const uint32_t group = shape.query_heads / shape.key.heads;
  MmaTasks sorted;
  uint64_t tiles = 0;
  for (const AttentionTask& task : tasks) {
    const uint64_t vectors = uint64_t{task.rows} * group;
    if (CanFold(shape) && task.rows > 1 && vectors > kMmaQueriesMax && IsWhole(task)) {
      sorted.folded.push_back(task);
      tiles += DivUp(vectors, uint64_t{kMmaQueriesMax} * kMmaWarps) * shape.key.heads;
    } else {
      sorted.split.push_back(task);
    }
  }
  if (tiles < folded_tiles_min) {
    sorted.split.insert(sorted.split.end(), sorted.folded.begin(), sorted.folded.end());
    sorted.folded.clear();
  }
  return sorted;
}

}  // namespace quire::cuda
