// The C interface of stores: its whole life from C, every misuse, structs of every size.
#include <gtest/gtest.h>

#include <array>
#include <filesystem>
#include <string>
#include <thread>
#include <utility>

#include "embed/test_struct_sizes.h"
#include "embed/test_util.h"

extern "C" const char* QuireC99Store(const char* directory);

namespace quire::embed {
namespace {

struct CStore : testing::Test {
  CStore() {
    std::string name = (std::filesystem::temp_directory_path() / "quire_store_XXXXXX").string();
    directory = ::mkdtemp(name.data());
    options.directory = directory.c_str();
    options.bytes_cap = 16 << 20;
    options.commit_interval_us = 2000;
  }
  ~CStore() override {
    quire_store_free(store);
    std::filesystem::remove_all(directory);
  }
  void Open() { ASSERT_EQ(quire_store_open(&options, &store, &error), QUIRE_OK) << Show(error); }

  std::string directory;
  quire_store_options options = Sized<quire_store_options>();
  quire_store* store = nullptr;
  quire_error error{};
};

TEST_F(CStore, AProgramInC99) { EXPECT_STREQ(QuireC99Store(directory.c_str()), "ok"); }

TEST_F(CStore, StructsOfEverySize) {
  ReadsAtEverySize<quire_store_options>(options, 56, [&](const auto* asked, quire_error* failure) {
    quire_store* made = nullptr;
    const quire_code code = quire_store_open(asked, &made, failure);
    EXPECT_EQ(made != nullptr, code == QUIRE_OK);
    quire_store_free(made);
    return code;
  });
  Open();
  FillsAtEverySize<quire_store_stats>(152, [&](auto* stats, quire_error* failure) {
    return quire_store_get_stats(store, stats, failure);
  });
  FillsAtEverySize<quire_store_usage>(sizeof(quire_store_usage),
                                      [&](auto* usage, quire_error* failure) {
                                        return quire_store_get_usage(store, "", usage, failure);
                                      });
}

TEST_F(CStore, AnEncryptedDirectoryNeedsItsKey) {
  const std::array<uint8_t, 32> key = {1, 2, 3};
  options.key = key.data();
  Open();
  quire_store_free(std::exchange(store, nullptr));
  options.key = nullptr;
  EXPECT_EQ(quire_store_open(&options, &store, &error), QUIRE_INVALID_ARGUMENT);
  EXPECT_NE(std::string(error.message).find("it is encrypted"), std::string::npos);
  options.keys_command = "cat #";
  EXPECT_EQ(quire_store_open(&options, &store, &error), QUIRE_INVALID_ARGUMENT);
  options.keys_command = nullptr;
  options.key = key.data();
  Open();
}

TEST_F(CStore, NamespacesHaveLimitsAndAreErased) {
  Open();
  const std::string data(100'000, 'x');
  const quire_put_block put = {"k", 1, data.data(), data.size()};
  uint64_t batch = 0;
  quire_block_result result{};
  const auto wait = [&] {
    EXPECT_EQ(quire_store_wait(store, batch, QUIRE_FOREVER, &result, 1, &error), QUIRE_OK)
        << Show(error);
    return result.outcome;
  };
  ASSERT_EQ(quire_store_set_limits(store, "none", 1, 0, &error), QUIRE_OK);
  ASSERT_EQ(quire_store_put(store, "none", &put, 1, &batch, &error), QUIRE_OK);
  EXPECT_EQ(wait(), QUIRE_BLOCK_NO_SPACE);
  ASSERT_EQ(quire_store_set_limits(store, "none", 0, 0, &error), QUIRE_OK);
  ASSERT_EQ(quire_store_put(store, "none", &put, 1, &batch, &error), QUIRE_OK);
  EXPECT_EQ(wait(), QUIRE_BLOCK_OK);
  auto usage = Sized<quire_store_usage>();
  ASSERT_EQ(quire_store_get_usage(store, "none", &usage, &error), QUIRE_OK);
  EXPECT_EQ(usage.blocks, 1);
  EXPECT_GT(usage.bytes, data.size());
  ASSERT_EQ(quire_store_erase(store, "none", &batch, &error), QUIRE_OK);
  EXPECT_EQ(wait(), QUIRE_BLOCK_OK);
  ASSERT_EQ(quire_store_get_usage(store, "none", &usage, &error), QUIRE_OK);
  EXPECT_EQ(usage.blocks, 0);
}

TEST_F(CStore, NoOwnerAtASocket) {
  const std::string socket = "unix:" + directory + "/socket";
  options.directory = socket.c_str();
  EXPECT_EQ(quire_store_open(&options, &store, &error), QUIRE_NOT_FOUND);
  EXPECT_NE(std::string(error.message).find("socket"), std::string::npos);
}

TEST_F(CStore, ZerosAreDefaults) {
  options = Sized<quire_store_options>();
  options.directory = directory.c_str();
  Open();
  auto stats = Sized<quire_store_stats>();
  ASSERT_EQ(quire_store_get_stats(store, &stats, &error), QUIRE_OK);
  EXPECT_EQ(stats.bytes_cap, uint64_t{8} << 30);
  EXPECT_GE(stats.block_bytes_max, uint64_t{64} << 20);
}

TEST_F(CStore, NothingAtNull) {
  Open();
  uint64_t batch = 7;
  size_t count = 7;
  quire_block_result result{};
  const quire_put_block put = {"k", 1, "data", 4};
  char room[8];
  const quire_get_block get = {"k", 1, room, sizeof(room)};
  const quire_block_key key = {"k", 1};
  auto stats = Sized<quire_store_stats>();
  const auto refused = [&](quire_code code) {
    EXPECT_NE(std::string(error.message), "");
    return code == QUIRE_INVALID_ARGUMENT;
  };
  quire_store* made = nullptr;
  EXPECT_TRUE(refused(quire_store_open(nullptr, &made, &error)));
  EXPECT_TRUE(refused(quire_store_open(&options, nullptr, &error)));
  EXPECT_TRUE(refused(quire_store_close(nullptr, &error)));
  EXPECT_TRUE(refused(quire_store_put(nullptr, "", &put, 1, &batch, &error)));
  EXPECT_TRUE(refused(quire_store_put(store, "", nullptr, 1, &batch, &error)));
  EXPECT_TRUE(refused(quire_store_put(store, "", &put, 1, nullptr, &error)));
  EXPECT_TRUE(refused(quire_store_put(store, "", &put, SIZE_MAX, &batch, &error)));
  EXPECT_TRUE(refused(quire_store_get(nullptr, "", &get, 1, &batch, &error)));
  EXPECT_TRUE(refused(quire_store_get(store, "", nullptr, 1, &batch, &error)));
  EXPECT_TRUE(refused(quire_store_exists(nullptr, "", &key, 1, &batch, &error)));
  EXPECT_TRUE(refused(quire_store_remove(store, "", nullptr, 1, &batch, &error)));
  EXPECT_TRUE(refused(quire_store_flush(nullptr, &batch, &error)));
  EXPECT_TRUE(refused(quire_store_flush(store, nullptr, &error)));
  EXPECT_TRUE(refused(quire_store_wait(nullptr, 1, 0, &result, 1, &error)));
  EXPECT_TRUE(refused(quire_store_wait(store, 1, 0, nullptr, 1, &error)));
  EXPECT_TRUE(refused(quire_store_next(nullptr, &batch, &result, 1, &count, &error)));
  EXPECT_TRUE(refused(quire_store_next(store, nullptr, &result, 1, &count, &error)));
  EXPECT_TRUE(refused(quire_store_next(store, &batch, nullptr, 1, &count, &error)));
  EXPECT_TRUE(refused(quire_store_next(store, &batch, &result, 1, nullptr, &error)));
  EXPECT_TRUE(refused(quire_store_get_stats(nullptr, &stats, &error)));
  EXPECT_TRUE(refused(quire_store_get_stats(store, nullptr, &error)));
  EXPECT_TRUE(refused(quire_store_erase(nullptr, "", &batch, &error)));
  EXPECT_TRUE(refused(quire_store_erase(store, "", nullptr, &error)));
  EXPECT_TRUE(refused(quire_store_set_limits(nullptr, "", 1, 1, &error)));
  EXPECT_TRUE(refused(quire_store_get_usage(store, "", nullptr, &error)));
  for (const quire_put_block& bad :
       {quire_put_block{nullptr, 1, "d", 1}, quire_put_block{"k", 1, nullptr, 1}}) {
    EXPECT_TRUE(refused(quire_store_put(store, "", &bad, 1, &batch, &error)));
  }
  const quire_get_block bad = {"k", 1, nullptr, 1};
  EXPECT_TRUE(refused(quire_store_get(store, "", &bad, 1, &batch, &error)));
  EXPECT_EQ(batch, 7);
  EXPECT_EQ(count, 7);
  EXPECT_EQ(quire_store_event_fd(nullptr), -1);
  quire_store_free(nullptr);
  EXPECT_STREQ(quire_block_outcome_name(-1), "unknown");
  EXPECT_STREQ(quire_block_outcome_name(QUIRE_BLOCK_UNREACHABLE), "unreachable");
  EXPECT_STREQ(quire_block_outcome_name(10), "unknown");
}

TEST_F(CStore, AnAcceptedPutIsFoundInMemory) {
  options.commit_interval_us = 60'000'000;
  options.accepts_puts = 1;
  options.memory_bytes = 1 << 20;
  Open();
  const std::string data(5000, 'x');
  std::string out(5000, ' ');
  const quire_put_block put = {"key", 3, data.data(), data.size()};
  const quire_get_block get = {"key", 3, out.data(), out.size()};
  quire_block_result result{};
  uint64_t batch = 0;
  ASSERT_EQ(quire_store_put(store, "", &put, 1, &batch, &error), QUIRE_OK);
  ASSERT_EQ(quire_store_wait(store, batch, QUIRE_FOREVER, &result, 1, &error), QUIRE_OK);
  EXPECT_EQ(result.outcome, QUIRE_BLOCK_OK);
  ASSERT_EQ(quire_store_get(store, "", &get, 1, &batch, &error), QUIRE_OK);
  ASSERT_EQ(quire_store_wait(store, batch, QUIRE_FOREVER, &result, 1, &error), QUIRE_OK);
  EXPECT_EQ(out, data);
  auto stats = Sized<quire_store_stats>();
  ASSERT_EQ(quire_store_get_stats(store, &stats, &error), QUIRE_OK);
  EXPECT_EQ(stats.memory_hits, 1);
  EXPECT_EQ(stats.puts_lost, 0);
}

TEST_F(CStore, BadOptionsAreRefusedAndNameWhatIsWrong) {
  options.accepts_puts = 1;
  options.memory_bytes = UINT64_MAX;  // none
  EXPECT_EQ(quire_store_open(&options, &store, &error), QUIRE_INVALID_ARGUMENT);
  options.accepts_puts = 0;
  options.block_bytes_max = uint64_t{3} << 30;
  EXPECT_EQ(quire_store_open(&options, &store, &error), QUIRE_INVALID_ARGUMENT);
  EXPECT_NE(std::string(error.message).find("3221225472"), std::string::npos) << error.message;
  options.block_bytes_max = 0;
  options.disk_requests_max = UINT32_MAX;
  EXPECT_EQ(quire_store_open(&options, &store, &error), QUIRE_INVALID_ARGUMENT);
  options.disk_requests_max = 0;
  options.directory = nullptr;
  EXPECT_EQ(quire_store_open(&options, &store, &error), QUIRE_INVALID_ARGUMENT);
  options.directory = "/nowhere/at/all";
  EXPECT_NE(quire_store_open(&options, &store, &error), QUIRE_OK);
  EXPECT_NE(std::string(error.message).find("/nowhere/at/all"), std::string::npos) << error.message;
}

TEST_F(CStore, BatchesAreTakenOnce) {
  Open();
  quire_block_result results[3];
  const quire_block_key keys[3] = {{"a", 1}, {"b", 1}, {nullptr, 0}};
  uint64_t batch = 0;
  ASSERT_EQ(quire_store_exists(store, nullptr, keys, 3, &batch, &error), QUIRE_OK);
  EXPECT_EQ(quire_store_wait(store, batch, 0, results, 2, &error), QUIRE_INVALID_ARGUMENT);
  EXPECT_EQ(quire_store_wait(store, batch, 0, results, 3, &error), QUIRE_NOT_FOUND);
  ASSERT_EQ(quire_store_exists(store, nullptr, keys, 3, &batch, &error), QUIRE_OK);
  uint64_t next = 0;
  size_t count = 0;
  results[1].bytes = 99;
  ASSERT_EQ(quire_store_next(store, &next, results, 1, &count, &error), QUIRE_OK);
  EXPECT_EQ(next, batch);
  EXPECT_EQ(count, 3);
  EXPECT_EQ(results[1].bytes, 99);  // no more than there is room for
  EXPECT_EQ(quire_store_wait(store, batch, 0, results, 3, &error), QUIRE_NOT_FOUND);
}

}  // namespace
}  // namespace quire::embed
