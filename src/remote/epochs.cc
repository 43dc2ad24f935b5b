#include "remote/epochs.h"

#include <algorithm>
#include <cstring>

namespace quire::remote {
namespace {

constexpr uint64_t kHeadBytes = 8 + sizeof(Incarnation);  // version, incarnation
constexpr uint64_t kEntryBytes = sizeof(tier::PublisherId) + sizeof(uint64_t);

}  // namespace

EpochTable EpochTable::New() {
  EpochTable table{.version = 1};
  FillRandom(table.incarnation);
  return table;
}

uint64_t EpochTable::EpochOf(const tier::PublisherId& publisher) const {
  const auto known = epochs.find(publisher);
  return known == epochs.end() ? 0 : known->second;
}

void EpochTable::Raise(const tier::PublisherId& publisher, uint64_t epoch) {
  uint64_t& known = epochs[publisher];
  known = std::max(epoch, known + 1);
  ++version;
}

bool EpochTable::Follows(const EpochTable& before) const {
  if (incarnation != before.incarnation) return true;  // nothing of `before` is found any more
  if (version < before.version) return false;
  return std::ranges::all_of(
      before.epochs, [&](const auto& entry) { return EpochOf(entry.first) >= entry.second; });
}

std::string EpochsName(const FleetKeys& keys) {
  Blake2b<32> hash(keys.names);
  hash.Update("quire epochs");
  return ToHex(hash.Finish());
}

std::vector<std::byte> CloseEpochs(const FleetKeys& keys, const EpochTable& table) {
  std::vector<std::byte> plain(kHeadBytes + table.epochs.size() * kEntryBytes);
  std::memcpy(plain.data(), &table.version, 8);
  std::memcpy(&plain[8], table.incarnation.data(), table.incarnation.size());
  uint64_t at = kHeadBytes;
  for (const auto& [publisher, epoch] : table.epochs) {
    std::memcpy(&plain[at], publisher.data(), publisher.size());
    std::memcpy(&plain[at + publisher.size()], &epoch, 8);
    at += kEntryBytes;
  }
  return CloseValue(keys, EpochsName(keys), plain);
}

std::optional<EpochTable> OpenEpochs(const FleetKeys& keys, std::span<const std::byte> sealed) {
  const auto plain = OpenValue(keys, EpochsName(keys), sealed);
  if (!plain || plain->size() < kHeadBytes) return std::nullopt;
  if ((plain->size() - kHeadBytes) % kEntryBytes != 0) return std::nullopt;
  EpochTable table;
  std::memcpy(&table.version, plain->data(), 8);
  std::memcpy(table.incarnation.data(), &(*plain)[8], table.incarnation.size());
  for (uint64_t at = kHeadBytes; at < plain->size(); at += kEntryBytes) {
    tier::PublisherId publisher{};
    std::memcpy(publisher.data(), &(*plain)[at], publisher.size());
    std::memcpy(&table.epochs[publisher], &(*plain)[at + publisher.size()], 8);
  }
  return table;
}

}  // namespace quire::remote
