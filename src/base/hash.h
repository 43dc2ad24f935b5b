// Two hashes: BLAKE2b for identities (tokens, headers, logits), CRC32C for payloads.
#ifndef QUIRE_BASE_HASH_H_
#define QUIRE_BASE_HASH_H_

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

namespace quire {

/// Bytes that cannot be guessed.
void FillRandom(std::span<uint8_t> bytes);

/// Lower-case hexadecimal, two digits per byte.
std::string ToHex(std::span<const uint8_t> bytes);

namespace internal {

// The part of Blake2b that does not depend on the digest's length. 384 bytes of libsodium's state.
class Blake2bState {
 public:
  Blake2bState(size_t digest_bytes, std::span<const uint8_t> key);
  ~Blake2bState();  // wipes the state, which knows the key
  Blake2bState(const Blake2bState&) = default;
  Blake2bState& operator=(const Blake2bState&) = default;

  void Update(std::span<const std::byte> bytes);
  void Finish(std::span<uint8_t> digest);

 private:
  alignas(64) std::byte state_[384];
};

}  // namespace internal

/// BLAKE2b over a stream of parts, plain or keyed. A copy continues on its own, so a common prefix
/// can be hashed once.
///
/// Units:   kDigestBytes in 16..64; key 0..64 bytes (0: plain hash)
/// Threads: one object on one thread at a time
/// Cost:    0.85 GB/s: for identities, never for payloads
/// Source:  RFC 7693
template <size_t kDigestBytes>
class Blake2b {
  static_assert(kDigestBytes >= 16 && kDigestBytes <= 64);

 public:
  using Digest = std::array<uint8_t, kDigestBytes>;

  explicit Blake2b(std::span<const uint8_t> key = {}) : state_(kDigestBytes, key) {}

  /// Appends bytes. How a stream is cut into parts does not matter: write lengths yourself.
  void Update(std::span<const std::byte> bytes) { state_.Update(bytes); }
  void Update(std::string_view text) { state_.Update(std::as_bytes(std::span(text))); }

  /// Appends a number as its little-endian bytes.
  template <typename Number>
    requires std::integral<Number> || std::is_enum_v<Number>
  void UpdateNumber(Number number) {
    state_.Update(std::as_bytes(std::span(&number, 1)));
  }

  /// The digest; the object must not be used afterwards.
  Digest Finish() {
    Digest digest;
    state_.Finish(digest);
    return digest;
  }

 private:
  internal::Blake2bState state_;
};

/// CRC32C (Castagnoli) of bytes, or of what `crc` already covers followed by bytes:
/// Crc32c(b, Crc32c(a)) == Crc32c(ab).
///
/// Cost: 16 to 64 GB/s
uint32_t Crc32c(std::span<const std::byte> bytes, uint32_t crc = 0);

/// The checksum of stretches that follow one another, from the checksum of each.
///
/// Cost: 32 steps a stretch as long as the one before it, else as many for each bit of its length
class Crc32cJoiner {
 public:
  void Add(uint32_t crc, uint64_t bytes);
  uint32_t value() const { return crc_; }

 private:
  uint32_t crc_ = 0;
  uint64_t shift_bytes_ = 0;
  uint32_t shift_ = 0;  // what the bytes of the last stretch did to the checksum before it
};

}  // namespace quire

#endif  // QUIRE_BASE_HASH_H_
