// Encrypted stores of blocks on a real disk, and processes that are killed in the middle of an
// erasure and of a rotation.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <thread>

#include "base/log.h"
#include "env/clock.h"
#include "env/files.h"
#include "quire/store.h"
#include "store/test_util.h"
#include "tier/rotate.h"

namespace quire::store {
namespace {

using testing::HasSubstr;

StoreKeys TestKey(uint8_t number) { return {.key = std::vector<uint8_t>(32, number)}; }

BlockStoreOptions Encrypted(const TestDirectory& directory, uint8_t key = 7) {
  BlockStoreOptions options = TestOptions(directory);
  options.bytes_cap = 64 << 20;
  options.commit_interval_us = 1000;
  options.keys = TestKey(key);
  return options;
}

BlockOutcome EndOfPut(BlockStore& store, std::string_view name_space, std::string_view key,
                      const Bytes& block) {
  const BlockPut put = {key, block};
  return store.Wait(store.Put(name_space, {&put, 1}))->results[0].outcome;
}

// Runs `work` in a process of its own, which is killed once it has told `told` times, and some time
// later. The last number that it told.
uint64_t KilledAfter(uint64_t told, uint64_t pause_us, const std::function<void(int told)>& work) {
  int ends[2];
  EXPECT_EQ(::pipe(ends), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(ends[0]);
    work(ends[1]);
    ::_exit(1);
  }
  ::close(ends[1]);
  uint64_t last = 0;
  for (uint64_t i = 0; i < told; ++i) {
    EXPECT_EQ(::read(ends[0], &last, sizeof(last)), ssize_t{sizeof(last)}) << "it ended by itself";
  }
  ::usleep(static_cast<useconds_t>(pause_us));
  ::kill(child, SIGKILL);
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status));
  while (::read(ends[0], &last, sizeof(last)) == sizeof(last)) {
  }
  ::close(ends[0]);
  return last;
}

void Tell(int told, uint64_t number) {
  if (::write(told, &number, sizeof(number)) != sizeof(number)) ::_exit(3);
}

TEST(EncryptedBlocks, OfEveryLengthComeBackAndSayNothingOnTheDisk) {
  const TestDirectory directory;
  BlockStoreOptions options = Encrypted(directory);
  options.block_bytes_max = 1 << 20;
  options.memory_bytes = 0;
  const std::vector<uint64_t> lengths = {0, 1, 4095, 4096, 4097, 8191, 100'000, 1 << 20};
  {
    const auto store = BlockStore::Open(options);
    ASSERT_TRUE(store) << store.error().message;
    EXPECT_EQ((*store)->stats().block_bytes_max, 1u << 20);
    for (const uint64_t bytes : lengths) {
      EXPECT_EQ(EndOfPut(**store, "tenant anna", std::to_string(bytes), TestBlock(bytes, bytes)),
                BlockOutcome::kOk);
    }
    const Bytes beyond((1 << 20) + 1);
    EXPECT_EQ(EndOfPut(**store, "tenant anna", "beyond", beyond), BlockOutcome::kTooLarge);
  }
  for (int opening = 0; opening < 2; ++opening) {
    const auto store = BlockStore::Open(options);
    ASSERT_TRUE(store) << store.error().message;
    for (const uint64_t bytes : lengths) {
      EXPECT_EQ(GetOne(**store, "tenant anna", std::to_string(bytes), bytes),
                TestBlock(bytes, bytes));
      const std::string name = std::to_string(bytes);
      const std::string_view key = name;
      const auto there = (*store)->Wait((*store)->Exists("tenant anna", {&key, 1}));
      EXPECT_GE(there->results[0].bytes, bytes);
      EXPECT_LE(there->results[0].bytes, bytes + 4095);
    }
    EXPECT_EQ((*store)->Usage("tenant anna")->blocks, lengths.size());
  }
  const std::string disk = directory.Read();
  for (const uint64_t bytes : lengths) {
    if (bytes < 4095) continue;
    const Bytes block = TestBlock(bytes, bytes);
    for (const size_t at : {size_t{0}, block.size() - 24}) {
      const std::string_view part(reinterpret_cast<const char*>(&block[at]), 24);
      EXPECT_EQ(disk.find(part), std::string::npos);
    }
  }
  EXPECT_EQ(disk.find("anna"), std::string::npos);
  EXPECT_EQ(disk.find(std::string(16, '\x07')), std::string::npos);  // of the key

  options.keys = {};
  const auto plain = BlockStore::Open(options);
  ASSERT_FALSE(plain);
  EXPECT_EQ(plain.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(plain.error().message, HasSubstr("it is encrypted: give the key"));
}

TEST(EncryptedBlocks, TheKeysOfAServedStoreAreItsOwners) {
  const auto opened = BlockStore::Open({.directory = "unix:/nowhere", .keys = TestKey(7)});
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(opened.error().message, HasSubstr("the process that serves it has them"));
}

TEST(EncryptedBlocks, AKillInTheMiddleOfAnErasureLeavesAllOrNothing) {
  const TestDirectory directory;
  const BlockStoreOptions options = Encrypted(directory);
  constexpr uint64_t kBlocks = 6;
  const auto key_of = [](uint64_t number, uint64_t i) {
    return std::to_string(number) + "/" + std::to_string(i);
  };
  // Writes for both tenants, then erases one of them, again and again.
  const auto work = [&](int told) {
    const auto store = BlockStore::Open(options);
    if (!store) return;
    if (EndOfPut(**store, "berta", "0", TestBlock(1, 5000)) == BlockOutcome::kIo) return;
    for (uint64_t number = 1;; ++number) {
      for (uint64_t i = 0; i < kBlocks; ++i) {
        if (EndOfPut(**store, "anna", key_of(number, i), TestBlock(i, 9000)) != BlockOutcome::kOk) {
          return;
        }
      }
      Tell(told, number);
      const auto erased = (*store)->Wait((*store)->Erase("anna"));
      if (!erased || erased->results[0].outcome != BlockOutcome::kOk) return;
    }
  };
  for (uint64_t round = 0; round < 8; ++round) {
    SCOPED_TRACE(round);
    const uint64_t last = KilledAfter(2 + round, round * 700, work);
    const auto store = BlockStore::Open(options);
    ASSERT_TRUE(store) << store.error().message;
    for (uint64_t number = 1; number <= last; ++number) {
      uint64_t found = 0;
      for (uint64_t i = 0; i < kBlocks; ++i) {
        const auto block = GetOne(**store, "anna", key_of(number, i), 9000);
        if (!block) continue;
        ++found;
        EXPECT_EQ(*block, TestBlock(i, 9000));
      }
      EXPECT_TRUE(found == 0 || (found == kBlocks && number == last)) << number << ": " << found;
    }
    EXPECT_EQ(GetOne(**store, "berta", "0", 5000), TestBlock(1, 5000));
    ASSERT_EQ((*store)->Wait((*store)->Erase("anna"))->results[0].outcome, BlockOutcome::kOk);
    EXPECT_EQ(EndOfPut(**store, "anna", "again", TestBlock(9, 100)), BlockOutcome::kOk);
    ASSERT_EQ((*store)->Wait((*store)->Erase("anna"))->results[0].outcome, BlockOutcome::kOk);
  }
}

TEST(EncryptedBlocks, AKillInTheMiddleOfARotationLeavesOneOfTheKeys) {
  const TestDirectory directory;
  {
    const auto store = BlockStore::Open(Encrypted(directory, 1));
    ASSERT_TRUE(store) << store.error().message;
    for (uint64_t i = 0; i < 20; ++i) {
      ASSERT_EQ(
          EndOfPut(**store, i % 2 == 0 ? "anna" : "berta", std::to_string(i), TestBlock(i, 5000)),
          BlockOutcome::kOk);
    }
  }
  uint8_t now = 1;
  for (uint64_t round = 0; round < 8; ++round) {
    SCOPED_TRACE(round);
    const uint8_t next = now + 1;
    const auto work = [&](int told) {
      const auto files = MakeFiles();
      if (!files) return;
      Tell(told, 1);
      const auto rotated = tier::RotateKeys(
          **files, TestOptions(directory).directory,
          {.keys = TestKey(now), .new_keys = TestKey(next), .renews_data_keys = true},
          SystemClock());
      if (!rotated) ::_exit(4);
      Tell(told, 2);
      while (true) ::pause();
    };
    const uint64_t last = KilledAfter(1, round * 1500, work);
    SetLogLevel(LogLevel::kOff);
    auto store = BlockStore::Open(Encrypted(directory, now));
    const bool is_old = store.has_value();
    if (!is_old) {
      EXPECT_THAT(store.error().message, HasSubstr("is not the key that it was made with"));
      store = BlockStore::Open(Encrypted(directory, next));
      now = next;
    }
    SetLogLevel(LogLevel::kWarn);
    ASSERT_TRUE(store) << store.error().message;
    EXPECT_FALSE(is_old && last == 2);
    for (uint64_t i = 0; i < 20; ++i) {
      EXPECT_EQ(GetOne(**store, i % 2 == 0 ? "anna" : "berta", std::to_string(i), 5000),
                TestBlock(i, 5000));
    }
    EXPECT_EQ((*store)->stats().damaged, 0);
  }
  // Asked again it goes on.
  const uint8_t end = now + 1;
  for (int call = 0; call < 2; ++call) {
    const auto files = MakeFiles();
    ASSERT_TRUE(files);
    const auto rotated =
        tier::RotateKeys(**files, TestOptions(directory).directory,
                         {.keys = TestKey(now), .new_keys = TestKey(end)}, SystemClock());
    ASSERT_TRUE(rotated) << rotated.error().message;
    EXPECT_EQ(rotated->rewrapped, call == 0);
  }
  EXPECT_TRUE(BlockStore::Open(Encrypted(directory, end)));
}

}  // namespace
}  // namespace quire::store
