#include "cache/below/demote.h"

#include <utility>

#include "base/bits.h"
#include "base/sync_point.h"
#include "cache/below/store_state.h"
#include "cache/below/write_back.h"
#include "cache/verbs/evict.h"
#include "cache/verbs/tenants.h"

namespace quire::cache {

namespace {

bool IsAsFound(const State& state, const FoundPath& path, size_t i) {
  const BlockId block = path.blocks[i];
  return state.directory.contains(block) &&
         PolicyKey(state.directory.at(block).key) == path.keys[i];
}

// From the last of the first `end` blocks on, as many as one hold may drop, or up to the first that
// is held, that others continue, or that the store has not. How many went; what had gone before
// counts as gone.
size_t DropSome(State& state, const FoundPath& path, size_t end, uint64_t& dropped) {
  size_t gone = 0;
  while (gone < end && state.directory.touched().MayGoOn()) {
    const size_t i = end - 1 - gone;
    if (IsAsFound(state, path, i)) {
      const BlockId block = path.blocks[i];
      const bool is_held = state.directory.leases().of(block) > 0;
      if (is_held || state.directory.tree().has_children(block)) break;
      if (!IsDurable(state, block)) break;
      Drop(state, block, MissReason::kEvicted);
      ++state.counters.evicted_total;
      ++dropped;
    }
    ++gone;
  }
  return gone;
}

}  // namespace

Result<uint64_t> Demote(LockedState& cache, Search& search, const AcquireRequest& request) {
  if (cache.store() == nullptr) {
    return Fail(ErrorCode::kUnsupported, "demote: the cache has no store below it");
  }
  QUIRE_ASSIGN(const PublishLocation location, Locate(cache, request, "demote"));
  const uint64_t tokens = RoundDown<uint64_t>(request.tokens.size(), cache.block_tokens());
  const FoundPath path =
      search.FindBlocks(request.tokens.first(tokens), location, /*explains=*/false);
  // What was refused or recycled is offered once more.
  LockedState::ForPieces(path.blocks.size(), [&](size_t begin, size_t end) {
    cache.With([&](State& state) {
      for (size_t i = begin; i < end; ++i) {
        if (IsAsFound(state, path, i)) Offer(state, path.blocks[i]);
      }
    });
  });
  const auto flushed = cache.store()->Flush();
  AtSyncPoint("demote: what the store takes is durable");
  uint64_t dropped = 0;
  size_t end = path.blocks.size();
  while (end > 0) {
    const size_t gone =
        cache.With([&](State& state) { return DropSome(state, path, end, dropped); });
    if (gone == 0) break;
    end -= gone;
  }
  if (dropped == 0 && !flushed) return std::unexpected(flushed.error());
  return dropped;
}

}  // namespace quire::cache
