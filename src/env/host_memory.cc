// Host memory for arenas: address space now, the right to use it later, pages at first write.
#include <fmt/format.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <limits>
#include <string_view>
#include <system_error>

#include "base/bits.h"
#include "base/check.h"
#include "quire/block_ops.h"
#include "quire/env.h"

namespace quire {
namespace {

constexpr uint64_t kPageBytes = 4096;
constexpr uint64_t kHugePageBytes = 2ull << 20;

// The kernel merges neighbouring mappings that look alike, and unmapping the middle of one splits
// it in two, which fails where the process may have no more mappings. Then the addresses stay and
// only the pages are given back.
void Unmap(std::byte* begin, uint64_t bytes) {
  if (::munmap(begin, bytes) == 0) return;
  const int error = errno;
  QUIRE_CHECK_MSG(
      error == ENOMEM && ::madvise(begin, bytes, MADV_DONTNEED) == 0,
      fmt::format("munmap of {} bytes: {}", bytes, std::generic_category().message(error)));
}

class HostMemory final : public DeviceMemory {
 public:
  explicit HostMemory(bool huge_pages) : huge_pages_(huge_pages) {}

  std::string_view name() const override { return "cpu"; }
  bool host_accessible() const override { return true; }

  Result<std::byte*> Reserve(uint64_t bytes) override {
    if (bytes == 0) return Fail(ErrorCode::kInvalidArgument, "cpu: reservation of 0 bytes");
    if (bytes > std::numeric_limits<int64_t>::max()) return NoSpace("reserve", bytes, ENOMEM);
    const uint64_t mapped_bytes = RoundUp(bytes, granule_bytes());
    // The kernel aligns to 4 KiB; to align to more, map more and give the ends back.
    const uint64_t spare_bytes = granule_bytes() - kPageBytes;
    void* mapping = ::mmap(nullptr, mapped_bytes + spare_bytes, PROT_NONE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapping == MAP_FAILED) return NoSpace("reserve", bytes, errno);

    auto* const begin = static_cast<std::byte*>(mapping);
    const uint64_t head_bytes = RoundUp(reinterpret_cast<uintptr_t>(begin), granule_bytes()) -
                                reinterpret_cast<uintptr_t>(begin);
    std::byte* const base = begin + head_bytes;
    if (head_bytes > 0) Unmap(begin, head_bytes);
    if (spare_bytes > head_bytes) Unmap(base + mapped_bytes, spare_bytes - head_bytes);
    // Advised in both cases: with the system set to `always`, one written byte would otherwise make
    // 2 MiB resident and the resident set would no longer follow use. Advice may fail (a kernel
    // without huge pages); then pages are small, which is correct and only slower.
    static_cast<void>(::madvise(base, mapped_bytes, huge_pages_ ? MADV_HUGEPAGE : MADV_NOHUGEPAGE));
    return base;
  }

  // Fails where the process or the machine has a limit on private memory (RLIMIT_DATA, strict
  // overcommit). Elsewhere Linux runs out of memory only at the first write.
  Result<void> Commit(std::byte* begin, uint64_t bytes) override {
    const Pages pages = PagesAround(begin, bytes);
    if (::mprotect(pages.first, pages.bytes, PROT_READ | PROT_WRITE) == 0) return {};
    return NoSpace("commit", bytes, errno);
  }

  void Decommit(std::byte* begin, uint64_t bytes) override {
    Discard(begin, bytes);
    const Pages pages = PagesInside(begin, bytes);
    // May fail where the process has no mapping left to split; then the pages are free and usable.
    if (pages.bytes > 0) static_cast<void>(::mprotect(pages.first, pages.bytes, PROT_NONE));
  }

  void Release(std::byte* base, uint64_t bytes) override {
    Unmap(base, RoundUp(bytes, granule_bytes()));
  }

  void Discard(std::byte* begin, uint64_t bytes) override {
    const Pages pages = PagesInside(begin, bytes);
    if (pages.bytes == 0) return;
    // Refused for locked pages (mlock): they stay resident, but must still read as zero.
    if (::madvise(pages.first, pages.bytes, MADV_DONTNEED) != 0) {
      std::memset(pages.first, 0, pages.bytes);
    }
  }

 private:
  struct Pages {
    std::byte* first;
    uint64_t bytes;
  };
  static Pages PagesAround(std::byte* begin, uint64_t bytes) {
    const auto address = reinterpret_cast<uintptr_t>(begin);
    const uint64_t from = RoundDown(address, kPageBytes);
    return {.first = reinterpret_cast<std::byte*>(from),
            .bytes = RoundUp(address + bytes, kPageBytes) - from};
  }
  static Pages PagesInside(std::byte* begin, uint64_t bytes) {
    const auto address = reinterpret_cast<uintptr_t>(begin);
    const uint64_t from = RoundUp(address, kPageBytes);
    const uint64_t to = RoundDown(address + bytes, kPageBytes);
    return {.first = reinterpret_cast<std::byte*>(from), .bytes = from < to ? to - from : 0};
  }

  uint64_t granule_bytes() const { return huge_pages_ ? kHugePageBytes : kPageBytes; }

  static std::unexpected<Error> NoSpace(std::string_view what, uint64_t bytes, int error) {
    return Fail(ErrorCode::kNoSpace,
                fmt::format("cpu: cannot {} {} bytes of address space: {}", what, bytes,
                            std::generic_category().message(error)));
  }

  const bool huge_pages_;
};

class PlainAllocator final : public HostAllocator {
 public:
  std::string_view name() const override { return "cpu"; }
  bool pinned() const override { return false; }
  Result<std::byte*> Allocate(uint64_t bytes) override {
    void* const mapping = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapping != MAP_FAILED) return static_cast<std::byte*>(mapping);
    return Fail(ErrorCode::kNoSpace, fmt::format("cpu: cannot allocate {} bytes: {}", bytes,
                                                 std::generic_category().message(errno)));
  }
  void Free(std::byte* memory, uint64_t bytes) override { Unmap(memory, bytes); }
};

}  // namespace

HostAllocator& PlainHostAllocator() {
  static PlainAllocator allocator;
  return allocator;
}

std::unique_ptr<DeviceMemory> MakeHostMemory(bool huge_pages) {
  return std::make_unique<HostMemory>(huge_pages);
}

}  // namespace quire
