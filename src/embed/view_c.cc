// The C functions of views.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "embed/boundary.h"
#include "embed/handles.h"
#include "quire/dlpack.h"

using quire::Result;
using quire::TensorView;
using quire::embed::Boundary;
using quire::embed::NotNull;

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
