#include "env/shared_memory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <utility>

#include "env/file.h"

namespace quire {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
constexpr const char* kName = "shared memory";

}  // namespace

Result<SharedMemory> SharedMemory::Create(uint64_t bytes) {
  Descriptor file(::memfd_create("quire", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (file.get() < 0) return FailErrno(errno, "memfd_create", kName);
  if (::ftruncate(file.get(), static_cast<off_t>(bytes)) != 0) {
    return FailErrno(errno, "ftruncate", kName);
  }
  if (::fcntl(file.get(), F_ADD_SEALS, kSeals) != 0) return FailErrno(errno, "seal", kName);
  return Map(std::move(file), bytes);
}

Result<SharedMemory> SharedMemory::Map(Descriptor file, uint64_t bytes) {
  struct stat status{};
  if (::fstat(file.get(), &status) != 0) return FailErrno(errno, "stat", kName);
  if (bytes == 0 || std::cmp_less(status.st_size, bytes)) {
    return Fail(ErrorCode::kCorrupt,
                fmt::format("{}: {} bytes, not {}", kName, status.st_size, bytes));
  }
  const int seals = ::fcntl(file.get(), F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    return Fail(ErrorCode::kCorrupt, fmt::format("{}: its length is not sealed", kName));
  }
  void* const memory =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file.get(), 0);
  if (memory == MAP_FAILED) return FailErrno(errno, "mmap", kName);
  SharedMemory mapped;
  mapped.file_ = std::move(file);
  mapped.bytes_ = {static_cast<std::byte*>(memory), bytes};
  return mapped;
}

SharedMemory::SharedMemory(SharedMemory&& other) noexcept
    : file_(std::move(other.file_)), bytes_(std::exchange(other.bytes_, {})) {}

SharedMemory& SharedMemory::operator=(SharedMemory&& other) noexcept {
  std::swap(file_, other.file_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

SharedMemory::~SharedMemory() {
  if (!bytes_.empty()) ::munmap(bytes_.data(), bytes_.size());
}

}  // namespace quire
