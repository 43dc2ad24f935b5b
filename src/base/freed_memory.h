// What is on the heap when it is freed, for a test that asks: see failing_new.h, which calls it.
#ifndef QUIRE_BASE_FREED_MEMORY_H_
#define QUIRE_BASE_FREED_MEMORY_H_

#include <atomic>

namespace quire {

/// Called with every allocation that is about to be freed; while it is set, new memory is zero.
inline std::atomic<void (*)(const void* memory)> look_at_freed_memory = nullptr;

}  // namespace quire

#endif  // QUIRE_BASE_FREED_MEMORY_H_
