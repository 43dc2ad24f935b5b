// The C functions of attention. What a sequence has written only the cache knows: rows beyond it
// are refused here, and what blocks lack by the kernels.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "embed/boundary.h"
#include "embed/handles.h"

using quire::AttentionShape;
using quire::AttentionTask;
using quire::Result;
using quire::embed::Boundary;
using quire::embed::NotNull;

namespace quire::embed {
namespace {

constexpr uint32_t kThreadsMax = 1024;
constexpr uint32_t kTasksMax = 1 << 20;

const LayerGroup& GroupOf(const Geometry& geometry, uint32_t layer) {
  for (const LayerGroup& group : geometry.groups) {
    if (std::ranges::binary_search(group.layers, layer)) return group;
  }
  QUIRE_CHECK_MSG(false, "a layer without a group");
  return geometry.groups[0];
}

std::string NameOf(uint32_t task) { return fmt::format("request->tasks[{}].", task); }

/// `written`: tokens that the layer has of what the task reads.
Result<void> CheckRows(const quire_attend_task& task, uint64_t written, uint32_t layer,
                       uint32_t index) {
  const std::string name = NameOf(index);
  if (task.rows == 0) return {};
  QUIRE_TRY(NotNull(task.queries, name + "queries"));
  QUIRE_TRY(NotNull(task.out, name + "out"));
  if (task.first_position >= written || task.rows > written - task.first_position) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("{}rows: {} from position {} on, but layer {} has {} tokens", name,
                            task.rows, task.first_position, layer, written));
  }
  return {};
}

Result<void> CheckTask(const quire_attend_task& task, const quire_sequence& first, uint32_t layer,
                       uint32_t index) {
  QUIRE_TRY(NotNull(task.sequence, NameOf(index) + "sequence"));
  if (task.sequence->cache != first.cache) {
    return Fail(ErrorCode::kInvalidArgument, NameOf(index) + "sequence is of another cache");
  }
  return CheckRows(task, task.sequence->sequence->cursor(layer), layer, index);
}

AttentionShape ShapeOf(const LayerBlocks& blocks, const Cache& cache,
                       const quire_attend_request& request) {
  const LayerGroup& group = GroupOf(cache.options().geometry, request.layer);
  AttentionShape shape{.query_heads = request.query_heads,
                       .key = blocks.key,
                       .value = blocks.value,
                       .open_key = blocks.open_key,
                       .open_value = blocks.open_value,
                       .open_blocks = blocks.open_blocks,
                       .scale = request.scale,
                       .window_tokens = group.window_tokens,
                       .sink_tokens = group.sink_tokens,
                       .sink_logits = request.sink_logits,
                       .alibi_slopes = request.alibi_slopes};
  if (shape.scale == 0.0f) {
    shape.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(shape.key.dim)));
  }
  return shape;
}

Result<void> Attend(quire_attention& attention, const quire_attend_request& request) {
  QUIRE_TRY(CheckArray(request.tasks, request.task_count, kTasksMax, "request->tasks"));
  if (request.task_count == 0) return {};
  const auto tasks = std::span(request.tasks, request.task_count);
  QUIRE_TRY(NotNull(tasks[0].sequence, "request->tasks[0].sequence"));
  const quire_sequence& first = *tasks[0].sequence;
  QUIRE_TRY(CheckLayer(first, request.layer));
  const AttentionShape shape =
      ShapeOf(first.sequence->Blocks(request.layer), *first.cache, request);
  QUIRE_TRY(attention.backend->Supports(shape));
  std::vector<AttentionTask> made;
  std::vector<StreamedContext*> streamed;
  BatchTables tables;
  made.reserve(tasks.size());
  for (uint32_t i = 0; i < tasks.size(); ++i) {
    QUIRE_TRY(CheckTask(tasks[i], first, request.layer, i));
    QUIRE_TRY(tables.Add(tasks[i].sequence->sequence->Blocks(request.layer).tables));
    made.push_back({.queries = tasks[i].queries,
                    .out = tasks[i].out,
                    .rows = tasks[i].rows,
                    .first_position = tasks[i].first_position,
                    .sequence = i});
    streamed.push_back(tasks[i].sequence->sequence->streamed());
  }
  return AttendStreamed(*attention.backend, request.layer, shape, tables.tables(), made, streamed,
                        *attention.executor);
}

Result<void> AttendOwner(quire_attention& attention, const quire_owner& owner,
                         const quire_attend_request& request) {
  QUIRE_TRY(CheckArray(request.tasks, request.task_count, kTasksMax, "request->tasks"));
  return owner.owner->ReadBlocks(request.layer, [&](const LayerBlocks& blocks) -> Result<void> {
    const AttentionShape shape = ShapeOf(blocks, owner.registry->requests(), request);
    QUIRE_TRY(attention.backend->Supports(shape));
    std::vector<AttentionTask> made;
    made.reserve(request.task_count);
    for (uint32_t i = 0; i < request.task_count; ++i) {
      const quire_attend_task& task = request.tasks[i];
      if (task.sequence != nullptr) {
        return Fail(ErrorCode::kInvalidArgument, NameOf(i) + "sequence is not NULL");
      }
      QUIRE_TRY(CheckRows(task, blocks.tokens, request.layer, i));
      made.push_back({.queries = task.queries,
                      .out = task.out,
                      .rows = task.rows,
                      .first_position = task.first_position});
    }
    return attention.backend->Attend(shape, blocks.tables, made, *attention.executor);
  });
}

}  // namespace
}  // namespace quire::embed

quire_code quire_attention_create(const quire_attention_options* options,
                                  quire_attention** attention, quire_error* error) {
  return Boundary(error, [&]() -> Result<void> {
    QUIRE_TRY(NotNull(attention, "attention"));
    QUIRE_ASSIGN(const quire_attention_options asked,
                 quire::embed::ReadOptions(options, "options"));
    if (asked.threads > quire::embed::kThreadsMax) {
      return quire::Fail(quire::ErrorCode::kInvalidArgument,
                         fmt::format("options->threads is {}, at most {}", asked.threads,
                                     quire::embed::kThreadsMax));
    }
    QUIRE_ASSIGN(auto backend, quire::MakeCpuAttention());
    auto executor = quire::MakeThreadPool(std::max(1u, asked.threads));
    *attention =
        new quire_attention{.backend = std::move(backend), .executor = std::move(executor)};
    return {};
  });
}

void quire_attention_free(quire_attention* attention) { delete attention; }

quire_code quire_attend(quire_attention* attention, const quire_attend_request* request,
                        quire_error* error) {
  return Boundary(error, [&]() -> Result<void> {
    QUIRE_TRY(NotNull(attention, "attention"));
    QUIRE_ASSIGN(const quire_attend_request asked, quire::embed::ReadStruct(request, "request"));
    return quire::embed::Attend(*attention, asked);
  });
}

quire_code quire_owner_attend(quire_attention* attention, const quire_owner* owner,
                              const quire_attend_request* request, quire_error* error) {
  return Boundary(error, [&]() -> Result<void> {
    QUIRE_TRY(NotNull(attention, "attention"));
    QUIRE_TRY(NotNull(owner, "owner"));
    QUIRE_ASSIGN(const quire_attend_request asked, quire::embed::ReadStruct(request, "request"));
    return quire::embed::AttendOwner(*attention, *owner, asked);
  });
}
