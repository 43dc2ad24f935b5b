#include "evict/ghost_keys.h"

#include <absl/container/flat_hash_map.h>

namespace quire::evict {
namespace {

constexpr size_t kAhead = 8;  // lookups, so that those to come do not wait for memory

}  // namespace

struct GhostKeys::Serials {
  absl::flat_hash_map<uint64_t, uint64_t> by_key;  // never walked
};

GhostKeys::GhostKeys() : serials_(std::make_unique<Serials>()) {}

GhostKeys::~GhostKeys() = default;

uint64_t GhostKeys::size() const { return serials_->by_key.size(); }

void GhostKeys::Add(uint64_t key) {
  if (key == 0) return;
  serials_->by_key[key] = ++serial_;
  noted_.push_back({key, serial_});
}

bool GhostKeys::Take(uint64_t key) { return serials_->by_key.erase(key) > 0; }

void GhostKeys::Trim(uint64_t keys_max) {
  auto& serials = serials_->by_key;
  // Void entries, of keys that were taken, pile up at most to the number of keys.
  while (serials.size() > keys_max || noted_.size() > 2 * keys_max) {
    if (noted_.size() > kAhead) serials.prefetch(noted_[kAhead].key);
    const auto oldest = serials.find(noted_.front().key);
    if (oldest != serials.end() && oldest->second == noted_.front().serial) {
      serials.erase(oldest);
    }
    noted_.pop_front();
  }
}

}  // namespace quire::evict
