// The memory that bytes pass through on their way to and from a disk or a device: aligned chunks of
// one size, taken and given back. All of it is there from the start, so that nothing in flight is
// uncounted.
#ifndef QUIRE_TIER_STAGING_H_
#define QUIRE_TIER_STAGING_H_

#include <cstdint>
#include <span>
#include <vector>

#include "base/check.h"
#include "env/files.h"
#include "env/host_buffer.h"

namespace quire::tier {

class Staging {
 public:
  /// Needs chunk_bytes > 0, a multiple of kDirectIoAlignment. Throws std::bad_alloc.
  Staging(uint64_t chunk_bytes, uint32_t chunks, HostAllocator& allocator = PlainHostAllocator())
      : chunk_bytes_(chunk_bytes),
        count_(chunks),
        memory_(allocator, chunk_bytes * chunks, "staging") {
    for (uint32_t chunk = chunks; chunk-- > 0;) free_.push_back(chunk);
  }

  uint64_t chunk_bytes() const { return chunk_bytes_; }
  uint32_t chunks() const { return count_; }
  uint32_t free_chunks() const { return static_cast<uint32_t>(free_.size()); }
  std::span<std::byte> memory() const { return memory_.bytes(); }
  bool pinned() const { return memory_.pinned(); }

  /// Needs free_chunks() > 0.
  uint32_t Take() {
    QUIRE_CHECK(!free_.empty());
    const uint32_t chunk = free_.back();
    free_.pop_back();
    return chunk;
  }
  void Give(uint32_t chunk) { free_.push_back(chunk); }
  std::span<std::byte> operator[](uint32_t chunk) {
    return memory().subspan(chunk * chunk_bytes_, chunk_bytes_);
  }

 private:
  uint64_t chunk_bytes_;
  uint32_t count_;
  HostBuffer memory_;
  std::vector<uint32_t> free_;
};

}  // namespace quire::tier

#endif  // QUIRE_TIER_STAGING_H_
