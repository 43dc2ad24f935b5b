// A device for tests: memory that the host may not touch, and operations that are done later.
#ifndef QUIRE_CACHE_TEST_DEVICE_H_
#define QUIRE_CACHE_TEST_DEVICE_H_

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/bits.h"
#include "base/check.h"
#include "base/mutex.h"
#include "base/prng.h"
#include "quire/block_ops.h"
#include "quire/cache.h"
#include "quire/env.h"

namespace quire::cache {

/// Memory whose addresses fault when the host reads or writes them, committed or not. Its pages
/// lie at another address too, which only operations and tests know.
///
/// Threads: any
class ProtectedMemory final : public DeviceMemory {
 public:
  std::string_view name() const override { return "protected"; }
  bool host_accessible() const override { return false; }

  Result<std::byte*> Reserve(uint64_t bytes) override {
    const auto refused = [&] {
      return Fail(ErrorCode::kNoSpace, "protected: cannot reserve " + std::to_string(bytes));
    };
    if (bytes == 0 || bytes > uint64_t{1} << 46) return refused();
    const uint64_t mapped_bytes = RoundUp(bytes, kPageBytes);
    const int file = ::memfd_create("quire-test-device", MFD_CLOEXEC);
    QUIRE_CHECK(file >= 0);
    QUIRE_CHECK(::ftruncate(file, static_cast<off_t>(mapped_bytes)) == 0);
    void* const device = Map(file, mapped_bytes);
    void* const window = Map(file, mapped_bytes);
    ::close(file);
    if (device == MAP_FAILED || window == MAP_FAILED) return refused();
    MutexLock lock(mutex_);
    regions_.push_back({.device = static_cast<std::byte*>(device),
                        .window = static_cast<std::byte*>(window),
                        .bytes = mapped_bytes});
    return regions_.back().device;
  }
  Result<void> Commit(std::byte* begin, uint64_t bytes) override {
    const uint64_t before_bytes = reinterpret_cast<uintptr_t>(begin) % kPageBytes;
    std::byte* const first = Window(begin) - before_bytes;
    const uint64_t all_bytes = RoundUp(before_bytes + bytes, kPageBytes);
    if (::mprotect(first, all_bytes, PROT_READ | PROT_WRITE) == 0) return {};
    return Fail(ErrorCode::kNoSpace, "protected: cannot commit " + std::to_string(bytes));
  }
  void Decommit(std::byte* begin, uint64_t bytes) override {
    Discard(begin, bytes);
    const Inside pages = PagesInside(begin, bytes);
    if (pages.bytes > 0) QUIRE_CHECK(::mprotect(pages.first, pages.bytes, PROT_NONE) == 0);
  }
  void Release(std::byte* base, uint64_t bytes) override {
    const uint64_t mapped_bytes = RoundUp(bytes, kPageBytes);
    QUIRE_CHECK(::munmap(Window(base), mapped_bytes) == 0);
    QUIRE_CHECK(::munmap(base, mapped_bytes) == 0);
    MutexLock lock(mutex_);
    std::erase_if(regions_, [&](const Region& region) { return region.device == base; });
  }
  void Discard(std::byte* begin, uint64_t bytes) override {
    const Inside pages = PagesInside(begin, bytes);
    if (pages.bytes > 0) QUIRE_CHECK(::madvise(pages.first, pages.bytes, MADV_REMOVE) == 0);
  }

  /// Where the host finds the byte of an address of this memory; null: it is not of this memory.
  std::byte* Find(const std::byte* address) const {
    MutexLock lock(mutex_);
    for (const Region& region : regions_) {
      if (address >= region.device && address < region.device + region.bytes) {
        return region.window + (address - region.device);
      }
    }
    return nullptr;
  }
  std::byte* Window(const std::byte* address) const {
    std::byte* const found = Find(address);
    QUIRE_CHECK_MSG(found != nullptr, "an operation outside the device's memory");
    return found;
  }

 private:
  static constexpr uint64_t kPageBytes = 4096;
  struct Region {
    std::byte* device = nullptr;
    std::byte* window = nullptr;
    uint64_t bytes = 0;
  };
  struct Inside {
    std::byte* first = nullptr;  // in the window
    uint64_t bytes = 0;
  };

  static void* Map(int file, uint64_t bytes) {
    return ::mmap(nullptr, bytes, PROT_NONE, MAP_SHARED | MAP_NORESERVE, file, 0);
  }
  Inside PagesInside(std::byte* begin, uint64_t bytes) const {
    const uint64_t from = RoundUp(reinterpret_cast<uintptr_t>(begin), kPageBytes);
    const uint64_t to = RoundDown(reinterpret_cast<uintptr_t>(begin) + bytes, kPageBytes);
    if (from >= to) return {};
    return {.first = Window(reinterpret_cast<std::byte*>(from)), .bytes = to - from};
  }

  mutable Mutex mutex_{LockRank{65534}};
  std::vector<Region> regions_ QUIRE_GUARDED_BY(mutex_);
};

/// The host's operations through the window, in order, each some time after it was enqueued: when
/// its fence is asked or waited for, or when the seed says so.
///
/// Threads:  any
/// Lifetime: the memory must outlive it, and it its fences
class DelayedOps final : public BlockOps {
 public:
  DelayedOps(const ProtectedMemory& memory, uint64_t seed) : memory_(memory), prng_(seed) {}
  ~DelayedOps() override { Synchronize(); }

  void WriteRows(const StreamLayout& stream, const RowsView& rows, uint32_t row_begin,
                 TokensInBlock at, std::byte* slot) override {
    const auto value_bytes = static_cast<int64_t>(CodecBitsPerValue(rows.dtype) / 8);
    const int64_t row_bytes = stream.dim * value_bytes;
    std::vector<std::byte> kept;  // [tokens][heads][dim]
    try {
      kept.reserve(uint64_t{at.count} * stream.heads * static_cast<uint64_t>(row_bytes));
      for (uint32_t t = 0; t < at.count; ++t) {
        for (uint32_t head = 0; head < stream.heads; ++head) {
          const auto* row =
              static_cast<const std::byte*>(rows.data) +
              (int64_t{row_begin + t} * rows.token_stride + int64_t{head} * rows.head_stride) *
                  value_bytes;
          kept.insert(kept.end(), row, row + row_bytes);
        }
      }
    } catch (const std::bad_alloc&) {
      Synchronize();
      return host_.WriteRows(stream, rows, row_begin, at, memory_.Window(slot));
    }
    Enqueue([this, stream, dtype = rows.dtype, kept = std::move(kept), at, slot] {
      host_.WriteRows(stream,
                      {.data = kept.data(),
                       .dtype = dtype,
                       .token_stride = int64_t{stream.heads} * stream.dim,
                       .head_stride = stream.dim},
                      0, at, memory_.Window(slot));
    });
  }
  void Encode(const StreamLayout& open, const std::byte* open_slot, const StreamLayout& sealed,
              std::byte* sealed_slot) override {
    Enqueue([this, open, open_slot, sealed, sealed_slot] {
      host_.Encode(open, memory_.Window(open_slot), sealed, memory_.Window(sealed_slot));
    });
  }
  void Checksum(const std::byte* slot, const SlotPieces& pieces, uint32_t* crc) override {
    Enqueue([this, slot, pieces, crc] { host_.Checksum(memory_.Window(slot), pieces, crc); });
  }
  void Zero(std::byte* slot, const SlotPieces& pieces) override {
    Enqueue([this, slot, pieces] { host_.Zero(memory_.Window(slot), pieces); });
  }
  void Copy(const std::byte* from, std::byte* to, const SlotPieces& pieces) override {
    Enqueue(
        [this, from, to, pieces] { host_.Copy(memory_.Window(from), memory_.Window(to), pieces); });
  }
  void CopyOut(const std::byte* slot, const SlotPieces& pieces, std::byte* host) override {
    Enqueue([this, slot, pieces, host] { host_.CopyOut(memory_.Window(slot), pieces, host); });
  }
  void CopyIn(const std::byte* host, const SlotPieces& pieces, std::byte* slot) override {
    Enqueue([this, host, pieces, slot] { host_.CopyIn(host, pieces, memory_.Window(slot)); });
  }
  void ReadRows(const StreamLayout& stream, const std::byte* slot, TokensInBlock at, float* out,
                int64_t out_head_stride) override {
    Enqueue([this, stream, slot, at, out, out_head_stride] {
      host_.ReadRows(stream, memory_.Window(slot), at, out, out_head_stride);
    });
  }
  std::unique_ptr<Fence> Record() override {
    try {
      MutexLock lock(mutex_);
      return std::make_unique<QueueFence>(*this, enqueued_);
    } catch (const std::bad_alloc&) {
      RunUpTo(UINT64_MAX);
      return nullptr;
    }
  }

  /// Of all operations so far, those that were enqueued, and those that are done.
  uint64_t enqueued() const {
    MutexLock lock(mutex_);
    return enqueued_;
  }
  uint64_t done() const {
    MutexLock lock(mutex_);
    return done_;
  }

 private:
  class QueueFence final : public Fence {
   public:
    QueueFence(DelayedOps& ops, uint64_t end) : ops_(ops), end_(end) {}
    bool IsDone() const override { return ops_.Poll(end_); }
    void Wait() override { ops_.RunUpTo(end_); }

   private:
    DelayedOps& ops_;
    const uint64_t end_;
  };

  static constexpr uint64_t kWaitingMax = 24;

  template <typename Operation>
  void Enqueue(Operation operation) {
    MutexLock lock(mutex_);
    ++enqueued_;
    try {
      queue_.emplace_back(operation);
    } catch (const std::bad_alloc&) {
      RunSome(UINT64_MAX);
      operation();
      ++done_;
      return;
    }
    RunSome(queue_.size() > kWaitingMax ? kWaitingMax / 2 : prng_.NextBelow(3));
  }
  void RunSome(uint64_t count) QUIRE_REQUIRES(mutex_) {
    for (; count > 0 && !queue_.empty(); --count) {
      queue_.front()();
      queue_.pop_front();
      ++done_;
    }
  }
  void RunUpTo(uint64_t end) {
    MutexLock lock(mutex_);
    RunSome(end - std::min(end, done_));
  }
  bool Poll(uint64_t end) {
    MutexLock lock(mutex_);
    RunSome(prng_.NextBelow(4));
    return done_ >= end;
  }

  const ProtectedMemory& memory_;
  BlockOps& host_ = HostBlockOps();
  mutable Mutex mutex_{LockRank{65533}};
  std::deque<std::function<void()>> queue_ QUIRE_GUARDED_BY(mutex_);
  uint64_t enqueued_ QUIRE_GUARDED_BY(mutex_) = 0;
  uint64_t done_ QUIRE_GUARDED_BY(mutex_) = 0;
  Prng prng_ QUIRE_GUARDED_BY(mutex_);
};

/// Done when the test says so. Waiting for it, unless it is done, is noted.
class HandFence final : public Fence {
 public:
  bool IsDone() const override { return done_; }
  void Wait() override {
    waited_ = waited_ || !done_;
    done_ = true;
  }
  void Complete() { done_ = true; }
  bool waited() const { return waited_; }

 private:
  std::atomic<bool> done_ = false;
  std::atomic<bool> waited_ = false;
};

struct TestDevice {
  ProtectedMemory memory{};
  DelayedOps ops{memory, /*seed=*/1};
};

/// The device on which this run of the tests has its caches; null: they are on host memory.
inline TestDevice* DeviceOfTests() {
  static TestDevice* const device = []() -> TestDevice* {
    const char* const wanted = std::getenv("QUIRE_TEST_DEVICE");
    if (wanted == nullptr) return nullptr;
    QUIRE_CHECK_MSG(std::string_view(wanted) == "protected",
                    "QUIRE_TEST_DEVICE: protected, or unset");
    return new TestDevice;  // lives as long as the program
  }();
  return device;
}

inline CacheOptions OnTestDevice(CacheOptions options) {
  if (TestDevice* const device = DeviceOfTests(); device != nullptr) {
    options.memory = &device->memory;
    options.ops = &device->ops;
  }
  return options;
}

inline std::string_view TestDeviceName() {
  return DeviceOfTests() == nullptr ? "cpu" : DeviceOfTests()->memory.name();
}

/// Where a test may read, and damage, what lies at an address that a cache gave out, as it is when
/// all operations so far are done.
template <typename T>
T* OnHost(T* address) {
  TestDevice* const device = DeviceOfTests();
  if (device == nullptr) return address;
  device->ops.Synchronize();
  const auto* const byte = reinterpret_cast<const std::byte*>(address);
  std::byte* const found = device->memory.Find(byte);
  return found == nullptr ? address : reinterpret_cast<T*>(found);
}

}  // namespace quire::cache

#endif  // QUIRE_CACHE_TEST_DEVICE_H_
