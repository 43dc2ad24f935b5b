#include "keys/cipher.h"

#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/kdf.h>
#include <openssl/params.h>

#include <algorithm>
#include <cstring>
#include <new>

#include "base/check.h"
#include "base/hash.h"
#include "base/wiped_vector.h"

namespace quire::keys {
namespace {

unsigned char* To(std::byte* bytes) { return reinterpret_cast<unsigned char*>(bytes); }
const unsigned char* To(const std::byte* bytes) {
  return reinterpret_cast<const unsigned char*>(bytes);
}

using Context = std::unique_ptr<EVP_CIPHER_CTX, decltype(&EVP_CIPHER_CTX_free)>;

Context MakeContext() {
  Context context(EVP_CIPHER_CTX_new(), &EVP_CIPHER_CTX_free);
  if (context == nullptr) throw std::bad_alloc();
  return context;
}

// The context goes at once: what follows from the key must not stay on the heap.
void RunBlocks(KeyBytes key, std::span<const uint8_t> from, std::span<uint8_t> to, int disguises) {
  constexpr size_t kBlockBytes = 16;
  constexpr size_t kPieceBytes = size_t{1} << 20;
  QUIRE_CHECK(from.size() == to.size() && from.size() % kBlockBytes == 0);
  const Context context = MakeContext();
  QUIRE_CHECK(EVP_CipherInit_ex(context.get(), EVP_aes_256_ecb(), nullptr, key.data(), nullptr,
                                disguises) == 1);
  EVP_CIPHER_CTX_set_padding(context.get(), 0);
  while (!from.empty()) {
    const size_t bytes = std::min(from.size(), kPieceBytes);
    int done = 0;
    QUIRE_CHECK(EVP_CipherUpdate(context.get(), to.data(), &done, from.data(),
                                 static_cast<int>(bytes)) == 1);
    QUIRE_CHECK(static_cast<size_t>(done) == bytes);
    from = from.subspan(bytes);
    to = to.subspan(bytes);
  }
}

}  // namespace

Digest Derive(KeyBytes from, std::string_view use, std::span<const std::byte> salt) {
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

Cipher::Cipher(KeyBytes key, std::unique_ptr<WideGcm> wide)
    : wide_(std::move(wide)),
      context_(wide_ == nullptr ? EVP_CIPHER_CTX_new() : nullptr, &EVP_CIPHER_CTX_free) {
  if (wide_ != nullptr) return;
  if (context_ == nullptr) throw std::bad_alloc();
  QUIRE_CHECK(
      EVP_CipherInit_ex(context_.get(), EVP_aes_256_gcm(), nullptr, key.data(), nullptr, 1) == 1);
}

Cipher::~Cipher() = default;  // which overwrites what followed from the key

void Cipher::Begin(uint32_t number, std::span<const std::byte> with, bool closes) {
  Nonce nonce{};
  std::memcpy(nonce.data(), &number, sizeof(number));
  if (wide_ != nullptr) return wide_->Begin(nonce, with, closes);
  QUIRE_CHECK(EVP_CipherInit_ex(context_.get(), nullptr, nullptr, nullptr, To(nonce.data()),
                                closes ? 1 : 0) == 1);
  int done = 0;
  QUIRE_CHECK(EVP_CipherUpdate(context_.get(), nullptr, &done, To(with.data()),
                               static_cast<int>(with.size())) == 1);
}

void Cipher::Update(std::span<const std::byte> from, std::byte* to) {
  if (wide_ != nullptr) return wide_->Update(from, to);
  constexpr size_t kPiece = size_t{1} << 30;  // lengths are `int` there
  while (!from.empty()) {
    const size_t bytes = std::min(from.size(), kPiece);
    int done = 0;
    QUIRE_CHECK(EVP_CipherUpdate(context_.get(), To(to), &done, To(from.data()),
                                 static_cast<int>(bytes)) == 1);
    from = from.subspan(bytes);
    to += bytes;
  }
}

Tag Cipher::EndClose() {
  if (wide_ != nullptr) return wide_->End();
  Tag tag{};
  int none = 0;
  unsigned char rest[16];
  QUIRE_CHECK(EVP_CipherFinal_ex(context_.get(), rest, &none) == 1);
  QUIRE_CHECK(
      EVP_CIPHER_CTX_ctrl(context_.get(), EVP_CTRL_GCM_GET_TAG, kTagBytes, To(tag.data())) == 1);
  return tag;
}

bool Cipher::EndOpen(const Tag& tag) {
  Tag expected = tag;
  if (wide_ != nullptr) {
    const Tag computed = wide_->End();
    return CRYPTO_memcmp(computed.data(), expected.data(), kTagBytes) == 0;
  }
  QUIRE_CHECK(EVP_CIPHER_CTX_ctrl(context_.get(), EVP_CTRL_GCM_SET_TAG, kTagBytes,
                                  To(expected.data())) == 1);
  int none = 0;
  unsigned char rest[16];
  return EVP_CipherFinal_ex(context_.get(), rest, &none) == 1;
}

void Cipher::Close(uint32_t nonce, std::span<const std::byte> with,
                   std::span<const std::byte> plain, std::byte* out) {
  BeginClose(nonce, with);
  Update(plain, out);
  std::ranges::copy(EndClose(), out + plain.size());
}

bool Cipher::Open(uint32_t nonce, std::span<const std::byte> with, std::span<std::byte> sealed) {
  const auto bytes = sealed.first(sealed.size() - kTagBytes);
  Tag tag{};
  std::ranges::copy(sealed.last(kTagBytes), tag.begin());
  BeginOpen(nonce, with);
  Update(bytes, bytes.data());
  return EndOpen(tag);
}

Salt RandomSalt() {
  Salt salt{};
  FillRandom({reinterpret_cast<uint8_t*>(salt.data()), salt.size()});
  return salt;
}

SecretKey SaltedKey(KeyBytes key, std::string_view use, const Salt& salt) {
  Blake2b<kKeyBytes> hash(key);
  hash.Update(use);
  hash.Update(salt);
  auto digest = hash.Finish();
  SecretKey made = SecretKey::Copy(digest);
  Wipe(std::span<uint8_t>(digest));
  return made;
}

namespace {
constexpr std::string_view kBoxUse = "quire box";
}  // namespace

void CloseBox(KeyBytes key, std::span<const std::byte> with, std::span<const std::byte> plain,
              std::span<std::byte> out) {
  QUIRE_CHECK(out.size() == plain.size() + kBoxBytes);
  const Salt salt = RandomSalt();
  std::ranges::copy(salt, out.begin());
  Cipher(SaltedKey(key, kBoxUse, salt).bytes()).Close(0, with, plain, &out[kSaltBytes]);
}

bool OpenBox(KeyBytes key, std::span<const std::byte> with, std::span<const std::byte> box,
             std::span<std::byte> out) {
  QUIRE_CHECK(box.size() >= kBoxBytes && out.size() == box.size() - kBoxBytes);
  Salt salt{};
  std::ranges::copy(box.first(kSaltBytes), salt.begin());
  Tag tag{};
  std::ranges::copy(box.last(kTagBytes), tag.begin());
  Cipher cipher(SaltedKey(key, kBoxUse, salt).bytes());
  cipher.BeginOpen(0, with);
  cipher.Update(box.subspan(kSaltBytes, out.size()), out.data());
  if (cipher.EndOpen(tag)) return true;
  Wipe(out);
  return false;
}

void Disguise(KeyBytes key, std::span<const uint8_t> from, std::span<uint8_t> to) {
  RunBlocks(key, from, to, /*disguises=*/1);
}

void Reveal(KeyBytes key, std::span<const uint8_t> from, std::span<uint8_t> to) {
  RunBlocks(key, from, to, /*disguises=*/0);
}

}  // namespace quire::keys
