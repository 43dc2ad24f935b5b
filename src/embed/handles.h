// What the C handles hold. Each shares the cache, so that they can be freed in any order; members
// end in reverse, the cache last.
#ifndef QUIRE_EMBED_HANDLES_H_
#define QUIRE_EMBED_HANDLES_H_

#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/attention.h"
#include "quire/cache.h"
#include "quire/disk_store.h"
#include "quire/env.h"
#include "quire/quire.h"
#include "quire/registry.h"

namespace quire::embed {

/// A view and what it needs, shared with the tensors made of it.
struct PinnedView {
  std::shared_ptr<Cache> cache;
  BlockListView view;
};

/// The lists of a layer that a caller was shown.
struct ShownBlocks {
  LayerBlocks blocks;
  std::vector<const void*> pointers;  // [blocks]: where the slots begin
};

}  // namespace quire::embed

struct quire_disk_store {
  std::shared_ptr<quire::DiskStore> store;
};

struct quire_cache {
  std::shared_ptr<quire::Cache> cache;
};

struct quire_plan {
  std::shared_ptr<quire::Cache> cache;
  quire::Plan plan;
};

struct quire_ticket {
  std::shared_ptr<quire::Cache> cache;
  bool from_end = false;
  quire::Ticket ticket;
};

struct quire_sequence {
  quire_sequence(std::shared_ptr<quire::Cache> of, std::unique_ptr<quire::Sequence> made)
      : cache(std::move(of)),
        sequence(std::move(made)),
        blocks(cache->options().geometry.layer_count()) {}

  std::shared_ptr<quire::Cache> cache;
  std::unique_ptr<quire::Sequence> sequence;
  mutable std::vector<quire::embed::ShownBlocks> blocks;  // [layers]: what was shown last of each
};

struct quire_view {
  std::shared_ptr<const quire::embed::PinnedView> pinned;
};

struct quire_owner {
  std::shared_ptr<quire::Registry> registry;  // ends last
  std::shared_ptr<quire::OwnerCache> owner;
};

struct quire_attention {
  std::unique_ptr<quire::AttentionBackend> backend;
  std::unique_ptr<quire::Executor> executor;
};

namespace quire::embed {

/// What callers give as the cache wants it: of the options all but the store and what falls back.
/// Errors: kInvalidArgument and kUnsupported name the field
Result<CacheOptions> ToOptions(const quire_cache_options& options);
Result<Identity> ToIdentity(const quire_identity* caller);
Result<RowsView> ToRows(const quire_rows& rows, std::string_view name);

/// Errors: kInvalidArgument the model has no such layer
Result<void> CheckLayer(const quire_sequence& sequence, uint32_t layer);

}  // namespace quire::embed

#endif  // QUIRE_EMBED_HANDLES_H_
