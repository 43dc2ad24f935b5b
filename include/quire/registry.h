// Owners of KV caches on one memory budget: inference, and training runs that hold K and V across
// optimizer steps (LoRA on sequences longer than one pass, gradient checkpoints).
//
//   auto registry = quire::Registry::Create({.geometry = geometry, .profile = profile,
//                                            .hot_bytes = 4'000'000'000});
//   auto run = (*registry)->GetOrCreate(quire::TrainingOwner{"lora-a", /*run=*/1},
//                                       {.checkpoint_layers = {2, 5}});
//   (*run)->Append(layer, rows);  (*run)->Commit(tokens);  (*run)->Gather(layer, role, 0, n, out);
//   (*registry)->Release(quire::TrainingOwner{"lora-a", 1});
#ifndef QUIRE_REGISTRY_H_
#define QUIRE_REGISTRY_H_

#include <compare>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "quire/cache.h"
#include "quire/identity.h"
#include "quire/sequence.h"

namespace [[gnu::visibility("default")]] quire {

/// May be evicted when room is needed; publishes its blocks for others to find.
struct InferenceOwner {
  /// Ids from here on are those of an engine's requests (Registry::requests).
  static constexpr uint64_t kFirstRequest = uint64_t{1} << 63;
  uint64_t id = 0;
  auto operator<=>(const InferenceOwner&) const = default;
};

/// Never evicted while it lives, never publishes: its weights move at every optimizer step.
struct TrainingOwner {
  std::string adapter{};
  uint64_t run = 0;
  uint64_t version = 0;  // of the adapter; moves at every optimizer step, if the caller says so
  auto operator<=>(const TrainingOwner&) const = default;
};

using Owner = std::variant<InferenceOwner, TrainingOwner>;

/// "inference 7", "request 0", "training lora/3", with a version "training lora/3@12".
std::string OwnerName(const Owner& owner);

/// The options that an owner is made with.
struct OwnerOptions {
  Identity identity{};                      // of a training run the adapter is the owner's
  std::optional<NumericProfile> profile{};  // its codecs; none: the registry's
  uint64_t tokens_max = 0;                  // longest; 0: the registry's
  // Layers whose K and V are recomputed and never cached: they take no bytes. Ascending.
  std::vector<uint32_t> checkpoint_layers{};

  bool operator==(const OwnerOptions&) const = default;
};

/// An owner's K and V. Stages of a pipeline append to different layers at once; appends to one
/// layer run one at a time. Calls that change the whole sequence (growing, Commit, Clear, its end)
/// wait for appends and block reads under way and delay new ones; other readers wait for neither.
/// The handle takes a few hundred bytes of the budget until it ends.
///
/// Layers are numbered as in the model; checkpoint layers exist and hold nothing.
///
/// A request of an engine (Registry::requests) is an owner too, and the engine is its one writer:
/// Append, Commit and Clear are refused here, and it is not evicted.
///
/// Errors:   kNotFound once the owner was evicted or released: it names which; kBusy an engine
///           writes to it; kInvalidArgument of a checkpoint layer
/// Threads:  any
/// Lifetime: the registry must outlive it
class OwnerCache {
 public:
  virtual ~OwnerCache() = default;

  virtual const Owner& owner() const = 0;
  virtual const OwnerOptions& options() const = 0;
  virtual bool evictable() const = 0;
  /// Committed tokens; 0 after its end. Takes no lock.
  virtual uint64_t length() const = 0;
  /// Bytes of all slots it holds, shared ones included.
  virtual uint64_t bytes() const = 0;
  /// When it was looked up, written or read last, by the registry's clock.
  virtual uint64_t last_access_us() const = 0;

  /// Writes the next rows of one layer. Takes room from inference owners if there is none.
  ///
  /// Errors: as Sequence::Append; kInvalidArgument past tokens_max
  virtual Result<void> Append(uint32_t layer, const LayerRows& rows) = 0;
  /// Makes the next tokens visible; every layer that is cached must have been appended that far.
  virtual Result<void> Commit(std::span<const TokenId> tokens) = 0;
  /// Back to zero tokens; slots that only it held are free again.
  virtual Result<void> Clear() = 0;

  /// As Sequence::Gather and Sequence::View.
  virtual Result<void> Gather(uint32_t layer, StreamRole role, uint64_t begin, uint64_t end,
                              std::span<float> out) const = 0;
  virtual Result<BlockListView> View(uint32_t layer, StreamRole role,
                                     TokenRange range = {}) const = 0;
  /// Calls `read` with the arguments of a kernel for one layer (Sequence::Blocks), which does not
  /// change meanwhile. `read` may not call this owner.
  virtual Result<void> ReadBlocks(
      uint32_t layer, const std::function<Result<void>(const LayerBlocks&)>& read) const = 0;
};

/// The result of EvictToBudget.
struct EvictReport {
  uint64_t owners_evicted = 0;
  // After the call; above the target if the rest is pinned, a training run's or an engine's.
  uint64_t bytes_used = 0;
};

/// One owner, now.
struct OwnerStats {
  Owner owner{};
  uint64_t tokens = 0;  // committed
  uint64_t bytes = 0;
  uint64_t last_access_us = 0;
  bool evictable = false;
};
/// A JSON array of {"owner", "kind": "inference", "request" or "training", "tokens", "bytes",
/// "last_access_us", "evictable"}.
std::string ToJson(std::span<const OwnerStats> owners);

/// Owners by name. Each combination of codecs and checkpoint layers has a cache of its own, made
/// when the first owner asks for it, and all of them pay from one budget.
///
/// Threads:  any. One lock (rank 2) for the map; it is not held while a cache works
/// Lifetime: must outlive the owner caches and the sequences of requests()
class Registry {
 public:
  /// `options` are those of each cache: hot_bytes is the hard budget over all owners, hot_bytes_max
  /// the most that Resize may raise it to, profile that of owners that name none, clock the
  /// machine's if it is null. Objects that `options` points to must outlive the registry.
  ///
  /// Errors: as Cache::Create; kInvalidArgument a shared budget: it has its own
  static Result<std::unique_ptr<Registry>> Create(CacheOptions options);
  virtual ~Registry() = default;

  /// The owner's cache, made if there is none. An inference owner starts with the cached blocks of
  /// `prompt` (may be empty); a training run starts empty and never publishes.
  ///
  /// Errors: kInvalidArgument it exists with other options, or these name layers that do not exist,
  ///         or it has the id of a request; kNoSpace all that may be evicted is; as Cache::Create
  ///         for codecs
  virtual Result<std::shared_ptr<OwnerCache>> GetOrCreate(const Owner& owner,
                                                          const OwnerOptions& options,
                                                          std::span<const TokenId> prompt = {}) = 0;
  /// Null: there is none.
  virtual std::shared_ptr<OwnerCache> Find(const Owner& owner) const = 0;
  /// Ends an owner, also a training run. Its published blocks stay cached. False: there is none.
  virtual bool Release(const Owner& owner) = 0;

  /// The cache of owners with default options, for an engine: each sequence that it opens, forks or
  /// selects is an inference owner from then to its end. The engine makes room among its own, so
  /// none of them is evicted, and none evicts other owners.
  virtual Cache& requests() = 0;
  /// The cache of owners with these options, made if there is none: for an engine that serves
  /// requests on the same budget.
  ///
  /// Errors:   as GetOrCreate, for the options
  /// Lifetime: the registry's
  virtual Result<Cache*> CacheOf(const OwnerOptions& options) = 0;

  /// Brings the bytes in use down to `bytes`: first cached blocks that are not in use, then the
  /// least recently used inference owners. Never a training run.
  virtual EvictReport EvictToBudget(uint64_t bytes) = 0;
  /// Moves the budget. Down: makes room as EvictToBudget does until no more than that is charged,
  /// so training runs and requests stay. No slot of a live owner moves; caches give the memory
  /// beyond the new budget back where none of it is in use.
  ///
  /// Errors:  kTooLarge above hot_bytes_max; kNoSpace it holds no block of some owner's, or the
  ///          system refuses memory; kBusy training runs and requests hold more. The budget is then
  ///          as before; blocks that were evicted meanwhile stay evicted
  /// Threads: any; calls take turns
  virtual Result<void> Resize(uint64_t bytes) = 0;

  virtual uint64_t bytes_used() const = 0;
  virtual uint64_t budget_bytes() const = 0;
  virtual uint64_t owner_count() const = 0;
  /// In the order of owners. Each entry is as it was when it was looked at.
  virtual std::vector<OwnerStats> Owners() const = 0;
};

/// {"budget_bytes", "bytes_used", "owners"}, the last as above.
std::string ToJson(const Registry& registry);

}  // namespace quire

#endif  // QUIRE_REGISTRY_H_
