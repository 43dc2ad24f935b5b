// Records of an encrypted store: what their headers say instead of what they are, and their
// sections sealed. docs/encryption.md describes both.
#ifndef QUIRE_TIER_RECORD_SEAL_H_
#define QUIRE_TIER_RECORD_SEAL_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "keys/cipher.h"
#include "keys/key_ring.h"
#include "quire/error.h"
#include "tier/record.h"

namespace quire::tier {

/// Behind the bytes of each section: 24 random bytes, the number of the data key, zero, a tag.
inline constexpr uint64_t kSectionSealBytes = 48;

/// What a record is called in an encrypted store. Equal only to that of an equal record.
struct SealedRecord {
  RecordIdentity identity{};  // its tokens are those below
  std::vector<TokenId> tokens{};
  RecordLayout layout{};
};

/// Names instead of key and publisher, digests instead of profile, geometry and tokens. They depend
/// on the keys of the store: without those they say nothing.
///
/// Errors: kInvalidArgument its sections do not fit a record any more
Result<SealedRecord> Disguise(const keys::KeyRing& keys, const RecordIdentity& identity,
                              const RecordLayout& layout);

/// The record whose header lies at the start of `bytes`, as Disguise named it. Nothing: none does.
std::optional<SealedRecord> SealedRecordOf(std::span<const std::byte> bytes);

/// Bytes of records of which the longest unsealed one has so many, at most.
uint64_t SealedBytesMax(uint64_t record_bytes);
/// The longest record that surely fits, sealed, where sealed ones may have so many bytes.
uint64_t UnsealedBytesMin(uint64_t sealed_bytes);

/// Seals the sections of one record. Each record has a key of its own, from the data key and random
/// bytes, so no nonce is ever used twice, whatever a crash, a copy or a reused segment brings back.
///
/// Threads: one at a time
class RecordSealer {
 public:
  /// `identity` and `layout` are what Disguise gave.
  RecordSealer(const keys::DataKey& key, const RecordIdentity& identity,
               const RecordLayout& layout);

  /// Seals a section into pieces, which have room for it and for what is behind it.
  void Seal(uint32_t section, std::span<const std::byte> plain,
            std::span<const std::span<std::byte>> pieces);

 private:
  const uint32_t number_;
  const keys::Salt salt_;
  const Digest with_;
  keys::Cipher cipher_;
};

/// Opens sections of one record.
///
/// Threads: one at a time
class RecordOpener {
 public:
  /// All must outlive it.
  RecordOpener(const keys::KeyRing& keys, const RecordIdentity& identity,
               const RecordLayout& layout);

  /// Opens a section that lies in pieces. False: it is not that section of that record, or was
  /// changed, or its key is gone; what `out` holds is of no use then.
  bool Open(uint32_t section, std::span<const std::span<std::byte>> pieces,
            std::span<std::byte> out);

 private:
  const keys::KeyRing& keys_;
  const PublisherId owner_;
  const Digest with_;
  uint32_t number_ = 0;
  keys::Salt salt_{};
  std::optional<keys::Cipher> cipher_;  // of these two
};

}  // namespace quire::tier

#endif  // QUIRE_TIER_RECORD_SEAL_H_
