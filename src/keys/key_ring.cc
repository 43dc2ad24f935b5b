#include "keys/key_ring.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/wiped_vector.h"
#include "keys/cipher.h"

namespace quire::keys {
namespace {

constexpr size_t kOwnBytes = 2 * kKeyBytes;  // the key of names, then the one that wraps

std::span<const std::byte> BytesOf(KeyBytes key) { return std::as_bytes(key); }

std::array<std::byte, 16> CheckOf(KeyBytes names, KeyBytes wraps) {
  Blake2b<16> hash(names);
  hash.Update("quire keys check");
  hash.Update(BytesOf(wraps));
  const auto digest = hash.Finish();
  std::array<std::byte, 16> check{};
  std::memcpy(check.data(), digest.data(), digest.size());
  return check;
}

// What a data key is wrapped with, so that no other one can take its place.
std::array<std::byte, 20> PlaceOf(const OwnerId& owner, uint32_t number) {
  std::array<std::byte, 20> place{};
  std::memcpy(place.data(), owner.data(), owner.size());
  std::memcpy(&place[owner.size()], &number, sizeof(number));
  return place;
}

std::string_view NameOfKind(WrapKind kind) {
  return kind == WrapKind::kKey ? "a key (--keys FILE)" : "a command (--keys-command CMD)";
}

}  // namespace

KeyRing::KeyRing(Files& files, Options options) : files_(files), options_(std::move(options)) {}

Result<std::unique_ptr<KeyRing>> KeyRing::Open(Files& files, const Options& options,
                                               const StoreKeys& keys) {
  QUIRE_ASSIGN(const auto source, OpenKeySource(keys));
  std::unique_ptr<KeyRing> ring(new KeyRing(files, options));
  const KeyCopies copies = ReadKeys(files, options.directory);
  if (copies.newer) {
    return Fail(ErrorCode::kUnsupported,
                fmt::format("store {}: a newer version wrote its keys", options.directory));
  }
  const KeyTable* const table = copies.newest();
  // What a crash left of keys that were being made has sealed nothing yet.
  const bool was_cut_off = table == nullptr && options.without == WithoutKeys::kMake;
  if (!copies.any() || was_cut_off) {
    if (options.without == WithoutKeys::kRefuse) {
      return Fail(ErrorCode::kInvalidArgument,
                  fmt::format("store {}: it is not encrypted, and what it has stays so: open it "
                              "without keys, or give another directory",
                              options.directory));
    }
    QUIRE_TRY(ring->Make(*source));
    return ring;
  }
  if (table == nullptr) {
    return Fail(ErrorCode::kCorrupt,
                fmt::format("store {}: {} and {} are damaged: put one of them back from a copy; "
                            "without them nothing in the store can be read, and the directory may "
                            "be removed",
                            options.directory, kKeyNames[0], kKeyNames[1]));
  }
  QUIRE_TRY(ring->Take(*table, *source));
  // A process that was killed may have written one copy alone, or not have synced it.
  QUIRE_TRY(ring->Save());
  return ring;
}

Result<void> KeyRing::Make(KeySource& source) {
  names_ = SecretKey::Random();
  wraps_ = SecretKey::Random();
  QUIRE_TRY(WrapOwn(source));
  ++version_;
  return Save();
}

Result<void> KeyRing::Take(const KeyTable& table, KeySource& source) {
  if (table.kind != source.kind()) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("store {}: its keys are wrapped by {}, not by {}", options_.directory,
                            NameOfKind(table.kind), NameOfKind(source.kind())));
  }
  if (table.id != source.id()) {
    return Fail(
        ErrorCode::kInvalidArgument,
        fmt::format("store {}: {} is not the key that it was made with (its id is {}, that "
                    "of the store's key {}): give that one; nothing was changed",
                    options_.directory, source.Describe(), ToHex(source.id()), ToHex(table.id)));
  }
  WipedVector<std::byte> own(kOwnBytes);
  if (auto unwrapped = source.Unwrap(table.wrapped, own); !unwrapped) {
    return Fail(unwrapped.error().code, fmt::format("store {}: its keys: {}", options_.directory,
                                                    unwrapped.error().message));
  }
  std::memcpy(names_.writable().data(), own.data(), kKeyBytes);
  std::memcpy(wraps_.writable().data(), &own[kKeyBytes], kKeyBytes);
  if (CheckOf(names_.bytes(), wraps_.bytes()) != table.check) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("store {}: {} unwraps other keys than it was made with: give the one "
                            "of this store; nothing was changed",
                            options_.directory, source.Describe()));
  }
  own_ = table;
  own_.keys.clear();
  for (const WrappedKey& wrapped : table.keys) {
    SecretKey key;
    const auto to = std::as_writable_bytes(std::span<uint8_t>(key.writable()));
    if (!OpenBox(wraps_.bytes(), PlaceOf(wrapped.owner, wrapped.number), wrapped.wrapped, to)) {
      LogWarn("store {}: a wrapped key was changed; what it sealed is lost", options_.directory);
      continue;
    }
    held_[wrapped.owner].push_back({.number = wrapped.number,
                                    .until = wrapped.until,
                                    .key = std::make_shared<const SecretKey>(std::move(key)),
                                    .wrapped = wrapped,
                                    .is_durable = true});
  }
  version_ = table.version;
  return {};
}

Result<void> KeyRing::WrapOwn(KeySource& source) {
  WipedVector<std::byte> own(kOwnBytes);
  std::memcpy(own.data(), names_.bytes().data(), kKeyBytes);
  std::memcpy(&own[kKeyBytes], wraps_.bytes().data(), kKeyBytes);
  QUIRE_ASSIGN(auto wrapped, source.Wrap(own));
  own_.kind = source.kind();
  own_.id = source.id();
  own_.check = CheckOf(names_.bytes(), wraps_.bytes());
  own_.wrapped = std::move(wrapped);
  return {};
}

Result<void> KeyRing::Rewrap(const StoreKeys& keys) {
  QUIRE_ASSIGN(const auto source, OpenKeySource(keys));
  SecretKey before = std::exchange(wraps_, SecretKey::Random());
  if (auto wrapped = WrapOwn(*source); !wrapped) {
    wraps_ = std::move(before);
    return wrapped;
  }
  for (auto& [owner, all] : held_) {
    for (Held& held : all) held.wrapped = Wrapped(owner, held);
  }
  ++version_;
  return Save();
}

OwnerId KeyRing::NameOf(const OwnerId& owner) const {
  if (owner == OwnerId{}) return owner;
  OwnerId name{};
  Disguise(names_.bytes(), owner, name);
  return name;
}

OwnerId KeyRing::OwnerOf(const OwnerId& name) const {
  if (name == OwnerId{}) return name;
  OwnerId owner{};
  Reveal(names_.bytes(), name, owner);
  return owner;
}

void KeyRing::NamesOf(std::span<const Digest> keys, std::span<Digest> out) const {
  static_assert(sizeof(Digest) == 32);
  if (keys.empty()) return;
  Disguise(names_.bytes(), {keys.front().data(), keys.size_bytes()},
           {out.front().data(), out.size_bytes()});
}

Digest KeyRing::NameOf(const Digest& key) const {
  Digest name{};
  Disguise(names_.bytes(), key, name);
  return name;
}

Digest KeyRing::KeyOf(const Digest& name) const {
  Digest key{};
  Reveal(names_.bytes(), name, key);
  return key;
}

Digest KeyRing::Hash(std::string_view use, std::span<const std::byte> bytes) const {
  Blake2b<32> hash(names_.bytes());
  hash.UpdateNumber(uint64_t{use.size()});
  hash.Update(use);
  hash.Update(bytes);
  return hash.Finish();
}

Digest KeyRing::domain_secret() const { return Derive(names_.bytes(), "quire domain secret"); }

WrappedKey KeyRing::Wrapped(const OwnerId& owner, const Held& held) const {
  WrappedKey wrapped = {.owner = owner, .number = held.number, .until = held.until};
  CloseBox(wraps_.bytes(), PlaceOf(owner, held.number), BytesOf(held.key->bytes()),
           wrapped.wrapped);
  return wrapped;
}

KeyRing::Held KeyRing::NewKey(const OwnerId& owner) {
  Held held = {.number = own_.next_number++,
               .key = std::make_shared<const SecretKey>(SecretKey::Random())};
  held.wrapped = Wrapped(owner, held);
  return held;
}

Result<DataKey> KeyRing::KeyFor(const OwnerId& owner) {
  const auto found = held_.find(owner);
  if (found != held_.end()) {
    const Held& held = found->second.back();
    if (!held.is_durable) QUIRE_TRY(Save());
    return DataKey{held.number, held.key};
  }
  if (keys() >= options_.keys_max) {
    return Fail(ErrorCode::kNoSpace,
                fmt::format("store {}: it has {} keys of tenants, as many as its cap lets it",
                            options_.directory, keys()));
  }
  held_[owner].push_back(NewKey(owner));
  ++version_;
  QUIRE_TRY(Save());
  return KeyFor(owner);
}

std::shared_ptr<const SecretKey> KeyRing::Find(const OwnerId& owner, uint32_t number) const {
  const auto found = held_.find(owner);
  if (found == held_.end()) return nullptr;
  for (const Held& held : found->second) {
    if (held.number == number) return held.key;
  }
  return nullptr;
}

std::vector<OwnerId> KeyRing::owners() const {
  std::vector<OwnerId> owners;
  for (const auto& [owner, held] : held_) owners.push_back(owner);
  return owners;
}

uint64_t KeyRing::keys() const {
  uint64_t keys = 0;
  for (const auto& [owner, held] : held_) keys += held.size();
  return keys;
}

Result<void> KeyRing::Destroy(const OwnerId& owner) {
  if (held_.erase(owner) == 0 && is_saved()) return {};
  ++version_;
  return Save();
}

Result<void> KeyRing::Renew(const OwnerId& owner, uint64_t generation) {
  const auto found = held_.find(owner);
  if (found == held_.end()) return {};  // its first key will be a new one
  found->second.back().until = std::max<uint64_t>(generation, 1);
  found->second.back().wrapped.until = found->second.back().until;
  found->second.push_back(NewKey(owner));
  ++version_;
  return Save();
}

Result<void> KeyRing::Retire(const OwnerId& owner, uint64_t generation_min) {
  const auto found = held_.find(owner);
  if (found == held_.end()) return {};
  const auto gone = std::erase_if(found->second, [&](const Held& held) {
    return held.until != 0 && held.until < generation_min;
  });
  if (gone == 0) return {};
  ++version_;
  return Save();
}

uint64_t KeyRing::OldUntil(const OwnerId& owner) const {
  const auto found = held_.find(owner);
  uint64_t until = 0;
  if (found == held_.end()) return until;
  for (const Held& held : found->second) until = std::max(until, held.until);
  return until;
}

KeyTable KeyRing::Table() const {
  KeyTable table = own_;
  table.version = version_;
  for (const auto& [owner, all] : held_) {
    for (const Held& held : all) table.keys.push_back(held.wrapped);
  }
  return table;
}

Result<void> KeyRing::Save() {
  const KeyTable table = Table();
  for (size_t copy = 0; copy < kKeyNames.size(); ++copy) {
    if (auto written = WriteKeys(files_, options_.directory, copy, table); !written) {
      return Fail(written.error().code, fmt::format("store {}: its keys cannot be written: {}",
                                                    options_.directory, written.error().message));
    }
  }
  saved_version_ = table.version;
  for (auto& [owner, all] : held_) all.back().is_durable = true;
  return {};
}

}  // namespace quire::keys
