// The memory that bytes pass through on their way to and from a disk or a device: aligned chunks of
// one size, taken and given back. All of it is there from the start, so that nothing in flight is
// uncounted.
#ifndef QUIRE_TIER_STAGING_H_
#define QUIRE_TIER_STAGING_H_

#include <cstdint>
#include <span>
#include <vector>

#include "base/check.h"
#include "base/wiped_vector.h"
#include "env/files.h"
#include "env/host_buffer.h"

namespace quire::tier {

class Staging {
 public:
  /// Needs chunk_bytes > 0, a multiple of kDirectIoAlignment. Throws std::bad_alloc.
  Staging(uint64_t chunk_bytes, uint32_t chunks, HostAllocator& allocator = PlainHostAllocator())
      : chunk_bytes_(chunk_bytes),
        count_(chunks),
        memory_(allocator, chunk_bytes * chunks, "staging"),
        holds_(chunks) {
    for (uint32_t chunk = chunks; chunk-- > 0;) free_.push_back(chunk);
  }
  ~Staging() { Wipe(memory()); }
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

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
    holds_[chunk] = Holds::kTaken;
    return chunk;
  }
  void Give(uint32_t chunk) {
    const bool forget = holds_[chunk] == Holds::kTakenToForget;
    if (forget) Wipe((*this)[chunk]);
    holds_[chunk] = forget ? Holds::kNothing : Holds::kBytes;
    free_.push_back(chunk);
  }
  /// What has passed through is overwritten: at once in chunks that are free, in the others when
  /// they are given back.
  void Forget() {
    for (uint32_t chunk = 0; chunk < count_; ++chunk) {
      if (holds_[chunk] == Holds::kTaken) holds_[chunk] = Holds::kTakenToForget;
      if (holds_[chunk] != Holds::kBytes) continue;
      Wipe((*this)[chunk]);
      holds_[chunk] = Holds::kNothing;
    }
  }
  std::span<std::byte> operator[](uint32_t chunk) {
    return memory().subspan(chunk * chunk_bytes_, chunk_bytes_);
  }

 private:
  enum class Holds : uint8_t { kNothing, kBytes, kTaken, kTakenToForget };

  uint64_t chunk_bytes_;
  uint32_t count_;
  HostBuffer memory_;
  std::vector<uint32_t> free_;
  std::vector<Holds> holds_;  // by chunk
};

}  // namespace quire::tier

#endif  // QUIRE_TIER_STAGING_H_
