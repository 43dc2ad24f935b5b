// A process that is killed while it writes: what it was told is durable is found by the next one.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "quire/store.h"
#include "store/test_util.h"

namespace quire::store {
namespace {

uint64_t BytesOf(uint64_t number) { return 100 + number * 7919 % 60'000; }

// Puts blocks from `first` on for ever, and writes the number of each that is durable.
[[noreturn]] void PutUntilKilled(const BlockStoreOptions& options, uint64_t first, int told) {
  auto store = BlockStore::Open(options);
  if (!store) ::_exit(1);
  for (uint64_t number = first;; ++number) {
    const std::string key = std::to_string(number);
    const Bytes block = TestBlock(number, BytesOf(number));
    const BlockPut put = {key, block};
    const auto ended = (*store)->Wait((*store)->Put("ns", {&put, 1}));
    if (!ended || ended->results[0].outcome != BlockOutcome::kOk) ::_exit(2);
    if (::write(told, &number, sizeof(number)) != sizeof(number)) ::_exit(3);
  }
}

TEST(BlockStoreKill, WhatWasDurableIsFoundAfterKill) {
  const TestDirectory directory;
  BlockStoreOptions options = TestOptions(directory);
  options.bytes_cap = 64 << 20;
  options.commit_interval_us = 1000;
  uint64_t next = 0;
  for (int round = 0; round < 6; ++round) {
    SCOPED_TRACE(round);
    int ends[2];
    ASSERT_EQ(::pipe(ends), 0);
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      ::close(ends[0]);
      PutUntilKilled(options, next, ends[1]);
    }
    ::close(ends[1]);
    const uint64_t wanted = next + 10 + static_cast<uint64_t>(round) * 7;
    uint64_t number = 0;
    while (next < wanted && ::read(ends[0], &number, sizeof(number)) == sizeof(number)) {
      next = number + 1;
    }
    EXPECT_EQ(next, wanted) << "the child ended by itself";
    ::kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFSIGNALED(status));
    while (::read(ends[0], &number, sizeof(number)) == sizeof(number)) next = number + 1;
    ::close(ends[0]);

    const auto store = BlockStore::Open(options);
    ASSERT_TRUE(store) << store.error().message;
    for (uint64_t i = 0; i < next; ++i) {
      ASSERT_EQ(GetOne(**store, "ns", std::to_string(i), 70'000), TestBlock(i, BytesOf(i))) << i;
    }
    // The one that was being put may be there, whole.
    const auto last = GetOne(**store, "ns", std::to_string(next), 70'000);
    if (last) {
      EXPECT_EQ(*last, TestBlock(next, BytesOf(next)));
      ++next;
    }
    EXPECT_EQ((*store)->stats().damaged, 0);
  }
  EXPECT_GT(next, 100);
}

}  // namespace
}  // namespace quire::store
