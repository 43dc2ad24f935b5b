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

}  // namespace

std::string EncodeLockText(const LockText& text) {
  const std::string body =
      fmt::format("{{\"bytes_cap\":{},\"segment_bytes\":{},", text.bytes_cap, text.segment_bytes);
  return fmt::format("{}\"crc\":{}}}\n", body, Crc32c(std::as_bytes(std::span(body))));
}

LockText ReadLockText(Files& files, const std::string& directory) {
  const auto file = files.Open(fmt::format("{}/{}", directory, kLockName), {.read_only = true});
  if (!file) return {};
  std::array<std::byte, 256> bytes;
  const uint64_t got = files.ReadAt(*file, 0, bytes).value_or(0);
  files.Close(*file);
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), got);
  const LockText read = {.bytes_cap = NumberAfter(text, "bytes_cap"),
                         .segment_bytes = NumberAfter(text, "segment_bytes")};
  return EncodeLockText(read) == text ? read : LockText{};
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
  if (summary && (summary->place.segment != number || summary->place.offset != 0)) {
    summary = std::unexpected(RecordMiss::kOtherPlace);
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
