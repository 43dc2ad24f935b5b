#include "remote/seal.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <string_view>
#include <utility>

#include "base/stream_copy.h"
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

Digest ObjectKey(const Digest& objects, std::span<const std::byte> salt) {
  return Derive(objects, "quire object", salt);
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
  Cipher cipher(ObjectKey(keys_.objects, salt));
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

std::optional<SealedHead> Seal::OpenHead(std::string_view name,
                                         std::span<const std::byte> head) const {
  if (head.size() != kSealedHeadBytes || !HasMagic(head)) return std::nullopt;
  std::array<std::byte, kPlainHeadBytes + kSealTagBytes> sealed{};
  std::ranges::copy(head.subspan(kSealedAt), sealed.begin());
  Cipher cipher(ObjectKey(keys_.objects, head.subspan(kSaltAt, kSaltBytes)));
  if (!cipher.Open(kHeadNonce, Bytes(name), sealed)) return std::nullopt;
  SealedHead out;
  std::memcpy(out.publisher.data(), sealed.data(), out.publisher.size());
  std::memcpy(&out.erase_epoch, &sealed[16], 8);
  std::memcpy(&out.object_bytes, &sealed[24], 8);
  return out;
}

SealedReader::SealedReader(const Seal& seal, const tier::LoadRequest& load)
    : objects_(seal.keys_.objects),
      expected_(DigestOf(seal.incarnation_, load.identity, *load.layout)),
      first_(load.section_first),
      out_(load.out),
      crcs_(load.crcs) {}

void SealedReader::TakeHead(std::span<const std::byte> bytes) {
  MutexLock lock(mutex_);
  if (ended_) return;
  received_ += bytes.size();
  if (!FillHead(bytes).empty()) failed_ = true;
}

void SealedReader::Take(std::span<const std::byte> bytes) {
  MutexLock lock(mutex_);
  if (ended_) return;
  received_ += bytes.size();
  Open(bytes);
}

void SealedReader::TakeObject(std::span<const std::byte> bytes) {
  MutexLock lock(mutex_);
  if (ended_) return;
  received_ += bytes.size();
  Open(FillHead(bytes));
}

// What is left of the bytes.
std::span<const std::byte> SealedReader::FillHead(std::span<const std::byte> bytes) {
  const size_t taken = std::min(bytes.size(), head_.size() - head_bytes_);
  std::copy_n(bytes.begin(), taken, head_.begin() + static_cast<ptrdiff_t>(head_bytes_));
  head_bytes_ += taken;
  if (head_bytes_ == head_.size() && !cipher_ && !failed_) {
    failed_ = !HasMagic(head_);
    cipher_.emplace(ObjectKey(objects_, std::span(head_).subspan(kSaltAt, kSaltBytes)));
    Open(std::exchange(early_, {}));
  }
  return bytes.subspan(taken);
}

void SealedReader::Open(std::span<const std::byte> bytes) {
  // Its checksum is taken while it is in the nearest cache. From there to memory past the caches
  // takes less than to open it in memory, whose lines would be read first.
  alignas(64) std::array<std::byte, 32 << 10> opened;
  size_t used = 0;
  if (!cipher_) {
    early_.insert(early_.end(), bytes.begin(), bytes.end());
    return;
  }
  while (!bytes.empty() && !failed_) {
    failed_ = section_ == out_.size();
    if (failed_) break;
    const std::span<std::byte> out = out_[section_];
    if (at_ == 0) {
      cipher_->BeginOpen(first_ + static_cast<uint32_t>(section_),
                         std::as_bytes(std::span(expected_)));
      crc_ = 0;
    }
    if (at_ < out.size()) {
      const auto piece =
          std::span(opened).first(std::min({opened.size(), bytes.size(), out.size() - at_}));
      used = std::max(used, piece.size());
      cipher_->Update(bytes.first(piece.size()), piece.data());
      crc_ = Crc32c(piece, crc_);
      StreamCopy(piece, out.data() + at_);
      at_ += piece.size();
      bytes = bytes.subspan(piece.size());
      continue;
    }
    const size_t of_tag = at_ - out.size();
    const auto piece = bytes.first(std::min(bytes.size(), tag_.size() - of_tag));
    std::ranges::copy(piece, tag_.begin() + static_cast<ptrdiff_t>(of_tag));
    at_ += piece.size();
    bytes = bytes.subspan(piece.size());
    if (of_tag + piece.size() < tag_.size()) break;
    failed_ = !cipher_->EndOpen(tag_);
    if (failed_) break;
    if (!crcs_.empty()) crcs_[section_] = crc_;
    at_ = 0;
    ++section_;
  }
  Wipe(std::span(opened).first(used));
}

bool SealedReader::IsWhole() const { return !failed_ && cipher_ && section_ == out_.size(); }

bool SealedReader::is_whole() const {
  MutexLock lock(mutex_);
  return IsWhole();
}

uint64_t SealedReader::received() const {
  MutexLock lock(mutex_);
  return received_;
}

std::vector<std::byte> SealedReader::head() const {
  MutexLock lock(mutex_);
  return {head_.begin(), head_.begin() + static_cast<ptrdiff_t>(head_bytes_)};
}

void SealedReader::End(bool keeps) {
  MutexLock lock(mutex_);
  if (std::exchange(ended_, true) || (keeps && IsWhole())) return;
  for (const std::span<std::byte> opened : out_.first(section_ + (at_ > 0 ? 1 : 0))) {
    Wipe(opened);
  }
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
