// The kernels of cuda/kernels/floors.h.
#ifndef QUIRE_CUDA_KERNELS_FLOORS_INL_H_
#define QUIRE_CUDA_KERNELS_FLOORS_INL_H_

#include <cstdint>

#include "cuda/kernels/floors.h"
#include "cuda/kernels/simt.h"
#include "cuda/kernels/warp-inl.h"

namespace quire::cuda {

struct alignas(16) SixteenBytes {
  uint32_t word[4];
};

template <class Thread>
QUIRE_KERNEL void ReadFloor(Thread& self, const ReadFloorArgs& args) {
  constexpr uint64_t kThreads = uint64_t{kFloorBlocks} * kFloorThreads;
  uint32_t sum = 0;
  QUIRE_DEVICE_UNROLL_BY(8)
  for (uint64_t i = uint64_t{self.block()} * self.count() + self.id(); i < args.bytes / 16;
       i += kThreads) {
    const auto bytes = Load<SixteenBytes>(args.from + i * 16);
    sum ^= bytes.word[0] ^ bytes.word[1] ^ bytes.word[2] ^ bytes.word[3];
  }
  if (sum == 0x9e3779b9u) *args.sink = sum;
}

template <class Thread>
QUIRE_KERNEL void MultiplyFloor(Thread& self, const MultiplyFloorArgs& args) {
  float sum[kFloorChains];
  QUIRE_DEVICE_UNROLL
  for (uint32_t i = 0; i < kFloorChains; ++i) sum[i] = static_cast<float>(self.id() + i);
  for (uint32_t round = 0; round < args.rounds; ++round) {
    QUIRE_DEVICE_UNROLL
    for (uint32_t i = 0; i < kFloorChains; ++i) sum[i] = Fma(sum[i], 0.5f, 1.0f);
  }
  float total = 0.0f;
  QUIRE_DEVICE_UNROLL
  for (uint32_t i = 0; i < kFloorChains; ++i) total += sum[i];
  if (total < 0.0f) *args.sink = total;
}

template <class Thread>
QUIRE_KERNEL void MatrixFloor(Thread& self, const MatrixFloorArgs& args) {
  const Warp<Thread> warp(self);
  Fragment<float, kMatrixFloorChains * 4> sums;
  Fragment<uint32_t, 4> a;
  Fragment<uint32_t, 4> b;
  warp.Lanes([&](uint32_t lane) {
    QUIRE_DEVICE_UNROLL
    for (uint32_t i = 0; i < kMatrixFloorChains * 4; ++i) sums(lane, i) = 0.0f;
    QUIRE_DEVICE_UNROLL
    for (uint32_t i = 0; i < 4; ++i) {
      a(lane, i) = Pack16<Codec::kBf16>(1.0f, static_cast<float>(lane + self.block()));
      b(lane, i) = Pack16<Codec::kBf16>(0.5f, static_cast<float>(i + 1));
    }
  });
  QUIRE_DEVICE_UNROLL_BY(1)
  for (uint32_t round = 0; round < args.rounds; ++round) {
    QUIRE_DEVICE_UNROLL
    for (uint32_t i = 0; i < kMatrixFloorChains; ++i) {
      MultiplyAdd<Codec::kBf16>(sums, i * 4, a, b, i % 2 * 2);
    }
  }
  warp.Lanes([&](uint32_t lane) {
    float total = 0.0f;
    QUIRE_DEVICE_UNROLL
    for (uint32_t i = 0; i < kMatrixFloorChains * 4; ++i) total += sums(lane, i);
    if (total < 0.0f) *args.sink = total;
  });
}

}  // namespace quire::cuda

#endif  // QUIRE_CUDA_KERNELS_FLOORS_INL_H_
