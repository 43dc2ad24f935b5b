// A session as bytes that outlive the process (docs/durability.md, Sessions).
#ifndef QUIRE_SERVE_SESSION_RECORD_H_
#define QUIRE_SERVE_SESSION_RECORD_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/sampling.h"
#include "quire/error.h"
#include "quire/identity.h"

namespace quire::serve {

/// Of the model and the tokenizer: the tokens of a session mean something to these alone.
using SessionFingerprint = std::array<uint8_t, 32>;
SessionFingerprint FingerprintOf(const Identity& identity, std::string_view tokenizer_json);

/// What is known of a stored session without its text.
struct SessionHead {
  std::string name{};
  std::string tenant{};  // its name: tenants have other ids in another process
  SessionFingerprint fingerprint{};
  uint64_t tokens = 0;
  uint64_t opened_unix_us = 0;
  uint64_t used_unix_us = 0;  // at the end of its last turn
  std::string adapter{};      // that its turns are computed with; empty: none
  Digest adapter_digest{};
};

struct SessionRecord {
  SessionHead head{};
  model::SamplerState sampler{};
  std::vector<TokenId> text{};  // [head.tokens] fed and generated
};

inline constexpr size_t kSessionNameBytesMax = 64;
inline constexpr size_t kSessionTenantBytesMax = 256;
/// Most bytes before the text of a session's file.
extern const uint64_t kSessionHeadBytesMax;

/// A name is a file's name too: 1 to 64 of A-Z, a-z, 0-9, '_' and '-'.
bool IsSessionName(std::string_view name);

/// The file of a session; head.tokens is not read. Names have their
/// lengths.
std::vector<std::byte> EncodeSession(const SessionRecord& record);

/// What a file's first bytes say, of a file with so many in all.
///
/// Shape:  bytes [min(file_bytes, kSessionHeadBytesMax)]
/// Errors: kUnsupported a newer version wrote it; kCorrupt it is not what was written
Result<SessionHead> DecodeSessionHead(std::span<const std::byte> bytes, uint64_t file_bytes);
/// Errors: as DecodeSessionHead
Result<SessionRecord> DecodeSession(std::span<const std::byte> file);

}  // namespace quire::serve

#endif  // QUIRE_SERVE_SESSION_RECORD_H_
