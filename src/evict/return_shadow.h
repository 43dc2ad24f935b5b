// Watches a sample of all blocks, evicted or not: what it sees teaches the return model, and two
// caches in miniature show whether the model or recency would have hit more.
#ifndef QUIRE_EVICT_RETURN_SHADOW_H_
#define QUIRE_EVICT_RETURN_SHADOW_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "evict/return_model.h"
#include "evict/rings.h"

namespace quire::evict {

/// A block is sampled by its key, one in kEvery; whole paths need no care, as both orders keep a
/// block at least as long as what follows it.
///
/// Cost: O(1) amortised for a sampled block; about 130 bytes per watched block, at most
///       max(16,384, blocks / 8) of them
/// Source: SHARDS, FAST 2015, for the sampling
class ReturnShadow {
 public:
  static constexpr uint64_t kEvery = 16;

  ReturnShadow();
  ~ReturnShadow();
  ReturnShadow(const ReturnShadow&) = delete;
  ReturnShadow& operator=(const ReturnShadow&) = delete;

  static bool Samples(uint64_t key) { return key != 0 && key % kEvery == 0; }

  const ReturnModel& model() const { return model_; }
  /// The model has lately hit more than recency, and by more than chance.
  bool model_leads() const { return model_leads_; }

  /// A block with a sampled key was used, in a cache of so many blocks.
  void Use(uint64_t key, const ReturnFeatures& features, uint64_t now_ms, uint64_t cache_blocks);

 private:
  // Of a watched block, or of a place that waits for the next one.
  struct Watched {
    uint64_t key = 0;
    uint64_t time_ms = 0;
    uint64_t use = 0;  // its number
    uint32_t of_class = 0;
    bool in_lru = false;
    bool outcome_known = false;
  };
  struct Places;

  BlockId Watch(uint64_t key);
  void Return(BlockId place, uint64_t now_ms);
  void Forget(uint64_t now_ms);
  void Trim(uint64_t blocks, uint64_t now_ms);
  BlockId LeastWorth(uint64_t now_ms) const;
  void Compare();
  void Refit(uint64_t now_ms);

  ReturnModel model_;
  std::vector<Watched> watched_;          // by place
  std::vector<ReturnFeatures> features_;  // by place
  std::vector<BlockId> unused_places_;
  const std::unique_ptr<Places> places_;  // by key
  Rings by_use_{1};                       // places, least recent first

  BlockId lru_oldest_{};  // from here on, the cache that goes by recency
  uint64_t lru_blocks_ = 0;
  // The cache that goes by the model: what was used last stands last in its class, so nothing needs
  // sorting.
  Rings by_class_{ReturnModel::kClasses};
  uint64_t model_blocks_ = 0;
  double lead_ = 0;        // hits of the model beyond those of recency, lately
  double hits_apart_ = 0;  // that only one of them had
  bool model_leads_ = false;
  uint64_t uses_ = 0;
  uint64_t uses_at_fit_ = 0;
};

}  // namespace quire::evict

#endif  // QUIRE_EVICT_RETURN_SHADOW_H_
