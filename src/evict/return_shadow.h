// Watches a sample of all blocks, evicted or not: what it sees teaches the return model, and two
// caches in miniature show whether the model or recency would have hit more.
#ifndef QUIRE_EVICT_RETURN_SHADOW_H_
#define QUIRE_EVICT_RETURN_SHADOW_H_

#include <cstdint>
#include <list>
#include <optional>
#include <unordered_map>
#include <vector>

#include "evict/leaf_order.h"
#include "evict/return_model.h"

namespace quire::evict {

/// The evictable leaf that the model would miss least, of an order whose queues are the model's
/// classes and whose weights are times of last use. What is worth keeping may first rise with age
/// and then falls: in every class only the oldest and the newest can be worth least.
std::optional<BlockId> LeastWorth(const LeafOrder& order, const ReturnModel& model,
                                  uint64_t now_ms);

/// A block is sampled by its key, one in kEvery; whole paths need no care, as both orders keep a
/// block at least as long as what follows it.
///
/// Cost: O(log) amortised for a sampled block; about 200 bytes per watched block, at most
///       max(16,384, blocks / 8) of them
/// Source: SHARDS, FAST 2015, for the sampling
class ReturnShadow {
 public:
  static constexpr uint64_t kEvery = 16;

  static bool Samples(uint64_t key) { return key != 0 && key % kEvery == 0; }

  const ReturnModel& model() const { return model_; }
  /// The model has lately hit more than recency, and by more than chance.
  bool model_leads() const { return model_leads_; }

  /// A block with a sampled key was used, in a cache of so many blocks.
  void Use(uint64_t key, const ReturnFeatures& features, uint64_t now_ms, uint64_t cache_blocks);

 private:
  struct Watched {
    uint64_t key;
    uint64_t time_ms;
    BlockId slot;  // its name in by_worth_
    uint32_t of_class;
    bool in_lru = false;
    bool outcome_known = false;
    ReturnFeatures features;
  };
  using Place = std::list<Watched>::iterator;

  Place Watch(uint64_t key);
  void Return(Watched& watched, uint64_t now_ms);
  void Forget(uint64_t now_ms);
  void Trim(uint64_t blocks, uint64_t now_ms);
  void Compare();
  void Refit(uint64_t now_ms);

  ReturnModel model_;
  std::list<Watched> watched_;                  // least recent first
  std::unordered_map<uint64_t, Place> places_;  // never walked
  std::vector<BlockId> unused_slots_;
  uint32_t slots_ = 0;

  Place lru_oldest_ = watched_.end();  // from here on, the cache that goes by recency
  uint64_t lru_blocks_ = 0;
  LeafOrder by_worth_{ReturnModel::kClasses};  // the cache that goes by the model
  double lead_ = 0;                            // hits of the model beyond those of recency, lately
  double hits_apart_ = 0;                      // that only one of them had
  bool model_leads_ = false;
  uint64_t uses_ = 0;
  uint64_t uses_at_fit_ = 0;
};

}  // namespace quire::evict

#endif  // QUIRE_EVICT_RETURN_SHADOW_H_
