// A run of memory from which stretches of any length are taken and given back.
#ifndef QUIRE_TIER_ARENA_H_
#define QUIRE_TIER_ARENA_H_

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/check.h"

namespace quire::tier {

/// Which stretches of [0, bytes) are free. The first that is long enough is taken, from its front,
/// and neighbours grow together again.
class Arena {
 public:
  explicit Arena(uint64_t bytes) {
    if (bytes > 0) free_.push_back({.begin = 0, .end = bytes});
  }

  /// Before each Take; after that nothing needs memory. Throws std::bad_alloc.
  void Prepare() { free_.reserve(taken_ + 2); }

  /// Nothing: no free stretch is long enough.
  std::optional<uint64_t> Take(uint64_t bytes) {
    const auto found = std::ranges::find_if(
        free_, [&](const Stretch& stretch) { return stretch.end - stretch.begin >= bytes; });
    if (found == free_.end()) return std::nullopt;
    const uint64_t begin = found->begin;
    found->begin += bytes;
    if (found->begin == found->end) free_.erase(found);
    ++taken_;
    return begin;
  }

  /// Takes back what was just given.
  void TakeAt(uint64_t begin, uint64_t bytes) {
    const auto found = std::prev(After(begin));
    const Stretch whole = *found;
    QUIRE_CHECK(whole.begin <= begin && begin + bytes <= whole.end);
    found->end = begin;
    auto next = std::next(found);
    if (begin + bytes < whole.end) {
      next = free_.insert(next, {.begin = begin + bytes, .end = whole.end});
    }
    if (whole.begin == begin) free_.erase(std::prev(next));
    ++taken_;
  }

  void Give(uint64_t begin, uint64_t bytes) {
    const auto after = free_.insert(After(begin), {.begin = begin, .end = begin + bytes});
    Join(after, std::next(after));
    if (after != free_.begin()) Join(std::prev(after), after);
    --taken_;
  }

 private:
  struct Stretch {
    uint64_t begin = 0;
    uint64_t end = 0;
  };
  using Stretches = std::vector<Stretch>;  // ascending, with something between them

  Stretches::iterator After(uint64_t begin) {
    return std::ranges::upper_bound(free_, begin, {}, &Stretch::begin);
  }
  void Join(Stretches::iterator before, Stretches::iterator after) {
    if (after == free_.end() || before->end != after->begin) return;
    before->end = after->end;
    free_.erase(after);
  }

  Stretches free_;
  uint64_t taken_ = 0;  // stretches: there is at most one free one more
};

}  // namespace quire::tier

#endif  // QUIRE_TIER_ARENA_H_
