#include "tier/record_seal.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/bits.h"
#include "base/check.h"
#include "base/hash.h"

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

void UpdateSections(Blake2b<32>& hash, const RecordLayout& layout) {
  hash.UpdateNumber(uint64_t{layout.sections().size()});
  for (const SectionSpec& section : layout.sections()) {
    hash.UpdateNumber(section.group);
    hash.UpdateNumber(section.stream);
    hash.UpdateNumber(section.encoding);
    hash.UpdateNumber(section.layout_revision);
    hash.UpdateNumber(section.layer_first);
    hash.UpdateNumber(section.layer_count);
    hash.UpdateNumber(section.head_first);
    hash.UpdateNumber(section.head_count);
    hash.UpdateNumber(section.bytes);
  }
}

// What the header says of itself, but for its place, which may change: sealed with each section.
Digest HeaderDigest(const RecordIdentity& identity, const RecordLayout& layout) {
  Blake2b<32> hash;
  hash.Update(kRecordUse);
  for (const Digest* digest :
       {&identity.key, &identity.parent, &identity.profile, &identity.geometry}) {
    hash.Update(std::as_bytes(std::span(*digest)));
  }
  hash.Update(std::as_bytes(std::span(identity.publisher)));
  hash.UpdateNumber(identity.erase_epoch);
  hash.UpdateNumber(identity.block_index);
  hash.UpdateNumber(uint64_t{identity.tokens.size()});
  hash.Update(std::as_bytes(identity.tokens));
  UpdateSections(hash, layout);
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

uint64_t SealedBytesMax(uint64_t record_bytes) { return record_bytes + SealMargin(record_bytes); }

uint64_t UnsealedBytesMin(uint64_t sealed_bytes) {
  return sealed_bytes - std::min(sealed_bytes, SealMargin(sealed_bytes));
}

std::span<const std::span<const std::byte>> RecordSealer::Seal(
    const keys::DataKey& key, const RecordIdentity& identity, const RecordLayout& layout,
    std::span<const std::span<const std::byte>> sections) {
  uint64_t total = 0;
  for (const SectionSpec& section : layout.sections()) total += section.bytes;
  bytes_.resize(total);
  sealed_.clear();
  const Digest with = HeaderDigest(identity, layout);
  SectionSeal seal = {.salt = keys::RandomSalt(), .number = key.number, .reserved = 0, .tag = {}};
  keys::Cipher cipher(keys::SaltedKey(key.key->bytes(), kRecordUse, seal.salt).bytes());
  std::byte* to = bytes_.data();
  for (uint32_t i = 0; i < sections.size(); ++i) {
    const uint64_t bytes = sections[i].size();
    QUIRE_CHECK(bytes + kSectionSealBytes == layout.sections()[i].bytes);
    cipher.BeginClose(i, std::as_bytes(std::span(with)));
    cipher.Update(sections[i], to);
    seal.tag = cipher.EndClose();
    std::memcpy(to + bytes, &seal, sizeof(seal));
    sealed_.emplace_back(to, bytes + kSectionSealBytes);
    to += bytes + kSectionSealBytes;
  }
  return sealed_;
}

RecordOpener::RecordOpener(const keys::KeyRing& keys, const RecordIdentity& identity,
                           const RecordLayout& layout)
    : keys_(keys), owner_(identity.publisher), with_(HeaderDigest(identity, layout)) {}

bool RecordOpener::Open(uint32_t section, std::span<const std::span<std::byte>> pieces) {
  uint64_t total = 0;
  for (const auto piece : pieces) total += piece.size();
  if (total < kSectionSealBytes) return false;
  const uint64_t plain = total - kSectionSealBytes;
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
  uint64_t left = plain;
  for (const auto piece : pieces) {
    const auto bytes = piece.first(std::min<uint64_t>(left, piece.size()));
    cipher_->Update(bytes, bytes.data());
    left -= bytes.size();
  }
  return cipher_->EndOpen(seal.tag);
}

}  // namespace quire::tier
