// Watches a sample of all blocks, evicted or not: their uses teach the return model, and two caches
// in miniature show whether the model or recency would have hit more.
#ifndef QUIRE_EVICT_RETURN_SHADOW_H_
#define QUIRE_EVICT_RETURN_SHADOW_H_

#include <cstdint>

#include "evict/per_block.h"
#include "evict/recent_keys.h"
#include "evict/return_model.h"

namespace quire::evict {

/// A block is sampled by its key: one in kEveryMost, or more in a small cache, so that those in
/// miniature are not all too small. Whole paths need no care, as both orders keep a block at least
/// as long as what follows it.
///
/// Cost: O(1) amortised for a sampled block; kBytesEach per watched block
/// Source: SHARDS, FAST 2015, for the sampling
class ReturnShadow {
 private:
  // Of a watched block.
  struct Watched {
    uint64_t time_ms = 0;
    uint64_t use = 0;  // its number
    ReturnFeatures features = {};
    uint8_t of_class = 0;
    bool in_lru = false;
    bool outcome_known = false;
  };
  static constexpr uint64_t kPerScore = 4;  // watched blocks: enough for quantiles

 public:
  static constexpr uint64_t kEveryMost = 16;
  static constexpr uint64_t kBytesEach =
      RecentKeys<Watched>::kBytesEach + Rings::kBytesEach + sizeof(double) / kPerScore;

  bool Samples(uint64_t key) const { return key != 0 && key % every_ == 0; }

  const ReturnModel& model() const { return model_; }
  /// The model has lately hit more than recency, and by more than chance.
  bool model_leads() const { return model_leads_; }

  /// A request begins; with it the cache has so many blocks. Full: it has evicted some before.
  void Begin(uint64_t cache_blocks, bool is_full);
  /// A block with a sampled key was used, in a cache of so many blocks; at most `watched_max` (at
  /// least 1) are watched from now on.
  void Use(uint64_t key, const ReturnFeatures& features, uint64_t now_ms, uint64_t cache_blocks,
           uint64_t watched_max);

  uint64_t watched() const { return watched_.size(); }

 private:
  void SampleOneIn(uint64_t every);
  void Return(BlockId place, uint64_t now_ms);
  void Forget(uint64_t now_ms);
  void Drop(BlockId place);
  void Trim(uint64_t blocks, uint64_t now_ms);
  BlockId LeastWorth(uint64_t now_ms) const;
  void Compare();
  void Refit(uint64_t now_ms);

  ReturnModel model_;
  RecentKeys<Watched> watched_;  // least recent first

  BlockId lru_oldest_{};  // from here on, the cache that goes by recency
  uint64_t lru_blocks_ = 0;
  // The cache that goes by the model: the most recent block stands last in its class, so nothing
  // needs sorting.
  Rings by_class_{ReturnModel::kClasses};
  uint64_t model_blocks_ = 0;
  uint64_t every_ = kEveryMost;
  double lead_ = 0;        // hits of the model beyond those of recency, lately
  double of_request_ = 0;  // the same of the request at hand
  double variance_ = 0;    // of lead_, if only chance made it: squares of what each request added
  bool model_leads_ = false;
  uint64_t uses_ = 0;
  uint64_t uses_at_fit_ = 0;
};

}  // namespace quire::evict

#endif  // QUIRE_EVICT_RETURN_SHADOW_H_
