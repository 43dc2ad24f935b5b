#include "sim/raw_bytes.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <string_view>

#include "base/hash.h"

namespace quire::sim {
namespace {

constexpr uint64_t kSectorBytes = 512;
constexpr uint64_t kWordBytes = 16;
constexpr uint64_t kStride = 8;  // bytes from one compared word to the next: all values begin at
                                 // such a place

// Words that may stand anywhere identify nothing. The payload of a torn record may be the header of
// another one.
bool IsTelling(std::span<const std::byte> word) {
  constexpr std::string_view kHeaderBegin = "QUIREREC";
  const std::string_view text(reinterpret_cast<const char*>(word.data()), word.size());
  return !text.starts_with(kHeaderBegin) &&
         std::set<std::byte>(word.begin(), word.end()).size() >= kWordBytes / 2;
}

// Where only a header was written, the bytes behind it belong to another record.
bool IsWhole(const tier::RecordSummary& record, std::span<const std::byte> bytes) {
  const auto payload = bytes.subspan(record.header_bytes);
  return std::ranges::all_of(tier::StoredSections(bytes), [&](const tier::StoredSection& section) {
    return Crc32c(payload.subspan(section.offset, section.bytes)) == section.crc;
  });
}

/// Calls `visit(summary, record, at)` for every place with a record's header and room behind it.
template <typename Visit>
void ForEachRecord(std::span<const std::byte> bytes, const Visit& visit) {
  for (uint64_t at = 0; at + tier::kRecordAlignment <= bytes.size(); at += tier::kRecordAlignment) {
    const auto summary = tier::InspectHeader(bytes.subspan(at));
    if (!summary || summary->is_void || at + summary->record_bytes() > bytes.size()) continue;
    visit(*summary, bytes.subspan(at, summary->record_bytes()), at);
  }
}

}  // namespace

void RawBytes::Learn(FaultyFiles& files, const std::string& directory) {
  for (const std::string& path : files.Paths()) {
    if (!path.starts_with(directory + "/segment-")) continue;
    ForEachRecord(*files.Contents(path), [&](const tier::RecordSummary& summary,
                                             std::span<const std::byte> record, uint64_t at) {
      const Place place = {path, at, summary.location.generation};
      const auto seen = seen_.find(place);
      if (seen != seen_.end() && seen->second == summary.key) return;
      if (!IsWhole(summary, record)) return;
      seen_[place] = summary.key;
      Add(summary, record);
    });
  }
}

void RawBytes::LearnFrom(std::span<const std::byte> memory) {
  ForEachRecord(memory, [&](const tier::RecordSummary& summary, std::span<const std::byte> record,
                            uint64_t /*at*/) {
    if (IsWhole(summary, record)) Add(summary, record);
  });
}

void RawBytes::Add(const tier::RecordSummary& record, std::span<const std::byte> bytes) {
  if (record.block_index < block_first_) return;
  const auto payload = bytes.subspan(record.header_bytes);
  for (const tier::StoredSection& section : tier::StoredSections(bytes)) {
    if (section.layer_first < layer_first_) continue;
    for (uint64_t at = 0; at + kWordBytes <= section.bytes; at += kSectorBytes) {
      const auto some = payload.subspan(section.offset + at, kWordBytes);
      if (!IsTelling(some)) continue;
      Word word;
      std::memcpy(&word, some.data(), sizeof(word));
      const auto [known, is_new] = words_.try_emplace(
          word, Origin{.publisher = record.publisher, .erase_epoch = record.erase_epoch});
      Origin& origin = known->second;
      if (is_new) continue;
      origin.is_of_several |= origin.publisher != record.publisher;
      origin.erase_epoch = std::max(origin.erase_epoch, record.erase_epoch);
    }
  }
}

// Different texts may have equal computed values, at another place of a record.
bool RawBytes::IsOfAnother(const tier::PublisherId& publisher, const Word& word,
                           FaultyFiles& files) {
  bool found = false;
  for (const std::string& path : files.Paths()) {
    if (path.find("/segment-") == std::string::npos) continue;
    ForEachRecord(*files.Contents(path), [&](const tier::RecordSummary& summary,
                                             std::span<const std::byte> record, uint64_t /*at*/) {
      if (found || summary.publisher == publisher) return;
      if (!IsWhole(summary, record)) return;
      for (uint64_t i = 0; i + kWordBytes <= record.size() && !found; i += kStride) {
        found = std::memcmp(record.data() + i, &word, kWordBytes) == 0;
      }
    });
  }
  return found;
}

std::string RawBytes::FindIn(const tier::PublisherId& publisher, uint64_t epoch,
                             std::span<const std::byte> memory, const std::string& name,
                             FaultyFiles& files) {
  for (uint64_t at = 0; at + kWordBytes <= memory.size(); at += kStride) {
    Word word;
    std::memcpy(&word, memory.data() + at, sizeof(word));
    if (word[0] == 0) continue;
    const auto known = words_.find(word);
    if (known == words_.end() || known->second.is_of_several ||
        known->second.publisher != publisher || known->second.erase_epoch >= epoch) {
      continue;
    }
    if (IsOfAnother(publisher, word, files)) {
      known->second.is_of_several = true;
      continue;
    }
    return fmt::format("bytes of epoch {}, erased by epoch {}, lie in {} at {}",
                       known->second.erase_epoch, epoch, name, at);
  }
  return {};
}

std::string RawBytes::Find(const tier::PublisherId& publisher, uint64_t epoch, FaultyFiles& files,
                           bool is_idle, std::span<const std::span<const std::byte>> memory) {
  std::string found;
  const auto look = [&](std::span<const std::byte> bytes, const std::string& name) {
    if (found.empty()) found = FindIn(publisher, epoch, bytes, name, files);
  };
  for (const std::string& path : files.Paths()) look(*files.Contents(path), path);
  if (is_idle) {
    for (const std::span<std::byte> buffer : files.buffers()) look(buffer, "staging");
  }
  for (const std::span<const std::byte> bytes : memory) look(bytes, "memory");
  return found;
}

}  // namespace quire::sim
