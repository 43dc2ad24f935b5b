// A hash table that grows in small steps.
#ifndef QUIRE_INDEX_SPLIT_SET_H_
#define QUIRE_INDEX_SPLIT_SET_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace quire::index {

/// Numbers, each kept with the hash it is found by. Several may have the same hash.
///
/// Linear hashing over small open-addressing tables (buckets): when there are more than
/// kBucketElements numbers a bucket, one bucket splits in two. So no insertion moves more than some
/// two thousand numbers, where a table of a million would stop for a tenth of a second. Nothing
/// iterates: no order is visible.
///
/// Errors:  std::bad_alloc, and nothing visible has changed
/// Threads: none
/// Source:  Litwin, Linear hashing, VLDB 1980; Knuth, TAOCP 3, 6.4 R (erasing without tombstones)
class SplitSet {
 public:
  static constexpr uint64_t kBucketElements = 1024;
  /// No number that can be kept.
  static constexpr uint32_t kNone = UINT32_MAX;

  SplitSet() : buckets_(1) {}

  uint64_t size() const { return size_; }
  /// Heap bytes, without the allocator's headers.
  uint64_t bytes() const;

  /// A number with this hash for which `matches(number)` holds; at most one must.
  template <typename Matches>
  std::optional<uint32_t> Find(uint32_t hash, const Matches& matches) const {
    const Bucket& bucket = buckets_[BucketOf(hash)];
    if (bucket.entries == nullptr) return std::nullopt;
    for (uint32_t i = hash & bucket.mask; bucket.entries[i].number != kNone;
         i = (i + 1) & bucket.mask) {
      if (bucket.entries[i].hash == hash && matches(bucket.entries[i].number)) {
        return bucket.entries[i].number;
      }
    }
    return std::nullopt;
  }

  /// Makes sure that numbers with these hashes can be inserted next without memory, with Erase and
  /// Replace between.
  void Reserve(std::span<const uint32_t> hashes);
  /// Needs a number that is not here with this hash.
  void Insert(uint32_t hash, uint32_t number);
  /// Needs a number that is here with this hash. Needs no memory.
  void Erase(uint32_t hash, uint32_t number);
  /// Puts `to`, which is not here with this hash, in the place of `number`, which is. Needs no
  /// memory.
  void Replace(uint32_t hash, uint32_t number, uint32_t to);

 private:
  // A bucket uses the low bits of a hash, the choice of the bucket those above kBucketBits: enough
  // for kBucketsMax buckets. More numbers than these hold make the buckets larger.
  static constexpr uint32_t kBucketBits = 19;
  static constexpr uint64_t kBucketsMax = uint64_t{1} << (32 - kBucketBits);

  struct Element {
    uint32_t hash = 0;
    uint32_t number = kNone;  // none: a free place
  };
  // Linear probing. A quarter of the entries, at least one, is free: every search ends.
  struct Bucket {
    uint64_t capacity() const { return entries == nullptr ? 0 : uint64_t{mask} + 1; }

    std::unique_ptr<Element[]> entries;  // [mask + 1], or null
    uint32_t mask = 0;
    uint32_t used = 0;
  };

  uint64_t BucketOf(uint32_t hash) const { return BucketOf(hash, buckets_.size()); }
  static uint64_t BucketOf(uint32_t hash, uint64_t buckets);
  static Bucket MakeBucket(uint64_t elements);
  static void Put(Bucket& bucket, const Element& element);
  void ReserveBucket(Bucket& bucket, uint64_t elements);
  void Split();
  Element& ElementOf(uint32_t hash, uint32_t number);

  std::vector<Bucket> buckets_;
  uint64_t size_ = 0;
  uint64_t entries_ = 0;  // of all buckets
};

}  // namespace quire::index

#endif  // QUIRE_INDEX_SPLIT_SET_H_
