// The arguments of the attention kernels: plain structs for the host's compiler and a device's.
//
// Attention takes two launches. Splits: blocks of threads each compute some splits of a *tile* of
// query vectors and leave a softmax state for each. Fold: a block for every query vector folds its
// states into lanes, and merges these (docs/numerics.md section 2). Where a tile has at most one
// state for each lane, and nothing else is to be folded, the last block of the tile merges them
// instead (class mma16).
#ifndef QUIRE_CUDA_KERNELS_ATTEND_H_
#define QUIRE_CUDA_KERNELS_ATTEND_H_

#include <cstdint>

#include "cuda/kernels/equal.h"
#include "quire/attention_types.h"

namespace quire::cuda {

/// Threads of a block that computes splits.
inline constexpr uint32_t kAttendThreads = 128;
/// Most query vectors of a tile: for each, a thread holds a sum for some tokens or channels.
inline constexpr uint32_t kTileQueriesMax = 16;
/// Largest key.dim and value.dim.
inline constexpr uint32_t kDimMax = 512;

/// One row of queries.
struct QueryRow {
  const float* queries = nullptr;  // [query_heads, key.dim]
  float* out = nullptr;            // [query_heads, value.dim]; null: `to` is asked for
  uint64_t position = 0;
};

/// Softmax states that splits leave behind.
struct SplitStates {
  float* max = nullptr;  // [states]; -infinity: nothing was seen
  float* sum = nullptr;  // [states]
  float* out = nullptr;  // [states, value.dim], not divided; nothing was seen: not written

  friend bool operator==(const SplitStates&, const SplitStates&) = default;
};

/// Query vectors that a block of threads computes together: some rows of some query heads of one
/// KV head, all against the blocks of one sequence.
struct Tile {
  uint32_t row_begin = 0;
  uint32_t rows = 0;
  uint32_t head_begin = 0;  // of query heads
  uint32_t heads = 0;
  uint32_t sequence = 0;      // of the tables
  uint64_t position_min = 0;  // of its rows
  uint64_t position_max = 0;
  uint64_t split_begin = 0;
  uint64_t split_end = 0;
  // [splits, rows, heads] from here on. By lanes: a block of threads folds the splits of one lane,
  // so there are [kLanes, rows, heads], in the order of the first splits (class mma16).
  uint64_t states_begin = 0;
  bool by_lanes = false;
  bool merges = false;  // its last block merges the states and writes the outputs

  constexpr uint32_t queries() const { return rows * heads; }
  /// Of each query vector.
  constexpr uint64_t states() const {
    return by_lanes ? uint64_t{kLanes} : split_end - split_begin;
  }
  /// Of threads.
  constexpr uint32_t blocks(uint32_t splits_per_block) const {
    return by_lanes ? kLanes
                    : static_cast<uint32_t>((states() + splits_per_block - 1) / splits_per_block);
  }
};

/// What a block of threads computes: splits of one tile from `split` on, or those of its lane.
struct BlockWork {
  uint32_t tile = 0;
  uint64_t split = 0;
};

struct SplitsArgs {
  AttentionShape shape{};
  BlockTables tables{};
  const QueryRow* rows = nullptr;
  const Tile* tiles = nullptr;
  const BlockWork* work = nullptr;  // of every block of threads
  // Of each tile: blocks that have left their states. 0 before the launch, and after it.
  uint32_t* arrived = nullptr;
  uint32_t tile_count = 0;
  uint32_t splits_per_block = 1;
  SplitStates states{};

  friend bool operator==(const SplitsArgs&, const SplitsArgs&) = default;
};

struct SplitsLaunch {
  uint32_t blocks = 0;       // of threads
  uint32_t queries_max = 0;  // of a tile
};

/// States of consecutive splits of one query vector.
struct Segment {
  uint64_t split_begin = 0;
  uint64_t split_end = 0;
  uint64_t states_begin = 0;  // of its first split
  uint64_t stride = 0;        // from one split to the next
};

/// One query vector: the splits of its cascade, then its own.
struct FoldVector {
  Segment segments[2] = {};
  uint64_t from_row = 0;  // index of its states in `from` and `to`: row * query_heads + head
  LaneStates from{};
  LaneStates to{};
  float* out = nullptr;  // [value.dim]; null: `to` is asked for
};

struct FoldArgs {
  StreamLayout value{};
  const FoldVector* vectors = nullptr;  // a block each
  SplitStates states{};

  friend bool operator==(const FoldArgs&, const FoldArgs&) = default;
};

}  // namespace quire::cuda

#endif  // QUIRE_CUDA_KERNELS_ATTEND_H_
