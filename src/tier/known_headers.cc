#include "tier/known_headers.h"

#include <utility>

namespace quire::tier {
namespace {

// Of a header: its nodes in the map and the list.
constexpr uint64_t kNodeBytes = 128;

uint64_t BytesOf(size_t header_bytes) { return header_bytes + kNodeBytes; }

}  // namespace

std::shared_ptr<const KnownHeaders::Header> KnownHeaders::Find(const Place& place) const {
  const auto found = headers_.find(place);
  return found == headers_.end() ? nullptr : found->second;
}

void KnownHeaders::Keep(const Place& place, std::span<const std::byte> header) {
  const uint64_t bytes = BytesOf(header.size());
  if (bytes > bytes_max_ || headers_.contains(place)) return;
  while (bytes_ + bytes > bytes_max_) DropOne();
  places_.push_back(place);
  headers_.emplace(place, std::make_shared<const Header>(header.begin(), header.end()));
  bytes_ += bytes;
}

void KnownHeaders::DropOne() {
  Place& place = places_[prng_.NextBelow(places_.size())];
  const auto dropped = headers_.extract(place);
  bytes_ -= BytesOf(dropped.mapped()->size());
  place = places_.back();
  places_.pop_back();
}

void KnownHeaders::Forget() {
  headers_.clear();
  places_.clear();
  bytes_ = 0;
}

}  // namespace quire::tier
