#include "index/split_set.h"

#include <bit>
#include <utility>

#include "base/check.h"

namespace quire::index {

// Abseil keeps one control byte and one element per place.
uint64_t SplitSet::bytes() const {
  return places_ * (1 + sizeof(Element)) + parts_.capacity() * sizeof(Part);
}

void SplitSet::Insert(uint32_t hash, uint32_t number) {
  InsertInto(parts_[PartOf(hash)], {.hash = hash, .number = number});
  ++size_;
  if (size_ > kPartElements * parts_.size() && parts_.size() < kPartsMax) Split();
}

void SplitSet::Erase(uint32_t hash, uint32_t number) {
  QUIRE_CHECK(parts_[PartOf(hash)].erase(Element{.hash = hash, .number = number}) == 1);
  --size_;
}

// Between two powers of two, the parts that have not split yet hold what belongs to their second
// half too.
uint64_t SplitSet::PartOf(uint32_t hash) const {
  const uint64_t power = std::bit_floor(parts_.size());
  const uint64_t part = (hash >> kPartBits) & (2 * power - 1);
  return part < parts_.size() ? part : part - power;
}

void SplitSet::InsertInto(Part& part, const Element& element) {
  places_ -= part.capacity();
  QUIRE_CHECK(part.insert(element).second);
  places_ += part.capacity();
}

void SplitSet::Split() {
  const uint64_t from = parts_.size() - std::bit_floor(parts_.size());
  parts_.emplace_back();
  const Part old = std::exchange(parts_[from], Part());
  places_ -= old.capacity();
  for (const Element& element : old) InsertInto(parts_[PartOf(element.hash)], element);
}

}  // namespace quire::index
