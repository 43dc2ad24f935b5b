#include "serve/http/prompt_tree.h"

#include <sodium.h>

#include <algorithm>

namespace quire::serve::http {

PromptTree::PromptTree(uint32_t block_tokens) : block_tokens_(block_tokens) {
  randombytes_buf(secret_.data(), secret_.size());
}

void PromptTree::Add(TenantId tenant, std::span<const TokenId> prompt, std::string_view adapter) {
  Path path{.tenant = tenant, .keys = {}};
  const size_t blocks = std::min<size_t>(prompt.size() / block_tokens_, kBlocksMax);
  for (size_t i = 0; i < blocks; ++i) {
    Blake2b<16> hash(secret_);
    hash.Update(adapter);
    hash.Update(std::as_bytes(prompt.subspan(i * block_tokens_, block_tokens_)));
    path.keys.push_back(hash.Finish());
  }
  if (path.keys.empty()) return;
  MutexLock lock(mutex_);
  Node* node = &roots_[tenant];
  ++node->requests;
  for (const Key& key : path.keys) {
    auto& child = node->children[key];
    if (child == nullptr) child = std::make_unique<Node>();
    node = child.get();
    ++node->requests;
  }
  paths_.push_back(std::move(path));
  if (paths_.size() <= kPromptsMax) return;
  Forget(paths_.front());
  paths_.pop_front();
}

void PromptTree::Forget(const Path& path) {
  Node* node = &roots_.at(path.tenant);
  if (--node->requests == 0) {
    roots_.erase(path.tenant);
    return;
  }
  for (const Key& key : path.keys) {
    const auto child = node->children.find(key);
    if (--child->second->requests == 0) {
      node->children.erase(child);  // no other prompt goes further
      return;
    }
    node = child->second.get();
  }
}

OrderedJson PromptTree::Json(std::optional<TenantId> tenant) const {
  struct Visit {
    const Node* node;
    TenantId tenant;
    int64_t parent;
    uint64_t first_block;
  };
  MutexLock lock(mutex_);
  OrderedJson list = OrderedJson::array();
  std::vector<Visit> todo;
  const auto push_children = [&](const Node& node, TenantId of, int64_t parent, uint64_t block) {
    for (const auto& [key, child] : node.children) todo.push_back({child.get(), of, parent, block});
  };
  for (const auto& [of, root] : roots_) {
    if (!tenant || *tenant == of) push_children(root, of, -1, 0);
  }
  while (!todo.empty()) {
    const Visit visit = todo.back();
    todo.pop_back();
    const Node* node = visit.node;
    uint64_t end_block = visit.first_block + 1;
    while (node->children.size() == 1 &&
           node->children.begin()->second->requests == node->requests) {
      node = node->children.begin()->second.get();
      ++end_block;
    }
    const auto index = static_cast<int64_t>(list.size());
    list.push_back({{"parent", visit.parent},
                    {"tenant", visit.tenant.number()},
                    {"first_token", visit.first_block * block_tokens_},
                    {"tokens", (end_block - visit.first_block) * block_tokens_},
                    {"requests", node->requests}});
    push_children(*node, visit.tenant, index, end_block);
  }
  return list;
}

}  // namespace quire::serve::http
