// Memory that runs out when a test says so. Replaces operator new and delete of the whole program,
// those of arrays too, which sanitizers do not build on the others; so one file of a test program
// includes it.
//
// Not under ThreadSanitizer, whose runtime has an operator new of its own: QUIRE_FAILING_NEW is not
// defined then.
#ifndef QUIRE_BASE_FAILING_NEW_H_
#define QUIRE_BASE_FAILING_NEW_H_

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define QUIRE_NO_FAILING_NEW
#endif
#endif

#if !defined(QUIRE_NO_FAILING_NEW) && !defined(__SANITIZE_THREAD__)
#define QUIRE_FAILING_NEW

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#include "base/wiped_vector.h"

namespace quire {

// Allocations of this thread until one fails, once; negative: none fails.
inline thread_local int64_t allocations_left = -1;
// Allocations of this thread that were not freed.
inline thread_local int64_t allocations_live = 0;

/// What a call did whose memory ran out.
struct Attempt {
  bool failed = false;  // an allocation did
  bool threw = false;   // and the call threw std::bad_alloc
};

/// Calls with the allocation number `failing` (from 0) failing. A sweep goes on until none fails.
template <typename Call>
Attempt WithoutMemory(int64_t failing, Call&& call) {
  Attempt attempt;
  allocations_left = failing;
  try {
    call();
  } catch (const std::bad_alloc&) {
    attempt.threw = true;
  }
  attempt.failed = std::exchange(allocations_left, -1) < 0;
  return attempt;
}

inline void* AllocateOrFail(size_t bytes, size_t alignment = alignof(std::max_align_t)) {
  if (allocations_left >= 0 && --allocations_left < 0) throw std::bad_alloc();
  const size_t whole_bytes = (std::max<size_t>(bytes, 1) + alignment - 1) / alignment * alignment;
  void* memory = std::aligned_alloc(alignment, whole_bytes);
  if (memory == nullptr) throw std::bad_alloc();
  if (look_at_freed_memory != nullptr) std::memset(memory, 0, whole_bytes);
  ++allocations_live;
  return memory;
}

inline void Deallocate(void* memory) {
  if (memory != nullptr) --allocations_live;
  if (const auto look = look_at_freed_memory.load(); look != nullptr) look(memory);
  std::free(memory);
}

}  // namespace quire

void* operator new(size_t bytes) { return quire::AllocateOrFail(bytes); }
void* operator new[](size_t bytes) { return quire::AllocateOrFail(bytes); }
void* operator new(size_t bytes, const std::nothrow_t&) noexcept try {
  return quire::AllocateOrFail(bytes);
} catch (const std::bad_alloc&) {
  return nullptr;
}
void* operator new(size_t bytes, std::align_val_t alignment) {
  return quire::AllocateOrFail(bytes, static_cast<size_t>(alignment));
}
void operator delete(void* memory) noexcept { quire::Deallocate(memory); }
void operator delete[](void* memory) noexcept { quire::Deallocate(memory); }
void operator delete[](void* memory, size_t) noexcept { quire::Deallocate(memory); }
void operator delete(void* memory, size_t) noexcept { quire::Deallocate(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { quire::Deallocate(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { quire::Deallocate(memory); }

#endif
#endif  // QUIRE_BASE_FAILING_NEW_H_
