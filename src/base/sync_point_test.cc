#include "base/sync_point.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

namespace quire {
namespace {

TEST(SyncPoint, TellsTheHandlerWhileItLives) {
  std::vector<std::string> reached;
  AtSyncPoint("before");
  {
    const SyncPointHandler handler([&](std::string_view name) { reached.emplace_back(name); });
    AtSyncPoint("first");
    AtSyncPoint("second");
  }
  AtSyncPoint("after");
  EXPECT_EQ(reached, (std::vector<std::string>{"first", "second"}));
  const SyncPointHandler next([&](std::string_view) { reached.clear(); });
  AtSyncPoint("again");
  EXPECT_TRUE(reached.empty());
}

TEST(SyncPoint, RunsTheHandlerOnTheThreadThatGetsThere) {
  std::thread::id handled_on;
  const SyncPointHandler handler(
      [&](std::string_view) { handled_on = std::this_thread::get_id(); });
  std::thread::id other_id;
  std::thread other([&] {
    other_id = std::this_thread::get_id();
    AtSyncPoint("there");
  });
  other.join();
  EXPECT_EQ(handled_on, other_id);
  AtSyncPoint("here");
  EXPECT_EQ(handled_on, std::this_thread::get_id());
}

TEST(SyncPoint, WhatTheHandlerDoesReachesNoPoint) {
  int calls = 0;
  const SyncPointHandler handler([&](std::string_view) {
    ++calls;
    AtSyncPoint("inside");
  });
  AtSyncPoint("once");
  AtSyncPoint("twice");
  EXPECT_EQ(calls, 2);
}

TEST(SyncPointDeathTest, TwoHandlersAreABug) {
  const SyncPointHandler handler([](std::string_view) {});
  EXPECT_DEATH(SyncPointHandler([](std::string_view) {}), "one handler of sync points at a time");
}

}  // namespace
}  // namespace quire
