// For calls that cannot fail with what a bench passes.
#ifndef QUIRE_BENCH_MUST_H_
#define QUIRE_BENCH_MUST_H_

#include <type_traits>
#include <utility>

#include "base/check.h"
#include "quire/error.h"

namespace quire::bench {

template <typename Value>
Value Must(Result<Value> result) {
  QUIRE_CHECK_MSG(result.has_value(), result.error().message);
  if constexpr (!std::is_void_v<Value>) return *std::move(result);
}

}  // namespace quire::bench

#endif  // QUIRE_BENCH_MUST_H_
