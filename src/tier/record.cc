#include "tier/record.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "base/bits.h"
#include "base/check.h"

namespace quire::tier {
namespace {

// Numbers are little-endian on disk, and read in place.
static_assert(std::endian::native == std::endian::little);

constexpr std::array<char, 8> kMagic = {'Q', 'U', 'I', 'R', 'E', 'R', 'E', 'C'};
constexpr uint32_t kKindBlock = 0;
constexpr uint32_t kKindVoid = 1;
constexpr uint32_t kFlagSealed = 1;

struct StoredHeader {
  std::array<char, 8> magic;
  uint32_t version;
  uint32_t prefix_crc;  // of the 12 bytes before it: the same place in every version
  Digest key;
  Digest parent;
  Digest profile;
  Digest geometry;
  PublisherId publisher;
  uint64_t erase_epoch;
  uint64_t generation;
  uint64_t sequence;
  uint64_t block_index;
  uint64_t payload_bytes;
  uint64_t segment;
  uint64_t segment_offset;
  uint32_t flags;
  uint32_t unused[2];  // zero
  uint32_t token_count;
  uint32_t section_count;
  uint32_t header_bytes;
  uint32_t kind;
  uint32_t reserved[2];
  uint32_t header_crc;  // of all header bytes, itself as zero
};
static_assert(sizeof(StoredHeader) == 256 && alignof(StoredHeader) == 8);
static_assert(offsetof(StoredHeader, key) == 16 && offsetof(StoredHeader, publisher) == 144);
static_assert(offsetof(StoredHeader, erase_epoch) == 160);
static_assert(offsetof(StoredHeader, token_count) == 228);
static_assert(offsetof(StoredHeader, header_crc) == 252);
static_assert(sizeof(TokenId) == 4);

constexpr uint64_t kPrefixBytes = offsetof(StoredHeader, prefix_crc);

constexpr uint64_t SectionsOffset(uint64_t token_count) {
  return sizeof(StoredHeader) + RoundUp(token_count * sizeof(TokenId), 8);
}

constexpr uint64_t HeaderBytes(uint64_t token_count, uint64_t section_count) {
  return RoundUp(SectionsOffset(token_count) + section_count * sizeof(StoredSection),
                 kRecordAlignment);
}

uint32_t HeaderCrc(std::span<const std::byte> header) {
  constexpr std::array<std::byte, 4> kZero = {};
  constexpr size_t kAt = offsetof(StoredHeader, header_crc);
  return Crc32c(header.subspan(kAt + 4), Crc32c(kZero, Crc32c(header.first(kAt))));
}

StoredHeader Prefix() {
  StoredHeader header = {};
  header.magic = kMagic;
  header.version = kRecordVersion;
  header.prefix_crc = Crc32c(std::as_bytes(std::span(&header, 1)).first(kPrefixBytes));
  return header;
}

void SetLocation(StoredHeader& header, const RecordLocation& location) {
  header.generation = location.generation;
  header.sequence = location.sequence;
  header.segment = location.segment;
  header.segment_offset = location.offset;
}

// Writes the fixed part and the checksum over all of `out`.
void Finish(StoredHeader& header, std::span<std::byte> out) {
  header.header_bytes = static_cast<uint32_t>(out.size());
  header.header_crc = 0;
  std::memcpy(out.data(), &header, sizeof(header));
  header.header_crc = HeaderCrc(out);
  std::memcpy(out.data(), &header, sizeof(header));
}

StoredSection SectionOf(const RecordLayout& layout, size_t index, uint32_t crc) {
  const SectionSpec& spec = layout.sections()[index];
  return {.offset = layout.offset(index),
          .bytes = spec.bytes,
          .layer_first = spec.layer_first,
          .layer_count = spec.layer_count,
          .head_first = spec.head_first,
          .head_count = spec.head_count,
          .group = spec.group,
          .stream = spec.stream,
          .encoding = spec.encoding,
          .layout_revision = spec.layout_revision,
          .crc = crc,
          .reserved = 0};
}

// Sections lie in the payload, in ascending order, and do not overlap.
bool SectionsMakeSense(std::span<const StoredSection> sections, uint64_t payload_bytes) {
  uint64_t free_from = 0;
  for (const StoredSection& section : sections) {
    if (section.offset < free_from || section.offset % kSectionAlignment != 0) return false;
    if (section.offset > payload_bytes || section.bytes > payload_bytes - section.offset) {
      return false;
    }
    if (section.bytes == 0 || section.reserved != 0) return false;
    free_from = section.offset + section.bytes;
  }
  return true;
}

bool FieldsMakeSense(const StoredHeader& header) {
  if (header.reserved[0] != 0 || header.reserved[1] != 0) return false;
  if ((header.flags & ~kFlagSealed) != 0) return false;
  if (header.payload_bytes % kRecordAlignment != 0) return false;
  if (header.segment_offset % kRecordAlignment != 0) return false;
  if (header.payload_bytes >= kPayloadBytesMax) return false;
  if (header.kind == kKindVoid) return header.token_count == 0 && header.section_count == 0;
  return header.kind == kKindBlock && header.section_count > 0 && header.payload_bytes > 0;
}

struct CheckedHeader {
  StoredHeader fixed;
  std::span<const std::byte> bytes;  // the whole header
};

// Everything a header can be wrong about without anything to compare it with.
std::expected<CheckedHeader, RecordMiss> Check(std::span<const std::byte> bytes) {
  StoredHeader header;
  if (bytes.size() < sizeof(header)) return std::unexpected(RecordMiss::kTruncated);
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (header.magic != kMagic) return std::unexpected(RecordMiss::kNotARecord);
  // The version has a checksum of its own: a flipped bit must not look like another version.
  if (header.prefix_crc != Crc32c(bytes.first(kPrefixBytes))) {
    return std::unexpected(RecordMiss::kHeaderDamaged);
  }
  if (header.version != kRecordVersion) return std::unexpected(RecordMiss::kOtherVersion);
  if (header.token_count > kRecordTokensMax ||
      header.section_count > kHeaderBytesMax / sizeof(StoredSection) ||
      header.header_bytes != HeaderBytes(header.token_count, header.section_count) ||
      header.header_bytes > kHeaderBytesMax) {
    return std::unexpected(RecordMiss::kHeaderDamaged);
  }
  if (header.header_bytes > bytes.size()) return std::unexpected(RecordMiss::kTruncated);
  bytes = bytes.first(header.header_bytes);
  if (header.header_crc != HeaderCrc(bytes) || !FieldsMakeSense(header) ||
      !SectionsMakeSense(StoredSections(bytes), header.payload_bytes)) {
    return std::unexpected(RecordMiss::kHeaderDamaged);
  }
  return CheckedHeader{header, bytes};
}

bool SameSections(std::span<const std::byte> header, const RecordLayout& layout) {
  const auto stored = StoredSections(header);
  if (stored.size() != layout.sections().size()) return false;
  for (size_t i = 0; i < stored.size(); ++i) {
    const StoredSection expected = SectionOf(layout, i, stored[i].crc);
    if (std::memcmp(&stored[i], &expected, sizeof(expected)) != 0) return false;
  }
  return true;
}

}  // namespace

PublisherId PublisherOf(std::string_view domain_name) {
  if (domain_name.empty()) return {};
  Blake2b<16> hash;
  hash.Update("quire publisher");
  hash.Update(domain_name);
  return hash.Finish();
}

Result<RecordLayout> RecordLayout::Create(uint32_t token_count, std::vector<SectionSpec> sections) {
  const uint64_t header_bytes = HeaderBytes(token_count, sections.size());
  if (sections.empty() || token_count > kRecordTokensMax || header_bytes > kHeaderBytesMax) {
    return Fail(ErrorCode::kInvalidArgument,
                "a record has sections, and a header of 64 KiB at most");
  }
  RecordLayout layout;
  uint64_t end = 0;
  for (const SectionSpec& section : sections) {
    if (section.bytes == 0 || section.bytes >= kPayloadBytesMax) {
      return Fail(ErrorCode::kInvalidArgument, "a section has 1 byte to 4 GiB");
    }
    layout.offsets_.push_back(RoundUp(end, kSectionAlignment));
    end = layout.offsets_.back() + section.bytes;
    if (end >= kPayloadBytesMax - kRecordAlignment) {
      return Fail(ErrorCode::kInvalidArgument, "a payload has less than 4 GiB");
    }
  }
  layout.token_count_ = token_count;
  layout.sections_ = std::move(sections);
  layout.header_bytes_ = header_bytes;
  layout.payload_bytes_ = RoundUp(end, kRecordAlignment);
  return layout;
}

std::string_view RecordMissName(RecordMiss miss) {
  switch (miss) {
    case RecordMiss::kNone: return "none";
    case RecordMiss::kNotARecord: return "not_a_record";
    case RecordMiss::kOtherVersion: return "other_version";
    case RecordMiss::kHeaderDamaged: return "header_damaged";
    case RecordMiss::kOtherLocation: return "other_place";
    case RecordMiss::kOtherProfile: return "other_profile";
    case RecordMiss::kOtherGeometry: return "other_geometry";
    case RecordMiss::kOtherPublisher: return "other_publisher";
    case RecordMiss::kErased: return "erased";
    case RecordMiss::kOtherKey: return "other_key";
    case RecordMiss::kOtherTokens: return "other_tokens";
    case RecordMiss::kOtherLayout: return "other_layout";
    case RecordMiss::kPayloadDamaged: return "payload_damaged";
    case RecordMiss::kTruncated: return "truncated";
  }
  return "unknown";
}

void EncodeHeader(const RecordIdentity& identity, const RecordLayout& layout,
                  const RecordLocation& location, std::span<const uint32_t> crcs,
                  std::span<std::byte> out) {
  QUIRE_CHECK(out.size() == layout.header_bytes() && crcs.size() == layout.sections().size());
  QUIRE_CHECK(identity.tokens.size() == layout.token_count());
  StoredHeader header = Prefix();
  header.key = identity.key;
  header.parent = identity.parent;
  header.profile = identity.profile;
  header.geometry = identity.geometry;
  header.publisher = identity.publisher;
  header.erase_epoch = identity.erase_epoch;
  header.block_index = identity.block_index;
  header.flags = identity.is_sealed ? kFlagSealed : 0;
  header.payload_bytes = layout.payload_bytes();
  header.token_count = layout.token_count();
  header.section_count = static_cast<uint32_t>(crcs.size());
  header.kind = kKindBlock;
  SetLocation(header, location);
  std::ranges::fill(out, std::byte{0});
  std::ranges::copy(std::as_bytes(identity.tokens), out.begin() + sizeof(header));
  std::byte* table = out.data() + SectionsOffset(layout.token_count());
  for (size_t i = 0; i < crcs.size(); ++i) {
    const StoredSection section = SectionOf(layout, i, crcs[i]);
    std::memcpy(table + i * sizeof(section), &section, sizeof(section));
  }
  Finish(header, out);
}

void EncodeVoid(const RecordLocation& location, uint64_t stretch_bytes, std::span<std::byte> out) {
  QUIRE_CHECK(out.size() == kRecordAlignment && stretch_bytes >= kRecordAlignment);
  StoredHeader header = Prefix();
  header.payload_bytes = stretch_bytes - kRecordAlignment;
  header.kind = kKindVoid;
  SetLocation(header, location);
  std::ranges::fill(out, std::byte{0});
  Finish(header, out);
}

std::expected<RecordSummary, RecordMiss> InspectHeader(std::span<const std::byte> bytes) {
  const auto checked = Check(bytes);
  if (!checked) return std::unexpected(checked.error());
  const StoredHeader& header = checked->fixed;
  return RecordSummary{.header_bytes = header.header_bytes,
                       .payload_bytes = header.payload_bytes,
                       .key = header.key,
                       .parent = header.parent,
                       .profile = header.profile,
                       .geometry = header.geometry,
                       .publisher = header.publisher,
                       .erase_epoch = header.erase_epoch,
                       .block_index = header.block_index,
                       .token_count = header.token_count,
                       .section_count = header.section_count,
                       .is_void = header.kind == kKindVoid,
                       .is_sealed = (header.flags & kFlagSealed) != 0,
                       .location = {.segment = header.segment,
                                    .offset = header.segment_offset,
                                    .generation = header.generation,
                                    .sequence = header.sequence}};
}

RecordMiss MatchHeader(std::span<const std::byte> bytes, const RecordIdentity& identity,
                       const RecordLayout& layout, const RecordLocation& location) {
  const auto checked = Check(bytes);
  if (!checked) return checked.error();
  const StoredHeader& header = checked->fixed;
  if (header.kind != kKindBlock) return RecordMiss::kNotARecord;
  if (header.segment != location.segment || header.segment_offset != location.offset ||
      header.generation != location.generation) {
    return RecordMiss::kOtherLocation;
  }
  if ((header.flags != 0) != identity.is_sealed) return RecordMiss::kOtherLayout;
  if (header.profile != identity.profile) return RecordMiss::kOtherProfile;
  if (header.geometry != identity.geometry) return RecordMiss::kOtherGeometry;
  if (header.publisher != identity.publisher) return RecordMiss::kOtherPublisher;
  if (header.erase_epoch != identity.erase_epoch) return RecordMiss::kErased;
  if (header.key != identity.key) return RecordMiss::kOtherKey;
  if (header.parent != identity.parent || header.block_index != identity.block_index ||
      header.token_count != identity.tokens.size() ||
      !std::ranges::equal(std::as_bytes(identity.tokens),
                          checked->bytes.subspan(sizeof(header), identity.tokens.size_bytes()))) {
    return RecordMiss::kOtherTokens;
  }
  const bool same = header.token_count == layout.token_count() &&
                    header.payload_bytes == layout.payload_bytes() &&
                    SameSections(checked->bytes, layout);
  return same ? RecordMiss::kNone : RecordMiss::kOtherLayout;
}

std::span<const StoredSection> StoredSections(std::span<const std::byte> header) {
  StoredHeader fixed;
  std::memcpy(&fixed, header.data(), sizeof(fixed));
  const std::byte* table = header.data() + SectionsOffset(fixed.token_count);
  return {reinterpret_cast<const StoredSection*>(table), fixed.section_count};
}

std::span<const TokenId> StoredTokens(std::span<const std::byte> header) {
  StoredHeader fixed;
  std::memcpy(&fixed, header.data(), sizeof(fixed));
  return {reinterpret_cast<const TokenId*>(header.data() + sizeof(fixed)), fixed.token_count};
}

SectionChecker::SectionChecker(std::span<const StoredSection> sections, uint64_t payload_offset)
    : sections_(sections), position_(payload_offset) {
  while (checked_ < sections_.size() && sections_[checked_].offset < payload_offset) ++checked_;
}

void SectionChecker::Feed(std::span<const std::byte> piece) {
  while (checked_ < sections_.size()) {
    const StoredSection& section = sections_[checked_];
    const uint64_t end = section.offset + section.bytes;
    const uint64_t piece_end = position_ + piece.size();
    if (section.offset >= piece_end) break;
    const uint64_t from = std::max(section.offset, position_);
    const uint64_t to = std::min(end, piece_end);
    crc_ = Crc32c(piece.subspan(from - position_, to - from), crc_);
    if (to < end) break;
    if (crc_ != section.crc) ++bad_;
    crc_ = 0;
    ++checked_;
    if (to == piece_end) break;
  }
  position_ += piece.size();
}

}  // namespace quire::tier
