// Brings K and V of some tokens into shared memory as they are stored, in numbers of sixteen bits:
// of K a row for every channel, or for every token where its channels are neighbours, of V a row
// for every token. Threads copy beside themselves.
#ifndef QUIRE_CUDA_KERNELS_MMA_STAGE_INL_H_
#define QUIRE_CUDA_KERNELS_MMA_STAGE_INL_H_

#include <cstdint>

#include "codec/planes.h"
#include "cuda/kernels/bulk.h"
#include "cuda/kernels/mma_attend.h"
#include "cuda/kernels/simt.h"
#include "cuda/kernels/warp-inl.h"

namespace quire::cuda {

/// Some tokens of one KV head.
struct StageArgs {
  const StreamLayout* stream = nullptr;
  const BlockTable* table = nullptr;
  const uint32_t* slots = nullptr;  // of the split's blocks, in shared memory
  uint32_t block_bits = 0;          // log2 of a block's tokens
  uint32_t kv_head = 0;
  uint32_t first = 0;          // token of the split; a multiple of the stage's
  uint32_t end = 0;            // tokens from here on are not read; of V they are zeros
  uint32_t channel_begin = 0;  // of V; a multiple of kMmaChannels
  uint32_t channels = 0;
  const TensorMap* boxes = nullptr;
  uint16_t* to = nullptr;
  uint32_t stride = 0;  // numbers from row to row of `to`

  // Columns are sixteen tokens each.
  QUIRE_KERNEL uint32_t InBlock(uint32_t column) const {
    return (first + column * codec::kTileLanes) & (stream->block_tokens - 1);
  }
  /// The plane of a column; null: there is none, or it is not read.
  QUIRE_KERNEL const std::byte* PlaneOf(uint32_t column) const {
    const uint32_t token = first + column * codec::kTileLanes;
    if (token >= end) return nullptr;
    const std::byte* const slot = table->SlotAt(slots[token >> block_bits]);
    if (slot == nullptr) return nullptr;
    return slot + stream->offset_bytes + kv_head * stream->head_stride_bytes;
  }
  QUIRE_KERNEL uint16_t* At(uint32_t row, uint32_t column) const {
    const uint32_t at = row * stride + column;
    return to + at;
  }
};

template <class Thread, uint32_t kTokens, bool kKeys>
class Stager {
 public:
  QUIRE_KERNEL Stager(Thread& self, const Warp<Thread>& warp, const StageArgs& args)
      : self_(self), warp_(warp), args_(args), stream_(*args.stream) {}

  /// The numbers are there when every thread has waited for its copies and synced.
  QUIRE_KERNEL void Run() {
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
