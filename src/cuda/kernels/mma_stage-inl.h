// Brings K and V of some tokens into shared memory as numbers of sixteen bits, which matrix
// instructions read: of K a row for every channel, or for every token where its channels are
// neighbours, of V a row for every token. Stored numbers are copied beside the threads; codes
// become the integers, or floats of eight bits, that they stand for, which sixteen bits hold
// exactly.
#ifndef QUIRE_CUDA_KERNELS_MMA_STAGE_INL_H_
#define QUIRE_CUDA_KERNELS_MMA_STAGE_INL_H_

#include <cstdint>

#include "codec/planes.h"
#include "cuda/kernels/mma_attend.h"
#include "cuda/kernels/mma_codes-inl.h"
#include "cuda/kernels/simt.h"
#include "cuda/kernels/warp-inl.h"

namespace quire::cuda {

/// kEncoded: there may be codes.
template <class Thread, uint32_t kTokens, bool kKeys, bool kEncoded>
class Stager {
 public:
  QUIRE_KERNEL Stager(Thread& self, const Warp<Thread>& warp, const StageArgs& args)
      : self_(self), warp_(warp), args_(args), stream_(*args.stream) {}

  /// The numbers are there when every thread has waited for its copies and synced.
  QUIRE_KERNEL void Run(Codec half) {
    if constexpr (kEncoded) {
      if (stream_.codec > Codec::kBf16) {
        const bool f16 = kKeys && half == Codec::kF16;  // of V they are always bf16
        return CodeStager<Thread, kTokens, kKeys>(warp_, args_).Run(f16);
      }
    }
    if (kKeys && stream_.inner == InnerAxis::kToken) {
      CopyChannels();
    } else {
      CopyTokens();
    }
  }

 private:
  static constexpr uint32_t kColumns = kTokens / codec::kTileLanes;

  QUIRE_KERNEL const std::byte* PlaneOf(uint32_t column) const { return args_.PlaneOf(column); }
  QUIRE_KERNEL uint32_t InBlock(uint32_t column) const { return args_.InBlock(column); }
  QUIRE_KERNEL uint16_t* At(uint32_t row, uint32_t column) const { return args_.At(row, column); }

  // Eight numbers at a time.

  QUIRE_KERNEL void CopyChannels() {
    constexpr uint32_t kRuns = 2 * kColumns;
    warp_.Share(args_.channels * kRuns, [&](uint32_t i) {
      const uint32_t channel = i / kRuns;
      const uint32_t run = i % kRuns;
      const std::byte* const plane = PlaneOf(run / 2);
      const uint64_t from =
          uint64_t{channel} * stream_.block_tokens + InBlock(run / 2) + uint64_t{run % 2} * 8;
      CopyRun(At(channel, run * 8), plane, from, plane != nullptr);
    });
  }
  QUIRE_KERNEL void CopyTokens() {
    const uint32_t runs = args_.channels / 8;
    warp_.Share(kTokens * runs, [&](uint32_t i) {
      const uint32_t token = i / runs;
      const uint32_t run = i % runs;
      const uint32_t column = token / codec::kTileLanes;
      const std::byte* const plane = PlaneOf(column);
      const uint64_t from = uint64_t{InBlock(column) + token % codec::kTileLanes} * stream_.dim +
                            args_.channel_begin + uint64_t{run} * 8;
      CopyRun(At(token, run * 8), plane, from, plane != nullptr && args_.first + token < args_.end);
    });
  }
  QUIRE_KERNEL void CopyRun(uint16_t* to, const std::byte* plane, uint64_t from, bool valid) {
    self_.CopyAsync(to, valid ? plane + from * 2 : args_.table->base, valid);
  }

  Thread& self_;
  const Warp<Thread>& warp_;
  const StageArgs& args_;
  const StreamLayout& stream_;
};

}  // namespace quire::cuda

#endif  // QUIRE_CUDA_KERNELS_MMA_STAGE_INL_H_
