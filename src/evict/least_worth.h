// Which evictable leaf the return model would miss least.
#ifndef QUIRE_EVICT_LEAST_WORTH_H_
#define QUIRE_EVICT_LEAST_WORTH_H_

#include <array>
#include <cstdint>
#include <tuple>

#include "evict/leaf_order.h"
#include "evict/return_model.h"

namespace quire::evict {

/// A block that may go. Of equal worth the one used longest ago goes first.
struct Candidate {
  double worth = 0;
  uint64_t time_ms = 0;  // of its last use
  uint64_t stamp = 0;    // no two are equal
  BlockId block{};       // none: there is no candidate

  /// Whether this one goes before the other.
  bool Precedes(const Candidate& other) const {
    if (block.is_none() || other.block.is_none()) return !block.is_none();
    return std::tie(worth, time_ms, stamp) < std::tie(other.worth, other.time_ms, other.stamp);
  }
};

/// Searches an order whose queues are the model's classes and whose weights are times of last use.
/// What is worth keeping may first rise with age and then falls: in every class only the oldest and
/// the newest can be worth least. Remembers what each class offers while its leaves, the time and
/// the model stay the same, as they do between the evictions for one request.
///
/// Cost: two looks at the model for each class that changed; all classes are compared only where
///       another one comes first
class LeastWorth {
 public:
  /// Always with the same order and the same model. None: there is no leaf.
  BlockId Find(const LeafOrder& order, const ReturnModel& model, uint64_t now_ms);
  /// The leaf used least recently, or none.
  BlockId FindOldest(const LeafOrder& order);

 private:
  enum class By : uint8_t { kNothing, kWorth, kAge };

  void StartAfresh(By by);
  /// Sets what a class offers, and with it what goes first.
  void Offer(uint32_t of_class, const Candidate& candidate);
  void Rank();

  By by_ = By::kNothing;
  uint64_t now_ms_ = 0;
  uint64_t fits_ = 0;
  std::array<uint64_t, ReturnModel::kClasses> versions_ = {};  // of the queues that were looked at
  std::array<Candidate, ReturnModel::kClasses> offers_ = {};
  // The classes whose offers go first and next. Mostly the first one offers the next block of the
  // same path, which goes first again.
  uint32_t first_ = 0;
  uint32_t next_ = 1;
};

}  // namespace quire::evict

#endif  // QUIRE_EVICT_LEAST_WORTH_H_
