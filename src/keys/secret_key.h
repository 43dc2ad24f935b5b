// Keys in memory that the system neither swaps nor dumps, and that is overwritten when they go.
#ifndef QUIRE_KEYS_SECRET_KEY_H_
#define QUIRE_KEYS_SECRET_KEY_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

namespace quire::keys {

inline constexpr size_t kKeyBytes = 32;
using KeyBytes = std::span<const uint8_t, kKeyBytes>;

/// 32 bytes in a page of its own kind: locked where the process may lock so much, left out of core
/// dumps (MADV_DONTDUMP), between two pages that fault.
///
/// Threads: any; one object one at a time
class SecretKey {
 public:
  /// Zeros. Throws std::bad_alloc.
  SecretKey();
  /// Throws std::bad_alloc.
  static SecretKey Random();
  static SecretKey Copy(KeyBytes bytes);

  SecretKey(SecretKey&& other) noexcept : slot_(std::exchange(other.slot_, nullptr)) {}
  SecretKey& operator=(SecretKey&& other) noexcept {
    std::swap(slot_, other.slot_);
    return *this;
  }
  ~SecretKey();

  KeyBytes bytes() const { return KeyBytes(slot_, kKeyBytes); }
  std::span<uint8_t, kKeyBytes> writable() {
    return std::span<uint8_t, kKeyBytes>(slot_, kKeyBytes);
  }

 private:
  uint8_t* slot_;
};

}  // namespace quire::keys

#endif  // QUIRE_KEYS_SECRET_KEY_H_
