// Processes (or threads) that compute one model together: the ranks 0 to size - 1. Whatever ranks
// tell each other goes through this interface.
//
// Every call ends within the group's deadline and a tenth. Where a rank is not heard for so long,
// or fails, the call fails on every rank and names it (alarm.h); the group is of no use from then
// on, and every later call says the same.
#ifndef QUIRE_RANKS_GROUP_H_
#define QUIRE_RANKS_GROUP_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "quire/env.h"
#include "quire/error.h"
#include "ranks/alarm.h"
#include "ranks/transport.h"

namespace quire::ranks {

struct GroupOptions {
  uint64_t deadline_us = 60'000'000;  // of each call
};

/// What this rank has sent and received.
struct Traffic {
  uint64_t sent_bytes = 0;
  uint64_t received_bytes = 0;
  uint64_t messages = 0;  // sent
};

class Group;

/// Messages under way beside computation. Their bytes must stay until Wait has returned. One that
/// is dropped before that makes its group useless.
///
/// Threads:  its group's
/// Lifetime: its group's
class Transfer {
 public:
  Transfer() = default;  // nothing is under way
  Transfer(Transfer&& other) noexcept;
  Transfer& operator=(Transfer&& other) noexcept;
  ~Transfer();

  /// Whether Wait would return at once. Moves the messages on: a caller that computes for long asks
  /// now and then.
  /// Errors: as Wait
  Result<bool> IsDone();
  /// Returns when what was sent may be used again, and what was asked for has come.
  ///
  /// Errors: kIo names the ranks that were not heard; kIo, kCorrupt as Message::IsDone
  Result<void> Wait();

 private:
  friend class Group;
  struct Pending {
    uint32_t rank = 0;                 // the other one
    std::unique_ptr<Message> message;  // null: done
  };

  Group* group_ = nullptr;
  std::string_view what_{};  // for messages of errors
  std::vector<Pending> pending_{};
};

/// Threads:  one at a time
/// Lifetime: transport and clock must outlive it
///
/// Needs size <= kRanksMax.
///
/// Errors of all calls: kIo names the ranks that were not heard, or the transport failed; kCorrupt
/// a rank sent another number of bytes than this one expects, so they are at different calls. The
/// group is of no use then
class Group {
 public:
  Group(Transport& transport, const Clock& clock, const GroupOptions& options)
      : transport_(transport), clock_(clock), options_(options), alarm_(transport, clock) {}
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  uint32_t rank() const { return transport_.rank(); }
  uint32_t size() const { return transport_.size(); }
  const GroupOptions& options() const { return options_; }
  const Traffic& traffic() const { return traffic_; }

  /// The first failure, once there is one. Does not wait, and does not look for one.
  Result<void> Check() const;
  /// This rank cannot go on: the others' calls fail with this error too. Returns it.
  Error Fail(Error error);

  /// For a caller that polls transfers for long, instead of Wait: fails where another rank has
  /// raised the alarm, and where it has waited until its deadline.
  Result<void> Heed(const Alarm::Wait& wait);

  // Collectives: every rank makes the same calls in the same order.

  /// All ranks get the bytes of `root`.
  /// Shape: bytes of the same length on every rank
  Result<void> Broadcast(uint32_t root, std::span<std::byte> bytes);
  /// The same where only `root` knows how many there are.
  Result<void> BroadcastAny(uint32_t root, std::vector<std::byte>& bytes);
  /// Shape: own of the same length on every rank, all [size, own]
  Result<void> AllGather(std::span<const std::byte> own, std::span<std::byte> all);
  /// The same beside computation. Both must stay until the transfer is done.
  Result<Transfer> BeginAllGather(std::span<const std::byte> own, std::span<std::byte> all);
  /// The same of lengths that differ. Returns [size] of bytes
  Result<std::vector<std::vector<std::byte>>> AllGatherAny(std::span<const std::byte> own);
  /// Returns when every rank has called it. `deadline_us`: another deadline for this call, where
  /// ranks come from work whose length differs (they load a model).
  Result<void> Barrier(std::optional<uint64_t> deadline_us = std::nullopt);

  // Between two ranks, beside computation. Those of one pair are matched in the order of the calls.

  /// Shape: as many bytes as `to` receives
  Result<Transfer> Send(uint32_t to, std::span<const std::byte> bytes);
  Result<Transfer> Receive(uint32_t from, std::span<std::byte> bytes);
  /// Sends to the next rank of the ring, and receives from the previous one; the last one's next is
  /// rank 0. Of one rank it is a copy.
  /// Shape: as many bytes on every rank
  Result<Transfer> Shift(std::span<const std::byte> to_next, std::span<std::byte> from_previous);

 private:
  friend class Transfer;

  Result<void> AddSend(Transfer& transfer, uint32_t to, Channel channel,
                       std::span<const std::byte> bytes);
  Result<void> AddReceive(Transfer& transfer, uint32_t from, Channel channel,
                          std::span<std::byte> bytes);
  Transfer Begin(std::string_view what);
  Result<bool> Poll(Transfer& transfer);
  Result<void> Wait(Transfer& transfer, uint64_t deadline_us);

  Transport& transport_;
  const Clock& clock_;
  const GroupOptions options_;
  Alarm alarm_;
  Traffic traffic_;
  std::optional<Error> broken_;  // the first failure
};

/// The bytes of a value without pointers.
template <typename T>
  requires std::is_trivially_copyable_v<T>
std::span<std::byte> BytesOf(T& value) {
  return std::as_writable_bytes(std::span(&value, 1));
}
template <typename T>
  requires std::is_trivially_copyable_v<T>
std::span<const std::byte> BytesOf(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}

}  // namespace quire::ranks

#endif  // QUIRE_RANKS_GROUP_H_
