// Which kernels read a block, by codec and by form.
#include "attention/amx-inl.h"
#include "attention/decode-inl.h"
#include "attention/f16_decode-inl.h"
#include "attention/integer_prefill-inl.h"
#include "attention/prefill-inl.h"
#include "attention/weigh-inl.h"
#include "codec/formats/fp8-inl.h"
#include "hwy/highway.h"

#if defined(QUIRE_ATTENTION_FORMS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QUIRE_ATTENTION_FORMS_INL_H_
#undef QUIRE_ATTENTION_FORMS_INL_H_
#else
#define QUIRE_ATTENTION_FORMS_INL_H_
#endif

#include "codec/formats.h"

HWY_BEFORE_NAMESPACE();
namespace quire::attention::HWY_NAMESPACE {

/// The functions of one codec, for K and for V.
struct CodecFunctions {
  void (*stream_scores)(const float*, const StreamView&, const StreamView&, const Columns&, float*,
                        LinesAhead*);
  void (*stream_values)(const ValueRun*, uint32_t, const StreamView&, const StreamView&,
                        const Columns*, const float*, float*, size_t, LinesAhead*);
  void (*expand_key)(const std::byte*, size_t, size_t, float*);
  void (*expand_key_rows)(const std::byte*, size_t, size_t, float*);
  void (*expand_value)(const std::byte*, size_t, float*);
  float weight_unit = 1.0f;  // what weights for stream_values are multiplied with
};

template <class Values>
constexpr CodecFunctions FunctionsOf() {
  return {&StreamScores<Values>, &StreamValues<Values>, &ExpandKey<Values>, &ExpandKeyRows<Values>,
          &ExpandValue<Values>};
}

/// Of fp8, whose K is always token-contiguous.
template <class Values>
constexpr CodecFunctions Fp8FunctionsOf() {
  return {&StreamHalfScores<Values>, &StreamHalfValues<Values>, &ExpandKey<Values>, nullptr,
          &ExpandValue<Values>,      Values::kF16Unit};
}

inline CodecFunctions FunctionsFor(Codec codec) {
  switch (codec) {
    case Codec::kF32: return FunctionsOf<cn::F32Values>();
    case Codec::kF16: return FunctionsOf<cn::F16Values>();
    case Codec::kBf16: return FunctionsOf<cn::Bf16Values>();
    default: break;
  }
  return codec::WithFormat(codec, [](auto format) -> CodecFunctions {
    using Format = decltype(format);
    if constexpr (codec::IntegerFormat<Format>) {
      return {};  // attention multiplies their integers, below
    } else {
      return Fp8FunctionsOf<cn::Fp8Values<Format>>();
    }
  });
}

/// The functions of a codec with integer codes; of others they are null.
struct IntegerFunctions {
  void (*fix_queries)(const float*, size_t, size_t, size_t, const IntegerValues&, int16_t*, float*,
                      int32_t*) = nullptr;
  void (*stream_scores)(const FixedQueries&, const StreamView&, const StreamView&, const Columns&,
                        float*, AmxTiles*, LinesAhead*) = nullptr;
  void (*stream_values)(const Columns&, const StreamView&, const StreamView&, const Columns*,
                        const FixedWeights&, float*, size_t, AmxTiles*, LinesAhead*) = nullptr;
  void (*expand_key)(const std::byte*, size_t, uint32_t, int16_t*) = nullptr;
  void (*expand_value)(const std::byte*, size_t, uint32_t, int16_t*) = nullptr;
  void (*score_tile)(const FixedQueries&, uint32_t, const int16_t*, size_t, const Columns&, float*,
                     AmxTiles*) = nullptr;
  void (*weigh_tile)(const FixedWeights&, uint32_t, const int16_t*, uint32_t, uint32_t, uint32_t,
                     float*, size_t, AmxTiles*) = nullptr;
  int32_t bias = 0;        // of the numbers that the streams multiply
  uint32_t key_slice = 1;  // query vectors that stream_scores takes together
};

template <Codec kCodec>
constexpr IntegerFunctions IntegerFunctionsOf() {
  return {&FixQueriesTogether,
          &StreamIntegerScores<kCodec>,
          &StreamIntegerValues<kCodec>,
          &ExpandIntegerKey<kCodec>,
          &ExpandIntegerValue<kCodec>,
          &ScoreIntegerTile,
          &WeighIntegerTile,
          kBias<kCodec>,
          kKeySlice<kCodec>};
}

#if HWY_TARGET == HWY_AVX3_DL
template <Codec kCodec>
constexpr IntegerFunctions AmxFunctionsOf() {
  return {&FixAmxQueries,
          &StreamAmxScores<kCodec>,
          &StreamAmxValues<kCodec>,
          &ExpandAmxKey<kCodec>,
          &ExpandAmxValue<kCodec>,
          &ScoreAmxTile,
          &WeighAmxTile,
          0,
          kAmxQueriesMax};
}
#endif

inline IntegerFunctions IntegerFunctionsFor(Codec codec, bool amx) {
  if (!codec::HasIntegerCodes(codec)) return {};
  return codec::WithFormat(codec, [&](auto format) -> IntegerFunctions {
    if constexpr (codec::IntegerFormat<decltype(format)>) {
#if HWY_TARGET == HWY_AVX3_DL
      if (amx) return AmxFunctionsOf<format.kCodec>();
#endif
      return IntegerFunctionsOf<format.kCodec>();
    }
    return {};
  });
}

/// How blocks are laid out that are read sealed, or open.
struct Form {
  Form(const StreamLayout& key_layout, const StreamLayout& value_layout, bool amx)
      : key(key_layout),
        value(value_layout),
        of_key(FunctionsFor(key.codec)),
        of_value(FunctionsFor(value.codec)),
        integer_key(IntegerFunctionsFor(key.codec, amx)),
        integer_value(IntegerFunctionsFor(value.codec, amx)) {}

  bool has_integer_keys() const { return codec::HasIntegerCodes(key.codec); }
  bool has_integer_values() const { return codec::HasIntegerCodes(value.codec); }

  const StreamLayout& key;
  const StreamLayout& value;
  const CodecFunctions of_key;
  const CodecFunctions of_value;
  const IntegerFunctions integer_key;
  const IntegerFunctions integer_value;
};

/// Whether rows that stream pay for matrix tiles: few query vectors use a tile too little, and
/// codes of pairs take long to expand.
inline bool PaysForTiles(const AttentionShape& shape, uint32_t queries_per_head) {
  const auto has_pairs = [](const StreamLayout& stream) {
    return codec::InfoOf(stream.codec).layout == codec::CodeLayout::kPairTiles;
  };
  return queries_per_head >= kAmxQueriesMin && !has_pairs(shape.key) && !has_pairs(shape.value);
}

/// Whether rows that stream fetch lines evenly (ahead-inl.h). Of fp8 the columns of a block are
/// contiguous only where it has one.
inline bool FetchesEvenly(const Form& sealed) {
  if (!kFetchesAhead) return false;
  if (sealed.has_integer_keys() || sealed.has_integer_values()) return true;
  return !IsIdentity(sealed.key.codec) && !IsIdentity(sealed.value.codec) &&
         sealed.key.block_tokens == kColumnTokens;
}

/// One split of the walk: its place in the order of lanes, and what the rows see of it.
struct SplitView {
  const Columns* first() const { return &forms[forms[0].count == 0 ? 1 : 0]; }

  uint32_t lane_order = 0;  // lanes of the subtree in tree order: 0 .. kLanes / lane_step - 1
  uint64_t split = 0;
  Columns forms[2];  // sealed blocks, then those read open where these are laid out otherwise
};

}  // namespace quire::attention::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard
