// Host memory for arenas: address space now, pages at first write.
#include <fmt/format.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <limits>
#include <system_error>

#include "base/bits.h"
#include "base/check.h"
#include "quire/env.h"

namespace quire {
namespace {

constexpr uint64_t kPageBytes = 4096;
constexpr uint64_t kHugePageBytes = 2ull << 20;

class HostMemory final : public DeviceMemory {
 public:
  explicit HostMemory(bool huge_pages) : huge_pages_(huge_pages) {}

  std::string_view name() const override { return "cpu"; }
  bool host_accessible() const override { return true; }

  Result<std::byte*> Reserve(uint64_t bytes) override {
    if (bytes == 0) return Fail(ErrorCode::kInvalidArgument, "cpu: reservation of 0 bytes");
    if (bytes > std::numeric_limits<int64_t>::max()) return NoSpace(bytes, ENOMEM);
    const uint64_t mapped_bytes = RoundUp(bytes, granule_bytes());
    // The kernel aligns to 4 KiB; to align to more, map more and give the ends back.
    const uint64_t spare_bytes = granule_bytes() - kPageBytes;
    void* mapping = ::mmap(nullptr, mapped_bytes + spare_bytes, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapping == MAP_FAILED) return NoSpace(bytes, errno);

    auto* const begin = static_cast<std::byte*>(mapping);
    const uint64_t head_bytes = RoundUp(reinterpret_cast<uintptr_t>(begin), granule_bytes()) -
                                reinterpret_cast<uintptr_t>(begin);
    std::byte* const base = begin + head_bytes;
    if (head_bytes > 0) Unmap(begin, head_bytes);
    if (spare_bytes > head_bytes) Unmap(base + mapped_bytes, spare_bytes - head_bytes);
    // Said either way: with the system set to `always`, one written byte would otherwise make 2 MiB
    // resident and the resident set would no longer follow use. Advice may fail (a kernel without
    // huge pages); then pages are small, which is correct and only slower.
    static_cast<void>(::madvise(base, mapped_bytes, huge_pages_ ? MADV_HUGEPAGE : MADV_NOHUGEPAGE));
    return base;
  }

  void Release(std::byte* base, uint64_t bytes) override {
    Unmap(base, RoundUp(bytes, granule_bytes()));
  }

  void Discard(std::byte* begin, uint64_t bytes) override {
    const uint64_t from = RoundUp(reinterpret_cast<uintptr_t>(begin), kPageBytes);
    const uint64_t to = RoundDown(reinterpret_cast<uintptr_t>(begin) + bytes, kPageBytes);
    if (from >= to) return;
    auto* const first = reinterpret_cast<std::byte*>(from);
    // Refused for locked pages (mlock): they stay resident, but must still read as zero.
    if (::madvise(first, to - from, MADV_DONTNEED) != 0) std::memset(first, 0, to - from);
  }

  std::unique_ptr<Fence> Copy(std::byte* to, const std::byte* from, uint64_t bytes) override {
    std::memcpy(to, from, bytes);
    return nullptr;
  }

 private:
  uint64_t granule_bytes() const { return huge_pages_ ? kHugePageBytes : kPageBytes; }

  static std::unexpected<Error> NoSpace(uint64_t bytes, int error) {
    return Fail(ErrorCode::kNoSpace,
                fmt::format("cpu: cannot reserve {} bytes of address space: {}", bytes,
                            std::generic_category().message(error)));
  }

  static void Unmap(std::byte* begin, uint64_t bytes) {
    QUIRE_CHECK_MSG(
        ::munmap(begin, bytes) == 0,
        fmt::format("munmap of {} bytes: {}", bytes, std::generic_category().message(errno)));
  }

  const bool huge_pages_;
};

}  // namespace

std::unique_ptr<DeviceMemory> MakeHostMemory(bool huge_pages) {
  return std::make_unique<HostMemory>(huge_pages);
}

}  // namespace quire
