// A cache on a store, from C: written by one life, loaded by the next.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "embed/struct_sizes.h"
#include "embed/test_util.h"

namespace quire::embed {
namespace {

class DiskStoreC : public testing::Test {
 protected:
  DiskStoreC() {
    std::string name = (std::filesystem::temp_directory_path() / "quire_disk_XXXXXX").string();
    directory_ = ::mkdtemp(name.data());
    options_.directory = directory_.c_str();
    options_.bytes_cap = 16 << 20;
    options_.commit_interval_us = 2000;
    options_.staging_bytes = 2 << 20;
  }
  ~DiskStoreC() override { std::filesystem::remove_all(directory_); }

  quire_disk_store* Open() {
    quire_disk_store* store = nullptr;
    EXPECT_EQ(quire_disk_store_open(&options_, &store, &error_), QUIRE_OK) << Show(error_);
    return store;
  }

  std::string directory_;
  quire_disk_store_options options_ = Sized<quire_disk_store_options>();
  quire_error error_{};
};

TEST_F(DiskStoreC, ALaterLifeLoadsWhatAnEarlierOneWrote) {
  const auto prompt = cache::SomeTokens(5 * CWorld::kBlock + 3, 1);
  for (const bool first : {true, false}) {
    quire_disk_store* const store = Open();
    quire_cache_options options = SmallOptions();
    options.disk_store = store;
    const CWorld world(options);
    auto plan = world.Acquire(prompt);
    EXPECT_EQ(quire_plan_resident_tokens(plan.get()), 0);
    EXPECT_EQ(quire_plan_loadable_tokens(plan.get()), first ? 0 : 5 * CWorld::kBlock);
    EXPECT_EQ(quire_plan_reason(plan.get()), first ? QUIRE_NEVER_SEEN : QUIRE_NOT_LOADED);
    quire_plan* loaded = nullptr;
    ASSERT_EQ(quire_load(plan.release(), 0, &loaded, &error_), QUIRE_OK) << Show(error_);
    EXPECT_EQ(quire_plan_resident_tokens(loaded), first ? 0 : 5 * CWorld::kBlock);
    const auto sequence = MustMake<quire_sequence>([&](quire_sequence** out, quire_error* error) {
      return quire_open(loaded, nullptr, out, error);
    });
    world.Feed(*sequence, prompt);
    EXPECT_EQ(CWorld::Gathered(*sequence, 1, QUIRE_VALUE), world.Expected(prompt, 1, 1));
    ASSERT_EQ(quire_disk_store_flush(store, &error_), QUIRE_OK) << Show(error_);
    std::string text(4096, ' ');
    size_t length = 0;
    ASSERT_EQ(quire_disk_store_stats_json(store, text.data(), text.size(), &length, &error_),
              QUIRE_OK);
    EXPECT_NE(text.find("\"records\":5"), std::string::npos) << text;
    quire_disk_store_free(store);  // the cache still has it
  }
}

TEST_F(DiskStoreC, TheSecretStays) {
  std::vector<uint8_t> secret(32);
  std::vector<uint8_t> again(32);
  quire_disk_store* store = Open();
  ASSERT_EQ(quire_disk_store_secret(store, secret.data(), &error_), QUIRE_OK);
  quire_disk_store* second = nullptr;
  EXPECT_EQ(quire_disk_store_open(&options_, &second, &error_), QUIRE_BUSY);
  quire_disk_store_free(store);
  store = Open();
  ASSERT_EQ(quire_disk_store_secret(store, again.data(), &error_), QUIRE_OK);
  EXPECT_EQ(secret, again);
  quire_disk_store_free(store);
}

TEST_F(DiskStoreC, StructsOfEverySize) {
  ReadsAtEverySize<quire_disk_store_options>(
      options_, sizeof(quire_disk_store_options), [&](const auto* asked, quire_error* failure) {
        quire_disk_store* made = nullptr;
        const quire_code code = quire_disk_store_open(asked, &made, failure);
        EXPECT_EQ(made != nullptr, code == QUIRE_OK);
        quire_disk_store_free(made);
        return code;
      });
}

TEST_F(DiskStoreC, MisuseIsRefused) {
  quire_disk_store* store = nullptr;
  EXPECT_EQ(quire_disk_store_open(nullptr, &store, &error_), QUIRE_INVALID_ARGUMENT);
  EXPECT_EQ(quire_disk_store_open(&options_, nullptr, &error_), QUIRE_INVALID_ARGUMENT);
  EXPECT_EQ(quire_disk_store_flush(nullptr, &error_), QUIRE_INVALID_ARGUMENT);
  EXPECT_EQ(quire_disk_store_secret(nullptr, nullptr, &error_), QUIRE_INVALID_ARGUMENT);
  EXPECT_EQ(quire_disk_store_stats_json(nullptr, nullptr, 0, nullptr, &error_),
            QUIRE_INVALID_ARGUMENT);
  EXPECT_EQ(quire_load(nullptr, 0, nullptr, &error_), QUIRE_INVALID_ARGUMENT);
  EXPECT_EQ(quire_plan_loadable_tokens(nullptr), 0);
  options_.bytes_cap = 1;
  EXPECT_EQ(quire_disk_store_open(&options_, &store, &error_), QUIRE_INVALID_ARGUMENT);
  EXPECT_EQ(store, nullptr);
  quire_disk_store_free(nullptr);
}

}  // namespace
}  // namespace quire::embed
