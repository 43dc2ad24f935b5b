// The interface between the backend (what to compute, in which order) and the kernels of one
// instruction set (how). Everything here is plain data; kernels.cc compiles the bodies once per
// target.
#ifndef QUIRE_ATTENTION_KERNELS_H_
#define QUIRE_ATTENTION_KERNELS_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "attention/scalar.h"
#include "base/bits.h"
#include "quire/attention.h"
#include "quire/identity.h"

namespace quire::attention {

/// Tokens per column, the unit kernels read K and V in: one block of the smallest size, and one
/// value of each of the sixteen partial sums.
inline constexpr uint32_t kColumnTokens = 16;
inline constexpr uint32_t kColumnsPerSplit = kSplitTokens / kColumnTokens;
inline constexpr uint32_t kColumnsPerGroup = kGroupTokens / kColumnTokens;
/// Channels per panel of expanded V; state rows are padded to it.
inline constexpr uint32_t kPanelDims = 16;
/// Query vectors (rows times heads of a group) an item of several rows aims at: large enough to
/// hide the expansion of K and V (with 64 it took 15 % of the time), small enough for the
/// second-level cache, and whole register tiles.
inline constexpr uint32_t kTileQueries = 120;
/// Largest key.dim and value.dim of the kernels.
inline constexpr uint32_t kDimMax = 512;
/// Most query heads of one KV head: what an item needs for each of them fits 32 bits.
inline constexpr uint32_t kQueryHeadsPerHeadMax = 1 << 16;
/// Partial states on the stack of the lane tree: one per level and one being folded.
inline constexpr uint32_t kTreeLevels = 5;

/// Softmax states of the query vectors of an item. max is -infinity where nothing was seen yet; sum
/// and out are meaningless then.
struct States {
  float* max = nullptr;  // [PaddedQueries]
  float* sum = nullptr;  // [PaddedQueries]
  float* out = nullptr;  // [queries, out_stride]
};

/// Query vectors of a KV head up to which the first step of a cascade streams: reading K and V
/// where they lie still costs more than the arithmetic.
inline constexpr uint32_t kStreamQueries = 8;

/// Whether `rows` rows that see the same tokens are computed straight from their blocks; otherwise
/// K and V of a split are widened first. Kernels stream only K that is token-contiguous.
constexpr bool Streams(const AttentionShape& shape, uint32_t rows) {
  const uint32_t group = shape.query_heads / shape.key.heads;
  return (rows == 1 || rows * group <= kStreamQueries) && shape.key.inner == InnerAxis::kToken;
}

/// The lanes first_lane, first_lane + lane_step, ...: a subtree of the lane tree.
constexpr LaneSet SubtreeLanes(uint32_t first_lane, uint32_t lane_step) {
  LaneSet lanes = 0;
  for (uint32_t lane = first_lane; lane < kLanes; lane += lane_step) lanes |= LaneSet{1} << lane;
  return lanes;
}

/// Work of one worker at a time: the query vectors of rows [row_begin, row_begin + rows) and of KV
/// heads [head_begin, head_begin + heads), against some splits of the lanes of a subtree. It goes
/// on from the states in `from`, and leaves those of its lanes in `to`, or, where that is null, the
/// one state that they merge to. Several rows and several heads only where they stream.
///
/// Sequences that share their first splits are a cascade: items with `sequences` compute the shared
/// splits once. Their rows are the single rows of these, their task has the blocks of the first of
/// them and stands behind the last shared token. Items of one sequence each go on from there.
struct Item {
  const AttentionShape* shape = nullptr;
  const AttentionTask* task = nullptr;
  const BlockTables* tables = nullptr;
  uint32_t head_begin = 0;
  uint32_t heads = 1;
  uint32_t row_begin = 0;
  uint32_t rows = 0;
  SplitRange splits{};  // none behind the task's last
  uint32_t first_lane = 0;
  uint32_t lane_step = 1;  // a power of two; also the number of subtrees of this tile and head
  LaneSet lanes = 0;       // those of the subtree that are wanted; without `to` all of them
  uint32_t tile = 0;       // when lane_step > 1 and without `to`: which counter the subtrees share
  uint64_t subtrees_begin = 0;       // likewise: index of the first subtree's states
  const LaneStates* from = nullptr;  // null: nothing is folded yet
  const LaneStates* to = nullptr;
  uint64_t states_row = 0;                          // of `from` and `to`: that of row row_begin
  const AttentionTask* const* sequences = nullptr;  // [rows of the task]

  bool streams() const { return (rows == 1 || sequences != nullptr) && Streams(*shape, rows); }
  bool has_splits() const { return splits.begin < splits.end; }

  uint32_t group() const { return shape->query_heads / shape->key.heads; }
  /// Query vectors of one row; they are neighbours in queries and out.
  uint32_t queries_per_row() const { return heads * group(); }
  uint32_t queries() const { return rows * queries_per_row(); }
};

/// Memory of one worker, sized by the backend for the largest item of the call.
struct Scratch {
  float* query = nullptr;    // [queries, key.dim] scaled
  float* scores = nullptr;   // [queries, kSplitTokens]
  float* key = nullptr;      // [kColumnsPerSplit, key.dim, kColumnTokens] expanded, prefill only
  float* value = nullptr;    // [value panels, kSplitTokens, kPanelDims] expanded, prefill only
  float* factors = nullptr;  // [2, PaddedQueries] of a merge
  // Where codes are integers (scalar.h):
  int16_t* fixed_query = nullptr;    // [queries, FixedStride], of several together
  int16_t* fixed_weights = nullptr;  // [queries, kSplitTokens]
  float* query_units = nullptr;      // [PaddedQueries]
  float* weight_units = nullptr;     // [queries, kSplitTokens / kGroupTokens]
  // Compensates the bias of codes (integer-inl.h).
  int32_t* query_bias_terms = nullptr;   // [PaddedQueries]
  int32_t* weight_bias_terms = nullptr;  // [queries, kSplitTokens / kGroupTokens]
  // Expanded, prefill only; as pairs of numbers, or as bytes, which take half of it.
  int16_t* key_pairs = nullptr;    // [kColumnsPerSplit, KeyPairsStride]
  int16_t* value_pairs = nullptr;  // [value panels, kValuePairsStride]
  float* query_sum = nullptr;      // [PaddedQueries] over the channels of a scaled query
  float* mid_sum = nullptr;        // [PaddedQueries] over e * mid of a split
  States split;
  States stack[kTreeLevels];
};

struct Kernels {
  /// As AttentionBackend::target().
  const char* target;
  /// Computes the states of an item. Without `to` they lie in the returned ones, which are part of
  /// the scratch.
  States (*run)(const Item& item, const Scratch& scratch);
  /// a = Merge(a, b) for every query vector; b is unchanged.
  void (*merge)(const Item& item, const Scratch& scratch, const States& a, const States& b);
  /// Merges the heads' sinks into the states, if there are any, divides and writes the item's rows
  /// of task->out: zeros where nothing was seen.
  void (*finish)(const Item& item, const Scratch& scratch, const States& states);
};

/// Floats from one query's `out` row to the next.
constexpr uint32_t OutStride(uint32_t value_dim) { return RoundUp(value_dim, kPanelDims); }

/// Numbers from one fixed-point query to the next: the channels of whole tiles of every codec, and
/// of whole matrix tiles.
constexpr uint32_t FixedStride(uint32_t key_dim) { return RoundUp(key_dim, 64); }

/// Numbers of an expanded column of K: [pair of channels, kColumnTokens, 2].
constexpr uint32_t KeyPairsStride(uint32_t key_dim) { return FixedStride(key_dim) * kColumnTokens; }
/// Numbers of an expanded panel of V: [pair of tokens, kPanelDims, 2].
inline constexpr uint32_t kValuePairsStride = kSplitTokens * kPanelDims;

/// Length of arrays with one value a query: whole vectors of every target.
constexpr uint32_t PaddedQueries(uint32_t queries) { return RoundUp(queries, kColumnTokens); }

/// Kernels of the best target of this machine among those Highway may use; null without FMA.
/// `amx`: with matrix tiles where there are some.
const Kernels* BestKernels(bool amx = true);

/// The backend that computes with these kernels.
std::unique_ptr<AttentionBackend> MakeAttention(const Kernels& kernels);

}  // namespace quire::attention

#endif  // QUIRE_ATTENTION_KERNELS_H_
