// The caller: which tenant a key stands for, and what its holder may see.
#ifndef QUIRE_SERVE_HTTP_CALLER_H_
#define QUIRE_SERVE_HTTP_CALLER_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/hash.h"
#include "quire/cache.h"
#include "quire/error.h"

namespace quire::serve::http {

/// One party of the keys file.
struct Tenant {
  TenantOptions cache{};            // name, quotas, floors, domain, time to live
  double weight = 1;                // of the tokens that are computed
  bool is_operator = false;         // its keys see the whole, not the tenant's part alone
  bool names_floor = false;         // cache.floor_bytes is what the file says
  std::vector<std::string> keys{};  // secrets; KeyTable keeps digests only

  /// What a member of a domain caches is the domain's, and that has the share.
  bool has_fair_share() const { return !names_floor && cache.domain.empty(); }
};

struct KeysFile {
  std::vector<std::string> domains{};  // shared ones, that tenants name
  std::vector<Tenant> tenants{};
};

/// Reads a keys file (TOML, docs/operations.md): [[tenant]] tables with name, keys, quota, floor,
/// ttl_s, domain, weight and operator.
///
/// Errors: kCorrupt names the file, the line and what is wrong, never a key; those of reading it
Result<KeysFile> ReadKeysFile(const std::string& path);
Result<KeysFile> ParseKeysFile(std::string_view text, const std::string& path);

/// The floor of each domain, and of each tenant that names none: an equal part of half of the
/// cache, less the floors that are named.
uint64_t FairShareBytes(const KeysFile& keys, uint64_t cache_bytes);

/// Of callers at the operator's listener; no tenant of a keys file has it.
inline constexpr std::string_view kOperatorName = "operator";

struct Caller {
  TenantId tenant = kDefaultTenant;
  std::string name = "default";
  bool sees_all = false;
  bool is_operator = false;  // by a key, or through the operator's listener
};

/// Keys as digests under a secret of this process.
///
/// Threads: any number at once, after the last Add
class KeyTable {
 public:
  KeyTable();

  void Add(std::string_view key, Caller caller);
  bool empty() const { return entries_.empty(); }
  /// Compares with every key in constant time; none: no tenant has this one.
  std::optional<Caller> Find(std::string_view key) const;

 private:
  using Digest = Blake2b<32>::Digest;
  struct Entry {
    Digest digest;
    Caller caller;
  };
  Digest DigestOf(std::string_view key) const;

  std::array<uint8_t, 32> secret_{};
  std::vector<Entry> entries_;
};

}  // namespace quire::serve::http

#endif  // QUIRE_SERVE_HTTP_CALLER_H_
