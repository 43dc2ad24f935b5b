#include "cache/sequence_impl.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/bits.h"
#include "codec/rows.h"

namespace quire::cache {

SequenceImpl::SequenceImpl(Core& core, PlanState plan, std::vector<SlotId> own_slots, bool publish)
    : core_(core),
      id_(core.NextSequenceId()),
      place_(std::move(plan.place)),
      publish_(publish),
      published_(std::move(plan.path)),
      tokens_(std::move(plan.resident_tokens)),
      cursors_(core.layout().layer_count()),
      length_(tokens_.size()) {
  std::vector<SlotId> slots = Core::TakeSlots(plan.lease);
  slots.insert(slots.end(), own_slots.begin(), own_slots.end());
  for (auto& cursor : cursors_) cursor.store(tokens_.size(), std::memory_order_relaxed);
  {
    MutexLock lock(mutex_);
    SetSlots(std::move(slots));
  }
  core_.AddSequence();
}

SequenceImpl::~SequenceImpl() {
  Reset();
  core_.RemoveSequence();
}

uint64_t SequenceImpl::cursor(uint32_t layer) const {
  QUIRE_CHECK(layer < cursors_.size());
  return cursors_[layer].load(std::memory_order_acquire);
}

uint64_t SequenceImpl::cursor_max() const {
  uint64_t most = 0;
  for (const auto& cursor : cursors_) {
    most = std::max(most, cursor.load(std::memory_order_acquire));
  }
  return most;
}

SequenceStats SequenceImpl::stats() const {
  MutexLock lock(mutex_);
  return {.tokens_used = length(),
          .tokens_reserved = slots_.size() * uint64_t{core_.block_tokens()},
          .blocks_shared = static_cast<uint32_t>(published_.size()),
          .blocks_own = static_cast<uint32_t>(slots_.size() - published_.size())};
}

void SequenceImpl::SetSlots(std::vector<SlotId> slots) {
  slots_ = std::move(slots);
  pointers_.resize(slots_.size());
  std::ranges::transform(slots_, pointers_.begin(), [this](SlotId s) { return core_.data(s); });
}

Result<void> SequenceImpl::Reserve(uint64_t tokens) {
  const uint64_t tokens_max = core_.options().tokens_max;
  if (tokens > tokens_max) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("sequence {}: {} tokens are over the limit of {} (tokens_max)",
                            id_.number(), tokens, tokens_max));
  }
  const uint64_t blocks = DivUp(tokens, core_.block_tokens());
  if (blocks <= slots_.size()) return {};
  auto added = core_.AllocateSlots(blocks - slots_.size());
  if (!added) {
    return Fail(added.error().code,
                fmt::format("sequence {}: no room to grow from {} to {} tokens: {}", id_.number(),
                            length(), tokens, added.error().message));
  }
  std::vector<SlotId> slots = slots_;
  slots.insert(slots.end(), added->begin(), added->end());
  MutexLock lock(mutex_);
  SetSlots(std::move(slots));
  return {};
}

namespace {

Result<void> CheckRows(const RowsView& rows, const StreamLayout& stream, uint32_t tokens,
                       std::string_view name) {
  if (rows.data == nullptr) {
    return Fail(ErrorCode::kInvalidArgument, fmt::format("append: {} has no data", name));
  }
  if (CodecName(rows.dtype) == "unknown") {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("append: {} has dtype {}", name, static_cast<int>(rows.dtype)));
  }
  const int64_t dim = stream.dim;
  if ((tokens > 1 && rows.token_stride < dim) || (stream.heads > 1 && rows.head_stride < dim)) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("append: {} strides (token {}, head {}) are less than head_dim {}",
                            name, rows.token_stride, rows.head_stride, dim));
  }
  return {};
}

}  // namespace

Result<void> SequenceImpl::Append(uint32_t layer, const LayerRows& rows) {
  if (layer >= cursors_.size()) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("append: layer {} of a model with {}", layer, cursors_.size()));
  }
  if (rows.tokens == 0) return {};
  const codec::SlotLayout& layout = core_.layout();
  const bool latent = layout.group(layer).streams.size() == 1;
  QUIRE_TRY(CheckRows(rows.key, layout.key(layer), rows.tokens, latent ? "latent" : "key"));
  if (!latent) QUIRE_TRY(CheckRows(rows.value, layout.value(layer), rows.tokens, "value"));
  if (latent && rows.value.data != nullptr) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("append: a value for layer {}, which stores one latent", layer));
  }
  const uint64_t begin = cursors_[layer].load(std::memory_order_relaxed);
  QUIRE_TRY(Reserve(begin + rows.tokens));

  const uint32_t block_tokens = core_.block_tokens();
  for (uint32_t row = 0; row < rows.tokens;) {
    const uint64_t position = begin + row;
    const auto in_block = static_cast<uint32_t>(position % block_tokens);
    const uint32_t count = std::min(rows.tokens - row, block_tokens - in_block);
    const uint64_t block = position / block_tokens;
    QUIRE_DCHECK(block >= published_.size());
    std::byte* slot = core_.data(slots_[block]);
    codec::WriteRows(layout.key(layer), rows.key, row, count, in_block, slot);
    if (!latent) codec::WriteRows(layout.value(layer), rows.value, row, count, in_block, slot);
    row += count;
  }
  cursors_[layer].store(begin + rows.tokens, std::memory_order_release);
  return {};
}

Result<void> SequenceImpl::Commit(std::span<const TokenId> tokens) {
  const uint64_t length = tokens_.size() + tokens.size();
  for (uint32_t layer = 0; layer < cursors_.size(); ++layer) {
    if (cursor(layer) < length) {
      return Fail(ErrorCode::kInvalidArgument,
                  fmt::format("commit: sequence {} up to {} tokens, but layer {} has only {}",
                              id_.number(), length, layer, cursor(layer)));
    }
  }
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  PublishWholeBlocks(length);
  length_.store(length, std::memory_order_release);
  return {};
}

void SequenceImpl::PublishWholeBlocks(uint64_t length) {
  const uint32_t block_tokens = core_.block_tokens();
  // Every layer has reached `length`, so a block below it is whole in all of them.
  while (publish_ && (published_.size() + 1) * uint64_t{block_tokens} <= length) {
    const size_t i = published_.size();
    if (i >= damaged_block_) return;
    const SlotId own = slots_[i];
    const Published done =
        core_.Publish(place_, {.parent = i == 0 ? BlockId::None() : published_.back(),
                               .tokens = std::span(tokens_).subspan(i * block_tokens, block_tokens),
                               .slot = own});
    if (done.block.is_none()) return;  // the next commit tries again
    {
      MutexLock lock(mutex_);
      published_.push_back(done.block);
      slots_[i] = done.slot;
      pointers_[i] = core_.data(done.slot);
    }
    // Only now, when no view can be taken of it any more.
    if (done.deduplicated) core_.ReleaseSlots({&own, 1});
  }
}

Result<void> SequenceImpl::Rollback(uint64_t position) {
  const uint64_t written = cursor_max();
  if (position > written) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("rollback: sequence {} to {} tokens, but no layer has more than {}",
                            id_.number(), position, written));
  }
  if (position == written) return {};

  std::vector<SlotId> dropped;
  if (!TryTruncate(position, SlotId::None(), dropped)) {
    const uint64_t cut = position / core_.block_tokens();
    QUIRE_ASSIGN(const auto copy, core_.AllocateSlots(1));
    std::memcpy(core_.data(copy[0]), core_.data(slots_[cut]), core_.layout().slot_bytes());
    // When the copy is published it gets a checksum of its own, so damage must not get into it.
    const bool damaged = !core_.Intact(slots_[cut]);
    QUIRE_CHECK(TryTruncate(position, copy[0], dropped));
    if (damaged) damaged_block_ = cut;
  }
  if (DivUp(position, core_.block_tokens()) <= damaged_block_) damaged_block_ = kNoBlock;
  core_.ReleaseSlots(dropped);
  return {};
}

bool SequenceImpl::TryTruncate(uint64_t position, SlotId copy, std::vector<SlotId>& dropped) {
  const uint64_t whole = position / core_.block_tokens();
  const uint64_t kept = DivUp(position, core_.block_tokens());
  // Under the lock, so that nobody takes a view between the look at the references and the cut.
  MutexLock lock(mutex_);
  const auto is_mine = [&](size_t i) {
    return i >= published_.size() && core_.references(slots_[i]) == 1;
  };
  // The block that is cut will be written again: others must not see that.
  if (kept > whole && copy.is_none() && !is_mine(whole)) return false;

  std::vector<SlotId> slots(slots_.begin(), slots_.begin() + static_cast<int64_t>(kept));
  if (!copy.is_none()) dropped.push_back(std::exchange(slots[whole], copy));
  // Private slots that nobody reads stay as reserved room.
  for (size_t i = kept; i < slots_.size(); ++i) {
    (is_mine(i) ? slots : dropped).push_back(slots_[i]);
  }
  for (auto& cursor : cursors_) {
    cursor.store(std::min(cursor.load(std::memory_order_relaxed), position),
                 std::memory_order_release);
  }
  tokens_.resize(std::min<uint64_t>(tokens_.size(), position));
  length_.store(tokens_.size(), std::memory_order_release);
  published_.resize(std::min<uint64_t>(published_.size(), whole));
  SetSlots(std::move(slots));
  return true;
}

Result<std::unique_ptr<Sequence>> SequenceImpl::Fork() {
  const uint32_t block_tokens = core_.block_tokens();
  const uint64_t whole = tokens_.size() / block_tokens;
  const bool partial = tokens_.size() % block_tokens != 0;
  std::vector<SlotId> tail;
  if (partial) {
    QUIRE_ASSIGN(tail, core_.AllocateSlots(1));
    std::memcpy(core_.data(tail[0]), core_.data(slots_[whole]), core_.layout().slot_bytes());
  }
  // Whole blocks are never written again, published or not.
  std::vector<SlotId> shared(slots_.begin(), slots_.begin() + static_cast<int64_t>(whole));
  core_.HoldSlots(shared);
  PlanState plan{.place = place_,
                 .prompt_tokens = tokens_.size(),
                 .resident_tokens = tokens_,
                 .path = published_,
                 .lease = core_.MakeLease(std::move(shared))};
  auto fork = std::make_unique<SequenceImpl>(core_, std::move(plan), std::move(tail), publish_);
  fork->damaged_block_ = damaged_block_;
  return fork;
}

void SequenceImpl::Reset() {
  std::vector<SlotId> dropped;
  {
    MutexLock lock(mutex_);
    for (auto& cursor : cursors_) cursor.store(0, std::memory_order_release);
    length_.store(0, std::memory_order_release);
    tokens_.clear();
    published_.clear();
    dropped = slots_;
    SetSlots({});
  }
  damaged_block_ = kNoBlock;
  core_.ReleaseSlots(dropped);
}

}  // namespace quire::cache
