// A device for tests: memory that the host must not touch, and operations that are done later.
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
#include <memory>
#include <new>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/bits.h"
#include "base/check.h"
#include "base/mutex.h"
#include "env/late_streams.h"
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

/// The host's operations through the window, each some time after it was enqueued: when its fence
/// is polled or waited for, or when the seed says so. Copies from and to the host run on streams of
/// their own, as late and as early as the contract of BlockOps allows.
///
/// Threads:  any
/// Lifetime: the memory must outlive it, and it its fences
class DelayedOps final : public BlockOps {
 public:
  DelayedOps(const ProtectedMemory& memory, uint64_t seed)
      : memory_(memory), streams_("protected", seed) {}
  ~DelayedOps() override { streams_.RunAll(); }

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
      streams_.RunAll();
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
  void CopyOut(const std::byte* slot, const SlotPieces& pieces,
               std::span<const SlotSection> sections) override {
    streams_.Order(kOperations, kOut);
    EnqueueCopy(sections, kOut, [this, slot, pieces](std::span<const SlotSection> kept) {
      host_.CopyOut(memory_.Window(slot), pieces, kept);
    });
  }
  void CopyIn(std::span<const SlotSection> sections, const SlotPieces& pieces,
              std::byte* slot) override {
    streams_.Order(kOperations, kIn);
    EnqueueCopy(sections, kIn, [this, pieces, slot](std::span<const SlotSection> kept) {
      host_.CopyIn(kept, pieces, memory_.Window(slot));
    });
  }
  void ReadRows(const StreamLayout& stream, const std::byte* slot, TokensInBlock at, float* out,
                int64_t out_head_stride) override {
    Enqueue([this, stream, slot, at, out, out_head_stride] {
      host_.ReadRows(stream, memory_.Window(slot), at, out, out_head_stride);
    });
  }
  std::unique_ptr<Fence> Record() override { return FenceOf(kOperations); }
  std::unique_ptr<Fence> RecordCopies(CopyWay way) override {
    return FenceOf(way == CopyWay::kIn ? kIn : kOut);
  }

  Result<void> outcome() const override { return streams_.outcome(); }

  /// The streams that run the operations: tests count them, and let them fail.
  LateStreams& streams() { return streams_; }

 private:
  static constexpr uint32_t kOperations = 0;
  static constexpr uint32_t kIn = 1;
  static constexpr uint32_t kOut = 2;

  std::unique_ptr<Fence> FenceOf(uint32_t stream) {
    try {
      return std::make_unique<LateFence>(streams_, streams_.Now(stream));
    } catch (const std::bad_alloc&) {
      streams_.RunAll();
      return nullptr;
    }
  }
  // The copied pieces need not outlive the call.
  template <typename Copying>
  void EnqueueCopy(std::span<const SlotSection> sections, uint32_t stream, Copying copy) {
    std::vector<SlotSection> kept;
    try {
      kept.assign(sections.begin(), sections.end());
    } catch (const std::bad_alloc&) {
      streams_.RunAll();
      return copy(sections);
    }
    Enqueue([copy, kept = std::move(kept)] { copy(kept); }, stream);
  }
  template <typename Operation>
  void Enqueue(Operation operation, uint32_t stream = kOperations) {
    try {
      streams_.Enqueue(stream, operation);
    } catch (const std::bad_alloc&) {
      streams_.RunAll();
      operation();
    }
  }

  const ProtectedMemory& memory_;
  BlockOps& host_ = HostBlockOps();
  LateStreams streams_;
};

/// Done when the test says so. Counts waits before that.
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

/// Where a test may read, and damage, the bytes at an address that a cache returned, after all
/// operations so far.
template <typename T>
T* OnHost(T* address) {
  TestDevice* const device = DeviceOfTests();
  if (device == nullptr) return address;
  device->ops.streams().RunAll();
  const auto* const byte = reinterpret_cast<const std::byte*>(address);
  std::byte* const found = device->memory.Find(byte);
  return found == nullptr ? address : reinterpret_cast<T*>(found);
}

}  // namespace quire::cache

#endif  // QUIRE_CACHE_TEST_DEVICE_H_
