// What leaves the machine: records sealed with the fleet's key, under names that say nothing.
#ifndef QUIRE_REMOTE_SEAL_H_
#define QUIRE_REMOTE_SEAL_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/hash.h"
#include "base/mutex.h"
#include "keys/cipher.h"
#include "quire/error.h"
#include "quire/identity.h"
#include "tier/record.h"
#include "tier/store.h"

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
/// Cost:    that of keys::Cipher
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
  /// Reads the head of an object. Nothing: no record was sealed so, or not under this name.
  std::optional<SealedHead> OpenHead(std::string_view name, std::span<const std::byte> head) const;

 private:
  friend class SealedReader;

  FleetKeys keys_;
  Incarnation incarnation_;
};

/// Opens sections of a sealed record while they come, into their reader's memory: what was received
/// is in the processor's cache then.
///
/// Threads:  one gives it what comes, one asks and ends it
/// Lifetime: what the load points to must last until End
class SealedReader {
 public:
  SealedReader(const Seal& seal, const tier::LoadRequest& load);
  SealedReader(const SealedReader&) = delete;
  SealedReader& operator=(const SealedReader&) = delete;

  /// The next bytes of the object's head, then of RangeOf the sections. These are kept where they
  /// come before the head is there.
  void TakeHead(std::span<const std::byte> bytes);
  void Take(std::span<const std::byte> bytes);
  /// The next bytes of the head and the sections behind it, of an object from its front on.
  void TakeObject(std::span<const std::byte> bytes);
  /// All of them came and are the sections of that record.
  bool is_whole() const;
  uint64_t received() const;
  /// As far as it came.
  std::vector<std::byte> head() const;
  /// What comes from now on changes nothing. Unless it is whole and to be kept nothing is left of
  /// it in the reader's memory: it may be another tenant's.
  void End(bool keeps);

 private:
  std::span<const std::byte> FillHead(std::span<const std::byte> bytes) QUIRE_REQUIRES(mutex_);
  void Open(std::span<const std::byte> bytes) QUIRE_REQUIRES(mutex_);
  bool IsWhole() const QUIRE_REQUIRES(mutex_);

  const Digest objects_;   // FleetKeys::objects
  const Digest expected_;  // of identity and layout
  const uint32_t first_;   // section
  const std::span<const std::span<std::byte>> out_;
  const std::span<uint32_t> crcs_;
  mutable Mutex mutex_{LockRank::kLeaf};
  std::array<std::byte, kSealedHeadBytes> head_ QUIRE_GUARDED_BY(mutex_){};
  size_t head_bytes_ QUIRE_GUARDED_BY(mutex_) = 0;
  std::vector<std::byte> early_ QUIRE_GUARDED_BY(mutex_){};
  std::optional<keys::Cipher> cipher_ QUIRE_GUARDED_BY(mutex_){};  // once the head is there
  size_t section_ QUIRE_GUARDED_BY(mutex_) = 0;                    // of out_: the one that comes
  uint64_t at_ QUIRE_GUARDED_BY(mutex_) = 0;                       // in it and its tag
  uint32_t crc_ QUIRE_GUARDED_BY(mutex_) = 0;
  keys::Tag tag_ QUIRE_GUARDED_BY(mutex_){};
  uint64_t received_ QUIRE_GUARDED_BY(mutex_) = 0;
  bool failed_ QUIRE_GUARDED_BY(mutex_) = false;
  bool ended_ QUIRE_GUARDED_BY(mutex_) = false;
};

/// Seals a small value under the fleet's key and a name. Throws std::bad_alloc.
std::vector<std::byte> CloseValue(const FleetKeys& keys, std::string_view name,
                                  std::span<const std::byte> plain);
/// Nothing: it was not sealed so.
std::optional<std::vector<std::byte>> OpenValue(const FleetKeys& keys, std::string_view name,
                                                std::span<const std::byte> sealed);

}  // namespace quire::remote

#endif  // QUIRE_REMOTE_SEAL_H_
