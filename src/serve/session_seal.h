// The files of sessions in an encrypted directory (docs/encryption.md, "Files").
#ifndef QUIRE_SERVE_SESSION_SEAL_H_
#define QUIRE_SERVE_SESSION_SEAL_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "keys/key_ring.h"
#include "quire/error.h"

namespace quire::serve {

/// Seals the files of sessions, each with the key of its tenant. Its head and its text are sealed
/// apart, so that one can be read without the other.
///
/// Threads: one at a time
class SessionSeal {
 public:
  /// Whether a file begins as a sealed one does.
  static bool IsSealed(std::span<const std::byte> bytes);
  /// Most bytes of a sealed file that hold so many first bytes of the plain one.
  static uint64_t SealedBytes(uint64_t plain_bytes);

  explicit SessionSeal(std::unique_ptr<keys::KeyRing> keys) : keys_(std::move(keys)) {}

  /// The name of a session's file: without the keys it says nothing.
  std::string FileOf(std::string_view session) const;

  /// Errors: kNoSpace, kIo the tenant has no key yet, and none can be kept
  Result<std::vector<std::byte>> Seal(const std::string& tenant, std::span<const std::byte> plain);
  /// The first bytes of the plain file, as many as a session's head may have, from as much of the
  /// sealed one as SealedBytes says.
  /// Errors: kCorrupt it was changed; kUnsupported a newer version; kNotFound the key is gone: its
  ///         tenant was erased
  Result<std::vector<std::byte>> OpenHead(std::span<const std::byte> sealed) const;
  /// All of it. Errors: as OpenHead
  Result<std::vector<std::byte>> Open(std::span<const std::byte> sealed) const;

  /// Nothing of a tenant can be opened any more, for good. Errors: kIo, kNoSpace not for good yet
  Result<void> Forget(const std::string& tenant);

  /// A file that is there is sealed with this key.
  void Note(std::span<const std::byte> sealed);
  /// Destroys old keys that no file has which was noted.
  Result<void> RetireOthers();
  /// From now on other keys; those of files that are there stay until nothing has them.
  /// `new_keys`: empty: the caller's key stays.
  Result<void> Rotate(const StoreKeys& new_keys, bool renews_data_keys);

  /// Bytes of the plain file.
  static uint64_t PlainBytes(uint64_t sealed_bytes);

 private:
  keys::OwnerId OwnerOf(std::string_view tenant) const;

  std::unique_ptr<keys::KeyRing> keys_;
  std::map<keys::OwnerId, uint32_t> noted_;  // the lowest number of a key
};

}  // namespace quire::serve

#endif  // QUIRE_SERVE_SESSION_SEAL_H_
