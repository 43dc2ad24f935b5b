// The merge of a tile's states by the last of its blocks that leave states (cuda/kernels/
// mma_attend.h), with the bits of cuda/kernels/fold-inl.h. A query vector has at most one state
// for each lane of the order, so all that is left of docs/numerics.md section 2 is the tree. A warp
// has one query vector at a time: its lanes first have a state each, for the factors of their sums,
// then four channels of all states.
#ifndef QUIRE_CUDA_KERNELS_MMA_TILE_MERGE_INL_H_
#define QUIRE_CUDA_KERNELS_MMA_TILE_MERGE_INL_H_

#include <cstdint>

#include "cuda/kernels/merge-inl.h"
#include "cuda/kernels/mma_attend.h"
#include "cuda/kernels/output-inl.h"
#include "cuda/kernels/warp-inl.h"

namespace quire::cuda {

template <class Thread>
class MmaTileMerge {
 public:
  /// Floats of shared memory for each warp: a row, then factors.
  static constexpr uint32_t kSharedFloats = kMmaChannels + 2 * kLanes;

  QUIRE_KERNEL MmaTileMerge(Thread& self, const SplitsArgs& args, const Tile& tile, float* shared)
      : warp_(self),
        args_(args),
        tile_(tile),
        dim_(args.shape.value.dim),
        row_(shared + uint64_t{warp_.number()} * kSharedFloats),
        factors_(row_ + kMmaChannels) {}

  QUIRE_KERNEL void Run() {
    QUIRE_DEVICE_UNROLL_BY(1)
    for (uint32_t q = warp_.number(); q < tile_.queries(); q += kMmaWarps) {
      LoadSums(q);
      const Ends ends = MergeEnds(q);
      MergeSums<kLanes / 2>();
      Finish(ends);
      WriteOutput(warp_, args_, tile_, q, row_);
    }
  }

 private:
  /// A state's maximum and sum of weights.
  using Ends = Fragment<float, 2>;
  static constexpr uint32_t kOfLane = kMmaChannels / kWarpLanes;
  /// Channels of a lane.
  struct alignas(16) Four {
    float value[kOfLane];
  };
  /// Of a side that has seen nothing.
  static constexpr float kNoFactor = -1.0f;

  /// Factors of the states that are merged with those `width` lanes further: [2 * width].
  QUIRE_KERNEL float* FactorsOf(uint32_t width) const { return factors_ + 2 * (width - 1); }

  /// Which of the tile's states is that of a lane of the order; too large: none is.
  QUIRE_KERNEL uint32_t StateOf(uint32_t lane) const {
    return (lane - static_cast<uint32_t>(tile_.split_begin)) % kLanes;
  }
  QUIRE_KERNEL uint64_t StateAt(uint32_t state, uint32_t q) const {
    return tile_.states_begin + uint64_t{state} * tile_.queries() + q;
  }

  /// All are asked for at once. What lies in a state that has seen nothing is not used.
  QUIRE_KERNEL void LoadSums(uint32_t q) {
    warp_.Lanes([&](uint32_t lane) {
      QUIRE_DEVICE_UNROLL
      for (uint32_t j = 0; j < kLanes; ++j) {
        const uint32_t state = StateOf(j);
        Four sums = {};
        if (state < tile_.states() && lane * kOfLane < dim_) {
          const float* const from = args_.states.out + StateAt(state, q) * dim_;
          sums = *reinterpret_cast<const Four*>(from + lane * kOfLane);
        }
        QUIRE_DEVICE_UNROLL
        for (uint32_t i = 0; i < kOfLane; ++i) sums_(lane, j * kOfLane + i) = sums.value[i];
      }
    });
  }

  /// Ends of the merged state, which every lane has, and the factors on the way to it.
  QUIRE_KERNEL Ends MergeEnds(uint32_t q) {
    Ends ends;
    warp_.Lanes([&](uint32_t lane) {
      const uint32_t state = StateOf(lane % kLanes);
      const bool is_there = state < tile_.states();
      ends(lane, 0) = is_there ? args_.states.max[StateAt(state, q)] : kNothingSeen;
      ends(lane, 1) = is_there ? args_.states.sum[StateAt(state, q)] : 0.0f;
    });
    QUIRE_DEVICE_UNROLL
    for (uint32_t width = kLanes / 2; width > 0; width /= 2) {
      const Ends others = warp_.Exchanged(ends, width);
      warp_.Lanes([&](uint32_t lane) {
        const bool is_second = (lane & width) != 0;
        const float first_max = is_second ? others(lane, 0) : ends(lane, 0);
        const float second_max = is_second ? ends(lane, 0) : others(lane, 0);
        const float first_sum = is_second ? others(lane, 1) : ends(lane, 1);
        const float second_sum = is_second ? ends(lane, 1) : others(lane, 1);
        const Joint joint = JointOf(first_max, first_sum, second_max, second_sum);
        ends(lane, 0) = joint.max;
        ends(lane, 1) = joint.sum;
        const float first = joint.has_first ? joint.of_first : kNoFactor;
        const float second = joint.has_second ? joint.of_second : kNoFactor;
        if (lane < 2 * width) FactorsOf(width)[lane] = is_second ? second : first;
      });
    }
    warp_.Sync();
    return ends;
  }

  /// Merge of states `kWidth` lanes apart, then of those half as far, until the sums of lane 0 are
  /// those of all.
  template <uint32_t kWidth>
  QUIRE_KERNEL void MergeSums() {
    const float* const factors = FactorsOf(kWidth);
    warp_.Lanes([&](uint32_t lane) {
      QUIRE_DEVICE_UNROLL
      for (uint32_t j = 0; j < kWidth; ++j) {
        const float first = factors[j];
        const float second = factors[j + kWidth];
        QUIRE_DEVICE_UNROLL
        for (uint32_t i = 0; i < kOfLane; ++i) {
          float& mine = sums_(lane, j * kOfLane + i);
          const float other = sums_(lane, (j + kWidth) * kOfLane + i);
          const float both = Fma(mine, first, other * second);
          if (second != kNoFactor) mine = first != kNoFactor ? both : other;
        }
      }
    });
    if constexpr (kWidth > 1) MergeSums<kWidth / 2>();
  }

  QUIRE_KERNEL void Finish(const Ends& ends) {
    warp_.Lanes([&](uint32_t lane) {
      const bool is_empty = ends(lane, 0) == kNothingSeen;
      QUIRE_DEVICE_UNROLL
      for (uint32_t i = 0; i < kOfLane; ++i) {
        row_[lane * kOfLane + i] = is_empty ? 0.0f : sums_(lane, i) / ends(lane, 1);
      }
    });
  }

  const Warp<Thread> warp_;  // a reference to that of the caller would keep the caller in memory
  const SplitsArgs& args_;
  const Tile& tile_;
  const uint32_t dim_;
  float* const row_;      // [kMmaChannels], of the warp
  float* const factors_;  // [1, 2, 4, 8 lanes apart], of the warp

  Fragment<float, kLanes * kOfLane> sums_;  // [lane of the order][channel]
};

}  // namespace quire::cuda

#endif  // QUIRE_CUDA_KERNELS_MMA_TILE_MERGE_INL_H_
