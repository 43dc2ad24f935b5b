// One reservation of device memory, owned.
#ifndef QUIRE_ENV_RESERVATION_H_
#define QUIRE_ENV_RESERVATION_H_

#include <cstddef>
#include <cstdint>
#include <utility>

#include "quire/env.h"

namespace quire {

/// Gives its address space back when it ends.
///
/// Lifetime: the memory must outlive it
class Reservation {
 public:
  /// Address space, nothing of it committed.
  /// Errors: those of DeviceMemory::Reserve
  static Result<Reservation> Create(DeviceMemory& memory, uint64_t bytes) {
    QUIRE_ASSIGN(std::byte* const base, memory.Reserve(bytes));
    return Reservation(memory, base, bytes);
  }
  /// All of it committed.
  /// Errors: those of DeviceMemory::Reserve and Commit
  static Result<Reservation> CreateCommitted(DeviceMemory& memory, uint64_t bytes) {
    QUIRE_ASSIGN(Reservation made, Create(memory, bytes));
    QUIRE_TRY(memory.Commit(made.base(), bytes));
    return made;
  }

  Reservation(Reservation&& other) noexcept
      : memory_(other.memory_), base_(std::exchange(other.base_, nullptr)), bytes_(other.bytes_) {}
  Reservation& operator=(Reservation&&) = delete;
  ~Reservation() {
    if (base_ != nullptr) memory_->Release(base_, bytes_);
  }

  std::byte* base() const { return base_; }
  uint64_t bytes() const { return bytes_; }
  DeviceMemory& memory() const { return *memory_; }

 private:
  Reservation(DeviceMemory& memory, std::byte* base, uint64_t bytes)
      : memory_(&memory), base_(base), bytes_(bytes) {}

  DeviceMemory* memory_;
  std::byte* base_;
  uint64_t bytes_;
};

}  // namespace quire

#endif  // QUIRE_ENV_RESERVATION_H_
