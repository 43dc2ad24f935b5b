// All bytes in the memory of caches and on their disk, of every tenant.
#ifndef QUIRE_SIM_CACHE_MEMORY_H_
#define QUIRE_SIM_CACHE_MEMORY_H_

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "cache/core.h"
#include "cache/verbs/leases.h"
#include "env/faulty_files.h"
#include "env/seen_memory.h"
#include "quire/cache.h"
#include "sim/cache_device.h"
#include "sim/raw_bytes.h"
#include "tier/record.h"
#include "tier/store.h"

namespace quire::sim {

/// The bytes of the free slots, one after the other.
inline std::vector<std::byte> BytesOfFreeSlots(Cache& cache) {
  const cache::LockedState& state = static_cast<cache::Core&>(cache).state();
  const cache::Slots& slots = state.slots();
  std::vector<SlotId> free;
  uint64_t bytes = 0;
  for (uint32_t number = 0; number < slots.writers().end(); ++number) {
    const SlotId slot(number);
    if (slots.IsBeyondEnd(slot) || slots.references(slot) > 0) continue;
    free.push_back(slot);
    bytes += state.classes().slot_bytes(state.classes().ClassOf(slot));
  }
  std::vector<std::byte> all(bytes);
  std::byte* next = all.data();
  for (const SlotId slot : free) {
    slots.CopyOut(slot, next);
    next += state.classes().slot_bytes(state.classes().ClassOf(slot));
  }
  QUIRE_CHECK(slots.ops().SynchronizeCopies(CopyWay::kOut).has_value());
  return all;
}

/// All bytes of the machine that the caches run on, and the erased ones among them.
class CacheMemory {
 public:
  /// On a device, which must outlive it; null: on the host. `known` identifies the owner of bytes.
  explicit CacheMemory(CacheDevice* device = nullptr, RawBytes known = RawBytes())
      : device_(device),
        memory_(device == nullptr ? nullptr : &device->memory()),
        raw_bytes_(std::move(known)) {}

  /// Where the caches have their slots.
  DeviceMemory* memory() { return &memory_; }
  /// As RawBytes::Learn, and of the warm tier.
  void Learn(FaultyFiles& files, const std::string& directory) {
    raw_bytes_.Learn(files, directory);
    if (device_ != nullptr) raw_bytes_.LearnFrom(device_->host_bytes());
  }
  /// As RawBytes::Find, in free slots of these caches, or (`everything`) in all memory.
  std::string Find(const tier::PublisherId& publisher, uint64_t epoch, FaultyFiles& files,
                   bool is_idle, std::span<Cache* const> caches, bool everything) {
    std::vector<std::vector<std::byte>> free;
    for (Cache* const cache : caches) free.push_back(BytesOfFreeSlots(*cache));
    std::vector<std::span<const std::byte>> memory(free.begin(), free.end());
    for (const std::span<const std::byte> stretch : memory_.stretches()) {
      if (everything) memory.push_back(device_ == nullptr ? stretch : device_->OnHost(stretch));
    }
    if (device_ != nullptr) memory.push_back(device_->host_bytes());
    return raw_bytes_.Find(publisher, epoch, files, is_idle, memory);
  }

 private:
  CacheDevice* const device_;
  SeenMemory memory_;
  RawBytes raw_bytes_;
};

/// A block that the cache takes for durable, and the store below does not have; empty: none.
inline std::string MissingBelow(Cache& cache, const tier::Store& store) {
  return static_cast<cache::Core&>(cache).state().Look([&](const cache::State& state) {
    std::string missing;
    for (uint32_t id = 0; id < state.directory.ids_end() && missing.empty(); ++id) {
      const BlockId block(id);
      if (!state.directory.contains(block)) continue;
      const bool is_good = BlockStateOf(state, block) == cache::BlockState::kGood;
      const cache::Below below = state.directory.write_behind().below(block, /*twins=*/false);
      if (!is_good || below != cache::Below::kDurable) continue;
      tier::Presence presence = tier::Presence::kUnknown;
      store.Find({&state.directory.at(block).key, 1}, {&presence, 1});
      if (presence != tier::Presence::kPresent) missing = fmt::format("block {}", id);
    }
    return missing;
  });
}

/// Whether a cache has blocks that another member of a tenant's domain computed: they have the
/// bytes that the tenant erases, and these may lie in slots without holders, or be written again.
inline bool HasOfMates(Cache& cache, TenantId tenant) {
  return static_cast<cache::Core&>(cache).state().Look([&](const cache::State& state) {
    const TenantId account = state.accounts.tenants().account_of(tenant);
    for (uint32_t id = 0; id < state.directory.ids_end(); ++id) {
      const BlockId block(id);
      if (!state.directory.contains(block)) continue;
      const cache::BlockRecord& record = state.directory.at(block);
      if (record.account == account && record.publisher != tenant && !record.loaded) return true;
    }
    return false;
  });
}

/// Evicts everything that can be evicted. Returns what should be gone and is left; empty: nothing.
inline std::string LeftInDrained(Cache& cache) {
  while (cache.Evict(1000) > 0) {
  }
  const CacheStats stats = cache.stats();
  const uint64_t slots = stats.sealed.slots_used + stats.sealed_second.slots_used +
                         stats.open.slots_used + stats.open_second.slots_used;
  if (slots + stats.published_blocks + stats.hot_bytes_used + stats.sequences == 0) return {};
  return fmt::format("{} slots, {} blocks, {} bytes, {} sequences that nobody holds", slots,
                     stats.published_blocks, stats.hot_bytes_used, stats.sequences);
}

}  // namespace quire::sim

#endif  // QUIRE_SIM_CACHE_MEMORY_H_
