#include "cache/sequence_impl.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/bits.h"
#include "codec/encode.h"
#include "codec/rows.h"

namespace quire::cache {

SequenceImpl::SequenceImpl(Core& core, PlanState plan, OwnedSlots own_slots, uint64_t blocks,
                           uint64_t tokens_max, const SequenceOptions& options)
    : core_(core),
      id_(core.NextSequenceId()),
      place_(std::move(plan.place)),
      prompt_tokens_(plan.prompt_tokens),
      tokens_max_(tokens_max),
      step_tokens_(options.step_tokens),
      publish_(options.publish && !options.contiguous),
      contiguous_(options.contiguous),
      asked_(plan.missing.empty() || plan.missing.front().reason != MissReason::kNotAsked),
      first_own_(plan.resident / core.block_tokens()),
      published_(std::move(plan.path)),
      cursors_(core.layout().layer_count()),
      length_(plan.resident) {
  if (publish_) tokens_ = std::move(plan.resident_tokens);
  for (auto& cursor : cursors_) cursor.store(plan.resident, std::memory_order_relaxed);
  {
    MutexLock lock(mutex_);
    const uint64_t plan_blocks = plan.slots[0].size();
    for (uint32_t c = 0; c < class_count(); ++c) {
      List& list = lists_[c];
      list.slots = std::move(plan.slots[c]);
      list.slots.resize(plan_blocks);
      list.assigned = list.slots.size();
      list.passed = core_.reaches()[c].first_needed(plan.resident);
      for (const SlotId slot : list.slots) list.pointers.push_back(DataOf(slot));
    }
    blocks_ = plan_blocks;
    Grow(blocks, own_slots);
  }
  core_.AddSequence(*this);
  // Nothing can fail any more.
  Core::Disarm(plan.lease);
  own_slots.Disown();
}

SequenceImpl::~SequenceImpl() {
  Reset();
  core_.RemoveSequence(id_);
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
  SequenceStats stats{.tokens_used = length(),
                      .tokens_reserved = blocks_ * uint64_t{core_.block_tokens()},
                      .tokens_max = tokens_max_};
  for (uint64_t block = 0; block < blocks_; ++block) {
    bool held = false;
    for (uint32_t c = 0; c < class_count(); ++c) {
      if (lists_[c].slots[block].is_none()) continue;
      held = true;
      stats.bytes += core_.slot_bytes(c);
    }
    if (held) ++(block < published_.size() ? stats.blocks_shared : stats.blocks_own);
  }
  for (uint32_t c = 0; c < class_count(); ++c) {
    stats.bytes += lists_[c].spare.size() * core_.slot_bytes(c);
  }
  // Beside lists with all blocks, what waits is room of blocks that are counted already.
  if (class_count() == 1) stats.blocks_own += static_cast<uint32_t>(lists_[0].spare.size());
  return stats;
}

Result<void> SequenceImpl::Reserve(uint64_t tokens) { return MakeRoom(tokens, 0, 0); }

Result<void> SequenceImpl::MakeRoom(uint64_t tokens, uint32_t write_part, uint64_t write_end) {
  const uint64_t tokens_max = core_.options().tokens_max;
  if (tokens > tokens_max) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("sequence {}: {} tokens are over the limit of {} (tokens_max)",
                            id_.number(), tokens, tokens_max));
  }
  if (tokens > tokens_max_) {
    return Fail(ErrorCode::kNoSpace,
                fmt::format("sequence {}: {} tokens, but it was admitted with {} (on_full fewer)",
                            id_.number(), tokens, tokens_max_));
  }
  OwnedSlots added;
  PerClass<uint64_t> counts{};
  while (true) {
    {
      MutexLock lock(mutex_);
      const uint64_t blocks = std::max(blocks_, DivUp(tokens, uint64_t{core_.block_tokens()}));
      const PerClass<uint64_t> lacking = Lacking(blocks, write_part, write_end);
      if (lacking == counts) {
        if (blocks > blocks_ || counts != PerClass<uint64_t>{}) Grow(blocks, added);
        added.Disown();
        AssignUpTo(write_part, write_end);
        return {};
      }
      counts = lacking;
    }
    // Another layer's thread has made room too.
    added.Release();
    // Without the lock: it may wait for the spill, and readers go on.
    auto taken = AddSlots(counts);
    if (!taken) {
      return Fail(taken.error().code,
                  fmt::format("sequence {}: no room to grow from {} to {} tokens: {}", id_.number(),
                              length(), tokens, taken.error().message));
    }
    added = *std::move(taken);
  }
}

// Slots that it does not have yet for so much room, and for writing one part up to a block.
PerClass<uint64_t> SequenceImpl::Lacking(uint64_t blocks, uint32_t write_part,
                                         uint64_t write_end) const {
  PerClass<uint64_t> counts{};
  for (uint32_t c = 0; c < class_count(); ++c) {
    const List& list = lists_[c];
    if (!core_.reaches()[c].windowed()) {
      counts[c] = blocks - blocks_;
      continue;
    }
    uint64_t spare = SpareWanted(c, blocks);
    if (IsWritten(c, write_part) && write_end > list.assigned) {
      spare = std::max(spare, write_end - list.assigned);
    }
    counts[c] = spare - std::min<uint64_t>(spare, list.spare.size());
  }
  return counts;
}

void SequenceImpl::AssignUpTo(uint32_t write_part, uint64_t write_end) {
  for (uint32_t c = 0; c < class_count(); ++c) {
    List& list = lists_[c];
    while (IsWritten(c, write_part) && list.assigned < write_end) {
      SetSlot(list, list.assigned++, list.spare.back());
      list.spare.pop_back();
    }
  }
}

bool SequenceImpl::IsWritten(uint32_t slot_class, uint32_t part) const {
  return slot_class == part || slot_class == core_.OpenClassOf(part);
}

Result<OwnedSlots> SequenceImpl::AddSlots(const PerClass<uint64_t>& counts) {
  if (!contiguous_) return core_.AllocateSlots(place_, counts);
  MutexLock lock(mutex_);
  return core_.ExtendRun(place_, lists_[0].slots, counts[0]);
}

// Slots that should wait for blocks of a class that lets go of them: as many as will be written,
// but not more than live at once, those of the sequence's own counted. Open forms wait for whole
// steps only while the prompt is read.
uint64_t SequenceImpl::SpareWanted(uint32_t c, uint64_t blocks) const {
  const List& list = lists_[c];
  const Reach& reach = core_.reaches()[c];
  const uint64_t sinks_end = std::min(list.assigned, reach.sink_blocks());
  const uint64_t own_sinks = sinks_end - std::min(sinks_end, first_own_);
  const uint64_t own_begin = std::max(list.passed, first_own_);
  const uint64_t own = own_sinks + list.assigned - std::min(list.assigned, own_begin);
  const bool sealed = c < core_.layout().part_count();
  const uint64_t most =
      reach.blocks_max(sealed || length() < prompt_tokens_ ? step_tokens_ : uint64_t{1});
  return std::min(blocks - list.assigned, most - std::min(most, own));
}

const std::byte* SequenceImpl::DataOf(SlotId slot) const {
  return slot.is_none() ? nullptr : core_.data(slot);
}

void SequenceImpl::SetSlot(List& list, uint64_t block, SlotId slot) {
  list.slots[block] = slot;
  list.pointers[block] = DataOf(slot);
}

void SequenceImpl::Grow(uint64_t blocks, const OwnedSlots& added) {
  for (uint32_t c = 0; c < class_count(); ++c) {
    List& list = lists_[c];
    const uint64_t most = std::max<uint64_t>(blocks, list.slots.size() + added[c].size());
    list.slots.reserve(most);
    list.pointers.reserve(most);
    list.spare.reserve(list.spare.size() + added[c].size());
  }
  for (uint32_t c = 0; c < class_count(); ++c) {
    List& list = lists_[c];
    if (core_.reaches()[c].windowed()) {
      list.spare.insert(list.spare.end(), added[c].begin(), added[c].end());
    } else {
      for (const SlotId slot : added[c]) {
        list.slots.push_back(slot);
        list.pointers.push_back(DataOf(slot));
      }
      list.assigned = list.slots.size();
    }
    list.slots.resize(blocks);
    list.pointers.resize(blocks);
  }
  blocks_ = blocks;
}

namespace {

Result<void> CheckRows(const RowsView& rows, const StreamLayout& stream, uint32_t tokens,
                       std::string_view name) {
  if (rows.data == nullptr) {
    return Fail(ErrorCode::kInvalidArgument, fmt::format("append: {} has no data", name));
  }
  if (CodecName(rows.dtype) == "unknown" || !IsIdentity(rows.dtype)) {
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
  const uint64_t end = begin + rows.tokens;
  const uint32_t block_tokens = core_.block_tokens();
  const codec::SlotLayout& open = core_.open_layout();
  const uint32_t p = layout.part_of(layer);
  QUIRE_TRY(MakeRoom(end, p, DivUp(end, uint64_t{block_tokens})));

  for (uint32_t row = 0; row < rows.tokens;) {
    const uint64_t position = begin + row;
    const auto in_block = static_cast<uint32_t>(position % block_tokens);
    const uint32_t count = std::min(rows.tokens - row, block_tokens - in_block);
    const uint64_t block = position / block_tokens;
    QUIRE_DCHECK(block >= published_.size());
    std::byte* slot = core_.data(lists_[core_.OpenClassOf(p)].slots[block]);
    codec::WriteRows(open.key(layer), rows.key, row, count, in_block, slot);
    if (!latent) codec::WriteRows(open.value(layer), rows.value, row, count, in_block, slot);
    row += count;
    if (in_block + count == block_tokens && !layout.identity()) Seal(layer, block);
  }
  cursors_[layer].store(end, std::memory_order_release);
  return {};
}

// Encodes what one layer has of a whole block, once. Later positions read only that.
void SequenceImpl::Seal(uint32_t layer, uint64_t block) {
  const codec::SlotLayout& layout = core_.layout();
  const codec::SlotLayout& open = core_.open_layout();
  const uint32_t p = layout.part_of(layer);
  const std::byte* from = core_.data(lists_[core_.OpenClassOf(p)].slots[block]);
  std::byte* to = core_.data(lists_[p].slots[block]);
  codec::EncodeBlock(open.key(layer), from, layout.key(layer), to);
  if (layout.group(layer).streams.size() > 1) {
    codec::EncodeBlock(open.value(layer), from, layout.value(layer), to);
  }
}

Result<void> SequenceImpl::Commit(std::span<const TokenId> tokens) {
  const uint64_t length = this->length() + tokens.size();
  for (uint32_t layer = 0; layer < cursors_.size(); ++layer) {
    if (cursor(layer) < length) {
      return Fail(ErrorCode::kInvalidArgument,
                  fmt::format("commit: sequence {} up to {} tokens, but layer {} has only {}",
                              id_.number(), length, layer, cursor(layer)));
    }
  }
  if (publish_ && !gave_up_) {
    tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
    PublishWholeBlocks(length);
    // Who may not evict could not replace what it leaves there.
    if (place_.may_evict && this->length() < prompt_tokens_ && length >= prompt_tokens_) {
      // The same prompt again leaves a token to compute, a longer one does not.
      KeepTwins((prompt_tokens_ - 1) / core_.block_tokens());
      KeepTwins(prompt_tokens_ / core_.block_tokens());
    }
  }
  length_.store(length, std::memory_order_release);
  PassWindows(length);
  return {};
}

// Lets go of the blocks that no query from `length` on can see, and keeps as many slots ready for
// those to come.
void SequenceImpl::PassWindows(uint64_t length) {
  std::vector<SlotId> passed;
  PerClass<uint64_t> counts{};
  {
    MutexLock lock(mutex_);
    counts = TakePassed(length, passed);
  }
  if (passed.empty()) return;
  std::ranges::reverse(passed);  // what was passed first goes first
  core_.ReleaseSlots(passed);
  // If others still hold what was passed there may be no room now; then Append asks again.
  auto added = core_.AllocateSlots(place_, counts);
  if (!added) return;
  MutexLock lock(mutex_);
  Grow(blocks_, *added);
  added->Disown();
}

// Takes what windows have passed from the lists, and returns how many slots should replace it.
PerClass<uint64_t> SequenceImpl::TakePassed(uint64_t length, std::vector<SlotId>& passed) {
  for (uint32_t c = 0; c < class_count(); ++c) {
    List& list = lists_[c];
    const uint64_t end = core_.reaches()[c].first_needed(length);
    for (; list.passed < end; ++list.passed) {
      if (list.slots[list.passed].is_none()) continue;
      passed.push_back(list.slots[list.passed]);
      SetSlot(list, list.passed, SlotId::None());
    }
  }
  // Where publishing lags behind, for want of room in a domain, a window may pass the last
  // published block: nothing of ours keeps that in the index any more, it must not be named again.
  const auto is_held = [&](uint64_t block) QUIRE_REQUIRES(mutex_) {
    return std::ranges::any_of(std::span(lists_).first(class_count()),
                               [&](const List& list) { return !list.slots[block].is_none(); });
  };
  while (!published_.empty() && !is_held(published_.size() - 1)) published_.pop_back();
  PerClass<uint64_t> counts{};
  if (passed.empty()) return counts;
  for (uint32_t c = 0; c < class_count(); ++c) {
    if (!core_.reaches()[c].windowed()) continue;
    std::vector<SlotId>& spare = lists_[c].spare;
    const uint64_t wanted = SpareWanted(c, blocks_);
    counts[c] = wanted - std::min<uint64_t>(wanted, spare.size());
    while (spare.size() > wanted) {
      passed.push_back(spare.back());
      spare.pop_back();
    }
  }
  return counts;
}

Result<void> SequenceImpl::Rollback(uint64_t position) {
  const uint64_t written = cursor_max();
  if (position > written) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("rollback: sequence {} to {} tokens, but no layer has more than {}",
                            id_.number(), position, written));
  }
  if (position == written) return {};
  if (!StillNeeded(position)) {
    return Fail(ErrorCode::kInvalidArgument, fmt::format("rollback: sequence {} to {} tokens: {}",
                                                         id_.number(), position, WhyNotBack()));
  }

  std::vector<SlotId> dropped;
  if (const PerClass<bool> shared = TryTruncate(position, {}, dropped);
      shared != PerClass<bool>{}) {
    const uint64_t cut = position / core_.block_tokens();
    if (contiguous_) {
      return Fail(ErrorCode::kBusy,
                  fmt::format("rollback: sequence {} to {} tokens: a view or fork holds block {}, "
                              "and a copy would not be contiguous",
                              id_.number(), position, cut));
    }
    QUIRE_ASSIGN(auto copies, CopyBlock(cut, shared));
    // When a copy is published it gets a checksum of its own, so damage must not get into it.
    bool damaged = false;
    for (uint32_t c = 0; c < class_count(); ++c) {
      if (shared[c] && !core_.Intact(lists_[c].slots[cut])) damaged = true;
    }
    QUIRE_CHECK(TryTruncate(position, copies, dropped) == PerClass<bool>{});
    copies.Disown();
    if (damaged) damaged_block_ = cut;
  }
  if (DivUp(position, core_.block_tokens()) <= damaged_block_) damaged_block_ = kNoBlock;
  core_.ReleaseSlots(dropped);
  return {};
}

// Whether the blocks that a query at `position` sees are still here.
bool SequenceImpl::StillNeeded(uint64_t position) const {
  for (uint32_t c = 0; c < class_count(); ++c) {
    const uint64_t needed = core_.reaches()[c].first_needed(position);
    if (lists_[c].passed > needed && needed < DivUp(position, uint64_t{core_.block_tokens()})) {
      return false;
    }
  }
  return true;
}

std::string SequenceImpl::WhyNotBack() const {
  if (core_.layout().identity()) {
    return "a window has passed blocks that its queries there would see";
  }
  if (core_.residual_blocks() == 0) {
    return "its block is encoded already; go to a block boundary";
  }
  return fmt::format(
      "of the last {} tokens before it, which are read open, some are encoded only; "
      "the least possible is {}",
      core_.options().profile.residual_tokens,
      length() / core_.block_tokens() * core_.block_tokens());
}

// Whether it may be written again in place. From then on views that pinned nothing know it.
bool SequenceImpl::TakeToRewrite(const List& list, uint64_t block) const {
  return block >= published_.size() && core_.RenewIfAlone(list.slots[block]);
}

Result<OwnedSlots> SequenceImpl::CopyBlock(uint64_t block, const PerClass<bool>& wanted) {
  PerClass<uint64_t> counts{};
  for (uint32_t c = 0; c < class_count(); ++c) {
    // A part may not have got to this block yet.
    counts[c] = wanted[c] && !lists_[c].slots[block].is_none() ? 1 : 0;
  }
  QUIRE_ASSIGN(auto copies, core_.AllocateSlots(place_, counts));
  for (uint32_t c = 0; c < class_count(); ++c) {
    if (copies[c].empty()) continue;
    core_.CopySlot(lists_[c].slots[block], copies[c][0]);
  }
  return copies;
}

PerClass<bool> SequenceImpl::TryTruncate(uint64_t position, const OwnedSlots& copies,
                                         std::vector<SlotId>& dropped) {
  const uint64_t whole = position / core_.block_tokens();
  const uint64_t kept = DivUp(position, uint64_t{core_.block_tokens()});
  // Under the lock, so that nobody takes a view between the look at the references and the cut.
  MutexLock lock(mutex_);
  PerClass<bool> shared{};
  for (uint32_t c = 0; c < class_count(); ++c) {
    const List& list = lists_[c];
    // The block that is cut will be written again: others must not see that.
    shared[c] = kept > whole && !list.slots[whole].is_none() && copies[c].empty() &&
                !TakeToRewrite(list, whole);
  }
  if (shared != PerClass<bool>{}) return shared;

  // Memory first: once a copy is in its place nothing may fail.
  size_t cut_most = 0;
  size_t dropped_most = 0;
  for (uint32_t c = 0; c < class_count(); ++c) {
    List& list = lists_[c];
    const size_t cut = list.slots.size() - std::min<size_t>(list.slots.size(), kept);
    cut_most = std::max(cut_most, cut);
    dropped_most += cut + 1;
    if (core_.reaches()[c].windowed()) list.spare.reserve(list.spare.size() + cut);
  }
  std::vector<SlotId> room;
  room.reserve(cut_most);
  dropped.reserve(dropped_most);

  for (uint32_t c = 0; c < class_count(); ++c) {
    List& list = lists_[c];
    if (!copies[c].empty()) {
      dropped.push_back(list.slots[whole]);
      SetSlot(list, whole, copies[c][0]);
    }
    Truncate(c, kept, room, dropped);
    list.passed = std::min(list.passed, core_.reaches()[c].first_needed(position));
  }
  // With full attention, room is what it still has slots for.
  for (uint32_t c = 0; c < class_count(); ++c) {
    if (!core_.reaches()[c].windowed()) blocks_ = lists_[c].slots.size();
  }
  Grow(blocks_, {});
  for (auto& cursor : cursors_) {
    cursor.store(std::min(cursor.load(std::memory_order_relaxed), position),
                 std::memory_order_release);
  }
  length_.store(std::min(length(), position), std::memory_order_release);
  tokens_.resize(std::min<uint64_t>(tokens_.size(), position));
  published_.resize(std::min<uint64_t>(published_.size(), whole));
  first_own_ = std::min(first_own_, whole);
  return {};
}

// Private slots that nobody reads stay as reserved room. There is memory for all of it.
void SequenceImpl::Truncate(uint32_t c, uint64_t kept, std::vector<SlotId>& room,
                            std::vector<SlotId>& dropped) {
  List& list = lists_[c];
  room.clear();
  for (uint64_t block = kept; block < list.slots.size(); ++block) {
    const SlotId slot = list.slots[block];
    if (slot.is_none()) continue;
    const bool stays = TakeToRewrite(list, block) && (!contiguous_ || room.size() == block - kept);
    (stays ? room : dropped).push_back(slot);
  }
  list.slots.resize(kept);
  list.pointers.resize(kept);
  list.assigned = std::min(list.assigned, kept);
  if (core_.reaches()[c].windowed()) {
    list.spare.insert(list.spare.end(), room.begin(), room.end());
    return;
  }
  for (const SlotId slot : room) {
    list.slots.push_back(slot);
    list.pointers.push_back(DataOf(slot));
  }
}

Result<std::unique_ptr<Sequence>> SequenceImpl::Fork() {
  const uint64_t length = this->length();
  const uint64_t whole = length / core_.block_tokens();
  PlanState plan{.place = place_,
                 .prompt_tokens = length,
                 .resident = length,
                 .resident_tokens = tokens_,
                 .path = published_};
  OwnedSlots tail;
  if (length % core_.block_tokens() != 0) {
    PerClass<bool> all;
    all.fill(true);
    QUIRE_ASSIGN(tail, CopyBlock(whole, all));
  }
  // Whole blocks are never written again, published or not.
  std::vector<SlotId> held = Held(whole);
  core_.HoldSlots(held);
  plan.lease = core_.MakeLease(std::move(held));
  for (uint32_t c = 0; c < class_count(); ++c) {
    const std::vector<SlotId>& slots = lists_[c].slots;
    plan.slots[c].assign(slots.begin(), slots.begin() + static_cast<int64_t>(whole));
    plan.slots[c].insert(plan.slots[c].end(), tail[c].begin(), tail[c].end());
  }
  const SequenceOptions options{.step_tokens = step_tokens_, .publish = publish_};
  auto fork = std::make_unique<SequenceImpl>(core_, std::move(plan), OwnedSlots(),
                                             DivUp(length, uint64_t{core_.block_tokens()}),
                                             tokens_max_, options);
  tail.Disown();  // it is in the plan
  fork->damaged_block_ = damaged_block_;
  fork->gave_up_ = gave_up_;
  fork->dropped_tokens_ = dropped_tokens_;
  fork->looked_up_ = false;
  return fork;
}

std::vector<SlotId> SequenceImpl::HeldOf(const std::set<SlotId>& slots) const {
  std::vector<SlotId> held;
  const auto wanted = [&slots](SlotId slot) { return slots.contains(slot); };
  MutexLock lock(mutex_);
  for (const List& list : lists_) {
    std::ranges::copy_if(list.slots, std::back_inserter(held), wanted);
    std::ranges::copy_if(list.spare, std::back_inserter(held), wanted);
  }
  return held;
}

std::vector<SlotId> SequenceImpl::Held(uint64_t blocks) const {
  std::vector<SlotId> held;
  for (uint32_t c = 0; c < class_count(); ++c) {
    for (uint64_t block = 0; block < blocks; ++block) {
      if (!lists_[c].slots[block].is_none()) held.push_back(lists_[c].slots[block]);
    }
  }
  return held;
}

void SequenceImpl::Reset() {
  std::vector<SlotId> dropped;
  KeepTwins(length() / core_.block_tokens());
  const uint64_t prompt = std::min(prompt_tokens_, length());
  const uint64_t output = length() - prompt;
  const uint64_t hit_blocks = first_own_;
  std::vector<BlockId> path;  // the slots are held until it was told
  {
    MutexLock lock(mutex_);
    for (auto& cursor : cursors_) cursor.store(0, std::memory_order_release);
    length_.store(0, std::memory_order_release);
    tokens_.clear();
    path.swap(published_);
    dropped = Held(blocks_);
    blocks_ = 0;
    first_own_ = 0;
    for (uint32_t c = 0; c < class_count(); ++c) {
      dropped.insert(dropped.end(), lists_[c].spare.begin(), lists_[c].spare.end());
      lists_[c] = {.passed = core_.reaches()[c].first_needed(0)};
    }
  }
  damaged_block_ = kNoBlock;
  gave_up_ = false;
  dropped_tokens_ = 0;
  retained_.clear();
  const User user = std::exchange(looked_up_, false) ? User::kRequest : User::kOther;
  core_.EndUse(place_,
               {.path = path,
                .prompt_tokens = prompt,
                .output_tokens = output,
                .asked = asked_,
                .hit_blocks = hit_blocks,
                .user = user},
               dropped);
}

}  // namespace quire::cache
