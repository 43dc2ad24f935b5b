#include "tier/record_seal.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/bits.h"
#include "base/check.h"
#include "base/hash.h"
#include "tier/record_digest.h"

namespace quire::tier {
namespace {

constexpr std::string_view kRecordUse = "quire record at rest";

struct SectionSeal {
  keys::Salt salt;
  uint32_t number;
  uint32_t reserved;
  keys::Tag tag;
};
static_assert(sizeof(SectionSeal) == kSectionSealBytes);
static_assert(offsetof(SectionSeal, tag) == kSectionSealBytes - keys::kTagBytes);

// What the header says of itself, but for its place, which may change: sealed with each section.
Digest HeaderDigest(const RecordIdentity& identity, const RecordLayout& layout) {
  Blake2b<32> hash;
  hash.Update(kRecordUse);
  UpdateRecord(hash, identity, layout);
  return hash.Finish();
}

// Of the sections' meaning, which is the geometry's affair: a header says their lengths alone.
Digest GeometryOf(const keys::KeyRing& keys, const Digest& geometry, const RecordLayout& layout) {
  Blake2b<32> hash;
  hash.Update(std::as_bytes(std::span(geometry)));
  UpdateSections(hash, layout);
  const Digest digest = hash.Finish();
  return keys.Hash("geometry", std::as_bytes(std::span(digest)));
}

// As many words as there are tokens, so that a header's length says nothing more than it did.
std::vector<TokenId> TokensOf(const keys::KeyRing& keys, const RecordIdentity& identity) {
  Blake2b<32> hash;
  hash.Update(std::as_bytes(std::span(identity.parent)));
  hash.Update(std::as_bytes(identity.tokens));
  const Digest plain = hash.Finish();
  const Digest digest = keys.Hash("tokens", std::as_bytes(std::span(plain)));
  constexpr size_t kWords = sizeof(Digest) / sizeof(TokenId);
  std::vector<TokenId> tokens(identity.tokens.size());
  for (size_t i = 0; i < tokens.size(); ++i) {
    std::memcpy(&tokens[i], &digest[i % kWords * sizeof(TokenId)], sizeof(TokenId));
  }
  return tokens;
}

// A record has as many sections as its header and their alignment let it.
uint64_t SealMargin(uint64_t record_bytes) {
  const uint64_t sections = std::min(record_bytes / (sizeof(StoredSection) + kSectionAlignment),
                                     kHeaderBytesMax / sizeof(StoredSection)) +
                            1;
  return RoundUp(sections * RoundUp(kSectionSealBytes, kSectionAlignment), kRecordAlignment);
}

}  // namespace

Result<SealedRecord> Disguise(const keys::KeyRing& keys, const RecordIdentity& identity,
                              const RecordLayout& layout) {
  std::vector<SectionSpec> sections;
  for (const SectionSpec& section : layout.sections()) {
    sections.push_back({.bytes = section.bytes + kSectionSealBytes});
  }
  SealedRecord sealed;
  QUIRE_ASSIGN(sealed.layout, RecordLayout::Create(layout.token_count(), std::move(sections)));
  sealed.tokens = TokensOf(keys, identity);
  // A first block names its root, which a store gives back. Of others the parent is in the digest
  // of their tokens, and a header does not say which block follows which.
  const bool names_root = identity.block_index == 0 && identity.parent != Digest{};
  sealed.identity = {
      .key = keys.NameOf(identity.key),
      .parent = names_root ? keys.NameOf(identity.parent) : Digest{},
      .profile = keys.Hash("profile", std::as_bytes(std::span(identity.profile))),
      .geometry = GeometryOf(keys, identity.geometry, layout),
      .publisher = keys.NameOf(identity.publisher),
      .erase_epoch = identity.erase_epoch,
      .block_index = identity.block_index,
      .tokens = sealed.tokens,
      .is_sealed = true,
  };
  return sealed;
}

std::optional<SealedRecord> SealedRecordOf(std::span<const std::byte> bytes) {
  const auto summary = InspectHeader(bytes);
  if (!summary || summary->is_void || !summary->is_sealed) return std::nullopt;
  if (summary->record_bytes() != bytes.size()) return std::nullopt;
  std::vector<SectionSpec> sections;
  for (const StoredSection& section : StoredSections(bytes)) {
    if (section.bytes < kSectionSealBytes) return std::nullopt;
    sections.push_back({.bytes = section.bytes});
  }
  auto layout = RecordLayout::Create(summary->token_count, std::move(sections));
  if (!layout || layout->record_bytes() != bytes.size()) return std::nullopt;
  const auto tokens = StoredTokens(bytes);
  SealedRecord record = {.tokens = {tokens.begin(), tokens.end()}, .layout = *std::move(layout)};
  record.identity = {.key = summary->key,
                     .parent = summary->parent,
                     .profile = summary->profile,
                     .geometry = summary->geometry,
                     .publisher = summary->publisher,
                     .erase_epoch = summary->erase_epoch,
                     .block_index = summary->block_index,
                     .tokens = record.tokens,
                     .is_sealed = true};
  return record;
}

uint64_t SealedBytesMax(uint64_t record_bytes) { return record_bytes + SealMargin(record_bytes); }

uint64_t UnsealedBytesMin(uint64_t sealed_bytes) {
  return sealed_bytes - std::min(sealed_bytes, SealMargin(sealed_bytes));
}

RecordSealer::RecordSealer(const keys::DataKey& key, const RecordIdentity& identity,
                           const RecordLayout& layout)
    : number_(key.number),
      salt_(keys::RandomSalt()),
      with_(HeaderDigest(identity, layout)),
      cipher_(keys::SaltedKey(key.key->bytes(), kRecordUse, salt_).bytes()) {}

void RecordSealer::Seal(uint32_t section, std::span<const std::byte> plain,
                        std::span<const std::span<std::byte>> pieces) {
  cipher_.BeginClose(section, std::as_bytes(std::span(with_)));
  std::span<const std::byte> left = plain;
  for (const auto piece : pieces) {
    const auto some = left.first(std::min(left.size(), piece.size()));
    cipher_.Update(some, piece.data());
    left = left.subspan(some.size());
  }
  QUIRE_CHECK(left.empty());
  const SectionSeal seal = {
      .salt = salt_, .number = number_, .reserved = 0, .tag = cipher_.EndClose()};
  std::span<const std::byte> rest = std::as_bytes(std::span(&seal, 1));
  uint64_t at = 0;
  for (const auto piece : pieces) {
    const uint64_t from = std::max<uint64_t>(at, plain.size());
    at += piece.size();
    if (from >= at) continue;
    const auto some = rest.first(std::min<uint64_t>(rest.size(), at - from));
    std::ranges::copy(some, piece.last(at - from).begin());
    rest = rest.subspan(some.size());
  }
  QUIRE_CHECK(rest.empty());
}

RecordOpener::RecordOpener(const keys::KeyRing& keys, const RecordIdentity& identity,
                           const RecordLayout& layout)
    : keys_(keys), owner_(identity.publisher), with_(HeaderDigest(identity, layout)) {}

bool RecordOpener::Open(uint32_t section, std::span<const std::span<std::byte>> pieces,
                        std::span<std::byte> out) {
  uint64_t total = 0;
  for (const auto piece : pieces) total += piece.size();
  if (total != out.size() + kSectionSealBytes) return false;
  const uint64_t plain = out.size();
  std::array<std::byte, kSectionSealBytes> behind;
  uint64_t at = 0;
  for (const auto piece : pieces) {
    const uint64_t from = std::max(at, plain);
    if (from < at + piece.size()) {
      std::ranges::copy(piece.subspan(from - at),
                        behind.begin() + static_cast<ptrdiff_t>(from - plain));
    }
    at += piece.size();
  }
  SectionSeal seal;
  std::memcpy(&seal, behind.data(), sizeof(seal));
  if (seal.reserved != 0) return false;
  if (!cipher_ || number_ != seal.number || salt_ != seal.salt) {
    const auto key = keys_.Find(owner_, seal.number);
    if (key == nullptr) return false;
    cipher_.emplace(keys::SaltedKey(key->bytes(), kRecordUse, seal.salt).bytes());
    number_ = seal.number;
    salt_ = seal.salt;
  }
  cipher_->BeginOpen(section, std::as_bytes(std::span(with_)));
  for (const auto piece : pieces) {
    const auto bytes = piece.first(std::min(out.size(), piece.size()));
    cipher_->Update(bytes, out.data());
    out = out.subspan(bytes.size());
  }
  return cipher_->EndOpen(seal.tag);
}

}  // namespace quire::tier
