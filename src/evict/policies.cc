#include "evict/policies.h"

#include <array>

#include "evict/lru.h"
#include "evict/quire.h"

namespace quire::evict {
namespace {

constexpr std::array<std::string_view, 2> kNames = {"lru", "quire"};

}  // namespace

std::span<const std::string_view> PolicyNames() { return kNames; }

std::unique_ptr<Policy> MakePolicy(std::string_view name) {
  if (name == "lru") return std::make_unique<LruPolicy>();
  if (name == "quire") return std::make_unique<QuirePolicy>();
  return nullptr;
}

}  // namespace quire::evict
