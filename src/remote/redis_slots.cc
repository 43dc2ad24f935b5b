#include "remote/redis_slots.h"

#include <algorithm>
#include <charconv>
#include <utility>

namespace quire::remote {

uint32_t RedisSlotOf(std::string_view key) {
  if (const size_t open = key.find('{'); open != std::string_view::npos) {
    const size_t close = key.find('}', open + 1);
    if (close != std::string_view::npos && close > open + 1) {
      key = key.substr(open + 1, close - open - 1);
    }
  }
  uint32_t crc = 0;
  for (const char c : key) {
    crc ^= static_cast<uint32_t>(static_cast<uint8_t>(c)) << 8;
    for (int bit = 0; bit < 8; ++bit) {
      crc = (crc & 0x8000u) != 0 ? (crc << 1) ^ 0x1021u : crc << 1;
    }
  }
  return crc & (kRedisSlots - 1);
}

std::optional<RedisRedirect> ParseRedirect(std::string_view error, const HostAndPort& from) {
  RedisRedirect redirect{.asks = error.starts_with("ASK ")};
  if (!redirect.asks && !error.starts_with("MOVED ")) return std::nullopt;
  error.remove_prefix(error.find(' ') + 1);
  const size_t space = error.find(' ');
  const size_t colon = error.rfind(':');
  if (space == std::string_view::npos || colon == std::string_view::npos || colon < space) {
    return std::nullopt;
  }
  const auto number = [](std::string_view text, auto& to) {
    const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), to);
    return failed == std::errc() && end == text.data() + text.size();
  };
  if (!number(error.substr(0, space), redirect.slot) || redirect.slot >= kRedisSlots ||
      !number(error.substr(colon + 1), redirect.to.port) || redirect.to.port == 0) {
    return std::nullopt;
  }
  redirect.to.host = error.substr(space + 1, colon - space - 1);
  if (redirect.to.host.empty()) redirect.to.host = from.host;
  return redirect;
}

uint16_t RedisSlotMap::NumberOf(const HostAndPort& node) {
  const auto known = std::ranges::find(nodes_, node);
  if (known != nodes_.end()) return static_cast<uint16_t>(known - nodes_.begin());
  nodes_.push_back(node);
  has_replicas_.push_back(false);
  return static_cast<uint16_t>(nodes_.size() - 1);
}

bool RedisSlotMap::HasReplicas(const HostAndPort& node) const {
  const auto known = std::ranges::find(nodes_, node);
  return known != nodes_.end() && has_replicas_[static_cast<size_t>(known - nodes_.begin())];
}

void RedisSlotMap::Move(uint32_t slot, const HostAndPort& to) { owners_[slot] = NumberOf(to); }

// An entry is first slot, last slot, the master, its replicas; a node is host, port, and more.
bool RedisSlotMap::Take(const RespValue& slots, const HostAndPort& from) {
  constexpr size_t kNodesMax = 1000;
  if (slots.kind != RespValue::kArray || slots.items.empty()) return false;
  RedisSlotMap made;
  for (const RespValue& entry : slots.items) {
    if (entry.items.size() < 3 || entry.items[2].items.size() < 2) return false;
    const int64_t first = entry.items[0].integer;
    const int64_t last = entry.items[1].integer;
    const RespValue& master = entry.items[2];
    const int64_t port = master.items[1].integer;
    if (first < 0 || last < first || last >= int64_t{kRedisSlots}) return false;
    if (port <= 0 || port > 65535) return false;
    HostAndPort node{.host = std::string(master.items[0].bulk()),
                     .port = static_cast<uint16_t>(port)};
    if (node.host.empty() || node.host == "?") node.host = from.host;
    const uint16_t number = made.NumberOf(node);
    if (made.nodes_.size() > kNodesMax) return false;
    if (entry.items.size() > 3) made.has_replicas_[number] = true;
    std::fill(made.owners_.begin() + first, made.owners_.begin() + last + 1, number);
  }
  *this = std::move(made);
  return true;
}

}  // namespace quire::remote
