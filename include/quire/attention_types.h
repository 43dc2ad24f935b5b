// The arguments of attention kernels, on a CPU and on devices alike: plain structs and constants,
// C++17 and no other headers, so that a compiler of device code can read them.
#ifndef QUIRE_ATTENTION_TYPES_H_
#define QUIRE_ATTENTION_TYPES_H_

#include <cstddef>
#include <cstdint>

namespace [[gnu::visibility("default")]] quire {

/// How a stored K or V value is encoded. The numbers are frozen: they are part of a block's
/// identity.
enum class Codec : uint8_t {
  kF32 = 1,
  kF16 = 2,
  kBf16 = 3,
  kFp8E4m3 = 4,
  kFp8E5m2 = 5,
  kInt8 = 6,
  kInt4 = 7,
  kNf4 = 8,
  kFp4 = 9,
  kQ25 = 10,  // below 3 bits, see docs/codecs.md
};

/// True for the codecs that store values as they are, so that the open and the sealed form of a
/// block are the same bytes.
constexpr bool IsIdentity(Codec codec) { return codec <= Codec::kBf16; }

/// Tokens per split and lanes of the canonical attention order (docs/numerics.md section 2).
inline constexpr uint32_t kSplitTokens = 256;
inline constexpr uint32_t kLanes = 16;

/// Which axis of a block's [token, dim] plane is contiguous in memory.
enum class InnerAxis : uint8_t {
  kToken = 1,  // [dim][token]: K, so that a vector of scores is a vector of tokens
  kDim = 2,    // [token][dim]: V
};

/// Where one stream of one layer lies inside a slot: [head][plane], plane as `inner` says; the
/// planes of codecs that encode are in docs/codecs.md.
struct StreamLayout {
  Codec codec = Codec::kF32;
  InnerAxis inner = InnerAxis::kDim;
  uint32_t heads = 0;
  uint32_t dim = 0;
  uint32_t block_tokens = 0;
  uint64_t offset_bytes = 0;       // of head 0 from the slot's first byte
  uint64_t head_stride_bytes = 0;  // from one head's plane to the next
  // Codecs that encode: per head block_tokens f16 scales, then as many f16 mids if it has them.
  uint64_t scale_offset_bytes = 0;
  uint64_t scale_head_stride_bytes = 0;
  bool rotated = false;  // rows passed the rotation of docs/codecs.md, in the open form too
};

/// The fields that all tasks of one call share.
struct AttentionShape {
  uint32_t query_heads = 0;  // a multiple of key.heads
  StreamLayout key{};
  StreamLayout value{};        // same heads and block_tokens as key; dim may differ
  StreamLayout open_key{};     // of the blocks that a row reads open; heads 0: as key
  StreamLayout open_value{};   // likewise
  uint32_t open_blocks = 0;    // whole blocks before its own that a row reads open too, or
                               // kOpenWherePresent
  float scale = 0.0f;          // multiplies q before the dot product
  uint32_t window_tokens = 0;  // 0: full attention
  uint32_t sink_tokens = 0;    // with a window: first tokens that stay visible
  // A logit of each query head that takes part in its softmax and has no value, as if it were the
  // score of one more token whose value is zero ([query_heads]; -infinity: the head has none).
  // Null: no head has one. In host memory that stays as long as calls and plans use the shape.
  const float* sink_logits = nullptr;
  // ALiBi: the slope of each query head, which is multiplied with the distance of a token (its
  // position less the row's: 0 or below) and added to its score ([query_heads]; memory likewise).
  // Null: none.
  const float* alibi_slopes = nullptr;
};

/// As open_blocks: every row reads open whatever has a slot in the open table, and what has none
/// sealed (a precision ladder). Within a split the blocks that are read open come last.
inline constexpr uint32_t kOpenWherePresent = UINT32_MAX;

/// In a block table: the block has no slot there, because a window has passed it or because it has
/// no bytes in this form.
inline constexpr uint32_t kNoSlot = UINT32_MAX;

/// Where the blocks of some sequences lie, by index (the CSR form of paged kernels): block b of
/// sequence s is in slot slots[indptr[s] + b], and slot i begins at base + i * slot_stride_bytes.
struct BlockTable {
  const std::byte* base = nullptr;  // of slot 0; never read through slots that are not listed
  uint64_t slot_stride_bytes = 0;
  uint32_t sequences = 0;
  const uint64_t* indptr = nullptr;  // [sequences + 1], from 0 on, not descending
  const uint32_t* slots = nullptr;   // [indptr[sequences]], kNoSlot: none

  constexpr uint64_t BlockCount(uint32_t sequence) const {
    return indptr[sequence + 1] - indptr[sequence];
  }
  /// The slots of one sequence.
  constexpr const uint32_t* Row(uint32_t sequence) const { return slots + indptr[sequence]; }
  /// First byte of a slot; null: kNoSlot.
  constexpr const std::byte* SlotAt(uint32_t slot) const {
    return slot == kNoSlot ? nullptr : base + slot * slot_stride_bytes;
  }
  /// First byte of a block; null: it has no slot.
  constexpr const std::byte* BlockAt(uint32_t sequence, uint64_t block) const {
    return SlotAt(Row(sequence)[block]);
  }
};

/// Both forms of the same sequences. A row reads its own block and `open_blocks` before it from
/// `open`, every earlier one from `sealed` (but see kOpenWherePresent); of codecs that store values
/// as they are, the two are the same table.
struct BlockTables {
  BlockTable sealed{};
  BlockTable open{};
};

/// Splits [begin, end) of a context (docs/numerics.md section 2).
struct SplitRange {
  uint64_t begin = 0;
  uint64_t end = UINT64_MAX;  // may lie behind the last one
};

/// A set of lanes: bit l is lane l.
using LaneSet = uint32_t;
inline constexpr LaneSet kAllLanes = (LaneSet{1} << kLanes) - 1;

constexpr uint32_t LaneCount(LaneSet lanes) {
  uint32_t count = 0;
  for (; lanes != 0; lanes &= lanes - 1) ++count;
  return count;
}

/// The running states of some lanes after the splits folded so far, for every query row and head.
/// The last axis has the lanes of the set in ascending order.
struct LaneStates {
  LaneSet lanes = 0;     // none: no states
  float* max = nullptr;  // [rows, query_heads, lanes] of scores; -infinity: nothing is folded yet
  float* sum = nullptr;  // [rows, query_heads, lanes] of weights; nothing folded: 0
  float* out = nullptr;  // [rows, query_heads, lanes, value.dim], not divided by `sum`; likewise

  /// Which of `max` and `sum`, and row of `out`, is that of a query row, head and lane of the set.
  constexpr uint64_t At(uint64_t row, uint32_t query_heads, uint32_t head, uint32_t lane) const {
    const LaneSet below = lanes & ((LaneSet{1} << lane) - 1);
    return (row * query_heads + head) * LaneCount(lanes) + LaneCount(below);
  }
};

/// One run of consecutive query rows of one sequence; row r stands at position first_position + r
/// and sees the tokens up to and including its own.
///
/// Whole attention leaves the last three fields as they are. Partial attention folds some splits
/// into some lanes and leaves their states in `to`; the call for the splits that follow takes
/// these as `from`. The last call has the states of all lanes, and the splits that are left or
/// none, and asks for `out`.
struct AttentionTask {
  const float* queries = nullptr;  // [rows, query_heads, key.dim]; no splits: may be null
  float* out = nullptr;            // [rows, query_heads, value.dim]; null: `to` is asked for
  uint32_t rows = 0;
  uint64_t first_position = 0;
  uint32_t sequence = 0;  // whose blocks: a row of the call's tables
  SplitRange splits{};    // each lane's in ascending order over the calls; not checked
  LaneStates from{};      // has the lanes of `to`, or for `out` all; none: nothing is folded yet
  LaneStates to{};        // may be the memory of `from` if that has the same lanes
};

}  // namespace quire

#endif  // QUIRE_ATTENTION_TYPES_H_
