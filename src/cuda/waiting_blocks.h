// Blocks that wait to be written, sealed and summed by one launch: a step writes K and V of every
// sequence to every layer, and launches take longer than the rows of one sequence.
#ifndef QUIRE_CUDA_WAITING_BLOCKS_H_
#define QUIRE_CUDA_WAITING_BLOCKS_H_

#include "cuda/kernels/blocks.h"

namespace quire::cuda {

/// What is launched has the effect of the single operations in their order: first all that is
/// written, then all that is sealed, then all checksums, blocks beside each other. What would
/// depend on the order of two operations in any other way has to wait until the earlier one is
/// launched. Streams of a slot that begin at different bytes are taken to be apart.
///
/// Threads: one at a time
class WaitingBlocks {
 public:
  /// False: what waits has to be launched before.
  bool Write(const WrittenStream& stream, const WrittenBlock& block);
  bool Seal(const SealedStream& stream, const SealedBlock& block);
  /// Of one slot. Together: slots that are cut alike, whose results follow one another.
  bool Sum(const ChecksumArgs& args);

  /// launch(args) of what waits, if anything does; nothing waits afterwards.
  template <typename Launch>
  void LaunchAll(const Launch& launch) {
    if (writes_.count != 0) launch(writes_);
    writes_.count = writes_.stream_count = writes_.heads_max = writes_.tokens_max = 0;
    if (seals_.count != 0) launch(seals_);
    seals_.count = seals_.stream_count = seals_.tiles_max = 0;
    if (sums_.slot_count != 0) launch(sums_);
    sums_.slot_count = 0;
  }

 private:
  WriteArgs writes_;
  EncodeArgs seals_;
  ChecksumArgs sums_;
};

}  // namespace quire::cuda

#endif  // QUIRE_CUDA_WAITING_BLOCKS_H_
