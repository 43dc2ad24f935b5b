// The table of tenants alone, in lock step with a naive one: a list of all that there ever were.
#include "cache/tenant_table.h"

// gtest before rapidcheck
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "base/prng.h"
#include "cache/test_util.h"

namespace quire::cache {
namespace {

struct NaiveTenant {
  TenantOptions options{};
  TenantId account{};
  uint32_t epoch = 0;
  bool is_there = true;
};

class LockStep {
 public:
  LockStep() { naive_.push_back({.options = {.name = "default"}, .account = kDefaultTenant}); }

  void Step(Prng& prng) {
    switch (prng.NextBelow(6)) {
      case 0:
      case 1:
      case 2: Add(prng); break;
      case 3:
      case 4: Remove(prng); break;
      default:
        if (const TenantId tenant = Any(prng); At(tenant).is_there) {
          real_.RaiseEpoch(tenant);
          ++At(tenant).epoch;
        }
    }
    Compare();
  }

 private:
  NaiveTenant& At(TenantId tenant) { return naive_[tenant.number()]; }
  TenantId Any(Prng& prng) const {
    return TenantId(static_cast<uint32_t>(prng.NextBelow(naive_.size())));
  }
  std::vector<NaiveTenant>::iterator Named(std::string_view name) {
    return std::ranges::find_if(naive_, [&](const NaiveTenant& tenant) {
      return tenant.is_there && tenant.options.name == name;
    });
  }

  void Add(Prng& prng) {
    TenantOptions options;
    const uint64_t name = prng.NextBelow(8);
    if (name > 0) options.name = "t" + std::to_string(name);
    options.quota_bytes = prng.NextBelow(3) * 100;
    options.floor_bytes = prng.NextBelow(3) * 100;
    options.shared = prng.NextChance(3);
    if (prng.NextChance(3)) options.domain = "t" + std::to_string(1 + prng.NextBelow(8));
    const auto domain = Named(options.domain);
    ErrorCode expected{};
    if (options.name.empty() || (options.shared && !options.domain.empty()) ||
        (options.quota_bytes > 0 && options.floor_bytes > options.quota_bytes) ||
        Named(options.name) != naive_.end()) {
      expected = ErrorCode::kInvalidArgument;
    } else if (!options.domain.empty() && (domain == naive_.end() || !domain->options.shared)) {
      expected = ErrorCode::kNotFound;
    }
    const auto checked = real_.CheckNew(options);
    ASSERT_EQ(checked.has_value(), expected == ErrorCode{});
    if (!checked) {
      ASSERT_EQ(checked.error().code, expected);
      return;
    }
    const TenantId id(static_cast<uint32_t>(naive_.size()));
    ASSERT_EQ(real_.next(), id);
    ASSERT_EQ(real_.Add(options), id);
    const TenantId account =
        options.domain.empty() ? id : TenantId(static_cast<uint32_t>(domain - naive_.begin()));
    naive_.push_back({.options = options, .account = account, .epoch = epochs_[options.name]});
  }
  void Remove(Prng& prng) {
    const TenantId tenant = Any(prng);
    if (!At(tenant).is_there) return;
    bool has_members = false;
    for (uint32_t i = 0; i < naive_.size(); ++i) {
      if (naive_[i].is_there && TenantId(i) != tenant && naive_[i].account == tenant) {
        has_members = true;
      }
    }
    const bool may_go = tenant != kDefaultTenant && !has_members;
    ASSERT_EQ(real_.CheckRemovable(tenant).has_value(), may_go);
    if (!may_go) return;
    real_.Remove(tenant);
    At(tenant).is_there = false;
    epochs_[At(tenant).options.name] = At(tenant).epoch + 1;
  }

  void Compare() {
    uint64_t floors_bytes = 0;
    std::vector<TenantId> there;
    for (uint32_t i = 0; i < naive_.size(); ++i) {
      const TenantId id(i);
      const NaiveTenant& tenant = naive_[i];
      ASSERT_EQ(real_.Check(id).has_value(), tenant.is_there);
      ASSERT_EQ(real_.account_of(id), tenant.is_there ? tenant.account : id);
      if (!tenant.is_there) {
        ASSERT_NE(real_.epoch(id), tenant.epoch) << "who comes too late is refused";
        continue;
      }
      there.push_back(id);
      floors_bytes += tenant.options.floor_bytes;
      ASSERT_EQ(Must(real_.Find(tenant.options.name)), id);
      ASSERT_EQ(real_.options(id).name, tenant.options.name);
      ASSERT_EQ(real_.epoch(id), tenant.epoch);
    }
    std::vector<TenantId> visited;
    real_.ForEach([&](TenantId id) { visited.push_back(id); });
    ASSERT_EQ(visited, there);
    ASSERT_EQ(real_.count(), there.size());
    ASSERT_EQ(real_.floors_bytes(), floors_bytes);
    ASSERT_FALSE(real_.Check(real_.next()).has_value());
    ASSERT_FALSE(real_.Find("nobody").has_value());
  }

  TenantTable real_;
  std::vector<NaiveTenant> naive_;          // by id
  std::map<std::string, uint32_t> epochs_;  // that the next one of a name begins with
};

RC_GTEST_PROP(TenantTableProperty, AgreesWithANaiveOne, (const std::vector<uint64_t>& seeds)) {
  LockStep both;
  for (const uint64_t seed : seeds) {
    Prng prng(seed);
    for (int i = 0; i < 4; ++i) {
      both.Step(prng);
      RC_ASSERT(!::testing::Test::HasFailure());
    }
  }
}

}  // namespace
}  // namespace quire::cache
