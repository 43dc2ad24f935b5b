// A decoded sequence as the attention benches read it: heads of Qwen3-0.6B, random codes.
#ifndef QUIRE_BENCH_SEQUENCE_H_
#define QUIRE_BENCH_SEQUENCE_H_

#include <cmath>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "bench/roofline.h"
#include "codec/slot_layout.h"
#include "env/reservation.h"
#include "quire/attention.h"

namespace quire::bench {

inline constexpr uint32_t kModelLayers = 28;
inline constexpr uint32_t kKvHeads = 8;
inline constexpr uint32_t kHeadDim = 128;
/// Query heads to a KV head.
inline constexpr uint32_t kGroup = 2;

/// Random query vectors of `rows` rows.
std::vector<float> Queries(uint32_t rows, uint32_t group);

/// KV heads, each with its query heads.
struct Heads {
  uint32_t first = 0;
  uint32_t count = kKvHeads;
};

/// One sequence of `layers` layers in block-major slots, every page touched.
class DecodedSequence {
 public:
  static Result<std::unique_ptr<DecodedSequence>> Create(Codec codec, uint32_t tokens,
                                                         uint32_t layers) {
    QUIRE_ASSIGN(auto layout, codec::SlotLayout::Create(
                                  Geometry::Uniform(layers, kKvHeads, kHeadDim),
                                  NumericProfile::Uniform(codec), ArenaLayout::kBlockMajor));
    auto sequence = std::unique_ptr<DecodedSequence>(new DecodedSequence(std::move(layout)));
    const uint32_t blocks = tokens / sequence->layout_.block_tokens();
    const uint64_t slot_bytes = sequence->layout_.slot_bytes(0);
    QUIRE_ASSIGN(Reservation arena,
                 Reservation::CreateCommitted(*sequence->memory_, blocks * slot_bytes));
    sequence->arena_.emplace(std::move(arena));
    for (uint32_t b = 0; b < blocks; ++b) sequence->slots_.push_back(b);
    sequence->Fill();
    return sequence;
  }

  uint64_t bytes() const { return arena_->bytes(); }
  uint32_t layers() const { return layout_.layer_count(); }
  /// The caller's `indptr` and `slots` over this sequence's blocks, of which number b is in slot b.
  BlockTables Tables(std::span<const uint64_t> indptr, const uint32_t* slots) const {
    const BlockTable table = {.base = arena_->base(),
                              .slot_stride_bytes = layout_.slot_bytes(0),
                              .sequences = static_cast<uint32_t>(indptr.size() - 1),
                              .indptr = indptr.data(),
                              .slots = slots};
    return {.sealed = table, .open = table};
  }
  uint64_t blocks() const { return slots_.size(); }
  uint32_t block_tokens() const { return layout_.block_tokens(); }

  /// The bytes of one layer, block by block: piece `piece` of `pieces` of its blocks.
  Runs LayerRuns(uint32_t layer, uint32_t piece, uint32_t pieces) const {
    const uint64_t bytes = layout_.slot_bytes(0) / layers();
    const uint64_t begin = slots_.size() * piece / pieces;
    const uint64_t end = slots_.size() * (piece + 1) / pieces;
    Runs runs;
    runs.reserve(end - begin);
    for (uint64_t i = begin; i < end; ++i)
      runs.emplace_back(arena_->base() + i * layout_.slot_bytes(0) + layer * bytes, bytes);
    return runs;
  }

  /// Every block is read sealed, a row's own too: it is one of thousands.
  AttentionShape Shape(uint32_t layer, uint32_t group, const Heads& heads = {}) const {
    AttentionShape shape = {.query_heads = heads.count * group,
                            .key = layout_.key(layer),
                            .value = layout_.value(layer),
                            .scale = static_cast<float>(1.0 / std::sqrt(double{kHeadDim}))};
    for (StreamLayout* stream : {&shape.key, &shape.value}) {
      stream->heads = heads.count;
      stream->offset_bytes += heads.first * stream->head_stride_bytes;
      stream->scale_offset_bytes += heads.first * stream->scale_head_stride_bytes;
    }
    return shape;
  }

  /// The blocks as so many sequences, each of as many blocks. Valid until the next call.
  BlockTables Pieces(uint32_t pieces) {
    indptr_.clear();
    for (uint64_t piece = 0; piece <= pieces; ++piece)
      indptr_.push_back(slots_.size() * piece / pieces);
    return Tables(indptr_, slots_.data());
  }

  /// The last `rows` positions of piece `piece` of Pieces(pieces).
  AttentionTask Task(uint32_t rows, const float* queries, float* out, uint32_t piece = 0,
                     uint32_t pieces = 1) const {
    const uint64_t begin = slots_.size() * piece / pieces;
    const uint64_t end = slots_.size() * (piece + 1) / pieces;
    return {.queries = queries,
            .out = out,
            .rows = rows,
            .first_position = (end - begin) * block_tokens() - rows,
            .sequence = piece};
  }

 private:
  explicit DecodedSequence(codec::SlotLayout layout)
      : layout_(std::move(layout)), memory_(MakeHostMemory(true)) {}

  /// Random codes and ordinary scales, drawn once and repeated: only that no value is NaN, infinite
  /// or denormal matters.
  void Fill();

  codec::SlotLayout layout_;
  std::unique_ptr<DeviceMemory> memory_;
  std::optional<Reservation> arena_;
  std::vector<uint32_t> slots_;   // [blocks]
  std::vector<uint64_t> indptr_;  // of Pieces
};

}  // namespace quire::bench

#endif  // QUIRE_BENCH_SEQUENCE_H_
