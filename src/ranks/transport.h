// How bytes get from one rank to another: what a group of ranks (group.h) is made on. On MPI
// (mpi_transport.h), or between threads of one process (local_transport.h).
#ifndef QUIRE_RANKS_TRANSPORT_H_
#define QUIRE_RANKS_TRANSPORT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "quire/error.h"

namespace quire::ranks {

/// Messages of one channel between two ranks arrive in the order in which they were sent; those of
/// different channels, or of other pairs of ranks, in any.
enum class Channel : uint8_t {
  kCollective = 1,  // of Group's collectives
  kData = 2,        // of Group::Send, Receive and Shift
  kAlarm = 3,       // of Alarm
};

/// A message that is being sent or received. Its bytes must stay until it is done. One that goes
/// before it is done is given up: its group is of no use afterwards.
///
/// Threads: its transport's
class Message {
 public:
  virtual ~Message() = default;
  /// Does not wait. A message that was sent is done when its bytes may be used again; true once,
  /// then it is not asked again.
  ///
  /// Errors: kIo the transport failed; kCorrupt it has another length than was expected
  virtual Result<bool> IsDone() = 0;
};

/// One rank's end. Nothing here waits.
///
/// Threads: one at a time
class Transport {
 public:
  virtual ~Transport() = default;

  virtual uint32_t rank() const = 0;
  virtual uint32_t size() const = 0;
  /// Errors: kIo
  virtual Result<std::unique_ptr<Message>> Send(uint32_t to, Channel channel,
                                                std::span<const std::byte> bytes) = 0;
  /// Errors: kIo
  virtual Result<std::unique_ptr<Message>> Receive(uint32_t from, Channel channel,
                                                   std::span<std::byte> bytes) = 0;
};

}  // namespace quire::ranks

#endif  // QUIRE_RANKS_TRANSPORT_H_
