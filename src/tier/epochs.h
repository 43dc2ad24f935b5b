// Erase epochs of publishers, in files that nothing else is rebuilt from and that are rebuilt from
// nothing else. Two copies, written one after the other: a crash damages one of them at most, and
// the higher one that is whole is never older than the last confirmed erasure.
#ifndef QUIRE_TIER_EPOCHS_H_
#define QUIRE_TIER_EPOCHS_H_

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "quire/error.h"
#include "tier/record.h"

namespace quire::tier {

inline constexpr std::array<std::string_view, 2> kEpochNames = {"epochs-0", "epochs-1"};
inline constexpr uint64_t kEpochPublishersMax = 4096;

/// What one copy holds.
struct EpochTable {
  uint64_t version = 0;  // grows with every change
  std::map<PublisherId, uint64_t> epochs{};

  bool operator==(const EpochTable&) const = default;
  /// 0 for a publisher that was never erased.
  uint64_t EpochOf(const PublisherId& publisher) const;
};

/// The file's bytes for a table.
std::vector<std::byte> EncodeEpochs(const EpochTable& table);
/// The table of a file's bytes; nothing when they are not whole.
std::optional<EpochTable> DecodeEpochs(std::span<const std::byte> bytes);
/// Most bytes both files may ever have.
uint64_t EpochBytesMax();

}  // namespace quire::tier

#endif  // QUIRE_TIER_EPOCHS_H_
