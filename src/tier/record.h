// Records: a published block as bytes that outlive the process. docs/format/record.md is the
// specification. What is read is compared with what its reader expects, field by field; nothing in
// a record sizes a buffer.
#ifndef QUIRE_TIER_RECORD_H_
#define QUIRE_TIER_RECORD_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <expected>
#include <span>
#include <string_view>
#include <vector>

#include "base/hash.h"
#include "quire/error.h"
#include "quire/identity.h"

namespace quire::tier {

inline constexpr uint32_t kRecordVersion = 1;
inline constexpr uint64_t kRecordAlignment = 4096;        // of headers, payloads and records
inline constexpr uint64_t kSectionAlignment = 64;         // of sections in a payload
inline constexpr uint64_t kHeaderBytesMax = 64 << 10;     //
inline constexpr uint64_t kPayloadBytesMax = 1ull << 32;  // exclusive
inline constexpr uint32_t kRecordTokensMax = 4096;

/// Hash of a domain's name. All zero: records of no named tenant.
using PublisherId = std::array<uint8_t, 16>;
/// The id of a domain's name; the empty name is the unnamed publisher.
PublisherId PublisherOf(std::string_view domain_name);

/// What a section holds, and in how many bytes. A record has one section per run of layers that may
/// be read alone.
struct SectionSpec {
  uint16_t group = 0;            // layer group of the geometry
  uint16_t stream = 0;           // of the group: K, V, latent
  uint16_t encoding = 0;         // codec number
  uint16_t layout_revision = 0;  // of that codec's bytes
  uint32_t layer_first = 0;
  uint32_t layer_count = 0;
  uint32_t head_first = 0;
  uint32_t head_count = 0;
  uint64_t bytes = 0;

  bool operator==(const SectionSpec&) const = default;
};

/// Where everything of a record lies, from the reader's own geometry.
class RecordLayout {
 public:
  /// Errors: kInvalidArgument no section, an empty one, or more than a header or payload may hold
  static Result<RecordLayout> Create(uint32_t token_count, std::vector<SectionSpec> sections);

  uint32_t token_count() const { return token_count_; }
  std::span<const SectionSpec> sections() const { return sections_; }
  /// Offset of a section in the payload.
  uint64_t offset(size_t section) const { return offsets_[section]; }
  uint64_t header_bytes() const { return header_bytes_; }
  uint64_t payload_bytes() const { return payload_bytes_; }
  uint64_t record_bytes() const { return header_bytes_ + payload_bytes_; }

 private:
  uint32_t token_count_ = 0;
  std::vector<SectionSpec> sections_;
  std::vector<uint64_t> offsets_;
  uint64_t header_bytes_ = 0;
  uint64_t payload_bytes_ = 0;
};

/// Whose block a record is. All of it must be equal for its bytes to be used.
struct RecordIdentity {
  Digest key{};
  Digest parent{};
  Digest profile{};   // fingerprint of the numeric profile
  Digest geometry{};  // fingerprint of the geometry
  PublisherId publisher{};
  uint64_t erase_epoch = 0;
  uint64_t block_index = 0;           // in its sequence
  std::span<const TokenId> tokens{};  // [layout.token_count()]
  bool is_sealed = false;             // what it says stands for something else (record_seal.h)
};

/// Where a store put a record. A record that is found elsewhere is not one.
struct RecordLocation {
  uint64_t segment = 0;
  uint64_t offset = 0;      // in the segment
  uint64_t generation = 0;  // of the segment: how often segments were begun in this store
  uint64_t sequence = 0;    // records written to this store before this one

  bool operator==(const RecordLocation&) const = default;
};

/// Why bytes are not the record that was wanted.
enum class RecordMiss : uint8_t {
  kNone = 0,
  kNotARecord = 1,      // no record begins here
  kOtherVersion = 2,    // written by another version of the format
  kHeaderDamaged = 3,   // the header's checksum or a field that no writer writes
  kOtherLocation = 4,   // a record that belongs elsewhere
  kOtherProfile = 5,    // numbers made in another way
  kOtherGeometry = 6,   //
  kOtherPublisher = 7,  //
  kErased = 8,          // from before its publisher was erased
  kOtherKey = 9,        // another block
  kOtherTokens = 10,    // the same key, other tokens or place in the sequence
  kOtherLayout = 11,    // the same geometry, other sections
  kPayloadDamaged = 12,
  kTruncated = 13,
};
inline constexpr size_t kRecordMissCount = 14;
std::string_view RecordMissName(RecordMiss miss);

/// One entry of the section table, as stored.
struct StoredSection {
  uint64_t offset;  // in the payload
  uint64_t bytes;
  uint32_t layer_first;
  uint32_t layer_count;
  uint32_t head_first;
  uint32_t head_count;
  uint16_t group;
  uint16_t stream;
  uint16_t encoding;
  uint16_t layout_revision;
  uint32_t crc;  // CRC32C of the section's bytes
  uint32_t reserved;
};
static_assert(sizeof(StoredSection) == 48);

/// Writes a header: `out` [layout.header_bytes()]. `crcs` has the CRC32C of every section's bytes.
void EncodeHeader(const RecordIdentity& identity, const RecordLayout& layout,
                  const RecordLocation& location, std::span<const uint32_t> crcs,
                  std::span<std::byte> out);

/// What a header says about itself, all of it checked for sense but compared with nothing.
struct RecordSummary {
  uint64_t header_bytes = 0;
  uint64_t payload_bytes = 0;
  Digest key{};
  Digest parent{};
  Digest profile{};
  Digest geometry{};
  PublisherId publisher{};
  uint64_t erase_epoch = 0;
  uint64_t block_index = 0;
  uint32_t token_count = 0;
  uint32_t section_count = 0;
  bool is_void = false;    // a stretch of a segment that holds no record
  bool is_sealed = false;  // of an encrypted store
  RecordLocation location{};

  uint64_t record_bytes() const { return header_bytes + payload_bytes; }
};

/// Reads a header that lies at the start of `bytes` (at a multiple of 8 bytes), for scans.
///
/// Errors: kNotARecord, kOtherVersion, kHeaderDamaged, kTruncated `bytes` ends before the header
std::expected<RecordSummary, RecordMiss> InspectHeader(std::span<const std::byte> bytes);

/// Compares the header at the start of `bytes` with what its reader expects.
/// kNone: it is that record, and its table of sections is the layout's.
RecordMiss MatchHeader(std::span<const std::byte> bytes, const RecordIdentity& identity,
                       const RecordLayout& layout, const RecordLocation& location);

/// The section table of a header that InspectHeader or MatchHeader accepted; valid with the bytes.
std::span<const StoredSection> StoredSections(std::span<const std::byte> header);
/// Its tokens, likewise.
std::span<const TokenId> StoredTokens(std::span<const std::byte> header);

/// A header for a stretch of a segment that holds no record: `out` [kRecordAlignment].
void EncodeVoid(const RecordLocation& location, uint64_t stretch_bytes, std::span<std::byte> out);

/// Compares checksums of sections with payload bytes that come in pieces, in ascending order and
/// without gaps.
class SectionChecker {
 public:
  /// `sections` must outlive the object; the first piece begins at `payload_offset`. Sections that
  /// begin before it are not checked.
  SectionChecker(std::span<const StoredSection> sections, uint64_t payload_offset);

  void Feed(std::span<const std::byte> piece);
  /// True when each of `count` sections from `first` was fed whole and has its checksum.
  bool Good(size_t first, size_t count) const { return bad_ == 0 && checked_ >= first + count; }

 private:
  std::span<const StoredSection> sections_;
  uint64_t position_;   // in the payload
  size_t checked_ = 0;  // sections that are behind the position
  uint32_t crc_ = 0;    // of the part of the next section that was fed
  size_t bad_ = 0;
};

}  // namespace quire::tier

#endif  // QUIRE_TIER_RECORD_H_
