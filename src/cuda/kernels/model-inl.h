// The kernels of a model's pass, with the bits of the CPU (docs/numerics.md section 3).
#ifndef QUIRE_CUDA_KERNELS_MODEL_INL_H_
#define QUIRE_CUDA_KERNELS_MODEL_INL_H_

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "attention/scalar.h"
#include "base/bits.h"
#include "base/float_bits.h"
#include "cuda/kernels/model.h"
#include "cuda/kernels/simt.h"

namespace quire::cuda {

inline constexpr uint32_t kPanelColumns = 16;

QUIRE_KERNEL float RoundTo(Round type, float value) {
  switch (type) {
    case Round::kF16: return F16ToF32(F32ToF16(value));
    case Round::kBf16: return Bf16ToF32(F32ToBf16(value));
    case Round::kF32: break;
  }
  return value;
}

template <Round kType>
QUIRE_KERNEL float LoadWeight(const std::byte* panel, uint64_t index) {
  if constexpr (kType == Round::kF32) return Load<float>(panel + index * 4);
  const auto code = Load<uint16_t>(panel + index * 2);
  return kType == Round::kF16 ? WidenF16(code) : Bf16ToF32(code);
}

/// f(constant) of a type.
template <typename F>
QUIRE_KERNEL void WithType(Round type, const F& f) {
  switch (type) {
    case Round::kF32: return f(std::integral_constant<Round, Round::kF32>());
    case Round::kF16: return f(std::integral_constant<Round, Round::kF16>());
    case Round::kBf16: return f(std::integral_constant<Round, Round::kBf16>());
  }
}

// Products. The inputs of a tile of rows lie in shared memory for some k at a time, rows last, so
// that a thread reads those of all rows at once.

inline constexpr uint32_t kMatmulDepth = 128;  // of k, at a time
inline constexpr uint32_t kMatmulSharedBytes = kMatmulDepth * kMatmulRows * 4;

constexpr uint32_t MatmulBlocks(const MatmulArgs& args) {
  return DivUp(args.w.n, kMatmulThreads) * DivUp(args.rows, kMatmulRows);
}

template <class Thread>
class MatmulKernel {
 public:
  QUIRE_KERNEL MatmulKernel(Thread& self, const MatmulArgs& args)
      : self_(self),
        args_(args),
        inputs_(reinterpret_cast<float (*)[kMatmulRows]>(self.shared())) {}

  QUIRE_KERNEL void Run() {
    WithType(args_.w.type, [&](auto type) { RunOf<type.value>(); });
  }

 private:
  template <Round kType>
  QUIRE_KERNEL void RunOf() {
    const uint32_t tiles = DivUp(args_.rows, kMatmulRows);
    const uint32_t first_row = self_.block() % tiles * kMatmulRows;
    const uint32_t rows = std::min(uint32_t{kMatmulRows}, args_.rows - first_row);
    const uint32_t column = self_.block() / tiles * kMatmulThreads + self_.id();
    const uint32_t k = args_.w.k;
    const uint64_t value_bytes = kType == Round::kF32 ? 4 : 2;
    const bool has_column = column < args_.w.n;
    const std::byte* panel = args_.w.data + (uint64_t{column / kPanelColumns} * k * kPanelColumns +
                                             column % kPanelColumns) *
                                                value_bytes;
    float sum[kMatmulRows] = {};
    for (uint32_t begin = 0; begin < k; begin += kMatmulDepth) {
      const uint32_t depth = std::min(uint32_t{kMatmulDepth}, k - begin);
      for (uint32_t i = self_.id(); i < kMatmulRows * depth; i += self_.count()) {
        const uint32_t row = i / depth;
        const uint32_t at = i % depth;
        const float x = row < rows ? args_.x[uint64_t{first_row + row} * k + begin + at] : 0.0f;
        inputs_[at][row] = RoundTo(args_.x_round, x);
      }
      self_.Sync();
      if (has_column) {
        const std::byte* from = panel + uint64_t{begin} * kPanelColumns * value_bytes;
        QUIRE_DEVICE_UNROLL_BY(16)
        for (uint32_t i = 0; i < depth; ++i) {
          const float weight = LoadWeight<kType>(from, uint64_t{i} * kPanelColumns);
          QUIRE_DEVICE_UNROLL
          for (uint32_t row = 0; row < kMatmulRows; ++row) {
            sum[row] = Fma(inputs_[i][row], weight, sum[row]);
          }
        }
      }
      self_.Sync();
    }
    if (!has_column) return;
    QUIRE_DEVICE_UNROLL
    for (uint32_t row = 0; row < kMatmulRows; ++row) {
      if (row >= rows) continue;
      const float value = args_.bias == nullptr ? sum[row] : sum[row] + args_.bias[column];
      args_.y[uint64_t{first_row + row} * args_.w.n + column] = RoundTo(args_.round, value);
    }
  }

  Thread& self_;
  const MatmulArgs& args_;
  float (*const inputs_)[kMatmulRows];  // [kMatmulDepth]
};

template <class Thread>
QUIRE_KERNEL void EmbedRow(Thread& self, const EmbedArgs& args) {
  const auto token = static_cast<uint32_t>(args.tokens[self.block()]);
  const uint32_t k = args.embedding.k;
  WithType(args.embedding.type, [&](auto type) {
    for (uint32_t i = self.id(); i < k; i += self.count()) {
      const uint64_t at = (uint64_t{token / kPanelColumns} * k + i) * kPanelColumns;
      args.hidden[uint64_t{self.block()} * k + i] =
          LoadWeight<type.value>(args.embedding.data, at + token % kPanelColumns);
    }
  });
  const uint64_t first = uint64_t{self.block()} * args.angle_values;
  for (uint32_t i = self.id(); i < args.angle_values; i += self.count()) {
    args.angles[first + i] = args.angles_from[first + i];
  }
}

// Norms. Sixteen threads have a partial sum of squares each; all have a share of the values.

// Values come to shared memory some at a time: all threads read and write memory, one value beside
// the other's.

inline constexpr uint32_t kNormedAtOnce = 2048;  // of a row
inline constexpr uint32_t kNormSharedBytes = (kNormedAtOnce + kPartials) * 4;

/// The factor of a row of n values, of which value(i) gives each once.
template <class Thread, typename ValueOf>
QUIRE_KERNEL float InverseNorm(Thread& self, uint32_t n, float eps, const ValueOf& value) {
  auto* const values = reinterpret_cast<float*>(self.shared());
  auto& partials = *reinterpret_cast<float(*)[kPartials]>(values + kNormedAtOnce);
  float sum = 0.0f;
  for (uint32_t begin = 0; begin < n; begin += kNormedAtOnce) {
    const uint32_t count = std::min(uint32_t{kNormedAtOnce}, n - begin);
    if (begin != 0) self.Sync();
    for (uint32_t i = self.id(); i < count; i += self.count()) values[i] = value(begin + i);
    self.Sync();
    if (self.id() >= kPartials) continue;
    QUIRE_DEVICE_UNROLL_BY(8)
    for (uint32_t i = self.id(); i < count; i += kPartials) sum = Fma(values[i], values[i], sum);
  }
  if (self.id() < kPartials) partials[self.id()] = sum;
  self.Sync();
  const float mean = Tree16(partials) / static_cast<float>(n);
  return 1.0f / std::sqrt(mean + eps);
}

template <class Thread>
QUIRE_KERNEL void NormRow(Thread& self, const NormArgs& args) {
  const uint32_t row = args.picks ? args.picked[self.block()] : self.block();
  float* const x = args.x + uint64_t{row} * args.n;
  float* const out = args.out + uint64_t{self.block()} * args.n;
  const float* const added = args.added == nullptr ? nullptr : args.added + uint64_t{row} * args.n;
  const float inverse = InverseNorm(self, args.n, args.eps, [&](uint32_t i) {
    if (added != nullptr) x[i] = RoundTo(args.round, x[i] + added[i]);
    return x[i];
  });
  // Each thread reads what it has written: kNormedAtOnce is a multiple of the threads.
  for (uint32_t i = self.id(); i < args.n; i += self.count()) {
    out[i] = RoundTo(args.round, RoundTo(args.round, x[i] * inverse) * args.weight[i]);
  }
}
static_assert(kNormedAtOnce % kModelThreads == 0 && kNormedAtOnce % kPartials == 0);

constexpr uint32_t HeadBlocks(const HeadsArgs& args) {
  return args.rows * (args.queries.heads + args.keys.heads);
}

/// One pair of channels each, of a head.
template <class Thread>
QUIRE_KERNEL void RotateHead(Thread& self, const HeadsArgs& args) {
  const uint32_t heads = args.queries.heads + args.keys.heads;
  const uint32_t row = self.block() / heads;
  const uint32_t number = self.block() % heads;
  const bool is_key = number >= args.queries.heads;
  const HeadKind& of = is_key ? args.keys : args.queries;
  const uint64_t first = uint64_t{is_key ? number - args.queries.heads : number} * args.head_dim;
  const float* const x = args.x + row * args.x_stride + uint64_t{number} * args.head_dim;
  float* const out = of.out + row * of.out_stride + first;
  const float* const angles = args.angles + uint64_t{row} * args.head_dim;
  float inverse = 1.0f;
  if (of.weight != nullptr) {
    inverse = InverseNorm(self, args.head_dim, args.eps, [&](uint32_t d) { return x[d]; });
  }
  const auto normed = [&](uint32_t d) {
    if (of.weight == nullptr) return x[d];
    return RoundTo(args.round, RoundTo(args.round, x[d] * inverse) * of.weight[d]);
  };
  const auto store = [&](uint32_t d, float value) {
    value = RoundTo(args.round, value);
    if (of.factors != nullptr) value *= of.factors[first + d];
    out[d] = value;
  };
  const uint32_t half = args.head_dim / 2;
  for (uint32_t i = self.id(); i < half; i += self.count()) {
    const float left = normed(i);
    const float right = normed(i + half);
    const float c = angles[i];
    const float s = angles[half + i];
    store(i, Fma(left, c, -(right * s)));
    store(i + half, Fma(right, c, left * s));
  }
}

/// Blocks of threads of operations on single values.
constexpr uint32_t ValueBlocks(uint64_t count) {
  return static_cast<uint32_t>(DivUp(count, uint64_t{kModelThreads}));
}

template <class Thread>
QUIRE_KERNEL void GateValue(Thread& self, const GateArgs& args) {
  const uint64_t i = uint64_t{self.block()} * self.count() + self.id();
  if (i >= uint64_t{args.rows} * args.n) return;
  const uint64_t row = i / args.n;
  const float gate = args.gate_up[row * 2 * args.n + i % args.n];
  const float up = args.gate_up[row * 2 * args.n + args.n + i % args.n];
  const float silu = RoundTo(args.round, gate / (1.0f + attention::Exp(-gate)));
  args.out[i] = RoundTo(args.round, silu * up);
}

template <class Thread>
QUIRE_KERNEL void AddValue(Thread& self, const AddArgs& args) {
  const uint64_t i = uint64_t{self.block()} * self.count() + self.id();
  if (i >= args.count) return;
  args.x[i] = RoundTo(args.round, args.x[i] + args.y[i]);
}

}  // namespace quire::cuda

#endif  // QUIRE_CUDA_KERNELS_MODEL_INL_H_
