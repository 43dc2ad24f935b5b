// One sequence of the cache: a list of shared blocks, then blocks of its own. And reading it in
// place: leases that pin blocks, and views that carry pointer, shape and strides.
//
// Life of a block inside a sequence:
//   1. open       private, writable, filled layer by layer by Append
//   2. sealed     per layer, as soon as that layer's K and V of the whole block are written
//   3. published  at the Commit that completes it: checksummed, immutable, found by others
#ifndef QUIRE_SEQUENCE_H_
#define QUIRE_SEQUENCE_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "quire/attention.h"
#include "quire/env.h"
#include "quire/error.h"
#include "quire/geometry.h"
#include "quire/identity.h"
#include "quire/stats.h"

namespace quire::cache {
class Holds;
}

namespace [[gnu::visibility("default")]] quire {

class BlockListView;
class UnleasedView;

/// Move-only pin on slots: while it lives they are neither evicted, moved nor reused.
///
/// Threads:  may be released on any thread; one lease is used by one thread at a time
/// Lifetime: the cache must outlive it
class Lease {
 public:
  Lease() = default;
  Lease(Lease&& other) noexcept;
  Lease& operator=(Lease&& other) noexcept;
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;
  ~Lease();

  bool empty() const { return slots_.empty(); }
  uint32_t block_count() const { return static_cast<uint32_t>(slots_.size()); }

  /// Drops the pins once `fence` is done (null: now). Does not wait: the slots stay pinned until a
  /// call on the cache finds the fence done. Destroying the cache waits for it.
  ///
  /// Errors: none; without memory to remember the fence, the call waits for it
  void Release(std::shared_ptr<Fence> fence = nullptr);

 private:
  friend class cache::Holds;
  friend class BlockListView;
  Lease(cache::Holds* holds, std::vector<SlotId> slots);

  cache::Holds* holds_ = nullptr;
  std::vector<SlotId> slots_;  // each holds one reference in the pool
};

/// A strided array in place, as DLPack would describe it. Read-only.
struct TensorView {
  const void* data = nullptr;
  Codec dtype = Codec::kF32;
  uint32_t rank = 0;
  std::array<int64_t, 5> shape{};    // [rank]
  std::array<int64_t, 5> strides{};  // [rank], in elements
  std::string_view device{};         // "cpu", or the name of the cache's memory
};

/// Tokens of a sequence.
struct TokenRange {
  uint64_t begin = 0;
  uint64_t end = UINT64_MAX;  // after the last; may lie beyond what is written
};

/// One stream of one layer of one sequence: a list of blocks in token order, pinned while it lives.
class BlockListView {
 public:
  BlockListView(StreamLayout layout, uint64_t first_token, uint64_t tokens,
                std::vector<const std::byte*> slots, Lease lease)
      : layout_(layout),
        first_token_(first_token),
        tokens_(tokens),
        slots_(std::move(slots)),
        lease_(std::move(lease)) {}

  const StreamLayout& layout() const { return layout_; }
  /// The first token of the sequence that the view shows: a multiple of block_tokens.
  uint64_t first_token() const { return first_token_; }
  /// Tokens readable from there on; the last block may be partial.
  uint64_t tokens() const { return tokens_; }
  uint32_t block_count() const { return static_cast<uint32_t>(slots_.size()); }
  /// Slots in token order; null for blocks that the layer's window has passed.
  std::span<const std::byte* const> slots() const { return slots_; }
  /// All blocks as one array in place, where they lie equally far apart: always in a sequence that
  /// is contiguous. In a head-major arena [heads, tokens, dim], elsewhere [blocks, heads,
  /// block_tokens, dim], of whose last block only the first tokens() % block_tokens may be written.
  ///
  /// Errors: kUnsupported they do not lie so, or there are none; nothing is ever copied
  Result<TensorView> array() const;
  /// Block i as [heads, tokens in this block, dim]. One that the window has passed is a bug.
  TensorView block(uint32_t i) const;

  /// The same without the pin, to be pinned again later.
  UnleasedView Unleased() const;

  /// Ends the view: it shows nothing any more, and its pins are released as those of a lease.
  void Release(std::shared_ptr<Fence> fence = nullptr);

 private:
  StreamLayout layout_;
  uint64_t first_token_;
  uint64_t tokens_;
  std::vector<const std::byte*> slots_;
  Lease lease_;
};

/// The blocks that a view showed, without a pin: they may be evicted, moved, erased or written
/// anew, and then Pin fails. It gives no pointers, only views that hold a lease, so it cannot
/// dangle.
///
/// Threads:  any
/// Lifetime: the cache must outlive it
class UnleasedView {
 public:
  /// The view, pinned again.
  ///
  /// Errors: kNotFound the slot of one of its blocks holds something else now, or a block failed a
  ///         check or was erased. It will not come back: take a new view of the sequence
  /// Cost:   O(blocks) under the cache lock
  Result<BlockListView> Pin() const;

 private:
  friend class BlockListView;
  UnleasedView(const StreamLayout& layout, uint64_t first_token, uint64_t tokens,
               std::vector<const std::byte*> slots)
      : layout_(layout), first_token_(first_token), tokens_(tokens), slots_(std::move(slots)) {}

  StreamLayout layout_;
  uint64_t first_token_;
  uint64_t tokens_;
  std::vector<const std::byte*> slots_;
  cache::Holds* holds_ = nullptr;
  std::vector<SlotId> held_;           // by the view, once
  std::vector<uint32_t> generations_;  // of each slot; another one: the bytes have changed
};

/// Rows of one stream, as an engine has them: element (token, head, dim) at
/// data[token * token_stride + head * head_stride + dim], strides in elements.
struct RowsView {
  const void* data = nullptr;
  Codec dtype = Codec::kF32;
  int64_t token_stride = 0;
  int64_t head_stride = 0;
};

/// One layer's new tokens. `latent` models pass their one stream as `key` and leave `value` empty.
struct LayerRows {
  RowsView key{};
  RowsView value{};
  uint32_t tokens = 0;
};

/// Where a layer's streams lie in its slots. It never changes.
struct LayerStreams {
  // Slot 0 of the layer's sealed blocks. Layers of one arena have each block in the same slot:
  // appended equally far, they have the same tables.
  const std::byte* arena = nullptr;
  StreamLayout key{};
  StreamLayout value{};
  StreamLayout open_key{};  // of the blocks that a row reads open; equal to key for identity codecs
  StreamLayout open_value{};
  uint32_t open_blocks = 0;  // before the one a row stands in (NumericProfile::residual_blocks)
};

/// Where a layer's blocks can be read by kernels. kNoSlot: the layer's window has passed that
/// block, or it has no bytes in that form; no query looks there.
///
/// Lifetime: the lists live as long as a copy of this; the bytes in their slots are not pinned
struct LayerBlocks : LayerStreams {
  BlockTables tables{};                 // of this one sequence, row 0; BatchTables joins several
  uint64_t tokens = 0;                  // written in this layer, committed or not
  std::shared_ptr<const void> lists{};  // owns the arrays of `tables`

  uint64_t block_count() const { return tables.sealed.BlockCount(0); }
  /// First byte of a block's slot; null: it has none.
  const std::byte* sealed(uint64_t block) const { return tables.sealed.BlockAt(0, block); }
  const std::byte* open(uint64_t block) const { return tables.open.BlockAt(0, block); }
};

/// Counters of the blocks that a context read back, since its sequence was opened.
struct StreamedStats {
  uint64_t bytes_read = 0;
  uint64_t requests = 0;  // of the store, for these
  uint64_t pieces = 0;
  uint64_t waits = 0;    // pieces that had not come when attention asked for them
  uint64_t wait_us = 0;  // for these, by the store's clock
};

/// The first blocks of a sequence's context, which only the store has
/// (SequenceOptions::resident_tokens). Layers with full attention attend to them piece by piece:
/// AttendStreamed does. Reads go ahead of use, into a few slots that the sequence holds: the next
/// pieces while one is attended to, the next layer's first ones while the products before its
/// attention are computed.
///
/// Threads:  one at a time, the writer's
/// Lifetime: its sequence's
class StreamedContext {
 public:
  /// Some splits of one layer, and where their blocks lie: in row 0, those before them without
  /// slots. In these slots the streams lie where `key` and `value` say.
  struct Piece {
    SplitRange splits{};
    BlockTables tables{};
    StreamLayout key{};
    StreamLayout value{};
  };

  virtual ~StreamedContext() = default;

  /// The number of tokens: whole splits. 0 as long as the whole context is in memory.
  virtual uint64_t tokens() const = 0;
  /// Most rows of a step that it has lane states for (SequenceOptions::step_tokens).
  virtual uint32_t rows_max() const = 0;
  /// Pieces of a layer. 0 for a layer with a window: the blocks it sees are in memory.
  virtual uint64_t PieceCount(uint32_t layer) const = 0;
  /// Waits for piece `i` of a layer. It is there until the next call, or the sequence's next commit
  /// or rollback. Fastest in the order of layers, and of pieces in each. `cancel` may be null.
  ///
  /// Errors: kInvalidArgument no such piece. Others name the block: kCorrupt damaged or lost;
  ///         kNotFound it was erased; kIo the disk failed; kDeadline; kCancelled
  /// Effects: on error the sequence stays as it is. Opened anew, it begins before that block
  virtual Result<Piece> Read(uint32_t layer, uint64_t i, const std::atomic<bool>* cancel) = 0;
  /// Waits at most `wait_us`; whether Read of that piece would then return at once: for a caller
  /// that has other work. The piece is being read from then on; the piece of the last Read is gone.
  virtual bool IsReady(uint32_t layer, uint64_t i, uint64_t wait_us) = 0;
  /// From now on a commit does not wait until the store has written the blocks that leave memory:
  /// the caller calls MayStep before each step.
  virtual void Defer() = 0;
  /// Whether the next step finds room, at once or after `wait_us`. Also true if the store does not
  /// accept the blocks: then the step returns the error. Ticks the store.
  virtual bool MayStep(uint64_t wait_us) = 0;
  /// Lane states of all lanes, in the cache's memory; the caller may use them until the next call.
  ///
  /// Errors: kNoSpace more rows or query heads than were paid for when the sequence was opened
  virtual Result<LaneStates> States(uint32_t rows, uint32_t query_heads) = 0;
  virtual StreamedStats stats() const = 0;
};

/// Attention of one layer for a batch of which some sequences stream: as AttentionBackend::Attend,
/// bit for bit the result as if memory had all blocks.
///
/// Shape:   streamed [tasks]: of each task's sequence, or null
/// Errors:  what Attend and StreamedContext say; kNoSpace a task has more rows than rows_max;
///          kInvalidArgument two tasks of one sequence that streams, or rows at its front
/// Effects: tasks of sequences that stream are whole before, and partial ones after
/// Threads: as Attend. `cancel` is looked at while it waits for the store; may be null
Result<void> AttendStreamed(AttentionBackend& attention, uint32_t layer,
                            const AttentionShape& shape, const BlockTables& tables,
                            std::span<AttentionTask> tasks,
                            std::span<StreamedContext* const> streamed, Executor& executor,
                            const std::atomic<bool>* cancel = nullptr);

/// The first half of AttendStreamed: attends to the streamed tokens of one layer, and leaves in
/// `tasks` the tasks of the call of Attend for the tokens in memory. Layers with one arena get the
/// same tasks, in every field.
///
/// Shape, errors, threads: as AttendStreamed
/// Effects: tasks of sequences that stream are whole before, and partial ones after
Result<void> AttendFronts(AttentionBackend& attention, uint32_t layer, const AttentionShape& shape,
                          std::span<AttentionTask> tasks,
                          std::span<StreamedContext* const> streamed, Executor& executor,
                          const std::atomic<bool>* cancel = nullptr);

/// How long an interruptible call may run.
struct Patience {
  uint64_t wait_us = ~uint64_t{0};   // most that it waits for one piece; all ones: until it comes
  const Clock* clock = nullptr;      // of `until_us`; null: no limit
  uint64_t until_us = ~uint64_t{0};  // it is put aside after the piece that passes this time

  bool IsOver() const { return clock != nullptr && clock->NowMicros() >= until_us; }
};

/// AttendFronts that can be put aside between two pieces.
///
/// Lifetime: the constructor's arguments must outlive it
class FrontPass {
 public:
  FrontPass(uint32_t layer, const AttentionShape& shape, std::span<AttentionTask> tasks,
            std::span<StreamedContext* const> streamed)
      : layer_(layer), shape_(shape), tasks_(tasks), streamed_(streamed) {}

  /// True: it is done. False: call it again.
  /// Errors, threads: as AttendFronts
  Result<bool> GoOn(AttentionBackend& attention, Executor& executor, const Patience& patience,
                    const std::atomic<bool>* cancel = nullptr);

 private:
  Result<void> Begin();

  const uint32_t layer_;
  const AttentionShape shape_;
  const std::span<AttentionTask> tasks_;
  const std::span<StreamedContext* const> streamed_;
  size_t task_ = 0;
  uint64_t piece_ = 0;         // of it
  AttentionTask piecewise_{};  // the task, piece by piece
};

/// The priority of some tokens for eviction.
struct Retention {
  uint64_t begin_token = 0;
  uint64_t end_token = UINT64_MAX;  // after the last; may lie beyond what is written yet
  uint8_t priority = 50;            // 0 to 100; the lowest goes first
  uint64_t ttl_us = 0;              // from now on, then the priority is 50 again; 0: for good
};

/// One sequence's row of a padded batch (GatherPadded). Pins its blocks until it goes.
struct PaddedRow {
  uint64_t values = 0;  // heads * tokens_max * dim
  /// Copies the committed tokens to `out` [heads, tokens_max, dim]; other values stay as they are.
  std::function<Result<void>(float* out)> copy{};
};

/// Layers are those of the geometry: cursor(), Streams() or Blocks() of any other is a bug of the
/// caller.
///
/// Threads:  one writer (Reserve, Append, Blocks, Commit, Rollback, Fork, Select, Retain, Reset);
///           length, stats, Streams(), View() and Gather() from any thread. Readers of committed
///           tokens take no lock on the bytes
/// Lifetime: the cache must outlive it; the destructor returns every byte
class Sequence {
 public:
  virtual ~Sequence() = default;

  virtual SequenceId id() const = 0;
  /// Committed tokens.
  virtual uint64_t length() const = 0;
  /// Tokens written in `layer`, committed or not.
  virtual uint64_t cursor(uint32_t layer) const = 0;
  virtual SequenceStats stats() const = 0;

  /// Makes room for `tokens` tokens in all (not more). All or nothing; evicts unleased blocks if
  /// that makes it fit, and only then. Where codecs encode, blocks that are still open have room
  /// for a step (SequenceOptions::step_tokens) while the prompt is read, then for a token: an
  /// append of more takes that from what is free then.
  ///
  /// Errors: kNoSpace with needed and available blocks; kInvalidArgument past tokens_max
  virtual Result<void> Reserve(uint64_t tokens) = 0;

  /// Writes the next rows of one layer and moves that layer's cursor; seals blocks that became
  /// whole.
  ///
  /// Shape:   key [tokens, heads, dim], value likewise
  /// Errors:  kInvalidArgument bad layer, stream or stride; kNoSpace as Reserve. Nothing changes
  /// Threads: different layers may be appended by different threads at once, once room is reserved
  /// Cost:    O(tokens); O(1) amortised for one token
  virtual Result<void> Append(uint32_t layer, const LayerRows& rows) = 0;

  /// Makes the next tokens.size() tokens visible; every layer must have been appended that far.
  /// Publishes the blocks that this completes, and releases those outside windows. Blocks that
  /// cannot be published for lack of room or memory are published by a later commit.
  /// Errors: kInvalidArgument names the layer that is behind: nothing changes then; kIo names the
  ///         device that failed: the tokens are committed, their blocks are not published
  virtual Result<void> Commit(std::span<const TokenId> tokens) = 0;

  /// Truncates to `position` tokens: drops uncommitted rows, or committed tokens too. Published
  /// blocks stay in the cache; a block cut in the middle is copied first if others can see it.
  ///
  /// Errors: kInvalidArgument position > every cursor, inside a block for a codec that cannot be
  ///         cut there, or so far back that a window, or the last residual_tokens, have let go of
  ///         what a query there would see; kNoSpace if the copy has no room. Nothing changes then
  virtual Result<void> Rollback(uint64_t position) = 0;

  /// A second sequence with the same committed tokens: shares whole blocks, copies the open tail.
  ///
  /// Errors: kNoSpace; kUnsupported it streams
  virtual Result<std::unique_ptr<Sequence>> Fork() = 0;

  /// A second sequence that has only some whole blocks of this one, and its last partial block: it
  /// is private, its values are an approximation, and it publishes nothing. Tokens keep their
  /// positions: the next one stands at length() + dropped_tokens() of the text, and at length() in
  /// the list of blocks. It shares private blocks and copies published ones, so that the other
  /// blocks can be evicted when this sequence ends.
  ///
  /// Shape:  kept_blocks ascending, each before the last partial block
  /// Errors: kInvalidArgument another block, or uncommitted rows, or blocks at the end whose open
  ///         form residual_tokens asks for and that is gone; kUnsupported a model with windows, a
  ///         contiguous sequence or one that streams; kNoSpace. Nothing changes then
  virtual Result<std::unique_ptr<Sequence>> Select(std::span<const uint64_t> kept_blocks) = 0;
  /// Tokens before length() that Select left out.
  virtual uint64_t dropped_tokens() const = 0;

  /// Gives the blocks that hold tokens of a range a priority, those published and those that will
  /// be, until Reset. A block with priorities of several callers has the highest of those that have
  /// not expired, and the latest of their ends. Forks do not inherit it.
  ///
  /// Errors: kInvalidArgument an empty range or a priority above 100; kUnsupported the cache's
  ///         policy does not go by priorities (Cache::Pin works with all). Nothing changes then
  /// Source: TensorRT-LLM, KvCacheRetentionConfig
  virtual Result<void> Retain(const Retention& retention) = 0;

  /// Back to zero tokens; slots that only it held are free again. One that streams waits until the
  /// store has what it computed, 5 s at most.
  virtual void Reset() = 0;
  /// For a caller that has other work, before Reset or its end, and after its last commit: waits at
  /// most so long; whether these would wait for nothing. True after 10 s, though the store may not
  /// have all of it.
  virtual bool MayEnd(uint64_t /*wait_us*/) { return true; }

  /// Copies tokens [begin, end) of one stream, widened to f32, in token order. Pins their blocks
  /// meanwhile, and no others.
  ///
  /// Shape:  out [heads, end - begin, dim]
  /// Errors: kInvalidArgument range past the layer's cursor, or out too small; kNotFound the
  ///         layer's window has passed a block of the range
  virtual Result<void> Gather(uint32_t layer, StreamRole role, uint64_t begin, uint64_t end,
                              std::span<float> out) const = 0;

  /// This sequence's row of GatherPadded.
  ///
  /// Errors: kInvalidArgument no such layer or stream, more tokens than tokens_max, or the row has
  ///         more values than 64 bits count
  virtual Result<PaddedRow> Padded(uint32_t layer, StreamRole role, uint64_t tokens_max) const = 0;

  /// The blocks of one stream that hold tokens of a range, in place and pinned.
  ///
  /// Errors: kInvalidArgument no such layer or stream, or the range begins after its end or after
  ///         the last token; kUnsupported the codec encodes
  /// Cost:   O(blocks shown)
  virtual Result<BlockListView> View(uint32_t layer, StreamRole role,
                                     TokenRange range = {}) const = 0;

  /// Where the streams of a layer lie, without its blocks. Cost: O(1)
  virtual LayerStreams Streams(uint32_t layer) const = 0;
  /// The arguments of a kernel for one layer. Valid until the writer's next call that is not an
  /// Append to another layer; only the sequence itself holds the slots.
  ///
  /// Threads: as Append: of different layers on different threads at once
  /// Cost:    O(blocks)
  virtual LayerBlocks Blocks(uint32_t layer) const = 0;

  /// Blocks that only the store has, which Blocks shows without slots. Null: it was not opened to
  /// stream.
  virtual StreamedContext* streamed() { return nullptr; }

  /// Waits at most so long for what a load brings of a layer (Ticket::Arriving); whether it is
  /// there. Until all layers are, Commit, Fork, Select, Gather, View and a Rollback before length()
  /// fail with kBusy, and nothing may be read where Blocks() shows it.
  ///
  /// Errors: kNotFound the load has ended without some of it: nothing of this sequence is to be
  ///         used. Those calls then fail in the same way, until Reset
  /// Threads: the writer's
  virtual Result<bool> AwaitLayer(uint32_t layer, uint64_t wait_us) {
    static_cast<void>(layer);
    static_cast<void>(wait_us);
    return true;
  }
  /// Not all layers are there yet, or will ever be.
  virtual bool arrives() const { return false; }
};

/// Copies a batch of sequences into one padded array: [batch, heads, tokens_max, dim], zeros after
/// each sequence's last committed token and where the layer's window has passed.
/// Errors: kInvalidArgument a sequence is null, names the sequence longer than tokens_max, or out
///         too small
Result<void> GatherPadded(std::span<const Sequence* const> sequences, uint32_t layer,
                          StreamRole role, uint64_t tokens_max, std::span<float> out);

}  // namespace quire

#endif  // QUIRE_SEQUENCE_H_
