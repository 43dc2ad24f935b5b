// Which kernels read a block, by codec and by form.
#include "attention/decode-inl.h"
#include "attention/encoded-inl.h"
#include "attention/halves_decode-inl.h"
#include "attention/pairs_decode-inl.h"
#include "attention/prefill-inl.h"
#include "attention/weigh-inl.h"
#include "hwy/highway.h"

#if defined(QUIRE_ATTENTION_FORMS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QUIRE_ATTENTION_FORMS_INL_H_
#undef QUIRE_ATTENTION_FORMS_INL_H_
#else
#define QUIRE_ATTENTION_FORMS_INL_H_
#endif

#include "base/check.h"

HWY_BEFORE_NAMESPACE();
namespace quire::attention::HWY_NAMESPACE {

/// The functions of one codec, for K and for V.
struct CodecFunctions {
  void (*stream_scores)(const float*, const StreamView&, const StreamView&, const Columns&, float*);
  void (*stream_values)(const ValueRun*, uint32_t, const StreamView&, const Columns*, const float*,
                        float*, size_t);
  void (*expand_key)(const std::byte*, size_t, size_t, float*);
  void (*expand_key_rows)(const std::byte*, size_t, size_t, float*);
  void (*expand_value)(const std::byte*, size_t, float*);
};

template <class Values>
constexpr CodecFunctions FunctionsOf() {
  return {&StreamScores<Values>, &StreamValues<Values>, &ExpandKey<Values>, &ExpandKeyRows<Values>,
          &ExpandValue<Values>};
}

/// K of codecs that encode is always token-contiguous.
template <class Values>
constexpr CodecFunctions EncodedFunctionsOf() {
  return {&StreamScores<Values>, &StreamValues<Values>, &ExpandKey<Values>, nullptr,
          &ExpandValue<Values>};
}

/// Of codes that are cheaper by way of halves, where there is one.
template <class Values>
constexpr CodecFunctions HalvesFunctionsOf() {
#if HWY_TARGET == HWY_AVX2
  return {&StreamHalfScores<Values>, &StreamHalfValues<Values>, &ExpandKey<Values>, nullptr,
          &ExpandValue<Values>};
#else
  return EncodedFunctionsOf<Values>();
#endif
}

/// Panels of pairs have functions of their own.
constexpr CodecFunctions PairFunctions() {
#if HWY_TARGET == HWY_AVX2
  return {&StreamHalfScores<PairValues>, &StreamHalfValues<PairValues>, nullptr, nullptr, nullptr};
#else
  return {&StreamPairScores, &StreamPairValues, nullptr, nullptr, nullptr};
#endif
}

inline CodecFunctions FunctionsFor(Codec codec) {
  switch (codec) {
    case Codec::kF32: return FunctionsOf<cn::F32Values>();
    case Codec::kF16: return FunctionsOf<cn::F16Values>();
    case Codec::kBf16: return FunctionsOf<cn::Bf16Values>();
    case Codec::kFp8E4m3: return HalvesFunctionsOf<Fp8E4m3Values>();
    case Codec::kFp8E5m2: return HalvesFunctionsOf<Fp8E5m2Values>();
    case Codec::kInt8: return EncodedFunctionsOf<Int8Values>();
    case Codec::kInt4: return HalvesFunctionsOf<Int4Values>();
    case Codec::kNf4: return HalvesFunctionsOf<Nf4Values>();
    case Codec::kFp4: return HalvesFunctionsOf<Fp4Values>();
    case Codec::kQ25: return PairFunctions();
    default: break;
  }
  QUIRE_CHECK_MSG(false, "codec was checked by Supports");
}

/// How blocks are laid out that are read sealed, or open.
struct Form {
  Form(const StreamLayout& key_layout, const StreamLayout& value_layout)
      : key(key_layout),
        value(value_layout),
        of_key(FunctionsFor(key.codec)),
        of_value(FunctionsFor(value.codec)) {}

  const StreamLayout& key;
  const StreamLayout& value;
  const CodecFunctions of_key;
  const CodecFunctions of_value;
};

/// One split of the walk: its place in the order of lanes, and what the rows see of it.
struct SplitView {
  const Columns* first() const { return &parts[parts[0].count == 0 ? 1 : 0]; }

  uint32_t lane_order = 0;  // lanes of the subtree in tree order: 0 .. kLanes / lane_step - 1
  uint64_t split = 0;
  Columns parts[2];  // sealed blocks, then the rows' own where it is laid out otherwise
};

}  // namespace quire::attention::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard
