#include "apps/quire/replay_store.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace quire::app {
namespace {

using tier::SegmentState;

// Every block is a record of one page.
constexpr uint64_t kBlockBytes = tier::kRecordAlignment;

tier::KeyPrefix PrefixOf(uint64_t key) {
  tier::KeyPrefix prefix{};
  std::memcpy(prefix.data(), &key, sizeof(key));
  return prefix;
}

}  // namespace

ReplayStore::ReplayStore(uint64_t blocks, uint64_t segment_blocks)
    : segments_({.segment_bytes = segment_blocks * kBlockBytes,
                 .segments_max =
                     static_cast<uint32_t>(std::max<uint64_t>(blocks / segment_blocks, 2))}) {}

bool ReplayStore::Has(uint64_t key) const { return index_.Find(PrefixOf(key)).has_value(); }

bool ReplayStore::Use(uint64_t key, uint64_t block_index) {
  const uint32_t used = uses_.Use(block_index);
  const auto before = index_.Touch(PrefixOf(key), used);
  if (before) segments_.CountUse(*before, used);
  return before.has_value();
}

void ReplayStore::Put(uint64_t key, uint64_t block_index) {
  if (Has(key)) {
    Use(key, block_index);
    return;
  }
  if (!active_ || segments_[*active_].tail == segments_.segment_bytes()) BeginSegment();
  tier::Segment& segment = segments_[*active_];
  const tier::ColdEntry entry = {.key = PrefixOf(key),
                                 .segment = *active_,
                                 .page = static_cast<uint32_t>(segment.tail / kBlockBytes),
                                 .pages = 1,
                                 .used = uses_.Use(block_index)};
  segment.tail += kBlockBytes;
  QUIRE_CHECK(index_.Insert(entry));
  keys_[*active_].push_back(key);
  segments_.CountIn(entry);
  ++written_;
}

void ReplayStore::BeginSegment() {
  if (active_) segments_[*active_].state = SegmentState::kSealed;
  const auto number = segments_.Choose({}, /*may_make=*/true, [&](uint32_t segment) {
    return index_.WorthOf(segment, uses_.now());
  });
  QUIRE_CHECK(number.has_value());
  segments_.Reserve(*number);
  recycled_ += index_.RemoveSegment(*number);
  keys_.resize(segments_.size());
  recycled_keys_.insert(recycled_keys_.end(), keys_[*number].begin(), keys_[*number].end());
  keys_[*number].clear();
  segments_[*number] = {.state = SegmentState::kActive};
  active_ = *number;
}

std::vector<uint64_t> ReplayStore::TakeRecycled() { return std::exchange(recycled_keys_, {}); }

}  // namespace quire::app
