#include "attention/kernels.h"

#include "base/amx.h"
#include "codec/rotate.h"

// Targets without a fused multiply-add cannot give the bits of docs/numerics.md, those without
// vectors of 256 bits the pairs of integer-inl.h; scalable vectors cannot be kept in arrays. The
// fallback that Highway wants is compiled to nothing.
#define HWY_DISABLED_TARGETS \
  (HWY_SSSE3 | HWY_SSE4 | HWY_NEON | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
// VNNI: sums of products without an addition of their own.
#define HWY_WANT_AVX3_DL
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attention/kernels.cc"
#include "hwy/foreach_target.h"
// foreach_target.h first
#include "hwy/highway.h"
#if HWY_TARGET != HWY_EMU128 && HWY_TARGET != HWY_SCALAR
#include "attention/item-inl.h"
#endif

HWY_BEFORE_NAMESPACE();
namespace quire::attention::HWY_NAMESPACE {

#if HWY_TARGET == HWY_EMU128 || HWY_TARGET == HWY_SCALAR

const Kernels* KernelsOfTarget(bool) { return nullptr; }

#else

States RunItem(const Item& item, const Scratch& scratch) {
  return ItemRun(item, scratch, nullptr).Run();
}

#if HWY_TARGET == HWY_AVX3_DL
States RunItemOnTiles(const Item& item, const Scratch& scratch) {
  if (!codec::HasIntegerCodes(item.shape->key.codec) &&
      !codec::HasIntegerCodes(item.shape->value.codec)) {
    return RunItem(item, scratch);
  }
  AmxTiles tiles;
  return ItemRun(item, scratch, &tiles).Run();
}
#endif

void MergeItem(const Item& item, const Scratch& scratch, const States& a, const States& b) {
  MergeStates(item.queries(), OutStride(item.shape->value.dim), scratch.factors, a, b);
}

/// The state of a sink is that of one token whose value is zero.
void MergeSinks(const Item& item, const Scratch& scratch, const States& states) {
  const uint32_t per_row = item.queries_per_row();
  const size_t out_stride = OutStride(item.shape->value.dim);
  const float* logits = item.shape->sink_logits + size_t{item.head_begin} * item.group();
  const States& sinks = scratch.split;  // no longer needed for splits
  for (uint32_t q = 0; q < item.queries(); ++q) sinks.max[q] = logits[q % per_row];
  std::fill_n(sinks.sum, item.queries(), 1.0f);
  std::fill_n(sinks.out, item.queries() * out_stride, 0.0f);
  MergeStates(item.queries(), out_stride, scratch.factors, states, sinks);
}

void FinishItem(const Item& item, const Scratch& scratch, const States& states) {
  if (item.shape->sink_logits != nullptr) MergeSinks(item, scratch, states);
  const Tag d;
  const uint32_t per_row = item.queries_per_row();
  const size_t dim = item.shape->value.dim;
  const size_t out_stride = OutStride(item.shape->value.dim);
  for (uint32_t q = 0; q < item.queries(); ++q) {
    const uint64_t vector = uint64_t{item.row_begin + q / per_row} * item.shape->query_heads +
                            uint64_t{item.head_begin} * item.group() + q % per_row;
    const float* from = states.out + q * out_stride;
    float* to = item.task->out + vector * dim;
    if (states.max[q] == kEmptyMax) {
      std::fill_n(to, dim, 0.0f);
      continue;
    }
    const Vec sum = hn::Set(d, states.sum[q]);
    size_t i = 0;
    for (; i + kVecLanes <= dim; i += kVecLanes) {
      hn::StoreU(hn::Div(hn::Load(d, from + i), sum), d, to + i);
    }
    for (; i < dim; ++i) to[i] = from[i] / states.sum[q];
    if (item.shape->value.rotated) codec::Rotate(to, 1, item.shape->value.dim);
  }
}

const char* TargetLabel() {
  switch (HWY_TARGET) {
    case HWY_AVX2: return "avx2";
    case HWY_AVX3: return "avx3";
    case HWY_AVX3_DL: return "avx3_dl";
    default: return "other";
  }
}

const Kernels* KernelsOfTarget([[maybe_unused]] bool amx) {
#if HWY_TARGET == HWY_AVX3_DL
  static const Kernels on_tiles = {"amx", &RunItemOnTiles, &MergeItem, &FinishItem};
  if (amx) return &on_tiles;
#endif
  static const Kernels kernels = {TargetLabel(), &RunItem, &MergeItem, &FinishItem};
  return &kernels;
}

#endif

}  // namespace quire::attention::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace quire::attention {

HWY_EXPORT(KernelsOfTarget);

const Kernels* BestKernels(bool amx) {
  return HWY_DYNAMIC_DISPATCH(KernelsOfTarget)(amx && UsableAmx().int8);
}

}  // namespace quire::attention
#endif  // HWY_ONCE
