#include "tier/cold_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>

#include "base/bits.h"
#include "base/log.h"

namespace quire::tier {
namespace {

constexpr uint64_t kSegmentBytesMin = 16 << 10;
constexpr uint64_t kSegmentBytesMax = uint64_t{1} << 31;
constexpr uint64_t kSegmentsWanted = 512;

uint64_t DefaultSegmentBytes(uint64_t bytes_cap) {
  const uint64_t wanted = std::bit_floor(std::max<uint64_t>(bytes_cap / kSegmentsWanted, 1));
  const uint64_t least = std::bit_floor(std::max(bytes_cap / 8, kSegmentBytesMin));
  return std::clamp(wanted, std::min(least, uint64_t{4} << 20), kSegmentBytesMax);
}

uint32_t Chunks(const ColdOptions& options) {
  return static_cast<uint32_t>(
      std::max<uint64_t>(options.staging_bytes / 2 / options.chunk_bytes, 1));
}

}  // namespace

Result<ColdSizes> ResolveSizes(const ColdOptions& options) {
  const auto refuse = [](std::string message) {
    return Fail(ErrorCode::kInvalidArgument, "store: " + std::move(message));
  };
  ColdSizes sizes;
  sizes.segment_bytes =
      options.segment_bytes != 0 ? options.segment_bytes : DefaultSegmentBytes(options.bytes_cap);
  if (sizes.segment_bytes % kRecordAlignment != 0 || sizes.segment_bytes < kSegmentBytesMin ||
      sizes.segment_bytes > kSegmentBytesMax) {
    return refuse(fmt::format("segments of {} bytes", sizes.segment_bytes));
  }
  if (options.chunk_bytes % kRecordAlignment != 0 || options.chunk_bytes < kHeaderBytesMax) {
    return refuse(fmt::format("chunks of {} bytes", options.chunk_bytes));
  }
  sizes.catalogue_bytes_max = options.catalogue_bytes_max != 0
                                  ? options.catalogue_bytes_max
                                  : (uint64_t{512} << 10) + options.bytes_cap / 64;
  const uint64_t around =
      sizes.catalogue_bytes_max + EpochBytesMax() + kLockBytesMax + options.bytes_beside;
  if (options.bytes_cap < around || options.bytes_cap - around < 2 * sizes.segment_bytes) {
    return refuse(fmt::format("a cap of {} bytes leaves no room for two segments of {} bytes",
                              options.bytes_cap, sizes.segment_bytes));
  }
  sizes.segments_max = static_cast<uint32_t>(
      std::min<uint64_t>((options.bytes_cap - around) / sizes.segment_bytes, 1 << 20));
  return sizes;
}

ColdState::ColdState(const ColdOptions& cold_options, const ColdSizes& cold_sizes,
                     Files& cold_files, const Clock& cold_clock)
    : options(cold_options),
      sizes(cold_sizes),
      files(cold_files),
      clock(cold_clock),
      segments({.segment_bytes = cold_sizes.segment_bytes,
                .segments_max = cold_sizes.segments_max,
                .limits = cold_options.limits}),
      write_staging(options.chunk_bytes, Chunks(options)),
      read_staging(options.chunk_bytes, Chunks(options)),
      headers(options.headers_bytes_max) {
  files.RegisterBuffers(std::array{write_staging.memory(), read_staging.memory()});
  stats.bytes_cap = options.bytes_cap;
}

std::string ColdState::PathOf(std::string_view name) const {
  return fmt::format("{}/{}", options.directory, name);
}

void ColdState::Submit(IoOwner owner, uint32_t number, IoRequest request) {
  request.tag = static_cast<uint64_t>(owner) << 32 | number;
  ++stats.in_flight;
  stats.in_flight_max = std::max(stats.in_flight_max, stats.in_flight);
  files.Submit({&request, 1});
}

void ColdState::End(uint64_t tag, StoreOutcome outcome, RecordMiss miss) {
  done.push_back({.tag = tag, .outcome = outcome, .miss = miss});
}

void ColdState::CountIn(const ColdEntry& entry) {
  segments.CountIn(entry);
  stats.bytes_live += entry.pages * kRecordAlignment;
}

void ColdState::CountOut(const ColdEntry& entry) {
  segments.CountOut(entry);
  stats.bytes_live -= entry.pages * kRecordAlignment;
}

bool ColdState::Use(const KeyPrefix& key, uint64_t block_index) {
  const uint32_t used = uses.Use(block_index);
  const auto before = index.Touch(key, used);
  if (before) segments.CountUse(*before, used);
  return before.has_value();
}

void ColdState::Quarantine(const ColdEntry& entry) {
  const auto now = index.Find(entry.key);
  if (!now || !index.Remove(entry.key, entry.segment, entry.page)) return;
  CountOut(*now);
  segments[entry.segment].catalogue_stale = true;
  ++stats.damaged;
}

uint64_t ColdState::ForgetSegment(uint32_t number) {
  Segment& segment = segments[number];
  stats.bytes_live -= segment.bytes_live;
  segment.records = segment.bytes_live = segment.used_sum = 0;
  segment.catalogue_stale = true;
  roots.Forget(number);
  return index.RemoveSegment(number);
}

bool ColdState::Serves(const PublisherId& publisher, uint64_t erase_epoch) const {
  if (epochs_damaged && publisher != PublisherId{}) return false;
  return epochs.Of(publisher) == erase_epoch;
}

bool ColdState::ReserveEpochs(uint64_t publishers) {
  constexpr uint32_t kSegmentsMin = 2;
  const uint64_t others =
      sizes.catalogue_bytes_max + kLockBytesMax + EpochBytesMax(publishers) + options.bytes_beside;
  const uint64_t left = options.bytes_cap - std::min(options.bytes_cap, others);
  const uint64_t fit = left / segments.segment_bytes();
  if (fit >= segments.segments_max()) return true;
  if (fit < kSegmentsMin) return false;
  segments.set_segments_max(static_cast<uint32_t>(fit));
  return true;
}

bool ColdState::KeepEpoch(const PublisherId& publisher) {
  if (epochs.IsKept(publisher)) return true;
  if (!ReserveEpochs(epochs.publishers() + 1)) return false;
  epochs.Keep(publisher);
  return true;
}

}  // namespace quire::tier
