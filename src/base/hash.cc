#include "base/hash.h"

#include <isa-l/crc.h>
#include <sodium.h>

#include <algorithm>
#include <bit>

#include "base/check.h"

namespace quire {

static_assert(std::endian::native == std::endian::little, "digests hash little-endian numbers");

void FillRandom(std::span<uint8_t> bytes) {
  QUIRE_CHECK(sodium_init() >= 0);
  randombytes_buf(bytes.data(), bytes.size());
}

std::string ToHex(std::span<const uint8_t> bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  text.reserve(bytes.size() * 2);
  for (const uint8_t byte : bytes) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

namespace internal {
namespace {

crypto_generichash_state* Sodium(std::byte* state) {
  return reinterpret_cast<crypto_generichash_state*>(state);
}

}  // namespace

Blake2bState::Blake2bState(size_t digest_bytes, std::span<const uint8_t> key) {
  static_assert(sizeof(crypto_generichash_state) <= sizeof(state_));
  static_assert(alignof(crypto_generichash_state) <= 64);
  static const int initialized = sodium_init();  // picks the SIMD code; safe to race
  QUIRE_CHECK(initialized >= 0);
  QUIRE_CHECK(key.size() <= crypto_generichash_KEYBYTES_MAX);
  QUIRE_CHECK(crypto_generichash_init(Sodium(state_), key.data(), key.size(), digest_bytes) == 0);
}

Blake2bState::~Blake2bState() { sodium_memzero(state_, sizeof(state_)); }

void Blake2bState::Update(std::span<const std::byte> bytes) {
  QUIRE_CHECK(crypto_generichash_update(Sodium(state_),
                                        reinterpret_cast<const uint8_t*>(bytes.data()),
                                        bytes.size()) == 0);
}

void Blake2bState::Finish(std::span<uint8_t> digest) {
  QUIRE_CHECK(crypto_generichash_final(Sodium(state_), digest.data(), digest.size()) == 0);
}

}  // namespace internal

namespace {

// Checksums are polynomials over GF(2), their highest power in the lowest bit.
constexpr uint32_t kOne = uint32_t{1} << 31;
constexpr uint32_t kCastagnoli = 0x82f63b78;  // RFC 3720, appendix B.4, reflected

constexpr uint32_t MultiplyModulo(uint32_t a, uint32_t b) {
  uint32_t product = 0;
  for (uint32_t power = 0; power < 32; ++power) {
    product ^= b & (0 - (a >> 31));
    a <<= 1;
    b = (b >> 1) ^ (kCastagnoli & (0 - (b & 1)));
  }
  return product;
}

// x to the number of bits in so many bytes.
constexpr uint32_t ShiftOf(uint64_t bytes) {
  uint32_t shift = kOne;
  uint32_t square = kOne >> 8;  // one byte
  for (; bytes > 0; bytes >>= 1) {
    if ((bytes & 1) != 0) shift = MultiplyModulo(square, shift);
    square = MultiplyModulo(square, square);
  }
  return shift;
}

}  // namespace

void Crc32cJoiner::Add(uint32_t crc, uint64_t bytes) {
  if (bytes != shift_bytes_ || shift_ == 0) {
    shift_ = ShiftOf(bytes);
    shift_bytes_ = bytes;
  }
  crc_ = MultiplyModulo(shift_, crc_) ^ crc;
}

uint32_t Crc32c(std::span<const std::byte> bytes, uint32_t crc) {
  constexpr size_t kBytesPerCall = size_t{1} << 30;  // the library takes an int
  uint32_t inverted = ~crc;
  while (!bytes.empty()) {
    const std::span<const std::byte> chunk = bytes.first(std::min(bytes.size(), kBytesPerCall));
    // The library only reads; its C signature lacks the const.
    auto* data = const_cast<uint8_t*>(reinterpret_cast<const uint8_t*>(chunk.data()));
    inverted = crc32_iscsi(data, static_cast<int>(chunk.size()), inverted);
    bytes = bytes.subspan(chunk.size());
  }
  return ~inverted;
}

}  // namespace quire
