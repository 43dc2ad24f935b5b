// The erase epochs of a fleet: one small sealed object that all its machines read, and raise by
// compare-and-set.
#ifndef QUIRE_REMOTE_EPOCHS_H_
#define QUIRE_REMOTE_EPOCHS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "remote/seal.h"
#include "tier/record.h"

namespace quire::remote {

/// Longest table that is read: 2.7 million publishers that were erased.
inline constexpr uint64_t kEpochBytesMax = uint64_t{64} << 20;

/// Up to which epoch each publisher was erased. A publisher that is not in it was never.
struct EpochTable {
  uint64_t version = 0;  // grows with every change
  Incarnation incarnation{};
  std::map<tier::PublisherId, uint64_t> epochs{};

  /// The first table of a remote.
  static EpochTable New();

  uint64_t EpochOf(const tier::PublisherId& publisher) const;
  /// Everything from before now goes: at least to `epoch`, and in any case above what it was.
  void Raise(const tier::PublisherId& publisher, uint64_t epoch);
  /// Whether this one may follow `before`: no epoch is lower, and the version is none that was.
  bool Follows(const EpochTable& before) const;

  bool operator==(const EpochTable&) const = default;
};

/// The name of the object that has a fleet's table.
std::string EpochsName(const FleetKeys& keys);
std::vector<std::byte> CloseEpochs(const FleetKeys& keys, const EpochTable& table);
/// Nothing: it was not written by this fleet, or was changed.
std::optional<EpochTable> OpenEpochs(const FleetKeys& keys, std::span<const std::byte> sealed);

}  // namespace quire::remote

#endif  // QUIRE_REMOTE_EPOCHS_H_
