// Memory that fails when a test says so.
#ifndef QUIRE_ENV_FAULTY_MEMORY_H_
#define QUIRE_ENV_FAULTY_MEMORY_H_

#include <cstdint>
#include <memory>
#include <set>
#include <string>

#include "base/bits.h"
#include "quire/env.h"

namespace quire {

/// Passes everything on to `inner`, but the call number `failing_call` (from 0, of Reserve and
/// Commit together) fails. A failure sweep runs with 0, 1, 2, ... until `failed()` stays false, and
/// looks each time whether anything changed or stayed reserved.
///
/// Threads:  one
/// Lifetime: `inner` must outlive it
class FaultyMemory final : public DeviceMemory {
 public:
  FaultyMemory(DeviceMemory& inner, uint64_t failing_call)
      : inner_(inner), failing_call_(failing_call) {}

  /// From now on the call number `number` fails, counted from here.
  void FailCall(uint64_t number) {
    calls_ = 0;
    failing_call_ = number;
  }
  bool failed() const { return calls_ > failing_call_; }
  /// Bytes reserved and not released.
  uint64_t reserved_bytes() const { return reserved_bytes_; }
  /// Pages, by number, that were committed in part or whole and not taken back since.
  const std::set<uint64_t>& committed_pages() const { return committed_pages_; }

  std::string_view name() const override { return inner_.name(); }
  bool host_accessible() const override { return inner_.host_accessible(); }

  Result<std::byte*> Reserve(uint64_t bytes) override {
    if (calls_++ == failing_call_) {
      return Fail(ErrorCode::kNoSpace,
                  "injected: cannot reserve " + std::to_string(bytes) + " bytes");
    }
    Result<std::byte*> base = inner_.Reserve(bytes);
    if (base) reserved_bytes_ += bytes;
    return base;
  }
  Result<void> Commit(std::byte* begin, uint64_t bytes) override {
    if (calls_++ == failing_call_) {
      return Fail(ErrorCode::kNoSpace,
                  "injected: cannot commit " + std::to_string(bytes) + " bytes");
    }
    QUIRE_TRY(inner_.Commit(begin, bytes));
    const auto address = reinterpret_cast<uintptr_t>(begin);
    const uint64_t end = DivUp<uint64_t>(address + bytes, kPageBytes);
    for (uint64_t page = address / kPageBytes; page < end; ++page) committed_pages_.insert(page);
    return {};
  }
  void Decommit(std::byte* begin, uint64_t bytes) override {
    inner_.Decommit(begin, bytes);
    const auto address = reinterpret_cast<uintptr_t>(begin);
    // Bytes of a page that is not taken back whole are still in use.
    ForgetPages(DivUp<uint64_t>(address, kPageBytes), (address + bytes) / kPageBytes);
  }
  void Release(std::byte* base, uint64_t bytes) override {
    reserved_bytes_ -= bytes;
    inner_.Release(base, bytes);
    const auto address = reinterpret_cast<uintptr_t>(base);
    ForgetPages(address / kPageBytes, DivUp<uint64_t>(address + bytes, kPageBytes));
  }
  void Discard(std::byte* begin, uint64_t bytes) override { inner_.Discard(begin, bytes); }

 private:
  static constexpr uint64_t kPageBytes = 4096;

  void ForgetPages(uint64_t first, uint64_t end) {
    for (uint64_t page = first; page < end; ++page) committed_pages_.erase(page);
  }

  DeviceMemory& inner_;
  uint64_t failing_call_;
  uint64_t calls_ = 0;
  uint64_t reserved_bytes_ = 0;
  std::set<uint64_t> committed_pages_;
};

}  // namespace quire

#endif  // QUIRE_ENV_FAULTY_MEMORY_H_
