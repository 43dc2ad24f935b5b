// The checks of `quire selftest isolation` fail where they should.
#include "apps/quire/isolation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>

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
class Leaky final : public Cache {
 public:
  enum class Leak { kOneTenant, kNoErase };
  Leaky(std::unique_ptr<Cache> inner, Leak leak) : inner_(std::move(inner)), leak_(leak) {}

  const CacheOptions& options() const override { return inner_->options(); }
  uint64_t block_bytes() const override { return inner_->block_bytes(); }
  Result<TenantId> AddTenant(const TenantOptions& options) override {
    return inner_->AddTenant(options);
  }
  Result<TenantId> FindTenant(std::string_view name) const override {
    return inner_->FindTenant(name);
  }
  Result<TenantStats> tenant_stats(TenantId tenant) const override {
    return inner_->tenant_stats(tenant);
  }
  Result<EraseReport> Erase(TenantId tenant) override {
    if (leak_ == Leak::kNoErase) return EraseReport{};
    return inner_->Erase(tenant);
  }
  Result<void> RemoveTenant(TenantId tenant) override { return inner_->RemoveTenant(tenant); }
  Result<Plan> Acquire(const AcquireRequest& request) override {
    AcquireRequest passed = request;
    if (leak_ == Leak::kOneTenant) passed.tenant = kDefaultTenant;
    return inner_->Acquire(passed);
  }
  Result<uint64_t> Pin(const AcquireRequest& request, uint64_t ttl_us) override {
    return inner_->Pin(request, ttl_us);
  }
  Result<void> Unpin(const AcquireRequest& request) override { return inner_->Unpin(request); }
  Result<Ticket> Load(Plan plan, const LoadOptions& options) override {
    return inner_->Load(std::move(plan), options);
  }
  Result<std::unique_ptr<Sequence>> Open(Plan plan, const SequenceOptions& options) override {
    return inner_->Open(std::move(plan), options);
  }
  uint64_t Evict(uint64_t blocks) override { return inner_->Evict(blocks); }
  uint64_t Trim() override { return inner_->Trim(); }
  Result<void> Resize(uint64_t hot_bytes) override { return inner_->Resize(hot_bytes); }
  VerifyReport Verify() override { return inner_->Verify(); }
  CacheStats stats() const override { return inner_->stats(); }
  std::string BlockMap() const override { return inner_->BlockMap(); }

 private:
  const std::unique_ptr<Cache> inner_;
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
