// Keys that were seen lately, in that order, with a value for each.
#ifndef QUIRE_EVICT_RECENT_KEYS_H_
#define QUIRE_EVICT_RECENT_KEYS_H_

#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

#include "evict/per_block.h"
#include "quire/identity.h"

namespace quire::evict {

/// A T for each of some keys (uniform bits), oldest first. It forgets nothing by itself: its
/// user takes out the oldest.
///
/// Cost: O(1) per call, amortised; at most kBytesEach per key at the time when there were most
template <typename T>
class RecentKeys {
 private:
  struct Entry {
    uint64_t key = 0;
    uint32_t previous = kNone;
    uint32_t next = kNone;
    uint32_t chain = kNone;  // of entries in one bucket, or of unused ones
    T value = {};
  };

 public:
  /// Of a key that is here; a small, dense number that stays while it is.
  using Place = BlockId;

  /// An entry with its share of a piece's place on the heap, and of at most two buckets.
  static constexpr uint64_t kBytesEach = sizeof(Entry) + 2 + 2 * sizeof(uint32_t);

  uint64_t size() const { return size_; }
  uint64_t bytes() const { return ends_at_ * sizeof(Entry) + buckets_.capacity() * 4; }

  /// None: it is not here.
  Place Find(uint64_t key) const {
    if (buckets_.empty()) return Place::None();
    for (uint32_t at = buckets_[BucketOf(key)]; at != kNone; at = EntryAt(at).chain) {
      if (EntryAt(at).key == key) return Place(at);
    }
    return Place::None();
  }
  void Prefetch(uint64_t key) const {
    if (!buckets_.empty()) __builtin_prefetch(&buckets_[BucketOf(key)]);
  }

  /// Adds a key that is not here, as the newest.
  Place Add(uint64_t key) {
    if (size_ >= buckets_.size()) Rehash();
    uint32_t at = unused_;
    if (at == kNone) {
      at = ends_at_++;
      entries_.At(Place(at));
    } else {
      unused_ = EntryAt(at).chain;
    }
    EntryAt(at) = {.key = key};
    Enter(at);
    Link(at);
    ++size_;
    return Place(at);
  }
  /// The same of any key: it is the newest now.
  Place AddOrRenew(uint64_t key) {
    const Place known = Find(key);
    if (known.is_none()) return Add(key);
    Renew(known);
    return known;
  }
  /// Makes it the newest.
  void Renew(Place place) {
    if (place.number() == newest_) return;
    Unlink(place.number());
    Link(place.number());
  }
  void Remove(Place place) {
    const uint32_t at = place.number();
    uint32_t* link = &buckets_[BucketOf(EntryAt(at).key)];
    while (*link != at) link = &EntryAt(*link).chain;
    *link = EntryAt(at).chain;
    Unlink(at);
    EntryAt(at) = {.chain = unused_};
    unused_ = at;
    --size_;
  }
  /// Takes out the oldest until no more than `keys_max` are left.
  void Trim(uint64_t keys_max) {
    while (size_ > keys_max) Remove(Oldest());
  }

  /// None: there is none.
  Place Oldest() const { return oldest_ == kNone ? Place::None() : Place(oldest_); }
  /// None: it is the newest.
  Place Next(Place place) const {
    const uint32_t next = EntryAt(place.number()).next;
    return next == kNone ? Place::None() : Place(next);
  }
  uint64_t key(Place place) const { return EntryAt(place.number()).key; }
  T& operator[](Place place) { return EntryAt(place.number()).value; }
  const T& operator[](Place place) const { return EntryAt(place.number()).value; }

 private:
  static constexpr uint32_t kNone = UINT32_MAX;

  Entry& EntryAt(uint32_t at) { return entries_[Place(at)]; }
  const Entry& EntryAt(uint32_t at) const { return entries_[Place(at)]; }
  // Keys may be sampled by their low bits.
  uint64_t BucketOf(uint64_t key) const {
    return (key * 0x9e3779b97f4a7c15) >> 32 & (buckets_.size() - 1);
  }

  void Enter(uint32_t at) {
    uint32_t& bucket = buckets_[BucketOf(EntryAt(at).key)];
    EntryAt(at).chain = bucket;
    bucket = at;
  }
  void Rehash() {
    buckets_ = std::vector<uint32_t>(std::bit_ceil(std::max<uint64_t>(8, size_ + 1)), kNone);
    for (uint32_t at = oldest_; at != kNone; at = EntryAt(at).next) Enter(at);
  }
  void Link(uint32_t at) {
    EntryAt(at).previous = newest_;
    EntryAt(at).next = kNone;
    (newest_ == kNone ? oldest_ : EntryAt(newest_).next) = at;
    newest_ = at;
  }
  void Unlink(uint32_t at) {
    const Entry& entry = EntryAt(at);
    (entry.previous == kNone ? oldest_ : EntryAt(entry.previous).next) = entry.next;
    (entry.next == kNone ? newest_ : EntryAt(entry.next).previous) = entry.previous;
  }

  // Small pieces: many tenants remember little each.
  static constexpr size_t kPiece = 16;

  PerBlock<Entry, kPiece> entries_;  // by place
  std::vector<uint32_t> buckets_;    // a power of two; the first entry of each
  uint32_t ends_at_ = 0;             // places that were ever used
  uint32_t unused_ = kNone;
  uint32_t oldest_ = kNone;
  uint32_t newest_ = kNone;
  uint64_t size_ = 0;
};

/// Keys of blocks that were evicted lately.
///
/// The latest keys, first in, first out. Key 0, which names nothing, is not kept.
///
/// Cost: O(1) amortised; at most kBytesEach per key at the time when there were most
class GhostKeys {
 private:
  struct Nothing {};

 public:
  static constexpr uint64_t kBytesEach = RecentKeys<Nothing>::kBytesEach;

  void Add(uint64_t key) {
    if (key != 0) keys_.AddOrRenew(key);
  }
  /// Whether the key was here; it no longer is.
  bool Take(uint64_t key) {
    const auto place = keys_.Find(key);
    if (place.is_none()) return false;
    keys_.Remove(place);
    return true;
  }
  /// Forgets the oldest until no more than `keys_max` are left.
  void Trim(uint64_t keys_max) { keys_.Trim(keys_max); }
  uint64_t size() const { return keys_.size(); }

 private:
  RecentKeys<Nothing> keys_;
};

}  // namespace quire::evict

#endif  // QUIRE_EVICT_RECENT_KEYS_H_
