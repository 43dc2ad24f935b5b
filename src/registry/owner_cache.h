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
#include "quire/sequence.h"

namespace quire::registry {

/// May be evicted when room is needed; publishes its blocks for others to find.
struct Inference {
  /// Ids from here on are those of what an engine runs (Registry::requests).
  static constexpr uint64_t kFirstRequest = uint64_t{1} << 63;
  uint64_t id = 0;
  auto operator<=>(const Inference&) const = default;
};

/// Never evicted while it lives, never publishes: its weights move at every optimizer step.
struct Training {
  std::string adapter{};
  uint64_t run = 0;
  auto operator<=>(const Training&) const = default;
};

using Owner = std::variant<Inference, Training>;

/// "inference 7", "request 0", "training lora/3".
std::string OwnerName(const Owner& owner);

/// What an owner chooses when it is made.
struct OwnerOptions {
  Identity identity{};                      // of a training run the adapter is the owner's
  std::optional<NumericProfile> profile{};  // its codecs; none: the registry's
  uint64_t tokens_max = 0;                  // longest; 0: the registry's
  // Layers whose K and V are recomputed and never cached: they take no bytes. Ascending.
  std::vector<uint32_t> checkpoint_layers{};

  bool operator==(const OwnerOptions&) const = default;
};

enum class OwnerState : uint8_t { kAlive, kEvicted, kReleased };

/// Stages of a pipeline append to different layers at once; appends to one layer take turns. What
/// changes the whole sequence (growing, Commit, Clear, its end) waits for the appends under way and
/// holds up new ones; readers wait for neither.
///
/// Layers are numbered as in the model; checkpoint layers exist and hold nothing.
///
/// What an engine runs (Registry::requests) is an owner too, and the engine its one writer: Append,
/// Commit and Clear are refused here, and it is not evicted.
///
/// Errors:   kNotFound once the owner was evicted or released: it names which; kBusy an engine
///           writes to it
/// Threads:  any
/// Lifetime: the registry must outlive it
class OwnerCache {
 public:
  /// Makes room at the expense of other owners; false: there is nothing to be had.
  using FreeCapacity = std::function<bool(const OwnerCache& asking)>;

  /// `layer_numbers` [layers of the model]: the layer in the sequence, or kNoLayer. Without
  /// `free_capacity` an engine runs it.
  OwnerCache(Owner owner, OwnerOptions options, std::unique_ptr<Sequence> sequence,
             std::vector<uint32_t> layer_numbers, FreeCapacity free_capacity, const Clock& clock);
  OwnerCache(const OwnerCache&) = delete;
  OwnerCache& operator=(const OwnerCache&) = delete;

  const Owner& owner() const { return owner_; }
  const OwnerOptions& options() const { return options_; }
  bool evictable() const { return free_capacity_ && std::holds_alternative<Inference>(owner_); }

  /// Committed tokens; 0 after its end. Takes no lock.
  uint64_t length() const {
    return state_.load(std::memory_order_acquire) == OwnerState::kAlive ? sequence_->length() : 0;
  }
  /// Of all slots it holds, shared ones included.
  uint64_t bytes() const { return sequence_->stats().bytes; }
  /// When it was looked up, written or read last.
  uint64_t last_access_us() const { return last_access_us_.load(std::memory_order_relaxed); }

  /// Writes the next rows of one layer. Takes room from other inference owners if there is none.
  ///
  /// Errors: as Sequence::Append; kInvalidArgument a checkpoint layer, or past tokens_max
  Result<void> Append(uint32_t layer, const LayerRows& rows);
  /// Makes the next tokens visible; every layer that is cached must have been appended that far.
  Result<void> Commit(std::span<const TokenId> tokens);
  /// Back to zero tokens; what it alone held is free again.
  Result<void> Clear();

  /// As Sequence::Gather. Of a checkpoint layer: kInvalidArgument.
  Result<void> Gather(uint32_t layer, StreamRole role, uint64_t begin, uint64_t end,
                      std::span<float> out) const;

  /// The owner's end: gives everything back, but for what an engine runs: that hears of it at its
  /// next call, and gives it back. What views still pin goes with them.
  void End(OwnerState how);
  /// Gives everything back, of what an engine ran too.
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

  // Shared: an append to one layer. Alone: whatever changes the block lists. Nothing of the
  // registry's is taken while it is held.
  mutable SharedMutex structure_{LockRank::kOwner};
  const std::unique_ptr<LayerMutex[]> layers_;          // one writer per layer of the sequence
  std::atomic<uint64_t> room_tokens_;                   // written alone
  std::atomic<OwnerState> state_ = OwnerState::kAlive;  // written alone

  mutable std::atomic<uint64_t> last_access_us_;
};

}  // namespace quire::registry

#endif  // QUIRE_REGISTRY_OWNER_CACHE_H_
