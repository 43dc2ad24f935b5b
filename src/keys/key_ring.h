// The keys of one encrypted directory: made with it, kept there only wrapped, and gone for good
// when their owner is erased. docs/encryption.md has the hierarchy.
#ifndef QUIRE_KEYS_KEY_RING_H_
#define QUIRE_KEYS_KEY_RING_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "env/files.h"
#include "keys/key_source.h"
#include "keys/key_table.h"
#include "keys/secret_key.h"
#include "quire/error.h"
#include "quire/identity.h"

namespace quire::keys {

/// What an owner's bytes are sealed with.
struct DataKey {
  uint32_t number = 0;
  std::shared_ptr<const SecretKey> key{};
};

/// Whether keys are to be made where a directory has none.
enum class WithoutKeys : uint8_t { kMake, kRefuse };

/// The keys of a directory. Each owner (a tenant, a domain, what belongs to no tenant) has a random
/// data key, which is durable before anything is sealed with it.
///
/// Threads:  one at a time; names and domain_secret any thread
/// Lifetime: `files` must outlive it
class KeyRing {
 public:
  struct Options {
    std::string directory{};
    uint64_t keys_max = 65'536;
    WithoutKeys without = WithoutKeys::kMake;
  };
  /// Opens the keys that a directory has, and makes them where it has none. The caller holds the
  /// directory's lock.
  ///
  /// Errors: kInvalidArgument another key wrapped them, or `without`; kCorrupt both copies are
  ///         damaged; kUnsupported a newer version; kNotFound, kIo, kDeadline of the caller's key;
  ///         kNoSpace; kIo
  static Result<std::unique_ptr<KeyRing>> Open(Files& files, const Options& options,
                                               const StoreKeys& keys);

  // Names that say nothing, and the way back. What belongs to no tenant (zeros) stays so.

  OwnerId NameOf(const OwnerId& owner) const;
  OwnerId OwnerOf(const OwnerId& name) const;
  void NamesOf(std::span<const Digest> keys, std::span<Digest> out) const;
  Digest NameOf(const Digest& key) const;
  Digest KeyOf(const Digest& name) const;
  /// A digest of bytes that says nothing about them.
  Digest Hash(std::string_view use, std::span<const std::byte> bytes) const;
  /// For Domain::secret.
  Digest domain_secret() const;

  // Data keys. Owners are called by their names.

  /// An owner's key; a new one where it has none, durable when this returns.
  /// Errors: kNoSpace keys_max; kNoSpace, kIo the disk
  Result<DataKey> KeyFor(const OwnerId& owner);
  /// What this number was given to. Null: the owner has no such key.
  std::shared_ptr<const SecretKey> Find(const OwnerId& owner, uint32_t number) const;
  bool Has(const OwnerId& owner) const { return held_.contains(owner); }
  std::vector<OwnerId> owners() const;
  uint64_t keys() const;

  /// Forgets all keys of an owner, at once here and for good when it returns without an error: what
  /// they sealed cannot be opened any more, by any key. After an error Save tries it again.
  Result<void> Destroy(const OwnerId& owner);
  /// Everything is durable, in both copies.
  bool is_saved() const { return saved_version_ == version_; }
  Result<void> Save();

  /// From now on an owner has a new key. The others go with Retire: what is written in segments up
  /// to this generation has them.
  Result<void> Renew(const OwnerId& owner, uint64_t generation);
  /// Destroys an owner's old keys of which nothing is left in segments from this generation on.
  Result<void> Retire(const OwnerId& owner, uint64_t generation_min);
  bool HasOld(const OwnerId& owner) const { return OldUntil(owner) != 0; }
  /// The generation up to which old keys of an owner sealed something; 0: it has none.
  uint64_t OldUntil(const OwnerId& owner) const;

  /// Another key of the caller's wraps everything from now on. The store's own wrapping key is a
  /// new one too, so the former key of the caller's opens nothing that is kept from now on.
  Result<void> Rewrap(const StoreKeys& keys);

 private:
  struct Held {
    uint32_t number = 0;
    uint64_t until = 0;
    std::shared_ptr<const SecretKey> key{};
    WrappedKey wrapped{};
    bool is_durable = false;
  };

  KeyRing(Files& files, Options options);
  Result<void> Make(KeySource& source);
  Result<void> Take(const KeyTable& table, KeySource& source);
  Result<void> WrapOwn(KeySource& source);
  WrappedKey Wrapped(const OwnerId& owner, const Held& held) const;
  Held NewKey(const OwnerId& owner);
  KeyTable Table() const;

  Files& files_;
  const Options options_;
  SecretKey names_;                            // of names, and of what follows from them
  SecretKey wraps_;                            // wraps data keys
  KeyTable own_{};                             // what the table says about these; no data keys
  std::map<OwnerId, std::vector<Held>> held_;  // the newest key last
  uint64_t version_ = 0;
  uint64_t saved_version_ = 0;
};

}  // namespace quire::keys

#endif  // QUIRE_KEYS_KEY_RING_H_
