// Memory that two processes have in common.
#ifndef QUIRE_ENV_SHARED_MEMORY_H_
#define QUIRE_ENV_SHARED_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "env/descriptor.h"
#include "quire/error.h"

namespace quire {

/// Pages of a file without a name, whose length is sealed: neither process can cut off what the
/// other one reads, which would kill it. Pages that neither has written take no memory.
///
/// Threads: any; what two write at once is theirs to order
class SharedMemory {
 public:
  SharedMemory() = default;
  /// Zeros. `bytes` is at least 1.
  /// Errors: kIo, kNoSpace the system has none
  static Result<SharedMemory> Create(uint64_t bytes);
  /// What another process made and handed over.
  /// Errors: kCorrupt it is shorter, or not sealed; kIo
  static Result<SharedMemory> Map(Descriptor file, uint64_t bytes);

  SharedMemory(SharedMemory&& other) noexcept;
  SharedMemory& operator=(SharedMemory&& other) noexcept;
  ~SharedMemory();

  std::span<std::byte> bytes() const { return bytes_; }
  /// For handing it over. Closed with the object.
  int descriptor() const { return file_.get(); }

 private:
  Descriptor file_{};
  std::span<std::byte> bytes_{};
};

}  // namespace quire

#endif  // QUIRE_ENV_SHARED_MEMORY_H_
