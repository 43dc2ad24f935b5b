// Products of a model's pass in matrix instructions (docs/numerics.md section 5): every output is
// one chain of instructions over k, sixteen at a time, however many rows there are.
//
// A block has some rows of x and some panels of w, a warp some of these panels. Both pass through
// shared memory; w is copied beside the threads, several stages ahead.
#ifndef QUIRE_CUDA_KERNELS_MMA_PRODUCT_INL_H_
#define QUIRE_CUDA_KERNELS_MMA_PRODUCT_INL_H_

#include <cstdint>

#include "base/bits.h"
#include "cuda/kernels/mma_attend.h"
#include "cuda/kernels/model-inl.h"
#include "cuda/kernels/warp-inl.h"

namespace quire::cuda {

/// kWarps of a block, kRowTiles of sixteen rows each, kPanels of a warp; kBuffers stages.
template <uint32_t kWarps, uint32_t kRowTiles, uint32_t kPanels, uint32_t kBuffers>
struct ProductShape {
  static constexpr uint32_t kWarpsOfBlock = kWarps;
  static constexpr uint32_t kRowTilesOfBlock = kRowTiles;
  static constexpr uint32_t kPanelsOfWarp = kPanels;
  static constexpr uint32_t kRows = kRowTiles * 16;
  static constexpr uint32_t kColumns = kWarps * kPanels * kPanelColumns;
  // In numbers of 16 bits; eight rows of either are read at once.
  static constexpr uint32_t kInputStride = kProductDepth + 8;
  static constexpr uint32_t kWeightStride = kColumns + 8;
  static constexpr uint32_t kStageNumbers = kRows * kInputStride + kProductDepth * kWeightStride;
  static constexpr uint32_t kStages = kBuffers;
  static constexpr uint32_t kSharedBytes = kStages * kStageNumbers * 2;
  static_assert(kSharedBytes <= kMmaSharedMax);
};

/// Where rows are few a block has one warp and one panel, so that many blocks read weights at once.
using FewRows = ProductShape<1, 1, 1, 4>;
using MoreRows = ProductShape<1, 2, 1, 4>;
using TileOfRows = ProductShape<2, 4, 1, 3>;
using ManyRows = ProductShape<4, 4, 2, 3>;

/// f(shape) of a product. It never shows in the bits.
template <typename F>
auto WithProductShape(const MatmulArgs& args, const F& f) {
  const uint32_t rows = args.tile_rows != 0 ? args.tile_rows : args.rows;
  if (rows <= FewRows::kRows) return f(FewRows());
  if (rows <= MoreRows::kRows) return f(MoreRows());
  if (rows <= TileOfRows::kRows) return f(TileOfRows());
  return f(ManyRows());
}

template <class Shape>
constexpr uint32_t ProductBlocks(const MatmulArgs& args) {
  return DivUp(args.w.n, Shape::kColumns) * DivUp(args.rows, Shape::kRows);
}

template <class Thread, class Shape>
class MmaProduct {
 public:
  QUIRE_KERNEL MmaProduct(Thread& self, const MatmulArgs& args)
      : self_(self),
        warp_(self),
        args_(args),
        tiles_(DivUp(args.rows, Shape::kRows)),
        first_row_(self.block() % tiles_ * Shape::kRows),
        first_panel_(self.block() / tiles_ * Shape::kWarpsOfBlock * Shape::kPanelsOfWarp) {}

  QUIRE_KERNEL void Run() {
    if (args_.w.type == Round::kF16) {
      RunOf<Codec::kF16>();
    } else {
      RunOf<Codec::kBf16>();
    }
  }

 private:
  static constexpr uint32_t kThreads = Shape::kWarpsOfBlock * kWarpLanes;
  static constexpr uint32_t kTilesOfWarp = Shape::kPanelsOfWarp * 2;  // of eight columns
  static constexpr uint32_t kSums = Shape::kRowTilesOfBlock * kTilesOfWarp * 4;
  /// Inputs of a stage that a thread brings, in pairs.
  static constexpr uint32_t kPairs = Shape::kRows * kProductDepth / 2 / kThreads;
  static_assert(kPairs * kThreads * 2 == Shape::kRows * kProductDepth);

  template <Codec kType>
  QUIRE_KERNEL void RunOf() {
    Fragment<float, kSums> sums;
    warp_.Lanes([&](uint32_t lane) {
      QUIRE_DEVICE_UNROLL
      for (uint32_t i = 0; i < kSums; ++i) sums(lane, i) = 0.0f;
    });
    const uint32_t stages = args_.w.k / kProductDepth;
    Fragment<uint32_t, kPairs> inputs;
    LoadInputs<kType>(0, inputs);
    QUIRE_DEVICE_UNROLL
    for (uint32_t s = 0; s + 1 < Shape::kStages; ++s) CopyWeights(s, stages);
    for (uint32_t s = 0; s < stages; ++s) {
      StoreInputs(s, inputs);
      self_.template WaitCopies<Shape::kStages - 2>();
      self_.Sync();
      CopyWeights(s + Shape::kStages - 1, stages);
      if (s + 1 < stages) LoadInputs<kType>(s + 1, inputs);
      Multiply<kType>(s, sums);
    }
    Store(sums);
  }

  QUIRE_KERNEL uint16_t* Inputs(uint32_t stage) const {
    return reinterpret_cast<uint16_t*>(self_.shared()) +
           stage % Shape::kStages * Shape::kStageNumbers;
  }
  QUIRE_KERNEL uint16_t* Weights(uint32_t stage) const {
    return Inputs(stage) + Shape::kRows * Shape::kInputStride;
  }

  /// Rows behind the last are zeros.
  template <Codec kType>
  QUIRE_KERNEL void LoadInputs(uint32_t stage, Fragment<uint32_t, kPairs>& inputs) {
    warp_.Lanes([&](uint32_t lane) {
      QUIRE_DEVICE_UNROLL
      for (uint32_t i = 0; i < kPairs; ++i) {
        const uint32_t pair = i * kThreads + warp_.number() * kWarpLanes + lane;
        const uint32_t row = first_row_ + pair / (kProductDepth / 2);
        const uint32_t at = stage * kProductDepth + pair % (kProductDepth / 2) * 2;
        const float* const x = args_.x + uint64_t{row} * args_.w.k + at;
        inputs(lane, i) = row < args_.rows ? Pack16<kType>(x[0], x[1]) : 0;
      }
    });
  }
  QUIRE_KERNEL void StoreInputs(uint32_t stage, const Fragment<uint32_t, kPairs>& inputs) {
    warp_.Lanes([&](uint32_t lane) {
      QUIRE_DEVICE_UNROLL
      for (uint32_t i = 0; i < kPairs; ++i) {
        const uint32_t pair = i * kThreads + warp_.number() * kWarpLanes + lane;
        uint16_t* const to = Inputs(stage) + pair / (kProductDepth / 2) * Shape::kInputStride +
                             pair % (kProductDepth / 2) * 2;
        *reinterpret_cast<uint32_t*>(to) = inputs(lane, i);
      }
    });
  }

  /// A group of copies for every stage, also behind the last. Panels behind the last are zeros.
  QUIRE_KERNEL void CopyWeights(uint32_t stage, uint32_t stages) {
    if (stage < stages) {
      constexpr uint32_t kRunsOfPanel = kProductDepth * 2;  // eight numbers each
      const uint32_t panels = DivUp(args_.w.n, kPanelColumns);
      warp_.Share(Shape::kColumns / kPanelColumns * kRunsOfPanel, [&](uint32_t i) {
        const uint32_t panel = i / kRunsOfPanel;
        const uint32_t run = i % kRunsOfPanel;
        const bool valid = first_panel_ + panel < panels;
        const uint64_t from =
            (uint64_t{first_panel_ + panel} * args_.w.k + uint64_t{stage} * kProductDepth) *
                kPanelColumns +
            uint64_t{run} * 8;
        self_.CopyAsync(
            Weights(stage) + run / 2 * Shape::kWeightStride + panel * kPanelColumns + run % 2 * 8,
            args_.w.data + (valid ? from * 2 : 0), valid);
      });
    }
    self_.CommitCopies();
  }

  template <Codec kType>
  QUIRE_KERNEL void Multiply(uint32_t stage, Fragment<float, kSums>& sums) {
    const uint16_t* const inputs = Inputs(stage);
    const uint16_t* const weights =
        Weights(stage) + warp_.number() * Shape::kPanelsOfWarp * kPanelColumns;
    QUIRE_DEVICE_UNROLL
    for (uint32_t k = 0; k < kProductDepth; k += 16) {
      Fragment<uint32_t, 4> columns[Shape::kPanelsOfWarp];
      QUIRE_DEVICE_UNROLL
      for (uint32_t p = 0; p < Shape::kPanelsOfWarp; ++p) {
        columns[p] = LoadMatrices<true>([&](uint32_t lane) {
          return weights + (k + lane % 16) * Shape::kWeightStride + p * kPanelColumns +
                 lane / 16 * 8;
        });
      }
      QUIRE_DEVICE_UNROLL
      for (uint32_t tile = 0; tile < Shape::kRowTilesOfBlock; ++tile) {
        const auto rows = LoadMatrices<false>([&](uint32_t lane) {
          return inputs + (tile * 16 + lane % 16) * Shape::kInputStride + k + lane / 16 * 8;
        });
        QUIRE_DEVICE_UNROLL
        for (uint32_t n = 0; n < kTilesOfWarp; ++n) {
          MultiplyAdd<kType>(sums, (tile * kTilesOfWarp + n) * 4, rows, columns[n / 2], n % 2 * 2);
        }
      }
    }
  }

  QUIRE_KERNEL void Store(const Fragment<float, kSums>& sums) {
    const uint32_t first_column =
        (first_panel_ + warp_.number() * Shape::kPanelsOfWarp) * kPanelColumns;
    warp_.Lanes([&](uint32_t lane) {
      QUIRE_DEVICE_UNROLL
      for (uint32_t i = 0; i < kSums; ++i) {
        const uint32_t row = first_row_ + i / 4 / kTilesOfWarp * 16 + lane / 4 + i / 2 % 2 * 8;
        const uint32_t column = first_column + i / 4 % kTilesOfWarp * 8 + lane % 4 * 2 + i % 2;
        if (row >= args_.rows || column >= args_.w.n) continue;
        const float sum = sums(lane, i);
        const float value = args_.bias == nullptr ? sum : sum + args_.bias[column];
        args_.y[uint64_t{row} * args_.w.n + column] = RoundTo(args_.round, value);
      }
    });
  }

  Thread& self_;
  const Warp<Thread> warp_;
  const MatmulArgs& args_;
  const uint32_t tiles_;
  const uint32_t first_row_;
  const uint32_t first_panel_;
};

}  // namespace quire::cuda

#endif  // QUIRE_CUDA_KERNELS_MMA_PRODUCT_INL_H_
