// The dialect of kernels: a device's compiler makes device code of them, the host's runs them in
// tests (cuda/host/host_grid.h). C++20 and plain structs; nothing here or in a kernel may include a
// header that needs std::expected.
//
// A kernel is a function template `Run<Thread>(Thread& self, const Args& args)` that every thread
// of a block calls. `Thread` has
//
//   id(), count()   which of the block's threads this is, and how many there are
//   block()         which block
//   shared()        memory that the block's threads share, aligned to 16 bytes
//   Sync()          returns when all threads of the block have called it
//   IsLast(arrived, blocks)
//                   syncs, and counts the block in at `arrived`; whether it is the last of so many,
//                   for which the count is 0 again. It sees what they wrote before they counted in
//   CopyAsync(), CommitCopies(), WaitCopies()
//                   copies from global to shared memory that go on beside the thread
//
// and, where the device has bulk copies (cuda/kernels/bulk.h), with barriers of eight bytes in
// shared memory,
//
//   InitBarrier(barrier)             before its first use; FenceBulk, then Sync follow
//   ExpectBytes(barrier, bytes)      by one thread: its next phase ends when so many have come
//   CopyBulk(to, map, corner, barrier)
//                                    a box, whose bytes this phase expects
//   WaitBytes(barrier, parity)       returns when the phase has ended; parity is 0 for the first,
//                                    third ... phase of a barrier, 1 for the others
//   FenceBulk()                      what this thread has written comes before bulk copies that
//                                    are asked for after the next Sync
//
// Threads of a block see writes of others from before the last Sync, and no later ones; of copies,
// those that they have waited for. Kernels of whole warps: cuda/kernels/warp-inl.h.
#ifndef QUIRE_CUDA_KERNELS_SIMT_H_
#define QUIRE_CUDA_KERNELS_SIMT_H_

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "base/float_bits.h"
#include "quire/attention_types.h"

#if defined(__CUDACC__)
#define QUIRE_KERNEL __device__ __forceinline__
#define QUIRE_PRAGMA(text) _Pragma(#text)
/// Before a loop: unrolls it, wholly or so many times. A device needs it where arrays are to stay
/// in registers.
#define QUIRE_DEVICE_UNROLL QUIRE_PRAGMA(unroll)
#define QUIRE_DEVICE_UNROLL_BY(turns) QUIRE_PRAGMA(unroll turns)
#else
#define QUIRE_KERNEL inline
#define QUIRE_DEVICE_UNROLL
#define QUIRE_DEVICE_UNROLL_BY(turns)
#endif

namespace quire::cuda {

/// a * b + c with one rounding. Nothing else is ever fused: kernels are compiled without.
QUIRE_KERNEL float Fma(float a, float b, float c) {
#if defined(__CUDA_ARCH__)
  return __fmaf_rn(a, b, c);
#else
  return std::fma(a, b, c);
#endif
}

/// The larger one; of a number and a NaN the number, which is `a`.
QUIRE_KERNEL float Max(float a, float b) {
#if defined(__CUDA_ARCH__)
  return fmaxf(a, b);
#else
  return a < b ? b : a;
#endif
}

/// The nearest integer, of two equally near ones the even one.
QUIRE_KERNEL int32_t NearestEven(float value) {
#if defined(__CUDA_ARCH__)
  return __float2int_rn(value);
#else
  return static_cast<int32_t>(std::nearbyint(value));
#endif
}

QUIRE_KERNEL float WidenF16(uint16_t code) {
#if defined(__CUDA_ARCH__)
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(code));
  return value;
#else
  return F16ToF32(code);
#endif
}

/// Four bytes of the eight in (high, low), chosen by the low three bits of the low four nibbles of
/// `selector`, whose fourth bits must be clear.
QUIRE_KERNEL uint32_t Permute(uint32_t low, uint32_t high, uint32_t selector) {
#if defined(__CUDA_ARCH__)
  return __byte_perm(low, high, selector);
#else
  const uint64_t bytes = uint64_t{high} << 32 | low;
  uint32_t result = 0;
  for (uint32_t i = 0; i < 4; ++i) {
    result |= static_cast<uint32_t>(bytes >> (selector >> 4 * i & 7u) * 8 & 0xffu) << 8 * i;
  }
  return result;
#endif
}

/// sum + the two signed 16-bit numbers of `pair` times signed bytes 0 and 1 of `bytes` (kHigh: 2
/// and 3).
template <bool kHigh>
QUIRE_KERNEL int32_t DotPair(uint32_t pair, uint32_t bytes, int32_t sum) {
#if defined(__CUDA_ARCH__)
  int32_t result;
  if constexpr (kHigh) {
    asm("dp2a.hi.s32.s32 %0, %1, %2, %3;" : "=r"(result) : "r"(pair), "r"(bytes), "r"(sum));
  } else {
    asm("dp2a.lo.s32.s32 %0, %1, %2, %3;" : "=r"(result) : "r"(pair), "r"(bytes), "r"(sum));
  }
  return result;
#else
  const uint32_t two = kHigh ? bytes >> 16 : bytes;
  return sum + int32_t{static_cast<int16_t>(pair)} * static_cast<int8_t>(two) +
         int32_t{static_cast<int16_t>(pair >> 16)} * static_cast<int8_t>(two >> 8);
#endif
}

/// Two 16-bit numbers as DotPair takes them.
QUIRE_KERNEL uint32_t PairOf16(int32_t first, int32_t second) {
  return (static_cast<uint32_t>(first) & 0xffffu) | static_cast<uint32_t>(second) << 16;
}

/// The T at `from`, which is aligned to it.
template <typename T>
QUIRE_KERNEL T Load(const std::byte* from) {
  return *reinterpret_cast<const T*>(from);
}

/// Number `index` of 16 bits each.
QUIRE_KERNEL uint16_t LoadHalf(const std::byte* from, uint64_t index) {
  return Load<uint16_t>(from + index * 2);
}

/// Partial sums of a row (docs/numerics.md, Tree16).
inline constexpr uint32_t kPartials = 16;

QUIRE_KERNEL float Tree16(const float (&partial)[kPartials]) {
  float x[kPartials];
  for (uint32_t i = 0; i < kPartials; ++i) x[i] = partial[i];
  for (uint32_t width = kPartials / 2; width > 0; width /= 2) {
    for (uint32_t j = 0; j < width; ++j) x[j] += x[j + width];
  }
  return x[0];
}

}  // namespace quire::cuda

#endif  // QUIRE_CUDA_KERNELS_SIMT_H_
