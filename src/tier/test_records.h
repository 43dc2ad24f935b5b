// Small records for tests: everything about one follows from a number.
#ifndef QUIRE_TIER_TEST_RECORDS_H_
#define QUIRE_TIER_TEST_RECORDS_H_

#include <memory>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/hash.h"
#include "base/prng.h"
#include "tier/record.h"

namespace quire::tier {

inline Digest TestDigest(std::string_view what, uint64_t number) {
  Blake2b<32> hash;
  hash.Update(what);
  hash.UpdateNumber(number);
  return hash.Finish();
}

/// Layers of one K and one V section each.
inline RecordLayout TestLayout(uint32_t token_count, uint32_t layers, uint64_t section_bytes) {
  std::vector<SectionSpec> sections;
  for (uint32_t layer = 0; layer < layers; ++layer) {
    for (uint16_t stream = 0; stream < 2; ++stream) {
      sections.push_back({.stream = stream,
                          .encoding = 2,
                          .layout_revision = 1,
                          .layer_first = layer,
                          .layer_count = 1,
                          .head_count = 2,
                          .bytes = section_bytes});
    }
  }
  auto layout = RecordLayout::Create(token_count, std::move(sections));
  QUIRE_CHECK(layout.has_value());
  return *std::move(layout);
}

/// A record's identity and payload, which own what they show.
class TestRecord {
 public:
  TestRecord(uint64_t number, const RecordLayout& layout, std::string_view domain = {},
             uint64_t erase_epoch = 0)
      : layout_(&layout) {
    Prng prng(number);
    for (uint32_t i = 0; i < layout.token_count(); ++i) {
      tokens_.push_back(static_cast<TokenId>(prng.NextBelow(100'000)));
    }
    for (const SectionSpec& section : layout.sections()) {
      std::vector<std::byte>& bytes = sections_.emplace_back(section.bytes);
      uint64_t word = 0;
      for (uint64_t i = 0; i < section.bytes; ++i) {
        if (i % 8 == 0) word = prng.Next64();
        bytes[i] = static_cast<std::byte>(word >> (i % 8 * 8));
      }
      spans_.push_back(bytes);
    }
    identity_ = {.key = TestDigest(domain, number * 1000 + erase_epoch),
                 .parent = TestDigest("parent", number),
                 .profile = TestDigest("profile", 0),
                 .geometry = TestDigest("geometry", 0),
                 .publisher = PublisherOf(domain),
                 .erase_epoch = erase_epoch,
                 .block_index = number % 7,
                 .tokens = tokens_};
  }
  TestRecord(TestRecord&&) = default;

  RecordIdentity& identity() { return identity_; }
  const RecordIdentity& identity() const { return identity_; }
  const RecordLayout& layout() const { return *layout_; }
  std::span<const std::span<const std::byte>> sections() const { return spans_; }
  std::vector<std::vector<std::byte>>& bytes() { return sections_; }

  std::vector<uint32_t> Crcs() const {
    std::vector<uint32_t> crcs;
    for (const auto& section : sections_) crcs.push_back(Crc32c(section));
    return crcs;
  }
  /// The whole record as a store writes it.
  std::vector<std::byte> Encoded(const RecordLocation& location) const {
    std::vector<std::byte> out(layout_->record_bytes());
    EncodeHeader(identity_, *layout_, location, Crcs(),
                 std::span(out).first(layout_->header_bytes()));
    for (size_t i = 0; i < sections_.size(); ++i) {
      std::copy(sections_[i].begin(), sections_[i].end(),
                out.begin() + static_cast<ptrdiff_t>(layout_->header_bytes() + layout_->offset(i)));
    }
    return out;
  }

 private:
  const RecordLayout* layout_;
  std::vector<TokenId> tokens_;
  std::vector<std::vector<std::byte>> sections_;
  std::vector<std::span<const std::byte>> spans_;
  RecordIdentity identity_;
};

}  // namespace quire::tier

#endif  // QUIRE_TIER_TEST_RECORDS_H_
