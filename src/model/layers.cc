#include "model/layers.h"

#include <cmath>
#include <cstddef>

#include "base/check.h"
#include "model/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "model/layers.cc"
#include "hwy/foreach_target.h"
// foreach_target.h first
#include "attention/math-inl.h"
#include "hwy/highway.h"
#include "model/simd-inl.h"

#ifndef QUIRE_MODEL_LAYERS_ONCE_
#define QUIRE_MODEL_LAYERS_ONCE_
namespace quire::model {

// One table per target and rounding, so that a row costs one indirect call.
struct OpTable {
  void (*norm)(const float* x, const float* weight, uint32_t n, float eps, float* out);
  void (*heads)(const HeadsOp& op, const float* x, const float* angles, float* out);
  void (*gate)(const float* gate, const float* up, uint32_t n, float* out);
  void (*add)(const float* y, uint32_t n, float* x);
  void (*round)(uint32_t n, float* x);
  void (*weigh)(const float* logits, uint32_t n, float temperature, float max, float* weights);
};

}  // namespace quire::model
#endif

HWY_BEFORE_NAMESPACE();
namespace quire::model::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
namespace math = attention::HWY_NAMESPACE;

constexpr size_t kPartials = 16;  // of StridedSum

using F32 = hn::CappedTag<float, kPartials>;
using Vec = hn::Vec<F32>;
constexpr size_t kLanes = hn::MaxLanes(F32());
constexpr size_t kSumVectors = kPartials / kLanes;

// Calls body(i, load, store) for whole vectors of [0, n), then for the rest with masks. The rest's
// missing lanes load as zero and are not stored.
template <class Body>
HWY_INLINE void ForVectors(size_t n, const Body& body) {
  const F32 d;
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    body([i, d](const float* p) HWY_ATTR { return hn::LoadU(d, p + i); },
         [i, d](Vec v, float* p) HWY_ATTR { hn::StoreU(v, d, p + i); });
  }
  if (i == n) return;
  const auto mask = hn::FirstN(d, n - i);
  body([i, d, mask](const float* p) HWY_ATTR { return hn::MaskedLoad(mask, d, p + i); },
       [i, d, mask](Vec v, float* p) HWY_ATTR { hn::BlendedStore(v, mask, d, p + i); });
}

// StridedSum of squares, then Tree16. A zero lane adds fma(0, 0, sum), which is sum.
HWY_INLINE float SumOfSquares(const float* x, size_t n) {
  const F32 d;
  Vec sums[kSumVectors];
  QUIRE_UNROLL
  for (size_t v = 0; v < kSumVectors; ++v) sums[v] = hn::Zero(d);
  size_t i = 0;
  for (; i + kPartials <= n; i += kPartials) {
    QUIRE_UNROLL
    for (size_t v = 0; v < kSumVectors; ++v) {
      const Vec value = hn::LoadU(d, x + i + v * kLanes);
      sums[v] = hn::MulAdd(value, value, sums[v]);
    }
  }
  QUIRE_UNROLL
  for (size_t v = 0; v < kSumVectors; ++v) {
    const size_t at = i + v * kLanes;
    if (at >= n) continue;
    const Vec value = hn::MaskedLoad(hn::FirstN(d, n - at), d, x + at);
    sums[v] = hn::MulAdd(value, value, sums[v]);
  }
  HWY_ALIGN float partials[kPartials];
  QUIRE_UNROLL
  for (size_t v = 0; v < kSumVectors; ++v) hn::Store(sums[v], d, partials + v * kLanes);
  for (size_t width = kPartials / 2; width > 0; width /= 2) {
    for (size_t j = 0; j < width; ++j) partials[j] += partials[j + width];
  }
  return partials[0];
}

template <ComputeType kRound>
HWY_INLINE void NormRow(const float* x, const float* weight, uint32_t n, float eps, float* out) {
  const F32 d;
  const float mean = SumOfSquares(x, n) / static_cast<float>(n);
  const Vec inverse = hn::Set(d, 1.0f / std::sqrt(mean + eps));
  ForVectors(n, [&](auto load, auto store) HWY_ATTR {
    const Vec normed = RoundTo<kRound>(d, hn::Mul(load(x), inverse));
    store(RoundTo<kRound>(d, hn::Mul(normed, load(weight))), out);
  });
}

template <ComputeType kRound>
HWY_INLINE void RotateHead(const float* angles, size_t half, const float* x, float* out) {
  const F32 d;
  const float* cosines = angles;
  const float* sines = angles + half;
  ForVectors(half, [&](auto load, auto store) HWY_ATTR {
    const Vec left = load(x);
    const Vec right = load(x + half);
    const Vec c = load(cosines);
    const Vec s = load(sines);
    store(RoundTo<kRound>(d, hn::MulAdd(left, c, hn::Neg(hn::Mul(right, s)))), out);
    store(RoundTo<kRound>(d, hn::MulAdd(right, c, hn::Mul(left, s))), out + half);
  });
}

void Weigh(const float* logits, uint32_t n, float temperature, float max, float* weights) {
  const F32 d;
  ForVectors(n, [&](auto load, auto store) HWY_ATTR {
    const Vec z = hn::Div(load(logits), hn::Set(d, temperature));
    const Vec weight = math::Exp(d, hn::Sub(z, hn::Set(d, max)));
    store(hn::IfThenZeroElse(hn::IsNaN(z), weight), weights);
  });
}

template <ComputeType kRound>
struct Ops {
  static void Norm(const float* x, const float* weight, uint32_t n, float eps, float* out) {
    NormRow<kRound>(x, weight, n, eps, out);
  }

  static void Heads(const HeadsOp& op, const float* x, const float* angles, float* out) {
    for (uint32_t head = 0; head < op.heads; ++head) {
      const float* from = x;
      if (op.norm_weight != nullptr) {
        NormRow<kRound>(x, op.norm_weight, op.head_dim, op.norm_eps, out);
        from = out;
      }
      RotateHead<kRound>(angles, op.head_dim / 2, from, out);
      x += op.head_dim;
      out += op.head_dim;
    }
  }

  static void Gate(const float* gate, const float* up, uint32_t n, float* out) {
    const F32 d;
    const Vec one = hn::Set(d, 1.0f);
    ForVectors(n, [&](auto load, auto store) HWY_ATTR {
      const Vec g = load(gate);
      const Vec silu = hn::Div(g, hn::Add(one, math::Exp(d, hn::Neg(g))));
      store(RoundTo<kRound>(d, hn::Mul(RoundTo<kRound>(d, silu), load(up))), out);
    });
  }

  static void Add(const float* y, uint32_t n, float* x) {
    const F32 d;
    ForVectors(n, [&](auto load, auto store)
                      HWY_ATTR { store(RoundTo<kRound>(d, hn::Add(load(x), load(y))), x); });
  }

  static void Round(uint32_t n, float* x) {
    const F32 d;
    ForVectors(n, [&](auto load, auto store) HWY_ATTR { store(RoundTo<kRound>(d, load(x)), x); });
  }
};

template <ComputeType kRound>
constexpr OpTable kTable = {Ops<kRound>::Norm, Ops<kRound>::Heads, Ops<kRound>::Gate,
                            Ops<kRound>::Add,  Ops<kRound>::Round, Weigh};

const OpTable* TableOf(ComputeType round) {
  switch (round) {
    case ComputeType::kF32: return &kTable<ComputeType::kF32>;
    case ComputeType::kF16: return &kTable<ComputeType::kF16>;
    case ComputeType::kBf16: return &kTable<ComputeType::kBf16>;
  }
  return nullptr;
}

}  // namespace quire::model::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace quire::model {
namespace {

HWY_EXPORT(TableOf);

const OpTable& Table(ComputeType round) {
  const OpTable* table = HWY_DYNAMIC_DISPATCH(TableOf)(round);
  QUIRE_CHECK(table != nullptr);
  return *table;
}

}  // namespace

bool CpuIsSupported() { return (hwy::SupportedTargets() & HWY_TARGETS) != 0; }

void RmsNorm(const float* x, const float* weight, uint32_t n, float eps, ComputeType round,
             float* out) {
  Table(round).norm(x, weight, n, eps, out);
}

void RotateHeads(const HeadsOp& op, const float* x, const float* angles, float* out) {
  Table(op.round).heads(op, x, angles, out);
}

void SwiGlu(const float* gate, const float* up, uint32_t n, ComputeType round, float* out) {
  Table(round).gate(gate, up, n, out);
}

void AddRow(const float* y, uint32_t n, ComputeType round, float* x) { Table(round).add(y, n, x); }

void WeighLogits(const float* logits, uint32_t n, float temperature, float max, float* weights) {
  Table(ComputeType::kF32).weigh(logits, n, temperature, max, weights);
}

void RoundValues(uint32_t n, ComputeType round, float* x) {
  if (round != ComputeType::kF32) Table(round).round(n, x);
}

}  // namespace quire::model
#endif  // HWY_ONCE
