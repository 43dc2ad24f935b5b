// Host memory for tests that says it is pinned, counts what is out, and may have none to give.
#ifndef QUIRE_ENV_PINNED_MEMORY_H_
#define QUIRE_ENV_PINNED_MEMORY_H_

#include <atomic>
#include <cstdint>
#include <string>

#include "quire/block_ops.h"

namespace quire {

class PinnedMemory final : public HostAllocator {
 public:
  std::string_view name() const override { return "test"; }
  bool pinned() const override { return true; }
  Result<std::byte*> Allocate(uint64_t bytes) override {
    ++asked;
    if (empty) {
      return Fail(ErrorCode::kNoSpace, "test: cannot pin " + std::to_string(bytes) + " bytes");
    }
    bytes_out += bytes;
    Result<std::byte*> memory = PlainHostAllocator().Allocate(bytes);
    last = memory.value_or(nullptr);
    return memory;
  }
  void Free(std::byte* memory, uint64_t bytes) override {
    bytes_out -= bytes;
    PlainHostAllocator().Free(memory, bytes);
  }

  bool empty = false;  // everything is refused
  std::atomic<uint64_t> asked = 0;
  std::atomic<uint64_t> bytes_out = 0;
  std::atomic<std::byte*> last = nullptr;  // what was given last
};

}  // namespace quire

#endif  // QUIRE_ENV_PINNED_MEMORY_H_
