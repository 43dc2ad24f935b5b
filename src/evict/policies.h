// The policies by name.
#ifndef QUIRE_EVICT_POLICIES_H_
#define QUIRE_EVICT_POLICIES_H_

#include <memory>
#include <span>
#include <string_view>

#include "evict/policy.h"

namespace quire::evict {

std::span<const std::string_view> PolicyNames();

/// A new policy; null for a name that is not in PolicyNames().
std::unique_ptr<Policy> MakePolicy(std::string_view name);

}  // namespace quire::evict

#endif  // QUIRE_EVICT_POLICIES_H_
