#include "index/split_set.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/check.h"

namespace quire::index {
namespace {

constexpr uint64_t kEntriesMin = 8;

// Places for so many elements, three quarters of them in use at most.
uint64_t EntriesFor(uint64_t elements) {
  return std::max(kEntriesMin, std::bit_ceil(elements + elements / 3 + 1));
}

}  // namespace

uint64_t SplitSet::bytes() const {
  return entries_ * sizeof(Element) + buckets_.capacity() * sizeof(Bucket);
}

void SplitSet::Reserve(std::span<const uint32_t> hashes) {
  while (size_ + hashes.size() > kBucketElements * buckets_.size() &&
         buckets_.size() < kBucketsMax) {
    Split();
  }
  // Rather too much where they belong to different buckets.
  for (const uint32_t hash : hashes) {
    Bucket& bucket = buckets_[BucketOf(hash)];
    ReserveBucket(bucket, bucket.used + hashes.size());
  }
}

void SplitSet::Insert(uint32_t hash, uint32_t number) {
  Reserve({&hash, 1});
  Put(buckets_[BucketOf(hash)], {.hash = hash, .number = number});
  ++size_;
}

// Elements after the hole move into it if that lies on their way from where they belong.
void SplitSet::Erase(uint32_t hash, uint32_t number) {
  Bucket& bucket = buckets_[BucketOf(hash)];
  auto hole = static_cast<uint32_t>(&ElementOf(hash, number) - bucket.entries.get());
  for (uint32_t i = (hole + 1) & bucket.mask; bucket.entries[i].number != kNone;
       i = (i + 1) & bucket.mask) {
    const uint32_t from_home = (i - bucket.entries[i].hash) & bucket.mask;
    const uint32_t from_hole = (i - hole) & bucket.mask;
    if (from_home < from_hole) continue;
    bucket.entries[hole] = bucket.entries[i];
    hole = i;
  }
  bucket.entries[hole] = {};
  --bucket.used;
  --size_;
}

void SplitSet::Replace(uint32_t hash, uint32_t number, uint32_t to) {
  ElementOf(hash, number).number = to;
}

SplitSet::Element& SplitSet::ElementOf(uint32_t hash, uint32_t number) {
  Bucket& bucket = buckets_[BucketOf(hash)];
  QUIRE_CHECK(bucket.entries != nullptr);
  for (uint32_t i = hash & bucket.mask;; i = (i + 1) & bucket.mask) {
    Element& element = bucket.entries[i];
    QUIRE_CHECK_MSG(element.number != kNone, "no such number");
    if (element.hash == hash && element.number == number) return element;
  }
}

// Between two powers of two, the buckets that have not split yet hold what belongs to their second
// half too.
uint64_t SplitSet::BucketOf(uint32_t hash, uint64_t buckets) {
  const uint64_t power = std::bit_floor(buckets);
  const uint64_t bucket = (hash >> kBucketBits) & (2 * power - 1);
  return bucket < buckets ? bucket : bucket - power;
}

SplitSet::Bucket SplitSet::MakeBucket(uint64_t elements) {
  if (elements == 0) return {};
  const uint64_t entries = EntriesFor(elements);
  Bucket bucket;
  bucket.entries = std::make_unique<Element[]>(entries);
  bucket.mask = static_cast<uint32_t>(entries - 1);
  return bucket;
}

// Needs a free place, and one more.
void SplitSet::Put(Bucket& bucket, const Element& element) {
  uint32_t i = element.hash & bucket.mask;
  for (; bucket.entries[i].number != kNone; i = (i + 1) & bucket.mask) {
    QUIRE_CHECK_MSG(
        bucket.entries[i].hash != element.hash || bucket.entries[i].number != element.number,
        "the number is here already");
  }
  bucket.entries[i] = element;
  ++bucket.used;
}

void SplitSet::ReserveBucket(Bucket& bucket, uint64_t elements) {
  if (EntriesFor(elements) <= bucket.capacity()) return;
  Bucket larger = MakeBucket(elements);
  for (uint64_t i = 0; i < bucket.capacity(); ++i) {
    if (bucket.entries[i].number != kNone) Put(larger, bucket.entries[i]);
  }
  entries_ += larger.capacity() - bucket.capacity();
  bucket = std::move(larger);
}

void SplitSet::Split() {
  if (buckets_.size() == buckets_.capacity()) buckets_.reserve(2 * buckets_.capacity());
  const uint64_t buckets = buckets_.size() + 1;
  Bucket& old = buckets_[buckets - 1 - std::bit_floor(buckets - 1)];
  uint64_t moving = 0;
  const auto leaves = [&](const Element& element) {
    return BucketOf(element.hash, buckets) == buckets - 1;
  };
  for (uint64_t i = 0; i < old.capacity(); ++i) {
    if (old.entries[i].number != kNone && leaves(old.entries[i])) ++moving;
  }
  Bucket stays = MakeBucket(old.used - moving);
  Bucket added = MakeBucket(moving);
  for (uint64_t i = 0; i < old.capacity(); ++i) {
    const Element& element = old.entries[i];
    if (element.number != kNone) Put(leaves(element) ? added : stays, element);
  }
  entries_ += stays.capacity() + added.capacity() - old.capacity();
  old = std::move(stays);
  buckets_.push_back(std::move(added));
}

}  // namespace quire::index
