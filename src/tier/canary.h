// Bugs that a test plants to see whether the simulator finds them. In a normal build every question
// is a constant `false` and no code remains; only the simulator's canary test defines
// QUIRE_CANARIES.
#ifndef QUIRE_TIER_CANARY_H_
#define QUIRE_TIER_CANARY_H_

#include <cstdint>

namespace quire::tier {

enum class Canary : uint8_t {
  kNone,
  kTrustCatalogue,  // what it says is not compared with the segments and their headers
  kForgetSync,      // records are durable without a sync
  kReuseEarly,      // a segment is written anew while it is read
  kIgnoreCap,       // segments are made without end
  kLoseEpoch,       // an erasure is confirmed before it is durable
  kSwapRecords,     // two records of a commit change places in the index
  kSkipVerify,      // payloads are handed out unchecked
};

#if defined(QUIRE_CANARIES)
inline Canary planted_canary = Canary::kNone;
inline bool Planted(Canary canary) { return canary == planted_canary; }
#else
constexpr bool Planted(Canary /*canary*/) { return false; }
#endif

}  // namespace quire::tier

#endif  // QUIRE_TIER_CANARY_H_
