// Ranks that are threads of one process, with a transport whose timing and faults a seed draws: for
// tests, and for pipelines inside one process.
#ifndef QUIRE_RANKS_LOCAL_TRANSPORT_H_
#define QUIRE_RANKS_LOCAL_TRANSPORT_H_

#include <cstdint>
#include <memory>
#include <optional>

#include "quire/env.h"
#include "ranks/transport.h"

namespace quire::ranks {

/// What happens to messages on their way.
struct Schedule {
  struct Death {
    uint32_t rank = 0;
    uint64_t after_messages = 0;  // sends and receives that it still begins
  };

  uint64_t seed = 1;
  /// Each message takes up to so long, drawn for itself, so those of different pairs overtake each
  /// other. And each is sent at once, or only once it is received, as it is drawn. 0: at once.
  uint64_t delay_us_max = 0;
  /// This rank fails at its next call, and is not heard any more.
  std::optional<Death> death{};
};

/// Makes the ends of `size` ranks.
///
/// Threads:  each end is used by one thread at a time, different ones by different threads
/// Lifetime: must outlive the transports
class LocalRanks {
 public:
  LocalRanks(uint32_t size, const Clock& clock, const Schedule& schedule = {});
  ~LocalRanks();

  /// The end of one rank; each is made once.
  std::unique_ptr<Transport> Join(uint32_t rank);

 private:
  class Mail;
  class End;
  class Sent;
  class Received;
  const std::unique_ptr<Mail> mail_;
};

}  // namespace quire::ranks

#endif  // QUIRE_RANKS_LOCAL_TRANSPORT_H_
