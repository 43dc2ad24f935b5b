// The shared memory of a block of threads that computes splits (cuda/kernels/splits-inl.h).
#ifndef QUIRE_CUDA_KERNELS_SPLIT_SHARED_INL_H_
#define QUIRE_CUDA_KERNELS_SPLIT_SHARED_INL_H_

#include <cstdint>
#include <limits>

#include "attention/scalar.h"
#include "base/bits.h"
#include "codec/planes.h"
#include "cuda/kernels/attend.h"
#include "cuda/kernels/simt.h"
#include "quire/attention_types.h"

namespace quire::cuda {

/// The largest score where there is none.
inline constexpr float kNothingSeen = -std::numeric_limits<float>::infinity();
inline constexpr uint32_t kGroups = kSplitTokens / attention::kGroupTokens;
inline constexpr uint32_t kColumns = kSplitTokens / codec::kTileLanes;

/// The memory that the threads of a block share. Rows of query vectors come last, so that a thread
/// with a token or channel reads the values of all of them at once.
template <uint32_t kQueries>
struct Shared {
  float score[kSplitTokens][kQueries];  // then weights
  uint32_t fixed_weight[kSplitTokens / 2][kQueries];
  float value_scale[kSplitTokens];
  float value_mid[kSplitTokens];
  uint32_t seen[kSplitTokens];  // bit q: query vector q sees the token
  uint32_t open[kSplitTokens];  // and reads it open
  float partial[kQueries][kPartials];
  float mid_partial[kQueries][kPartials];
  uint32_t largest[kGroups][kQueries][kPartials];
  float weight_unit[kGroups][kQueries];
  float max[kQueries];
  float mid_sum[kQueries];
  float query_unit[kQueries];
  float query_sum[kQueries];
  uint32_t group_seen[kGroups];  // bit q: some token of the group is sealed and seen
  // Then the rows of queries:
  //   float query[key.dim][kQueries], scaled
  //   uint32_t fixed_query[FixedWords(key.dim)][kQueries], two channels each
};

/// Channels of whole tiles of every codec, two to a word.
constexpr uint32_t FixedWords(uint32_t dim) { return RoundUp(dim, 32u) / 2; }

template <uint32_t kQueries>
constexpr uint32_t SharedBytes(uint32_t key_dim) {
  return static_cast<uint32_t>(sizeof(Shared<kQueries>)) +
         (key_dim + FixedWords(key_dim)) * kQueries * 4;
}

/// The row of query vector `q` of a tile.
QUIRE_KERNEL const QueryRow& RowOf(const SplitsArgs& args, const Tile& tile, uint32_t q) {
  return args.rows[tile.row_begin + q / tile.heads];
}

}  // namespace quire::cuda

#endif  // QUIRE_CUDA_KERNELS_SPLIT_SHARED_INL_H_
