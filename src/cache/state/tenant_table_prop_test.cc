// The table of tenants alone, in lock step with a naive one.
#include "cache/state/tenant_table.h"

#include <map>
#include <string>
#include <vector>

#include "base/prng.h"
#include "cache/state/lock_step.h"
#include "cache/state/naive_tenants.h"
#include "cache/test_util.h"

namespace quire::cache {
namespace {

class TenantTableLockStep {
 public:
  void Step(Prng& prng) {
    switch (prng.NextBelow(6)) {
      case 0:
      case 1:
      case 2: Add(prng); break;
      case 3:
      case 4: Remove(prng); break;
      default:
        if (const TenantId tenant = naive_.Any(prng); naive_.At(tenant).is_there) {
          real_.RaiseEpoch(tenant);
          ++naive_.At(tenant).epoch;
        }
    }
    Compare();
  }

 private:
  void Add(Prng& prng) {
    const TenantOptions options = NaiveTenants::AnyOptions(prng, /*names=*/7, /*bytes=*/100);
    const ErrorCode expected = naive_.ErrorOf(options);
    const auto checked = real_.CheckNew(options);
    ASSERT_EQ(checked.has_value(), expected == ErrorCode{});
    if (!checked) {
      ASSERT_EQ(checked.error().code, expected);
      return;
    }
    ASSERT_EQ(real_.next(), naive_.next());
    ASSERT_EQ(real_.Add(options), naive_.next());
    naive_.Add(options, epochs_[options.name]);
  }
  void Remove(Prng& prng) {
    const TenantId tenant = naive_.Any(prng);
    NaiveTenants::Tenant& naive = naive_.At(tenant);
    if (!naive.is_there) return;
    const bool may_go = tenant != kDefaultTenant && !naive_.HasMembers(tenant);
    ASSERT_EQ(real_.CheckRemovable(tenant).has_value(), may_go);
    if (!may_go) return;
    real_.Remove(tenant);
    naive.is_there = false;
    epochs_[naive.options.name] = naive.epoch + 1;
  }

  void Compare() {
    std::vector<TenantId> there;
    for (uint32_t i = 0; i < naive_.count(); ++i) {
      const TenantId id(i);
      const NaiveTenants::Tenant& tenant = naive_.At(id);
      ASSERT_EQ(real_.Check(id).has_value(), tenant.is_there);
      ASSERT_EQ(real_.account_of(id), tenant.is_there ? tenant.account : id);
      if (!tenant.is_there) {
        ASSERT_NE(real_.epoch(id), tenant.epoch) << "who comes too late is refused";
        continue;
      }
      there.push_back(id);
      ASSERT_EQ(Must(real_.Find(tenant.options.name)), id);
      ASSERT_EQ(real_.options(id).name, tenant.options.name);
      ASSERT_EQ(real_.epoch(id), tenant.epoch);
    }
    std::vector<TenantId> visited;
    real_.ForEach([&](TenantId id) { visited.push_back(id); });
    ASSERT_EQ(visited, there);
    ASSERT_EQ(real_.count(), there.size());
    ASSERT_EQ(real_.floors_bytes(), naive_.FloorsBytes());
    ASSERT_FALSE(real_.Check(real_.next()).has_value());
    ASSERT_FALSE(real_.Find("nobody").has_value());
  }

  TenantTable real_;
  NaiveTenants naive_;
  std::map<std::string, uint32_t> epochs_;  // that the next one of a name begins with
};

RC_GTEST_PROP(TenantTableProperty, AgreesWithANaiveOne, (const std::vector<uint64_t>& seeds)) {
  TenantTableLockStep both;
  StepFromSeeds(both, seeds, 4);
}

}  // namespace
}  // namespace quire::cache
