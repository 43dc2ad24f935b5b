#include "remote/remote_store.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "remote/test_fleet.h"

namespace quire::remote {
namespace {

using tier::Presence;
using tier::RecordMiss;
using tier::StoreCompletion;
using tier::StoreOutcome;
using tier::TestRecord;

class RemoteStoreTest : public testing::Test {
 protected:
  /// Turns a machine until this tag has ended, at most 40 s of its clock.
  StoreCompletion Wait(TestMachine& machine, uint64_t tag) {
    for (int i = 0; i < 40'000; ++i) {
      Turn(machine);
      if (ended_.contains(tag)) return ended_.extract(tag).mapped();
      clock_.Advance(1000);
      for (TestMachine* other : others_) Turn(*other);
    }
    ADD_FAILURE() << "tag " << tag << " has no end";
    return {};
  }
  void Turn(TestMachine& machine) {
    std::vector<StoreCompletion> done;
    machine.store->Tick(done, 0);
    for (const StoreCompletion& end : done) ended_[end.tag] = end;
  }
  void Pass(TestMachine& machine, uint64_t us) {
    std::vector<StoreCompletion> done;
    for (uint64_t passed = 0; passed < us; passed += 10'000) {
      clock_.Advance(10'000);
      machine.store->Tick(done, 0);
    }
  }
  StoreOutcome Put(TestMachine& machine, const TestRecord& record) {
    PutRecord(*machine.store, record, ++tag_);
    return Wait(machine, tag_).outcome;
  }
  struct Loaded {
    StoreCompletion end{};
    bool is_it = false;
  };
  Loaded Load(TestMachine& machine, const TestRecord& record, uint32_t first = 0,
              uint32_t count = ~uint32_t{0}) {
    TestLoad load(record, ++tag_, first, count);
    machine.store->Get({&load.request, 1}, 0);
    const StoreCompletion end = Wait(machine, tag_);
    if (end.outcome != StoreOutcome::kOk) {
      for (const auto& section : load.bytes) {
        EXPECT_TRUE(std::ranges::all_of(section, [](std::byte b) { return b == std::byte{}; }))
            << "a load that failed has changed its memory";
      }
    }
    return {end, load.Has(record)};
  }
  bool Has(TestMachine& machine, const TestRecord& record) {
    const Loaded loaded = Load(machine, record);
    EXPECT_EQ(loaded.is_it, loaded.end.outcome == StoreOutcome::kOk);
    return loaded.is_it;
  }
  static Presence Find(TestMachine& machine, const TestRecord& record) {
    Presence presence = Presence::kUnknown;
    machine.store->Find({&record.identity().key, 1}, {&presence, 1});
    return presence;
  }
  StoreOutcome Erase(TestMachine& machine, std::string_view tenant) {
    const auto publisher = tier::PublisherOf(tenant);
    machine.store->Erase(publisher, machine.store->EpochOf(publisher) + 1, ++tag_);
    return Wait(machine, tag_).outcome;
  }

  ManualClock clock_{1'000'000};
  MemoryService service_;
  const tier::RecordLayout layout_ = tier::TestLayout(16, 2, 3000);
  const TestRecord one_{1, layout_};
  const TestRecord two_{2, layout_};
  std::vector<TestMachine*> others_;  // that are turned while one waits
  std::map<uint64_t, StoreCompletion> ended_;
  uint64_t tag_ = 0;
};

TEST_F(RemoteStoreTest, AnotherMachineFindsWhatOneWrote) {
  TestMachine a(service_, clock_);
  TestMachine b(service_, clock_);
  EXPECT_EQ(Find(b, one_), Presence::kUnknown);
  EXPECT_EQ(Put(a, one_), StoreOutcome::kOk);
  EXPECT_EQ(Put(a, one_), StoreOutcome::kPresent);
  EXPECT_TRUE(Has(b, one_));
  EXPECT_EQ(Find(b, one_), Presence::kPresent);
  const Loaded part = Load(b, one_, 1, 2);
  EXPECT_TRUE(part.is_it) << "sections in the middle";
  EXPECT_EQ(Load(b, two_).end.outcome, StoreOutcome::kAbsent);
  EXPECT_EQ(Find(b, two_), Presence::kAbsent) << "remembered";
  clock_.Advance(3'000'000);
  EXPECT_EQ(Find(b, two_), Presence::kUnknown) << "briefly";
}

TEST_F(RemoteStoreTest, AnotherFleetFindsNothing) {
  TestMachine a(service_, clock_);
  TestMachine other(service_, clock_, false, TestFleetKey(8));
  EXPECT_EQ(Put(a, one_), StoreOutcome::kOk);
  EXPECT_FALSE(Has(other, one_));
  EXPECT_EQ(Put(other, one_), StoreOutcome::kOk) << "and takes nothing away";
  EXPECT_TRUE(Has(a, one_));
}

TEST_F(RemoteStoreTest, WhatCameIsKeptHere) {
  TestMachine a(service_, clock_);
  TestMachine b(service_, clock_, /*has_local=*/true);
  Put(a, one_);
  EXPECT_TRUE(Has(b, one_));
  const uint64_t asked = b.way->asked(ObjectVerb::kGet);
  EXPECT_TRUE(Has(b, one_));
  EXPECT_LE(b.way->asked(ObjectVerb::kGet), asked + 1) << "the epochs alone";
  EXPECT_TRUE(b.local->RecordBytesOf(one_.identity().key));
}

TEST_F(RemoteStoreTest, OnlyWhatIsUsedAgainIsWritten) {
  TestMachine a(service_, clock_, /*has_local=*/true, TestFleetKey(), RemoteWrites::kReused);
  TestMachine b(service_, clock_);
  Put(a, one_);
  Put(a, two_);
  EXPECT_EQ(a.way->asked(ObjectVerb::kPut), 0u);
  // A use in memory: it is to be offered again.
  const tier::RecordUse use{.key = one_.identity().key};
  Presence presence = Presence::kUnknown;
  a.store->Touch({&use, 1}, {&presence, 1});
  EXPECT_EQ(presence, Presence::kAbsent);
  a.store->Touch({&use, 1}, {&presence, 1});
  EXPECT_EQ(presence, Presence::kPresent) << "once";
  EXPECT_EQ(Put(a, one_), StoreOutcome::kPresent);
  Pass(a, 20'000);
  EXPECT_TRUE(Has(b, one_));
  // A load from this machine's own store.
  EXPECT_FALSE(Has(b, two_));
  EXPECT_TRUE(Has(a, two_));
  Pass(a, 20'000);
  clock_.Advance(3'000'000);
  EXPECT_TRUE(Has(b, two_));
}

TEST_F(RemoteStoreTest, WhatIsNotWhatItShouldBeIsAMiss) {
  TestMachine a(service_, clock_);
  TestMachine b(service_, clock_);
  Put(a, one_);
  Put(a, two_);
  const auto with = [&](ObjectFault::Kind kind) {
    clock_.Advance(3'000'000);
    b.way->SetScript([=, size = Seal::ObjectBytes(layout_)](const ObjectRequest& request) {
      return ObjectFault{request.bytes_max == size ? kind : ObjectFault::kNone};
    });
    const Loaded loaded = Load(b, one_);
    EXPECT_FALSE(loaded.is_it);
    EXPECT_EQ(loaded.end.outcome, StoreOutcome::kMiss);
    return loaded.end.miss;
  };
  EXPECT_EQ(with(ObjectFault::kFlip), RecordMiss::kPayloadDamaged);
  EXPECT_EQ(with(ObjectFault::kCut), RecordMiss::kTruncated);
  EXPECT_EQ(with(ObjectFault::kOtherObject), RecordMiss::kNotARecord);
  // Longer than any record of this geometry.
  for (auto& [name, object] : service_.objects) object.bytes.resize(object.bytes.size() + 1);
  EXPECT_EQ(with(ObjectFault::kNone), RecordMiss::kOtherLayout);
  EXPECT_EQ(b.store->remote_stats().rejected, 4u);
}

TEST_F(RemoteStoreTest, AStaleReadIsAMissOrTheSameRecord) {
  TestMachine a(service_, clock_);
  TestMachine b(service_, clock_);
  Put(a, one_);
  b.way->SetScript([](const ObjectRequest&) { return ObjectFault{ObjectFault::kStale}; });
  EXPECT_FALSE(Has(b, one_));
}

TEST_F(RemoteStoreTest, ManyOfAnUnknownPromptAskForOneBlock) {
  TestMachine a(service_, clock_);
  std::vector<TestRecord> chain;
  for (uint64_t i = 0; i < 20; ++i) {
    chain.emplace_back(100 + i, layout_);
    if (i > 0) chain[i].identity().parent = chain[i - 1].identity().key;
  }
  std::vector<TestLoad> loads;
  for (const TestRecord& record : chain) loads.emplace_back(record, ++tag_);
  const uint64_t before = a.way->asked(ObjectVerb::kGet);
  for (const TestLoad& load : loads) a.store->Get({&load.request, 1}, 0);
  for (const TestLoad& load : loads) {
    EXPECT_EQ(Wait(a, load.request.tag).outcome, StoreOutcome::kAbsent);
  }
  EXPECT_EQ(a.way->asked(ObjectVerb::kGet), before + 1);
  // Where the first one is there the others are asked for at once.
  for (const TestRecord& record : chain) EXPECT_EQ(Put(a, record), StoreOutcome::kOk);
  TestMachine b(service_, clock_);
  b.way->SetScript([](const ObjectRequest&) { return ObjectFault{.delay_us = 5000}; });
  const uint64_t begin_us = clock_.NowMicros();
  for (const TestLoad& load : loads) b.store->Get({&load.request, 1}, 0);
  for (size_t i = 0; i < loads.size(); ++i) {
    EXPECT_EQ(Wait(b, loads[i].request.tag).outcome, StoreOutcome::kOk);
    EXPECT_TRUE(loads[i].Has(chain[i]));
  }
  EXPECT_LE(clock_.NowMicros() - begin_us, 12'000u) << "two round trips";
}

TEST_F(RemoteStoreTest, ASlowAnswerIsLateAndAbsentForAWhile) {
  TestMachine a(service_, clock_);
  Put(a, one_);
  TestMachine b(service_, clock_);
  b.way->SetScript([](const ObjectRequest&) { return ObjectFault{ObjectFault::kNotDone}; });
  const uint64_t begin_us = clock_.NowMicros();
  const StoreOutcome outcome = Load(b, one_).end.outcome;
  EXPECT_TRUE(outcome == StoreOutcome::kDeadline || outcome == StoreOutcome::kIo);
  EXPECT_LE(clock_.NowMicros() - begin_us, 2'010'000u);
  // By now it is left alone: nothing waits any more.
  Pass(b, 4'000'000);
  EXPECT_NE(b.store->remote_stats().breaker, BreakerState::kClosed);
  EXPECT_EQ(Find(b, one_), Presence::kAbsent);
  const uint64_t asked = b.way->asked(ObjectVerb::kGet);
  const uint64_t later_us = clock_.NowMicros();
  EXPECT_EQ(Load(b, one_).end.outcome, StoreOutcome::kAbsent);
  EXPECT_EQ(Put(b, two_), StoreOutcome::kIo);
  EXPECT_LE(clock_.NowMicros() - later_us, 2000u);
  EXPECT_LE(b.way->asked(ObjectVerb::kGet), asked + 1);
  // Probes find it again by themselves.
  b.way->SetScript(nullptr);
  Pass(b, 20'000'000);
  EXPECT_EQ(b.store->remote_stats().breaker, BreakerState::kClosed);
  EXPECT_TRUE(Has(b, one_));
}

TEST_F(RemoteStoreTest, ARequestThatFailsIsTriedAgain) {
  TestMachine a(service_, clock_);
  int failures = 2;
  a.way->SetScript([&](const ObjectRequest& request) {
    if (request.verb == ObjectVerb::kPut && failures-- > 0) {
      return ObjectFault{ObjectFault::kNoAnswer};
    }
    return ObjectFault{};
  });
  EXPECT_EQ(Put(a, one_), StoreOutcome::kIo) << "the answers take longer than the request may";
  EXPECT_EQ(Put(a, one_), StoreOutcome::kOk);
  EXPECT_GE(a.store->remote_stats().retries, 1u);
}

TEST_F(RemoteStoreTest, CredentialsThatAreRefusedAreNotTriedAgainSoon) {
  TestMachine a(service_, clock_);
  a.way->SetScript([](const ObjectRequest&) { return ObjectFault{ObjectFault::kRefuse}; });
  EXPECT_EQ(Put(a, one_), StoreOutcome::kIo);
  EXPECT_EQ(a.store->remote_stats().breaker, BreakerState::kOpen);
  EXPECT_EQ(a.store->remote_stats().breaker_opened, 1u);
}

TEST_F(RemoteStoreTest, ACancelledLoadTouchesNothingAnyMore) {
  TestMachine a(service_, clock_);
  Put(a, one_);
  TestMachine b(service_, clock_);
  b.way->SetScript([](const ObjectRequest&) { return ObjectFault{.delay_us = 100'000}; });
  {
    TestLoad load(one_, 900);
    b.store->Get({&load.request, 1}, 0);
    b.store->Cancel(900);
  }
  EXPECT_EQ(Wait(b, 900).outcome, StoreOutcome::kCancelled);
  Pass(b, 300'000);
  EXPECT_TRUE(Has(b, one_));
}

TEST_F(RemoteStoreTest, AnErasureHoldsOnAllMachines) {
  TestMachine a(service_, clock_);
  TestMachine b(service_, clock_, /*has_local=*/true);
  others_ = {&a, &b};
  const TestRecord old(5, layout_, "tenant", 0);
  Put(a, old);
  EXPECT_TRUE(Has(b, old)) << "b has it itself, too";
  EXPECT_EQ(Erase(a, "tenant"), StoreOutcome::kOk);
  EXPECT_EQ(b.store->EpochOf(tier::PublisherOf("tenant")), 1u);
  EXPECT_FALSE(Has(b, old));
  EXPECT_FALSE(b.local->RecordBytesOf(old.identity().key)) << "nor here";
  EXPECT_FALSE(Has(a, old));
  TestMachine c(service_, clock_);
  EXPECT_EQ(Load(c, old).end.outcome, StoreOutcome::kErased) << "a machine that starts later";
  // What comes after is stored and found.
  const TestRecord next(5, layout_, "tenant", 1);
  EXPECT_EQ(Put(a, old), StoreOutcome::kErased);
  EXPECT_EQ(Put(a, next), StoreOutcome::kOk);
  EXPECT_TRUE(Has(c, next));
}

TEST_F(RemoteStoreTest, AMachineThatCannotReadTheEpochsServesNoNamedTenant) {
  TestMachine a(service_, clock_);
  TestMachine b(service_, clock_);
  const TestRecord named(5, layout_, "tenant", 0);
  Put(a, named);
  Put(a, one_);
  // Blocks still come, the epochs do not.
  b.way->SetScript([](const ObjectRequest& request) {
    return ObjectFault{request.wants_version ? ObjectFault::kNotDone : ObjectFault::kNone};
  });
  Pass(b, 2'100'000);
  EXPECT_EQ(Load(b, named).end.outcome, StoreOutcome::kDeadline);
  EXPECT_TRUE(Has(b, one_)) << "that of nobody is served";
  EXPECT_EQ(Put(b, TestRecord(6, layout_, "tenant", 0)), StoreOutcome::kIo);
  // Erased meanwhile through another one, whose erasure ends only when b believes it no more.
  EXPECT_EQ(Erase(a, "tenant"), StoreOutcome::kOk);
  EXPECT_FALSE(Has(b, named));
  b.way->SetScript(nullptr);
  Pass(b, 20'000'000);
  EXPECT_EQ(Load(b, named).end.outcome, StoreOutcome::kErased);
}

TEST_F(RemoteStoreTest, AnErasureIsNotConfirmedBeforeEveryLeaseHasEnded) {
  TestMachine a(service_, clock_);
  TestMachine b(service_, clock_);
  const TestRecord named(5, layout_, "tenant", 0);
  Put(a, named);
  EXPECT_TRUE(Has(b, named));
  // b reads nothing new from here on, and believes what it read.
  b.way->SetScript([](const ObjectRequest& request) {
    return ObjectFault{request.wants_version ? ObjectFault::kNotDone : ObjectFault::kNone};
  });
  const auto publisher = tier::PublisherOf("tenant");
  a.store->Erase(publisher, 1, 700);
  std::vector<StoreCompletion> done;
  while (done.empty()) {
    clock_.Advance(5000);
    a.store->Tick(done, 0);
  }
  EXPECT_EQ(done[0].outcome, StoreOutcome::kOk);
  EXPECT_FALSE(Has(b, named)) << "once it is confirmed nobody finds it";
}

TEST_F(RemoteStoreTest, MachinesThatEraseAtOnceBothErase) {
  TestMachine a(service_, clock_);
  TestMachine b(service_, clock_);
  others_ = {&a, &b};
  const auto publisher = tier::PublisherOf("tenant");
  const auto slow = [](const ObjectRequest&) { return ObjectFault{.delay_us = 3000}; };
  a.way->SetScript(slow);
  b.way->SetScript(slow);
  a.store->Erase(publisher, 1, 700);
  b.store->Erase(publisher, 1, 800);
  std::set<uint64_t> tags;
  std::vector<StoreCompletion> done;
  for (int i = 0; i < 20'000 && tags.size() < 2; ++i) {
    a.store->Tick(done, 0);
    b.store->Tick(done, 0);
    clock_.Advance(1000);
    for (const StoreCompletion& end : done) {
      EXPECT_EQ(end.outcome, StoreOutcome::kOk);
      tags.insert(end.tag);
    }
  }
  EXPECT_EQ(tags.size(), 2u);
  Pass(a, 1'000'000);
  Pass(b, 1'000'000);
  EXPECT_EQ(a.store->EpochOf(publisher), 2u);
  EXPECT_EQ(b.store->EpochOf(publisher), 2u);
}

TEST_F(RemoteStoreTest, AnErasureDuringAPartitionEndsWhenTheServiceIsBack) {
  TestMachine a(service_, clock_, /*has_local=*/true);
  TestMachine b(service_, clock_);
  const TestRecord named(5, layout_, "tenant", 0);
  Put(a, named);
  Pass(a, 20'000);
  a.way->SetScript([](const ObjectRequest&) { return ObjectFault{ObjectFault::kNotDone}; });
  EXPECT_EQ(Erase(a, "tenant"), StoreOutcome::kIo) << "it is said that others may have it";
  EXPECT_FALSE(Has(a, named));
  a.way->SetScript(nullptr);
  Pass(a, 20'000'000);
  Pass(b, 1'000'000);
  EXPECT_FALSE(Has(b, named)) << "it went on by itself";
}

TEST_F(RemoteStoreTest, AWriteOfTheEpochsThatWasLostIsDoneAgain) {
  TestMachine a(service_, clock_);
  const TestRecord named(5, layout_, "tenant", 0);
  Put(a, named);
  int lost = 2;
  a.way->SetScript([&](const ObjectRequest& request) {
    const bool loses = request.verb == ObjectVerb::kSwap && lost-- > 0;
    return ObjectFault{loses ? ObjectFault::kLoseWrite : ObjectFault::kNone};
  });
  EXPECT_EQ(Erase(a, "tenant"), StoreOutcome::kOk);
  TestMachine c(service_, clock_);
  EXPECT_GE(c.store->EpochOf(tier::PublisherOf("tenant")), 1u);
  EXPECT_FALSE(Has(c, named));
}

TEST_F(RemoteStoreTest, AServiceThatForgotItsEpochsIsBegunAnew) {
  TestMachine a(service_, clock_);
  const TestRecord named(5, layout_, "tenant", 0);
  Put(a, named);
  Put(a, one_);
  EXPECT_EQ(Erase(a, "tenant"), StoreOutcome::kOk);
  service_.objects.erase(EpochsName(FleetKeys(TestFleetKey())));
  TestMachine c(service_, clock_);  // which knows of no erasure
  EXPECT_FALSE(Has(c, named));
  EXPECT_FALSE(Has(c, one_)) << "what is left of before is found by nobody";
  Pass(a, 2'000'000);
  EXPECT_EQ(Put(a, two_), StoreOutcome::kOk);
  EXPECT_TRUE(Has(c, two_));
  Pass(c, 1'000'000);
  EXPECT_EQ(c.store->EpochOf(tier::PublisherOf("tenant")), 1u) << "and those who know tell it";
}

// The erasures of the life before may be unknown to those that begin a new one.
TEST_F(RemoteStoreTest, AReadOfTheLifeBeforeEndsWithIt) {
  TestMachine a(service_, clock_);
  Put(a, one_);
  TestMachine b(service_, clock_);
  b.way->SetScript([](const ObjectRequest& request) {
    return ObjectFault{.delay_us = request.sink ? uint64_t{1'800'000} : 0};
  });
  TestLoad load(one_, 900);
  b.store->Get({&load.request, 1}, 0);
  service_.objects.erase(EpochsName(FleetKeys(TestFleetKey())));
  TestMachine c(service_, clock_);
  EXPECT_EQ(Put(c, two_), StoreOutcome::kOk);
  EXPECT_EQ(Wait(b, 900).outcome, StoreOutcome::kAbsent);
  EXPECT_FALSE(load.Has(one_));
}

TEST_F(RemoteStoreTest, AnOldTableThatComesBackIsReplaced) {
  TestMachine a(service_, clock_);
  const TestRecord named(5, layout_, "tenant", 0);
  Put(a, named);
  const MemoryService before = service_;
  EXPECT_EQ(Erase(a, "tenant"), StoreOutcome::kOk);
  service_.objects = before.objects;
  Pass(a, 2'000'000);
  TestMachine c(service_, clock_);
  EXPECT_EQ(c.store->EpochOf(tier::PublisherOf("tenant")), 1u);
  EXPECT_FALSE(Has(c, named));
}

TEST_F(RemoteStoreTest, AnEpochThatThisMachineHadBeforeIsTold) {
  TestMachine a(service_, clock_, /*has_local=*/true);
  const auto publisher = tier::PublisherOf("tenant");
  a.local->Erase(publisher, 4, 1);  // before there was a fleet
  const TestRecord named(5, layout_, "tenant", 4);
  EXPECT_EQ(Put(a, named), StoreOutcome::kOk);
  Pass(a, 1'000'000);
  TestMachine c(service_, clock_);
  EXPECT_EQ(c.store->EpochOf(publisher), 4u);
}

TEST_F(RemoteStoreTest, RemovedIsGoneFromBoth) {
  TestMachine a(service_, clock_, /*has_local=*/true);
  Put(a, one_);
  Pass(a, 20'000);
  a.store->Remove(one_.identity().key, 600);
  EXPECT_EQ(Wait(a, 600).outcome, StoreOutcome::kOk);
  EXPECT_FALSE(Has(a, one_));
  a.store->Remove(one_.identity().key, 601);
  EXPECT_EQ(Wait(a, 601).outcome, StoreOutcome::kAbsent);
}

TEST_F(RemoteStoreTest, AFlushWaitsForWrites) {
  TestMachine a(service_, clock_, /*has_local=*/true);
  a.way->SetScript([](const ObjectRequest&) { return ObjectFault{.delay_us = 50'000}; });
  PutRecord(*a.store, one_, 1);
  a.store->Flush(2);
  const uint64_t begin_us = clock_.NowMicros();
  EXPECT_EQ(Wait(a, 2).outcome, StoreOutcome::kOk);
  EXPECT_GE(clock_.NowMicros() - begin_us, 49'000u);
  // Not for what is written after it.
  PutRecord(*a.store, two_, 3);
  a.store->Flush(4);
  clock_.Advance(40'000);
  PutRecord(*a.store, TestRecord(3, layout_), 5);
  const uint64_t again_us = clock_.NowMicros();
  EXPECT_EQ(Wait(a, 4).outcome, StoreOutcome::kOk);
  EXPECT_LE(clock_.NowMicros() - again_us, 15'000u);
  TestMachine b(service_, clock_);
  EXPECT_TRUE(Has(b, one_));
}

}  // namespace
}  // namespace quire::remote
