// The interfaces through which an embedder lends the engine threads and memory.
#ifndef QUIRE_ENV_H_
#define QUIRE_ENV_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <type_traits>

#include "quire/error.h"

namespace [[gnu::visibility("default")]] quire {

/// Microseconds from an arbitrary start; never goes back.
///
/// Threads: any
class Clock {
 public:
  virtual ~Clock() = default;
  virtual uint64_t NowMicros() const = 0;
};

/// Runs independent items of work. Results never depend on how many workers there are.
class Executor {
 public:
  virtual ~Executor() = default;

  /// Workers that may run at the same time, the calling thread included; at least 1.
  virtual uint32_t worker_count() const = 0;

  /// Calls `work(context, item, worker)` once for every item in [0, items), in any order, on the
  /// calling thread and the workers; returns when all are done. worker < worker_count(), and no two
  /// running calls have the same.
  ///
  /// Threads: one Run at a time per executor; `work` must not throw and must not call Run.
  virtual void Run(uint32_t items, void (*work)(void* context, uint32_t item, uint32_t worker),
                   void* context) = 0;

  /// The same with a callable.
  template <typename Work>
  void ParallelFor(uint32_t items, Work&& work) {
    Run(
        items,
        [](void* context, uint32_t item, uint32_t worker) {
          (*static_cast<std::remove_reference_t<Work>*>(context))(item, worker);
        },
        const_cast<void*>(static_cast<const void*>(&work)));
  }
};

/// A pool of `workers` threads (the caller is one of them).
std::unique_ptr<Executor> MakeThreadPool(uint32_t workers);

/// Completion of work on a device: an event on CUDA. Once done it stays done.
///
/// Threads: any. The cache asks IsDone while it holds its lock: it returns at once and calls no
///          cache
class Fence {
 public:
  virtual ~Fence() = default;
  virtual bool IsDone() const = 0;
  /// Returns when it is done.
  virtual void Wait() = 0;
};

/// Address space of one device for arenas. Reserving takes addresses only; committed memory may be
/// used, and its pages become resident at first write. BlockOps (quire/block_ops.h) move and change
/// the bytes.
class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;

  /// "cpu", "cuda:0".
  virtual std::string_view name() const = 0;
  /// True when the host may dereference pointers of this memory.
  virtual bool host_accessible() const = 0;

  /// Reserves `bytes` of address space, aligned to at least 4,096 bytes. Not to be touched yet.
  /// Errors: kNoSpace with the number of bytes asked for.
  virtual Result<std::byte*> Reserve(uint64_t bytes) = 0;
  /// Makes every page with a byte in [begin, begin + bytes) usable; it reads as zero, or as before
  /// if it was usable already.
  /// Errors: kNoSpace with the number of bytes asked for; nothing changes.
  virtual Result<void> Commit(std::byte* begin, uint64_t bytes) = 0;
  /// Takes whole pages inside [begin, begin + bytes) out of use; their contents are lost.
  virtual void Decommit(std::byte* begin, uint64_t bytes) = 0;
  /// Gives back a reservation whole.
  virtual void Release(std::byte* base, uint64_t bytes) = 0;
  /// Drops the contents of whole pages inside [begin, begin + bytes); they read as zero afterwards.
  virtual void Discard(std::byte* begin, uint64_t bytes) = 0;
};

/// Host memory (mmap; `huge_pages` asks for transparent huge pages).
std::unique_ptr<DeviceMemory> MakeHostMemory(bool huge_pages);

}  // namespace quire

#endif  // QUIRE_ENV_H_
