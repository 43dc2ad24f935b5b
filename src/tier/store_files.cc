#include "tier/store_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <vector>

#include "tier/staging.h"

namespace quire::tier {
namespace {

uint64_t NumberAfter(std::string_view text, std::string_view name) {
  const std::string wanted = fmt::format("\"{}\":", name);
  const size_t at = text.find(wanted);
  if (at == std::string_view::npos) return 0;
  const std::string_view rest = text.substr(at + wanted.size());
  uint64_t number = 0;
  std::from_chars(rest.data(), rest.data() + rest.size(), number);
  return number;
}

constexpr uint64_t kLockCopyBytes = 512;  // a sector is written whole or not at all

std::string EncodeLockText(const LockText& text) {
  std::string body = fmt::format("{{\"opens\":{},\"bytes_cap\":{},\"segment_bytes\":{},",
                                 text.opens, text.bytes_cap, text.segment_bytes);
  const uint32_t crc = Crc32c(std::as_bytes(std::span(body)));
  body = fmt::format("{}\"crc\":{}}}", body, crc);
  body.resize(kLockCopyBytes - 1, ' ');
  return body + "\n";
}

LockText DecodeLockText(std::string_view text) {
  const LockText read = {.opens = NumberAfter(text, "opens"),
                         .bytes_cap = NumberAfter(text, "bytes_cap"),
                         .segment_bytes = NumberAfter(text, "segment_bytes")};
  return EncodeLockText(read) == text ? read : LockText{};
}

}  // namespace

LockText ReadLockText(Files& files, const std::string& directory) {
  const auto file = files.Open(fmt::format("{}/{}", directory, kLockName), {.read_only = true});
  if (!file) return {};
  std::array<std::byte, 2 * kLockCopyBytes> bytes = {};
  const auto got = files.ReadAt(*file, 0, bytes);
  files.Close(*file);
  if (!got) return {};
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const LockText first = DecodeLockText(text.substr(0, kLockCopyBytes));
  const LockText second = DecodeLockText(text.substr(kLockCopyBytes));
  return first.opens >= second.opens ? first : second;
}

Result<void> WriteLockText(Files& files, FileId lock, const LockText& text) {
  const std::string bytes = EncodeLockText(text);
  const uint64_t offset = text.opens % 2 * kLockCopyBytes;
  QUIRE_TRY(files.WriteAt(lock, offset, std::as_bytes(std::span(bytes))));
  return files.Sync(lock);
}

Result<std::expected<RecordSummary, RecordMiss>> FirstHeader(Files& files, FileId segment,
                                                             uint32_t number) {
  Staging page(kHeaderBytesMax, 1);
  QUIRE_ASSIGN(uint64_t got, files.ReadAt(segment, 0, page.memory().first(kRecordAlignment)));
  auto summary = InspectHeader(page.memory().first(got));
  if (!summary && summary.error() == RecordMiss::kTruncated) {
    QUIRE_ASSIGN(got, files.ReadAt(segment, 0, page.memory()));
    summary = InspectHeader(page.memory().first(got));
  }
  if (summary && (summary->location.segment != number || summary->location.offset != 0)) {
    summary = std::unexpected(RecordMiss::kOtherLocation);
  }
  return summary;
}

Result<std::optional<EpochTable>> ReadEpochFile(Files& files, FileId file) {
  std::vector<std::byte> bytes(EpochBytesMax() / kEpochNames.size());
  QUIRE_ASSIGN(const uint64_t got, files.ReadAt(file, 0, bytes));
  return DecodeEpochs(std::span(bytes).first(got));
}

Result<void> WriteEpochFile(Files& files, FileId file, const EpochTable& table) {
  QUIRE_TRY(files.WriteAt(file, 0, EncodeEpochs(table)));
  return files.Sync(file);
}

}  // namespace quire::tier
