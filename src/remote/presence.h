// What is known of keys for a while.
#ifndef QUIRE_REMOTE_PRESENCE_H_
#define QUIRE_REMOTE_PRESENCE_H_

#include <cstdint>
#include <cstring>
#include <unordered_map>
#include <utility>

#include "quire/identity.h"
#include "tier/store.h"

namespace quire::remote {

/// Remembers which keys a service has and which it has not, each until a time. Of too many the
/// older half is forgotten.
class PresenceMemory {
 public:
  explicit PresenceMemory(size_t keys_max) : keys_max_(keys_max / 2) {}

  void Note(const Digest& key, tier::Presence presence, uint64_t until_us) {
    if (young_.size() >= keys_max_ && !young_.contains(key)) old_ = std::exchange(young_, {});
    young_[key] = {presence, until_us};
  }
  void Clear() {
    young_.clear();
    old_.clear();
  }
  tier::Presence Of(const Digest& key, uint64_t now_us) const {
    for (const Keys* keys : {&young_, &old_}) {
      const auto known = keys->find(key);
      if (known == keys->end()) continue;
      return now_us < known->second.until_us ? known->second.presence : tier::Presence::kUnknown;
    }
    return tier::Presence::kUnknown;
  }

 private:
  struct Known {
    tier::Presence presence = tier::Presence::kUnknown;
    uint64_t until_us = 0;
  };
  struct Hash {
    size_t operator()(const Digest& digest) const {
      size_t hash = 0;
      std::memcpy(&hash, digest.data(), sizeof(hash));
      return hash;
    }
  };
  using Keys = std::unordered_map<Digest, Known, Hash>;

  size_t keys_max_;
  Keys young_;
  Keys old_;
};

}  // namespace quire::remote

#endif  // QUIRE_REMOTE_PRESENCE_H_
