#include "cache/sequence/sequence_impl.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/bits.h"

namespace quire::cache {
namespace {

// A streamed sequence pays for its keys and tokens besides the entries.
uint64_t BytesToGrow(const SequenceSlots& slots, const SequenceStream* stream, uint64_t blocks) {
  const uint64_t entries = BytesToGrow(slots.classes(), slots.list(), blocks);
  if (stream == nullptr) return entries;
  return entries + (blocks - slots.list().size()) * stream->block_bytes();
}

}  // namespace

uint64_t SequenceImpl::FixedBytes(const SlotClasses& classes) {
  constexpr uint64_t kAllocationBytes = 32;  // what the heap adds to each, and the map's node
  return sizeof(SequenceImpl) + classes.layout().layer_count() * sizeof(std::atomic<uint64_t>) +
         4 * kAllocationBytes;
}

SequenceImpl::SequenceImpl(const SequenceVerbs& verbs, Start start, OwnedSlots own_slots,
                           uint64_t blocks, uint64_t tokens_max, const SequenceOptions& options)
    : verbs_(verbs),
      id_(verbs.sequences.NextId()),
      location_(std::move(start.location)),
      prompt_tokens_(start.prompt_tokens),
      tokens_max_(tokens_max),
      step_tokens_(options.step_tokens),
      publish_(options.publish && !options.contiguous && start.stream == nullptr),
      contiguous_(options.contiguous),
      asked_(start.asked),
      is_exact_(start.is_exact),
      approximate_error_(start.approximate_error),
      own_classes_(std::move(start.classes)),
      slots_(own_classes_ != nullptr ? *own_classes_ : verbs.cache.classes(),
             std::move(start.blocks), start.tokens,
             start.stream != nullptr ? 0 : start.tokens / verbs.cache.block_tokens()),
      arrival_(std::move(start.arrival)),
      stream_(std::move(start.stream)),
      cursors_(verbs.cache.layout().layer_count()),
      length_(start.tokens) {
  for (auto& cursor : cursors_) cursor.store(start.tokens, std::memory_order_relaxed);
  {
    MutexLock lock(mutex_);
    slots_.Grow(blocks, own_slots.all());
    charge_ = start.charge.Split(FixedBytes(verbs.cache.classes()));
    slots_.list().Pay(slots_.list().owned_begin(), blocks, start.charge);
    charge_.Add(std::move(start.charge));  // bytes that no chunk of its own takes
  }
  verbs_.sequences.Add(id_, *this);
  if (stream_ != nullptr) stream_->SetStreamed(slots_.passed(stream_->slot_class()));
  // Nothing can fail any more.
  Holds::Disarm(start.lease);
  own_slots.Disown();
}

SequenceImpl::~SequenceImpl() {
  Reset();
  verbs_.sequences.Remove(id_);
}

uint64_t SequenceImpl::cursor(uint32_t layer) const {
  QUIRE_CHECK(layer < cursors_.size());
  return cursors_[layer].load(std::memory_order_acquire);
}

std::shared_ptr<const Arrival> SequenceImpl::arrival() const {
  MutexLock lock(mutex_);
  return arrival_;
}

Result<bool> SequenceImpl::AwaitLayer(uint32_t layer, uint64_t wait_us) {
  const auto arrival = this->arrival();
  if (arrival == nullptr) return true;
  if (!arrival->Await(layer, wait_us)) return false;
  if (arrival->has_ended()) {
    MutexLock lock(mutex_);
    QUIRE_TRY(CheckArrived("await"));
  }
  return true;
}

bool SequenceImpl::arrives() const {
  const auto arrival = this->arrival();
  return arrival != nullptr && !arrival->is_whole();
}

Result<void> SequenceImpl::CheckArrived(std::string_view verb) const {
  if (arrival_ == nullptr || arrival_->is_whole()) return {};
  const bool fails = arrival_->has_ended();
  return Fail(fails ? ErrorCode::kNotFound : ErrorCode::kBusy,
              fmt::format("{}: sequence {}: {}", verb, id_.number(),
                          fails ? "a block of its load did not come; begin with those that did"
                                : "not all layers of what is loaded are there"));
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
  SequenceStats stats{
      .tokens_used = length(),
      .tokens_reserved = slots_.list().size() * uint64_t{verbs_.cache.block_tokens()},
      .tokens_max = tokens_max_};
  for (uint64_t block = 0; block < slots_.list().size(); ++block) {
    bool held = false;
    for (uint32_t c = 0; c < slots_.class_count(); ++c) {
      if (slots_.at(c, block).is_none()) continue;
      held = true;
      stats.bytes += verbs_.cache.classes().slot_bytes(c);
    }
    if (held) ++(block < slots_.list().published() ? stats.blocks_shared : stats.blocks_own);
  }
  for (uint32_t c = 0; c < slots_.class_count(); ++c) {
    stats.bytes += slots_.spare(c).size() * verbs_.cache.classes().slot_bytes(c);
  }
  // With several slot classes, spare slots belong to blocks that are already counted.
  if (slots_.class_count() == 1) stats.blocks_own += static_cast<uint32_t>(slots_.spare(0).size());
  const bool has_ladder = verbs_.cache.classes().has_ladder();
  const uint64_t whole = has_ladder ? length() / verbs_.cache.block_tokens() : 0;
  for (uint64_t block = 0; block < whole; ++block) {
    if (IsSealedOnly(block)) stats.tokens_approximate += verbs_.cache.block_tokens();
  }
  if (stats.tokens_approximate > 0) stats.approximate_error = approximate_error_;
  if (stream_ != nullptr) {
    stats.tokens_streamed =
        slots_.passed(stream_->slot_class()) * uint64_t{verbs_.cache.block_tokens()};
  }
  return stats;
}

// Blocks leave memory first that the store wrote since the last commit, which did not wait for it.
Result<void> SequenceImpl::Reserve(uint64_t tokens) {
  if (stream_ != nullptr && stream_->is_deferred()) PassWindows(length());
  return EnsureCapacity(tokens, 0, 0);
}

Result<void> SequenceImpl::EnsureCapacity(uint64_t tokens, uint32_t write_group,
                                          uint64_t write_end) {
  const uint64_t tokens_max = verbs_.cache.options().tokens_max;
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
  MetadataCharge charge;
  PerClass<uint64_t> counts{};
  uint64_t metadata_bytes = 0;
  while (true) {
    {
      MutexLock lock(mutex_);
      const uint64_t blocks =
          std::max(slots_.list().size(), DivUp(tokens, uint64_t{verbs_.cache.block_tokens()}));
      const PerClass<uint64_t> lacking = slots_.Lacking(blocks, write_group, write_end, steps());
      const uint64_t lacking_bytes = BytesToGrow(slots_, stream_.get(), blocks);
      if (lacking == counts && lacking_bytes == metadata_bytes) {
        const uint64_t before = slots_.list().size();
        if (blocks > before || counts != PerClass<uint64_t>{}) slots_.Grow(blocks, added.all());
        added.Disown();
        if (blocks > before) slots_.list().Pay(before, blocks, charge);
        slots_.AssignUpTo(write_group, write_end);
        return {};
      }
      counts = lacking;
      metadata_bytes = lacking_bytes;
    }
    // The thread of another layer has made room too.
    added.Release();
    charge = {};
    // Without the lock, so that readers continue.
    auto taken = AddSlots(counts, metadata_bytes);
    if (!taken) {
      const std::string held = stream_ == nullptr ? std::string() : stream_->failure();
      return Fail(
          taken.error().code,
          fmt::format("sequence {}: no room to grow from {} to {} tokens: {}{}{}", id_.number(),
                      length(), tokens, taken.error().message, held.empty() ? "" : "; ", held));
    }
    added = std::move(taken->slots);
    charge = std::move(taken->metadata);
  }
}

Result<void> SequenceImpl::Own(uint64_t block) {
  uint64_t bytes = 0;
  {
    MutexLock lock(mutex_);
    bytes = slots_.list().BytesToOwn(block);
  }
  if (bytes == 0) return {};
  QUIRE_ASSIGN(auto paid, verbs_.holds.Allocate(location_, {}, bytes));
  MutexLock lock(mutex_);
  const uint64_t end =
      std::min(slots_.list().size(), RoundDown(block, slots_.list().chunk_blocks()) +
                                         bytes / slots_.list().block_bytes());
  slots_.list().Own(block);
  slots_.list().Pay(RoundDown(block, slots_.list().chunk_blocks()), end, paid.metadata);
  return {};
}

Result<Holds::Allocation> SequenceImpl::AddSlots(const PerClass<uint64_t>& counts,
                                                 uint64_t metadata_bytes) {
  if (!contiguous_) return verbs_.holds.Allocate(location_, counts, metadata_bytes);
  std::vector<SlotId> run;
  {
    MutexLock lock(mutex_);
    run = slots_.Held(slots_.list().size());
  }
  QUIRE_ASSIGN(auto slots, verbs_.holds.ExtendRun(location_, run, counts[0]));
  return Holds::Allocation{.slots = std::move(slots), .metadata = {}};
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

// Encodes one layer of a whole block, once. Later positions read only the sealed form.
void Seal(const LockedState& cache, uint32_t layer, SlotId open_slot, SlotId sealed_slot) {
  const codec::SlotLayout& layout = cache.layout();
  const codec::SlotLayout& open = cache.open_layout();
  const std::byte* from = cache.slots().data(open_slot);
  std::byte* to = cache.slots().data(sealed_slot);
  cache.slots().ops().Encode(open.key(layer), from, layout.key(layer), to);
  if (layout.geometry_group(layer).streams.size() > 1) {
    cache.slots().ops().Encode(open.value(layer), from, layout.value(layer), to);
  }
}

// Says why blocks that a query at `length` would see are not there any more.
std::string WhyNotBack(const LockedState& cache, uint64_t length) {
  if (cache.layout().identity()) {
    return "a window has passed blocks that its queries there would see";
  }
  if (cache.classes().residual_blocks() == 0) {
    return "its block is encoded already; go to a block boundary";
  }
  return fmt::format(
      "of the last {} tokens before it, which are read open, some are encoded only; "
      "the least possible is {}",
      cache.options().profile.residual_tokens,
      length / cache.block_tokens() * cache.block_tokens());
}

}  // namespace

Result<void> SequenceImpl::Append(uint32_t layer, const LayerRows& rows) {
  if (layer >= cursors_.size()) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("append: layer {} of a model with {}", layer, cursors_.size()));
  }
  if (rows.tokens == 0) return {};
  const codec::SlotLayout& layout = verbs_.cache.layout();
  const bool latent = layout.geometry_group(layer).streams.size() == 1;
  QUIRE_TRY(CheckRows(rows.key, layout.key(layer), rows.tokens, latent ? "latent" : "key"));
  if (!latent) QUIRE_TRY(CheckRows(rows.value, layout.value(layer), rows.tokens, "value"));
  if (latent && rows.value.data != nullptr) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("append: a value for layer {}, which stores one latent", layer));
  }
  const uint64_t begin = cursors_[layer].load(std::memory_order_relaxed);
  const uint64_t end = begin + rows.tokens;
  const uint32_t block_tokens = verbs_.cache.block_tokens();
  const codec::SlotLayout& open = verbs_.cache.open_layout();
  const uint32_t p = layout.group_of(layer);
  QUIRE_TRY(EnsureCapacity(end, p, DivUp(end, uint64_t{block_tokens})));
  const WrittenSlots slots = SlotsToWrite(p, begin / block_tokens, DivUp(end, block_tokens));
  BlockOps& ops = verbs_.cache.slots().ops();

  for (uint32_t row = 0; row < rows.tokens;) {
    const uint64_t position = begin + row;
    const auto in_block = static_cast<uint32_t>(position % block_tokens);
    const uint32_t count = std::min(rows.tokens - row, block_tokens - in_block);
    const uint64_t i = position / block_tokens - begin / block_tokens;
    std::byte* slot = verbs_.cache.slots().data(slots.open[i]);
    const TokensInBlock at{.begin = in_block, .count = count};
    ops.WriteRows(open.key(layer), rows.key, row, at, slot);
    if (!latent) ops.WriteRows(open.value(layer), rows.value, row, at, slot);
    row += count;
    if (in_block + count == block_tokens && !layout.identity()) {
      Seal(verbs_.cache, layer, slots.open[i], slots.sealed[i]);
    }
  }
  cursors_[layer].store(end, std::memory_order_release);
  return {};
}

// Looks up the slots of blocks [begin, end) at once: other threads change the list for other layers
// meanwhile.
SequenceImpl::WrittenSlots SequenceImpl::SlotsToWrite(uint32_t group, uint64_t begin,
                                                      uint64_t end) const {
  WrittenSlots slots;
  slots.open.reserve(end - begin);
  slots.sealed.reserve(end - begin);
  MutexLock lock(mutex_);
  QUIRE_DCHECK(begin >= slots_.list().published());
  for (uint64_t block = begin; block < end; ++block) {
    slots.open.push_back(slots_.at(verbs_.cache.classes().OpenClassOf(group), block));
    slots.sealed.push_back(slots_.at(group, block));
  }
  return slots;
}

// Releases the blocks that no query from `length` on can see, and keeps as many slots ready for the
// next blocks.
void SequenceImpl::PassWindows(uint64_t length) {
  uint64_t durable = UINT64_MAX;
  if (stream_ != nullptr) {
    // Those after the last whole split, of which sinks may be some, are released by none.
    const uint64_t whole =
        RoundDown(slots_.classes().first_whole(length),
                  slots_.classes().reach(stream_->slot_class()).blocks_at_once());
    durable = stream_->AwaitDurable(whole);
  }
  std::vector<SlotId> passed;
  PerClass<uint64_t> counts{};
  {
    MutexLock lock(mutex_);
    counts = slots_.TakePassed(length, durable, steps(), passed);
  }
  if (stream_ != nullptr) stream_->SetStreamed(slots_.passed(stream_->slot_class()));
  if (passed.empty()) return;
  std::ranges::reverse(passed);  // the block that was passed first is evicted first
  verbs_.cache.ReleaseSlots(passed);
  // If other holders keep the passed slots there may be no room now; then Append asks again.
  auto added = verbs_.holds.Allocate(location_, counts, 0);
  if (!added) return;
  MutexLock lock(mutex_);
  slots_.Grow(slots_.list().size(), added->slots.all());
  added->slots.Disown();
}

Result<void> SequenceImpl::Rollback(uint64_t position) {
  const uint64_t written = cursor_max();
  if (position > written) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("rollback: sequence {} to {} tokens, but no layer has more than {}",
                            id_.number(), position, written));
  }
  if (position == written) return {};
  if (position < length()) {
    MutexLock lock(mutex_);
    QUIRE_TRY(CheckArrived("rollback"));
  }
  if (!slots_.Sees(position)) {
    const std::string why = stats().tokens_streamed > position
                                ? "what is before it is in the store alone; open it anew"
                                : WhyNotBack(verbs_.cache, length());
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("rollback: sequence {} to {} tokens: {}", id_.number(), position, why));
  }
  if (position % verbs_.cache.block_tokens() != 0 &&
      IsSealedOnly(position / verbs_.cache.block_tokens())) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("rollback: sequence {} to {} tokens: its block is there in the lower "
                            "precision alone; go to a block boundary",
                            id_.number(), position));
  }
  if (stream_ != nullptr) stream_->Cut(position);

  std::vector<SlotId> dropped;
  OwnedSlots copies;
  const uint64_t cut = position / verbs_.cache.block_tokens();
  bool damaged = false;
  QUIRE_TRY(Own(cut));
  // Readers may pin the block in one class after the other; each class is copied once at most.
  while (true) {
    const PerClass<bool> shared = TryTruncate(position, copies, dropped);
    if (shared == PerClass<bool>{}) break;
    if (contiguous_) {
      return Fail(ErrorCode::kBusy,
                  fmt::format("rollback: sequence {} to {} tokens: a view or fork holds block {}, "
                              "and a copy would not be contiguous",
                              id_.number(), position, cut));
    }
    QUIRE_ASSIGN(auto more, CopyBlock(cut, shared));
    copies.Add(std::move(more));
    // A copy that is published gets a checksum of its own, so damage must not get into it.
    for (uint32_t c = 0; c < slots_.class_count(); ++c) {
      if (shared[c] && !verbs_.publishing.Intact(slots_.at(c, cut))) damaged = true;
    }
  }
  copies.Disown();
  if (damaged) damaged_block_ = cut;
  if (DivUp(position, verbs_.cache.block_tokens()) <= damaged_block_) damaged_block_ = kNoBlock;
  verbs_.cache.ReleaseSlots(dropped);
  return {};
}

// Of a whole block, with a precision ladder.
bool SequenceImpl::IsSealedOnly(uint64_t block) const {
  const SlotClasses& classes = verbs_.cache.classes();
  return classes.has_ladder() && block < slots_.list().size() && !slots_.at(0, block).is_none() &&
         slots_.at(classes.OpenClassOf(0), block).is_none();
}

// Whether the slot may be written again in place. Afterwards views that pinned nothing detect the
// change.
bool SequenceImpl::TakeToRewrite(uint32_t c, uint64_t block) const {
  return block >= slots_.list().published() && verbs_.holds.RenewIfAlone(slots_.at(c, block));
}

Result<OwnedSlots> SequenceImpl::CopyBlock(uint64_t block, const PerClass<bool>& wanted) {
  PerClass<uint64_t> counts{};
  for (uint32_t c = 0; c < slots_.class_count(); ++c) {
    // A group may not have reached this block yet.
    counts[c] = wanted[c] && !slots_.at(c, block).is_none() ? 1 : 0;
  }
  QUIRE_ASSIGN(auto taken, verbs_.holds.Allocate(location_, counts, 0));
  OwnedSlots copies = std::move(taken.slots);
  for (uint32_t c = 0; c < slots_.class_count(); ++c) {
    if (copies[c].empty()) continue;
    verbs_.cache.slots().Copy(slots_.at(c, block), copies[c][0]);
  }
  return copies;
}

PerClass<bool> SequenceImpl::TryTruncate(uint64_t position, const OwnedSlots& copies,
                                         std::vector<SlotId>& dropped) {
  const uint64_t whole = position / verbs_.cache.block_tokens();
  const uint64_t kept = DivUp(position, uint64_t{verbs_.cache.block_tokens()});
  // Under the lock, so that no view is taken between the check of the references and the cut.
  MutexLock lock(mutex_);
  PerClass<bool> shared{};
  for (uint32_t c = 0; c < slots_.class_count(); ++c) {
    // The block that is cut will be written again: other holders must not see that.
    shared[c] = kept > whole && !slots_.at(c, whole).is_none() && copies[c].empty() &&
                !TakeToRewrite(c, whole);
  }
  if (shared != PerClass<bool>{}) return shared;

  // Takes the memory first: once a copy is in its place nothing may fail.
  const uint64_t cut = slots_.list().size() - std::min(slots_.list().size(), kept);
  slots_.ReserveSpare(cut);
  PerClass<std::vector<SlotId>> room;
  for (uint32_t c = 0; c < slots_.class_count(); ++c) room[c].reserve(cut);
  dropped.reserve((cut + 1) * slots_.class_count());

  uint64_t capacity_end = kept;  // with full attention, the capacity is the blocks that still have
                                 // slots
  for (uint32_t c = 0; c < slots_.class_count(); ++c) {
    if (!copies[c].empty()) {
      dropped.push_back(slots_.at(c, whole));
      slots_.list().SetSlot(c, whole, copies[c][0]);
    }
    SortBeyond(c, kept, room[c], dropped);
    if (!slots_.classes().reach(c).windowed()) capacity_end = kept + room[c].size();
  }
  slots_.Cut(position, capacity_end, room);
  for (auto& cursor : cursors_) {
    cursor.store(std::min(cursor.load(std::memory_order_relaxed), position),
                 std::memory_order_release);
  }
  length_.store(std::min(length(), position), std::memory_order_release);
  return {};
}

// Private slots without other holders stay as reserved room.
void SequenceImpl::SortBeyond(uint32_t c, uint64_t kept, std::vector<SlotId>& room,
                              std::vector<SlotId>& dropped) const {
  for (uint64_t block = kept; block < slots_.list().size(); ++block) {
    const SlotId slot = slots_.at(c, block);
    if (slot.is_none()) continue;
    const bool stays = TakeToRewrite(c, block) && (!contiguous_ || room.size() == block - kept);
    (stays ? room : dropped).push_back(slot);
  }
}

Result<std::unique_ptr<Sequence>> SequenceImpl::Fork() {
  if (stream_ != nullptr) {
    return Fail(ErrorCode::kUnsupported,
                fmt::format("fork: sequence {} streams; acquire and open its tokens again, which "
                            "the store has",
                            id_.number()));
  }
  {
    MutexLock lock(mutex_);
    QUIRE_TRY(CheckArrived("fork"));
  }
  const uint64_t length = this->length();
  const uint64_t whole = length / verbs_.cache.block_tokens();
  const uint64_t blocks = DivUp(length, uint64_t{verbs_.cache.block_tokens()});
  PerClass<uint64_t> tail_slots{};
  for (uint32_t c = 0; c < slots_.class_count() && blocks > whole; ++c) {
    tail_slots[c] = slots_.at(c, whole).is_none() ? 0 : 1;
  }
  QUIRE_ASSIGN(auto taken, verbs_.holds.Allocate(location_, tail_slots,
                                                 FixedBytes(verbs_.cache.classes()) +
                                                     slots_.list().BytesToFork(blocks, whole)));
  OwnedSlots tail = std::move(taken.slots);
  // Whole blocks are never written again, published or not.
  std::vector<SlotId> held = slots_.Held(whole);
  Lease lease = verbs_.holds.Share(std::move(held));
  const auto forked = [&] {
    MutexLock lock(mutex_);
    return slots_.list().Fork(blocks, whole);
  };
  Start start{.location = location_,
              .prompt_tokens = length,
              .tokens = length,
              .is_exact = is_exact_,
              .approximate_error = approximate_error_,
              .blocks = forked(),
              .charge = std::move(taken.metadata),
              .lease = std::move(lease)};
  for (uint32_t c = 0; c < slots_.class_count() && blocks > whole; ++c) {
    if (!tail[c].empty()) verbs_.cache.slots().Copy(slots_.at(c, whole), tail[c][0]);
    start.blocks.SetSlot(c, whole, tail[c].empty() ? SlotId::None() : tail[c][0]);
  }
  const SequenceOptions options{.step_tokens = step_tokens_, .publish = publish_};
  auto fork = std::make_unique<SequenceImpl>(verbs_, std::move(start), OwnedSlots(), blocks,
                                             tokens_max_, options);
  tail.Disown();  // it is in the list
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
  std::ranges::copy_if(slots_.Held(slots_.list().size()), std::back_inserter(held), wanted);
  for (uint32_t c = 0; c < slots_.class_count(); ++c) {
    std::ranges::copy_if(slots_.spare(c), std::back_inserter(held), wanted);
  }
  return held;
}

void SequenceImpl::Reset() {
  std::vector<SlotId> dropped;
  std::shared_ptr<const Arrival> arrival;
  if (stream_ != nullptr) {
    WriteRest();
    stream_->Cut(0);
  }
  KeepTwins(length() / verbs_.cache.block_tokens());
  const uint64_t prompt = std::min(prompt_tokens_, length());
  const uint64_t output = length() - prompt;
  const std::vector<BlockId> path = slots_.list().PublishedBlocks(0, slots_.list().published());
  const uint64_t hit_blocks = std::min<uint64_t>(slots_.first_own(), path.size());
  {
    MutexLock lock(mutex_);
    for (auto& cursor : cursors_) cursor.store(0, std::memory_order_release);
    length_.store(0, std::memory_order_release);
    dropped = slots_.Clear(BlockList(slots_.class_count(), verbs_.cache.block_tokens(), publish_));
    arrival = std::move(arrival_);
  }
  damaged_block_ = kNoBlock;
  gave_up_ = false;
  dropped_tokens_ = 0;
  retained_.clear();
  const User user = std::exchange(looked_up_, false) ? User::kRequest : User::kOther;
  verbs_.holds.EndUse(location_, path,
                      {.prompt_tokens = prompt,
                       .output_tokens = output,
                       .asked = asked_,
                       .hit_blocks = hit_blocks,
                       .user = user},
                      dropped);
  if (arrival != nullptr && !arrival->is_whole()) verbs_.holds.ZeroIfFree(dropped);
}

}  // namespace quire::cache
