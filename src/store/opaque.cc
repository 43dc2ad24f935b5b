#include "store/opaque.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/bits.h"
#include "base/check.h"
#include "base/hash.h"

namespace quire::store {
namespace {

using tier::kRecordAlignment;

constexpr std::byte kEndMark{0x80};
constexpr uint16_t kBodyStream = 0;
constexpr uint16_t kLastPageStream = 1;
constexpr uint16_t kRevision = 1;  // of the two sections

// No KV record has it, so that the one is never read as the other.
const Digest& OpaqueProfile() {
  static const Digest digest = [] {
    Blake2b<32> hash;
    hash.Update("quire opaque block 1");
    return hash.Finish();
  }();
  return digest;
}

void UpdateText(Blake2b<32>& hash, std::string_view text) {
  hash.UpdateNumber(uint64_t{text.size()});
  hash.Update(text);
}

}  // namespace

uint64_t RecordBytesOf(uint64_t block_bytes) {
  return kRecordBytesMin + RoundDown(block_bytes, kRecordAlignment);
}

uint64_t BlockBytesIn(uint64_t record_bytes) {
  QUIRE_CHECK(record_bytes >= kRecordBytesMin);
  return RoundDown(record_bytes - kRecordBytesMin, kRecordAlignment) + kRecordAlignment - 1;
}

std::optional<uint64_t> BodyBytesOf(uint64_t record_bytes) {
  const uint64_t longest = kRecordBytesMin + tier::kPayloadBytesMax - 3 * kRecordAlignment;
  if (record_bytes < kRecordBytesMin || record_bytes > longest) return std::nullopt;
  if (record_bytes % kRecordAlignment != 0) return std::nullopt;
  return record_bytes - kRecordBytesMin;
}

tier::RecordLayout LayoutOf(uint64_t body_bytes) {
  std::vector<tier::SectionSpec> sections;
  if (body_bytes > 0) {
    sections.push_back({.stream = kBodyStream, .layout_revision = kRevision, .bytes = body_bytes});
  }
  sections.push_back(
      {.stream = kLastPageStream, .layout_revision = kRevision, .bytes = kRecordAlignment});
  auto layout = tier::RecordLayout::Create(/*token_count=*/0, std::move(sections));
  QUIRE_CHECK(layout && layout->record_bytes() == RecordBytesOf(body_bytes));
  return *std::move(layout);
}

void EncodeLastPage(std::span<const std::byte> rest, LastPage& page) {
  QUIRE_CHECK(rest.size() < page.size());
  const auto end = std::ranges::copy(rest, page.begin()).out;
  *end = kEndMark;
  std::fill(end + 1, page.end(), std::byte{0});
}

std::optional<uint64_t> RestOf(const LastPage& page) {
  for (uint64_t i = page.size(); i-- > 0;) {
    if (page[i] == kEndMark) return i;
    if (page[i] != std::byte{0}) break;
  }
  return std::nullopt;
}

tier::PublisherId PublisherOf(std::string_view name_space) {
  if (name_space.empty()) return {};
  Blake2b<16> hash;
  hash.Update("quire namespace");
  hash.Update(name_space);
  return hash.Finish();
}

tier::RecordIdentity IdentityOf(std::string_view name_space, uint64_t erase_epoch,
                                std::string_view key) {
  Blake2b<32> hash;
  hash.Update("quire opaque key");
  UpdateText(hash, name_space);
  hash.UpdateNumber(erase_epoch);
  UpdateText(hash, key);
  return {.key = hash.Finish(),
          .profile = OpaqueProfile(),
          .publisher = PublisherOf(name_space),
          .erase_epoch = erase_epoch};
}

}  // namespace quire::store
