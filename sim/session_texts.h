// Texts of sessions that were erased, looked for in everything that the disk holds of sessions.
#ifndef QUIRE_SIM_SESSION_TEXTS_H_
#define QUIRE_SIM_SESSION_TEXTS_H_

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "serve/session_record.h"
#include "sim/session_files.h"

namespace quire::sim {

/// Knows texts by their stretches of a few tokens. No two accounts' prompts have one in common;
/// answers may be alike.
class SessionTexts {
 public:
  /// Learns the texts of a tenant's files.
  void Learn(const SessionFiles& files, std::string_view tenant) {
    tenants_.emplace(tenant);
    for (const auto& [name, contents] : files.Everything()) {
      const auto record = serve::DecodeSession(contents);
      if (!record || record->head.tenant != tenant) continue;
      const std::span<const TokenId> text = record->text;
      for (uint64_t at = 0; at + kStretchTokens <= text.size(); ++at) {
        const auto stretch = text.subspan(at, kStretchTokens);
        if (std::set<TokenId>(stretch.begin(), stretch.end()).size() < kStretchTokens / 2) continue;
        stretches_.emplace(reinterpret_cast<const char*>(stretch.data()), stretch.size_bytes());
      }
    }
  }

  /// A place of one of these texts outside whole sessions of other tenants; empty: there is none.
  std::string Find(const SessionFiles& files) const {
    for (const auto& [name, contents] : files.Everything()) {
      const auto record = serve::DecodeSession(contents);
      if (record && !tenants_.contains(record->head.tenant)) continue;
      const std::string_view bytes(reinterpret_cast<const char*>(contents.data()), contents.size());
      for (uint64_t at = 0; at + kStretchBytes <= bytes.size(); ++at) {
        if (!stretches_.contains(std::string(bytes.substr(at, kStretchBytes)))) continue;
        return fmt::format("the text of an erased session lies in {} at {}", name, at);
      }
    }
    return {};
  }

 private:
  static constexpr uint64_t kStretchTokens = 16;
  static constexpr uint64_t kStretchBytes = kStretchTokens * sizeof(TokenId);

  std::unordered_set<std::string> stretches_;
  std::set<std::string, std::less<>> tenants_;
};

}  // namespace quire::sim

#endif  // QUIRE_SIM_SESSION_TEXTS_H_
