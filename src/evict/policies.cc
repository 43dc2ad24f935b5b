#include "evict/policies.h"

#include <array>

#include "evict/lru.h"

namespace quire::evict {
namespace {

constexpr std::array<std::string_view, 1> kNames = {"lru"};

}  // namespace

std::span<const std::string_view> PolicyNames() { return kNames; }

std::unique_ptr<Policy> MakePolicy(std::string_view name) {
  if (name == "lru") return std::make_unique<LruPolicy>();
  return nullptr;
}

}  // namespace quire::evict
