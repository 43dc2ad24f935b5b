// The kernel that computes splits (cuda/kernels/attend.h), in the order of docs/numerics.md section
// 2: the bits are those of the CPU.
//
// A block of threads goes through its splits one after the other. Scores: each thread has two of
// the split's tokens, so that a score is one chain over channels. Weights: sixteen threads have a
// query vector, one for each partial sum. Values: each thread has some channels, so that an output
// is one chain over tokens. K and V are read once for all query vectors of the tile, in place.
#ifndef QUIRE_CUDA_KERNELS_SPLITS_INL_H_
#define QUIRE_CUDA_KERNELS_SPLITS_INL_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "attention/scalar.h"
#include "attention/visible.h"
#include "codec/planes.h"
#include "codec/rotate.h"
#include "cuda/kernels/attend.h"
#include "cuda/kernels/formats-inl.h"
#include "cuda/kernels/integers-inl.h"
#include "cuda/kernels/simt.h"
#include "cuda/kernels/split_shared-inl.h"

namespace quire::cuda {

template <class Thread, class Keys, class Values, uint32_t kQueries>
class SplitsKernel {
 public:
  QUIRE_KERNEL SplitsKernel(Thread& self, const SplitsArgs& args)
      : self_(self), args_(args), shape_(args.shape) {}

  QUIRE_KERNEL void Run() {
    const BlockWork work = args_.work[self_.block()];
    tile_ = args_.tiles + work.tile;
    kv_head_ = tile_->head_begin / (shape_.query_heads / shape_.key.heads);
    LoadQueries();
    const uint64_t end = std::min(work.split + args_.splits_per_block, tile_->split_end);
    for (uint64_t split = work.split; split < end; ++split) {
      split_ = split;
      states_ = tile_->states_begin + (split - tile_->split_begin) * tile_->queries();
      Scores();
      self_.Sync();
      PartialMax();
      self_.Sync();
      Weights();
      self_.Sync();
      Finish();
      self_.Sync();
      SumValues();
      self_.Sync();
    }
  }

 private:
  // No members: the compiler has to see that it is shared memory, and what is aligned there.
  QUIRE_KERNEL Shared<kQueries>& shared() const {
    return *reinterpret_cast<Shared<kQueries>*>(self_.shared());
  }
  using Row = float[kQueries];
  using FixedRow = uint32_t[kQueries];
  QUIRE_KERNEL Row* query() const {
    return reinterpret_cast<Row*>(self_.shared() + sizeof(Shared<kQueries>));
  }
  QUIRE_KERNEL FixedRow* fixed_query() const {
    return reinterpret_cast<FixedRow*>(query() + shape_.key.dim);
  }

  // Query vectors.

  QUIRE_KERNEL void LoadQueries() {
    const uint32_t dim = shape_.key.dim;
    for (uint32_t i = self_.id(); i < dim * kQueries; i += self_.count()) {
      const uint32_t q = i / dim;
      const uint32_t d = i % dim;
      float value = 0.0f;
      if (q < tile_->queries()) {
        const uint32_t head = tile_->head_begin + q % tile_->heads;
        value = RowOf(args_, *tile_, q).queries[uint64_t{head} * dim + d] * shape_.scale;
      }
      query()[d][q] = value;
    }
    self_.Sync();
    if (shape_.key.rotated) RotateQueries();
    Keys::With(shape_.key.codec, [&](auto format) {
      if constexpr (kIsInteger<decltype(format)>) FixQueries();
    });
  }

  // codec/rotate.h: butterflies of pairs h apart, then one factor.
  QUIRE_KERNEL void RotateQueries() {
    const uint32_t dim = shape_.key.dim;
    const uint32_t n = codec::RotationDim(dim);
    if (n == 1) return;
    for (uint32_t h = 1; h < n; h *= 2) {
      for (uint32_t i = self_.id(); i < dim / 2 * kQueries; i += self_.count()) {
        const uint32_t q = i % kQueries;
        const uint32_t pair = i / kQueries;
        const uint32_t d = pair / h * 2 * h + pair % h;
        const float a = query()[d][q];
        const float b = query()[d + h][q];
        query()[d][q] = a + b;
        query()[d + h][q] = a - b;
      }
      self_.Sync();
    }
    const auto factor = static_cast<float>(1.0 / std::sqrt(static_cast<double>(n)));
    for (uint32_t i = self_.id(); i < dim * kQueries; i += self_.count()) {
      query()[i / kQueries][i % kQueries] *= factor;
    }
    self_.Sync();
  }

  QUIRE_KERNEL void FixQueries() {
    const uint32_t dim = shape_.key.dim;
    ForPartials([&](uint32_t q, uint32_t j, uint32_t) {
      uint32_t largest = 0;
      for (uint32_t d = j; d < dim; d += kPartials) {
        largest = std::max(largest, attention::MagnitudeBits(query()[d][q]));
      }
      shared().largest[0][q][j] = largest;
    });
    self_.Sync();
    ForPartials([&](uint32_t q, uint32_t j, uint32_t) {
      const attention::FixedScale scale = attention::FixedScaleOf(Largest(0, q));
      for (uint32_t word = j; word < FixedWords(dim); word += kPartials) {
        int32_t numbers[2] = {};
        for (uint32_t i = 0; i < 2; ++i) {
          const uint32_t d = word * 2 + i;
          if (d < dim && scale.inverse != 0.0f)
            numbers[i] = NearestEven(query()[d][q] * scale.inverse);
        }
        fixed_query()[word][q] = PairOf16(numbers[0], numbers[1]);
      }
      if (j != 0) return;
      float sum = 0.0f;
      for (uint32_t d = 0; d < dim; ++d) sum += query()[d][q];
      shared().query_sum[q] = sum;
      shared().query_unit[q] = scale.unit;
    });
    self_.Sync();
  }

  /// f(query vector, partial sum, turn), one thread each: several turns where there are more than
  /// threads.
  template <typename F>
  QUIRE_KERNEL void ForPartials(const F& f) {
    QUIRE_DEVICE_UNROLL
    for (uint32_t turn = 0; turn < kTurns; ++turn) {
      const uint32_t i = turn * kAttendThreads + self_.id();
      if (i < kQueries * kPartials) f(i / kPartials, i % kPartials, turn);
    }
  }
  static constexpr uint32_t kTurns = DivUp(kQueries * kPartials, kAttendThreads);

  QUIRE_KERNEL uint32_t Largest(uint32_t group, uint32_t q) const {
    uint32_t largest = 0;
    for (uint32_t j = 0; j < kPartials; ++j) {
      largest = std::max(largest, shared().largest[group][q][j]);
    }
    return largest;
  }

  // Tokens and blocks.

  QUIRE_KERNEL uint64_t TokenAt(uint32_t in_split) const {
    return split_ * kSplitTokens + in_split;
  }
  QUIRE_KERNEL uint32_t InBlock(uint32_t in_split) const {
    return static_cast<uint32_t>(TokenAt(in_split) % shape_.key.block_tokens);
  }
  QUIRE_KERNEL const std::byte* SlotOf(const BlockTable& table, uint32_t in_split) const {
    return table.BlockAt(tile_->sequence, TokenAt(in_split) / shape_.key.block_tokens);
  }
  QUIRE_KERNEL const std::byte* PlaneOf(const StreamLayout& stream, const std::byte* slot) const {
    return slot + stream.offset_bytes + kv_head_ * stream.head_stride_bytes;
  }

  QUIRE_KERNEL bool IsSeen(uint64_t position, uint64_t token) const {
    if (token > position) return false;
    return shape_.window_tokens == 0 || token + shape_.window_tokens > position ||
           token < shape_.sink_tokens;
  }

  /// Every query vector sees every token of the split, sealed.
  QUIRE_KERNEL bool AllSealed() const {
    const uint64_t first = split_ * kSplitTokens;
    const uint64_t end = first + kSplitTokens;
    const bool in_window = shape_.window_tokens == 0 ||
                           first + shape_.window_tokens > tile_->position_max ||
                           end <= shape_.sink_tokens;
    return in_window &&
           end <= attention::FirstOpenBlock(shape_, tile_->position_min) * shape_.key.block_tokens;
  }

  // Scores.

  QUIRE_KERNEL void Scores() {
    Keys::With(shape_.key.codec, [&](auto format) { ScoresOf<decltype(format)>(); });
    Values::With(shape_.value.codec, [&](auto format) { ValueScales<decltype(format)>(); });
    for (uint32_t g = self_.id(); g < kGroups; g += self_.count()) shared().group_seen[g] = 0;
  }

  /// The two tokens of thread `i`: neighbours, or, where a word of codes has both, eight apart.
  template <class Format>
  QUIRE_KERNEL static uint32_t TokenOf(uint32_t i, uint32_t which) {
    if constexpr (Format::kLayout >= codec::CodeLayout::kNibbleTiles) {
      return i / 8 * codec::kTileLanes + i % 8 + which * 8;
    } else {
      return i * 2 + which;
    }
  }

  template <class Format>
  QUIRE_KERNEL void ScoresOf() {
    for (uint32_t i = self_.id(); i < kSplitTokens / 2; i += self_.count()) {
      const uint32_t tokens[2] = {TokenOf<Format>(i, 0), TokenOf<Format>(i, 1)};
      uint32_t seen[2] = {};
      uint32_t open[2] = {};
      for (uint32_t q = 0; q < tile_->queries(); ++q) {
        const uint64_t position = RowOf(args_, *tile_, q).position;
        const uint64_t first_open =
            attention::FirstOpenBlock(shape_, position) * shape_.key.block_tokens;
        for (uint32_t w = 0; w < 2; ++w) {
          const uint64_t token = TokenAt(tokens[w]);
          seen[w] |= (IsSeen(position, token) ? 1u : 0u) << q;
          open[w] |= (token >= first_open ? 1u : 0u) << q;
        }
      }
      for (uint32_t w = 0; w < 2; ++w) {
        shared().seen[tokens[w]] = seen[w];
        shared().open[tokens[w]] = open[w] & seen[w];
      }
      const uint32_t sealed = (seen[0] & ~open[0]) | (seen[1] & ~open[1]);
      if (sealed != 0) SealedScores<Format>(tokens, sealed);
      if (((seen[0] & open[0]) | (seen[1] & open[1])) != 0) OpenScores(tokens);
    }
  }

  template <class Format>
  QUIRE_KERNEL void SealedScores(const uint32_t (&tokens)[2], uint32_t wanted) {
    const StreamLayout& stream = shape_.key;
    const std::byte* slot = SlotOf(args_.tables.sealed, tokens[0]);
    const std::byte* plane = PlaneOf(stream, slot);
    const uint32_t in_block = InBlock(tokens[0]);
    float score[2][kQueries];
    if constexpr (kIsInteger<Format>) {
      IntegerScores<Format>(plane, in_block, score);
    } else {
      ValueScores<Format>(plane, in_block, score);
    }
    for (uint32_t w = 0; w < 2; ++w) {
      float scale = 1.0f;
      float mid = 0.0f;
      if constexpr (kEncodes<Format>) {
        const std::byte* at = slot + codec::ScaleAt(stream, kv_head_, InBlock(tokens[w]));
        scale = WidenF16(Load<uint16_t>(at));
        if (Format::kHasMids) mid = WidenF16(LoadHalf(at, stream.block_tokens));
      }
      QUIRE_DEVICE_UNROLL
      for (uint32_t q = 0; q < kQueries; ++q) {
        float value = score[w][q];
        if constexpr (Format::kHasMids) {
          value = Fma(scale, value, mid * shared().query_sum[q]);
        } else if constexpr (kEncodes<Format>) {
          value = value * scale;
        }
        if ((wanted >> q & 1u) != 0) shared().score[tokens[w]][q] = value;
      }
    }
  }

  /// Tokens in_block and in_block + 1.
  template <class Format>
  QUIRE_KERNEL void ValueScores(const std::byte* plane, uint32_t in_block,
                                float (&score)[2][kQueries]) {
    const StreamLayout& stream = shape_.key;
    const bool by_token = stream.inner == InnerAxis::kToken;
    const uint64_t step = by_token ? stream.block_tokens : 1;
    const uint64_t apart = by_token ? 1 : stream.dim;
    uint64_t at = by_token ? in_block : uint64_t{in_block} * stream.dim;
    QUIRE_DEVICE_UNROLL
    for (uint32_t q = 0; q < kQueries; ++q) score[0][q] = score[1][q] = 0.0f;
    QUIRE_DEVICE_UNROLL_BY(8)
    for (uint32_t d = 0; d < stream.dim; ++d, at += step) {
      const float first = LoadNumber<Format>(plane, at);
      const float second = LoadNumber<Format>(plane, at + apart);
      QUIRE_DEVICE_UNROLL
      for (uint32_t q = 0; q < kQueries; ++q) {
        score[0][q] = Fma(query()[d][q], first, score[0][q]);
        score[1][q] = Fma(query()[d][q], second, score[1][q]);
      }
    }
  }

  template <class Format>
  QUIRE_KERNEL void IntegerScores(const std::byte* plane, uint32_t in_block,
                                  float (&score)[2][kQueries]) {
    constexpr codec::CodeLayout kLayout = Format::kLayout;
    const uint32_t dim = shape_.key.dim;
    const uint32_t lane = in_block % codec::kTileLanes;
    const std::byte* column =
        plane + in_block / codec::kTileLanes * codec::ColumnBytes(kLayout, InnerAxis::kToken, dim);
    int32_t sum[2][kQueries] = {};
    const auto add = [&](uint32_t word, uint32_t bytes) {
      QUIRE_DEVICE_UNROLL
      for (uint32_t q = 0; q < kQueries; ++q) {
        sum[0][q] = DotPair<false>(fixed_query()[word][q], bytes, sum[0][q]);
        sum[1][q] = DotPair<true>(fixed_query()[word][q], bytes, sum[1][q]);
      }
    };
    if constexpr (kLayout == codec::CodeLayout::kByteTiles) {
      const std::byte* at = column + uint64_t{lane} * 2;
      QUIRE_DEVICE_UNROLL_BY(8)
      for (uint32_t s = 0; s < DivUp(dim, 2u); ++s) {
        add(s, LoadStep(at, s));
      }
    } else if constexpr (kLayout == codec::CodeLayout::kNibbleTiles) {
      const std::byte* at = column + uint64_t{lane} * 4;
      QUIRE_DEVICE_UNROLL_BY(4)
      for (uint32_t s = 0; s < DivUp(dim, 4u); ++s) {
        const NibbleStep step = ReadNibbles<Format>(LoadStep(at, s));
        add(2 * s, step.first);
        add(2 * s + 1, step.second);
      }
    } else {
      const uint32_t tiles = DivUp(codec::PairCount(InnerAxis::kToken, dim), codec::kPairTileTerms);
      for (uint32_t t = 0; t < tiles; ++t) {
        const std::byte* at = column + uint64_t{t} * codec::kPairTileBytes + uint64_t{lane} * 4;
        const auto signs = LoadStep(at, 4);
        QUIRE_DEVICE_UNROLL
        for (uint32_t s = 0; s < 4; ++s) {
          const PairStep step = ReadPairs(LoadStep(at, s), signs, s);
          const uint32_t word = (t * 4 + s) * 4;
          add(word, step.first.first);
          add(word + 1, step.second.first);
          add(word + 2, step.first.second);
          add(word + 3, step.second.second);
        }
      }
    }
    constexpr float kUnit = 1.0f / Format::kDivisor;
    QUIRE_DEVICE_UNROLL
    for (uint32_t w = 0; w < 2; ++w) {
      QUIRE_DEVICE_UNROLL
      for (uint32_t q = 0; q < kQueries; ++q) {
        score[w][q] = static_cast<float>(sum[w][q]) * (shared().query_unit[q] * kUnit);
      }
    }
  }

  QUIRE_KERNEL void OpenScores(const uint32_t (&tokens)[2]) {
    const StreamLayout& stream = attention::OpenKey(shape_);
    for (const uint32_t token : tokens) {
      const uint32_t wanted = shared().open[token];
      if (wanted == 0) continue;
      const std::byte* plane = PlaneOf(stream, SlotOf(args_.tables.open, token));
      float score[kQueries] = {};
      for (uint32_t d = 0; d < stream.dim; ++d) {
        const float value = LoadOpen(stream, plane, InBlock(token), d);
        QUIRE_DEVICE_UNROLL
        for (uint32_t q = 0; q < kQueries; ++q) score[q] = Fma(query()[d][q], value, score[q]);
      }
      QUIRE_DEVICE_UNROLL
      for (uint32_t q = 0; q < kQueries; ++q) {
        if ((wanted >> q & 1u) != 0) shared().score[token][q] = score[q];
      }
    }
  }

  /// Scales and mids of V, of tokens that some query vector reads sealed.
  template <class Format>
  QUIRE_KERNEL void ValueScales() {
    if constexpr (kEncodes<Format>) {
      self_.Sync();  // `seen` and `open`
      for (uint32_t t = self_.id(); t < kSplitTokens; t += self_.count()) {
        if ((shared().seen[t] & ~shared().open[t]) == 0) continue;
        const std::byte* at =
            SlotOf(args_.tables.sealed, t) + codec::ScaleAt(shape_.value, kv_head_, InBlock(t));
        shared().value_scale[t] = WidenF16(Load<uint16_t>(at));
        if (Format::kHasMids) {
          shared().value_mid[t] = WidenF16(LoadHalf(at, shape_.value.block_tokens));
        }
      }
    }
  }

  // Weights.

  QUIRE_KERNEL void PartialMax() {
    ForPartials([&](uint32_t q, uint32_t j, uint32_t) {
      float max = kNothingSeen;
      for (uint32_t t = j; t < kSplitTokens; t += kPartials) {
        if ((shared().seen[t] >> q & 1u) != 0) max = std::max(max, shared().score[t][q]);
      }
      shared().partial[q][j] = max;
    });
  }

  QUIRE_KERNEL void Weights() {
    Values::With(shape_.value.codec, [&](auto format) { WeightsOf<decltype(format)>(); });
  }

  template <class Format>
  QUIRE_KERNEL void WeightsOf() {
    ForPartials([&](uint32_t q, uint32_t j, uint32_t turn) {
      float max = kNothingSeen;
      for (uint32_t i = 0; i < kPartials; ++i) max = std::max(max, shared().partial[q][i]);
      max += 0.0f;
      float sum = 0.0f;
      float mid_sum = 0.0f;
      for (uint32_t g = 0; g < kGroups; ++g) {
        uint32_t largest = 0;
        bool some_sealed = false;
        for (uint32_t i = 0; i < attention::kGroupTokens; i += kPartials) {
          const uint32_t t = g * attention::kGroupTokens + i + j;
          if ((shared().seen[t] >> q & 1u) == 0) continue;
          const float e = attention::Exp(shared().score[t][q] - max);
          sum += e;
          float weight = e;
          if constexpr (kEncodes<Format>) {
            if ((shared().open[t] >> q & 1u) == 0) {
              weight = e * shared().value_scale[t];
              if constexpr (Format::kHasMids) mid_sum = Fma(e, shared().value_mid[t], mid_sum);
              largest = std::max(largest, attention::MagnitudeBits(weight));
              some_sealed = true;
            }
          }
          shared().score[t][q] = weight;
        }
        if constexpr (kIsInteger<Format>) {
          shared().largest[g][q][j] = largest;
          if (some_sealed) Mark(g, q);
        }
      }
      // other threads still read `partial`
      shared().mid_partial[q][j] = mid_sum;
      sums_[turn] = sum;
      if (j == 0) shared().max[q] = max;
    });
  }

  QUIRE_KERNEL void Mark(uint32_t group, uint32_t q) {
#if defined(__CUDA_ARCH__)
    atomicOr(&shared().group_seen[group], 1u << q);
#else
    shared().group_seen[group] |= 1u << q;
#endif
  }

  QUIRE_KERNEL void Finish() {
    ForPartials(
        [&](uint32_t q, uint32_t j, uint32_t turn) { shared().partial[q][j] = sums_[turn]; });
    Values::With(shape_.value.codec, [&](auto format) {
      if constexpr (kIsInteger<decltype(format)>) FixWeights();
    });
    self_.Sync();
    for (uint32_t q = self_.id(); q < tile_->queries(); q += self_.count()) {
      shared().mid_sum[q] = 0.0f + Tree16(shared().mid_partial[q]);
      const bool nothing = shared().max[q] == kNothingSeen;
      args_.states.max[states_ + q] = shared().max[q];
      args_.states.sum[states_ + q] = nothing ? 0.0f : Tree16(shared().partial[q]);
    }
  }

  QUIRE_KERNEL void FixWeights() {
    ForPartials([&](uint32_t q, uint32_t j, uint32_t) {
      for (uint32_t g = 0; g < kGroups; ++g) {
        const attention::FixedScale scale = attention::FixedScaleOf(Largest(g, q));
        if (j == 0) shared().weight_unit[g][q] = scale.unit;
        for (uint32_t i = j; i < attention::kGroupTokens / 2; i += kPartials) {
          const uint32_t word = g * (attention::kGroupTokens / 2) + i;
          shared().fixed_weight[word][q] =
              PairOf16(FixedWeight(word * 2, q, scale), FixedWeight(word * 2 + 1, q, scale));
        }
      }
    });
  }

  QUIRE_KERNEL int32_t FixedWeight(uint32_t t, uint32_t q, const attention::FixedScale& scale) {
    const bool sealed = (shared().seen[t] >> q & 1u) != 0 && (shared().open[t] >> q & 1u) == 0;
    return sealed && scale.inverse != 0.0f ? NearestEven(shared().score[t][q] * scale.inverse) : 0;
  }

  // Values.

  QUIRE_KERNEL void SumValues() {
    Values::With(shape_.value.codec, [&](auto format) {
      using Format = decltype(format);
      if constexpr (kIsInteger<Format>) {
        IntegerValues<Format>();
      } else {
        for (uint32_t c = self_.id(); c < shape_.value.dim; c += self_.count()) {
          PlainValues<Format>(c);
        }
      }
    });
  }

  QUIRE_KERNEL void Store(uint32_t channel, const float (&out)[kQueries]) {
    QUIRE_DEVICE_UNROLL
    for (uint32_t q = 0; q < kQueries; ++q) {
      if (q >= tile_->queries()) continue;
      args_.states.out[(states_ + q) * shape_.value.dim + channel] = out[q];
    }
  }

  /// One channel of values as they are, or of fp8.
  template <class Format>
  QUIRE_KERNEL void PlainValues(uint32_t channel) {
    const StreamLayout& stream = shape_.value;
    float out[kQueries] = {};
    if (AllSealed()) {
      for (uint32_t column = 0; column < kColumns; ++column) {
        const uint32_t first = column * codec::kTileLanes;
        const std::byte* plane = PlaneOf(stream, SlotOf(args_.tables.sealed, first));
        const uint64_t at = uint64_t{InBlock(first)} * stream.dim + channel;
        float value[codec::kTileLanes];
        QUIRE_DEVICE_UNROLL
        for (uint32_t t = 0; t < codec::kTileLanes; ++t) {
          value[t] = LoadNumber<Format>(plane, at + uint64_t{t} * stream.dim);
        }
        QUIRE_DEVICE_UNROLL
        for (uint32_t t = 0; t < codec::kTileLanes; ++t) {
          QUIRE_DEVICE_UNROLL
          for (uint32_t q = 0; q < kQueries; ++q) {
            out[q] = Fma(shared().score[first + t][q], value[t], out[q]);
          }
        }
      }
    } else {
      for (uint32_t t = 0; t < kSplitTokens; ++t) {
        const uint32_t sealed = shared().seen[t] & ~shared().open[t];
        if (sealed != 0) {
          const std::byte* plane = PlaneOf(stream, SlotOf(args_.tables.sealed, t));
          AddTo(out, sealed, t,
                LoadNumber<Format>(plane, uint64_t{InBlock(t)} * stream.dim + channel));
        }
        AddOpen(out, t, channel);
      }
    }
    Store(channel, out);
  }

  QUIRE_KERNEL void AddTo(float (&out)[kQueries], uint32_t wanted, uint32_t t, float value) {
    QUIRE_DEVICE_UNROLL
    for (uint32_t q = 0; q < kQueries; ++q) {
      if ((wanted >> q & 1u) != 0) out[q] = Fma(shared().score[t][q], value, out[q]);
    }
  }

  QUIRE_KERNEL void AddOpen(float (&out)[kQueries], uint32_t t, uint32_t channel) {
    if (shared().open[t] == 0) return;
    const StreamLayout& stream = attention::OpenValue(shape_);
    const std::byte* plane = PlaneOf(stream, SlotOf(args_.tables.open, t));
    AddTo(out, shared().open[t], t, LoadOpen(stream, plane, InBlock(t), channel));
  }

  /// Channels that one thread sums: those of one word of codes.
  template <class Format>
  static constexpr uint32_t kChannels = Format::kLayout == codec::CodeLayout::kPairTiles ? 4 : 2;

  template <class Format>
  QUIRE_KERNEL void IntegerValues() {
    constexpr codec::CodeLayout kLayout = Format::kLayout;
    const uint32_t dim = shape_.value.dim;
    const uint32_t tiles =
        DivUp(codec::CodeCount(kLayout, InnerAxis::kDim, dim), codec::kTileLanes);
    for (uint32_t unit = self_.id(); unit < tiles * 8; unit += self_.count()) {
      float out[kChannels<Format>][kQueries] = {};
      for (uint32_t g = 0; g < kGroups; ++g) {
        const uint32_t wanted = shared().group_seen[g];
        if (wanted != 0) AddGroup<Format>(unit, g, wanted, out);
      }
      for (uint32_t c = 0; c < kChannels<Format>; ++c) {
        const uint32_t channel = ChannelOf<Format>(unit, c);
        if (channel >= dim) continue;
        if (!AllSealed()) {
          for (uint32_t t = 0; t < kSplitTokens; ++t) AddOpen(out[c], t, channel);
        }
        if constexpr (Format::kHasMids) {
          QUIRE_DEVICE_UNROLL
          for (uint32_t q = 0; q < kQueries; ++q) out[c][q] += shared().mid_sum[q];
        }
        Store(channel, out[c]);
      }
    }
  }

  template <class Format>
  QUIRE_KERNEL static uint32_t ChannelOf(uint32_t unit, uint32_t which) {
    if constexpr (Format::kLayout == codec::CodeLayout::kByteTiles) {
      return unit * 2 + which;
    } else if constexpr (Format::kLayout == codec::CodeLayout::kNibbleTiles) {
      return unit / 8 * codec::kTileLanes + unit % 8 + which * 8;
    } else {
      return unit / 8 * 2 * codec::kTileLanes + unit % 8 + which * 8;
    }
  }

  /// Tokens [64 g, 64 g + 64) of the split: whole numbers, whose sum is exact.
  template <class Format>
  QUIRE_KERNEL void AddGroup(uint32_t unit, uint32_t g, uint32_t wanted,
                             float (&out)[kChannels<Format>][kQueries]) {
    constexpr codec::CodeLayout kLayout = Format::kLayout;
    constexpr uint32_t kColumnsOfGroup = attention::kGroupTokens / codec::kTileLanes;
    const StreamLayout& stream = shape_.value;
    int32_t sum[kChannels<Format>][kQueries] = {};
    for (uint32_t column = g * kColumnsOfGroup; column < (g + 1) * kColumnsOfGroup; ++column) {
      const uint32_t first = column * codec::kTileLanes;
      const std::byte* slot = SealedColumn(first);
      if (slot == nullptr) continue;
      const std::byte* tile = PlaneOf(stream, slot) +
                              InBlock(first) / codec::kTileLanes *
                                  codec::ColumnBytes(kLayout, InnerAxis::kDim, stream.dim) +
                              unit / 8 * codec::TileBytes(kLayout, codec::kTileLanes) +
                              unit % 8 * 4;
      AddColumn<Format>(tile, first / 2, sum);
    }
    constexpr float kUnit = 1.0f / Format::kDivisor;
    QUIRE_DEVICE_UNROLL
    for (uint32_t c = 0; c < kChannels<Format>; ++c) {
      QUIRE_DEVICE_UNROLL
      for (uint32_t q = 0; q < kQueries; ++q) {
        if ((wanted >> q & 1u) == 0) continue;
        out[c][q] =
            Fma(static_cast<float>(sum[c][q]), shared().weight_unit[g][q] * kUnit, out[c][q]);
      }
    }
  }

  /// The slot of sixteen tokens if any of them is read sealed.
  QUIRE_KERNEL const std::byte* SealedColumn(uint32_t first) const {
    uint32_t wanted = 0;
    for (uint32_t t = first; t < first + codec::kTileLanes; ++t) {
      wanted |= shared().seen[t] & ~shared().open[t];
    }
    return wanted == 0 ? nullptr : SlotOf(args_.tables.sealed, first);
  }

  /// The words of one thread in a tile of sixteen tokens; `weights` is the word of the first two.
  template <class Format>
  QUIRE_KERNEL void AddColumn(const std::byte* tile, uint32_t weights,
                              int32_t (&sum)[kChannels<Format>][kQueries]) {
    const auto add = [&](uint32_t word, uint32_t bytes, uint32_t low, uint32_t high) {
      QUIRE_DEVICE_UNROLL
      for (uint32_t q = 0; q < kQueries; ++q) {
        const uint32_t pair = shared().fixed_weight[weights + word][q];
        sum[low][q] = DotPair<false>(pair, bytes, sum[low][q]);
        sum[high][q] = DotPair<true>(pair, bytes, sum[high][q]);
      }
    };
    if constexpr (Format::kLayout == codec::CodeLayout::kByteTiles) {
      QUIRE_DEVICE_UNROLL
      for (uint32_t s = 0; s < 8; ++s) add(s, LoadStep(tile, s), 0, 1);
    } else if constexpr (Format::kLayout == codec::CodeLayout::kNibbleTiles) {
      QUIRE_DEVICE_UNROLL
      for (uint32_t s = 0; s < 4; ++s) {
        const NibbleStep step = ReadNibbles<Format>(LoadStep(tile, s));
        add(2 * s, step.first, 0, 1);
        add(2 * s + 1, step.second, 0, 1);
      }
    } else {
      const auto signs = LoadStep(tile, 4);
      QUIRE_DEVICE_UNROLL
      for (uint32_t s = 0; s < 4; ++s) {
        const PairStep step = ReadPairs(LoadStep(tile, s), signs, s);
        add(2 * s, step.first.first, 0, 1);
        add(2 * s + 1, step.first.second, 0, 1);
        add(2 * s, step.second.first, 2, 3);
        add(2 * s + 1, step.second.second, 2, 3);
      }
    }
  }

  Thread& self_;
  const SplitsArgs& args_;
  const AttentionShape& shape_;
  const Tile* tile_ = nullptr;
  uint32_t kv_head_ = 0;
  uint64_t split_ = 0;
  uint64_t states_ = 0;
  float sums_[kTurns] = {};
};

}  // namespace quire::cuda

#endif  // QUIRE_CUDA_KERNELS_SPLITS_INL_H_
