// An owner of a cache, and its sequence: layers are written by different
// threads at once, readers never wait for them.
#ifndef QUIRE_REGISTRY_OWNER_CACHE_H_
#define QUIRE_REGISTRY_OWNER_CACHE_H_

#include <atomic>
#include <compare>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/mutex.h"
#include "quire/env.h"
#include "quire/identity.h"
#include "quire/registry.h"
#include "quire/sequence.h"

namespace quire::registry {

enum class OwnerState : uint8_t { kAlive, kEvicted, kReleased };

/// Errors, threads, lifetime: as OwnerCache
class OwnerCacheImpl final : public OwnerCache {
 public:
  /// Makes room at the expense of other owners; false: there is nothing to be had.
  using FreeCapacity = std::function<bool(const OwnerCacheImpl& asking)>;

  /// `layer_numbers` [layers of the model]: the layer in the sequence, or kNoLayer. Without
  /// `free_capacity` an engine runs it.
  OwnerCacheImpl(Owner owner, OwnerOptions options, std::unique_ptr<Sequence> sequence,
                 std::vector<uint32_t> layer_numbers, FreeCapacity free_capacity,
                 const Clock& clock);
  OwnerCacheImpl(const OwnerCacheImpl&) = delete;
  OwnerCacheImpl& operator=(const OwnerCacheImpl&) = delete;

  const Owner& owner() const override { return owner_; }
  const OwnerOptions& options() const override { return options_; }
  bool evictable() const override {
    return free_capacity_ && std::holds_alternative<InferenceOwner>(owner_);
  }
  uint64_t length() const override {
    return state_.load(std::memory_order_acquire) == OwnerState::kAlive ? sequence_->length() : 0;
  }
  uint64_t bytes() const override { return sequence_->stats().bytes; }
  uint64_t last_access_us() const override {
    return last_access_us_.load(std::memory_order_relaxed);
  }

  Result<void> Append(uint32_t layer, const LayerRows& rows) override;
  Result<void> Commit(std::span<const TokenId> tokens) override;
  Result<void> Clear() override;
  Result<void> Gather(uint32_t layer, StreamRole role, uint64_t begin, uint64_t end,
                      std::span<float> out) const override;
  Result<BlockListView> View(uint32_t layer, StreamRole role, TokenRange range) const override;
  Result<void> ReadBlocks(
      uint32_t layer, const std::function<Result<void>(const LayerBlocks&)>& read) const override;

  /// Ends the owner: gives everything back, except the sequence of an engine's request: the
  /// engine's next call fails, and then it gives the sequence back. Slots that views still pin go
  /// with the views.
  void End(OwnerState how);
  /// Gives everything back, also an engine's sequence.
  void GiveBack();
  Result<void> CheckAlive() const;
  /// Counts a use.
  void Touch() const;

  static constexpr uint32_t kNoLayer = UINT32_MAX;

 private:
  struct LayerMutex : Mutex {
    LayerMutex() : Mutex(LockRank::kOwnerLayer) {}
  };

  std::unexpected<Error> Fail(ErrorCode code, std::string_view what) const;
  Result<void> CheckWritable() const QUIRE_REQUIRES_SHARED(structure_);
  Result<uint32_t> LayerOf(uint32_t layer) const;
  Result<void> Grow(uint64_t tokens);

  const Owner owner_;
  const OwnerOptions options_;
  const std::vector<uint32_t> layer_numbers_;
  const FreeCapacity free_capacity_;
  const Clock& clock_;
  const std::unique_ptr<Sequence> sequence_;

  // Shared: an append to one layer. Exclusive: changes of the block lists. No lock of the registry
  //         is taken while it is held.
  mutable SharedMutex structure_{LockRank::kOwner};
  const std::unique_ptr<LayerMutex[]> layers_;          // one writer per layer of the sequence
  std::atomic<uint64_t> room_tokens_;                   // written alone
  std::atomic<OwnerState> state_ = OwnerState::kAlive;  // written alone

  mutable std::atomic<uint64_t> last_access_us_;
};

}  // namespace quire::registry

#endif  // QUIRE_REGISTRY_OWNER_CACHE_H_
