// The caller's key, which wraps the keys of a store: a file, bytes, or a command that asks a key
// management service.
#ifndef QUIRE_KEYS_KEY_SOURCE_H_
#define QUIRE_KEYS_KEY_SOURCE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "keys/secret_key.h"
#include "quire/error.h"
#include "quire/store.h"

namespace quire::keys {

/// What a wrapped key was wrapped by. The numbers are frozen: they are in files.
enum class WrapKind : uint32_t {
  kKey = 1,      // AES-256-GCM under 32 bytes
  kCommand = 2,  // a command of the operator's
};

/// Tells a key from another one and says nothing about it.
using KeyId = std::array<uint8_t, 8>;

/// Most bytes of what a command wraps 64 bytes into.
inline constexpr uint64_t kWrappedBytesMax = 8 << 10;

/// Threads: one at a time
class KeySource {
 public:
  virtual ~KeySource() = default;

  virtual WrapKind kind() const = 0;
  /// Of the key; zero where a command has it.
  virtual KeyId id() const = 0;
  /// For messages: never the key.
  virtual std::string Describe() const = 0;

  /// Errors: kIo, kDeadline of a command
  virtual Result<std::vector<std::byte>> Wrap(std::span<const std::byte> secret) = 0;
  /// Errors: kInvalidArgument it was not wrapped by this key; kIo, kDeadline of a command
  virtual Result<void> Unwrap(std::span<const std::byte> wrapped, std::span<std::byte> secret) = 0;
};

/// Errors: kInvalidArgument none or more than one is given, no key of 32 bytes, or a file that
///         others than its owner may read; kNotFound, kIo the file
Result<std::unique_ptr<KeySource>> OpenKeySource(const StoreKeys& keys);

/// Reads a key file: 32 bytes, or 64 hexadecimal digits. `what` names the key in messages.
///
/// Errors: kInvalidArgument it is neither; kNotFound, kIo
Result<SecretKey> ReadKeyFile(const std::string& path, std::string_view what);

}  // namespace quire::keys

#endif  // QUIRE_KEYS_KEY_SOURCE_H_
