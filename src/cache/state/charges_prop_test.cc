// The charges alone, in lock step with naive sums over plain records.
#include "cache/state/charges.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/prng.h"
#include "cache/state/lock_step.h"
#include "cache/test_util.h"

namespace quire::cache {
namespace {

constexpr uint32_t kChargesSlots = 40;
constexpr uint64_t kPinBytes = 70;

struct NaiveParty {
  uint64_t quota_bytes = 0;
  uint64_t floor_bytes = 0;
  uint64_t used_bytes = 0;
  uint64_t peak_bytes = 0;
  uint64_t pinned_blocks = 0;
  uint32_t epoch = 0;
  std::map<uint32_t, uint64_t> written{};  // slots held, by epoch

  uint64_t room_bytes() const { return quota_bytes - used_bytes; }
};

class ChargesLockStep {
 public:
  ChargesLockStep() {
    // The default tenant, one with a quota, one with a floor, one with both.
    constexpr std::array<uint64_t, 4> kQuotas = {0, 9, 0, 12};
    constexpr std::array<uint64_t, 4> kFloors = {0, 0, 6, 3};
    for (uint32_t i = 0; i < kQuotas.size(); ++i) {
      const TenantOptions options{.name = "t" + std::to_string(i),
                                  .quota_bytes = kQuotas[i] * charge_bytes_,
                                  .floor_bytes = kFloors[i] * charge_bytes_};
      if (i > 0) real_.Add(tenants_.Add(options), options);
      naive_.push_back({.quota_bytes = i % 2 == 0 ? UINT64_MAX : options.quota_bytes,
                        .floor_bytes = options.floor_bytes});
    }
  }

  void Step(Prng& prng) {
    switch (prng.NextBelow(9)) {
      case 0:
      case 1:
      case 2: TakeSlot(prng); break;
      case 3: FreeSlot(prng); break;
      case 4: MoveSlot(prng); break;
      case 5: ChargeBytes(prng); break;
      case 6: CountPinned(prng); break;
      case 7: Age(prng); break;
      default: SetLimit(prng);
    }
    Compare();
  }

 private:
  static CacheOptions Options() {
    const NumericProfile profile = NumericProfile::Uniform(Codec::kF16);
    return {.geometry = SmallGeometry(),
            .profile = profile,
            .hot_bytes = kChargesSlots * ChargePerSlot(SmallGeometry(), profile),
            .tokens_max = 1 << 12};
  }
  TenantId Any(Prng& prng) const {
    return TenantId(static_cast<uint32_t>(prng.NextBelow(naive_.size())));
  }
  NaiveParty& At(TenantId tenant) { return naive_[tenant.number()]; }
  uint64_t Charged() const {
    uint64_t bytes = 0;
    for (const NaiveParty& party : naive_) bytes += party.used_bytes;
    return bytes;
  }
  std::optional<SlotId> AnyTaken(Prng& prng) const {
    if (payers_.empty()) return std::nullopt;
    return std::next(payers_.begin(), static_cast<ptrdiff_t>(prng.NextBelow(payers_.size())))
        ->first;
  }

  // False: neither was charged.
  bool Charge(TenantId tenant, uint64_t bytes) {
    const bool fits = Charged() + bytes <= limit_bytes_;
    EXPECT_EQ(real_.TryCharge(tenant, bytes), fits);
    if (!fits) return false;
    NaiveParty& naive = At(tenant);
    naive.used_bytes += bytes;
    naive.peak_bytes = std::max(naive.peak_bytes, naive.used_bytes);
    peak_bytes_ = std::max(peak_bytes_, Charged());
    return true;
  }

  void TakeSlot(Prng& prng) {
    const TenantId tenant = Any(prng);
    const SlotId slot(static_cast<uint32_t>(prng.NextBelow(kChargesSlots)));
    if (payers_.contains(slot) || At(tenant).room_bytes() < charge_bytes_) return;
    if (!Charge(tenant, charge_bytes_)) return;
    real_.ReserveSlots(slot.number() + 1);
    real_.SetPayer(slot, tenant);
    payers_[slot] = tenant;
    // The writer of a slot need not be the tenant that pays for it.
    const TenantId writer = Any(prng);
    const uint32_t epoch = At(writer).epoch;
    real_.CountWritten(writer, epoch, 1);
    ++At(writer).written[epoch];
    writers_[slot] = {writer, epoch};
  }
  void FreeSlot(Prng& prng) {
    const auto slot = AnyTaken(prng);
    if (!slot) return;
    real_.RefundSlot(*slot);
    At(payers_.at(*slot)).used_bytes -= charge_bytes_;
    payers_.erase(*slot);
    const auto [writer, epoch] = writers_.at(*slot);
    real_.CountWritten(writer, epoch, -1);
    --At(writer).written[epoch];
  }
  void MoveSlot(Prng& prng) {
    const auto slot = AnyTaken(prng);
    const TenantId to = Any(prng);
    if (!slot) return;
    NaiveParty& from = At(payers_.at(*slot));
    if (&from != &At(to) && At(to).room_bytes() < charge_bytes_) return;
    real_.MoveSlot(*slot, to);
    payers_[*slot] = to;
    from.used_bytes -= charge_bytes_;
    At(to).used_bytes += charge_bytes_;
    At(to).peak_bytes = std::max(At(to).peak_bytes, At(to).used_bytes);
  }
  // Bytes that are not of slots: given back at once.
  void ChargeBytes(Prng& prng) {
    const TenantId tenant = Any(prng);
    const uint64_t bytes = prng.NextBelow(2 * charge_bytes_);
    if (At(tenant).room_bytes() < bytes || !Charge(tenant, bytes)) return;
    real_.Refund(tenant, bytes);
    At(tenant).used_bytes -= bytes;
  }
  void CountPinned(Prng& prng) {
    const TenantId account = Any(prng);
    const int64_t more = At(account).pinned_blocks == 0 || prng.NextChance(2) ? 1 : -1;
    real_.CountPinned(account, more, more * static_cast<int64_t>(kPinBytes));
    At(account).pinned_blocks += static_cast<uint64_t>(more);
  }
  void Age(Prng& prng) {
    const TenantId tenant = Any(prng);
    tenants_.RaiseEpoch(tenant);
    real_.AgeWritten(tenant);
    ++At(tenant).epoch;
  }
  // Sets a limit not below the bytes in use, nor below the floors; a new peak begins.
  void SetLimit(Prng& prng) {
    const uint64_t bytes = (10 + prng.NextBelow(kChargesSlots)) * charge_bytes_;
    if (bytes < Charged()) return;
    real_.SetLimit(bytes);
    limit_bytes_ = bytes;
    peak_bytes_ = Charged();
  }

  void Compare() const {
    ASSERT_EQ(real_.ledger().used_bytes(), Charged());
    ASSERT_EQ(real_.ledger().peak_bytes(), peak_bytes_);
    for (const auto& [slot, payer] : payers_) ASSERT_EQ(real_.payer(slot), payer);
    uint64_t floors_bytes = 0;
    for (const NaiveParty& party : naive_) floors_bytes += party.floor_bytes;
    for (uint32_t i = 0; i < naive_.size(); ++i) {
      const TenantId tenant(i);
      const NaiveParty& naive = naive_[i];
      ASSERT_EQ(real_.account(tenant).used_bytes(), naive.used_bytes);
      ASSERT_EQ(real_.account(tenant).peak_bytes(), naive.peak_bytes);
      ASSERT_EQ(real_.account(tenant).quota_bytes(), naive.quota_bytes);
      ASSERT_EQ(real_.account(tenant).capacity_bytes(), naive.room_bytes());
      ASSERT_EQ(real_.pinned_blocks(tenant), naive.pinned_blocks);
      ASSERT_EQ(real_.pinned_bytes(tenant), naive.pinned_blocks * kPinBytes);
      uint64_t stale = 0;
      uint64_t written = 0;
      for (const auto& [epoch, slots] : naive.written) {
        written += slots;
        if (epoch != naive.epoch) stale += slots;
      }
      ASSERT_EQ(real_.stale_slots(tenant), stale);
      ASSERT_EQ(real_.written_slots(tenant), written);
      const uint64_t left = limit_bytes_ - (floors_bytes - naive.floor_bytes);
      ASSERT_EQ(real_.PinLimit(tenant), std::min(left, naive.quota_bytes));
    }
  }

  const SlotClasses classes_ = Must(SlotClasses::Create(Options()));
  const uint64_t charge_bytes_ = classes_.charge_bytes(uint32_t{0});
  uint64_t limit_bytes_ = kChargesSlots / 2 * charge_bytes_;
  TenantTable tenants_;
  Charges real_{tenants_, classes_, limit_bytes_, nullptr};
  std::vector<NaiveParty> naive_;  // by tenant
  std::map<SlotId, TenantId> payers_;
  std::map<SlotId, std::pair<TenantId, uint32_t>> writers_;  // and the epoch
  uint64_t peak_bytes_ = 0;
};

RC_GTEST_PROP(ChargesProperty, AgreeWithNaiveOnes, (const std::vector<uint64_t>& seeds)) {
  ChargesLockStep both;
  StepFromSeeds(both, seeds, 4);
}

}  // namespace
}  // namespace quire::cache
