#include "tier/segments.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "base/canary.h"
#include "base/check.h"

namespace quire::tier {
namespace {

constexpr std::string_view kNameBegin = "segment-";
constexpr size_t kCandidates = 16;        // whose records are looked at before one goes
constexpr uint32_t kNumberMax = 1 << 20;  // what a file's name says is no measure for memory

bool Idle(const Segment& segment) {
  if (Planted(Canary::kReuseEarly)) return segment.writes == 0;
  return segment.reads == 0 && segment.writes == 0;
}

}  // namespace

std::string SegmentName(uint32_t number) { return fmt::format("{}{:06}", kNameBegin, number); }

std::optional<uint32_t> ParseSegmentName(std::string_view name) {
  if (!name.starts_with(kNameBegin)) return std::nullopt;
  const std::string_view digits = name.substr(kNameBegin.size());
  uint32_t number = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (error != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  if (number >= kNumberMax || SegmentName(number) != name) return std::nullopt;
  return number;
}

bool Segment::MayHoldBehind(const PublisherId& of) const {
  return std::ranges::any_of(leftovers, [&](const Leftover& leftover) {
    return leftover.end > end && leftover.publisher.value_or(of) == of;
  });
}

bool Segment::HasLeftoversBeside(const PublisherId& of) const {
  return std::ranges::any_of(leftovers,
                             [&](const Leftover& leftover) { return leftover.publisher != of; });
}

uint64_t Segment::LeftoverEnd() const {
  return leftovers.empty() ? end : std::max(end, leftovers.front().end);
}

void Segment::LeaveBehind(const std::optional<PublisherId>& of) {
  // What reaches no further was written over, or counts as an unknown publisher's from here on.
  std::erase_if(leftovers, [&](const Leftover& leftover) { return leftover.end <= end; });
  leftovers.push_back({.publisher = of, .end = end});
}

void Segment::Fail() {
  if (end > tail) LeaveBehind(std::nullopt);
  end = tail;
}

void Segment::Leave() {
  if (end > 0) LeaveBehind(publisher);
  end = 0;
}

SegmentTable::SegmentTable(const Options& options)
    : segment_bytes_(options.segment_bytes),
      segments_max_(std::min(options.segments_max, kNumberMax)) {
  for (const PublisherLimits& limits : options.limits) SetLimits(limits);
}

void SegmentTable::Cut(uint64_t segment_bytes, uint32_t segments_max) {
  QUIRE_CHECK(files() == 0);
  segment_bytes_ = segment_bytes;
  segments_max_ = std::min(segments_max, kNumberMax);
}

void SegmentTable::Reserve(uint32_t number) {
  if (number >= segments_.size()) segments_.resize(number + 1);
}

uint32_t SegmentTable::files() const {
  return static_cast<uint32_t>(std::ranges::count_if(
      segments_, [](const Segment& s) { return s.state != SegmentState::kMissing; }));
}

bool SegmentTable::HasLost() const {
  return std::ranges::any_of(segments_,
                             [](const Segment& s) { return s.state == SegmentState::kLost; });
}

bool SegmentTable::HasNamed() const {
  return std::ranges::any_of(segments_, [](const Segment& s) {
    return (s.state == SegmentState::kActive || s.state == SegmentState::kSealed) &&
           s.publisher != PublisherId{};
  });
}

std::optional<uint32_t> SegmentTable::ActiveOf(const PublisherId& publisher) const {
  for (uint32_t i = 0; i < size(); ++i) {
    if (segments_[i].state == SegmentState::kActive && segments_[i].publisher == publisher)
      return i;
  }
  return std::nullopt;
}

uint32_t SegmentTable::CountOf(const PublisherId& publisher) const {
  return static_cast<uint32_t>(std::ranges::count_if(segments_, [&](const Segment& s) {
    return (s.state == SegmentState::kActive || s.state == SegmentState::kSealed) &&
           s.publisher == publisher;
  }));
}

std::map<PublisherId, PublisherUsage> SegmentTable::Usage() const {
  std::map<PublisherId, PublisherUsage> usage;
  for (const Segment& segment : segments_) {
    if (segment.state != SegmentState::kActive && segment.state != SegmentState::kSealed) continue;
    PublisherUsage& of = usage[segment.publisher];
    of.records += segment.records;
    of.bytes_live += segment.bytes_live;
    of.bytes += segment_bytes_;
  }
  return usage;
}

uint32_t SegmentTable::FloorOf(const PublisherId& publisher) const {
  const auto found = limits_.find(publisher);
  if (found == limits_.end()) return 0;
  return static_cast<uint32_t>(
      std::min<uint64_t>(found->second.bytes_floor / segment_bytes_, kNumberMax));
}

uint32_t SegmentTable::QuotaOf(const PublisherId& publisher) const {
  const auto found = limits_.find(publisher);
  if (found == limits_.end()) return kNumberMax;
  return static_cast<uint32_t>(
      std::min<uint64_t>(found->second.bytes_quota / segment_bytes_, kNumberMax));
}

void SegmentTable::CountIn(const ColdEntry& entry) {
  Segment& segment = segments_[entry.segment];
  ++segment.records;
  segment.used_sum += entry.used;
  segment.bytes_live += entry.pages * kRecordAlignment;
}

void SegmentTable::CountOut(const ColdEntry& entry) {
  Segment& segment = segments_[entry.segment];
  --segment.records;
  segment.used_sum -= entry.used;
  segment.bytes_live -= entry.pages * kRecordAlignment;
}

// Few records that are used all the time, the fronts of prompts, say little about the mean of a
// segment, and are what it is worth.
std::optional<uint32_t> SegmentTable::LeastWorth(const PublisherId& publisher, SegmentState state,
                                                 bool own_only, const WorthOf& worth_of) const {
  std::vector<std::pair<uint64_t, uint32_t>> least;  // recent last
  for (uint32_t i = 0; i < size(); ++i) {
    const Segment& segment = segments_[i];
    if (segment.state != state || !Idle(segment)) continue;
    const bool own = segment.publisher == publisher;
    if (!own && (own_only || CountOf(segment.publisher) <= FloorOf(segment.publisher))) continue;
    least.emplace_back(segment.Recency(), i);
  }
  if (least.empty()) return std::nullopt;
  const size_t count = std::min<size_t>(least.size(), kCandidates);
  std::ranges::partial_sort(least, least.begin() + static_cast<ptrdiff_t>(count));
  least.resize(count);
  // Where writing fails again and again nothing is worth anything: these are no candidates.
  while (least.front().first != least.back().first && least.back().first == Segment::kNowhere) {
    least.pop_back();
  }
  const auto worth = [&](const auto& candidate) { return worth_of(candidate.second); };
  return std::ranges::min_element(least, {}, worth)->second;
}

std::expected<uint32_t, SegmentTable::Refusal> SegmentTable::Choose(const PublisherId& publisher,
                                                                    bool may_make,
                                                                    const WorthOf& worth_of) const {
  const uint32_t quota = QuotaOf(publisher);
  if (quota == 0) return std::unexpected(Refusal::kQuota);
  if (CountOf(publisher) >= quota) {
    const auto own = LeastWorth(publisher, SegmentState::kSealed, /*own_only=*/true, worth_of);
    if (!own) return std::unexpected(Refusal::kBusy);
    return *own;
  }
  uint32_t missing = size();
  for (uint32_t i = size(); i-- > 0;) {
    if (segments_[i].state == SegmentState::kFree && Idle(segments_[i])) return i;
    if (segments_[i].state == SegmentState::kMissing) missing = i;
  }
  if (may_make && (files() < segments_max_ || Planted(Canary::kIgnoreCap))) return missing;
  for (const SegmentState state : {SegmentState::kSealed, SegmentState::kActive}) {
    const auto least = LeastWorth(publisher, state, /*own_only=*/false, worth_of);
    if (least) return *least;
  }
  // What is being overwritten, read or written will be there again soon; what could not be
  // overwritten may never be.
  const bool soon = std::ranges::any_of(segments_, [](const Segment& s) {
    if (s.state == SegmentState::kErased) return s.failures == 0;
    return s.state != SegmentState::kMissing && !Idle(s);
  });
  return std::unexpected(soon ? Refusal::kBusy : Refusal::kProtected);
}

}  // namespace quire::tier
