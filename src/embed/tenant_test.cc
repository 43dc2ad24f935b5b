// Tenants through C.
#include <gmock/gmock.h>

#include "embed/test_util.h"

namespace quire::embed {
namespace {

using ::testing::HasSubstr;

struct World {
  World() {
    const quire_cache_options options = SmallOptions();
    cache = MustMake<quire_cache>([&](quire_cache** made, quire_error* failure) {
      return quire_cache_create(&options, made, failure);
    });
  }

  quire_code Add(const char* name, const char* domain, int32_t shared, uint32_t* tenant) {
    auto options = Sized<quire_tenant_options>();
    options.name = name;
    options.domain = domain;
    options.shared = shared;
    return quire_cache_add_tenant(cache.get(), &options, tenant, &error);
  }
  // Publishes two blocks of zeros under a tenant.
  void Publish(uint32_t tenant) {
    Owned<quire_plan> plan = Acquire(tenant);
    quire_sequence* opened = nullptr;
    ASSERT_EQ(quire_open(plan.release(), nullptr, &opened, &error), QUIRE_OK) << Show(error);
    const Owned<quire_sequence> sequence(opened);
    const std::vector<float> values(prompt.size() * 2 * 4);
    const quire_rows rows{
        .data = values.data(), .dtype = QUIRE_F32, .token_stride = 8, .head_stride = 4};
    for (uint32_t layer = 0; layer < 2; ++layer) {
      ASSERT_EQ(quire_sequence_append(opened, layer, &rows, &rows,
                                      static_cast<uint32_t>(prompt.size()), &error),
                QUIRE_OK);
    }
    ASSERT_EQ(quire_sequence_commit(opened, prompt.data(), prompt.size(), &error), QUIRE_OK);
  }
  Owned<quire_plan> Acquire(uint32_t tenant) {
    const quire_identity identity = SomeIdentityC();
    auto request = Sized<quire_acquire_request>();
    request.identity = &identity;
    request.tokens = prompt.data();
    request.token_count = prompt.size();
    return MustMake<quire_plan>([&](quire_plan** plan, quire_error* failure) {
      return quire_acquire_as(cache.get(), tenant, &request, plan, failure);
    });
  }
  uint64_t Resident(uint32_t tenant) { return quire_plan_resident_tokens(Acquire(tenant).get()); }

  Owned<quire_cache> cache;
  quire_error error{};
  std::vector<TokenId> prompt = cache::SomeTokens(33, 1);
};

TEST(TenantsInC, AreApartUnlessTheyNameOneDomain) {
  World world;
  uint32_t team = 0;
  uint32_t a = 0;
  uint32_t b = 0;
  uint32_t alone = 0;
  ASSERT_EQ(world.Add("team", nullptr, 1, &team), QUIRE_OK);
  ASSERT_EQ(world.Add("a", "team", 0, &a), QUIRE_OK);
  ASSERT_EQ(world.Add("b", "team", 0, &b), QUIRE_OK);
  ASSERT_EQ(world.Add("alone", nullptr, 0, &alone), QUIRE_OK);
  world.Publish(a);
  EXPECT_EQ(world.Resident(b), 32u);
  EXPECT_EQ(world.Resident(alone), 0u);
  EXPECT_EQ(world.Resident(0), 0u);

  uint64_t pending = 99;
  ASSERT_EQ(quire_cache_erase_tenant(world.cache.get(), a, &pending, &world.error), QUIRE_OK);
  EXPECT_EQ(pending, 0u);
  EXPECT_EQ(world.Resident(b), 0u);

  size_t length = 0;
  ASSERT_EQ(quire_cache_tenant_json(world.cache.get(), b, nullptr, 0, &length, nullptr), QUIRE_OK);
  std::string json(length + 1, 'x');
  ASSERT_EQ(
      quire_cache_tenant_json(world.cache.get(), b, json.data(), json.size(), &length, nullptr),
      QUIRE_OK);
  EXPECT_THAT(json, HasSubstr(R"("name":"b")"));
  EXPECT_THAT(json, HasSubstr(R"("hit_tokens":32)"));
}

TEST(TenantsInC, LimitsMayChange) {
  World world;
  uint32_t tenant = 0;
  ASSERT_EQ(world.Add("a", nullptr, 0, &tenant), QUIRE_OK) << Show(world.error);
  world.Publish(tenant);
  ASSERT_GT(world.Resident(tenant), 0u);
  EXPECT_EQ(quire_cache_set_limits(world.cache.get(), tenant, 100, 200, &world.error),
            QUIRE_INVALID_ARGUMENT);
  EXPECT_EQ(quire_cache_set_limits(world.cache.get(), 77, 100, 0, &world.error), QUIRE_NOT_FOUND);
  EXPECT_EQ(quire_cache_set_limits(nullptr, tenant, 100, 0, &world.error), QUIRE_INVALID_ARGUMENT);
  EXPECT_EQ(quire_cache_set_limits(world.cache.get(), tenant, 100, 0, &world.error), QUIRE_OK)
      << Show(world.error);
  EXPECT_EQ(world.Resident(tenant), 0u);
  EXPECT_EQ(quire_cache_set_limits(world.cache.get(), tenant, 0, 0, &world.error), QUIRE_OK);
}

TEST(TenantsInC, MistakesAreCodes) {
  World world;
  uint32_t tenant = 77;
  EXPECT_EQ(world.Add("", nullptr, 0, &tenant), QUIRE_INVALID_ARGUMENT);
  EXPECT_EQ(world.Add(nullptr, nullptr, 0, &tenant), QUIRE_INVALID_ARGUMENT);
  EXPECT_EQ(world.Add("a", "nowhere", 0, &tenant), QUIRE_NOT_FOUND);
  EXPECT_EQ(world.Add("a", nullptr, 0, nullptr), QUIRE_INVALID_ARGUMENT);
  EXPECT_EQ(quire_cache_add_tenant(world.cache.get(), nullptr, &tenant, nullptr),
            QUIRE_INVALID_ARGUMENT);
  EXPECT_EQ(tenant, 77u);
  uint64_t pending = 0;
  EXPECT_EQ(quire_cache_erase_tenant(world.cache.get(), 5, &pending, nullptr), QUIRE_NOT_FOUND);
  EXPECT_EQ(quire_cache_erase_tenant(nullptr, 0, &pending, nullptr), QUIRE_INVALID_ARGUMENT);
  EXPECT_EQ(quire_cache_erase_tenant(world.cache.get(), 0, nullptr, nullptr),
            QUIRE_INVALID_ARGUMENT);
  size_t length = 0;
  EXPECT_EQ(quire_cache_tenant_json(world.cache.get(), 5, nullptr, 0, &length, nullptr),
            QUIRE_NOT_FOUND);
  char text[4];
  EXPECT_EQ(quire_cache_tenant_json(world.cache.get(), 0, text, sizeof(text), &length, nullptr),
            QUIRE_INVALID_ARGUMENT);
}

}  // namespace
}  // namespace quire::embed
