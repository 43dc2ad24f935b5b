// The public class: which kind of store it is.
#include <fmt/format.h>

#include <utility>

#include "store/impl.h"

namespace quire {

std::string_view BlockOutcomeName(BlockOutcome outcome) {
  switch (outcome) {
    case BlockOutcome::kOk: return "ok";
    case BlockOutcome::kPresent: return "present";
    case BlockOutcome::kAbsent: return "absent";
    case BlockOutcome::kDamaged: return "damaged";
    case BlockOutcome::kTooSmall: return "too_small";
    case BlockOutcome::kTooLarge: return "too_large";
    case BlockOutcome::kNoSpace: return "no_space";
    case BlockOutcome::kIo: return "io";
    case BlockOutcome::kClosed: return "closed";
    case BlockOutcome::kUnreachable: return "unreachable";
  }
  return "unknown";
}

Result<std::unique_ptr<BlockStore>> BlockStore::Open(const BlockStoreOptions& options) {
  constexpr std::string_view kSocket = "unix:";
  const bool is_socket = options.directory.starts_with(kSocket);
  if (is_socket && !options.keys.empty()) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("store: keys are given beside {}: the process that serves it has them "
                            "(`quire store serve DIR --keys FILE`)",
                            options.directory));
  }
  QUIRE_ASSIGN(auto impl, is_socket ? store::Connect(options.directory.substr(kSocket.size()))
                                    : store::OpenDirectory(options));
  return std::unique_ptr<BlockStore>(new BlockStore(std::move(impl)));
}

BlockStore::BlockStore(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
BlockStore::~BlockStore() { Close(); }

uint64_t BlockStore::Put(std::string_view name_space, std::span<const BlockPut> blocks) {
  return impl_->Put(name_space, blocks);
}
uint64_t BlockStore::Get(std::string_view name_space, std::span<const BlockGet> blocks) {
  return impl_->Get(name_space, blocks);
}
uint64_t BlockStore::Exists(std::string_view name_space, std::span<const std::string_view> keys) {
  return impl_->Exists(name_space, keys);
}
uint64_t BlockStore::Remove(std::string_view name_space, std::span<const std::string_view> keys) {
  return impl_->Remove(name_space, keys);
}
uint64_t BlockStore::Erase(std::string_view name_space) { return impl_->Erase(name_space); }
uint64_t BlockStore::Flush() { return impl_->Flush(); }
Result<BlockBatch> BlockStore::Wait(uint64_t batch, uint64_t timeout_us) {
  return impl_->batches().Wait(batch, timeout_us);
}
std::vector<BlockBatch> BlockStore::Drain() { return impl_->batches().Drain(); }
int BlockStore::event_fd() const { return impl_->batches().event_fd(); }
Result<void> BlockStore::SetLimits(std::string_view name_space, const NamespaceLimits& limits) {
  return impl_->SetLimits(name_space, limits);
}
Result<NamespaceUsage> BlockStore::Usage(std::string_view name_space) const {
  return impl_->Usage(name_space);
}
void BlockStore::Close() { impl_->Close(); }
BlockStoreStats BlockStore::stats() const { return impl_->stats(); }

}  // namespace quire
