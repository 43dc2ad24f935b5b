#include "remote/seal.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <string_view>

#include "base/wiped_vector.h"
#include "keys/cipher.h"
#include "keys/key_source.h"
#include "tier/record_digest.h"

namespace quire::remote {
namespace {

using keys::Cipher;
using keys::Derive;

constexpr std::string_view kMagic = "QUIREOB1";
constexpr uint64_t kSaltAt = 8;  // 32 random bytes: the key of this object follows from them
constexpr uint64_t kSaltBytes = 32;
constexpr uint64_t kSealedAt = kSaltAt + kSaltBytes;  // the sealed part of the head
constexpr uint64_t kPlainHeadBytes = kSealedHeadBytes - kSealedAt - kSealTagBytes;
static_assert(kPlainHeadBytes == 40);
constexpr uint64_t kValueHeadBytes = 8 + kSaltBytes;
constexpr uint32_t kHeadNonce = std::numeric_limits<uint32_t>::max();

// All that must be as its reader expects: a record that differs in any of it does not open.
Digest DigestOf(const Incarnation& incarnation, const tier::RecordIdentity& identity,
                const tier::RecordLayout& layout) {
  Blake2b<32> hash;
  hash.Update("quire sealed record");
  hash.Update(std::as_bytes(std::span(incarnation)));
  tier::UpdateRecord(hash, identity, layout);
  return hash.Finish();
}

// Opens a section, which ends with its tag, into `out`. Returns the CRC32C of its plain bytes, that
// is taken while these are in the processor's cache. Nothing: what `out` holds is of no use.
std::optional<uint32_t> OpenSection(Cipher& cipher, uint32_t number, const Digest& expected,
                                    std::span<const std::byte> sealed, std::span<std::byte> out) {
  constexpr size_t kPiece = 32 << 10;
  cipher.BeginOpen(number, std::as_bytes(std::span(expected)));
  uint32_t crc = 0;
  for (size_t at = 0; at < out.size(); at += kPiece) {
    const auto piece = out.subspan(at, std::min(kPiece, out.size() - at));
    cipher.Update(sealed.subspan(at, piece.size()), piece.data());
    crc = Crc32c(piece, crc);
  }
  keys::Tag tag{};
  std::ranges::copy(sealed.last(tag.size()), tag.begin());
  if (!cipher.EndOpen(tag)) return std::nullopt;
  return crc;
}

Digest ObjectKey(const FleetKeys& keys, std::span<const std::byte> salt) {
  return Derive(keys.objects, "quire object", salt);
}

std::span<const std::byte> Bytes(std::string_view text) { return std::as_bytes(std::span(text)); }

void AppendRandom(std::span<std::byte> out) {
  FillRandom({reinterpret_cast<uint8_t*>(out.data()), out.size()});
}

bool HasMagic(std::span<const std::byte> bytes) {
  return std::memcmp(bytes.data(), kMagic.data(), kMagic.size()) == 0;
}

}  // namespace

Result<FleetKey> ReadFleetKey(const std::string& path) {
  QUIRE_ASSIGN(const keys::SecretKey read, keys::ReadKeyFile(path, "fleet key"));
  FleetKey key{};
  std::ranges::copy(read.bytes(), key.begin());
  return key;
}

FleetKeys::FleetKeys(const FleetKey& fleet)
    : names(Derive(fleet, "quire remote names")),
      objects(Derive(fleet, "quire remote objects")),
      domain(Derive(fleet, "quire domain secret")) {}

Seal::Seal(const FleetKeys& keys, const Incarnation& incarnation)
    : keys_(keys), incarnation_(incarnation) {}

std::string Seal::NameOf(const Digest& key) const {
  Blake2b<32> hash(keys_.names);
  hash.Update("quire record");
  hash.Update(std::as_bytes(std::span(incarnation_)));
  hash.Update(std::as_bytes(std::span(key)));
  return ToHex(hash.Finish());
}

uint64_t Seal::ObjectBytes(const tier::RecordLayout& layout) {
  return RangeOf(layout, 0, static_cast<uint32_t>(layout.sections().size())).bytes +
         kSealedHeadBytes;
}

SealedRange Seal::RangeOf(const tier::RecordLayout& layout, uint32_t first, uint32_t count) {
  SealedRange range{.offset = kSealedHeadBytes};
  const auto sections = layout.sections();
  for (uint32_t i = 0; i < first; ++i) range.offset += sections[i].bytes + kSealTagBytes;
  for (uint32_t i = first; i < first + count; ++i) {
    range.bytes += sections[i].bytes + kSealTagBytes;
  }
  return range;
}

std::vector<std::byte> Seal::Close(const tier::RecordIdentity& identity,
                                   const tier::RecordLayout& layout,
                                   std::span<const std::span<const std::byte>> sections) const {
  std::vector<std::byte> object(ObjectBytes(layout));
  std::memcpy(object.data(), kMagic.data(), kMagic.size());
  const std::span<std::byte> salt = std::span(object).subspan(kSaltAt, kSaltBytes);
  AppendRandom(salt);
  Cipher cipher(ObjectKey(keys_, salt));
  std::array<std::byte, kPlainHeadBytes> head{};
  const uint64_t object_bytes = object.size();
  std::memcpy(head.data(), identity.publisher.data(), identity.publisher.size());
  std::memcpy(&head[16], &identity.erase_epoch, 8);
  std::memcpy(&head[24], &object_bytes, 8);
  cipher.Close(kHeadNonce, Bytes(NameOf(identity.key)), head, &object[kSealedAt]);
  const Digest expected = DigestOf(incarnation_, identity, layout);
  uint64_t at = kSealedHeadBytes;
  for (uint32_t i = 0; i < sections.size(); ++i) {
    cipher.Close(i, std::as_bytes(std::span(expected)), sections[i], &object[at]);
    at += sections[i].size() + kSealTagBytes;
  }
  return object;
}

bool Seal::Open(const tier::RecordIdentity& identity, const tier::RecordLayout& layout,
                uint32_t first, std::span<const std::byte> head, std::span<const std::byte> sealed,
                std::span<const std::span<std::byte>> out, std::span<uint32_t> crcs) const {
  if (head.size() != kSealedHeadBytes || !HasMagic(head)) return false;
  if (sealed.size() != RangeOf(layout, first, static_cast<uint32_t>(out.size())).bytes) {
    return false;
  }
  Cipher cipher(ObjectKey(keys_, head.subspan(kSaltAt, kSaltBytes)));
  const Digest expected = DigestOf(incarnation_, identity, layout);
  for (uint32_t i = 0; i < out.size(); ++i) {
    const auto section = sealed.first(out[i].size() + kSealTagBytes);
    const auto crc = OpenSection(cipher, first + i, expected, section, out[i]);
    if (!crc) {
      // It may be another tenant's.
      for (const std::span<std::byte> opened : out.first(i + 1)) Wipe(opened);
      return false;
    }
    if (!crcs.empty()) crcs[i] = *crc;
    sealed = sealed.subspan(section.size());
  }
  return true;
}

std::optional<SealedHead> Seal::OpenHead(std::string_view name,
                                         std::span<const std::byte> head) const {
  if (head.size() != kSealedHeadBytes || !HasMagic(head)) return std::nullopt;
  std::array<std::byte, kPlainHeadBytes + kSealTagBytes> sealed{};
  std::ranges::copy(head.subspan(kSealedAt), sealed.begin());
  Cipher cipher(ObjectKey(keys_, head.subspan(kSaltAt, kSaltBytes)));
  if (!cipher.Open(kHeadNonce, Bytes(name), sealed)) return std::nullopt;
  SealedHead out;
  std::memcpy(out.publisher.data(), sealed.data(), out.publisher.size());
  std::memcpy(&out.erase_epoch, &sealed[16], 8);
  std::memcpy(&out.object_bytes, &sealed[24], 8);
  return out;
}

std::vector<std::byte> CloseValue(const FleetKeys& keys, std::string_view name,
                                  std::span<const std::byte> plain) {
  std::vector<std::byte> value(kValueHeadBytes + plain.size() + kSealTagBytes);
  std::memcpy(value.data(), kMagic.data(), kMagic.size());
  const std::span<std::byte> salt = std::span(value).subspan(kSaltAt, kSaltBytes);
  AppendRandom(salt);
  Cipher(Derive(keys.objects, "quire value", salt))
      .Close(0, Bytes(name), plain, &value[kValueHeadBytes]);
  return value;
}

std::optional<std::vector<std::byte>> OpenValue(const FleetKeys& keys, std::string_view name,
                                                std::span<const std::byte> sealed) {
  if (sealed.size() < kValueHeadBytes + kSealTagBytes || !HasMagic(sealed)) return std::nullopt;
  const Digest key = Derive(keys.objects, "quire value", sealed.subspan(kSaltAt, kSaltBytes));
  std::vector<std::byte> plain(sealed.begin() + kValueHeadBytes, sealed.end());
  if (!Cipher(key).Open(0, Bytes(name), plain)) return std::nullopt;
  plain.resize(plain.size() - kSealTagBytes);
  return plain;
}

}  // namespace quire::remote
