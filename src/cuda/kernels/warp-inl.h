// Thirty-two threads together, as matrix instructions take them: the part of the kernel dialect
// (cuda/kernels/simt.h) for kernels that are written a warp at a time.
//
// On a device every thread has its lane of a warp. On the host a thread of HostGrid is a whole
// warp, so a block has as many threads as warps: a fragment holds the values of all lanes, and a
// loop over lanes is a loop. An iteration of such a loop must not read values that another one has
// written; the host runs the iterations alternately in ascending and in descending order, so that
// this is noticed.
#ifndef QUIRE_CUDA_KERNELS_WARP_INL_H_
#define QUIRE_CUDA_KERNELS_WARP_INL_H_

#include <bit>
#include <cstddef>
#include <cstdint>

#include "attention/scalar.h"
#include "base/float_bits.h"
#include "cuda/kernels/simt.h"
#include "quire/attention_types.h"

namespace quire::cuda {

inline constexpr uint32_t kWarpLanes = 32;

/// `kCount` values of each lane. On a device they are in registers where indices are known when the
/// kernel is compiled.
template <typename T, uint32_t kCount>
struct Fragment {
#if defined(__CUDACC__)
  QUIRE_KERNEL T& operator()(uint32_t lane, uint32_t i) {
    (void)lane;
    return value[i];
  }
  QUIRE_KERNEL const T& operator()(uint32_t lane, uint32_t i) const {
    (void)lane;
    return value[i];
  }
  T value[kCount];
#else
  T& operator()(uint32_t lane, uint32_t i) { return value[lane][i]; }
  const T& operator()(uint32_t lane, uint32_t i) const { return value[lane][i]; }
  T value[kWarpLanes][kCount];
#endif
};

/// A thread's view of its warp.
template <class Thread>
class Warp {
 public:
#if defined(__CUDACC__)
  QUIRE_KERNEL explicit Warp(Thread& self) : thread_(self.id()), threads_(self.count()) {}

  /// Which of its block.
  QUIRE_KERNEL uint32_t number() const { return thread_ / kWarpLanes; }
  QUIRE_KERNEL void Sync() const { __syncwarp(); }
  /// f(lane) for every lane.
  template <typename F>
  QUIRE_KERNEL void Lanes(const F& f) const {
    f(thread_ % kWarpLanes);
  }
  /// f() by one thread of the block.
  template <typename F>
  QUIRE_KERNEL void One(const F& f) const {
    if (thread_ == 0) f();
  }
  /// f(i) for every i below `count`, shared out among the threads of the block.
  template <typename F>
  QUIRE_KERNEL void Share(uint32_t count, const F& f) const {
    QUIRE_DEVICE_UNROLL_BY(1)  // beside what a warp has in registers there is no room
    for (uint32_t i = thread_; i < count; i += threads_) f(i);
  }
  /// The value of lane ^ mask.
  template <typename T, uint32_t kCount>
  QUIRE_KERNEL Fragment<T, kCount> Exchanged(const Fragment<T, kCount>& from, uint32_t mask) const {
    Fragment<T, kCount> to;
    QUIRE_DEVICE_UNROLL
    for (uint32_t i = 0; i < kCount; ++i) {
      to(0, i) = __shfl_xor_sync(0xffffffffu, from(0, i), mask);
    }
    return to;
  }

 private:
  const uint32_t thread_;
  const uint32_t threads_;
#else
  explicit Warp(Thread& self) : number_(self.id()), warps_(self.count()) {}

  uint32_t number() const { return number_; }
  void Sync() const {}
  template <typename F>
  void Lanes(const F& f) const {
    descending_ = !descending_;
    for (uint32_t i = 0; i < kWarpLanes; ++i) f(descending_ ? kWarpLanes - 1 - i : i);
  }
  template <typename F>
  void One(const F& f) const {
    if (number_ == 0) f();
  }
  template <typename F>
  void Share(uint32_t count, const F& f) const {
    Lanes([&](uint32_t lane) {
      for (uint32_t i = number_ * kWarpLanes + lane; i < count; i += warps_ * kWarpLanes) f(i);
    });
  }
  template <typename T, uint32_t kCount>
  Fragment<T, kCount> Exchanged(const Fragment<T, kCount>& from, uint32_t mask) const {
    Fragment<T, kCount> to;
    for (uint32_t lane = 0; lane < kWarpLanes; ++lane) {
      for (uint32_t i = 0; i < kCount; ++i) to(lane, i) = from(lane ^ mask, i);
    }
    return to;
  }

 private:
  const uint32_t number_;
  const uint32_t warps_;
  mutable bool descending_ = true;
#endif
};

// Numbers of sixteen bits: kType is Codec::kF16 or Codec::kBf16.

template <Codec kType>
QUIRE_KERNEL float Widen16(uint32_t code) {
  if constexpr (kType == Codec::kF16) return WidenF16(static_cast<uint16_t>(code));
  return Bf16ToF32(static_cast<uint16_t>(code));
}

/// To nearest even; `first` in the low half.
template <Codec kType>
QUIRE_KERNEL uint32_t Pack16(float first, float second) {
#if defined(__CUDA_ARCH__)
  uint32_t pair;
  if constexpr (kType == Codec::kF16) {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  } else {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  }
  return pair;
#else
  if constexpr (kType == Codec::kF16) return F32ToF16(first) | uint32_t{F32ToF16(second)} << 16;
  return F32ToBf16(first) | uint32_t{F32ToBf16(second)} << 16;
#endif
}

/// A number as a sum of two of sixteen bits: rounded, and the rounded rest.
struct HighLow {
  uint32_t high = 0;
  uint32_t low = 0;
};

template <Codec kType>
QUIRE_KERNEL HighLow Split16(float first, float second) {
  const uint32_t high = Pack16<kType>(first, second);
  return {high, Pack16<kType>(first - Widen16<kType>(high & 0xffffu),
                              second - Widen16<kType>(high >> 16))};
}

/// A mask of two numbers: all of it, or without the first (0) or the second (1).
QUIRE_KERNEL uint32_t HalfOrAll(uint32_t without, bool all) {
  const uint32_t half = without == 0 ? 0xffff0000u : 0x0000ffffu;
  return all ? ~0u : half;
}

/// f(constant) of a type of sixteen bits.
template <typename F>
QUIRE_KERNEL void With16(Codec type, const F& f) {
  if (type == Codec::kF16) return f(std::integral_constant<Codec, Codec::kF16>());
  f(std::integral_constant<Codec, Codec::kBf16>());
}

// Matrices. Lane l has, with g = l / 4 and c = 2 (l % 4), two values to a word:
//   a, 16 rows of 16: (g, c) (g + 8, c) (g, c + 8) (g + 8, c + 8)
//   b, 16 rows of 8:  rows c, c + 1 and c + 8, c + 9 of column g
//   sums, 16 of 8:    (g, c) (g, c + 1) (g + 8, c) (g + 8, c + 1), a value each
// So sums that are packed in pairs and transposed are a `b`.

/// Four 8 x 8 matrices from shared memory. row_of(lane) is where row lane % 8 of matrix lane / 8
/// begins, aligned to 16 bytes. Word i of lane l has values l % 4 * 2 and one more of row l / 4 of
/// matrix i; transposed: of column l / 4.
template <bool kTransposed, typename RowOf>
QUIRE_KERNEL Fragment<uint32_t, 4> LoadMatrices(const RowOf& row_of) {
  Fragment<uint32_t, 4> to;
#if defined(__CUDA_ARCH__)
  const auto address = static_cast<uint32_t>(
      __cvta_generic_to_shared(row_of(static_cast<uint32_t>(threadIdx.x) % kWarpLanes)));
  if constexpr (kTransposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to(0, 0)), "=r"(to(0, 1)), "=r"(to(0, 2)), "=r"(to(0, 3))
                 : "r"(address)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to(0, 0)), "=r"(to(0, 1)), "=r"(to(0, 2)), "=r"(to(0, 3))
                 : "r"(address)
                 : "memory");
  }
#else
  const uint16_t* rows[kWarpLanes];
  for (uint32_t lane = 0; lane < kWarpLanes; ++lane) rows[lane] = row_of(lane);
  for (uint32_t lane = 0; lane < kWarpLanes; ++lane) {
    const uint32_t row = lane / 4;
    const uint32_t column = lane % 4 * 2;
    for (uint32_t i = 0; i < 4; ++i) {
      const uint16_t* const* matrix = rows + size_t{i} * 8;
      to(lane, i) = kTransposed ? matrix[column][row] | uint32_t{matrix[column + 1][row]} << 16
                                : matrix[row][column] | uint32_t{matrix[row][column + 1]} << 16;
    }
  }
#endif
  return to;
}

/// Every word is an 8 x 8 matrix of values of sixteen bits, (g, c) and (g, c + 1) of each lane.
template <uint32_t kCount>
QUIRE_KERNEL Fragment<uint32_t, kCount> Transposed(const Fragment<uint32_t, kCount>& from) {
  Fragment<uint32_t, kCount> to;
#if defined(__CUDA_ARCH__)
  QUIRE_DEVICE_UNROLL
  for (uint32_t i = 0; i < kCount; ++i) {
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(to(0, i)) : "r"(from(0, i)));
  }
#else
  for (uint32_t lane = 0; lane < kWarpLanes; ++lane) {
    const uint32_t column = lane / 4;
    const uint32_t row = lane % 4 * 2;
    for (uint32_t i = 0; i < kCount; ++i) {
      const auto value = [&](uint32_t r) {
        return from(r * 4 + column / 2, i) >> column % 2 * 16 & 0xffffu;
      };
      to(lane, i) = value(row) | value(row + 1) << 16;
    }
  }
#endif
  return to;
}

#if !defined(__CUDACC__)
/// MultiplyAdd on the host: products are exact, sums ascend, each rounded once. The sum of a device
/// is another one, which no document of its maker fixes (docs/numerics.md section 5).
template <Codec kType, uint32_t kCount, uint32_t kWords>
void EmulateMultiplyAdd(Fragment<float, kCount>& sums, uint32_t at, const Fragment<uint32_t, 4>& a,
                        const Fragment<uint32_t, kWords>& b, uint32_t b_at) {
  float rows[16][16];
  float columns[8][16];
  for (uint32_t lane = 0; lane < kWarpLanes; ++lane) {
    const uint32_t g = lane / 4;
    const uint32_t c = lane % 4 * 2;
    for (uint32_t half = 0; half < 2; ++half) {
      for (uint32_t i = 0; i < 4; ++i) {
        rows[g + i % 2 * 8][c + i / 2 * 8 + half] =
            Widen16<kType>(a(lane, i) >> half * 16 & 0xffffu);
      }
      for (uint32_t i = 0; i < 2; ++i) {
        columns[g][c + i * 8 + half] = Widen16<kType>(b(lane, b_at + i) >> half * 16 & 0xffffu);
      }
    }
  }
  for (uint32_t lane = 0; lane < kWarpLanes; ++lane) {
    for (uint32_t i = 0; i < 4; ++i) {
      const float* const row = rows[lane / 4 + i / 2 * 8];
      const float* const column = columns[lane % 4 * 2 + i % 2];
      float sum = sums(lane, at + i);
      for (uint32_t k = 0; k < 16; ++k) sum = Fma(row[k], column[k], sum);
      sums(lane, at + i) = sum;
    }
  }
}
#endif

/// sums [at, at + 4) += a times b, whose two words begin at b_at.
template <Codec kType, uint32_t kCount, uint32_t kWords>
QUIRE_KERNEL void MultiplyAdd(Fragment<float, kCount>& sums, uint32_t at,
                              const Fragment<uint32_t, 4>& a, const Fragment<uint32_t, kWords>& b,
                              uint32_t b_at) {
#if defined(__CUDA_ARCH__)
  if constexpr (kType == Codec::kF16) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sums(0, at)), "+f"(sums(0, at + 1)), "+f"(sums(0, at + 2)), "+f"(sums(0, at + 3))
        : "r"(a(0, 0)), "r"(a(0, 1)), "r"(a(0, 2)), "r"(a(0, 3)), "r"(b(0, b_at)),
          "r"(b(0, b_at + 1)));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sums(0, at)), "+f"(sums(0, at + 1)), "+f"(sums(0, at + 2)), "+f"(sums(0, at + 3))
        : "r"(a(0, 0)), "r"(a(0, 1)), "r"(a(0, 2)), "r"(a(0, 3)), "r"(b(0, b_at)),
          "r"(b(0, b_at + 1)));
  }
#elif !defined(__CUDACC__)
  EmulateMultiplyAdd<kType>(sums, at, a, b, b_at);
#endif
}

/// e^x of a weight in the class mma16 (docs/numerics.md section 5); x is not above 0. A device has
/// an instruction for it.
QUIRE_KERNEL float ExpOfWeight(float x) {
#if defined(__CUDA_ARCH__)
  constexpr float kLog2E = attention::kLog2E;
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x * kLog2E));
  return power;
#else
  return attention::Exp(x);
#endif
}

}  // namespace quire::cuda

#endif  // QUIRE_CUDA_KERNELS_WARP_INL_H_
