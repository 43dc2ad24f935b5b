// What leaves the machine: records sealed with the fleet's key, under names that say nothing.
#ifndef QUIRE_REMOTE_SEAL_H_
#define QUIRE_REMOTE_SEAL_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/hash.h"
#include "quire/error.h"
#include "quire/identity.h"
#include "tier/record.h"

namespace quire::remote {

/// What machines share that may read one another's blocks. 32 bytes that cannot be guessed.
using FleetKey = Digest;

/// Reads a key file: 32 bytes, or 64 hexadecimal digits.
///
/// Errors: kInvalidArgument it is neither; kNotFound, kIo
Result<FleetKey> ReadFleetKey(const std::string& path);

/// Keys that follow from a fleet's key (HKDF-SHA256), each for one use.
struct FleetKeys {
  explicit FleetKeys(const FleetKey& fleet);

  Digest names{};    // of the names of objects
  Digest objects{};  // of their bytes
  Digest domain{};   // Domain::secret
};

/// One life of the objects of a fleet: names and seals depend on it, so no machine finds what is
/// left of an earlier one.
using Incarnation = std::array<uint8_t, 16>;

/// Bytes in front of the sections of a sealed record.
inline constexpr uint64_t kSealedHeadBytes = 96;
/// Bytes that sealing adds to a section.
inline constexpr uint64_t kSealTagBytes = 16;

/// What the head of a sealed record says under the fleet's key.
struct SealedHead {
  tier::PublisherId publisher{};
  uint64_t erase_epoch = 0;
  uint64_t object_bytes = 0;

  bool operator==(const SealedHead&) const = default;
};

/// Sections of a sealed record that follow one another, as they lie in the object.
struct SealedRange {
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

/// Seals records, and opens those that are what their reader expects.
///
/// A sealed record is a head, then each section with its tag (AES-256-GCM; docs/format/remote.md).
/// Its key follows from the fleet's and 32 random bytes in the head, so no nonce is used twice; the
/// whole identity and layout are authenticated with each section.
///
/// Threads: any; immutable
/// Cost:    4 GB/s
class Seal {
 public:
  Seal(const FleetKeys& keys, const Incarnation& incarnation);

  /// The object that has the record of a key. 64 hexadecimal digits.
  std::string NameOf(const Digest& key) const;

  static uint64_t ObjectBytes(const tier::RecordLayout& layout);
  static SealedRange RangeOf(const tier::RecordLayout& layout, uint32_t first, uint32_t count);

  /// Throws std::bad_alloc.
  std::vector<std::byte> Close(const tier::RecordIdentity& identity,
                               const tier::RecordLayout& layout,
                               std::span<const std::span<const std::byte>> sections) const;
  /// Opens sections [first, first + out.size()) of an object whose head and RangeOf are `head` and
  /// `sealed`. False: it is not that record, or was changed; nothing of it is left in `out` then.
  ///
  /// Shape: out, of each section's bytes, and crcs, the CRC32C of each (empty: not wanted): as in
  ///        LoadRequest
  bool Open(const tier::RecordIdentity& identity, const tier::RecordLayout& layout, uint32_t first,
            std::span<const std::byte> head, std::span<const std::byte> sealed,
            std::span<const std::span<std::byte>> out, std::span<uint32_t> crcs) const;
  /// Reads the head of an object. Nothing: no record was sealed so, or not under this name.
  std::optional<SealedHead> OpenHead(std::string_view name, std::span<const std::byte> head) const;

 private:
  FleetKeys keys_;
  Incarnation incarnation_;
};

/// Seals a small value under the fleet's key and a name. Throws std::bad_alloc.
std::vector<std::byte> CloseValue(const FleetKeys& keys, std::string_view name,
                                  std::span<const std::byte> plain);
/// Nothing: it was not sealed so.
std::optional<std::vector<std::byte>> OpenValue(const FleetKeys& keys, std::string_view name,
                                                std::span<const std::byte> sealed);

}  // namespace quire::remote

#endif  // QUIRE_REMOTE_SEAL_H_
