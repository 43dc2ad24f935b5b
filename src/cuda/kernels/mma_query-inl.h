// The query vectors of a tile in shared memory, as matrix instructions take them: each number as a
// high and a low part of sixteen bits, in every type in which K is multiplied
// (cuda/kernels/mma_attend.h).
#ifndef QUIRE_CUDA_KERNELS_MMA_QUERY_INL_H_
#define QUIRE_CUDA_KERNELS_MMA_QUERY_INL_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "attention/scalar.h"
#include "base/bits.h"
#include "cuda/kernels/mma_attend.h"
#include "cuda/kernels/mma_integers-inl.h"
#include "cuda/kernels/rotate-inl.h"
#include "cuda/kernels/split_shared-inl.h"
#include "cuda/kernels/warp-inl.h"

namespace quire::cuda {

/// kTiles: of kMmaColumns query vectors that a warp has.
/// kGroups: of a warp each, or one that all warps have. A warp of the first kind has its query
/// vectors as the rows of instructions, the others as columns.
template <class Thread, uint32_t kGroups, uint32_t kTiles>
class MmaQueries {
 public:
  static constexpr bool kRows = kGroups > 1;
  static constexpr bool kIntegers = !kRows;  // K may be codes that stand for integers
  static constexpr uint32_t kOfWarp = kTiles * kMmaColumns;
  /// Of which a lane has sums.
  static constexpr uint32_t kOfLane = kRows ? 2 : kTiles * 2;
  /// Sixteen channels each, that one call of Factors has.
  static constexpr uint32_t kSteps = kQueryTilesMax / kTiles;

  QUIRE_KERNEL MmaQueries(Thread& self, const MmaArgs& mma)
      : self_(self), warp_(self), args_(mma.splits), shape_(mma.splits.shape), layout_(mma.shared) {
    warp_.Lanes([&](uint32_t lane) {
      // Two tiles, or two times eight channels of one; of rows both, with other lanes.
      const uint32_t eight = kRows ? lane / 8 % 2 : kTiles == 1 ? 0 : lane / 16;
      const uint32_t channels = kRows ? lane / 16 : kTiles == 1 ? lane / 8 : lane / 8 % 2;
      const uint32_t vector = Group() * kOfWarp + eight * 8 + lane % 8;
      factor_at_(lane, 0) = vector * layout_.query_stride + channels * 8;
    });
  }

  /// Query vectors behind the tile's last are zeros. Ends with a Sync.
  QUIRE_KERNEL void Load(const Tile& tile) {
    tile_ = &tile;
    self_.Sync();  // the tile before is done with its own
    warp_.One([&] { *Flag() = 0; });
    self_.Sync();
    if (shape_.key.rotated) {
      LoadRotated();
    } else {
      LoadPlain();
    }
    self_.Sync();
    has_low_ = *Flag() != 0;
  }

  /// Of query vector `r` of a lane.
  QUIRE_KERNEL uint32_t NumberOf(uint32_t lane, uint32_t r) const {
    const uint32_t of_warp = kRows ? r * 8 + lane / 4 : r / 2 * kMmaColumns + lane % 4 * 2 + r % 2;
    return Group() * kOfWarp + of_warp;
  }

  /// Whether any low part is not zero.
  QUIRE_KERNEL bool has_low() const { return has_low_; }
  /// [query vectors][query_stride]. `open`: in the type of blocks that are read open.
  QUIRE_KERNEL uint16_t* High(bool open) const {
    const bool second = open && TypeOfKeys(shape_, false) != TypeOfKeys(shape_, true);
    return reinterpret_cast<uint16_t*>(self_.shared()) +
           (second ? 2 * uint64_t{layout_.query_numbers} : 0);
  }
  QUIRE_KERNEL const uint16_t* LowOf(const uint16_t* high) const {
    return high + layout_.query_numbers;
  }

  /// Channels from `k` on as a factor of instructions: the first, of sixteen rows, or columns. Of
  /// those the words of step s and tile n begin at WordOf(s, n); steps may lie behind the last
  /// channel.
  QUIRE_KERNEL Fragment<uint32_t, 4> Factors(const uint16_t* queries, uint32_t k) const {
    return LoadMatrices<false>([&](uint32_t lane) { return queries + factor_at_(lane, 0) + k; });
  }
  /// Thirty-two channels from `k` on as a factor of instructions that multiply integers, of eight
  /// query vectors.
  QUIRE_KERNEL Fragment<uint32_t, 4> Numbers(uint32_t tile, uint32_t k) const {
    return LoadNumbers([&](uint32_t row, bool low) {
      return Fixed(low) + (tile * kMmaColumns + row) * layout_.fixed_stride + k;
    });
  }
  /// What 1 is worth in them.
  QUIRE_KERNEL float& UnitOf(uint32_t q) const {
    return reinterpret_cast<float*>(self_.shared() + layout_.query_units_at)[q];
  }

  QUIRE_KERNEL static constexpr uint32_t WordOf(uint32_t step, uint32_t tile) {
    return (step * kTiles + tile) * 2;
  }

  /// Sums of query vectors, times the shape's scale: their products with ones.
  QUIRE_KERNEL Fragment<float, kOfLane> Sums() const {
    static_assert(!kRows);
    Fragment<float, kTiles * 4> sums;
    warp_.Lanes([&](uint32_t lane) {
      for (uint32_t i = 0; i < kTiles * 4; ++i) sums(lane, i) = 0.0f;
    });
    With16(TypeOfKeys(shape_, false), [&](auto type) {
      Fragment<uint32_t, 4> ones;
      warp_.Lanes([&](uint32_t lane) {
        for (uint32_t i = 0; i < 4; ++i) ones(lane, i) = Pack16<type.value>(1.0f, 1.0f);
      });
      for (uint32_t k = 0; k < shape_.key.dim; k += kSteps * kMmaStep) {
        const auto high = Factors(High(false), k);
        const auto low = Factors(LowOf(High(false)), k);
        QUIRE_DEVICE_UNROLL
        for (uint32_t step = 0; step < kSteps; ++step) {
          if (k + step * kMmaStep >= shape_.key.dim) break;
          QUIRE_DEVICE_UNROLL
          for (uint32_t n = 0; n < kTiles; ++n) {
            MultiplyAdd<type.value>(sums, n * 4, ones, high, WordOf(step, n));
            MultiplyAdd<type.value>(sums, n * 4, ones, low, WordOf(step, n));
          }
        }
      }
    });
    Fragment<float, kOfLane> scaled;
    warp_.Lanes([&](uint32_t lane) {
      QUIRE_DEVICE_UNROLL
      for (uint32_t r = 0; r < kOfLane; ++r) {
        scaled(lane, r) = sums(lane, r / 2 * 4 + r % 2) * shape_.scale;
      }
    });
    return scaled;
  }

 private:
  QUIRE_KERNEL uint32_t* Flag() const {
    return reinterpret_cast<uint32_t*>(self_.shared() + layout_.flag_at);
  }

  QUIRE_KERNEL uint32_t Group() const { return kGroups == 1 ? 0 : warp_.number(); }

  /// [key.dim]; null: the tile has no such query vector.
  QUIRE_KERNEL const float* Vector(uint32_t q) const {
    if (q >= tile_->queries()) return nullptr;
    const uint32_t head = tile_->head_begin + q % tile_->heads;
    return RowOf(args_, *tile_, q).queries + uint64_t{head} * shape_.key.dim;
  }

  // A warp has every fourth query vector, so that all of a lane's loads are of one.

  QUIRE_KERNEL void LoadPlain() {
    QUIRE_DEVICE_UNROLL_BY(1)
    for (uint32_t q = warp_.number(); q < kGroups * kOfWarp; q += kMmaWarps) {
      const float* const from = Vector(q);
      if (kIntegers && IsInteger(shape_.key.codec)) {
        StoreFixed(q, [&](uint32_t d) { return from == nullptr ? 0.0f : from[d] * shape_.scale; });
      }
      warp_.Lanes([&](uint32_t lane) {
        QUIRE_DEVICE_UNROLL_BY(2)
        for (uint32_t d = lane * 2; d < shape_.key.dim; d += 2 * kWarpLanes) {
          const bool none = from == nullptr;
          Store(q, d, none ? 0.0f : from[d], none ? 0.0f : from[d + 1]);
        }
      });
    }
  }

  QUIRE_KERNEL void LoadRotated() {
    float* const row = reinterpret_cast<float*>(self_.shared() + layout_.rows_at) +
                       uint64_t{warp_.number()} * layout_.row_floats;
    const auto rotate = [&](const float* from, float scale) {
      warp_.Lanes([&](uint32_t lane) {
        for (uint32_t d = lane; d < shape_.key.dim; d += kWarpLanes) {
          row[d] = from == nullptr ? 0.0f : from[d] * scale;
        }
      });
      warp_.Sync();
      RotateByWarp(warp_, row, shape_.key.dim);
    };
    for (uint32_t q = warp_.number(); q < kGroups * kOfWarp; q += kMmaWarps) {
      const float* const from = Vector(q);
      rotate(from, 1.0f);
      warp_.Lanes([&](uint32_t lane) {
        for (uint32_t d = lane * 2; d < shape_.key.dim; d += 2 * kWarpLanes) {
          Store(q, d, row[d], row[d + 1]);
        }
      });
      warp_.Sync();
      if (!kIntegers || !IsInteger(shape_.key.codec)) continue;
      rotate(from, shape_.scale);
      StoreFixed(q, [&](uint32_t d) { return row[d]; });
      warp_.Sync();
    }
  }

  /// Bytes of numbers of sixteen bits: [query vectors][fixed_stride].
  QUIRE_KERNEL std::byte* Fixed(bool low) const {
    return self_.shared() + layout_.fixed_at + (low ? layout_.queries * layout_.fixed_stride : 0u);
  }
  /// The row of docs/numerics.md section 2 that is multiplied with integers; value(d) are its
  /// numbers.
  template <typename F>
  QUIRE_KERNEL void StoreFixed(uint32_t q, const F& value) {
    Fragment<uint32_t, 1> largest;
    warp_.Lanes([&](uint32_t lane) {
      largest(lane, 0) = 0;
      for (uint32_t d = lane; d < shape_.key.dim; d += kWarpLanes) {
        largest(lane, 0) = std::max(largest(lane, 0), attention::MagnitudeBits(value(d)));
      }
    });
    for (uint32_t mask = kWarpLanes / 2; mask > 0; mask /= 2) {
      const auto other = warp_.Exchanged(largest, mask);
      warp_.Lanes(
          [&](uint32_t lane) { largest(lane, 0) = std::max(largest(lane, 0), other(lane, 0)); });
    }
    warp_.Lanes([&](uint32_t lane) {
      const attention::FixedScale scale = attention::FixedScaleOf(largest(lane, 0));
      if (lane == 0) UnitOf(q) = scale.unit;
      for (uint32_t d = lane * 2; d < RoundUp(shape_.key.dim, kIntegerStep); d += 2 * kWarpLanes) {
        const bool none = d >= shape_.key.dim;  // channels are even
        const uint32_t pair =
            none ? 0 : PairOf16(FixedOf(value(d), scale), FixedOf(value(d + 1), scale));
        const uint32_t at = q * layout_.fixed_stride + TermOf(shape_.key.codec, d);
        *reinterpret_cast<uint16_t*>(Fixed(true) + at) =
            static_cast<uint16_t>(Permute(pair, 0, 0x4420u));
        *reinterpret_cast<uint16_t*>(Fixed(false) + at) =
            static_cast<uint16_t>(Permute(pair, 0, 0x4431u));
      }
    });
  }

  QUIRE_KERNEL void Store(uint32_t q, uint32_t d, float first, float second) {
    StoreAs(High(false), TypeOfKeys(shape_, false), q, d, first, second);
    if (High(true) != High(false)) {
      StoreAs(High(true), TypeOfKeys(shape_, true), q, d, first, second);
    }
  }
  QUIRE_KERNEL void StoreAs(uint16_t* to, Codec half, uint32_t q, uint32_t d, float first,
                            float second) {
    With16(half, [&](auto type) {
      const HighLow both =
          Split16<type.value>(InRange<type.value>(first), InRange<type.value>(second));
      const uint64_t at = uint64_t{q} * layout_.query_stride + d;
      *reinterpret_cast<uint32_t*>(to + at) = both.high;
      *reinterpret_cast<uint32_t*>(to + layout_.query_numbers + at) = both.low;
      if ((both.low & 0x7fff7fffu) != 0) *Flag() = 1;
    });
  }
  /// Finite numbers stay so.
  template <Codec kType>
  QUIRE_KERNEL static float InRange(float value) {
    constexpr float kMax = 65504.0f;
    if (kType != Codec::kF16 || !(std::abs(value) < std::numeric_limits<float>::infinity())) {
      return value;
    }
    return std::min(std::max(value, -kMax), kMax);
  }

  Thread& self_;
  const Warp<Thread> warp_;
  const SplitsArgs& args_;
  const AttentionShape& shape_;
  const MmaShared& layout_;
  const Tile* tile_ = nullptr;
  bool has_low_ = false;
  Fragment<uint32_t, 1> factor_at_;  // where a lane's row of matrices begins, of Factors
};

}  // namespace quire::cuda

#endif  // QUIRE_CUDA_KERNELS_MMA_QUERY_INL_H_
