#include "serve/budget_leases.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "serve/driver.h"

namespace quire::serve {
namespace {

constexpr size_t kOwnerBytesMax = 256;
constexpr uint64_t kPauseUs = 2'000;  // between two attempts to shrink

std::unexpected<Error> NoLease(uint64_t id) {
  return Fail(ErrorCode::kNotFound, fmt::format("lease {}: there is none", id));
}

Result<void> CheckOwner(const std::string& owner) {
  const auto is_control = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; };
  if (!owner.empty() && owner.size() <= kOwnerBytesMax && std::ranges::none_of(owner, is_control)) {
    return {};
  }
  return Fail(
      ErrorCode::kInvalidArgument,
      fmt::format("lease: its owner's name must have 1 to {} bytes and no control characters",
                  kOwnerBytesMax));
}

}  // namespace

/// The one change of the budget that is under way. What ended meanwhile is settled at its end.
class BudgetLeases::Turn {
 public:
  explicit Turn(BudgetLeases& leases) : leases_(leases) {
    MutexLock lock(leases_.mutex_);
    while (leases_.changing_) leases_.changed_.Wait(leases_.mutex_);
    leases_.changing_ = true;
  }
  ~Turn() {
    leases_.EndTurn();
    leases_.Settle();
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

 private:
  BudgetLeases& leases_;
};

BudgetLeases::BudgetLeases(Engine& engine, Cache& cache, const Clock& clock)
    : engine_(engine),
      cache_(cache),
      clock_(clock),
      whole_bytes_(cache.stats().hot_bytes_limit),
      cache_bytes_(whole_bytes_) {}

uint64_t BudgetLeases::leased() const {
  uint64_t bytes = 0;
  for (const auto& [id, held] : held_) bytes += held.lease.bytes;
  return bytes;
}

// `before`: what the lease has now.
Result<void> BudgetLeases::CheckFits(uint64_t bytes, uint64_t before) const {
  if (bytes == 0) return Fail(ErrorCode::kInvalidArgument, "lease: 0 bytes are none");
  const uint64_t free = whole_bytes_ - leased() + before;
  if (bytes < free) return {};
  return Fail(ErrorCode::kTooLarge,
              fmt::format("lease: {} bytes, but the budget of {} has {} that are not leased, and "
                          "the cache needs some of them",
                          bytes, whole_bytes_, free));
}

// Errors: as Cache::Resize; kBusy after `wait_us`
Result<void> BudgetLeases::Fit(uint64_t cache_bytes, uint64_t wait_us) {
  uint64_t now_bytes = 0;
  {
    MutexLock lock(mutex_);
    now_bytes = cache_bytes_;
  }
  const bool shrinks = cache_bytes < now_bytes;
  const uint64_t began_us = clock_.NowMicros();
  while (true) {
    const auto resized = cache_.Resize(cache_bytes);
    if (resized) break;
    if (!shrinks || resized.error().code != ErrorCode::kBusy ||
        clock_.NowMicros() - began_us >= wait_us) {
      return resized;
    }
    engine_.GiveWay();
    MutexLock lock(mutex_);
    changed_.WaitFor(mutex_, kPauseUs);
  }
  if (shrinks) cache_.Trim();
  MutexLock lock(mutex_);
  cache_bytes_ = cache_bytes;
  return {};
}

Result<uint64_t> BudgetLeases::Take(const std::string& owner, uint64_t bytes, uint64_t wait_us) {
  QUIRE_TRY(CheckOwner(owner));
  const Turn turn(*this);
  uint64_t rest = 0;
  {
    MutexLock lock(mutex_);
    QUIRE_TRY(CheckFits(bytes, 0));
    rest = whole_bytes_ - leased() - bytes;
  }
  auto settling = MakeSettling();
  engine_.SetLeased(true, std::move(settling.settled));
  QUIRE_TRY(settling.outcome.get());
  QUIRE_TRY(Fit(rest, wait_us));
  MutexLock lock(mutex_);
  const uint64_t id = next_id_++;
  held_[id] = {.lease = {.id = id, .owner = owner, .bytes = bytes}, .on_end = {}};
  return id;
}

Result<void> BudgetLeases::Change(uint64_t id, uint64_t bytes, uint64_t wait_us) {
  const Turn turn(*this);
  uint64_t before = 0;
  uint64_t rest = 0;
  {
    MutexLock lock(mutex_);
    const auto found = held_.find(id);
    if (found == held_.end()) return NoLease(id);
    before = found->second.lease.bytes;
    QUIRE_TRY(CheckFits(bytes, before));
    rest = whole_bytes_ - leased() + before - bytes;
  }
  QUIRE_TRY(Fit(rest, wait_us));
  MutexLock lock(mutex_);
  const auto found = held_.find(id);
  if (found == held_.end()) return NoLease(id);  // it ended meanwhile
  found->second.lease.bytes = bytes;
  return {};
}

Result<void> BudgetLeases::Listen(uint64_t id, std::function<void()> on_end) {
  MutexLock lock(mutex_);
  const auto found = held_.find(id);
  if (found == held_.end()) return NoLease(id);
  found->second.on_end = std::move(on_end);
  return {};
}

Result<void> BudgetLeases::End(uint64_t id) {
  std::function<void()> on_end;
  {
    MutexLock lock(mutex_);
    auto ended = held_.extract(id);
    if (ended.empty()) return NoLease(id);
    on_end = std::move(ended.mapped().on_end);
  }
  if (on_end) on_end();
  Settle();
  return {};
}

Result<void> BudgetLeases::Resize(uint64_t hot_bytes) {
  const Turn turn(*this);
  uint64_t rest = 0;
  {
    MutexLock lock(mutex_);
    if (hot_bytes <= leased()) {
      return Fail(
          ErrorCode::kTooLarge,
          fmt::format("resize: {} bytes, but {} of the budget are leased", hot_bytes, leased()));
    }
    rest = hot_bytes - leased();
  }
  QUIRE_TRY(Fit(rest, 0));
  MutexLock lock(mutex_);
  whole_bytes_ = hot_bytes;
  return {};
}

void BudgetLeases::EndTurn() {
  bool is_whole = false;
  {
    MutexLock lock(mutex_);
    is_whole = cache_bytes_ == whole_bytes_;
  }
  engine_.SetLeased(!is_whole);  // before the next change, which may begin a lease
  MutexLock lock(mutex_);
  changing_ = false;
  changed_.NotifyAll();
}

void BudgetLeases::Settle() {
  uint64_t bytes = 0;
  {
    MutexLock lock(mutex_);
    bytes = whole_bytes_ - leased();
    // The change under way settles what ended meanwhile, or the next call does.
    if (changing_ || bytes == cache_bytes_) return;
    changing_ = true;
  }
  // A failure leaves the cache as it was, for the next attempt.
  (void)Fit(bytes, 0);
  EndTurn();
}

std::vector<BudgetLease> BudgetLeases::All() const {
  MutexLock lock(mutex_);
  std::vector<BudgetLease> all;
  for (const auto& [id, held] : held_) all.push_back(held.lease);
  return all;
}

}  // namespace quire::serve
