#include "sim/raw_bytes.h"

#include <fmt/format.h>

#include <cstring>
#include <set>
#include <string_view>

namespace quire::sim {
namespace {

constexpr uint64_t kSectorBytes = 512;
constexpr uint64_t kWordBytes = 16;
constexpr uint64_t kStride = 8;  // of what is looked at: all values begin at such a place

// Bytes that may stand anywhere tell nothing. What a torn record takes for its payload may be the
// header of another one.
bool IsTelling(std::span<const std::byte> word) {
  constexpr std::string_view kHeaderBegin = "QUIREREC";
  const std::string_view text(reinterpret_cast<const char*>(word.data()), word.size());
  return !text.starts_with(kHeaderBegin) &&
         std::set<std::byte>(word.begin(), word.end()).size() >= kWordBytes / 2;
}

}  // namespace

void RawBytes::Learn(FaultyFiles& files, const std::string& directory) {
  for (const std::string& path : files.Paths()) {
    if (!path.starts_with(directory + "/segment-")) continue;
    const std::span<const std::byte> contents = *files.Contents(path);
    for (uint64_t at = 0; at + tier::kRecordAlignment <= contents.size();
         at += tier::kRecordAlignment) {
      const auto summary = tier::InspectHeader(contents.subspan(at));
      if (!summary || summary->is_void || at + summary->record_bytes() > contents.size()) continue;
      const auto [place, is_new] =
          seen_.try_emplace({path, at, summary->location.generation}, *summary);
      if (!is_new && place->second.key == summary->key) continue;
      place->second = *summary;
      Add(*summary, contents.subspan(at + summary->header_bytes, summary->payload_bytes));
    }
  }
}

void RawBytes::Add(const tier::RecordSummary& record, std::span<const std::byte> payload) {
  for (uint64_t at = 0; at + kWordBytes <= payload.size(); at += kSectorBytes) {
    const auto bytes = payload.subspan(at, kWordBytes);
    if (!IsTelling(bytes)) continue;
    Word word;
    std::memcpy(&word, bytes.data(), sizeof(word));
    Origin& origin = words_[word];
    if (origin.publisher == record.publisher && origin.erase_epoch > record.erase_epoch) continue;
    origin = {.publisher = record.publisher, .erase_epoch = record.erase_epoch};
  }
}

std::string RawBytes::FindIn(const tier::PublisherId& publisher, uint64_t epoch,
                             std::span<const std::byte> memory, const std::string& name) const {
  for (uint64_t at = 0; at + kWordBytes <= memory.size(); at += kStride) {
    Word word;
    std::memcpy(&word, memory.data() + at, sizeof(word));
    if (word[0] == 0) continue;
    const auto known = words_.find(word);
    if (known == words_.end() || known->second.publisher != publisher ||
        known->second.erase_epoch >= epoch) {
      continue;
    }
    return fmt::format("bytes of epoch {}, erased by epoch {}, lie in {} at {}",
                       known->second.erase_epoch, epoch, name, at);
  }
  return {};
}

std::string RawBytes::Find(const tier::PublisherId& publisher, uint64_t epoch, FaultyFiles& files,
                           bool is_idle, std::span<const std::span<const std::byte>> memory) const {
  std::string found;
  const auto look = [&](std::span<const std::byte> bytes, const std::string& name) {
    if (found.empty()) found = FindIn(publisher, epoch, bytes, name);
  };
  for (const std::string& path : files.Paths()) look(*files.Contents(path), path);
  if (is_idle) {
    for (const std::span<std::byte> buffer : files.buffers()) look(buffer, "staging");
  }
  for (const std::span<const std::byte> bytes : memory) look(bytes, "memory");
  return found;
}

}  // namespace quire::sim
