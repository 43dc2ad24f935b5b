// How soon a block will be used again, learned from nothing but the requests seen so far, and which
// block is worth least by it.
#ifndef QUIRE_EVICT_RETURN_MODEL_H_
#define QUIRE_EVICT_RETURN_MODEL_H_

#include <array>
#include <bit>
#include <cstdint>
#include <span>
#include <tuple>
#include <vector>

#include "evict/leaf_order.h"

namespace quire::evict {

/// Facts about a block when its request ends. Scaled to about -1 to 1; the first is 1.
inline constexpr uint32_t kReturnFeatures = 10;
using ReturnFeatures = std::array<float, kReturnFeatures>;

/// Two parts. A logistic regression, one step per outcome, scores which blocks return at all;
/// scores fall into classes of equal size. For every class a table counts at what age its blocks
/// returned, and for how long others were watched without: the chance to return at an age, given
/// that it has not happened yet.
///
/// The worth of keeping a block is the best rate of hits per time that any further stay promises
/// (its Gittins index). So a block that is too young to return yet already has its later worth.
///
/// Threads: not synchronised
/// Source:  Gittins, J. R. Stat. Soc. B 41(2), 1979
class ReturnModel {
 public:
  static constexpr uint32_t kClasses = 8;
  static constexpr uint32_t kAges = 112;
  static constexpr uint64_t kAgeUnitMs = 16;
  using Ages = std::array<double, kAges>;  // by AgeOf
  using ClassAges = std::array<Ages, kClasses>;

  ReturnModel();

  double Score(const ReturnFeatures& features) const;
  uint32_t ClassOf(double score) const;

  /// Hits per millisecond that a block of this class and age is worth.
  double Worth(uint32_t of_class, uint64_t age_ms) const { return worth_[of_class][AgeOf(age_ms)]; }

  /// A block with these features came back, or did not within horizon_ms().
  void Learn(const ReturnFeatures& features, bool returned);
  /// A block came back at this age, or is watched no more.
  void CountReturn(uint32_t of_class, uint64_t age_ms) { ++returned_[of_class][AgeOf(age_ms)]; }
  void CountLost(uint32_t of_class, uint64_t age_ms) { ++lost_[of_class][AgeOf(age_ms)]; }

  /// Takes the counts into account, and forgets some of them. `scores` are of the blocks that are
  /// watched now or a sample of them, in any order; `watched` counts all by class and age.
  ///
  /// Cost: O(scores + kClasses * kAges^2)
  void Refit(std::vector<double>& scores, const ClassAges& watched);

  /// Times that Worth has changed.
  uint64_t fits() const { return fits_; }
  /// Four of five that returned had done so at this age.
  double horizon_ms() const { return horizon_ms_; }

  /// Four ages per doubling, from 16 ms.
  static uint32_t AgeOf(uint64_t age_ms) {
    const uint64_t units = age_ms / kAgeUnitMs + 1;
    const auto doublings = static_cast<uint32_t>(std::bit_width(units / 2));
    const auto quarter = static_cast<uint32_t>((units << 2 >> doublings) & 3);
    return doublings >= kAges / 4 ? kAges - 1 : doublings * 4 + quarter;
  }
  static double AgeBeginMs(uint32_t age);

  /// The best rate of hits per millisecond that a stay promises that begins at an age, given the
  /// chance per millisecond to return at each.
  static Ages GittinsIndex(const Ages& hazard);

 private:
  // What happened at an age, and for how long it could have.
  struct Evidence {
    Ages returns = {};
    Ages exposure_ms = {};
  };

  Evidence EvidenceOf(uint32_t of_class, const Ages& watched) const;
  void SetHorizon(const Ages& returns);
  static Ages PooledHazard(const Evidence& pooled);
  static Ages HazardOf(const Evidence& own, const Ages& pooled);
  std::array<double, kReturnFeatures> weights_ = {};
  std::array<double, kReturnFeatures> gradients_ = {};  // sums of squares
  std::array<double, kClasses - 1> class_ends_ = {};    // scores
  ClassAges returned_ = {};
  ClassAges lost_ = {};
  ClassAges worth_ = {};
  uint64_t fits_ = 0;
  double horizon_ms_;
};

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
/// The worth of a block may first rise with age and then falls: in every class only the oldest and
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
  /// Sets the candidate of a class, and with it the first of all.
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

#endif  // QUIRE_EVICT_RETURN_MODEL_H_
