// Hits of an LRU cache, for all sizes at once.
#ifndef QUIRE_EVICT_REUSE_ESTIMATOR_H_
#define QUIRE_EVICT_REUSE_ESTIMATOR_H_

#include <cstdint>
#include <map>
#include <span>
#include <vector>

namespace quire::evict {

/// Counts, for a sample of blocks, how many others were used since the last use of each: what a
/// cache of at least so many blocks had hit. The sample is chosen by key, so the same uses give the
/// same answer, and shrinks by itself to what the memory holds. Exact while everything fits into
/// the sample.
///
/// Cost:    O(log samples) for a sampled block, a comparison for others; about 100 bytes per sample
/// Threads: not synchronised
/// Source:  Waldspurger et al., SHARDS, FAST 2015 (fixed size, adjusted)
class ReuseEstimator {
 public:
  static constexpr uint32_t kSamplesMax = 8192;
  /// Most that a sample costs the heap: a node of the map and its moments.
  static constexpr uint64_t kBytesEach = 80;

  /// `samples_max` at least 1.
  explicit ReuseEstimator(uint32_t samples_max = kSamplesMax);

  /// A request used one whole path.
  ///
  /// Shape: keys [blocks], BlockFacts::key (uniform bits), first block first
  void Use(std::span<const uint64_t> keys) { Use(keys, keys.size()); }
  /// The same, of which only the first `asked` blocks were asked for: the others are new.
  void Use(std::span<const uint64_t> keys, uint64_t asked) {
    CountAsked(keys.first(asked));
    Touch(keys);
  }
  /// The two halves of it, to be called in pieces: a request looks up its whole path, first block
  /// first, before it uses any of it, and afterwards its first block is the most recent, so the
  /// last piece is touched first.
  void CountAsked(std::span<const uint64_t> keys);
  void Touch(std::span<const uint64_t> keys);

  /// Keeps fewer samples, or more of those to come.
  void SetCapacity(uint32_t samples_max);

  /// Share of the used blocks, 0 to 1, that `capacity_blocks` had held when they were asked for.
  double HitRatio(uint64_t capacity_blocks) const;

  uint64_t uses() const { return uses_; }
  uint64_t samples() const { return last_.size(); }
  /// Blocks per sampled one.
  double scale() const;
  /// What the moments take of the heap.
  uint64_t moments_bytes() const { return tree_.capacity() * sizeof(tree_[0]); }

 private:
  static constexpr uint32_t kPerDoubling = 16;
  static constexpr uint32_t kDistances = 65 * kPerDoubling;

  static uint32_t BucketOf(double distance);
  static double BucketBegin(uint32_t bucket);

  bool IsSampled(uint64_t key) const { return key < sampled_below_; }
  void CountOne(uint64_t key);
  void TouchOne(uint64_t key);
  void Compact();
  void ForgetLast();
  void AddAt(uint32_t moment, int32_t change);
  uint32_t UsedUntil(uint32_t moment) const;

  uint32_t samples_max_;
  uint64_t sampled_below_ = UINT64_MAX;
  std::map<uint64_t, uint32_t> last_;  // by sampled key: moment of the last use
  std::vector<int32_t> tree_;          // Fenwick, by moment: keys whose last use that was
  uint32_t next_moment_ = 1;
  std::vector<double> hits_;  // by distance, in blocks; up to the largest that was seen
  double sampled_uses_ = 0;   // scaled to all
  uint64_t uses_ = 0;
};

}  // namespace quire::evict

#endif  // QUIRE_EVICT_REUSE_ESTIMATOR_H_
