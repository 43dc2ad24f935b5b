// The folding of splits inside a block of threads (cuda/kernels/mma_attend.h), with the bits of
// cuda/kernels/fold-inl.h: a tile's running state is in shared memory, states that wait for their
// neighbour in the tree are in the device's. A thread reads only what it has written.
#ifndef QUIRE_CUDA_KERNELS_MMA_FOLD_INL_H_
#define QUIRE_CUDA_KERNELS_MMA_FOLD_INL_H_

#include <algorithm>
#include <cstdint>

#include "attention/scalar.h"
#include "cuda/kernels/mma_attend.h"
#include "cuda/kernels/rotate-inl.h"
#include "cuda/kernels/split_shared-inl.h"
#include "cuda/kernels/warp-inl.h"

namespace quire::cuda {

/// Leaves of the tree of lanes in its order: bits reversed.
constexpr uint32_t LaneOfLeaf(uint32_t leaf) {
  return (leaf & 1u) << 3 | (leaf & 2u) << 1 | (leaf & 4u) >> 1 | (leaf & 8u) >> 3;
}

template <class Thread>
class MmaFold {
 public:
  static constexpr uint32_t kQueries = kQueryTilesMax * 2;  // of a thread

  QUIRE_KERNEL MmaFold(const Warp<Thread>& warp, const MmaArgs& mma, const MmaShared& layout,
                       std::byte* shared, uint32_t block)
      : warp_(warp),
        value_(mma.splits.shape.value),
        running_(reinterpret_cast<float*>(shared + layout.folded_at)),
        waiting_(mma.waiting + uint64_t{block} * kFoldLevels * kFoldFloats * kThreads),
        row_(reinterpret_cast<float*>(shared + layout.rows_at) +
             uint64_t{warp.number()} * layout.row_floats) {}

  /// The running state is empty.
  QUIRE_KERNEL void Clear() {
    warp_.Lanes([&](uint32_t lane) {
      for (uint32_t r = 0; r < kQueries; ++r) {
        At(running_, lane, kMax + r) = kNothingSeen;
        At(running_, lane, kSum + r) = 0.0f;
      }
    });
  }

  /// The running state takes in a split.
  QUIRE_KERNEL void Add(const Fragment<float, kQueries>& max, const Fragment<float, kQueries>& sum,
                        const Fragment<float, kMmaChannels / 2>& out) {
    warp_.Lanes([&](uint32_t lane) {
      QUIRE_DEVICE_UNROLL
      for (uint32_t r = 0; r < kQueries; ++r) {
        Factors f;
        if (!Join(lane, r, At(running_, lane, kMax + r), At(running_, lane, kSum + r), max(lane, r),
                  sum(lane, r), &f)) {
          continue;
        }
        QUIRE_DEVICE_UNROLL
        for (uint32_t i = 0; i < kChannels; ++i) {
          if (i / 2 * kMmaStep >= value_.dim) continue;
          const uint32_t at = SumAt(r, i);
          float& mine = At(running_, lane, at);
          mine = f.only_second ? out(lane, at) : Fma(mine, f.first, out(lane, at) * f.second);
        }
      }
    });
  }

  /// The running state is that of leaf `leaf`: it joins those that wait for it, or waits.
  QUIRE_KERNEL void Join(uint32_t leaf) {
    uint32_t level = 0;
    for (uint32_t left = leaf; left % 2 != 0; left /= 2) JoinWaiting(level++);
    if (leaf + 1 == kLanes) return;
    warp_.Lanes([&](uint32_t lane) {
      for (uint32_t i = 0; i < kFoldFloats; ++i) {
        if (i < kMax && i / (kQueryTilesMax * 4) * kMmaStep >= value_.dim) continue;
        At(Level(level), lane, i) = At(running_, lane, i);
      }
    });
  }

  /// Outputs of the tile from the running state, which is the tree's.
  QUIRE_KERNEL void Finish(const Tile& tile, const QueryRow* rows) {
    for (uint32_t of_warp = 0; of_warp < kMmaQueriesMax; ++of_warp) {
      const uint32_t q = warp_.number() * kMmaQueriesMax + of_warp;
      if (q >= tile.queries()) return;
      warp_.Lanes([&](uint32_t lane) {
        if (lane % 4 != of_warp % kMmaColumns / 2) return;
        const uint32_t r = of_warp / kMmaColumns * 2 + of_warp % 2;
        const bool empty = At(running_, lane, kMax + r) == kNothingSeen;
        const float sum = At(running_, lane, kSum + r);
        for (uint32_t i = 0; i < kChannels; ++i) {
          const uint32_t channel = ChannelOf(lane, i);
          if (channel >= value_.dim) continue;
          row_[channel] = empty ? 0.0f : At(running_, lane, SumAt(r, i)) / sum;
        }
      });
      warp_.Sync();
      if (value_.rotated) RotateByWarp(warp_, row_, value_.dim);
      float* const out = rows[tile.row_begin + q / tile.heads].out +
                         uint64_t{tile.head_begin + q % tile.heads} * value_.dim;
      warp_.Lanes([&](uint32_t lane) {
        for (uint32_t d = lane; d < value_.dim; d += kWarpLanes) out[d] = row_[d];
      });
      warp_.Sync();
    }
  }

 private:
  static constexpr uint32_t kThreads = kMmaWarps * kWarpLanes;
  static constexpr uint32_t kChannels = kMmaChannels / 8;  // of each
  static constexpr uint32_t kMax = kQueries * kChannels;
  static constexpr uint32_t kSum = kMax + kQueries;
  static_assert(kSum + kQueries == kFoldFloats);

  /// Channel `i` of a thread's, for its query vector r; sums are [channel / 16][tile of r]
  /// [channel / 8 % 2][r % 2].
  QUIRE_KERNEL static uint32_t SumAt(uint32_t r, uint32_t i) {
    return (i / 2 * kQueryTilesMax + r / 2) * 4 + i % 2 * 2 + r % 2;
  }
  QUIRE_KERNEL static uint32_t ChannelOf(uint32_t lane, uint32_t i) { return i * 8 + lane / 4; }

  /// The factors of two states that become one.
  struct Factors {
    float first = 0.0f;
    float second = 0.0f;
    bool only_second = false;
  };

  QUIRE_KERNEL float& At(float* state, uint32_t lane, uint32_t i) const {
    return state[i * kThreads + warp_.number() * kWarpLanes + lane];
  }
  QUIRE_KERNEL float* Level(uint32_t level) const {
    return waiting_ + uint64_t{level} * kFoldFloats * kThreads;
  }

  /// Maximum and sum of (a, b) become the running state's. False: there is nothing in b.
  QUIRE_KERNEL bool Join(uint32_t lane, uint32_t r, float a_max, float a_sum, float b_max,
                         float b_sum, Factors* f) {
    if (b_max == kNothingSeen) return false;
    float max = b_max;
    float sum = b_sum;
    f->only_second = a_max == kNothingSeen;
    if (!f->only_second) {
      max = std::max(a_max, b_max);
      f->first = attention::Exp(a_max - max);
      f->second = attention::Exp(b_max - max);
      sum = Fma(a_sum, f->first, b_sum * f->second);
    }
    At(running_, lane, kMax + r) = max;
    At(running_, lane, kSum + r) = sum;
    return true;
  }

  /// running = Merge(waiting, running).
  QUIRE_KERNEL void JoinWaiting(uint32_t level) {
    float* const before = Level(level);
    warp_.Lanes([&](uint32_t lane) {
      for (uint32_t r = 0; r < kQueries; ++r) {
        const float a_max = At(before, lane, kMax + r);
        const float a_sum = At(before, lane, kSum + r);
        if (a_max == kNothingSeen) continue;
        Factors f;
        const bool both = Join(lane, r, a_max, a_sum, At(running_, lane, kMax + r),
                               At(running_, lane, kSum + r), &f);
        if (!both) {
          At(running_, lane, kMax + r) = a_max;
          At(running_, lane, kSum + r) = a_sum;
        }
        for (uint32_t i = 0; i < kChannels; ++i) {
          if (i / 2 * kMmaStep >= value_.dim) continue;
          const float first = At(before, lane, SumAt(r, i));
          float& mine = At(running_, lane, SumAt(r, i));
          mine = both ? Fma(first, f.first, mine * f.second) : first;
        }
      }
    });
  }

  const Warp<Thread>& warp_;
  const StreamLayout& value_;
  float* const running_;  // [kFoldFloats][threads]
  float* const waiting_;  // [kFoldLevels][kFoldFloats][threads]
  float* const row_;      // [value.dim], of the warp
};

}  // namespace quire::cuda

#endif  // QUIRE_CUDA_KERNELS_MMA_FOLD_INL_H_
