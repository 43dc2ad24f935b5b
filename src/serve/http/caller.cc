#include "serve/http/caller.h"

#include <fmt/format.h>
#include <sodium.h>

#include <algorithm>
#include <set>
#include <utility>

#include "env/file.h"
#include "serve/http/toml_file.h"

namespace quire::serve::http {

namespace {

constexpr uint64_t kKeysFileBytesMax = 4 << 20;
constexpr size_t kKeyBytesMin = 16;
constexpr size_t kKeyBytesMax = 256;
constexpr size_t kTenantsMax = 10'000;

bool IsPrintable(std::string_view text) {
  for (const char each : text) {
    if (each <= ' ' || each > '~') return false;
  }
  return !text.empty();
}

// Names stand in metrics and logs.
Result<std::string> ReadName(TomlTable& table, const std::string& field) {
  QUIRE_ASSIGN(auto name, table.Text(field));
  if (!name) return table.Bad(field, "is missing");
  if (!IsPrintable(*name) || name->size() > 64) {
    return table.Bad(field, "must be 1 to 64 printable characters without spaces");
  }
  return *std::move(name);
}

Result<Tenant> ReadTenant(TomlTable& table) {
  Tenant tenant;
  QUIRE_ASSIGN(tenant.cache.name, ReadName(table, "name"));
  if (tenant.cache.name == kOperatorName || tenant.cache.name == Caller{}.name) {
    return table.Bad("name", fmt::format("'{}' is taken", tenant.cache.name));
  }
  QUIRE_ASSIGN(tenant.keys, table.Texts("keys"));
  if (tenant.keys.empty()) return table.Bad("keys", "has no key");
  for (const std::string& key : tenant.keys) {
    if (!IsPrintable(key) || key.size() < kKeyBytesMin || key.size() > kKeyBytesMax) {
      return table.Bad("keys", fmt::format("has a key that is not {} to {} printable characters "
                                           "without spaces",
                                           kKeyBytesMin, kKeyBytesMax));
    }
  }
  QUIRE_ASSIGN(tenant.cache.quota_bytes, table.Bytes("quota", 0));
  constexpr uint64_t kNotNamed = UINT64_MAX;
  QUIRE_ASSIGN(const uint64_t floor_bytes, table.Bytes("floor", kNotNamed));
  tenant.names_floor = floor_bytes != kNotNamed;
  if (tenant.names_floor) tenant.cache.floor_bytes = floor_bytes;
  QUIRE_ASSIGN(tenant.cache.store_quota_bytes, table.Bytes("store_quota", 0));
  QUIRE_ASSIGN(tenant.cache.store_floor_bytes, table.Bytes("store_floor", 0));
  QUIRE_ASSIGN(const uint64_t ttl_s, table.Count("ttl_s", 0, uint64_t{1} << 32));
  tenant.cache.ttl_us = ttl_s * 1'000'000;
  QUIRE_ASSIGN(auto domain, table.Text("domain"));
  if (domain) tenant.cache.domain = *std::move(domain);
  QUIRE_ASSIGN(tenant.weight, table.Number("weight", 1, 1e-3, 1e6));
  QUIRE_ASSIGN(tenant.is_operator, table.Flag("operator", false));
  QUIRE_TRY(table.NothingElse());
  return tenant;
}

}  // namespace

Result<KeysFile> ParseKeysFile(std::string_view text, const std::string& path) {
  QUIRE_ASSIGN(TomlTable file, ParseToml(text, path));
  KeysFile keys;
  std::set<std::string> names;
  std::set<std::string> seen;
  std::set<std::string> domains;
  QUIRE_ASSIGN(auto tables, file.Tables("tenant"));
  QUIRE_TRY(file.NothingElse());
  if (tables.empty()) return file.Bad("tenant", "is missing: there is no [[tenant]]");
  if (tables.size() > kTenantsMax) {
    return file.Bad("tenant", fmt::format("is there more than {} times", kTenantsMax));
  }
  for (TomlTable& table : tables) {
    QUIRE_ASSIGN(Tenant tenant, ReadTenant(table));
    if (!names.insert(tenant.cache.name).second) {
      return table.Bad("name", fmt::format("'{}' is taken", tenant.cache.name));
    }
    for (const std::string& key : tenant.keys) {
      if (!seen.insert(key).second) return table.Bad("keys", "has a key that is there twice");
    }
    const std::string& domain = tenant.cache.domain;
    if (!domain.empty() && domains.insert(domain).second) keys.domains.push_back(domain);
    keys.tenants.push_back(std::move(tenant));
  }
  for (const std::string& domain : keys.domains) {
    if (names.contains(domain)) {
      return file.Bad("domain", fmt::format("'{}' is the name of a tenant too", domain));
    }
  }
  return keys;
}

Result<KeysFile> ReadKeysFile(const std::string& path) {
  QUIRE_ASSIGN(const std::string text, ReadFile(path, kKeysFileBytesMax));
  return ParseKeysFile(text, path);
}

uint64_t FairShareBytes(const KeysFile& keys, uint64_t cache_bytes) {
  uint64_t left = cache_bytes / 2;
  uint64_t shares = keys.domains.size();
  for (const Tenant& tenant : keys.tenants) {
    left -= std::min(left, tenant.cache.floor_bytes);
    if (tenant.has_fair_share()) ++shares;
  }
  return shares == 0 ? 0 : left / shares;
}

KeyTable::KeyTable() { randombytes_buf(secret_.data(), secret_.size()); }

KeyTable::Digest KeyTable::DigestOf(std::string_view key) const {
  Blake2b<32> hash(secret_);
  hash.Update(key);
  return hash.Finish();
}

void KeyTable::Add(std::string_view key, Caller caller) {
  entries_.push_back({.digest = DigestOf(key), .caller = std::move(caller)});
}

std::optional<Caller> KeyTable::Find(std::string_view key) const {
  const Digest digest = DigestOf(key);
  const Entry* found = nullptr;
  for (const Entry& entry : entries_) {
    // No early end: the time does not say which one it was, nor whether there is one.
    const bool equal = sodium_memcmp(entry.digest.data(), digest.data(), digest.size()) == 0;
    if (equal) found = &entry;
  }
  if (found == nullptr) return std::nullopt;
  return found->caller;
}

}  // namespace quire::serve::http
