// The front of a sequence that only the store below has: written as it becomes whole, and read back
// piece by piece while layers attend.
#ifndef QUIRE_CACHE_BELOW_SEQUENCE_STREAM_H_
#define QUIRE_CACHE_BELOW_SEQUENCE_STREAM_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "cache/below/read_ahead.h"
#include "cache/below/record_chain.h"
#include "cache/below/record_reads.h"
#include "cache/below/stream_rewrites.h"
#include "cache/below/stream_writes.h"
#include "cache/verbs/holds.h"
#include "env/reservation.h"
#include "quire/sequence.h"

namespace quire::cache {

/// What a sequence takes to stream, besides slots for what stays in memory.
struct StreamNeeds {
  uint32_t slot_class = 0;      // whose blocks are streamed: layers with full attention
  uint64_t piece_blocks = 0;    // that are read together
  uint32_t ring_slots = 0;      // of that class: the same number for each block of a piece
  uint64_t cell_bytes = 0;      // a slot of the ring is cut into cells: one layer of one block each
  uint32_t places = 0;          // for pieces: the ring's cells, or fewer
  uint64_t state_bytes = 0;     // lane states
  uint64_t host_bytes = 0;      // what is read passes through, where the host cannot reach slots
  uint64_t metadata_bytes = 0;  // all but the slots, the keys of blocks aside
};
/// What these options ask of a cache.
///
/// Errors: kUnsupported, kInvalidArgument as Cache::Open says of resident_tokens
Result<StreamNeeds> StreamNeedsOf(const LockedState& cache, const SequenceOptions& options);
/// The same of slots of these classes, in memory that the host reaches or not.
Result<StreamNeeds> StreamNeedsOf(const SlotClasses& classes, const SequenceOptions& options,
                                  bool host_accessible);
/// What such a sequence of so many blocks takes of the budget. Saturates.
uint64_t StreamedBytes(const SlotClasses& classes, const StreamNeeds& needs, uint64_t blocks,
                       const SequenceOptions& options);
/// Of these, what are no slots.
uint64_t StreamedMetadata(const SlotClasses& classes, const StreamNeeds& needs, uint64_t blocks);
/// Bytes that a store, or a tenant's quota there, has to have for a context whose records take
/// `stored` bytes: the store recycles what was used longest ago, and others write too.
constexpr uint64_t StoreBytesFor(uint64_t stored) { return stored / 3 * 4 + 4; }

/// Layers attend to a piece in slots of the ring. A piece is one layer, and a slot has room for all
/// of them, so a slot of the ring has as many cells as layers, each for any layer.
///
/// Threads:  one at a time, the writer's
/// Lifetime: the cache must outlive it
class SequenceStream final : public StreamedContext, private PieceSource {
 public:
  /// Of a sequence that begins with the blocks of `chain`, all of them durable. `ring`, `charge`
  /// and `states` are what `needs` says.
  SequenceStream(RecordChain chain, const StreamNeeds& needs, const SequenceOptions& options,
                 OwnedSlots ring, MetadataCharge charge, Reservation states);
  ~SequenceStream() override;

  /// Makes runs of its first `blocks` blocks, those that are in the store alone. `charge` is for
  /// StreamRewrites::Bytes.
  void Rewrite(uint64_t blocks, MetadataCharge charge);

  // What its sequence says and asks.

  uint32_t slot_class() const { return needs_.slot_class; }
  /// Blocks that were given to the store.
  uint64_t begun() const { return writes_.begun(); }
  /// Tokens are committed.
  void Add(std::span<const TokenId> tokens) { chain_.Add(tokens); }
  /// Of the blocks that it knows.
  uint64_t whole_tokens() const { return chain_.blocks() * chain_.cache().block_tokens(); }
  /// The blocks after those given are whole in all layers, and their tokens are committed; they
  /// become one record, and their bytes stay until it is durable or cut.
  void Write(std::vector<PerClass<SlotId>> slots) { writes_.Write(std::move(slots)); }
  /// Of the first `blocks` blocks, those that the store has, each with all before it. Waits for
  /// them, though not for ever, and not again for what did not come in time.
  uint64_t AwaitDurable(uint64_t blocks);
  /// What a block of its sequence takes here.
  uint64_t block_bytes() const { return RecordChain::BlockBytes(chain_.cache().block_tokens()); }
  /// Memory does not have the first so many blocks any more, which are whole splits.
  void SetStreamed(uint64_t blocks) { ahead_->SetBlocks(blocks); }
  /// What was given to the store is there, at once or after `wait_us`, or does not come.
  bool MayEnd(uint64_t wait_us);
  /// Tokens from here on will be others. Nothing reads the slots of their blocks any more.
  void Cut(uint64_t tokens);
  /// Why it cannot let go of what it should. Empty: it can.
  std::string failure() const { return writes_.failure(); }
  /// Adds what was read since to the cache's counters.
  void CountRead();

  // As StreamedContext.

  uint64_t tokens() const override { return ahead_->blocks() * chain_.cache().block_tokens(); }
  uint32_t rows_max() const override { return rows_max_; }
  uint64_t PieceCount(uint32_t layer) const override;
  Result<Piece> Read(uint32_t layer, uint64_t i, const std::atomic<bool>* cancel) override;
  bool IsReady(uint32_t layer, uint64_t i, uint64_t wait_us) override;
  void Defer() override { is_deferred_ = true; }
  bool is_deferred() const { return is_deferred_; }
  bool MayStep(uint64_t wait_us) override;
  Result<LaneStates> States(uint32_t rows, uint32_t query_heads) override;
  StreamedStats stats() const override { return stats_; }

 private:
  struct Place {
    explicit Place(LockedState& cache) : reads(cache) {}

    ContextPiece piece{};
    RecordReads reads;
  };

  void Begin(uint32_t place, const ContextPiece& piece) override;
  bool IsDone(uint32_t place) override { return places_[place].reads.IsDone(); }
  Result<void> Await(uint32_t place) override;
  void Cancel(uint32_t place) override { places_[place].reads.Cancel(); }

  SlotId RingSlot(uint32_t place, uint64_t i) const {
    return ring_[needs_.slot_class][place / cells_ * needs_.piece_blocks + i];
  }
  const LayerBytes& LayerOf(const ContextPiece& piece) const {
    return chain_.cache().shapes().layers()[piece.layer];
  }
  uint64_t CellOffset(uint32_t place) const { return place % cells_ * needs_.cell_bytes; }
  Piece Show(uint32_t place);
  std::unexpected<Error> NotThere(const ContextPiece& piece, const RecordReads::Failed& failed);

  const StreamNeeds needs_;
  const uint32_t cells_;  // of a slot of the ring
  const uint32_t rows_max_;
  const uint32_t query_heads_;
  RecordChain chain_;
  OwnedSlots ring_;
  MetadataCharge charge_;
  Reservation states_;
  StreamWrites writes_;
  std::deque<Place> places_;
  bool is_stuck_ = false;  // the store did not take what it was waited for
  bool is_deferred_ = false;
  bool ends_ = false;
  uint64_t awaited_ = 0;  // blocks that are to be durable before the next step
  uint64_t awaited_since_us_ = 0;
  const std::atomic<bool>* cancel_ = nullptr;  // of the call under way
  StreamedStats stats_;
  StreamedStats counted_;  // of these
  // Tables of the piece that is shown.
  std::array<uint64_t, 2> indptr_{};
  std::vector<uint32_t> sealed_slots_;  // [blocks], kNoSlot but for the piece
  std::vector<uint32_t> open_slots_;    // [blocks], kNoSlot
  ContextPiece shown_{};
  std::optional<ReadAhead> ahead_;  // ends before what it reads into
  std::optional<StreamRewrites> rewrites_{};
};

}  // namespace quire::cache

#endif  // QUIRE_CACHE_BELOW_SEQUENCE_STREAM_H_
