// What the machine says about itself, what this process costs it, and which of its threads
// step back.
#ifndef QUIRE_ENV_MACHINE_H_
#define QUIRE_ENV_MACHINE_H_

#include <cstdint>

#include "quire/error.h"

namespace quire {

/// Bytes of the largest cache that holds data for the first CPU; 32 MiB when the system does not
/// say. Other virtual machines may share it.
uint64_t LastLevelCacheBytes();

/// The same of its second-level cache; 512 KiB when the system does not say.
uint64_t SecondLevelCacheBytes();

/// Bytes of physical memory this process holds now, shared pages included.
///
/// Errors: kIo when /proc/self/statm cannot be read
/// Source: proc(5), second field of statm; the kernel may lag by some dozen pages per CPU
Result<uint64_t> ResidentBytes();

/// The calling thread, and the kernel threads for its input and output, get a lower priority than
/// threads that compute: on a busy processor they get a tenth of it, and a computing thread is not
/// interrupted whenever a disk request ends. On an idle processor nothing changes.
///
/// Threads: for good; other threads of the process stay as they are
/// Source:  setpriority(2): on Linux a nice value is a thread's own
void StepBackBehindComputation();

/// True when a sanitizer's shadow of every touched byte, or freed memory that it keeps, counts as
/// resident too: figures of ResidentBytes() then say nothing about this program, and tests that
/// assert them skip.
inline constexpr bool kResidentBytesIncludeShadow =
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)  // g++
    true;
#elif defined(__has_feature)  // clang
    __has_feature(thread_sanitizer) || __has_feature(address_sanitizer);
#else
    false;
#endif

}  // namespace quire

#endif  // QUIRE_ENV_MACHINE_H_
