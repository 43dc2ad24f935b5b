// Which recent prompts begin alike: a prefix tree of their blocks, without their text.
#ifndef QUIRE_SERVE_HTTP_PROMPT_TREE_H_
#define QUIRE_SERVE_HTTP_PROMPT_TREE_H_

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "base/mutex.h"
#include "quire/identity.h"
#include "serve/http/api_error.h"

namespace quire::serve::http {

/// Remembers the last prompts of each tenant by keyed hashes of their blocks. It says what requests
/// have in common, whether or not the cache still has it.
///
/// Threads: any
class PromptTree {
 public:
  /// Of one prompt, the first kBlocksMax blocks; of all tenants together, kPromptsMax prompts.
  static constexpr size_t kBlocksMax = 512;
  static constexpr size_t kPromptsMax = 128;

  explicit PromptTree(uint32_t block_tokens);

  /// Of the base model where `adapter` is empty.
  void Add(TenantId tenant, std::span<const TokenId> prompt, std::string_view adapter = {});

  /// [{"parent": index or -1, "tenant", "first_token", "tokens", "requests"}], parents before their
  /// children; blocks that the same requests go through are one entry. Without a tenant: all.
  OrderedJson Json(std::optional<TenantId> tenant) const;

 private:
  using Key = Blake2b<16>::Digest;
  struct Node {
    uint32_t requests = 0;
    std::map<Key, std::unique_ptr<Node>> children{};
  };
  struct Path {
    TenantId tenant;
    std::vector<Key> keys;
  };

  void Forget(const Path& path) QUIRE_REQUIRES(mutex_);

  const uint32_t block_tokens_;
  std::array<uint8_t, 32> secret_{};
  mutable Mutex mutex_{LockRank::kLeaf};
  std::map<TenantId, Node> roots_ QUIRE_GUARDED_BY(mutex_);
  std::deque<Path> paths_ QUIRE_GUARDED_BY(mutex_);  // oldest first
};

}  // namespace quire::serve::http

#endif  // QUIRE_SERVE_HTTP_PROMPT_TREE_H_
