#include "cuda/granule_memory.h"

#include <fmt/format.h>

#include <limits>
#include <set>
#include <utility>
#include <vector>

#include "base/bits.h"
#include "base/mutex.h"

namespace quire::cuda {
namespace {

constexpr uint64_t kPageBytes = 4096;  // what Discard drops and Reserve promises

uint64_t AddressOf(const std::byte* byte) { return reinterpret_cast<uintptr_t>(byte); }
std::byte* ByteAt(uint64_t address) { return reinterpret_cast<std::byte*>(address); }

class GranuleMemory final : public DeviceMemory {
 public:
  GranuleMemory(std::string name, GranuleDriver& driver, Device& device)
      : name_(std::move(name)), driver_(driver), device_(device) {}

  std::string_view name() const override { return name_; }
  bool host_accessible() const override { return false; }

  Result<std::byte*> Reserve(uint64_t bytes) override {
    if (bytes == 0) return Fail(ErrorCode::kInvalidArgument, name_ + ": reservation of 0 bytes");
    if (bytes > uint64_t{std::numeric_limits<int64_t>::max()}) {
      return Fail(ErrorCode::kNoSpace, fmt::format("{}: cannot reserve {} bytes", name_, bytes));
    }
    return driver_.ReserveAddresses(RoundUp(bytes, granule_bytes()));
  }

  Result<void> Commit(std::byte* begin, uint64_t bytes) override {
    MutexLock lock(mutex_);
    const uint64_t end = RoundUp(AddressOf(begin) + bytes, granule_bytes());
    std::vector<uint64_t> mapped;
    for (uint64_t at = RoundDown(AddressOf(begin), granule_bytes()); at < end;
         at += granule_bytes()) {
      if (mapped_.contains(at)) continue;
      if (const Result<void> done = driver_.Map(ByteAt(at)); !done) {
        for (const uint64_t granule : mapped) Unmap(granule);
        return Fail(ErrorCode::kNoSpace, fmt::format("{}: cannot commit {} bytes: {}", name_, bytes,
                                                     done.error().message));
      }
      mapped.push_back(at);
      mapped_.insert(at);
      device_.Zero(ByteAt(at), {.bytes = granule_bytes()});
    }
    return {};
  }

  void Decommit(std::byte* begin, uint64_t bytes) override {
    MutexLock lock(mutex_);
    UnmapAll(RoundUp(AddressOf(begin), granule_bytes()),
             RoundDown(AddressOf(begin) + bytes, granule_bytes()));
  }

  void Release(std::byte* base, uint64_t bytes) override {
    MutexLock lock(mutex_);
    const uint64_t whole_bytes = RoundUp(bytes, granule_bytes());
    UnmapAll(AddressOf(base), AddressOf(base) + whole_bytes);
    driver_.FreeAddresses(base, whole_bytes);
  }

  // Discarding does not unmap single pages, and writing maps none: pages are zeroed in place.
  void Discard(std::byte* begin, uint64_t bytes) override {
    const uint64_t from = RoundUp(AddressOf(begin), kPageBytes);
    const uint64_t to = RoundDown(AddressOf(begin) + bytes, kPageBytes);
    if (from < to) device_.Zero(ByteAt(from), {.bytes = to - from});
  }

 private:
  uint64_t granule_bytes() const { return driver_.granule_bytes(); }

  void UnmapAll(uint64_t begin, uint64_t end) QUIRE_REQUIRES(mutex_) {
    const std::vector<uint64_t> gone(mapped_.lower_bound(begin), mapped_.lower_bound(end));
    if (begin >= end || gone.empty()) return;
    // A failure of the device is returned by the call that waits for it; the memory is released in
    // any case.
    for (const Stream stream : kStreams) static_cast<void>(device_.Synchronize(stream));
    for (const uint64_t granule : gone) Unmap(granule);
  }

  void Unmap(uint64_t granule) QUIRE_REQUIRES(mutex_) {
    mapped_.erase(granule);
    driver_.Unmap(ByteAt(granule));
  }

  const std::string name_;
  GranuleDriver& driver_;
  Device& device_;
  Mutex mutex_{LockRank::kDeviceOps};
  std::set<uint64_t> mapped_ QUIRE_GUARDED_BY(mutex_);  // granules, by address
};

}  // namespace

std::unique_ptr<DeviceMemory> MakeGranuleMemory(std::string name, GranuleDriver& driver,
                                                Device& device) {
  return std::make_unique<GranuleMemory>(std::move(name), driver, device);
}

}  // namespace quire::cuda
