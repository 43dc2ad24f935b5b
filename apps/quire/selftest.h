// Whether tenants are apart on a live cache: the checks behind `quire selftest isolation`.
#ifndef QUIRE_APPS_SELFTEST_H_
#define QUIRE_APPS_SELFTEST_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "quire/cache.h"

namespace quire::app {

/// One promise, and whether the cache kept it.
struct IsolationCheck {
  std::string name{};
  bool passed = false;
  std::string detail{};  // what was seen
};

/// Makes the cache under test. The checks look into the memory that the options name.
using MakeCache = std::function<Result<std::unique_ptr<Cache>>(CacheOptions options)>;

/// Every check on a cache of its own of this codec.
///
/// Errors: those of the cache where a check could not be made at all
Result<std::vector<IsolationCheck>> CheckIsolation(const MakeCache& make, Codec codec);

/// The same with the real cache.
Result<std::vector<IsolationCheck>> CheckIsolation(Codec codec);

}  // namespace quire::app

#endif  // QUIRE_APPS_SELFTEST_H_
