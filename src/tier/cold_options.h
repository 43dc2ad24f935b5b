// What a cold store is opened with.
#ifndef QUIRE_TIER_COLD_OPTIONS_H_
#define QUIRE_TIER_COLD_OPTIONS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "quire/error.h"
#include "tier/segments.h"

namespace quire::tier {

struct ColdOptions {
  std::string directory{};
  uint64_t bytes_cap = uint64_t{8} << 30;       // of all files of the store together
  uint64_t segment_bytes = 0;                   // 0: by the cap. A store that exists keeps its own
  uint64_t catalogue_bytes_max = 0;             // 0: by the cap
  uint64_t commit_interval_us = 1'000'000;      // what a crash may lose
  uint64_t staging_bytes = uint64_t{64} << 20;  // of memory, half for writes and half for loads
  uint64_t chunk_bytes = uint64_t{1} << 20;     // of one request of the disk
  uint32_t reads_max = 16;                      // requests for loads in flight
  uint64_t scrub_bytes_per_s = uint64_t{8} << 20;  // 0: no scrubbing
  std::vector<PublisherLimits> limits{};
};

/// The options with every 0 replaced, all sums done.
struct ColdSizes {
  uint64_t segment_bytes = 0;
  uint32_t segments_max = 0;
  uint64_t catalogue_bytes_max = 0;
};

inline constexpr uint64_t kLockBytesMax = 4096;

/// Errors: kInvalidArgument sizes that no store can have, or a cap below two segments
Result<ColdSizes> ResolveSizes(const ColdOptions& options);

}  // namespace quire::tier

#endif  // QUIRE_TIER_COLD_OPTIONS_H_
