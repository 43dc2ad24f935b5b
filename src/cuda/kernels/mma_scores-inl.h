// Scores of query vectors with the tokens of a split (docs/numerics.md section 5), in registers of
// the warp that has them. Of a stage's tokens a warp has all, or a share of sixteen.
#ifndef QUIRE_CUDA_KERNELS_MMA_SCORES_INL_H_
#define QUIRE_CUDA_KERNELS_MMA_SCORES_INL_H_

#include <cstdint>
#include <type_traits>

#include "cuda/kernels/mma_attend.h"
#include "cuda/kernels/mma_coded-inl.h"
#include "cuda/kernels/mma_integers-inl.h"
#include "cuda/kernels/mma_query-inl.h"
#include "cuda/kernels/mma_reader-inl.h"
#include "cuda/kernels/warp-inl.h"

namespace quire::cuda {

/// f(constant) of `i`, which is below kCount: what is indexed with a constant is in registers.
template <uint32_t kCount, uint32_t kFirst = 0, typename F>
QUIRE_KERNEL void WithConstant([[maybe_unused]] uint32_t i, const F& f) {
  if constexpr (kCount == 1) {
#if defined(__CUDA_ARCH__)
    asm volatile("");  // else both sides are computed, and one is chosen for each register
#endif
    f(std::integral_constant<uint32_t, kFirst>());
  } else if (i < kFirst + kCount / 2) {
    WithConstant<kCount / 2, kFirst>(i, f);
  } else {
    WithConstant<kCount / 2, kFirst + kCount / 2>(i, f);
  }
}

/// kTiles: of kMmaColumns query vectors. Warps that fold have query vectors of their own, as rows
/// of instructions whose columns are tokens, and all tokens; others have tokens of their own, as
/// rows, and share the query vectors, which are columns.
template <class Thread, bool kFolds, Staging kStaging, uint32_t kTiles>
class MmaScores {
 public:
  using Queries = MmaQueries<Thread, kFolds ? kMmaWarps : 1, kTiles>;
  using Reader = SplitReader<Thread, kFolds, kStaging>;
  static constexpr uint32_t kStages = Reader::kStages;
  static constexpr uint32_t kQueries = Queries::kOfLane;
  /// Of sixteen channels, that are multiplied at a time: one's loads while another is multiplied.
  static constexpr uint32_t kDepth = 2;
  /// Of sixteen tokens, of a stage, that the warp has.
  static constexpr uint32_t kSteps = kFolds ? Reader::kTokens / kMmaStep : 1;
  // Of a lane: [step of sixteen tokens][tile][token / 8 % 2][query % 2], or where query vectors are
  // rows [token / 8][query / 8][token % 2].
  static constexpr uint32_t kOfStep = kTiles * 4;
  static constexpr uint32_t kOfStage = kSteps * kOfStep;
  static constexpr uint32_t kCount = kStages * kOfStage;

  QUIRE_KERNEL MmaScores(Thread& self, const MmaArgs& mma)
      : warp_(self), mma_(mma), shape_(mma.splits.shape), queries_(self, mma), reader_(self, mma) {}

  QUIRE_KERNEL Reader& reader() { return reader_; }
  QUIRE_KERNEL void LoadQueries() {
    queries_.Load(reader_.tile());
    if constexpr (Reader::kEncoded) {
      if (mma_.key_mids) query_sum_ = queries_.Sums();
    }
  }

  /// Query vector of score `i`: as one of the lane's, and of the tile's.
  QUIRE_KERNEL static constexpr uint32_t QueryOf(uint32_t i) {
    return kFolds ? i / 2 % 2 : i % kOfStep / 4 * 2 + i % 2;
  }
  QUIRE_KERNEL uint32_t NumberOf(uint32_t lane, uint32_t r) const {
    return queries_.NumberOf(lane, r);
  }
  /// The step of sixteen tokens that score `i` is of, and its token.
  QUIRE_KERNEL uint32_t StepOf(uint32_t i) const {
    return i / kOfStage * (Reader::kTokens / kMmaStep) + FirstStep() + i % kOfStage / kOfStep;
  }
  QUIRE_KERNEL uint32_t TokenOf(uint32_t lane, uint32_t i) const {
    if constexpr (kFolds) return i / 4 * 8 + lane % 4 * 2 + i % 2;
    return StepOf(i) * kMmaStep + i / 2 % 2 * 8 + lane / 4;
  }

  /// Scores; those that are not seen are kNothingSeen.
  QUIRE_KERNEL float& At(uint32_t lane, uint32_t i) { return scores_(lane, i); }

  /// Of the split that was started.
  QUIRE_KERNEL void Find() {
    if (!reader_.all_sealed()) {
      warp_.Lanes([&](uint32_t lane) {
        QUIRE_DEVICE_UNROLL
        for (uint32_t i = 0; i < kCount; ++i) scores_(lane, i) = kNothingSeen;
      });
    }
    QUIRE_DEVICE_UNROLL_BY(1)
    for (uint32_t form = 0; form < 2; ++form) {
      const bool open = form != 0;
      if (!reader_.NeedsAny(Reader::KeyKind(open))) continue;
      Score(open);
    }
  }

  /// The largest of each query vector.
  QUIRE_KERNEL Fragment<float, kQueries> Largest() const {
    Fragment<float, kQueries> max;
    warp_.Lanes([&](uint32_t lane) {
      QUIRE_DEVICE_UNROLL
      for (uint32_t r = 0; r < kQueries; ++r) max(lane, r) = kNothingSeen;
      QUIRE_DEVICE_UNROLL
      for (uint32_t i = 0; i < kCount; ++i) {
        max(lane, QueryOf(i)) = Max(max(lane, QueryOf(i)), scores_(lane, i));
      }
    });
    // With the lanes that have other tokens.
    for (uint32_t mask = kFolds ? 2 : 16; mask >= (kFolds ? 1 : 4); mask /= 2) {
      const auto other = warp_.Exchanged(max, mask);
      warp_.Lanes([&](uint32_t lane) {
        QUIRE_DEVICE_UNROLL
        for (uint32_t r = 0; r < kQueries; ++r) max(lane, r) = Max(max(lane, r), other(lane, r));
      });
    }
    warp_.Lanes([&](uint32_t lane) {
      QUIRE_DEVICE_UNROLL
      for (uint32_t r = 0; r < kQueries; ++r) max(lane, r) += 0.0f;
    });
    return max;
  }

 private:
  /// Of the warp, in each stage.
  QUIRE_KERNEL uint32_t FirstStep() const { return kFolds ? 0 : warp_.number(); }

  QUIRE_KERNEL void Score(bool open) {
    QUIRE_DEVICE_UNROLL_BY(1)
    for (uint32_t j = 0; j < kStages; ++j) {
      const uint32_t number = Reader::StageOf(Reader::KeyKind(open), j);
      if (!reader_.IsNeeded(number)) continue;
      const uint16_t* const keys = reader_.template EnterStage<true>(number);
      Fragment<float, kOfStage> sums;
      Multiply(keys, open, sums);
      KeepScores(j, open, sums);
    }
  }

  QUIRE_KERNEL void Multiply(const uint16_t* keys, bool open, Fragment<float, kOfStage>& sums) {
    if constexpr (Reader::kEncoded) {
      if (!open && HasIntegers()) {
        return WithIntegers(shape_.key.codec,
                            [&](auto format) { MultiplyIntegers<decltype(format)>(keys, sums); });
      }
    }
    warp_.Lanes([&](uint32_t lane) {
      QUIRE_DEVICE_UNROLL
      for (uint32_t i = 0; i < kOfStage; ++i) sums(lane, i) = 0.0f;
    });
    With16(TypeOfKeys(shape_, open), [&](auto type) {
      WithFormat(open, [&](auto format) {
        if (queries_.has_low()) {
          MultiplyKeys<decltype(format), type.value, true>(keys, open, sums);
        } else {
          MultiplyKeys<decltype(format), type.value, false>(keys, open, sums);
        }
      });
    });
  }

  /// f(what K of a stage is).
  template <typename F>
  QUIRE_KERNEL void WithFormat(bool open, const F& f) const {
    if constexpr (Reader::kEncoded) {
      if (!open && shape_.key.codec > Codec::kBf16) return WithFloats(shape_.key.codec, f);
    }
    if constexpr (kStaging != Staging::kBulk) {
      const StreamLayout& stream = open ? attention::OpenKey(shape_) : shape_.key;
      if (stream.inner == InnerAxis::kDim) return f(RowsOfNumbers16());
    }
    f(Numbers16());
  }

  template <class Format, Codec kType, bool kLow>
  QUIRE_KERNEL void MultiplyKeys(const uint16_t* keys, bool open, Fragment<float, kOfStage>& sums) {
    const uint32_t dim = shape_.key.dim;
    const uint16_t* const queries = queries_.High(open);
    constexpr uint32_t kChannels = kDepth * kMmaStep;
    QUIRE_DEVICE_UNROLL_BY(1)
    for (uint32_t k = 0; k + kChannels <= dim; k += kChannels) {
      MultiplyChannels<Format, kType, kLow, kDepth>(keys, queries, k, sums);
    }
    if (dim % kChannels != 0) {
      MultiplyChannels<Format, kType, kLow, 1>(keys, queries, dim - kMmaStep, sums);
    }
  }

  /// kChannelSteps times sixteen channels.
  template <class Format, Codec kType, bool kLow, uint32_t kChannelSteps>
  QUIRE_KERNEL void MultiplyChannels(const uint16_t* keys, const uint16_t* queries, uint32_t k,
                                     Fragment<float, kOfStage>& sums) {
    Fragment<uint32_t, 4> high;
    Fragment<uint32_t, 4> low;
    QUIRE_DEVICE_UNROLL
    for (uint32_t step = 0; step < kChannelSteps; ++step) {
      const uint32_t channel = k + step * kMmaStep;
      const uint32_t of_factors = step % Queries::kSteps;
      if (of_factors == 0) {
        high = queries_.Factors(queries, channel);
        if constexpr (kLow) low = queries_.Factors(queries_.LowOf(queries), channel);
      }
      QUIRE_DEVICE_UNROLL
      for (uint32_t t = 0; t < kSteps; ++t) {
        const auto tokens = LoadTokens<Format, kType>(keys, t, channel);
        QUIRE_DEVICE_UNROLL
        for (uint32_t n = 0; n < kTiles; ++n) {
          const uint32_t at = t * kOfStep + n * 4;
          if constexpr (kFolds) {
            MultiplyAdd<kType>(sums, at, high, tokens, n * 2);
            if constexpr (kLow) MultiplyAdd<kType>(sums, at, low, tokens, n * 2);
          } else {
            const uint32_t word = Queries::WordOf(of_factors, n);
            MultiplyAdd<kType>(sums, at, tokens, high, word);
            if constexpr (kLow) MultiplyAdd<kType>(sums, at, tokens, low, word);
          }
        }
      }
    }
  }

  /// Sixteen tokens of the warp's, of as many channels: a first factor, or two of the second.
  template <class Format, Codec kType>
  QUIRE_KERNEL Fragment<uint32_t, 4> LoadTokens(const uint16_t* keys, uint32_t t,
                                                uint32_t channel) const {
    const auto& buffers = reader_.buffers();
    if constexpr (std::is_same_v<Format, Numbers16>) {
      const uint16_t* const from = keys + buffers.ChannelAt(channel);
      return LoadMatrices<true>([&](uint32_t lane) { return from + buffers.KeysAt(lane, t); });
    } else if constexpr (std::is_same_v<Format, RowsOfNumbers16>) {
      return LoadMatrices<false>(
          [&](uint32_t lane) { return keys + buffers.KeyRowsAt(lane, t, channel); });
    } else {
      return LoadCodes<Format, kType>(warp_, ColumnOf(keys) + channel * kMmaStep, kMmaStep);
    }
  }

  /// Whether codes of K stand for integers.
  QUIRE_KERNEL bool HasIntegers() const { return Reader::kEncoded && IsInteger(shape_.key.codec); }
  /// The warp's sixteen tokens in a stage of codes.
  QUIRE_KERNEL const std::byte* ColumnOf(const uint16_t* keys) const {
    return reinterpret_cast<const std::byte*>(keys) +
           FirstStep() * ColumnBytes(shape_.key.codec, shape_.key.dim);
  }
  template <class Format>
  QUIRE_KERNEL void MultiplyIntegers(const uint16_t* keys, Fragment<float, kOfStage>& scores) {
    constexpr float kUnit = 1.0f / Format::kDivisor;
    const std::byte* const column = ColumnOf(keys);
    IntegerSums<Format, kOfStage> sums(warp_);
    QUIRE_DEVICE_UNROLL_BY(1)
    for (uint32_t k = 0; k < shape_.key.dim; k += kIntegerStep) {
      const auto tokens = LoadKeyIntegers<Format>(warp_, column, k);
      QUIRE_DEVICE_UNROLL
      for (uint32_t n = 0; n < kTiles; ++n) sums.Add(n * 4, tokens, queries_.Numbers(n, k));
    }
    warp_.Lanes([&](uint32_t lane) {
      QUIRE_DEVICE_UNROLL
      for (uint32_t i = 0; i < kOfStage; ++i) {
        const float unit = queries_.UnitOf(NumberOf(lane, QueryOf(i)));
        scores(lane, i) = sums.At(lane, i) * (unit * kUnit);
      }
    });
  }

  QUIRE_KERNEL void KeepScores(uint32_t j, bool open, const Fragment<float, kOfStage>& sums) {
    if (reader_.all_sealed()) {
      WithConstant<kStages>(j, [&](auto stage) {
        warp_.Lanes([&](uint32_t lane) {
          QUIRE_DEVICE_UNROLL
          for (uint32_t i = 0; i < kOfStage; ++i) {
            const uint32_t at = stage.value * kOfStage + i;
            scores_(lane, at) = Scaled(lane, at, sums(lane, i), open);
          }
        });
      });
      return;
    }
    Fragment<uint32_t, 1> read;  // bit i: score i is
    warp_.Lanes([&](uint32_t lane) {
      read(lane, 0) = 0;
      QUIRE_DEVICE_UNROLL
      for (uint32_t i = 0; i < kOfStage; ++i) {
        const uint32_t q = queries_.NumberOf(lane, QueryOf(i));
        if (reader_.IsRead(q, TokenOf(lane, j * kOfStage + i), open)) read(lane, 0) |= 1u << i;
      }
    });
    WithConstant<kStages>(j, [&](auto stage) {
      warp_.Lanes([&](uint32_t lane) {
        QUIRE_DEVICE_UNROLL
        for (uint32_t i = 0; i < kOfStage; ++i) {
          if ((read(lane, 0) >> i & 1u) == 0) continue;
          const uint32_t at = stage.value * kOfStage + i;
          scores_(lane, at) = Scaled(lane, at, sums(lane, i), open);
        }
      });
    });
  }
  /// Score `i` from its sum of products.
  QUIRE_KERNEL float Scaled(uint32_t lane, uint32_t i, float sum, bool open) {
    const float value = !open && HasIntegers() ? sum : sum * shape_.scale;
    if (open || !reader_.KeyEncodes()) return value;
    const uint32_t t = TokenOf(lane, i);
    const float scale = reader_.KeyScales()[t];
    if (!mma_.key_mids) return value * scale;
    return Fma(scale, value, reader_.KeyMids()[t] * query_sum_(lane, QueryOf(i)));
  }

  const Warp<Thread> warp_;
  const MmaArgs& mma_;
  const AttentionShape& shape_;
  Queries queries_;
  Reader reader_;
  Fragment<float, kQueries> query_sum_;
  Fragment<float, kCount> scores_;
};

}  // namespace quire::cuda

#endif  // QUIRE_CUDA_KERNELS_MMA_SCORES_INL_H_
