// The folding of splits inside a block of threads (cuda/kernels/mma_attend.h), with the bits of
// cuda/kernels/fold-inl.h: a tile's running state is in shared memory, states that wait for their
// neighbour in the tree are in the device's. A thread reads only what it has written.
#ifndef QUIRE_CUDA_KERNELS_MMA_FOLD_INL_H_
#define QUIRE_CUDA_KERNELS_MMA_FOLD_INL_H_

#include <cstdint>

#include "cuda/kernels/merge-inl.h"
#include "cuda/kernels/mma_attend.h"
#include "cuda/kernels/output-inl.h"
#include "cuda/kernels/warp-inl.h"

namespace quire::cuda {

/// Leaves of the tree of lanes in its order: bits reversed.
constexpr uint32_t LaneOfLeaf(uint32_t leaf) {
  return (leaf & 1u) << 3 | (leaf & 2u) << 1 | (leaf & 4u) >> 1 | (leaf & 8u) >> 3;
}

template <class Thread>
class MmaFold {
 public:
  /// Query vectors of a lane, and its sums: [channel / 8][query vector][channel % 2].
  static constexpr uint32_t kQueries = 2;
  static constexpr uint32_t kSums = kMmaChannels / 2;

  QUIRE_KERNEL MmaFold(Thread& self, const MmaArgs& mma)
      : warp_(self),
        args_(mma.splits),
        value_(mma.splits.shape.value),
        running_(reinterpret_cast<Four*>(self.shared() + mma.shared.folded_at)),
        waiting_(reinterpret_cast<Four*>(mma.waiting) +
                 uint64_t{self.block()} * kFoldLevels * kFours * kThreads),
        row_(reinterpret_cast<float*>(self.shared() + mma.shared.rows_at) +
             uint64_t{warp_.number()} * mma.shared.row_floats) {}

  /// The running state is empty.
  QUIRE_KERNEL void Clear() {
    warp_.Lanes([&](uint32_t lane) {
      At(running_, lane, kEnd) = {{kNothingSeen, kNothingSeen, 0.0f, 0.0f}};
    });
  }

  /// The running state takes in a split.
  QUIRE_KERNEL void Add(const Fragment<float, kQueries>& max, const Fragment<float, kQueries>& sum,
                        const Fragment<float, kSums>& out) {
    warp_.Lanes([&](uint32_t lane) {
      Joint joints[kQueries];
      JoinEnds(At(running_, lane, kEnd), {{max(lane, 0), max(lane, 1), sum(lane, 0), sum(lane, 1)}},
               At(running_, lane, kEnd), joints);
      const bool both = joints[0].has_both() && joints[1].has_both();
      QUIRE_DEVICE_UNROLL
      for (uint32_t n = 0; n < kEnd; ++n) {
        if (n * 8 >= value_.dim) continue;
        Four& mine = At(running_, lane, n);
        const Four now = {
            {out(lane, n * 4), out(lane, n * 4 + 1), out(lane, n * 4 + 2), out(lane, n * 4 + 3)}};
        mine = both ? Both(mine, now, joints) : Either(mine, now, joints);
      }
    });
  }

  /// The running state is that of leaf `leaf`: it joins those that wait for it, or waits.
  QUIRE_KERNEL void Join(uint32_t leaf) {
    uint32_t level = 0;
    for (uint32_t left = leaf; left % 2 != 0; left /= 2) JoinWaiting(level++);
    if (leaf + 1 == kLanes) return;
    warp_.Lanes([&](uint32_t lane) {
      for (uint32_t n = 0; n < kFours; ++n) {
        if (n < kEnd && n * 8 >= value_.dim) continue;
        At(Level(level), lane, n) = At(running_, lane, n);
      }
    });
  }

  /// Outputs of the tile from the running state, which is the tree's.
  QUIRE_KERNEL void Finish(const Tile& tile) {
    QUIRE_DEVICE_UNROLL
    for (uint32_t r = 0; r < kQueries; ++r) {
      QUIRE_DEVICE_UNROLL_BY(1)
      for (uint32_t row = 0; row < kMmaQueriesMax / kQueries; ++row) {
        const uint32_t q = warp_.number() * kMmaQueriesMax + r * (kMmaQueriesMax / kQueries) + row;
        if (q >= tile.queries()) return;
        warp_.Lanes([&](uint32_t lane) {
          if (lane / 4 != row) return;
          const Four end = At(running_, lane, kEnd);
          const bool empty = end.value[r] == kNothingSeen;
          const float sum = end.value[kQueries + r];
          for (uint32_t n = 0; n * 8 < value_.dim; ++n) {
            const Four sums = At(running_, lane, n);
            float* const to = row_ + n * 8 + lane % 4 * 2;
            to[0] = empty ? 0.0f : sums.value[r * 2] / sum;
            to[1] = empty ? 0.0f : sums.value[r * 2 + 1] / sum;
          }
        });
        WriteOutput(warp_, args_, tile, q, row_);
      }
    }
  }

 private:
  /// Sums of eight channels, or what the state ends with: maxima, then sums of weights.
  struct alignas(16) Four {
    float value[4];
  };
  static constexpr uint32_t kThreads = kMmaWarps * kWarpLanes;
  static constexpr uint32_t kEnd = kSums / 4;
  static constexpr uint32_t kFours = kEnd + 1;
  static_assert(kFours * 4 == kFoldFloats);

  QUIRE_KERNEL Four& At(Four* state, uint32_t lane, uint32_t n) const {
    return state[n * kThreads + warp_.number() * kWarpLanes + lane];
  }
  QUIRE_KERNEL Four* Level(uint32_t level) const {
    return waiting_ + uint64_t{level} * kFours * kThreads;
  }

  /// What two states end with becomes what one does. `to` may be one of them.
  QUIRE_KERNEL static void JoinEnds(const Four& a, const Four& b, Four& to,
                                    Joint (&joints)[kQueries]) {
    Four end;
    QUIRE_DEVICE_UNROLL
    for (uint32_t r = 0; r < kQueries; ++r) {
      joints[r] = JointOf(a.value[r], a.value[kQueries + r], b.value[r], b.value[kQueries + r]);
      end.value[r] = joints[r].max;
      end.value[kQueries + r] = joints[r].sum;
    }
    to = end;
  }

  /// Sums of two states as those of one, of query vectors that both have.
  QUIRE_KERNEL static Four Both(const Four& a, const Four& b, const Joint (&joints)[kQueries]) {
    Four to;
    QUIRE_DEVICE_UNROLL
    for (uint32_t i = 0; i < 4; ++i) to.value[i] = joints[i / 2].SumOfBoth(a.value[i], b.value[i]);
    return to;
  }
  QUIRE_KERNEL static Four Either(const Four& a, const Four& b, const Joint (&joints)[kQueries]) {
    Four to;
    QUIRE_DEVICE_UNROLL
    for (uint32_t i = 0; i < 4; ++i) to.value[i] = joints[i / 2].SumOf(a.value[i], b.value[i]);
    return to;
  }

  /// running = Merge(waiting, running).
  QUIRE_KERNEL void JoinWaiting(uint32_t level) {
    Four* const before = Level(level);
    warp_.Lanes([&](uint32_t lane) {
      Joint joints[kQueries];
      Four& end = At(running_, lane, kEnd);
      JoinEnds(At(before, lane, kEnd), end, end, joints);
      for (uint32_t n = 0; n * 8 < value_.dim; ++n) {
        Four& mine = At(running_, lane, n);
        mine = Either(At(before, lane, n), mine, joints);
      }
    });
  }

  const Warp<Thread> warp_;
  const SplitsArgs& args_;
  const StreamLayout& value_;
  Four* const running_;  // [kFours][threads]
  Four* const waiting_;  // [kFoldLevels][kFours][threads]
  float* const row_;     // [value.dim], of the warp
};

}  // namespace quire::cuda

#endif  // QUIRE_CUDA_KERNELS_MMA_FOLD_INL_H_
