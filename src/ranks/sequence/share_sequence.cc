#include "ranks/sequence/share_sequence.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/bits.h"
#include "base/check.h"

namespace quire::ranks::sequence {
namespace {

std::unexpected<Error> NeedsAllBytes(std::string_view call) {
  return Fail(ErrorCode::kUnsupported,
              fmt::format("{}: a rank has only its share of a context; run without --ranks", call));
}

uint64_t BytesOfValue(Codec codec) { return codec == Codec::kF32 ? 4 : 2; }

// Rows from `row` on.
RowsView From(const RowsView& rows, uint64_t row) {
  if (rows.data == nullptr) return rows;
  RowsView from = rows;
  const int64_t values = static_cast<int64_t>(row) * rows.token_stride;
  from.data = static_cast<const std::byte*>(rows.data) +
              values * static_cast<int64_t>(BytesOfValue(rows.dtype));
  return from;
}

// The lists of a table whose blocks stand where those of the text do.
struct SpreadLists {
  std::vector<uint64_t> indptr{0, 0};
  std::vector<uint32_t> slots{};
};

BlockTable Spread(const BlockTable& own, const LaneShare& share, uint64_t blocks,
                  uint64_t blocks_per_split, SpreadLists& lists) {
  lists.slots.assign(blocks, kNoSlot);
  lists.indptr[1] = blocks;
  for (uint64_t i = 0; i < own.BlockCount(0); ++i) {
    const uint64_t split = i / blocks_per_split * share.ranks() + share.rank();
    const uint64_t block = split * blocks_per_split + i % blocks_per_split;
    if (block >= blocks) break;  // room for what is not written yet
    lists.slots[block] = own.Row(0)[i];
  }
  BlockTable table = own;
  table.indptr = lists.indptr.data();
  table.slots = lists.slots.data();
  return table;
}

}  // namespace

ShareSequence::ShareSequence(std::unique_ptr<Sequence> inner, const LaneShare& share,
                             ShareText text, uint32_t layers, bool is_cut_anywhere)
    : inner_(std::move(inner)),
      share_(share),
      text_(std::move(text)),
      is_cut_anywhere_(is_cut_anywhere),
      cursors_(layers, text_.size()),
      length_(text_.size()) {
  QUIRE_CHECK(inner_->length() == share_.Before(text_.size()));
}

SequenceStats ShareSequence::stats() const {
  SequenceStats stats = inner_->stats();
  stats.tokens_used = length();
  return stats;
}

Result<void> ShareSequence::Reserve(uint64_t tokens) {
  return inner_->Reserve(share_.Before(tokens));
}

Result<void> ShareSequence::Append(uint32_t layer, const LayerRows& rows) {
  uint64_t& cursor = cursors_[layer];
  const uint64_t begin = cursor;
  const uint64_t end = begin + rows.tokens;
  for (uint64_t position = begin; position < end;) {
    const uint64_t next = std::min(LaneShare::SplitEnd(position), end);
    if (share_.Owns(position)) {
      QUIRE_TRY(inner_->Append(layer, {.key = From(rows.key, position - begin),
                                       .value = From(rows.value, position - begin),
                                       .tokens = static_cast<uint32_t>(next - position)}));
    }
    position = next;
  }
  cursor = end;
  return {};
}

Result<void> ShareSequence::Commit(std::span<const TokenId> tokens) {
  const uint64_t before = length();
  const uint64_t after = before + tokens.size();
  for (uint32_t layer = 0; layer < cursors_.size(); ++layer) {
    if (cursors_[layer] >= after) continue;
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("commit: up to {} tokens, but layer {} has only {}", after, layer,
                            cursors_[layer]));
  }
  text_.Append(tokens);
  const std::vector<TokenId> own = text_.Share(share_.Before(before), share_.Before(after));
  if (!own.empty()) {
    if (auto committed = inner_->Commit(own); !committed) {
      if (inner_->length() != share_.Before(after)) text_.Cut(before);
      return committed;
    }
  }
  length_.store(after, std::memory_order_release);
  return {};
}

Result<void> ShareSequence::Rollback(uint64_t position) {
  const uint64_t written = *std::ranges::max_element(cursors_);
  if (position > written) {
    return Fail(
        ErrorCode::kInvalidArgument,
        fmt::format("rollback: to {} tokens, but no layer has more than {}", position, written));
  }
  const uint32_t block_tokens = inner_->Streams(0).key.block_tokens;
  // What one rank cannot cut none cuts.
  if (!is_cut_anywhere_ && position < length() && position % block_tokens != 0) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("rollback: to {} tokens: its block is encoded already; go to a "
                            "multiple of {}",
                            position, block_tokens));
  }
  QUIRE_TRY(inner_->Rollback(share_.Before(position)));
  if (position < length()) text_.Cut(position);
  for (uint64_t& cursor : cursors_) cursor = std::min(cursor, position);
  length_.store(std::min(length(), position), std::memory_order_release);
  return {};
}

Result<std::unique_ptr<Sequence>> ShareSequence::Fork() {
  QUIRE_ASSIGN(auto inner, inner_->Fork());
  return std::make_unique<ShareSequence>(std::move(inner), share_, text_,
                                         static_cast<uint32_t>(cursors_.size()), is_cut_anywhere_);
}

Result<std::unique_ptr<Sequence>> ShareSequence::Select(std::span<const uint64_t> /*kept*/) {
  return NeedsAllBytes("select");
}
Result<void> ShareSequence::Retain(const Retention& /*retention*/) {
  return NeedsAllBytes("retain");
}

void ShareSequence::Reset() {
  inner_->Reset();
  text_.Cut(0);
  std::ranges::fill(cursors_, 0);
  length_.store(0, std::memory_order_release);
}

Result<void> ShareSequence::Gather(uint32_t /*layer*/, StreamRole /*role*/, uint64_t /*begin*/,
                                   uint64_t /*end*/, std::span<float> /*out*/) const {
  return NeedsAllBytes("gather");
}
Result<PaddedRow> ShareSequence::Padded(uint32_t /*layer*/, StreamRole /*role*/,
                                        uint64_t /*tokens_max*/) const {
  return NeedsAllBytes("padded");
}
Result<BlockListView> ShareSequence::View(uint32_t /*layer*/, StreamRole /*role*/,
                                          TokenRange /*range*/) const {
  return NeedsAllBytes("view");
}

LayerBlocks ShareSequence::Blocks(uint32_t layer) const {
  struct Lists {
    SpreadLists sealed{};
    SpreadLists open{};
  };
  LayerBlocks blocks = inner_->Blocks(layer);
  const BlockTables own = blocks.tables;
  const uint64_t block_tokens = blocks.key.block_tokens;
  const uint64_t count = DivUp(cursors_[layer], block_tokens);
  const uint64_t per_split = kSplitTokens / block_tokens;
  auto lists = std::make_shared<Lists>();
  blocks.tokens = cursors_[layer];
  blocks.tables.sealed = Spread(own.sealed, share_, count, per_split, lists->sealed);
  // Two forms that are one table stay one.
  blocks.tables.open = own.open.base == own.sealed.base
                           ? blocks.tables.sealed
                           : Spread(own.open, share_, count, per_split, lists->open);
  blocks.lists = std::move(lists);
  return blocks;
}

}  // namespace quire::ranks::sequence
