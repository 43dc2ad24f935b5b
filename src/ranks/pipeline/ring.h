// How the ranks of a pipeline reach each other.
#ifndef QUIRE_RANKS_PIPELINE_RING_H_
#define QUIRE_RANKS_PIPELINE_RING_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "quire/error.h"

namespace quire::ranks {

/// One rank's place in a ring: it sends to the next rank, and hears the one before. What is sent
/// arrives whole, once and in order.
///
/// Threads: one at a time
class Ring {
 public:
  virtual ~Ring() = default;

  virtual uint32_t rank() const = 0;
  virtual uint32_t ranks() const = 0;
  uint32_t next() const { return (rank() + 1) % ranks(); }
  uint32_t previous() const { return (rank() + ranks() - 1) % ranks(); }

  /// Gives bytes to the next rank. Does not wait until it takes them: two ranks that send to each
  /// other would wait for ever.
  ///
  /// Errors: kIo that rank is lost; the message names it
  virtual Result<void> Send(std::vector<std::byte> bytes) = 0;
  /// Waits for what the rank before sends next.
  ///
  /// Errors: kIo that rank is lost: it ended, or nothing was heard of it for as long as the ring's
  ///         deadline; the message names it
  virtual Result<std::vector<std::byte>> Receive() = 0;
};

}  // namespace quire::ranks

#endif  // QUIRE_RANKS_PIPELINE_RING_H_
