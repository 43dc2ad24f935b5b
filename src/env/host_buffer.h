// A run of host memory from an allocator that may have none to give.
#ifndef QUIRE_ENV_HOST_BUFFER_H_
#define QUIRE_ENV_HOST_BUFFER_H_

#include <cstddef>
#include <cstdint>
#include <new>
#include <span>
#include <string_view>
#include <utility>

#include "base/log.h"
#include "quire/block_ops.h"

namespace quire {

/// Lifetime: the allocator must outlive it
class HostBuffer {
 public:
  HostBuffer() = default;
  /// Takes memory from `allocator`, or ordinary memory where that refuses, with a warning that says
  /// what the memory was for. Throws std::bad_alloc.
  HostBuffer(HostAllocator& allocator, uint64_t bytes, std::string_view what)
      : allocator_(&allocator) {
    if (bytes == 0) return;
    Result<std::byte*> memory = allocator.Allocate(bytes);
    if (!memory && &allocator != &PlainHostAllocator()) {
      LogWarn("{}: {}; ordinary memory is used, and copies to and from it wait", what,
              memory.error().message);
      allocator_ = &PlainHostAllocator();
      memory = allocator_->Allocate(bytes);
    }
    if (!memory) throw std::bad_alloc();
    bytes_ = {*memory, bytes};
  }
  ~HostBuffer() {
    if (!bytes_.empty()) allocator_->Free(bytes_.data(), bytes_.size());
  }
  HostBuffer(HostBuffer&& other) noexcept
      : allocator_(other.allocator_), bytes_(std::exchange(other.bytes_, {})) {}
  HostBuffer& operator=(HostBuffer&& other) noexcept {
    std::swap(allocator_, other.allocator_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }

  std::span<std::byte> bytes() const { return bytes_; }
  /// Whether it is as the allocator promised.
  bool pinned() const { return allocator_ != nullptr && allocator_->pinned(); }

 private:
  HostAllocator* allocator_ = nullptr;
  std::span<std::byte> bytes_;
};

}  // namespace quire

#endif  // QUIRE_ENV_HOST_BUFFER_H_
