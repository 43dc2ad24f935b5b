// What every kind of BlockStore does.
#ifndef QUIRE_STORE_IMPL_H_
#define QUIRE_STORE_IMPL_H_

#include <span>
#include <string_view>
#include <vector>

#include "quire/store.h"
#include "store/batches.h"

namespace quire {

/// The calls of quire/store.h, which says what each one does.
class BlockStore::Impl {
 public:
  virtual ~Impl() = default;

  virtual uint64_t Put(std::string_view name_space, std::span<const BlockPut> blocks) = 0;
  virtual uint64_t Get(std::string_view name_space, std::span<const BlockGet> blocks) = 0;
  virtual uint64_t Exists(std::string_view name_space, std::span<const std::string_view> keys) = 0;
  virtual uint64_t Remove(std::string_view name_space, std::span<const std::string_view> keys) = 0;
  virtual uint64_t Erase(std::string_view name_space) = 0;
  virtual uint64_t Flush() = 0;
  virtual Result<void> SetLimits(std::string_view name_space, const NamespaceLimits& limits) = 0;
  virtual Result<NamespaceUsage> Usage(std::string_view name_space) = 0;
  virtual void Close() = 0;
  virtual BlockStoreStats stats() = 0;

  store::Batches& batches() { return batches_; }

 protected:
  explicit Impl(std::unique_ptr<Event> event) : batches_(std::move(event)) {}

  store::Batches batches_;
};

namespace store {

/// Errors: as BlockStore::Open
Result<std::unique_ptr<BlockStore::Impl>> OpenDirectory(const BlockStoreOptions& options);
Result<std::unique_ptr<BlockStore::Impl>> Connect(const std::string& socket);

}  // namespace store
}  // namespace quire

#endif  // QUIRE_STORE_IMPL_H_
