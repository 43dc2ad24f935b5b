#include "remote/seal.h"

#include <fmt/format.h>
#include <openssl/core_names.h>
#include <openssl/evp.h>
#include <openssl/kdf.h>
#include <openssl/params.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <string_view>

#include "base/check.h"
#include "base/wiped_vector.h"
#include "env/file.h"

namespace quire::remote {
namespace {

constexpr std::string_view kMagic = "QUIREOB1";
constexpr uint64_t kSaltAt = 8;  // 32 random bytes: the key of this object follows from them
constexpr uint64_t kSaltBytes = 32;
constexpr uint64_t kSealedAt = kSaltAt + kSaltBytes;  // the sealed part of the head
constexpr uint64_t kPlainHeadBytes = kSealedHeadBytes - kSealedAt - kSealTagBytes;
static_assert(kPlainHeadBytes == 40);
constexpr uint64_t kValueHeadBytes = 8 + kSaltBytes;
constexpr uint32_t kHeadNonce = std::numeric_limits<uint32_t>::max();

Digest Derive(const Digest& from, std::string_view use, std::span<const std::byte> salt = {}) {
  Digest out{};
  const std::unique_ptr<EVP_KDF, decltype(&EVP_KDF_free)> kdf(
      EVP_KDF_fetch(nullptr, "HKDF", nullptr), &EVP_KDF_free);
  QUIRE_CHECK(kdf != nullptr);
  const std::unique_ptr<EVP_KDF_CTX, decltype(&EVP_KDF_CTX_free)> context(
      EVP_KDF_CTX_new(kdf.get()), &EVP_KDF_CTX_free);
  char digest[] = "SHA256";
  const auto bytes_of = [](const char* name, const void* data, size_t bytes) {
    // It refuses a null pointer, also where there are no bytes.
    const void* const there = bytes == 0 ? "" : data;
    return OSSL_PARAM_construct_octet_string(name, const_cast<void*>(there), bytes);
  };
  const std::array params = {
      OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, digest, 0),
      bytes_of(OSSL_KDF_PARAM_KEY, from.data(), from.size()),
      bytes_of(OSSL_KDF_PARAM_INFO, use.data(), use.size()),
      bytes_of(OSSL_KDF_PARAM_SALT, salt.data(), salt.size()),
      OSSL_PARAM_construct_end(),
  };
  QUIRE_CHECK(EVP_KDF_derive(context.get(), out.data(), out.size(), params.data()) == 1);
  return out;
}

/// AES-256-GCM under one key; the nonce is a number that is used once under it.
class Cipher {
 public:
  explicit Cipher(const Digest& key) : context_(EVP_CIPHER_CTX_new(), &EVP_CIPHER_CTX_free) {
    if (context_ == nullptr) throw std::bad_alloc();
    std::ranges::copy(key, key_.begin());
  }
  ~Cipher() { Wipe(std::span<unsigned char>(key_)); }
  Cipher(const Cipher&) = delete;
  Cipher& operator=(const Cipher&) = delete;

  /// `out` has room for the bytes and the tag behind them.
  void Close(uint32_t nonce, std::span<const std::byte> with, std::span<const std::byte> plain,
             std::byte* out) {
    Begin(nonce, with, /*closes=*/1);
    ForPieces(plain, out, [](std::span<const std::byte>) {});
    unsigned char* const end = To(out + plain.size());
    int none = 0;
    QUIRE_CHECK(EVP_CipherFinal_ex(context_.get(), end, &none) == 1);
    QUIRE_CHECK(EVP_CIPHER_CTX_ctrl(context_.get(), EVP_CTRL_GCM_GET_TAG, kSealTagBytes, end) == 1);
  }
  /// `sealed` ends with the tag; `out` has room for the bytes before it, and may be where they are.
  /// Returns the CRC32C of the plain bytes. Nothing: what they say is of no use.
  std::optional<uint32_t> Open(uint32_t nonce, std::span<const std::byte> with,
                               std::span<const std::byte> sealed, std::byte* out) {
    const auto bytes = sealed.first(sealed.size() - kSealTagBytes);
    Begin(nonce, with, /*closes=*/0);
    uint32_t crc = 0;
    ForPieces(bytes, out, [&](std::span<const std::byte> plain) { crc = Crc32c(plain, crc); });
    std::array<unsigned char, kSealTagBytes> tag;
    std::memcpy(tag.data(), sealed.data() + bytes.size(), tag.size());
    QUIRE_CHECK(EVP_CIPHER_CTX_ctrl(context_.get(), EVP_CTRL_GCM_SET_TAG, tag.size(), tag.data()) ==
                1);
    int none = 0;
    unsigned char rest[16];
    if (EVP_CipherFinal_ex(context_.get(), rest, &none) != 1) return std::nullopt;
    return crc;
  }

 private:
  static unsigned char* To(std::byte* bytes) { return reinterpret_cast<unsigned char*>(bytes); }
  static const unsigned char* To(const std::byte* bytes) {
    return reinterpret_cast<const unsigned char*>(bytes);
  }

  void Begin(uint32_t number, std::span<const std::byte> with, int closes) {
    std::array<unsigned char, 12> nonce{};
    std::memcpy(nonce.data(), &number, sizeof(number));
    const bool first = !std::exchange(has_key_, true);
    QUIRE_CHECK(EVP_CipherInit_ex(context_.get(), first ? EVP_aes_256_gcm() : nullptr, nullptr,
                                  first ? key_.data() : nullptr, nonce.data(), closes) == 1);
    int done = 0;
    QUIRE_CHECK(EVP_CipherUpdate(context_.get(), nullptr, &done, To(with.data()),
                                 static_cast<int>(with.size())) == 1);
  }
  // Calls after(piece) while what was made of a piece is in the processor's cache.
  template <typename After>
  void ForPieces(std::span<const std::byte> from, std::byte* to, const After& after) {
    constexpr size_t kPiece = 32 << 10;
    while (!from.empty()) {
      const size_t bytes = std::min(from.size(), kPiece);
      int done = 0;
      QUIRE_CHECK(EVP_CipherUpdate(context_.get(), To(to), &done, To(from.data()),
                                   static_cast<int>(bytes)) == 1);
      after(std::span<const std::byte>(to, bytes));
      from = from.subspan(bytes);
      to += bytes;
    }
  }

  const std::unique_ptr<EVP_CIPHER_CTX, decltype(&EVP_CIPHER_CTX_free)> context_;
  std::array<unsigned char, 32> key_{};
  bool has_key_ = false;
};

// All that must be as its reader expects: a record that differs in any of it does not open.
Digest DigestOf(const Incarnation& incarnation, const tier::RecordIdentity& identity,
                const tier::RecordLayout& layout) {
  Blake2b<32> hash;
  hash.Update("quire sealed record");
  hash.Update(std::as_bytes(std::span(incarnation)));
  for (const Digest* digest :
       {&identity.key, &identity.parent, &identity.profile, &identity.geometry}) {
    hash.Update(std::as_bytes(std::span(*digest)));
  }
  hash.Update(std::as_bytes(std::span(identity.publisher)));
  hash.UpdateNumber(identity.erase_epoch);
  hash.UpdateNumber(identity.block_index);
  hash.UpdateNumber(uint64_t{identity.tokens.size()});
  hash.Update(std::as_bytes(identity.tokens));
  hash.UpdateNumber(uint64_t{layout.sections().size()});
  for (const tier::SectionSpec& section : layout.sections()) {
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
  return hash.Finish();
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
  FleetKey key{};
  constexpr uint64_t kFileBytesMax = 2 * sizeof(FleetKey) + 2;
  QUIRE_ASSIGN(std::string text, ReadFile(path, kFileBytesMax));
  if (text.size() == key.size()) {
    std::memcpy(key.data(), text.data(), key.size());
    Wipe(std::span(text));
    return key;
  }
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.pop_back();
  const auto digit = [](char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
  };
  bool good = text.size() == 2 * key.size();
  for (size_t i = 0; good && i < key.size(); ++i) {
    const int high = digit(text[2 * i]);
    const int low = digit(text[2 * i + 1]);
    good = high >= 0 && low >= 0;
    key[i] = static_cast<uint8_t>(16 * high + low);
  }
  Wipe(std::span(text));
  if (good) return key;
  return Fail(ErrorCode::kInvalidArgument,
              fmt::format("{}: no fleet key: 32 bytes or 64 hexadecimal digits are expected "
                          "(head -c 32 /dev/urandom > FILE makes one)",
                          path));
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
  if (sealed.size() != RangeOf(layout, first, static_cast<uint32_t>(out.size())).bytes)
    return false;
  Cipher cipher(ObjectKey(keys_, head.subspan(kSaltAt, kSaltBytes)));
  const Digest expected = DigestOf(incarnation_, identity, layout);
  for (uint32_t i = 0; i < out.size(); ++i) {
    const uint64_t bytes = out[i].size() + kSealTagBytes;
    const auto crc = cipher.Open(first + i, std::as_bytes(std::span(expected)), sealed.first(bytes),
                                 out[i].data());
    if (!crc) {
      // It may be another tenant's.
      for (const std::span<std::byte> section : out.first(i + 1))
        std::ranges::fill(section, std::byte{});
      return false;
    }
    if (!crcs.empty()) crcs[i] = *crc;
    sealed = sealed.subspan(bytes);
  }
  return true;
}

std::optional<SealedHead> Seal::OpenHead(std::string_view name,
                                         std::span<const std::byte> head) const {
  if (head.size() != kSealedHeadBytes || !HasMagic(head)) return std::nullopt;
  std::array<std::byte, kPlainHeadBytes + kSealTagBytes> sealed{};
  std::ranges::copy(head.subspan(kSealedAt), sealed.begin());
  Cipher cipher(ObjectKey(keys_, head.subspan(kSaltAt, kSaltBytes)));
  if (!cipher.Open(kHeadNonce, Bytes(name), sealed, sealed.data())) return std::nullopt;
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
  std::vector<std::byte> plain(sealed.size() - kValueHeadBytes - kSealTagBytes);
  if (!Cipher(key).Open(0, Bytes(name), sealed.subspan(kValueHeadBytes), plain.data())) {
    return std::nullopt;
  }
  return plain;
}

}  // namespace quire::remote
