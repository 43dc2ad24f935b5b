// The checks of `quire selftest isolation` fail where they should.
#include "apps/quire/selftest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>

#include "registry/forwarding_cache.h"

namespace quire::app {
namespace {

std::vector<std::string> Failed(const std::vector<IsolationCheck>& checks) {
  std::vector<std::string> names;
  for (const IsolationCheck& check : checks) {
    if (!check.passed) names.push_back(check.name + ": " + check.detail);
  }
  return names;
}

TEST(Isolation, TheCacheKeepsItsPromises) {
  for (const Codec codec : {Codec::kF16, Codec::kInt8}) {
    const auto checks = CheckIsolation(codec);
    ASSERT_TRUE(checks.has_value()) << checks.error().message;
    EXPECT_EQ(checks->size(), 7u);
    EXPECT_THAT(Failed(*checks), ::testing::IsEmpty());
  }
}

/// Passes everything on; erasing does nothing, or every tenant is the same one.
class Leaky final : public registry::ForwardingCache {
 public:
  enum class Leak { kOneTenant, kNoErase };
  Leaky(std::unique_ptr<Cache> cache, Leak leak)
      : ForwardingCache(*cache), cache_(std::move(cache)), leak_(leak) {}

  Result<EraseReport> Erase(TenantId tenant) override {
    if (leak_ == Leak::kNoErase) return EraseReport{};
    return inner().Erase(tenant);
  }
  Result<Plan> Acquire(const AcquireRequest& request) override {
    AcquireRequest passed = request;
    if (leak_ == Leak::kOneTenant) passed.tenant = kDefaultTenant;
    return inner().Acquire(passed);
  }

 private:
  const std::unique_ptr<Cache> cache_;
  const Leak leak_;
};

Result<std::vector<IsolationCheck>> CheckLeaky(Leaky::Leak leak) {
  const auto make = [leak](CacheOptions options) -> Result<std::unique_ptr<Cache>> {
    QUIRE_ASSIGN(auto cache, Cache::Create(std::move(options)));
    return std::make_unique<Leaky>(std::move(cache), leak);
  };
  return CheckIsolation(make, Codec::kF16);
}

TEST(Isolation, ACacheThatForgetsWhoAsksFails) {
  const auto checks = CheckLeaky(Leaky::Leak::kOneTenant);
  ASSERT_TRUE(checks.has_value()) << checks.error().message;
  EXPECT_GE(Failed(*checks).size(), 6u) << "of seven";
}

TEST(Isolation, ACacheThatDoesNotEraseFails) {
  const auto checks = CheckLeaky(Leaky::Leak::kNoErase);
  ASSERT_TRUE(checks.has_value()) << checks.error().message;
  EXPECT_THAT(Failed(*checks),
              ::testing::ElementsAre(::testing::HasSubstr("what is erased is not found again")));
}

}  // namespace
}  // namespace quire::app
