// The ciphers of what leaves this process: AES-256-GCM, keys that follow from others, and names
// that say nothing.
#ifndef QUIRE_KEYS_CIPHER_H_
#define QUIRE_KEYS_CIPHER_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "keys/secret_key.h"
#include "keys/wide_gcm.h"
#include "quire/identity.h"

struct evp_cipher_ctx_st;

namespace quire::keys {

/// A key for one use that follows from another one (HKDF-SHA256).
Digest Derive(KeyBytes from, std::string_view use, std::span<const std::byte> salt = {});

/// AES-256-GCM under one key; the nonce is a number that is used once under it.
///
/// Threads: one at a time
/// Cost:    5 GB/s, with WideGcm 10 to 18; a key of its own at most about a microsecond, but the
///          first one of a process loads the library
class Cipher {
 public:
  explicit Cipher(KeyBytes key) : Cipher(key, WideGcm::Create(key)) {}
  /// By `wide`, or by OpenSSL where that is null.
  Cipher(KeyBytes key, std::unique_ptr<WideGcm> wide);
  ~Cipher();
  Cipher(const Cipher&) = delete;
  Cipher& operator=(const Cipher&) = delete;

  /// `out` has room for the bytes and the tag behind them.
  void Close(uint32_t nonce, std::span<const std::byte> with, std::span<const std::byte> plain,
             std::byte* out);
  /// `sealed` ends with the tag; the plain bytes take the place of the others. False: it was not
  /// sealed so, and what is there is of no use.
  bool Open(uint32_t nonce, std::span<const std::byte> with, std::span<std::byte> sealed);

  // The same in pieces: a beginning, the bytes in their order, an end.

  void BeginClose(uint32_t nonce, std::span<const std::byte> with) { Begin(nonce, with, true); }
  void BeginOpen(uint32_t nonce, std::span<const std::byte> with) { Begin(nonce, with, false); }
  /// `to` may be where the bytes are.
  void Update(std::span<const std::byte> from, std::byte* to);
  Tag EndClose();
  bool EndOpen(const Tag& tag);

 private:
  void Begin(uint32_t number, std::span<const std::byte> with, bool closes);

  const std::unique_ptr<WideGcm> wide_;
  const std::unique_ptr<evp_cipher_ctx_st, void (*)(evp_cipher_ctx_st*)> context_;  // if no wide_
};

/// A few bytes under a key that is used for many: 24 random bytes, from which their own key
/// follows, then the sealed ones, then the tag. Nothing is repeated but by a chance of 2^-96.
inline constexpr size_t kSaltBytes = 24;
inline constexpr size_t kBoxBytes = kSaltBytes + kTagBytes;
using Salt = std::array<std::byte, kSaltBytes>;

Salt RandomSalt();
/// The key of what a salt was drawn for.
SecretKey SaltedKey(KeyBytes key, std::string_view use, const Salt& salt);
/// out [plain + kBoxBytes].
void CloseBox(KeyBytes key, std::span<const std::byte> with, std::span<const std::byte> plain,
              std::span<std::byte> out);
/// out [box - kBoxBytes]. False: it was not sealed so; `out` holds zeros.
bool OpenBox(KeyBytes key, std::span<const std::byte> with, std::span<const std::byte> box,
             std::span<std::byte> out);

/// Maps blocks of 16 bytes one to one onto others (AES-256): without the key nothing tells which.
/// Shape: from, to [16 n]
void Disguise(KeyBytes key, std::span<const uint8_t> from, std::span<uint8_t> to);
/// The way back.
void Reveal(KeyBytes key, std::span<const uint8_t> from, std::span<uint8_t> to);

}  // namespace quire::keys

#endif  // QUIRE_KEYS_CIPHER_H_
