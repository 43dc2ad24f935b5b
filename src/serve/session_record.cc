#include "serve/session_record.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "base/check.h"
#include "base/hash.h"
#include "serve/adapters.h"

namespace quire::serve {
namespace {

constexpr std::array<char, 8> kMagic = {'Q', 'U', 'I', 'R', 'E', 'S', 'E', 'S'};
constexpr uint32_t kFormat = 3;
constexpr uint32_t kFormatWithoutAdapter = 2;

// Then the name, the names of tenant and adapter, and the tokens, each 4 bytes. Little-endian.
//
// Format 1 ended before min_p. Format 2 is that of sessions without an adapter: it ends before
// adapter_digest.
struct FileHeader {
  std::array<char, 8> magic;
  uint32_t format;
  uint32_t head_crc;  // of the header with this field as zero, and of both names
  uint32_t text_crc;
  uint32_t name_bytes;
  uint32_t tenant_bytes;
  uint32_t top_k;
  float temperature;
  float top_p;
  uint64_t seed;
  std::array<uint64_t, 4> prng;
  uint64_t tokens;
  uint64_t opened_unix_us;
  uint64_t used_unix_us;
  SessionFingerprint fingerprint;
  float min_p;
  uint32_t adapter_bytes;
  Digest adapter_digest;
};
static_assert(sizeof(FileHeader) == 176);
static_assert(offsetof(FileHeader, adapter_digest) == 144);
static_assert(offsetof(FileHeader, min_p) == 136);
static_assert(sizeof(TokenId) == 4);

constexpr size_t kFormatBytes = offsetof(FileHeader, head_crc);  // as much tells the format

size_t HeaderBytes(uint32_t format) {
  if (format == 1) return offsetof(FileHeader, min_p);
  return format == kFormatWithoutAdapter ? offsetof(FileHeader, adapter_digest)
                                         : sizeof(FileHeader);
}

uint32_t HeadCrc(FileHeader header, std::span<const std::byte> names) {
  header.head_crc = 0;
  const auto bytes = std::as_bytes(std::span(&header, 1)).first(HeaderBytes(header.format));
  return Crc32c(names, Crc32c(bytes));
}

std::unexpected<Error> Corrupt(std::string what) {
  return Fail(ErrorCode::kCorrupt, std::move(what));
}

Result<FileHeader> CheckedHeader(std::span<const std::byte> bytes, uint64_t file_bytes) {
  FileHeader header{};
  const auto too_short = [&] {
    return Corrupt(fmt::format("{} bytes are no session", bytes.size()));
  };
  if (bytes.size() < kFormatBytes) return too_short();
  std::memcpy(&header, bytes.data(), kFormatBytes);
  if (header.magic != kMagic) return Corrupt("it does not begin as a session does");
  if (header.format > kFormat) {
    return Fail(ErrorCode::kUnsupported,
                fmt::format("a newer version wrote it: format {}, this one knows {}", header.format,
                            kFormat));
  }
  if (header.format == 0) return Corrupt("format 0");
  const size_t header_bytes = HeaderBytes(header.format);
  if (bytes.size() < header_bytes) return too_short();
  std::memcpy(&header, bytes.data(), header_bytes);
  if (header.name_bytes > kSessionNameBytesMax || header.tenant_bytes > kSessionTenantBytesMax ||
      header.adapter_bytes > kAdapterNameBytesMax) {
    return Corrupt(fmt::format("names of {}, {} and {} bytes", header.name_bytes,
                               header.tenant_bytes, header.adapter_bytes));
  }
  const uint64_t head_bytes =
      header_bytes + header.name_bytes + header.tenant_bytes + header.adapter_bytes;
  if (bytes.size() < head_bytes) return Corrupt("it ends within its names");
  if (header.tokens > (file_bytes - head_bytes) / sizeof(TokenId) ||
      file_bytes != head_bytes + header.tokens * sizeof(TokenId)) {
    return Corrupt(fmt::format("{} bytes, where {} tokens are to be", file_bytes, header.tokens));
  }
  const auto names = bytes.subspan(header_bytes, head_bytes - header_bytes);
  if (header.head_crc != HeadCrc(header, names)) return Corrupt("its head fails its checksum");
  return header;
}

SessionHead HeadOf(const FileHeader& header, std::span<const std::byte> bytes) {
  const char* const names =
      reinterpret_cast<const char*>(bytes.data()) + HeaderBytes(header.format);
  return {
      .name = std::string(names, header.name_bytes),
      .tenant = std::string(names + header.name_bytes, header.tenant_bytes),
      .fingerprint = header.fingerprint,
      .tokens = header.tokens,
      .opened_unix_us = header.opened_unix_us,
      .used_unix_us = header.used_unix_us,
      .adapter = std::string(names + header.name_bytes + header.tenant_bytes, header.adapter_bytes),
      .adapter_digest = header.adapter_digest};
}

}  // namespace

const uint64_t kSessionHeadBytesMax =
    sizeof(FileHeader) + kSessionNameBytesMax + kSessionTenantBytesMax + kAdapterNameBytesMax;

SessionFingerprint FingerprintOf(const Identity& identity, std::string_view tokenizer_json) {
  Blake2b<32> hasher;
  hasher.Update("quire session");
  hasher.Update(std::as_bytes(std::span(identity.weights)));
  hasher.UpdateNumber(identity.position_encoding.size());
  hasher.Update(identity.position_encoding);
  hasher.Update(tokenizer_json);
  return hasher.Finish();
}

bool IsSessionName(std::string_view name) {
  const auto fits = [](char each) {
    return (each >= 'a' && each <= 'z') || (each >= 'A' && each <= 'Z') ||
           (each >= '0' && each <= '9') || each == '_' || each == '-';
  };
  return !name.empty() && name.size() <= kSessionNameBytesMax && std::ranges::all_of(name, fits);
}

std::vector<std::byte> EncodeSession(const SessionRecord& record) {
  const SessionHead& head = record.head;
  QUIRE_CHECK(IsSessionName(head.name) && head.tenant.size() <= kSessionTenantBytesMax &&
              head.adapter.size() <= kAdapterNameBytesMax);
  const auto text = std::as_bytes(std::span(record.text));
  FileHeader header = {.magic = kMagic,
                       .format = head.adapter.empty() ? kFormatWithoutAdapter : kFormat,
                       .head_crc = 0,
                       .text_crc = Crc32c(text),
                       .name_bytes = static_cast<uint32_t>(head.name.size()),
                       .tenant_bytes = static_cast<uint32_t>(head.tenant.size()),
                       .top_k = record.sampler.options.top_k,
                       .temperature = record.sampler.options.temperature,
                       .top_p = record.sampler.options.top_p,
                       .seed = record.sampler.options.seed,
                       .prng = record.sampler.prng,
                       .tokens = record.text.size(),
                       .opened_unix_us = head.opened_unix_us,
                       .used_unix_us = head.used_unix_us,
                       .fingerprint = head.fingerprint,
                       .min_p = record.sampler.options.min_p,
                       .adapter_bytes = static_cast<uint32_t>(head.adapter.size()),
                       .adapter_digest = head.adapter_digest};
  const std::string names = head.name + head.tenant + head.adapter;
  const auto name_bytes = std::as_bytes(std::span(names));
  header.head_crc = HeadCrc(header, name_bytes);
  const size_t header_bytes = HeaderBytes(header.format);
  std::vector<std::byte> bytes(header_bytes + names.size() + text.size());
  std::memcpy(bytes.data(), &header, header_bytes);
  std::ranges::copy(name_bytes, bytes.begin() + static_cast<ptrdiff_t>(header_bytes));
  std::ranges::copy(text, bytes.end() - static_cast<ptrdiff_t>(text.size()));
  return bytes;
}

Result<SessionHead> DecodeSessionHead(std::span<const std::byte> bytes, uint64_t file_bytes) {
  QUIRE_ASSIGN(const FileHeader header, CheckedHeader(bytes, file_bytes));
  return HeadOf(header, bytes);
}

Result<SessionRecord> DecodeSession(std::span<const std::byte> file) {
  QUIRE_ASSIGN(const FileHeader header, CheckedHeader(file, file.size()));
  const auto text = file.last(header.tokens * sizeof(TokenId));
  if (header.text_crc != Crc32c(text)) return Corrupt("its text fails its checksum");
  SessionRecord record{.head = HeadOf(header, file),
                       .sampler = {.options = {.temperature = header.temperature,
                                               .seed = header.seed,
                                               .top_k = header.top_k,
                                               .top_p = header.top_p,
                                               .min_p = header.min_p},
                                   .prng = header.prng},
                       .text = std::vector<TokenId>(header.tokens)};
  if (!text.empty()) std::memcpy(record.text.data(), text.data(), text.size());
  return record;
}

}  // namespace quire::serve
