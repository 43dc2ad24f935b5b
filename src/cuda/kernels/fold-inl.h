// The kernel that folds the states of splits into lanes and merges these (cuda/kernels/attend.h),
// in the order of docs/numerics.md section 2. A block of threads has one query vector: each of its
// warps two lanes of the order, a thread some channels of both.
#ifndef QUIRE_CUDA_KERNELS_FOLD_INL_H_
#define QUIRE_CUDA_KERNELS_FOLD_INL_H_

#include <cstdint>

#include "cuda/kernels/attend.h"
#include "cuda/kernels/merge-inl.h"
#include "cuda/kernels/rotate-inl.h"
#include "cuda/kernels/simt.h"
#include "cuda/kernels/split_shared-inl.h"
#include "cuda/kernels/warp-inl.h"

namespace quire::cuda {

/// Threads of a block: a warp for every two lanes of the order.
inline constexpr uint32_t kFoldThreads = kLanes / 2 * kWarpLanes;
/// Channels that a block has at a time, and a thread of them.
inline constexpr uint32_t kFoldChannels = 128;
inline constexpr uint32_t kFoldOfThread = kFoldChannels / kWarpLanes;

/// Shared memory of a block: states of a warp's channels, [kLanes / 2][kFoldChannels], its maximum
/// and sum, then one row.
constexpr uint32_t FoldSharedBytes(uint32_t value_dim) {
  return (kLanes / 2 * (kFoldChannels + 2) + value_dim) * 4;
}

/// Some channels of a state.
struct FoldState {
  float max = kNothingSeen;
  float sum = 0.0f;
  float out[kFoldOfThread] = {};
};

/// a = Merge(a, b).
QUIRE_KERNEL void MergeInto(FoldState& a, const FoldState& b) {
  const Joint joint = JointOf(a.max, a.sum, b.max, b.sum);
  a.max = joint.max;
  a.sum = joint.sum;
  QUIRE_DEVICE_UNROLL
  for (uint32_t i = 0; i < kFoldOfThread; ++i) a.out[i] = joint.SumOf(a.out[i], b.out[i]);
}

template <class Thread>
class FoldKernel {
 public:
  QUIRE_KERNEL FoldKernel(Thread& self, const FoldArgs& args)
      : self_(self),
        args_(args),
        vector_(args.vectors[self.block()]),
        dim_(args.value.dim),
        warp_(self.id() / kWarpLanes),
        passed_(reinterpret_cast<float*>(self.shared())),
        row_(passed_ + kLanes / 2 * (kFoldChannels + 2)) {}

  QUIRE_KERNEL void Run() {
    bool is_empty = true;
    for (uint32_t first = 0; first < dim_; first += kFoldChannels) {
      first_ = first + self_.id() % kWarpLanes;
      FoldState lanes[2];
      QUIRE_DEVICE_UNROLL
      for (uint32_t i = 0; i < 2; ++i) FoldLane(warp_ + i * (kLanes / 2), lanes[i]);
      if (vector_.out == nullptr) {
        self_.Sync();  // `to` may be `from`, so all threads have read that
        QUIRE_DEVICE_UNROLL
        for (uint32_t i = 0; i < 2; ++i) Leave(warp_ + i * (kLanes / 2), lanes[i]);
        continue;
      }
      MergeInto(lanes[0], lanes[1]);
      MergeWarps(lanes[0]);
      is_empty = lanes[0].max == kNothingSeen;  // of warp 0
      if (warp_ == 0) {
        ForChannels([&](uint32_t i, uint32_t channel) {
          row_[channel] = is_empty ? 0.0f : lanes[0].out[i] / lanes[0].sum;
        });
      }
      self_.Sync();
    }
    if (vector_.out == nullptr) return;
    if (args_.value.rotated) RotateShared(self_, row_, dim_);
    for (uint32_t channel = self_.id(); channel < dim_; channel += self_.count()) {
      vector_.out[channel] = row_[channel];
    }
  }

 private:
  /// f(number, channel) of a thread's channels.
  template <typename F>
  QUIRE_KERNEL void ForChannels(const F& f) const {
    QUIRE_DEVICE_UNROLL
    for (uint32_t i = 0; i < kFoldOfThread; ++i) {
      const uint32_t channel = first_ + i * kWarpLanes;
      if (channel < dim_) f(i, channel);
    }
  }

  QUIRE_KERNEL void Load(const float* max, const float* sum, const float* out, uint64_t at,
                         FoldState& state) const {
    state.max = max[at];
    state.sum = sum[at];
    ForChannels([&](uint32_t i, uint32_t channel) { state.out[i] = out[at * dim_ + channel]; });
  }

  QUIRE_KERNEL void FoldLane(uint32_t lane, FoldState& state) const {
    if ((vector_.from.lanes >> lane & 1u) != 0) {
      const LaneStates& from = vector_.from;
      Load(from.max, from.sum, from.out, StateAt(from, lane), state);
    }
    QUIRE_DEVICE_UNROLL_BY(1)
    for (uint32_t s = 0; s < 2; ++s) {
      const Segment& segment = vector_.segments[s];
      uint64_t split = segment.split_begin + (lane - segment.split_begin) % kLanes;
      QUIRE_DEVICE_UNROLL_BY(4)
      for (; split < segment.split_end; split += kLanes) {
        const uint64_t at = segment.states_begin + (split - segment.split_begin) * segment.stride;
        FoldState next;
        Load(args_.states.max, args_.states.sum, args_.states.out, at, next);
        MergeInto(state, next);
      }
    }
  }

  QUIRE_KERNEL uint64_t StateAt(const LaneStates& states, uint32_t lane) const {
    return vector_.from_row * LaneCount(states.lanes) +
           LaneCount(states.lanes & ((LaneSet{1} << lane) - 1));
  }

  QUIRE_KERNEL void Leave(uint32_t lane, const FoldState& state) const {
    const LaneStates& to = vector_.to;
    if ((to.lanes >> lane & 1u) == 0) return;
    const uint64_t at = StateAt(to, lane);
    ForChannels([&](uint32_t i, uint32_t channel) { to.out[at * dim_ + channel] = state.out[i]; });
    const bool is_last = first_ / kFoldChannels == (dim_ - 1) / kFoldChannels;
    if (!is_last || self_.id() % kWarpLanes != 0) return;
    to.max[at] = state.max;
    to.sum[at] = state.sum;
  }

  /// The rest of the tree: half of the warps pass what they have to the others, until it is warp
  /// 0's.
  QUIRE_KERNEL void MergeWarps(FoldState& mine) {
    const uint32_t lane = self_.id() % kWarpLanes;
    for (uint32_t width = kLanes / 4; width > 0; width /= 2) {
      if (warp_ >= width && warp_ < 2 * width) {
        float* const to = passed_ + warp_ * (kFoldChannels + 2);
        for (uint32_t i = 0; i < kFoldOfThread; ++i) to[i * kWarpLanes + lane] = mine.out[i];
        if (lane == 0) {
          to[kFoldChannels] = mine.max;
          to[kFoldChannels + 1] = mine.sum;
        }
      }
      self_.Sync();
      if (warp_ < width) {
        const float* const from = passed_ + (warp_ + width) * (kFoldChannels + 2);
        FoldState other{.max = from[kFoldChannels], .sum = from[kFoldChannels + 1]};
        for (uint32_t i = 0; i < kFoldOfThread; ++i) other.out[i] = from[i * kWarpLanes + lane];
        MergeInto(mine, other);
      }
    }
  }

  Thread& self_;
  const FoldArgs& args_;
  const FoldVector& vector_;
  const uint32_t dim_;
  const uint32_t warp_;
  float* const passed_;  // [kLanes / 2][kFoldChannels + 2]
  float* const row_;     // [dim_]
  uint32_t first_ = 0;   // of the thread's channels
};

}  // namespace quire::cuda

#endif  // QUIRE_CUDA_KERNELS_FOLD_INL_H_
