#include "serve/session_seal.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "base/hash.h"
#include "keys/cipher.h"
#include "serve/session_record.h"

namespace quire::serve {
namespace {

constexpr std::array<char, 8> kSealedMagic = {'Q', 'U', 'I', 'R', 'E', 'S', 'E', 'L'};
constexpr uint32_t kSealedFormat = 1;
constexpr std::string_view kSealUse = "quire session at rest";

// Then the first kSessionHeadBytesMax bytes of the plain file, or all of fewer, a tag, the others,
// and a tag. It is sealed with both.
struct SealedHeader {
  std::array<char, 8> magic;
  uint32_t format;
  uint32_t number;  // of the key
  keys::OwnerId owner;
  keys::Salt salt;
  uint32_t reserved;
  uint32_t crc;  // of all before it: damage must not look like a key that is gone
};
static_assert(sizeof(SealedHeader) == 64);

uint32_t CrcOf(const SealedHeader& header) {
  return Crc32c(std::as_bytes(std::span(&header, 1)).first(offsetof(SealedHeader, crc)));
}

constexpr uint64_t kOverhead = sizeof(SealedHeader) + 2 * keys::kTagBytes;

Result<SealedHeader> HeaderOf(std::span<const std::byte> sealed) {
  SealedHeader header;
  if (sealed.size() < kOverhead) return Fail(ErrorCode::kCorrupt, "it is too short for a session");
  std::memcpy(&header, sealed.data(), sizeof(header));
  if (header.magic != kSealedMagic) return Fail(ErrorCode::kCorrupt, "it is no sealed session");
  if (header.crc != CrcOf(header)) {
    return Fail(ErrorCode::kCorrupt, "its head fails its checksum");
  }
  if (header.format != kSealedFormat) {
    return Fail(ErrorCode::kUnsupported, "a newer version sealed it");
  }
  return header;
}

std::unexpected<Error> Changed() {
  return Fail(ErrorCode::kCorrupt, "it is not what was sealed: it was changed, or is damaged");
}

}  // namespace

bool SessionSeal::IsSealed(std::span<const std::byte> bytes) {
  return bytes.size() >= kSealedMagic.size() &&
         std::memcmp(bytes.data(), kSealedMagic.data(), kSealedMagic.size()) == 0;
}

uint64_t SessionSeal::SealedBytes(uint64_t plain_bytes) { return plain_bytes + kOverhead; }

uint64_t SessionSeal::PlainBytes(uint64_t sealed_bytes) {
  return sealed_bytes - std::min(sealed_bytes, kOverhead);
}

std::string SessionSeal::FileOf(std::string_view session) const {
  const Digest digest = keys_->Hash("session file", std::as_bytes(std::span(session)));
  return ToHex(std::span(digest).first(16));
}

keys::OwnerId SessionSeal::OwnerOf(std::string_view tenant) const {
  const Digest digest = keys_->Hash("session tenant", std::as_bytes(std::span(tenant)));
  keys::OwnerId owner{};
  std::copy_n(digest.begin(), owner.size(), owner.begin());
  return owner;
}

Result<std::vector<std::byte>> SessionSeal::Seal(const std::string& tenant,
                                                 std::span<const std::byte> plain) {
  const keys::OwnerId owner = OwnerOf(tenant);
  QUIRE_ASSIGN(const keys::DataKey key, keys_->KeyFor(owner));
  SealedHeader header = {.magic = kSealedMagic,
                         .format = kSealedFormat,
                         .number = key.number,
                         .owner = owner,
                         .salt = keys::RandomSalt(),
                         .reserved = 0,
                         .crc = 0};
  header.crc = CrcOf(header);
  std::vector<std::byte> sealed(plain.size() + kOverhead);
  std::memcpy(sealed.data(), &header, sizeof(header));
  const auto with = std::span<const std::byte>(sealed).first(sizeof(header));
  keys::Cipher cipher(keys::SaltedKey(key.key->bytes(), kSealUse, header.salt).bytes());
  const auto head = plain.first(std::min<uint64_t>(plain.size(), kSessionHeadBytesMax));
  std::byte* const to = sealed.data() + sizeof(header);
  cipher.Close(0, with, head, to);
  cipher.Close(1, with, plain.subspan(head.size()), to + head.size() + keys::kTagBytes);
  return sealed;
}

Result<std::vector<std::byte>> SessionSeal::OpenHead(std::span<const std::byte> sealed) const {
  QUIRE_ASSIGN(const SealedHeader header, HeaderOf(sealed));
  const auto key = keys_->Find(header.owner, header.number);
  if (key == nullptr) return Fail(ErrorCode::kNotFound, "its key is gone: its tenant was erased");
  keys::Cipher cipher(keys::SaltedKey(key->bytes(), kSealUse, header.salt).bytes());
  const uint64_t bytes =
      std::min<uint64_t>(sealed.size() - kOverhead, kSessionHeadBytesMax) + keys::kTagBytes;
  const auto from = sealed.subspan(sizeof(header), bytes);
  std::vector<std::byte> head(from.begin(), from.end());
  if (!cipher.Open(0, sealed.first(sizeof(header)), head)) return Changed();
  head.resize(head.size() - keys::kTagBytes);
  return head;
}

Result<std::vector<std::byte>> SessionSeal::Open(std::span<const std::byte> sealed) const {
  QUIRE_ASSIGN(std::vector<std::byte> plain, OpenHead(sealed));
  const auto from = sealed.subspan(sizeof(SealedHeader) + plain.size() + keys::kTagBytes);
  QUIRE_ASSIGN(const SealedHeader header, HeaderOf(sealed));
  const auto key = keys_->Find(header.owner, header.number);
  keys::Cipher cipher(keys::SaltedKey(key->bytes(), kSealUse, header.salt).bytes());
  std::vector<std::byte> rest(from.begin(), from.end());
  if (!cipher.Open(1, sealed.first(sizeof(header)), rest)) return Changed();
  plain.insert(plain.end(), rest.begin(), rest.end() - keys::kTagBytes);
  return plain;
}

void SessionSeal::Note(std::span<const std::byte> sealed) {
  const auto header = HeaderOf(sealed);
  if (!header) return;
  const auto [noted, is_new] = noted_.try_emplace(header->owner, header->number);
  noted->second = std::min(noted->second, header->number);
}

// Numbers of keys ascend, so they stand in for the generations of a store's segments.
Result<void> SessionSeal::RetireOthers() {
  for (const keys::OwnerId& owner : keys_->owners()) {
    const auto noted = noted_.find(owner);
    QUIRE_TRY(keys_->Retire(owner, noted == noted_.end() ? ~uint64_t{0} : noted->second));
  }
  return {};
}

Result<void> SessionSeal::Rotate(const StoreKeys& new_keys, bool renews_data_keys) {
  if (!new_keys.empty()) QUIRE_TRY(keys_->Rewrap(new_keys));
  if (!renews_data_keys) return {};
  for (const keys::OwnerId& owner : keys_->owners()) {
    QUIRE_ASSIGN(const keys::DataKey key, keys_->KeyFor(owner));
    QUIRE_TRY(keys_->Renew(owner, key.number));
  }
  return {};
}

Result<void> SessionSeal::Forget(const std::string& tenant) {
  return keys_->Destroy(OwnerOf(tenant));
}

}  // namespace quire::serve
