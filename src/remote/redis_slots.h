// Which node of a Redis cluster has which keys.
#ifndef QUIRE_REMOTE_REDIS_SLOTS_H_
#define QUIRE_REMOTE_REDIS_SLOTS_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "remote/address.h"
#include "remote/resp.h"

namespace quire::remote {

inline constexpr uint32_t kRedisSlots = 16384;

/// The slot of a key: CRC16 (XMODEM) of it, or of what is in its first braces.
uint32_t RedisSlotOf(std::string_view key);

/// A server's word that a key is elsewhere.
struct RedisRedirect {
  bool asks = false;  // ASK: this once; MOVED: from now on
  uint32_t slot = 0;
  HostAndPort to{};
};
/// Reads "MOVED 3999 host:port" and "ASK ..."; a host that is left out is `from`'s.
std::optional<RedisRedirect> ParseRedirect(std::string_view error, const HostAndPort& from);

/// Threads: one
class RedisSlotMap {
 public:
  /// Takes the answer of CLUSTER SLOTS of a node. False: it is none, and nothing changes.
  bool Take(const RespValue& slots, const HostAndPort& from);
  void Move(uint32_t slot, const HostAndPort& to);
  /// Null: no node is known to have it.
  const HostAndPort* OwnerOf(uint32_t slot) const {
    return owners_[slot] == kNone ? nullptr : &nodes_[owners_[slot]];
  }
  /// All masters that are known, in the order of their first slots.
  const std::vector<HostAndPort>& nodes() const { return nodes_; }
  /// Whether a master has replicas that its writes go to.
  bool HasReplicas(const HostAndPort& node) const;
  bool empty() const { return nodes_.empty(); }

 private:
  static constexpr uint16_t kNone = 0xFFFF;

  uint16_t NumberOf(const HostAndPort& node);

  std::vector<HostAndPort> nodes_{};
  std::vector<bool> has_replicas_{};  // of each
  std::array<uint16_t, kRedisSlots> owners_ = [] {
    std::array<uint16_t, kRedisSlots> none{};
    none.fill(kNone);
    return none;
  }();
};

}  // namespace quire::remote

#endif  // QUIRE_REMOTE_REDIS_SLOTS_H_
