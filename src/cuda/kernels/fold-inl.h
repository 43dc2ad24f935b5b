// The kernel that folds the states of splits into lanes and merges these (cuda/kernels/attend.h),
// in the order of docs/numerics.md section 2. A block of threads has one query vector, a thread
// some of its channels; what all channels share is computed by each.
#ifndef QUIRE_CUDA_KERNELS_FOLD_INL_H_
#define QUIRE_CUDA_KERNELS_FOLD_INL_H_

#include <algorithm>
#include <cstdint>

#include "attention/scalar.h"
#include "cuda/kernels/attend.h"
#include "cuda/kernels/rotate-inl.h"
#include "cuda/kernels/simt.h"
#include "cuda/kernels/split_shared-inl.h"

namespace quire::cuda {

/// Shared memory of a block: one row.
constexpr uint32_t FoldSharedBytes(uint32_t value_dim) { return value_dim * 4; }

/// One channel of a state.
struct ChannelState {
  float max = kNothingSeen;
  float sum = 0.0f;
  float out = 0.0f;
};

QUIRE_KERNEL ChannelState Merge(const ChannelState& a, const ChannelState& b) {
  if (a.max == kNothingSeen) return b;
  if (b.max == kNothingSeen) return a;
  const float max = std::max(a.max, b.max);
  const float ea = attention::Exp(a.max - max);
  const float eb = attention::Exp(b.max - max);
  return {max, Fma(a.sum, ea, b.sum * eb), Fma(a.out, ea, b.out * eb)};
}

template <class Thread>
class FoldKernel {
 public:
  QUIRE_KERNEL FoldKernel(Thread& self, const FoldArgs& args)
      : self_(self), args_(args), vector_(args.vectors[self.block()]) {}

  QUIRE_KERNEL void Run() {
    auto* const row = reinterpret_cast<float*>(self_.shared());
    const uint32_t dim = args_.value.dim;
    bool is_empty = true;
    ChannelState lanes[kLanes];
    for (uint32_t channel = self_.id(); channel < dim; channel += self_.count()) {
      for (uint32_t lane = 0; lane < kLanes; ++lane) lanes[lane] = FoldLane(lane, channel);
      if (vector_.out == nullptr) {
        LeaveChannel(lanes, channel);
        continue;
      }
      QUIRE_DEVICE_UNROLL
      for (uint32_t width = kLanes / 2; width > 0; width /= 2) {
        QUIRE_DEVICE_UNROLL
        for (uint32_t j = 0; j < width; ++j) lanes[j] = Merge(lanes[j], lanes[j + width]);
      }
      is_empty = lanes[0].max == kNothingSeen;
      row[channel] = is_empty ? 0.0f : lanes[0].out / lanes[0].sum;
    }
    self_.Sync();
    if (vector_.out == nullptr) {
      if (self_.id() == 0) LeaveSums(lanes);
      return;
    }
    if (args_.value.rotated) RotateShared(self_, row, dim);
    for (uint32_t channel = self_.id(); channel < dim; channel += self_.count()) {
      vector_.out[channel] = is_empty ? 0.0f : row[channel];
    }
  }

 private:
  QUIRE_KERNEL ChannelState FoldLane(uint32_t lane, uint32_t channel) const {
    ChannelState state;
    if ((vector_.from.lanes >> lane & 1u) != 0) {
      const uint64_t at = StateAt(vector_.from, lane);
      state = {vector_.from.max[at], vector_.from.sum[at],
               vector_.from.out[at * args_.value.dim + channel]};
    }
    for (const Segment& segment : vector_.segments) {
      uint64_t split = segment.split_begin + (lane - segment.split_begin) % kLanes;
      for (; split < segment.split_end; split += kLanes) {
        const uint64_t at = segment.states_begin + (split - segment.split_begin) * segment.stride;
        state = Merge(state, {args_.states.max[at], args_.states.sum[at],
                              args_.states.out[at * args_.value.dim + channel]});
      }
    }
    return state;
  }

  QUIRE_KERNEL uint64_t StateAt(const LaneStates& states, uint32_t lane) const {
    uint32_t below = 0;
    uint32_t count = 0;
    for (uint32_t l = 0; l < kLanes; ++l) {
      const uint32_t has = states.lanes >> l & 1u;
      count += has;
      below += l < lane ? has : 0;
    }
    return vector_.from_row * count + below;
  }

  QUIRE_KERNEL void LeaveChannel(const ChannelState (&lanes)[kLanes], uint32_t channel) const {
    for (uint32_t lane = 0; lane < kLanes; ++lane) {
      if ((vector_.to.lanes >> lane & 1u) == 0) continue;
      vector_.to.out[StateAt(vector_.to, lane) * args_.value.dim + channel] = lanes[lane].out;
    }
  }

  /// Every channel has the same ones. `to` may be `from`, so all threads have read that before.
  QUIRE_KERNEL void LeaveSums(const ChannelState (&lanes)[kLanes]) const {
    for (uint32_t lane = 0; lane < kLanes; ++lane) {
      if ((vector_.to.lanes >> lane & 1u) == 0) continue;
      const uint64_t at = StateAt(vector_.to, lane);
      vector_.to.max[at] = lanes[lane].max;
      vector_.to.sum[at] = lanes[lane].sum;
    }
  }

  Thread& self_;
  const FoldArgs& args_;
  const FoldVector& vector_;
};

}  // namespace quire::cuda

#endif  // QUIRE_CUDA_KERNELS_FOLD_INL_H_
