#include "evict/policies.h"

#include <array>

#include "evict/classic_policies.h"
#include "evict/priority.h"
#include "evict/quire.h"

namespace quire::evict {
namespace {

constexpr std::array<std::string_view, 4> kNames = {"lru", "priority", "token_limit", "quire"};

}  // namespace

std::span<const std::string_view> PolicyNames() { return kNames; }

std::unique_ptr<Policy> MakePolicy(std::string_view name) {
  if (name == "lru") return std::make_unique<LruPolicy>();
  if (name == "priority") return std::make_unique<PriorityPolicy>();
  if (name == "token_limit") return std::make_unique<TokenLimitPolicy>();
  if (name == "quire") return std::make_unique<QuirePolicy>();
  return nullptr;
}

}  // namespace quire::evict
