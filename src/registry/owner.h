// Who holds a cache: an inference request or a training run, and what each may choose.
#ifndef QUIRE_REGISTRY_OWNER_H_
#define QUIRE_REGISTRY_OWNER_H_

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "quire/identity.h"

namespace quire::registry {

/// May be evicted when room is needed; publishes its blocks for others to find.
struct Inference {
  uint64_t id = 0;
  auto operator<=>(const Inference&) const = default;
};

/// Never evicted while it lives, never publishes: its weights move at every optimizer step.
struct Training {
  std::string adapter{};
  uint64_t run = 0;
  auto operator<=>(const Training&) const = default;
};

using Owner = std::variant<Inference, Training>;

/// "inference 7", "training lora/3".
std::string OwnerName(const Owner& owner);

/// What an owner chooses when it is made.
struct OwnerOptions {
  Identity identity{};                      // of a training run the adapter is the owner's
  std::optional<NumericProfile> profile{};  // its codecs; none: the registry's
  uint64_t tokens_max = 0;                  // longest; 0: the registry's
  // Layers whose K and V are recomputed and never cached: they take no bytes. Ascending.
  std::vector<uint32_t> checkpoint_layers{};

  bool operator==(const OwnerOptions&) const = default;
};

}  // namespace quire::registry

#endif  // QUIRE_REGISTRY_OWNER_H_
