// Memory that fails when a test says so.
#ifndef QUIRE_ENV_FAULTY_MEMORY_H_
#define QUIRE_ENV_FAULTY_MEMORY_H_

#include <cstdint>
#include <memory>
#include <string>

#include "quire/env.h"

namespace quire {

/// Passes everything on to `inner`, but the Reserve number `failing_reserve` (from 0) fails. A
/// failure sweep runs with 0, 1, 2, ... until `failed()` stays false, and looks each time whether
/// anything changed or stayed reserved.
///
/// Threads:  one
/// Lifetime: `inner` must outlive it
class FaultyMemory final : public DeviceMemory {
 public:
  FaultyMemory(DeviceMemory& inner, uint64_t failing_reserve)
      : inner_(inner), failing_reserve_(failing_reserve) {}

  bool failed() const { return reserves_ > failing_reserve_; }
  /// Bytes reserved and not released.
  uint64_t reserved_bytes() const { return reserved_bytes_; }

  std::string_view name() const override { return inner_.name(); }
  bool host_accessible() const override { return inner_.host_accessible(); }

  Result<std::byte*> Reserve(uint64_t bytes) override {
    if (reserves_++ == failing_reserve_) {
      return Fail(ErrorCode::kNoSpace,
                  "injected: cannot reserve " + std::to_string(bytes) + " bytes");
    }
    Result<std::byte*> base = inner_.Reserve(bytes);
    if (base) reserved_bytes_ += bytes;
    return base;
  }
  void Release(std::byte* base, uint64_t bytes) override {
    reserved_bytes_ -= bytes;
    inner_.Release(base, bytes);
  }
  void Discard(std::byte* begin, uint64_t bytes) override { inner_.Discard(begin, bytes); }
  std::unique_ptr<Fence> Copy(std::byte* to, const std::byte* from, uint64_t bytes) override {
    return inner_.Copy(to, from, bytes);
  }

 private:
  DeviceMemory& inner_;
  const uint64_t failing_reserve_;
  uint64_t reserves_ = 0;
  uint64_t reserved_bytes_ = 0;
};

}  // namespace quire

#endif  // QUIRE_ENV_FAULTY_MEMORY_H_
