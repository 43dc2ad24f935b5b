// The C functions of sequences and views.
#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <utility>

#include "embed/boundary.h"
#include "embed/handles.h"
#include "quire/dlpack.h"

using quire::Codec;
using quire::Result;
using quire::StreamRole;
using quire::TensorView;
using quire::embed::Boundary;
using quire::embed::CheckArray;
using quire::embed::NotNull;
using quire::embed::ToEnum;

namespace quire::embed {

Result<RowsView> ToRows(const quire_rows& rows, std::string_view name) {
  QUIRE_ASSIGN(const Codec dtype, ToEnum<Codec>(rows.dtype, name));
  return RowsView{.data = rows.data,
                  .dtype = dtype,
                  .token_stride = rows.token_stride,
                  .head_stride = rows.head_stride};
}

namespace {

quire_stream_layout ToC(const StreamLayout& layout) {
  return {.codec = static_cast<quire_codec>(layout.codec),
          .inner = static_cast<quire_axis>(layout.inner),
          .heads = layout.heads,
          .dim = layout.dim,
          .block_tokens = layout.block_tokens,
          .reserved = 0,
          .offset_bytes = layout.offset_bytes,
          .head_stride_bytes = layout.head_stride_bytes};
}

/// Until the next call that writes the caller keeps what it was shown, however often it asks.
void Show(LayerBlocks now, ShownBlocks& shown) {
  const BlockTable& table = now.tables.sealed;
  const std::span slots(table.slots, now.block_count());
  if (shown.blocks.lists != nullptr) {
    const std::span before(shown.blocks.tables.sealed.slots, shown.blocks.block_count());
    if (std::ranges::equal(slots, before)) return;
  }
  std::vector<const void*> pointers;
  for (const uint32_t slot : slots) pointers.push_back(table.SlotAt(slot));
  shown = {.blocks = std::move(now), .pointers = std::move(pointers)};
}

}  // namespace

Result<void> CheckLayer(const quire_sequence& sequence, uint32_t layer) {
  const uint32_t layers = sequence.cache->options().geometry.layer_count();
  if (layer < layers) return {};
  return Fail(ErrorCode::kInvalidArgument,
              fmt::format("layer {} of a model with {}", layer, layers));
}

}  // namespace quire::embed

void quire_sequence_free(quire_sequence* sequence) { delete sequence; }

uint64_t quire_sequence_length(const quire_sequence* sequence) {
  return sequence == nullptr ? 0 : sequence->sequence->length();
}

quire_code quire_sequence_cursor(const quire_sequence* sequence, uint32_t layer, uint64_t* tokens,
                                 quire_error* error) {
  return Boundary(error, [&]() -> Result<void> {
    QUIRE_TRY(NotNull(sequence, "sequence"));
    QUIRE_TRY(NotNull(tokens, "tokens"));
    QUIRE_TRY(quire::embed::CheckLayer(*sequence, layer));
    *tokens = sequence->sequence->cursor(layer);
    return {};
  });
}

quire_code quire_sequence_get_stats(const quire_sequence* sequence, quire_sequence_stats* stats,
                                    quire_error* error) {
  return Boundary(error, [&]() -> Result<void> {
    QUIRE_TRY(NotNull(sequence, "sequence"));
    QUIRE_TRY(quire::embed::CheckOutput(stats, "stats"));
    const quire::SequenceStats now = sequence->sequence->stats();
    quire::embed::WriteStruct(
        stats, quire_sequence_stats{
                   .size = 0,
                   .tokens_used = now.tokens_used,
                   .tokens_reserved = now.tokens_reserved,
                   .blocks_shared = now.blocks_shared,
                   .blocks_own = now.blocks_own,
                   .bytes = now.bytes,
                   .tokens_streamed = now.tokens_streamed,
                   .tokens_approximate = now.tokens_approximate,
                   .approximate_error_ppm = quire::embed::MillionthsOf(now.approximate_error)});
    return {};
  });
}

quire_code quire_sequence_reserve(quire_sequence* sequence, uint64_t tokens, quire_error* error) {
  return Boundary(error, [&]() -> Result<void> {
    QUIRE_TRY(NotNull(sequence, "sequence"));
    return sequence->sequence->Reserve(tokens);
  });
}

quire_code quire_sequence_append(quire_sequence* sequence, uint32_t layer, const quire_rows* key,
                                 const quire_rows* value, uint32_t tokens, quire_error* error) {
  return Boundary(error, [&]() -> Result<void> {
    QUIRE_TRY(NotNull(sequence, "sequence"));
    QUIRE_TRY(NotNull(key, "key"));
    quire::LayerRows rows{.tokens = tokens};
    QUIRE_ASSIGN(rows.key, quire::embed::ToRows(*key, "key->dtype"));
    if (value != nullptr) {
      QUIRE_ASSIGN(rows.value, quire::embed::ToRows(*value, "value->dtype"));
    }
    return sequence->sequence->Append(layer, rows);
  });
}

quire_code quire_sequence_commit(quire_sequence* sequence, const int32_t* tokens,
                                 size_t token_count, quire_error* error) {
  return Boundary(error, [&]() -> Result<void> {
    QUIRE_TRY(NotNull(sequence, "sequence"));
    QUIRE_TRY(CheckArray(tokens, token_count, sequence->cache->options().tokens_max, "tokens"));
    return sequence->sequence->Commit({tokens, token_count});
  });
}

quire_code quire_sequence_rollback(quire_sequence* sequence, uint64_t tokens, quire_error* error) {
  return Boundary(error, [&]() -> Result<void> {
    QUIRE_TRY(NotNull(sequence, "sequence"));
    return sequence->sequence->Rollback(tokens);
  });
}

quire_code quire_sequence_fork(quire_sequence* sequence, quire_sequence** fork,
                               quire_error* error) {
  return Boundary(error, [&]() -> Result<void> {
    QUIRE_TRY(NotNull(sequence, "sequence"));
    QUIRE_TRY(NotNull(fork, "fork"));
    QUIRE_ASSIGN(auto forked, sequence->sequence->Fork());
    *fork = new quire_sequence(sequence->cache, std::move(forked));
    return {};
  });
}

quire_code quire_sequence_retain(quire_sequence* sequence, const quire_retention* retention,
                                 quire_error* error) {
  return Boundary(error, [&]() -> Result<void> {
    QUIRE_TRY(NotNull(sequence, "sequence"));
    QUIRE_ASSIGN(const quire_retention asked, quire::embed::ReadStruct(retention, "retention"));
    if (asked.priority < 0 || asked.priority > UINT8_MAX) {
      return Fail(quire::ErrorCode::kInvalidArgument,
                  fmt::format("retention->priority is {}", asked.priority));
    }
    return sequence->sequence->Retain(
        {.begin_token = asked.begin_token,
         .end_token = asked.end_token == 0 ? UINT64_MAX : asked.end_token,
         .priority = static_cast<uint8_t>(asked.priority),
         .ttl_us = asked.ttl_us});
  });
}

quire_code quire_sequence_reset(quire_sequence* sequence, quire_error* error) {
  return Boundary(error, [&]() -> Result<void> {
    QUIRE_TRY(NotNull(sequence, "sequence"));
    sequence->sequence->Reset();
    return {};
  });
}

quire_code quire_sequence_await_layer(quire_sequence* sequence, uint32_t layer, uint64_t timeout_us,
                                      quire_error* error) {
  return Boundary(error, [&]() -> Result<void> {
    QUIRE_TRY(NotNull(sequence, "sequence"));
    QUIRE_ASSIGN(const bool is_there, sequence->sequence->AwaitLayer(layer, timeout_us));
    if (is_there) return {};
    return Fail(quire::ErrorCode::kDeadline,
                fmt::format("sequence: layer {} has not come within {} us", layer, timeout_us));
  });
}

quire_code quire_sequence_gather(const quire_sequence* sequence, uint32_t layer, quire_role role,
                                 uint64_t begin, uint64_t end, float* out, size_t out_values,
                                 quire_error* error) {
  return Boundary(error, [&]() -> Result<void> {
    QUIRE_TRY(NotNull(sequence, "sequence"));
    QUIRE_TRY(CheckArray(out, out_values, SIZE_MAX, "out"));
    QUIRE_ASSIGN(const auto stream, ToEnum<StreamRole>(role, "role"));
    return sequence->sequence->Gather(layer, stream, begin, end, {out, out_values});
  });
}

quire_code quire_sequence_blocks(const quire_sequence* sequence, uint32_t layer,
                                 quire_layer_blocks* blocks, quire_error* error) {
  return Boundary(error, [&]() -> Result<void> {
    QUIRE_TRY(NotNull(sequence, "sequence"));
    QUIRE_TRY(quire::embed::CheckOutput(blocks, "blocks"));
    QUIRE_TRY(quire::embed::CheckLayer(*sequence, layer));
    const quire::LayerBlocks now = sequence->sequence->Blocks(layer);
    if (!quire::IsIdentity(now.key.codec) || !quire::IsIdentity(now.value.codec)) {
      return quire::Fail(quire::ErrorCode::kUnsupported,
                         "blocks: the cache encodes them; only quire_attend reads its codes");
    }
    quire::embed::ShownBlocks& shown = sequence->blocks[layer];
    quire::embed::Show(now, shown);
    quire::embed::WriteStruct(
        blocks,
        quire_layer_blocks{.size = 0,
                           .sealed = shown.pointers.data(),
                           .open = shown.pointers.data(),
                           .block_count = shown.blocks.block_count(),
                           .key = quire::embed::ToC(now.key),
                           .value = quire::embed::ToC(now.value),
                           .tokens = now.tokens,
                           .base = shown.blocks.tables.sealed.base,
                           .slot_stride_bytes = shown.blocks.tables.sealed.slot_stride_bytes,
                           .slots = shown.blocks.tables.sealed.slots});
    return {};
  });
}

namespace quire::embed {
namespace {

Result<TensorView> TensorOf(const quire_view* view, uint64_t index) {
  QUIRE_TRY(NotNull(view, "view"));
  const BlockListView& blocks = view->pinned->view;
  if (index == QUIRE_ALL_BLOCKS) return blocks.array();
  if (index >= blocks.block_count()) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("view: block {} of {}", index, blocks.block_count()));
  }
  if (blocks.slots()[index] == nullptr) {
    return Fail(ErrorCode::kNotFound,
                fmt::format("view: the layer's window has passed block {}", index));
  }
  return blocks.block(static_cast<uint32_t>(index));
}

}  // namespace
}  // namespace quire::embed

quire_code quire_view_open(const quire_sequence* sequence, uint32_t layer, quire_role role,
                           quire_view** view, quire_error* error) {
  return Boundary(error, [&]() -> Result<void> {
    QUIRE_TRY(NotNull(sequence, "sequence"));
    QUIRE_TRY(NotNull(view, "view"));
    QUIRE_ASSIGN(const auto stream, quire::embed::ToEnum<quire::StreamRole>(role, "role"));
    QUIRE_ASSIGN(auto blocks, sequence->sequence->View(layer, stream));
    *view = new quire_view{.pinned = std::make_shared<const quire::embed::PinnedView>(
                               sequence->cache, std::move(blocks))};
    return {};
  });
}

void quire_view_free(quire_view* view) { delete view; }

uint64_t quire_view_tokens(const quire_view* view) {
  return view == nullptr ? 0 : view->pinned->view.tokens();
}

uint64_t quire_view_block_count(const quire_view* view) {
  return view == nullptr ? 0 : view->pinned->view.block_count();
}

quire_code quire_view_tensor(const quire_view* view, uint64_t index, quire_tensor* tensor,
                             quire_error* error) {
  return Boundary(error, [&]() -> Result<void> {
    QUIRE_TRY(quire::embed::CheckOutput(tensor, "tensor"));
    QUIRE_ASSIGN(const TensorView block, quire::embed::TensorOf(view, index));
    quire_tensor made{.size = 0,
                      .data = block.data,
                      .dtype = static_cast<quire_codec>(block.dtype),
                      .rank = block.rank,
                      .shape = {},
                      .strides = {}};
    std::ranges::copy(block.shape, made.shape);
    std::ranges::copy(block.strides, made.strides);
    quire::embed::WriteStruct(tensor, made);
    return {};
  });
}

quire_code quire_view_dlpack(const quire_view* view, uint64_t index,
                             struct DLManagedTensorVersioned** tensor, quire_error* error) {
  return Boundary(error, [&]() -> Result<void> {
    QUIRE_TRY(NotNull(tensor, "tensor"));
    QUIRE_ASSIGN(const TensorView block, quire::embed::TensorOf(view, index));
    QUIRE_ASSIGN(*tensor, quire::ToDLPack(block, view->pinned));
    return {};
  });
}

quire_code quire_view_dlpack_legacy(const quire_view* view, uint64_t index,
                                    struct DLManagedTensor** tensor, quire_error* error) {
  return Boundary(error, [&]() -> Result<void> {
    QUIRE_TRY(NotNull(tensor, "tensor"));
    QUIRE_ASSIGN(const TensorView block, quire::embed::TensorOf(view, index));
    QUIRE_ASSIGN(*tensor, quire::ToDLPackLegacy(block, view->pinned));
    return {};
  });
}
