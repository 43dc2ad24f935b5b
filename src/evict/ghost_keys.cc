#include "evict/ghost_keys.h"

namespace quire::evict {

void GhostKeys::Add(uint64_t key) {
  if (key == 0) return;
  serials_[key] = ++serial_;
  noted_.push_back({key, serial_});
}

bool GhostKeys::Take(uint64_t key) { return serials_.erase(key) > 0; }

void GhostKeys::Trim(uint64_t keys_max) {
  // Void entries, of keys that were taken, pile up at most to the number of keys.
  while (serials_.size() > keys_max || noted_.size() > 2 * keys_max) {
    const auto oldest = serials_.find(noted_.front().key);
    if (oldest != serials_.end() && oldest->second == noted_.front().serial) {
      serials_.erase(oldest);
    }
    noted_.pop_front();
  }
}

}  // namespace quire::evict
