// One owner's sequence: layers are written by different threads at once, readers never wait for
// them.
#ifndef QUIRE_REGISTRY_OWNER_CACHE_H_
#define QUIRE_REGISTRY_OWNER_CACHE_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <span>
#include <string>
#include <vector>

#include "quire/env.h"
#include "quire/sequence.h"
#include "registry/owner.h"

namespace quire::registry {

/// Stages of a pipeline append to different layers at once; appends to one layer take turns. What
/// changes the whole sequence (growing, Commit, Clear, its end) waits for the appends under way and
/// holds up new ones; readers wait for neither.
///
/// Layers are numbered as in the model; checkpoint layers exist and hold nothing.
///
/// Errors:   kNotFound once the owner was evicted or released: it names which
/// Threads:  any
/// Lifetime: the registry must outlive it
class OwnerCache {
 public:
  /// Makes room at the expense of other owners; false: there is nothing to be had.
  using MakeRoom = std::function<bool(const OwnerCache& asking)>;

  /// `layer_numbers` [layers of the model]: the layer in the sequence, or kNoLayer.
  OwnerCache(Owner owner, OwnerOptions options, std::unique_ptr<Sequence> sequence,
             std::vector<uint32_t> layer_numbers, MakeRoom make_room, const Clock& clock);
  OwnerCache(const OwnerCache&) = delete;
  OwnerCache& operator=(const OwnerCache&) = delete;

  const Owner& owner() const { return owner_; }
  const OwnerOptions& options() const { return options_; }
  bool training() const { return std::holds_alternative<Training>(owner_); }

  /// Committed tokens. Takes no lock.
  uint64_t length() const { return length_.load(std::memory_order_acquire); }
  OwnerMetrics metrics() const;
  uint64_t last_access_us() const { return last_access_us_.load(std::memory_order_relaxed); }

  /// Writes the next rows of one layer. Takes room from other inference owners if there is none.
  ///
  /// Errors: as Sequence::Append; kInvalidArgument a checkpoint layer, or past tokens_max
  Result<void> Append(uint32_t layer, const LayerRows& rows);
  /// Makes the next tokens visible; every layer that is cached must have been appended that far.
  Result<void> Commit(std::span<const TokenId> tokens);
  /// Back to zero tokens; what it alone held is free again.
  Result<void> Clear();

  /// As Sequence::Gather and View. Of a checkpoint layer: kInvalidArgument.
  Result<void> Gather(uint32_t layer, StreamRole role, uint64_t begin, uint64_t end,
                      std::span<float> out) const;
  Result<BlockListView> View(uint32_t layer, StreamRole role, TokenRange range = {}) const;

  /// The owner's end: gives everything back. What views still pin goes with them. `how` is what
  /// later calls hear: "evicted", "released".
  void End(std::string how);
  /// Counts a use.
  void Touch() const;

  static constexpr uint32_t kNoLayer = UINT32_MAX;

 private:
  std::unexpected<Error> Fail(ErrorCode code, std::string_view what) const;
  Result<void> CheckAlive() const;  // structure_ is held, shared or not
  Result<uint32_t> LayerOf(uint32_t layer) const;
  Result<void> Grow(uint64_t tokens);

  const Owner owner_;
  const OwnerOptions options_;
  const std::vector<uint32_t> layer_numbers_;
  const MakeRoom make_room_;
  const Clock& clock_;
  const std::unique_ptr<Sequence> sequence_;

  // Shared: an append to one layer. Alone: whatever changes the block lists. Taken before the
  // sequence's own lock (rank 10); nothing of the registry's is taken while it is held.
  mutable std::shared_mutex structure_;
  std::unique_ptr<std::mutex[]> layers_;   // one writer per layer of the sequence
  std::atomic<uint64_t> room_tokens_ = 0;  // written alone
  std::atomic<uint64_t> length_ = 0;
  mutable std::mutex ended_mutex_;
  std::string ended_;  // how; empty: it lives
  std::atomic<bool> alive_ = true;

  const uint64_t created_us_;
  mutable std::atomic<uint64_t> last_access_us_;
  mutable std::atomic<uint64_t> access_count_ = 0;
};

}  // namespace quire::registry

#endif  // QUIRE_REGISTRY_OWNER_CACHE_H_
