// How much of a load by layer has come, for its ticket and for the sequence that begins with it.
#ifndef QUIRE_CACHE_BELOW_ARRIVAL_H_
#define QUIRE_CACHE_BELOW_ARRIVAL_H_

#include <atomic>
#include <cstdint>

#include "transfer/transfers.h"

namespace quire::cache {

/// Layers are there of all blocks of the load that were there of its first layers. The last ones
/// count when the blocks are published, so that nothing is computed to its end from what an erasure
/// has overtaken.
///
/// Threads:  any; what has come is set under the lock of the transfers
/// Lifetime: the transfers must outlive it
class Arrival {
 public:
  Arrival(transfer::Transfers& transfers, uint32_t layers)
      : transfers_(transfers), layers_(layers) {}

  /// The load's thread: so many layers are there.
  void SetReady(uint32_t layers) {
    transfers_.Notify([&] { ready_ = layers; });
  }
  /// The load has ended; with less than all layers, it failed.
  void End(bool is_whole) {
    transfers_.Notify([&] {
      if (is_whole) ready_ = layers_;
      ended_ = true;
    });
  }

  uint32_t ready() const { return ready_; }
  bool is_whole() const { return ready_ == layers_; }
  bool has_ended() const { return ended_; }
  /// Waits at most so long until a layer is there, or the load has ended: whether one of these is.
  bool Await(uint32_t layer, uint64_t wait_us) const {
    const auto is_known = [&] { return ready_ > layer || ended_; };
    return is_known() || (wait_us > 0 && transfers_.Await(is_known, wait_us));
  }

 private:
  transfer::Transfers& transfers_;
  const uint32_t layers_;
  std::atomic<uint32_t> ready_ = 0;
  std::atomic<bool> ended_ = false;
};

}  // namespace quire::cache

#endif  // QUIRE_CACHE_BELOW_ARRIVAL_H_
