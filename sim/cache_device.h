// A device below simulated caches, which is late, and a warm tier in the host's memory between it
// and the disk.
#ifndef QUIRE_SIM_CACHE_DEVICE_H_
#define QUIRE_SIM_CACHE_DEVICE_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <utility>

#include "base/prng.h"
#include "cache/test_device.h"
#include "quire/block_ops.h"
#include "quire/cache.h"
#include "quire/env.h"
#include "tier/warm.h"

namespace quire::sim {

/// The host's memory of a warm tier, in which bits flip.
class RottingMemory final : public HostAllocator {
 public:
  std::string_view name() const override { return "rotting"; }
  bool pinned() const override { return false; }
  Result<std::byte*> Allocate(uint64_t bytes) override {
    Result<std::byte*> memory = PlainHostAllocator().Allocate(bytes);
    if (memory) bytes_ = {*memory, bytes};
    return memory;
  }
  void Free(std::byte* memory, uint64_t bytes) override {
    PlainHostAllocator().Free(memory, bytes);
    bytes_ = {};
  }
  std::span<const std::byte> bytes() const { return bytes_; }
  void Rot(Prng& prng) {
    if (bytes_.empty()) return;
    const uint64_t bit = prng.NextBelow(8 * bytes_.size());
    bytes_[bit / 8] ^= static_cast<std::byte>(1U << bit % 8);
  }

 private:
  std::span<std::byte> bytes_;
};

/// Lifetime: must outlive the caches and stores on it
class CacheDevice {
 public:
  explicit CacheDevice(uint64_t seed) : prng_(seed), ops_(memory_, seed) {}

  cache::ProtectedMemory& memory() { return memory_; }
  cache::DelayedOps& ops() { return ops_; }
  /// Where the host finds bytes of the device, as they are when all operations so far are done.
  std::span<const std::byte> OnHost(std::span<const std::byte> bytes) {
    ops_.streams().RunAll();
    return {memory_.Window(bytes.data()), bytes.size()};
  }
  /// `cold` behind a warm tier of a few blocks.
  std::unique_ptr<tier::Store> InFrontOf(std::unique_ptr<tier::Store> cold, const Clock& clock) {
    const uint64_t bytes_cap = (uint64_t{20} << 10) * (1 + prng_.NextBelow(40));
    auto warm = std::make_unique<tier::WarmStore>(
        tier::WarmOptions{.bytes_cap = bytes_cap, .allocator = &host_}, clock, std::move(cold));
    warm_ = warm.get();
    return warm;
  }
  /// Records that the warm tier lost before the store below had them.
  uint64_t lost_above() const {
    const tier::WarmStats stats = warm_->warm_stats();
    return stats.evicted + stats.damaged;
  }
  std::span<const std::byte> host_bytes() const { return host_.bytes(); }
  /// Now and then some bits of the warm tier flip.
  void Act() {
    if (!prng_.NextChance(3)) return;
    for (uint64_t bits = 1 + prng_.NextBelow(8); bits > 0; --bits) host_.Rot(prng_);
  }

 private:
  Prng prng_;
  RottingMemory host_;
  const tier::WarmStore* warm_ = nullptr;  // the present one
  cache::ProtectedMemory memory_;
  cache::DelayedOps ops_;
};

}  // namespace quire::sim

#endif  // QUIRE_SIM_CACHE_DEVICE_H_
