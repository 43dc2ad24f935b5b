// The limits of one rendering.
#ifndef QUIRE_TEXT_JINJA_BUDGET_H_
#define QUIRE_TEXT_JINJA_BUDGET_H_

#include <fmt/core.h>

#include <cstdint>
#include <string_view>

#include "quire/error.h"

namespace quire::model::jinja {

struct Limits {
  uint64_t steps = 20'000'000;  // expressions, statements, and names looked through for one
  uint64_t bytes = 1 << 28;     // of text and lists read or made on the way, the output among them
};

/// Steps, besides its own, of an operation that looks for a name among `members` one by one.
inline uint64_t SearchSteps(uint64_t members, std::string_view name) {
  constexpr uint64_t kMembersPerStep = 32;
  constexpr uint64_t kBytesAtOnce = 64;  // of the name
  return members * (1 + name.size() / kBytesAtOnce) / kMembersPerStep;
}

/// Every operation is charged before it runs, at its cost in the worst case: work in proportion to
/// steps and bytes, so that no template runs long.
class Budget {
 public:
  explicit Budget(const Limits& limits) : limits_(limits), left_(limits) {}

  /// Errors of both: kNoSpace
  Result<void> Step(uint64_t steps = 1) {
    if (steps <= left_.steps) {
      left_.steps -= steps;
      return {};
    }
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

#endif  // QUIRE_TEXT_JINJA_BUDGET_H_
