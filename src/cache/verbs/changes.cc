#include "cache/verbs/changes.h"

#include <algorithm>
#include <memory>

#include "cache/verbs/leases.h"
#include "transfer/transfers.h"

namespace quire::cache {
namespace {

// Most blocks of one hold: for each its own record, and its parent's.
constexpr uint32_t kChangesPerHold = kRecordsPerHold / 2;

// No memory is taken under the lock. Of one block two things may be told.
void Reserve(BlockChanges& changes, uint32_t block_tokens) {
  changes.blocks.clear();
  changes.tokens.clear();
  changes.blocks.reserve(2 * size_t{kChangesPerHold});
  changes.tokens.reserve(size_t{kChangesPerHold} * block_tokens);
}

void AddStored(const State& state, BlockId block, BlockChanges& changes) {
  const Directory& directory = state.directory;
  directory.touched().Count(2);
  const BlockId parent = directory.tree().parent(block);
  const std::span<const TokenId> tokens = directory.tree().tokens(block);
  const size_t begin = changes.tokens.size();
  changes.tokens.insert(changes.tokens.end(), tokens.begin(), tokens.end());
  BlockChange& change = changes.blocks.emplace_back();
  change.key = directory.at(block).key;
  if (!parent.is_none()) change.parent_key = directory.at(parent).key;
  change.tokens = std::span(changes.tokens).subspan(begin);
}

bool TakeSome(State& state, BlockChanges& changes) {
  ToldBlocks& told = state.directory.told();
  const auto add = [&](BlockChangeKind kind, const Digest& key) {
    changes.blocks.push_back({.kind = kind, .key = key});
  };
  uint32_t left = kChangesPerHold;
  for (; left > 0 && told.has_gone(); --left) {
    const ToldBlocks::GoneBlock gone = told.TakeGone();
    if (gone.durable) add(BlockChangeKind::kDurable, gone.key);
    add(BlockChangeKind::kRemoved, gone.key);
  }
  for (; left > 0 && told.has_queued(); --left) {
    const ToldBlocks::News news = told.TakeQueued();
    if (news.stored) AddStored(state, news.block, changes);
    if (news.durable) add(BlockChangeKind::kDurable, state.directory.at(news.block).key);
  }
  return told.has_news();
}

}  // namespace

bool Changes::Take(BlockChanges& changes) {
  Reserve(changes, cache_.block_tokens());
  return cache_.With([&](State& state) { return TakeSome(state, changes); });
}

std::vector<Changes::Told> Changes::ListTold() {
  std::vector<Told> list;
  const uint32_t end = cache_.With([](State& state) { return state.directory.ids_end(); });
  LockedState::ForPieces(
      end,
      [&](size_t first, size_t last) {
        list.reserve(list.capacity() - list.size() < last - first
                         ? 2 * list.size() + (last - first)
                         : list.capacity());  // no memory is taken under the lock
        cache_.With([&](State& state) {
          const Directory& directory = state.directory;
          for (size_t i = first; i < last; ++i) {
            const BlockId block(static_cast<uint32_t>(i));
            if (!directory.told().is_told(block)) continue;
            directory.touched().Count(1);
            list.push_back({.depth = directory.tree().depth(block),
                            .block = block,
                            .key = PolicyKey(directory.at(block).key)});
          }
        });
      },
      kChangesPerHold);
  return list;
}

// A block leaves the tree after its children, and only Take makes more blocks known. So of two
// blocks that are looked at in the order of their depths, the parent is there if its child is.
void Changes::ForEachTold(const std::function<void(const BlockChanges&)>& visit) {
  std::vector<Told> list = ListTold();
  std::ranges::stable_sort(list, {}, &Told::depth);
  BlockChanges changes;
  LockedState::ForPieces(
      list.size(),
      [&](size_t first, size_t last) {
        Reserve(changes, cache_.block_tokens());
        cache_.With([&](State& state) {
          for (size_t i = first; i < last; ++i) {
            const BlockId block = list[i].block;
            if (!state.directory.told().is_told(block)) continue;
            if (PolicyKey(state.directory.at(block).key) != list[i].key) continue;
            AddStored(state, block, changes);
          }
        });
        visit(changes);
      },
      kChangesPerHold);
}

void Changes::InStore(std::span<const Digest> keys, std::span<bool> out) {
  std::ranges::fill(out, false);
  if (cache_.transfers() == nullptr || keys.empty()) return;
  std::vector<tier::Presence> there(keys.size());
  cache_.transfers()->Find(keys, there);
  std::ranges::transform(there, out.begin(), [](tier::Presence presence) {
    return presence == tier::Presence::kPresent;
  });
}

}  // namespace quire::cache
