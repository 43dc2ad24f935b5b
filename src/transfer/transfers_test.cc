// Transfers on a store in memory that does what a test tells it to.
#include "transfer/transfers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "env/clock.h"

namespace quire::transfer {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using tier::StoreCompletion;
using tier::StoreOutcome;

/// Ends what it is asked with `answers`, in turn, then with kOk; nothing while it `holds`.
class ScriptedStore final : public tier::Store {
 public:
  void Put(std::span<const tier::PutRequest> requests) override {
    for (const tier::PutRequest& put : requests) Ask("put " + Name(put.identity.key), put.tag);
  }
  void Get(std::span<const tier::LoadRequest> loads, uint64_t) override {
    for (const tier::LoadRequest& load : loads) Ask("get " + Name(load.identity.key), load.tag);
  }
  void Cancel(uint64_t tag) override {
    asked.push_back("cancel");
    for (StoreCompletion& end : ends_) {
      if (end.tag == tag) end.outcome = StoreOutcome::kCancelled;
    }
  }
  void Erase(const tier::PublisherId&, uint64_t epoch, uint64_t tag) override {
    Ask("erase " + std::to_string(epoch), tag);
  }
  void Flush(uint64_t tag) override { Ask("flush", tag); }
  void Remove(const Digest& key, uint64_t tag) override { Ask("remove " + Name(key), tag); }
  std::optional<uint64_t> RecordBytesOf(const Digest&) const override { return std::nullopt; }
  void Tick(std::vector<StoreCompletion>& done, uint64_t) override {
    if (holds) return;
    done.insert(done.end(), ends_.begin(), ends_.end());
    ends_.clear();
  }
  void Find(std::span<const Digest>, std::span<tier::Presence>) const override {}
  void Touch(std::span<const tier::RecordUse>, std::span<tier::Presence>) override {}
  std::vector<tier::RecordRoot> RootsOf(const tier::PublisherId&) const override { return {}; }
  void SetLimits(const tier::PublisherLimits&) override {}
  uint64_t EpochOf(const tier::PublisherId&) const override { return 6; }
  tier::StoreStats Stats() const override { return {.in_flight = in_flight}; }
  tier::PublisherUsage UsageOf(const tier::PublisherId&) const override { return {}; }

  std::vector<std::string> asked;
  std::vector<StoreOutcome> answers;
  uint64_t in_flight = 0;
  bool holds = false;
  int without_memory = 0;  // requests

 private:
  static std::string Name(const Digest& key) { return std::to_string(static_cast<int>(key[0])); }
  void Ask(std::string what, uint64_t tag) {
    if (without_memory > 0 && without_memory-- > 0) throw std::bad_alloc();
    asked.push_back(std::move(what));
    StoreCompletion end{.tag = tag};
    if (!answers.empty()) {
      end.outcome = answers.front();
      answers.erase(answers.begin());
    }
    ends_.push_back(end);
  }

  std::vector<StoreCompletion> ends_;
};

struct TransfersTest : ::testing::Test {
  static Digest Key(int number) {
    Digest key{};
    key[0] = static_cast<Digest::value_type>(number);
    return key;
  }
  AtEnd Note(int number) {
    return [this, number](const StoreCompletion& end) { ended.emplace_back(number, end.outcome); };
  }
  void Write(int number) {
    transfers.Write({.identity = {.key = Key(number)}}, *ends, Note(number));
  }
  uint64_t Read(int number) {
    return transfers.Read({.identity = {.key = Key(number)}}, 0, *ends, Note(number));
  }

  std::unique_ptr<ScriptedStore> made = std::make_unique<ScriptedStore>();
  ScriptedStore& store = *made;
  ManualClock clock;
  Transfers transfers{std::move(made), clock, {.steps_back = false}};
  std::vector<std::pair<int, StoreOutcome>> ended;
  std::unique_ptr<Ends> ends = std::make_unique<Ends>(transfers);
};

/// Writes what it has, in order, as long as the store takes it.
struct Writer final : Worker {
  Writer(TransfersTest& of, std::vector<int> writes) : test(of), waiting(std::move(writes)) {
    test.transfers.Attach(*this);
  }
  ~Writer() override { test.transfers.Detach(*this); }
  Turned Turn() override {
    Turned turned{.worked = ends.Run()};
    while (!waiting.empty() && test.transfers.MayWrite()) {
      const int number = waiting.front();
      waiting.erase(waiting.begin());
      test.transfers.Write({.identity = {.key = TransfersTest::Key(number)}}, ends,
                           [this, number](const StoreCompletion& end) {
                             if (end.outcome != StoreOutcome::kBusy) return;
                             waiting.insert(waiting.begin(), number);
                           });
      ends.Run();
      turned.worked = true;
    }
    return turned;
  }
  bool HasWaiting() override { return !waiting.empty(); }

  TransfersTest& test;
  std::vector<int> waiting;
  Ends ends{test.transfers, /*wakes=*/true};
};

TEST_F(TransfersTest, WhatEndsIsTheClientsToTake) {
  store.answers = {StoreOutcome::kMiss, StoreOutcome::kOk};
  Read(1);
  Read(2);
  EXPECT_THAT(store.asked, IsEmpty()) << "a read waits for nothing";
  EXPECT_TRUE(transfers.Tick(0));
  EXPECT_THAT(store.asked, ElementsAre("get 1", "get 2"));
  EXPECT_THAT(ended, IsEmpty());
  EXPECT_TRUE(ends->Run());
  EXPECT_THAT(ended,
              ElementsAre(std::pair(1, StoreOutcome::kMiss), std::pair(2, StoreOutcome::kOk)));
  EXPECT_FALSE(ends->Run());
  EXPECT_FALSE(transfers.Tick(0));
}

TEST_F(TransfersTest, EachIsAskedForInTheOrderOfTheCalls) {
  Read(1);
  Write(2);
  transfers.Flush(*ends, Note(3));
  Write(4);
  EXPECT_THAT(store.asked, ElementsAre("get 1", "put 2", "flush", "put 4"));
}

TEST_F(TransfersTest, NothingIsLeftOfARequestThatEnded) {
  const auto carried = std::make_shared<int>();
  transfers.Write({}, *ends, [carried](const StoreCompletion&) {});
  EXPECT_EQ(carried.use_count(), 2);
  ends->Run();
  EXPECT_EQ(carried.use_count(), 1);
}

TEST_F(TransfersTest, WhatTheStoreCannotTakeJustNowIsWrittenAgainInItsOrder) {
  store.answers = {StoreOutcome::kOk, StoreOutcome::kBusy};
  store.in_flight = 1;
  Writer writer(*this, {1, 2, 3});
  transfers.Tick(0);
  EXPECT_THAT(store.asked, ElementsAre("put 1", "put 2"));
  EXPECT_THAT(writer.waiting, ElementsAre(2, 3));
  EXPECT_FALSE(transfers.MayWrite());
  clock.Advance(499);
  transfers.Tick(0);
  EXPECT_THAT(writer.waiting, ElementsAre(2, 3)) << "not before some time has passed";
  clock.Advance(1);
  transfers.Tick(0);
  EXPECT_THAT(store.asked, ElementsAre("put 1", "put 2", "put 2", "put 3"));
}

TEST_F(TransfersTest, WhatHasArrivedAtTheDiskEndsThePause) {
  store.answers = {StoreOutcome::kBusy};
  store.in_flight = 1;
  Writer writer(*this, {1});
  transfers.Tick(0);
  EXPECT_FALSE(transfers.MayWrite());
  store.in_flight = 0;
  transfers.Tick(0);
  EXPECT_TRUE(transfers.MayWrite()) << "no time has passed";
}

TEST_F(TransfersTest, AStoreThatIsBusyWithNothingUnderWayIsAskedToCommit) {
  store.answers = {StoreOutcome::kBusy};
  Writer writer(*this, {1});
  transfers.Tick(0);
  transfers.Tick(0);
  EXPECT_THAT(store.asked, ElementsAre("put 1", "flush"));
  EXPECT_FALSE(transfers.MayWrite()) << "it would be asked again and again";
  store.in_flight = 1;
  transfers.Tick(0);
  store.in_flight = 0;
  transfers.Tick(0);
  EXPECT_TRUE(transfers.MayWrite());
}

TEST_F(TransfersTest, WithoutMemoryAWriteHasNotBegun) {
  store.without_memory = 1;
  EXPECT_THROW(Write(1), std::bad_alloc);
  Write(2);
  ends->Run();
  EXPECT_THAT(ended, ElementsAre(std::pair(2, StoreOutcome::kOk)));
}

TEST_F(TransfersTest, WithoutMemoryAReadEndsAndAnErasureIsAskedForOnceMore) {
  store.without_memory = 1;
  Read(1);
  transfers.Tick(0);
  ends->Run();
  EXPECT_THAT(ended, ElementsAre(std::pair(1, StoreOutcome::kCancelled)));
  const auto erase = [](tier::Store& of, uint64_t tag) { of.Erase({}, 7, tag); };
  transfers.Begin(erase, *ends, Note(2));
  store.without_memory = 1;
  EXPECT_THROW(transfers.Tick(0), std::bad_alloc);
  transfers.Tick(0);
  ends->Run();
  EXPECT_EQ(ended.back(), std::pair(2, StoreOutcome::kOk));
  EXPECT_THAT(store.asked, ElementsAre("cancel", "erase 7"));
}

TEST_F(TransfersTest, AnEndThatFindsNoMemoryIsTheNextOneAgain) {
  bool has_memory = false;
  transfers.Write({}, *ends, [&](const StoreCompletion& end) {
    if (!has_memory) throw std::bad_alloc();
    ended.emplace_back(1, end.outcome);
  });
  Write(2);
  EXPECT_THROW(ends->Run(), std::bad_alloc);
  has_memory = true;
  ends->Run();
  EXPECT_THAT(ended, ElementsAre(std::pair(1, StoreOutcome::kOk), std::pair(2, StoreOutcome::kOk)));
}

TEST_F(TransfersTest, AReadThatIsCancelledEnds) {
  store.holds = true;
  const uint64_t begun = Read(1);
  transfers.Tick(0);
  const uint64_t waiting = Read(2);
  transfers.Cancel(begun);
  transfers.Cancel(waiting);
  transfers.Cancel(waiting);
  store.holds = false;
  transfers.Tick(0);
  ends->Run();
  EXPECT_THAT(store.asked, ElementsAre("get 1", "cancel")) << "the other one was never begun";
  EXPECT_THAT(ended, ElementsAre(std::pair(2, StoreOutcome::kCancelled),
                                 std::pair(1, StoreOutcome::kCancelled)));
  transfers.Cancel(begun);
  EXPECT_EQ(store.asked.size(), 2) << "it has ended";
}

TEST_F(TransfersTest, WhatIsForgottenHearsNothing) {
  const auto carried = std::make_shared<int>();
  const auto carry = [&] { return [carried](const StoreCompletion&) { FAIL(); }; };
  store.holds = true;
  transfers.Write({}, *ends, carry());
  transfers.Read({}, 0, *ends, carry());
  transfers.Tick(0);
  transfers.Read({}, 0, *ends, carry());
  ends.reset();
  EXPECT_EQ(carried.use_count(), 1);
  EXPECT_THAT(store.asked, ElementsAre("put 0", "get 0", "cancel")) << "the read alone";
  store.holds = false;
  EXPECT_TRUE(transfers.Tick(0)) << "the store still has them";
}

TEST_F(TransfersTest, AFlushOfAllWaitsForWhatWorkersHave) {
  /// Time passes with every turn.
  struct Passing final : Worker {
    explicit Passing(ManualClock& of) : clock(of) {}
    Turned Turn() override {
      clock.Advance(300);
      return {};
    }
    bool HasWaiting() override { return false; }
    ManualClock& clock;
  } passing(clock);
  transfers.Attach(passing);
  Writer writer(*this, {1, 2, 3});
  store.answers = {StoreOutcome::kBusy};
  store.in_flight = 1;
  EXPECT_EQ(transfers.FlushAll(), StoreOutcome::kOk);
  transfers.Detach(passing);
  EXPECT_FALSE(writer.HasWaiting());
  // While the store is too busy for what comes before, what it has is made durable.
  EXPECT_EQ(store.asked[1], "flush");
  std::erase(store.asked, "flush");
  EXPECT_THAT(store.asked, ElementsAre("put 1", "put 1", "put 2", "put 3"));
}

TEST_F(TransfersTest, AFlushSaysHowItEnded) {
  store.answers = {StoreOutcome::kIo};
  EXPECT_EQ(transfers.FlushAll(), StoreOutcome::kIo);
  EXPECT_THAT(store.asked, ElementsAre("flush"));
}

TEST_F(TransfersTest, AnErasureIsOfTheNextEpoch) {
  store.answers = {StoreOutcome::kIo};
  EXPECT_EQ(transfers.Erase({}), StoreOutcome::kIo);
  EXPECT_THAT(store.asked, ElementsAre("erase 7"));
}

TEST_F(TransfersTest, HurryingTwiceIsFlushedOnceAndAgainForWhatCameLater) {
  store.holds = true;
  transfers.Hurry();
  transfers.Hurry();
  transfers.Tick(0);
  transfers.Hurry();
  transfers.Tick(0);
  EXPECT_THAT(store.asked, ElementsAre("flush"));
  store.holds = false;
  transfers.Tick(0);
  transfers.Tick(0);
  transfers.Tick(0);
  EXPECT_THAT(store.asked, ElementsAre("flush", "flush"));
}

TEST_F(TransfersTest, WhatIsWrittenInTheBackgroundIsPaced) {
  Transfers slow(std::make_unique<ScriptedStore>(), clock, {.steps_back = false});
  WritePace pace(1'000'000);
  EXPECT_EQ(slow.Due(pace, 100, 0), 0);
  clock.Advance(100'000);
  EXPECT_EQ(slow.Due(pace, 100, 0), 10);
  slow.HoldBack();
  EXPECT_EQ(slow.Due(pace, 90, 0), 0) << "what fails is not tried at once";
  clock.Advance(100'000);
  EXPECT_EQ(slow.Due(pace, 90, 0), 10);
}

// Only then may it end.
TEST_F(TransfersTest, AWorkerThatIsBeingCalledDoesNotLeave) {
  struct Slow final : Worker {
    Turned Turn() override {
      begun = true;
      while (!goes_on) std::this_thread::yield();
      ended = true;
      return {};
    }
    bool HasWaiting() override { return false; }
    std::atomic<bool> begun = false;
    std::atomic<bool> goes_on = false;
    std::atomic<bool> ended = false;
  } slow;
  transfers.Attach(slow);
  std::thread turns([&] { transfers.Tick(0); });
  while (!slow.begun) std::this_thread::yield();
  std::atomic<bool> has_left = false;
  std::thread leaves([&] {
    transfers.Detach(slow);
    EXPECT_TRUE(slow.ended);
    has_left = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_FALSE(has_left);
  slow.goes_on = true;
  turns.join();
  leaves.join();
  slow.begun = false;
  transfers.Tick(0);
  EXPECT_FALSE(slow.begun);
}

TEST(TransfersThread, TurnsItAndIsWoken) {
  Transfers transfers(std::make_unique<ScriptedStore>(), SystemClock(), {.steps_back = false});
  transfers.Start();
  EXPECT_EQ(transfers.FlushAll(), StoreOutcome::kOk);
  Ends ends(transfers);
  int ended = 0;
  transfers.Read({}, 0, ends, [&](const StoreCompletion&) { ++ended; });
  const Transfers::Turning here;
  const auto has_ended = [&] { return ends.Run() || ended > 0; };
  EXPECT_TRUE(transfers.Await(has_ended, 10'000'000));
  transfers.Read({}, 0, ends, [&](const StoreCompletion&) { ++ended; });
  EXPECT_TRUE(transfers.Await([&] { return has_ended() && ended == 2; }, 10'000'000, &here));
  EXPECT_FALSE(transfers.Await([] { return false; }, 1000));
  EXPECT_FALSE(transfers.Await([] { return false; }, 1000, &here));
}

}  // namespace
}  // namespace quire::transfer
