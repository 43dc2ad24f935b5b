// Memory that leaves nothing behind on the heap: for prompts, which a tenant may ask to forget.
#ifndef QUIRE_BASE_WIPED_VECTOR_H_
#define QUIRE_BASE_WIPED_VECTOR_H_

#include <string.h>

#include <atomic>
#include <cstddef>
#include <memory>
#include <span>
#include <type_traits>
#include <vector>

namespace quire {

/// Overwrites elements with zeros; the compiler does not leave that out.
template <typename T>
void Wipe(std::span<T> elements) {
  static_assert(std::is_trivially_copyable_v<T>);
  if (elements.empty()) return;  // its data may be null
  explicit_bzero(elements.data(), elements.size_bytes());
}

/// The standard allocator, but memory is overwritten before it is freed.
template <typename T>
class WipingAllocator {
 public:
  using value_type = T;

  WipingAllocator() = default;
  template <typename Other>
  WipingAllocator(const WipingAllocator<Other>& /*other*/) {}  // NOLINT: implicit by contract

  T* allocate(size_t count) { return std::allocator<T>().allocate(count); }
  void deallocate(T* elements, size_t count) {
    Wipe(std::span(elements, count));
    std::allocator<T>().deallocate(elements, count);
  }

  friend bool operator==(const WipingAllocator&, const WipingAllocator&) { return true; }
};

/// Elements that are only resized away stay until the memory is used again or freed: Wipe them.
template <typename T>
using WipedVector = std::vector<T, WipingAllocator<T>>;

// For a test: sees memory before it is freed (failing_new.h calls it).

/// Called with every allocation that is about to be freed; while it is set, new memory is zero.
inline std::atomic<void (*)(const void* memory)> look_at_freed_memory = nullptr;

}  // namespace quire

#endif  // QUIRE_BASE_WIPED_VECTOR_H_
