// The wrapped keys of a store as bytes, in two copies (docs/encryption.md, "Files").
#ifndef QUIRE_KEYS_KEY_TABLE_H_
#define QUIRE_KEYS_KEY_TABLE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "env/files.h"
#include "keys/cipher.h"
#include "keys/key_source.h"
#include "quire/error.h"

namespace quire::keys {

inline constexpr std::array<std::string_view, 2> kKeyNames = {"KEYS-0", "KEYS-1"};
inline constexpr uint32_t kKeyTableVersion = 1;

/// Of a tenant or a domain, under a name that says nothing.
using OwnerId = std::array<uint8_t, 16>;

/// A data key as it is kept.
struct WrappedKey {
  OwnerId owner{};
  uint32_t number = 0;  // given once in the life of a store
  // What is written in segments of a later generation has a newer key; 0: this is the owner's key
  // now.
  uint64_t until = 0;
  std::array<std::byte, kKeyBytes + kBoxBytes> wrapped{};

  bool operator==(const WrappedKey&) const = default;
};

struct KeyTable {
  uint64_t version = 0;  // of the contents
  WrapKind kind = WrapKind::kKey;
  KeyId id{};                         // of the key that wraps
  std::array<std::byte, 16> check{};  // of what is wrapped
  std::vector<std::byte> wrapped{};   // the store's own keys
  uint32_t next_number = 1;
  std::vector<WrappedKey> keys{};  // by owner, then number

  bool operator==(const KeyTable&) const = default;
};

/// Most bytes that both copies have together with so many keys.
uint64_t KeyFileBytesMax(uint64_t keys);
/// Most keys that a store with a cap keeps: half a percent of it, by and large.
uint64_t KeysMax(uint64_t bytes_cap);

std::vector<std::byte> EncodeKeys(const KeyTable& table);
/// Errors: kCorrupt; kUnsupported a newer version
Result<KeyTable> DecodeKeys(std::span<const std::byte> bytes);

/// Both copies, as far as they can be read.
struct KeyCopies {
  std::array<bool, 2> there{};
  std::array<std::optional<KeyTable>, 2> tables{};
  bool newer = false;  // one was written by a newer version

  bool any() const { return there[0] || there[1]; }
  /// The one that counts; null: none is whole.
  const KeyTable* newest() const;
  /// Copies that are damaged, missing or behind.
  uint64_t damaged() const;
};
KeyCopies ReadKeys(Files& files, const std::string& directory);

/// Writes a copy over what it was, so that the bytes of keys that are gone are gone, and syncs it.
/// A file that takes no bytes is replaced by a new one.
///
/// Errors: kNoSpace, kIo
Result<void> WriteKeys(Files& files, const std::string& directory, size_t copy,
                       const KeyTable& table);

}  // namespace quire::keys

#endif  // QUIRE_KEYS_KEY_TABLE_H_
