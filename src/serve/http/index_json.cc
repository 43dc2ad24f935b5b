#include "serve/http/index_json.h"

#include <algorithm>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

namespace quire::serve::http {
namespace {

using Children = std::vector<std::vector<uint32_t>>;  // by number of an entry; the last: of no one

Children ChildrenOf(std::span<const CacheEntry> entries) {
  std::unordered_map<uint64_t, uint32_t> by_key;
  for (uint32_t i = 0; i < entries.size(); ++i) by_key.emplace(entries[i].key, i);
  Children children(entries.size() + 1);
  for (uint32_t i = 0; i < entries.size(); ++i) {
    const auto parent = by_key.find(entries[i].parent_key);
    // Blocks that came during the look: a path cannot go up.
    const bool known =
        parent != by_key.end() && entries[parent->second].first_token < entries[i].first_token;
    children[known ? parent->second : entries.size()].push_back(i);
  }
  for (auto& of_one : children) {
    std::ranges::sort(of_one, {}, [&](uint32_t i) {
      return std::tuple(entries[i].account, entries[i].first_token, entries[i].key);
    });
  }
  return children;
}

bool SameButTokens(CacheEntry a, const CacheEntry& b) {
  a.key = b.key;
  a.parent_key = b.parent_key;
  a.first_token = b.first_token;
  return a == b;
}

std::string_view TierOf(const CacheEntry& entry) {
  return entry.in_memory ? "memory" : entry.in_store ? "store" : "none";
}

}  // namespace

OrderedJson IndexJson(std::span<const CacheEntry> entries, const IndexJsonOptions& options) {
  const Children children = ChildrenOf(entries);
  OrderedJson runs = OrderedJson::array();
  std::vector<std::pair<uint32_t, int64_t>> todo;  // an entry, and the run before it
  const auto push_children = [&](size_t of, int64_t run) {
    for (auto i = children[of].rbegin(); i != children[of].rend(); ++i) todo.emplace_back(*i, run);
  };
  push_children(entries.size(), -1);
  uint64_t shown = 0;
  while (!todo.empty() && runs.size() < options.runs_max) {
    const auto [first, parent] = todo.back();
    todo.pop_back();
    const CacheEntry& entry = entries[first];
    uint32_t last = first;
    uint64_t blocks = 1;
    while (children[last].size() == 1 && SameButTokens(entries[children[last][0]], entry)) {
      last = children[last][0];
      ++blocks;
    }
    shown += blocks;
    push_children(last, static_cast<int64_t>(runs.size()));
    runs.push_back({{"parent", parent},
                    {"tenant", options.name_of(entry.account)},
                    {"first_token", entry.first_token},
                    {"tokens", blocks * options.block_tokens},
                    {"tier", TierOf(entry)},
                    {"stored", entry.in_store},
                    {"holders", entry.holders},
                    {"pinned", entry.pinned},
                    {"age_s", entry.age_s},
                    {"idle_s", entry.idle_s}});
  }
  return {{"blocks", entries.size()},
          {"blocks_left_out", entries.size() - shown},
          {"runs", std::move(runs)}};
}

}  // namespace quire::serve::http
