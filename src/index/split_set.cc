#include "index/split_set.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/check.h"

namespace quire::index {
namespace {

constexpr uint64_t kPlacesMin = 8;

// Places for so many elements, three quarters of them in use at most.
uint64_t PlacesFor(uint64_t elements) {
  return std::max(kPlacesMin, std::bit_ceil(elements + elements / 3 + 1));
}

}  // namespace

uint64_t SplitSet::bytes() const {
  return places_ * sizeof(Element) + parts_.capacity() * sizeof(Part);
}

void SplitSet::Reserve(std::span<const uint32_t> hashes) {
  while (size_ + hashes.size() > kPartElements * parts_.size() && parts_.size() < kPartsMax) {
    Split();
  }
  // Rather too much where they belong to different parts.
  for (const uint32_t hash : hashes) {
    Part& part = parts_[PartOf(hash)];
    ReservePart(part, part.used + hashes.size());
  }
}

void SplitSet::Insert(uint32_t hash, uint32_t number) {
  Reserve({&hash, 1});
  Put(parts_[PartOf(hash)], {.hash = hash, .number = number});
  ++size_;
}

// Elements after the hole move into it if that lies on their way from where they belong.
void SplitSet::Erase(uint32_t hash, uint32_t number) {
  Part& part = parts_[PartOf(hash)];
  auto hole = static_cast<uint32_t>(&ElementOf(hash, number) - part.places.get());
  for (uint32_t i = (hole + 1) & part.mask; part.places[i].number != kNone;
       i = (i + 1) & part.mask) {
    const uint32_t from_home = (i - part.places[i].hash) & part.mask;
    const uint32_t from_hole = (i - hole) & part.mask;
    if (from_home < from_hole) continue;
    part.places[hole] = part.places[i];
    hole = i;
  }
  part.places[hole] = {};
  --part.used;
  --size_;
}

void SplitSet::Replace(uint32_t hash, uint32_t number, uint32_t to) {
  ElementOf(hash, number).number = to;
}

SplitSet::Element& SplitSet::ElementOf(uint32_t hash, uint32_t number) {
  Part& part = parts_[PartOf(hash)];
  QUIRE_CHECK(part.places != nullptr);
  for (uint32_t i = hash & part.mask;; i = (i + 1) & part.mask) {
    Element& element = part.places[i];
    QUIRE_CHECK_MSG(element.number != kNone, "no such number");
    if (element.hash == hash && element.number == number) return element;
  }
}

// Between two powers of two, the parts that have not split yet hold what belongs to their second
// half too.
uint64_t SplitSet::PartOf(uint32_t hash, uint64_t parts) {
  const uint64_t power = std::bit_floor(parts);
  const uint64_t part = (hash >> kPartBits) & (2 * power - 1);
  return part < parts ? part : part - power;
}

SplitSet::Part SplitSet::MakePart(uint64_t elements) {
  if (elements == 0) return {};
  const uint64_t places = PlacesFor(elements);
  Part part;
  part.places = std::make_unique<Element[]>(places);
  part.mask = static_cast<uint32_t>(places - 1);
  return part;
}

// Needs a free place, and one more.
void SplitSet::Put(Part& part, const Element& element) {
  uint32_t i = element.hash & part.mask;
  for (; part.places[i].number != kNone; i = (i + 1) & part.mask) {
    QUIRE_CHECK_MSG(part.places[i].hash != element.hash || part.places[i].number != element.number,
                    "the number is here already");
  }
  part.places[i] = element;
  ++part.used;
}

void SplitSet::ReservePart(Part& part, uint64_t elements) {
  if (PlacesFor(elements) <= part.capacity()) return;
  Part larger = MakePart(elements);
  for (uint64_t i = 0; i < part.capacity(); ++i) {
    if (part.places[i].number != kNone) Put(larger, part.places[i]);
  }
  places_ += larger.capacity() - part.capacity();
  part = std::move(larger);
}

void SplitSet::Split() {
  if (parts_.size() == parts_.capacity()) parts_.reserve(2 * parts_.capacity());
  const uint64_t parts = parts_.size() + 1;
  Part& old = parts_[parts - 1 - std::bit_floor(parts - 1)];
  uint64_t leaving = 0;
  const auto leaves = [&](const Element& element) {
    return PartOf(element.hash, parts) == parts - 1;
  };
  for (uint64_t i = 0; i < old.capacity(); ++i) {
    if (old.places[i].number != kNone && leaves(old.places[i])) ++leaving;
  }
  Part stays = MakePart(old.used - leaving);
  Part added = MakePart(leaving);
  for (uint64_t i = 0; i < old.capacity(); ++i) {
    const Element& element = old.places[i];
    if (element.number != kNone) Put(leaves(element) ? added : stays, element);
  }
  places_ += stays.capacity() + added.capacity() - old.capacity();
  old = std::move(stays);
  parts_.push_back(std::move(added));
}

}  // namespace quire::index
