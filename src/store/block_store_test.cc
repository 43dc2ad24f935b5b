// The store with its thread on a real disk: batches, waiting, draining, closing, many threads.
#include "quire/store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <map>
#include <thread>

#include "base/prng.h"
#include "store/test_util.h"

namespace quire::store {
namespace {

using enum BlockOutcome;

class BlockStoreTest : public testing::Test {
 protected:
  std::unique_ptr<BlockStore> Open() {
    auto opened = BlockStore::Open(options_);
    EXPECT_TRUE(opened) << opened.error().message;
    return std::move(*opened);
  }

  TestDirectory directory_;
  BlockStoreOptions options_ = TestOptions(directory_);
};

bool Readable(const BlockStore& store, int timeout_ms = 0) {
  pollfd waiting = {.fd = store.event_fd(), .events = POLLIN, .revents = 0};
  return ::poll(&waiting, 1, timeout_ms) == 1;
}

TEST_F(BlockStoreTest, BatchesEndInOneOfTwoWays) {
  const auto store = Open();
  const Bytes a = TestBlock(1, 100), b = TestBlock(2, 50'000);
  const std::vector<BlockPut> puts = {{"a", a}, {"b", b}};
  const uint64_t put = store->Put("ns", puts);
  const auto ended = store->Wait(put);
  ASSERT_TRUE(ended) << ended.error().message;
  EXPECT_EQ(ended->id, put);
  EXPECT_THAT(ended->results, testing::ElementsAre(BlockResult{kOk}, BlockResult{kOk}));
  EXPECT_EQ(store->Wait(put).error().code, ErrorCode::kNotFound);
  EXPECT_EQ(store->Wait(999).error().code, ErrorCode::kNotFound);

  EXPECT_FALSE(Readable(*store));
  Bytes out_a(100), out_b(60'000), out_c(1);
  const std::vector<BlockGet> gets = {{"a", out_a}, {"b", out_b}, {"c", out_c}};
  const uint64_t get = store->Get("ns", gets);
  ASSERT_TRUE(Readable(*store, 10'000));
  const auto drained = store->Drain();
  ASSERT_EQ(drained.size(), 1);
  EXPECT_EQ(drained[0].id, get);
  EXPECT_THAT(
      drained[0].results,
      testing::ElementsAre(BlockResult{kOk, 100}, BlockResult{kOk, 50'000}, BlockResult{kAbsent}));
  EXPECT_EQ(out_a, a);
  out_b.resize(50'000);
  EXPECT_EQ(out_b, b);
  EXPECT_FALSE(Readable(*store));
  EXPECT_TRUE(store->Drain().empty());
}

TEST_F(BlockStoreTest, ExistsEndsAtOnceAndNamespacesAreApart) {
  const auto store = Open();
  PutOne(*store, "ns", "key", TestBlock(1, 5000));
  const std::vector<std::string_view> keys = {"key", "other"};
  EXPECT_THAT(store->Wait(store->Exists("ns", keys), 0)->results,
              testing::ElementsAre(BlockResult{kOk, 8191}, BlockResult{kAbsent}));
  EXPECT_THAT(store->Wait(store->Exists("other", keys), 0)->results,
              testing::ElementsAre(BlockResult{kAbsent}, BlockResult{kAbsent}));
}

TEST_F(BlockStoreTest, EmptyBatchesEnd) {
  const auto store = Open();
  for (const uint64_t id : {store->Put("", {}), store->Get("", {}), store->Exists("", {}),
                            store->Remove("", {}), store->Flush()}) {
    const auto ended = store->Wait(id);
    ASSERT_TRUE(ended);
    EXPECT_TRUE(ended->results.empty());
  }
}

// Each is put when the one before is durable.
TEST_F(BlockStoreTest, APutThatNothingFollowsDoesNotWaitForTheCommitInterval) {
  options_.commit_interval_us = 60'000'000;
  const auto store = Open();
  for (const char* const key : {"a", "b", "c"}) {
    const Bytes block = TestBlock(1, 100'000);
    const BlockPut put = {key, block};
    const auto ended = store->Wait(store->Put("", {&put, 1}), 20'000'000);
    ASSERT_TRUE(ended) << ended.error().message;
    EXPECT_EQ(ended->results[0].outcome, kOk);
  }
}

TEST_F(BlockStoreTest, WaitingHasALimit) {
  options_.commit_interval_us = 2'000'000;
  const auto store = Open();
  const Bytes block = TestBlock(1, 1 << 20);
  uint64_t id = 0;
  bool was_late = false;
  for (int round = 0; round < 100 && !was_late; ++round) {  // on a busy machine one may have ended
    const std::string key = "key" + std::to_string(round);
    const BlockPut put = {key, block};
    id = store->Put("", {&put, 1});
    const auto waited = store->Wait(id, 0);
    was_late = !waited && waited.error().code == ErrorCode::kDeadline;
  }
  ASSERT_TRUE(was_late);
  EXPECT_TRUE(store->Wait(store->Flush()));
  const auto ended = store->Wait(id, 0);
  ASSERT_TRUE(ended);
  EXPECT_EQ(ended->results[0].outcome, kOk);
}

TEST_F(BlockStoreTest, CloseEndsEverythingAndLetsGoOfTheDirectory) {
  options_.commit_interval_us = 60'000'000;
  auto store = Open();
  EXPECT_EQ(BlockStore::Open(options_).error().code, ErrorCode::kBusy);
  const Bytes block = TestBlock(1, 100'000);
  const BlockPut put = {"key", block};
  const uint64_t id = store->Put("", {&put, 1});
  store->Close();
  store->Close();
  EXPECT_EQ(store->Wait(id)->results[0].outcome, kOk);
  EXPECT_EQ(store->stats().puts, 1);
  EXPECT_EQ(store->stats().blocks, 1);
  const std::string_view key = "key";
  EXPECT_EQ(store->Wait(store->Put("", {&put, 1}))->results[0].outcome, kClosed);
  EXPECT_EQ(store->Wait(store->Exists("", {&key, 1}))->results[0].outcome, kClosed);
  EXPECT_TRUE(store->Wait(store->Flush()));

  const auto again = Open();
  EXPECT_EQ(GetOne(*again, "", "key", 200'000), block);
  store.reset();
  EXPECT_EQ(GetOne(*again, "", "key", 200'000), block);
}

TEST_F(BlockStoreTest, CountsWhatHappened) {
  const auto store = Open();
  PutOne(*store, "", "a", TestBlock(1, 5000));
  const Bytes block = TestBlock(1, 5000);
  const Bytes long_block = TestBlock(2, 2 << 20);
  const std::vector<BlockPut> puts = {{"a", block}, {"b", long_block}};
  EXPECT_THAT(store->Wait(store->Put("", puts))->results,
              testing::ElementsAre(BlockResult{kPresent}, BlockResult{kTooLarge}));
  EXPECT_EQ(GetOne(*store, "", "a", 5000), block);
  EXPECT_EQ(GetOne(*store, "", "b", 5000), std::nullopt);
  EXPECT_EQ(GetOne(*store, "", "a", 100), std::nullopt);
  const std::vector<std::string_view> keys = {"a", "b"};
  EXPECT_THAT(store->Wait(store->Remove("", keys))->results,
              testing::ElementsAre(BlockResult{kOk}, BlockResult{kAbsent}));
  const BlockStoreStats stats = store->stats();
  EXPECT_EQ(stats.puts, 1);
  EXPECT_EQ(stats.puts_present, 1);
  EXPECT_EQ(stats.puts_failed, 1);
  EXPECT_EQ(stats.hits, 1);
  EXPECT_EQ(stats.misses, 1);
  EXPECT_EQ(stats.gets_failed, 1);
  EXPECT_EQ(stats.removed, 1);
  EXPECT_EQ(stats.blocks, 0);
  EXPECT_EQ(stats.bytes_live, 0);
  EXPECT_EQ(stats.bytes_cap, options_.bytes_cap);
  EXPECT_EQ(stats.block_bytes_max, options_.block_bytes_max);
  EXPECT_LE(stats.bytes, stats.bytes_cap);
}

TEST_F(BlockStoreTest, FilesNeverExceedTheCap) {
  const auto store = Open();
  std::vector<Bytes> blocks;
  for (uint64_t i = 0; i < 8; ++i) blocks.push_back(TestBlock(i, 1 << 20));
  for (uint64_t round = 0; round < 12; ++round) {
    std::vector<std::string> keys;
    std::vector<BlockPut> puts;
    for (uint64_t i = 0; i < blocks.size(); ++i) keys.push_back(std::to_string(round * 100 + i));
    for (uint64_t i = 0; i < blocks.size(); ++i) puts.push_back({keys[i], blocks[i]});
    const auto ended = store->Wait(store->Put("", puts));
    for (const BlockResult& result : ended->results) {
      ASSERT_EQ(result.outcome, kOk) << BlockOutcomeName(result.outcome);
    }
    ASSERT_LE(directory_.bytes(), options_.bytes_cap);
  }
  EXPECT_GT(store->stats().evicted, 0);
  EXPECT_EQ(GetOne(*store, "", "1107", 1 << 20), blocks[7]);
}

TEST_F(BlockStoreTest, AnErasedNamespaceIsGoneAndOthersStay) {
  const Bytes secret = TestBlock(7, 100'000);
  {
    const auto store = Open();
    for (const char* const name_space : {"a", "b", ""}) {
      PutOne(*store, name_space, "key", name_space[0] == 'b' ? TestBlock(8, 5000) : secret);
    }
    for (const char* const name_space : {"a", ""}) {
      const auto ended = store->Wait(store->Erase(name_space));
      ASSERT_TRUE(ended);
      EXPECT_THAT(ended->results, testing::ElementsAre(BlockResult{kOk}));
      EXPECT_EQ(GetOne(*store, name_space, "key", 200'000), std::nullopt);
      EXPECT_EQ(store->Usage(name_space)->blocks, 0);
    }
    EXPECT_EQ(GetOne(*store, "b", "key", 5000), TestBlock(8, 5000));
    ASSERT_TRUE(store->Wait(store->Flush()));
    const std::string raw = directory_.Read();
    EXPECT_EQ(raw.find(std::string(reinterpret_cast<const char*>(&secret[5000]), 64)),
              std::string::npos);
    PutOne(*store, "a", "key", TestBlock(9, 3000));
  }
  const auto again = Open();
  EXPECT_EQ(GetOne(*again, "a", "key", 200'000), TestBlock(9, 3000));
  EXPECT_EQ(GetOne(*again, "", "key", 200'000), std::nullopt);
}

TEST_F(BlockStoreTest, ANamespaceStaysWithinItsQuotaAndOthersLeaveItItsFloor) {
  options_.memory_bytes = 4 << 20;
  const auto store = Open();
  const uint64_t quota = 8 << 20;
  ASSERT_TRUE(store->SetLimits("small", {.bytes_quota = quota}));
  ASSERT_TRUE(store->SetLimits("kept", {.bytes_floor = 4 << 20}));
  ASSERT_TRUE(store->SetLimits("none", {.bytes_quota = 1}));
  PutOne(*store, "kept", "key", TestBlock(1, 500'000));
  for (uint64_t i = 0; i < 40; ++i) {
    PutOne(*store, "small", std::to_string(i), TestBlock(i, 1'000'000));
    ASSERT_LE(store->Usage("small")->bytes, quota);
    PutOne(*store, "large", std::to_string(i), TestBlock(i, 1'000'000));
  }
  EXPECT_GT(store->Usage("small")->blocks, 0);
  EXPECT_GT(store->Usage("large")->bytes, quota);
  EXPECT_EQ(store->Usage("kept")->blocks, 1);
  EXPECT_EQ(GetOne(*store, "kept", "key", 500'000), TestBlock(1, 500'000));
  EXPECT_EQ(store->Usage("unknown"), NamespaceUsage());
  const Bytes block = TestBlock(1, 100);
  const BlockPut put = {"key", block};
  EXPECT_EQ(store->Wait(store->Put("none", {&put, 1}))->results[0].outcome, kNoSpace);
  store->Close();
  EXPECT_EQ(store->Usage("kept").error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(store->SetLimits("kept", {}).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(store->Wait(store->Erase("kept"))->results[0].outcome, kClosed);
}

// All calls at once from several threads; what is found is what was put under that key.
TEST_F(BlockStoreTest, AnyThreadMayCall) {
  const auto store = Open();
  constexpr uint64_t kThreads = 6;
  constexpr uint64_t kSteps = 150;
  std::atomic<uint64_t> hits = 0;
  std::atomic<bool> ending = false;
  std::thread drainer([&] {
    while (!ending) {
      Readable(*store, 1);
      for (const BlockBatch& batch : store->Drain()) EXPECT_GT(batch.id, 0);
      EXPECT_LE(store->stats().bytes, options_.bytes_cap);
    }
  });
  std::vector<std::thread> threads;
  for (uint64_t thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      Prng prng(thread);
      for (uint64_t step = 0; step < kSteps; ++step) {
        const uint64_t number = prng.NextBelow(60);
        const std::string key = std::to_string(number);
        const std::string name_space = std::to_string(number % 2);
        const Bytes block = TestBlock(number, 1000 + number * 511);
        const std::string_view keys[] = {key};
        Bytes out(40'000);
        switch (prng.NextBelow(6)) {
          case 0:
          case 1: {
            const BlockPut put = {key, block};
            // What the drainer took before has ended, too.
            (void)store->Wait(store->Put(name_space, {&put, 1}));
            (void)store->Wait(store->Exists(name_space, keys));
            (void)store->Wait(store->Flush());
            break;
          }
          case 2: (void)store->Wait(store->Remove(name_space, keys)); break;
          case 3:
            if (number == 0) (void)store->Wait(store->Erase(name_space));
            EXPECT_TRUE(store->SetLimits(name_space, {.bytes_floor = 1 << 20}));
            EXPECT_TRUE(store->Usage(name_space));
            break;
          default: {
            const BlockGet get = {key, out};
            const uint64_t id = store->Get(name_space, {&get, 1});
            const auto ended = store->Wait(id);
            if (!ended || ended->results[0].outcome != kOk) break;
            out.resize(ended->results[0].bytes);
            EXPECT_EQ(out, block);
            ++hits;
          }
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  ending = true;
  drainer.join();
  EXPECT_GT(hits, 0);
}

TEST_F(BlockStoreTest, ThreadsThatWaitWhileTheStoreClosesHearTheEnd) {
  options_.commit_interval_us = 60'000'000;
  const auto store = Open();
  std::vector<std::thread> threads;
  std::atomic<uint64_t> ok = 0;
  std::atomic<uint64_t> closed = 0;
  std::atomic<uint64_t> started = 0;
  for (uint64_t thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      for (uint64_t i = 0; closed < 4 && i < 1000; ++i) {
        const std::string key = std::to_string(thread * 10'000 + i);
        const Bytes block = TestBlock(i, 2000);
        const BlockPut put = {key, block};
        const uint64_t id = store->Put("", {&put, 1});
        ++started;
        const auto ended = store->Wait(id);
        ASSERT_TRUE(ended) << ended.error().message;
        if (ended->results[0].outcome == kOk) ++ok;
        if (ended->results[0].outcome == kClosed) {
          ++closed;
          break;
        }
      }
    });
  }
  while (started < 4) std::this_thread::yield();
  store->Close();
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(closed, 4);
  EXPECT_EQ(store->stats().blocks, ok);
}

}  // namespace
}  // namespace quire::store
