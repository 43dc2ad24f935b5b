#include "cache/below/sequence_stream.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <optional>
#include <utility>

#include "base/bits.h"
#include "base/canary.h"
#include "transfer/transfers.h"

namespace quire::cache {
namespace {

using tier::StoreOutcome;

// One is attended to, one is there, one is on its way; more keep a slow disk busy, and are there
// when the steps of others leave little time.
constexpr uint32_t kPlacesMin = 3;
constexpr uint32_t kPlacesWanted = 16;
constexpr uint32_t kPlacesMax = 32;
// Of what stays in memory, what a piece is at most: larger ones cost fewer waits and more memory.
constexpr uint64_t kResidentPerPiece = 8;
constexpr uint64_t kSplitsPerPieceMax = 8;
constexpr uint64_t kWriteTimeoutUs = 10'000'000;
// To be durable, for a caller that lets go of the bytes that are being written.
constexpr uint64_t kLastWaitUs = 5'000'000;

// What a read of a block takes: its request, tokens, and where its sections go.
constexpr uint64_t kReadBytes = 1024;

std::unexpected<Error> CannotStream(std::string_view why) {
  return Fail(ErrorCode::kUnsupported, fmt::format("open: resident_tokens: {}", why));
}

// The layers with full attention, if there are any. At most one group has them.
std::optional<uint32_t> FullGroup(const SlotClasses& classes) {
  for (uint32_t group = 0; group < classes.group_count(); ++group) {
    if (!classes.reach(group).windowed()) return group;
  }
  return std::nullopt;
}

// The longest that one layer of a block takes in a slot of the group.
uint64_t LayerBytesMax(const SlotClasses& classes, uint32_t group) {
  const codec::SlotLayout& layout = classes.layout();
  uint64_t end = classes.slot_bytes(group);
  uint64_t most = 0;
  for (uint32_t layer = layout.layer_count(); layer-- > 0;) {
    if (layout.group_of(layer) != group) continue;
    const uint64_t begin = layout.key(layer).offset_bytes;
    most = std::max(most, end - begin);
    end = begin;
  }
  return most;
}

// The same stream where the layer's first byte is not at `from` but at `to`.
StreamLayout Moved(StreamLayout stream, uint64_t from, uint64_t to) {
  stream.offset_bytes = stream.offset_bytes - from + to;
  stream.scale_offset_bytes = stream.scale_offset_bytes - from + to;
  return stream;
}

// What is in memory becomes runs, even where the store has its blocks one by one: it has each run
// that it is given only once.
uint64_t FirstToWrite(const RecordChain& chain, const SequenceOptions& options) {
  const LockedState& cache = chain.cache();
  if (cache.shapes().run_blocks() == 1) return chain.blocks();
  return cache.classes()
      .WithResident(options.resident_tokens)
      .first_whole(chain.blocks() * cache.block_tokens());
}

ErrorCode CodeOf(StoreOutcome outcome) {
  switch (outcome) {
    case StoreOutcome::kMiss:
    case StoreOutcome::kAbsent: return ErrorCode::kCorrupt;
    case StoreOutcome::kErased: return ErrorCode::kNotFound;
    case StoreOutcome::kDeadline: return ErrorCode::kDeadline;
    case StoreOutcome::kCancelled: return ErrorCode::kCancelled;
    default: return ErrorCode::kIo;
  }
}

}  // namespace

Result<StreamNeeds> StreamNeedsOf(const LockedState& cache, const SequenceOptions& options) {
  if (cache.store() == nullptr) {
    return CannotStream("the cache has no store to read from; give it one (CacheOptions::store)");
  }
  if (!options.publish || options.contiguous) {
    return CannotStream(
        "what is not published is not in the store; leave publish on, contiguous "
        "off");
  }
  if (cache.options().layout != ArenaLayout::kBlockMajor) {
    return CannotStream(fmt::format("layout {} has no sections by layer; use block_major",
                                    ArenaLayoutName(cache.options().layout)));
  }
  return StreamNeedsOf(cache.classes(), options, cache.slots().memory().host_accessible());
}

Result<StreamNeeds> StreamNeedsOf(const SlotClasses& classes, const SequenceOptions& options,
                                  bool host_accessible) {
  if (classes.residual_blocks() > 0) {
    return CannotStream("not with residual_tokens in the profile; use 0");
  }
  const auto group = FullGroup(classes);
  if (!group) {
    return CannotStream(
        "every layer looks through a window, so memory does not grow with the "
        "context; leave it at 0");
  }
  if (options.query_heads == 0 || options.step_tokens == 0) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("open: resident_tokens {} with query_heads {} and step_tokens {}: both "
                            "are needed, for lane states",
                            options.resident_tokens, options.query_heads, options.step_tokens));
  }
  const uint64_t splits = std::clamp<uint64_t>(
      options.resident_tokens / kResidentPerPiece / kSplitTokens, 1, kSplitsPerPieceMax);
  StreamNeeds needs{.slot_class = *group,
                    .piece_blocks = splits * kSplitTokens / classes.block_tokens()};
  needs.cell_bytes = LayerBytesMax(classes, *group);
  const auto cells = static_cast<uint32_t>(classes.slot_bytes(*group) / needs.cell_bytes);
  const uint32_t slots = std::min(DivUp(kPlacesWanted, cells), kPlacesMin);
  needs.places = std::min(slots * cells, kPlacesMax);
  needs.ring_slots = static_cast<uint32_t>(slots * needs.piece_blocks);
  const auto state_bytes = CheckedProduct(
      uint64_t{options.step_tokens} * kLanes, uint64_t{options.query_heads},
      (2 + uint64_t{classes.layout().value(classes.layout().group(*group).layers.front()).dim}) *
          sizeof(float));
  needs.state_bytes = state_bytes.value_or(std::numeric_limits<uint64_t>::max() / 2);
  if (!host_accessible) {
    needs.host_bytes = needs.ring_slots * classes.slot_bytes(*group);
  }
  needs.metadata_bytes = sizeof(SequenceStream) + sizeof(SlotClasses) +
                         needs.places * needs.piece_blocks * kReadBytes + needs.state_bytes +
                         needs.host_bytes;
  return needs;
}

SequenceStream::SequenceStream(RecordChain chain, const StreamNeeds& needs,
                               const SequenceOptions& options, OwnedSlots ring,
                               MetadataCharge charge, Reservation states)
    : needs_(needs),
      cells_(static_cast<uint32_t>(chain.cache().classes().slot_bytes(needs.slot_class) /
                                   needs.cell_bytes)),
      rows_max_(static_cast<uint32_t>(options.step_tokens)),
      query_heads_(options.query_heads),
      chain_(std::move(chain)),
      ring_(std::move(ring)),
      charge_(std::move(charge)),
      states_(std::move(states)),
      writes_(chain_, FirstToWrite(chain_, options)) {
  LockedState& cache = chain_.cache();
  for (uint32_t i = 0; i < needs.places; ++i) {
    places_.emplace_back(cache).reads.Reserve(needs.piece_blocks,
                                              needs.piece_blocks * needs.cell_bytes);
  }
  ahead_.emplace(static_cast<PieceSource&>(*this), needs.places,
                 cache.layout().group(needs.slot_class).layers, needs.piece_blocks);
}

SequenceStream::~SequenceStream() {
  ahead_.reset();
  CountRead();
}

void SequenceStream::Rewrite(uint64_t blocks, MetadataCharge charge) {
  RecordChain front = chain_;
  front.Cut(blocks * chain_.cache().block_tokens());
  charge_.Add(std::move(charge));
  rewrites_.emplace(std::move(front));
}

uint64_t SequenceStream::AwaitDurable(uint64_t blocks) {
  if (Planted(Canary::kCutEarly)) return std::min(blocks, writes_.begun());
  if (is_deferred_) {
    awaited_ = writes_.Await(blocks, 0) ? 0 : blocks;
    awaited_since_us_ = chain_.cache().transfers()->NowMicros();
  } else {
    is_stuck_ = !writes_.Await(blocks, is_stuck_ ? 0 : kWriteTimeoutUs);
  }
  return std::min(blocks, writes_.durable());
}

bool SequenceStream::MayStep(uint64_t wait_us) {
  if (awaited_ == 0) return true;
  const bool came = writes_.MoveOn(awaited_, wait_us);
  const uint64_t waited_us = chain_.cache().transfers()->NowMicros() - awaited_since_us_;
  const bool may_come = !is_stuck_ && waited_us < kWriteTimeoutUs && writes_.failure().empty();
  if (!came && may_come) return false;
  is_stuck_ = !came;
  awaited_ = 0;
  return true;
}

bool SequenceStream::MayEnd(uint64_t wait_us) {
  if (!std::exchange(ends_, true)) {
    awaited_ = writes_.begun();
    awaited_since_us_ = chain_.cache().transfers()->NowMicros();
  }
  return MayStep(wait_us);
}

void SequenceStream::Cut(uint64_t tokens) {
  const uint64_t blocks = tokens / chain_.cache().block_tokens();
  writes_.Cut(blocks, is_stuck_ ? 0 : kLastWaitUs);
  if (blocks < ahead_->blocks()) SetStreamed(0);
  chain_.Cut(tokens);
}

void SequenceStream::CountRead() {
  const StreamedStats since{.bytes_read = stats_.bytes_read - counted_.bytes_read,
                            .requests = stats_.requests - counted_.requests,
                            .wait_us = stats_.wait_us - counted_.wait_us};
  counted_ = stats_;
  if (since.bytes_read == 0) return;
  ring_.cache()->With([&](State& state) {
    state.counters.streamed_requests_total += since.requests;
    state.counters.streamed_bytes_total += since.bytes_read;
    state.counters.stream_wait_us_total += since.wait_us;
  });
}

uint64_t SequenceStream::PieceCount(uint32_t layer) const {
  const std::span<const LayerBytes> layers = chain_.cache().shapes().layers();
  const bool streams = layer < layers.size() && layers[layer].group == needs_.slot_class;
  return streams ? ahead_->piece_count() : 0;
}

void SequenceStream::Begin(uint32_t number, const ContextPiece& piece) {
  const LayerBytes& layer = LayerOf(piece);
  Place& place = places_[number];
  place.piece = piece;
  place.reads.Clear();
  const uint32_t run_blocks = chain_.cache().shapes().run_blocks();
  std::vector<RecordReads::To> to;
  for (uint64_t i = 0; i < piece.block_count; i += to.size()) {
    const bool is_run = chain_.HasRun(piece.first_block + i);
    const uint64_t count = is_run ? run_blocks : 1;
    to.clear();
    for (uint64_t j = i; j < i + count; ++j) {
      to.push_back({.slot = RingSlot(number, j),
                    .offset = CellOffset(number),
                    .bytes = layer.bytes,
                    .sections = is_run ? 1 : layer.sections.count});
    }
    if (is_run) {
      place.reads.AddRun(chain_, piece.first_block + i,
                         chain_.cache().shapes().RunSections(piece.layer).first, to);
    } else {
      place.reads.AddBlock(chain_, piece.first_block + i, layer.sections.first, to);
    }
  }
  place.reads.Begin();
}

Result<void> SequenceStream::Await(uint32_t number) {
  Place& place = places_[number];
  const Clock& clock = chain_.cache().transfers()->clock();
  const bool waits = !place.reads.IsDone();
  const uint64_t begin_us = clock.NowMicros();
  if (waits) ++stats_.waits;
  QUIRE_ASSIGN(const std::optional<RecordReads::Failed> failed, place.reads.Await(cancel_));
  if (waits) stats_.wait_us += clock.NowMicros() - begin_us;
  if (failed) return NotThere(place.piece, *failed);
  ++stats_.pieces;
  stats_.requests += place.reads.count();
  stats_.bytes_read += place.piece.block_count * LayerOf(place.piece).bytes;
  return {};
}

std::unexpected<Error> SequenceStream::NotThere(const ContextPiece& piece,
                                                const RecordReads::Failed& failed) {
  const uint64_t block = failed.block;
  const uint64_t block_tokens = chain_.cache().block_tokens();
  const std::string why =
      failed.outcome == StoreOutcome::kMiss
          ? fmt::format("{}: {}", StoreOutcomeName(failed.outcome), RecordMissName(failed.miss))
          : std::string(StoreOutcomeName(failed.outcome));
  return Fail(
      CodeOf(failed.outcome),
      fmt::format("stream: block {} (tokens {} to {}) of layer {} did not come from the "
                  "store ({}); opened anew, the sequence begins before it",
                  block, block * block_tokens, (block + 1) * block_tokens, piece.layer, why));
}

Result<StreamedContext::Piece> SequenceStream::Read(uint32_t layer, uint64_t i,
                                                    const std::atomic<bool>* cancel) {
  if (i >= PieceCount(layer)) {
    return Fail(
        ErrorCode::kInvalidArgument,
        fmt::format("stream: no piece {} of layer {}, which has {}", i, layer, PieceCount(layer)));
  }
  cancel_ = cancel;
  QUIRE_ASSIGN(const uint32_t place, ahead_->Take(ahead_->PieceAt(layer, i)));
  return Show(place);
}

bool SequenceStream::IsReady(uint32_t layer, uint64_t i, uint64_t wait_us) {
  if (i >= PieceCount(layer)) return true;  // Read says why not
  const ContextPiece piece = ahead_->PieceAt(layer, i);
  transfer::Transfers& transfers = *chain_.cache().transfers();
  if (ahead_->IsReady(piece)) return true;
  transfers.MoveOn(nullptr);
  if (ahead_->IsReady(piece)) return true;
  if (wait_us == 0) return false;
  const uint64_t begin_us = transfers.NowMicros();
  const transfer::Transfers::Turning here;
  const bool is_ready = transfers.Await([&] { return ahead_->IsReady(piece); }, wait_us, &here);
  stats_.wait_us += transfers.NowMicros() - begin_us;
  return is_ready;
}

// Only the entries of the piece change, whatever the context's length.
StreamedContext::Piece SequenceStream::Show(uint32_t place) {
  const Slots& slots = chain_.cache().slots();
  const ContextPiece& piece = places_[place].piece;
  const uint64_t end = piece.first_block + piece.block_count;
  const uint32_t none = kNoSlot;  // by its address, the library would export the constant
  std::fill_n(sealed_slots_.begin() + static_cast<ptrdiff_t>(shown_.first_block),
              shown_.block_count, none);
  sealed_slots_.resize(std::max<uint64_t>(sealed_slots_.size(), end), none);
  for (uint64_t j = 0; j < piece.block_count; ++j) {
    sealed_slots_[piece.first_block + j] = slots.NumberInArena(RingSlot(place, j));
  }
  shown_ = piece;
  indptr_[1] = end;
  const uint32_t open_class = chain_.cache().classes().OpenClassOf(needs_.slot_class);
  const BlockTable sealed = slots.TableOf(needs_.slot_class, indptr_, sealed_slots_);
  BlockTable open = sealed;
  if (open_class != needs_.slot_class) {
    open_slots_.resize(sealed_slots_.size(), none);
    open = slots.TableOf(open_class, indptr_, open_slots_);
  }
  const uint64_t split_blocks = kSplitTokens / chain_.cache().block_tokens();
  const codec::SlotLayout& layout = chain_.cache().layout();
  const uint64_t begin = LayerOf(piece).offset;
  return {.splits = {.begin = piece.first_block / split_blocks, .end = end / split_blocks},
          .tables = {.sealed = sealed, .open = open},
          .key = Moved(layout.key(piece.layer), begin, CellOffset(place)),
          .value = Moved(layout.value(piece.layer), begin, CellOffset(place))};
}

Result<LaneStates> SequenceStream::States(uint32_t rows, uint32_t query_heads) {
  if (rows > rows_max_ || query_heads > query_heads_) {
    return Fail(ErrorCode::kNoSpace,
                fmt::format("stream: a step of {} rows and {} query heads; lane states were paid "
                            "for {} and {} (step_tokens, query_heads)",
                            rows, query_heads, rows_max_, query_heads_));
  }
  const uint64_t vectors = uint64_t{rows} * query_heads * kLanes;
  auto* const max = reinterpret_cast<float*>(states_.base());
  return LaneStates{.lanes = kAllLanes, .max = max, .sum = max + vectors, .out = max + 2 * vectors};
}

}  // namespace quire::cache

namespace quire {

namespace {

// A sequence has lane states for one task.
bool HasTwice(std::span<StreamedContext* const> streamed) {
  std::vector<StreamedContext*> those;  // takes no memory where nothing streams
  std::ranges::copy_if(streamed, std::back_inserter(those),
                       [](const StreamedContext* context) { return context != nullptr; });
  std::ranges::sort(those);
  return std::ranges::adjacent_find(those) != those.end();
}

}  // namespace

// The next task, as its pieces have it.
Result<void> FrontPass::Begin() {
  const AttentionTask& task = tasks_[task_];
  StreamedContext& context = *streamed_[task_];
  if (task.first_position < context.tokens()) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("attend: a row at position {}, but of the first {} tokens memory has "
                            "none",
                            task.first_position, context.tokens()));
  }
  QUIRE_ASSIGN(const LaneStates states, context.States(task.rows, shape_.query_heads));
  piecewise_ = task;
  piecewise_.out = nullptr;
  piecewise_.sequence = 0;
  piecewise_.to = states;
  return {};
}

Result<bool> FrontPass::GoOn(AttentionBackend& attention, Executor& executor,
                             const Patience& patience, const std::atomic<bool>* cancel) {
  if (streamed_.size() != tasks_.size()) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("attend: {} tasks, and {} contexts", tasks_.size(), streamed_.size()));
  }
  if (task_ == 0 && piece_ == 0 && HasTwice(streamed_)) {
    return Fail(ErrorCode::kInvalidArgument,
                "attend: a sequence that streams is in two tasks; make them one");
  }
  for (; task_ < tasks_.size(); ++task_, piece_ = 0) {
    StreamedContext* const context = streamed_[task_];
    const uint64_t pieces = context == nullptr ? 0 : context->PieceCount(layer_);
    AttentionTask& task = tasks_[task_];
    if (pieces == 0 || task.rows == 0) continue;
    if (piece_ == 0) QUIRE_TRY(Begin());
    while (piece_ < pieces) {
      const bool waits = patience.wait_us == ~uint64_t{0};
      if (!waits && !context->IsReady(layer_, piece_, patience.wait_us)) return false;
      QUIRE_ASSIGN(const StreamedContext::Piece read, context->Read(layer_, piece_, cancel));
      piecewise_.splits = read.splits;
      AttentionShape shape = shape_;
      shape.key = read.key;
      shape.value = read.value;
      QUIRE_TRY(attention.Attend(shape, read.tables, {&piecewise_, 1}, executor));
      piecewise_.from = piecewise_.to;
      ++piece_;
      if (piece_ < pieces && patience.IsOver()) return false;
    }
    task.splits = {.begin = piecewise_.splits.end};
    task.from = piecewise_.to;
  }
  return true;
}

Result<void> AttendFronts(AttentionBackend& attention, uint32_t layer, const AttentionShape& shape,
                          std::span<AttentionTask> tasks,
                          std::span<StreamedContext* const> streamed, Executor& executor,
                          const std::atomic<bool>* cancel) {
  QUIRE_TRY(FrontPass(layer, shape, tasks, streamed).GoOn(attention, executor, {}, cancel));
  return {};
}

Result<void> AttendStreamed(AttentionBackend& attention, uint32_t layer,
                            const AttentionShape& shape, const BlockTables& tables,
                            std::span<AttentionTask> tasks,
                            std::span<StreamedContext* const> streamed, Executor& executor,
                            const std::atomic<bool>* cancel) {
  QUIRE_TRY(AttendFronts(attention, layer, shape, tasks, streamed, executor, cancel));
  return attention.Attend(shape, tables, tasks, executor);
}

}  // namespace quire
