// A sequence of a whole text, of which the cache of this rank holds the share.
#ifndef QUIRE_RANKS_SEQUENCE_SHARE_SEQUENCE_H_
#define QUIRE_RANKS_SEQUENCE_SHARE_SEQUENCE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "quire/sequence.h"
#include "ranks/sequence/lane_share.h"
#include "ranks/sequence/share_text.h"

namespace quire::ranks::sequence {

/// Lengths, cursors and positions are those of the text. Rows of tokens that are not in the share
/// are dropped; Blocks shows them without slots. What needs all bytes of a text is kUnsupported:
/// Select, Gather, Padded and View; and Retain, whose ranges are of the text.
///
/// Threads:  as Sequence
/// Lifetime: as that of `inner`
class ShareSequence final : public Sequence {
 public:
  /// `inner` has the share of `text`; `is_cut_anywhere`: its codecs store values as they are.
  ShareSequence(std::unique_ptr<Sequence> inner, const LaneShare& share, ShareText text,
                uint32_t layers, bool is_cut_anywhere);

  SequenceId id() const override { return inner_->id(); }
  uint64_t length() const override { return length_.load(std::memory_order_acquire); }
  uint64_t cursor(uint32_t layer) const override { return cursors_[layer]; }
  SequenceStats stats() const override;
  Result<void> Reserve(uint64_t tokens) override;
  Result<void> Append(uint32_t layer, const LayerRows& rows) override;
  Result<void> Commit(std::span<const TokenId> tokens) override;
  /// Errors: as Sequence, and the same on every rank for positions inside a block that is encoded
  Result<void> Rollback(uint64_t position) override;
  Result<std::unique_ptr<Sequence>> Fork() override;
  Result<std::unique_ptr<Sequence>> Select(std::span<const uint64_t> kept_blocks) override;
  uint64_t dropped_tokens() const override { return 0; }
  Result<void> Retain(const Retention& retention) override;
  void Reset() override;
  Result<void> Gather(uint32_t layer, StreamRole role, uint64_t begin, uint64_t end,
                      std::span<float> out) const override;
  Result<PaddedRow> Padded(uint32_t layer, StreamRole role, uint64_t tokens_max) const override;
  Result<BlockListView> View(uint32_t layer, StreamRole role, TokenRange range) const override;
  LayerStreams Streams(uint32_t layer) const override { return inner_->Streams(layer); }
  LayerBlocks Blocks(uint32_t layer) const override;

 private:
  const std::unique_ptr<Sequence> inner_;
  const LaneShare share_;
  ShareText text_;
  const bool is_cut_anywhere_;
  std::vector<uint64_t> cursors_;  // [layers]
  std::atomic<uint64_t> length_;
};

}  // namespace quire::ranks::sequence

#endif  // QUIRE_RANKS_SEQUENCE_SHARE_SEQUENCE_H_
