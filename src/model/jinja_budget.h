// What one rendering may cost.
#ifndef QUIRE_MODEL_JINJA_BUDGET_H_
#define QUIRE_MODEL_JINJA_BUDGET_H_

#include <fmt/core.h>

#include <cstdint>

#include "quire/error.h"

namespace quire::model::jinja {

struct Limits {
  uint64_t steps = 20'000'000;  // expressions and statements
  uint64_t bytes = 1 << 28;     // of text and lists made on the way, the output among them
};

class Budget {
 public:
  explicit Budget(const Limits& limits) : limits_(limits), left_(limits) {}

  /// Errors of both: kNoSpace
  Result<void> Step() {
    if (left_.steps-- > 0) return {};
    left_.steps = 0;
    return Fail(ErrorCode::kNoSpace, fmt::format("more than {} steps", limits_.steps));
  }
  Result<void> Charge(uint64_t bytes) {
    if (bytes <= left_.bytes) {
      left_.bytes -= bytes;
      return {};
    }
    return Fail(ErrorCode::kNoSpace, fmt::format("more than {} bytes of text", limits_.bytes));
  }
  uint64_t bytes_left() const { return left_.bytes; }

 private:
  const Limits limits_;
  Limits left_;
};

}  // namespace quire::model::jinja

#endif  // QUIRE_MODEL_JINJA_BUDGET_H_
