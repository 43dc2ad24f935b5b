#include "keys/secret_key.h"

#include <sodium.h>

#include <algorithm>
#include <new>
#include <vector>

#include "base/check.h"
#include "base/hash.h"
#include "base/mutex.h"
#include "base/wiped_vector.h"

namespace quire::keys {
namespace {

constexpr size_t kPageKeys = 4096 / kKeyBytes;

/// Slots of 32 bytes in pages of libsodium's guarded memory. Pages stay: a process that had so many
/// keys may have them again.
class KeyMemory {
 public:
  uint8_t* Take() {
    MutexLock lock(mutex_);
    if (free_.empty()) AddPage();
    uint8_t* const slot = free_.back();
    free_.pop_back();
    return slot;
  }
  void Give(uint8_t* slot) {
    Wipe(std::span(slot, kKeyBytes));
    MutexLock lock(mutex_);
    free_.push_back(slot);  // there is room for all of them
  }

 private:
  void AddPage() QUIRE_REQUIRES(mutex_) {
    QUIRE_CHECK(sodium_init() >= 0);
    free_.reserve((pages_ + 1) * kPageKeys);
    // Its pages are locked and left out of dumps; where the process may not lock so much that is
    // not an error, and they are left out of dumps all the same.
    auto* const page = static_cast<uint8_t*>(sodium_allocarray(kPageKeys, kKeyBytes));
    if (page == nullptr) throw std::bad_alloc();
    ++pages_;
    for (size_t i = kPageKeys; i-- > 0;) free_.push_back(page + i * kKeyBytes);
  }

  Mutex mutex_{LockRank::kLeaf};
  size_t pages_ QUIRE_GUARDED_BY(mutex_) = 0;
  std::vector<uint8_t*> free_ QUIRE_GUARDED_BY(mutex_);
};

// Never destroyed: keys may outlive static objects.
KeyMemory& Memory() {
  static KeyMemory& memory = *new KeyMemory();
  return memory;
}

}  // namespace

SecretKey::SecretKey() : slot_(Memory().Take()) { std::ranges::fill(writable(), uint8_t{0}); }

SecretKey SecretKey::Random() {
  SecretKey key;
  FillRandom(key.writable());
  return key;
}

SecretKey SecretKey::Copy(KeyBytes bytes) {
  SecretKey key;
  std::ranges::copy(bytes, key.writable().begin());
  return key;
}

SecretKey::~SecretKey() {
  if (slot_ != nullptr) Memory().Give(slot_);
}

}  // namespace quire::keys
