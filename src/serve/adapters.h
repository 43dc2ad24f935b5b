// The adapters of one engine: which there are, what they take of memory, and the identity of what
// is computed with each.
#ifndef QUIRE_SERVE_ADAPTERS_H_
#define QUIRE_SERVE_ADAPTERS_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/mutex.h"
#include "model/adapter.h"
#include "model/config.h"
#include "quire/error.h"
#include "quire/identity.h"

namespace quire::serve {

struct AdapterLimits {
  uint32_t count_max = 64;
  uint64_t bytes_max = uint64_t{4} << 30;  // of their matrices, those too that only requests have
};

/// Lifetime: a request that runs with it keeps it, loaded or not
struct ServedAdapter {
  std::string name;
  std::unique_ptr<const model::Adapter> adapter;
  Identity identity;  // of its blocks: of no other adapter, and not of the base model
};

inline constexpr size_t kAdapterNameBytesMax = 64;
/// A name is a model's name in calls: 1 to 64 of A-Z, a-z, 0-9, '_', '-', '.' and '/'.
bool IsAdapterName(std::string_view name);

/// The base model's identity with what an adapter changes of it: its digest in `weights` and
/// `adapter_version`, so that other weights under an old name are another adapter.
Identity AdapterIdentity(const Identity& base, std::string_view name, const Digest& digest);

/// Threads:  any; one Load at a time
/// Lifetime: what it is made with must outlive it
class AdapterTable {
 public:
  /// `supported`: passes are the processor's.
  AdapterTable(const model::ModelConfig& model, const Identity& base, const AdapterLimits& limits,
               bool supported)
      : model_(model), base_(base), limits_(limits), supported_(supported) {}

  /// Reads an adapter on the calling thread. Others go on meanwhile.
  ///
  /// Errors: kInvalidArgument the name; kBusy one of that name is loaded; kTooLarge and kNoSpace
  ///         the limits; kUnsupported passes are a device's; those of model::Adapter::Load
  Result<std::shared_ptr<const ServedAdapter>> Load(const std::string& name,
                                                    const std::string& directory);
  /// New requests find it no more; those that run with it end with it.
  /// Errors: kNotFound
  Result<void> Unload(std::string_view name);
  /// Errors: kNotFound
  Result<std::shared_ptr<const ServedAdapter>> Find(std::string_view name) const;
  /// By name.
  std::vector<std::shared_ptr<const ServedAdapter>> All() const;
  uint32_t count() const;
  /// Of all that are in memory.
  uint64_t bytes() const { return bytes_->load(); }

 private:
  const model::ModelConfig& model_;
  const Identity& base_;
  const AdapterLimits limits_;
  const bool supported_;
  const std::shared_ptr<std::atomic<uint64_t>> bytes_ = std::make_shared<std::atomic<uint64_t>>(0);
  Mutex loading_{LockRank{1}};
  mutable Mutex mutex_{LockRank{2}};
  std::map<std::string, std::shared_ptr<const ServedAdapter>, std::less<>> adapters_
      QUIRE_GUARDED_BY(mutex_);
};

}  // namespace quire::serve

#endif  // QUIRE_SERVE_ADAPTERS_H_
