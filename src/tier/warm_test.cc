// The warm tier alone, and in front of a cold store.
#include "tier/warm.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "base/prng.h"
#include "env/pinned_memory.h"
#include "tier/cold_test_util.h"

namespace quire::tier {
namespace {

using enum StoreOutcome;

class WarmTest : public ColdTest {
 protected:
  /// Room for so many records of the test's layout.
  uint64_t BytesFor(uint64_t records) const { return records * (layout_.record_bytes() + 512); }

  void OpenAlone(uint64_t records) {
    warm_ =
        std::make_unique<WarmStore>(WarmOptions{.bytes_cap = BytesFor(records)}, clock_, nullptr);
  }
  void OpenInFront(uint64_t records) {
    auto cold = ColdStore::Open(options_, *files_, clock_);
    ASSERT_TRUE(cold.has_value()) << cold.error().message;
    warm_ = std::make_unique<WarmStore>(WarmOptions{.bytes_cap = BytesFor(records)}, clock_,
                                        *std::move(cold));
  }

  StoreCompletion WaitWarm() {
    std::vector<StoreCompletion> done;
    for (int i = 0; done.empty() && i < 10'000; ++i) {
      warm_->Tick(done, 1000);
      if (done.empty()) clock_.Advance(1000);
    }
    EXPECT_EQ(done.size(), 1u);
    return done.empty() ? StoreCompletion{} : done[0];
  }
  StoreOutcome PutWarm(const TestRecord& record) {
    const PutRequest request = {.identity = record.identity(),
                                .layout = &record.layout(),
                                .sections = record.sections(),
                                .tag = 7};
    warm_->Put({&request, 1});
    return WaitWarm().outcome;
  }
  StoreCompletion LoadWarm(const TestRecord& record) {
    Loaded& loaded = loaded_[1];
    loaded = {};
    for (const auto& section : record.sections()) loaded.sections.emplace_back(section.size());
    for (auto& section : loaded.sections) loaded.out.push_back(section);
    loaded.crcs.resize(record.sections().size());
    const LoadRequest request = {.identity = record.identity(),
                                 .layout = &record.layout(),
                                 .section_count = static_cast<uint32_t>(record.sections().size()),
                                 .out = loaded.out,
                                 .crcs = loaded.crcs,
                                 .tag = 1};
    warm_->Get({&request, 1}, /*deadline_us=*/0);
    const StoreCompletion ended = WaitWarm();
    if (ended.outcome == kOk) {
      EXPECT_TRUE(Same(record, 1));
    }
    return ended;
  }
  std::span<std::byte> Place(const TestRecord& record) {
    return warm_->Place(record.identity(), record.layout());
  }
  /// Puts a record whose bytes are where Place said.
  StoreOutcome PutInPlace(const TestRecord& record, std::span<std::byte> payload) {
    const RecordLayout& layout = record.layout();
    std::vector<std::span<const std::byte>> sections;
    for (size_t i = 0; i < record.sections().size(); ++i) {
      const auto to = payload.subspan(layout.offset(i), layout.sections()[i].bytes);
      std::ranges::copy(record.sections()[i], to.begin());
      sections.push_back(to);
    }
    const std::vector<uint32_t> crcs = record.Crcs();
    const PutRequest request = {.identity = record.identity(),
                                .layout = &layout,
                                .sections = sections,
                                .crcs = crcs,
                                .tag = 7};
    warm_->Put({&request, 1});
    return WaitWarm().outcome;
  }
  /// Loads a record as a caller does that can read the store's memory.
  StoreCompletion Borrow(const TestRecord& record, Loan& loan) {
    Loaded& loaded = loaded_[2];
    loaded = {};
    for (const auto& section : record.sections()) loaded.sections.emplace_back(section.size());
    for (auto& section : loaded.sections) loaded.out.push_back(section);
    loaded.crcs.resize(record.sections().size());
    const LoadRequest request = {.identity = record.identity(),
                                 .layout = &record.layout(),
                                 .section_count = static_cast<uint32_t>(record.sections().size()),
                                 .out = loaded.out,
                                 .crcs = loaded.crcs,
                                 .loan = &loan,
                                 .tag = 2};
    warm_->Get({&request, 1}, /*deadline_us=*/0);
    return WaitWarm();
  }
  static bool Has(const Loan& loan, const TestRecord& record) {
    for (size_t i = 0; i < record.sections().size(); ++i) {
      const auto& section = record.sections()[i];
      if (!std::ranges::equal(loan.payload.subspan(record.layout().offset(i), section.size()),
                              section)) {
        return false;
      }
    }
    return true;
  }
  bool WarmHas(const TestRecord& record) const {
    Presence presence = Presence::kUnknown;
    warm_->Find({&record.identity().key, 1}, {&presence, 1});
    return presence == Presence::kPresent;
  }

  PinnedMemory pinned_;
  std::unique_ptr<WarmStore> warm_;
};

TEST_F(WarmTest, GivesBackWhatWasPutAndTheLeastRecentlyUsedGoes) {
  OpenAlone(3);
  for (uint64_t i = 1; i <= 3; ++i) EXPECT_EQ(PutWarm(Record(i)), kOk);
  EXPECT_EQ(PutWarm(Record(3)), kPresent);
  EXPECT_EQ(LoadWarm(Record(1)).outcome, kOk);  // now 2 is the oldest
  EXPECT_EQ(PutWarm(Record(4)), kOk);
  EXPECT_FALSE(WarmHas(Record(2)));
  EXPECT_EQ(LoadWarm(Record(2)).outcome, kAbsent);
  for (const uint64_t i : {1, 3, 4}) EXPECT_EQ(LoadWarm(Record(i)).outcome, kOk) << i;
  const WarmStats stats = warm_->warm_stats();
  EXPECT_EQ(stats.records, 3u);
  EXPECT_EQ(stats.evicted, 1u);
  EXPECT_LE(stats.bytes, stats.bytes_cap);
  EXPECT_EQ(warm_->Stats().records, 3u);
}

TEST_F(WarmTest, OneThatCanNeverFitIsRefused) {
  OpenAlone(1);
  const RecordLayout large = TestLayout(16, 2, 9000);
  EXPECT_EQ(PutWarm(Record(1)), kOk);
  EXPECT_EQ(PutWarm(TestRecord(7, large)), kTooLarge);
  EXPECT_TRUE(WarmHas(Record(1))) << "nothing went for it";
}

TEST_F(WarmTest, AnythingElseThanTheIdentityIsAReasonedMiss) {
  OpenAlone(4);
  ASSERT_EQ(PutWarm(Record(1)), kOk);
  const auto with = [&](const auto& change) {
    TestRecord asked(1, layout_);
    change(asked.identity());
    return LoadWarm(asked);
  };
  EXPECT_EQ(with([](RecordIdentity& i) { i.profile[0] ^= 1; }).miss, RecordMiss::kOtherProfile);
  EXPECT_EQ(with([](RecordIdentity& i) { i.geometry[0] ^= 1; }).miss, RecordMiss::kOtherGeometry);
  EXPECT_EQ(with([](RecordIdentity& i) { ++i.block_index; }).miss, RecordMiss::kOtherTokens);
  const std::vector<TokenId> others(16, 5);
  EXPECT_EQ(with([&](RecordIdentity& i) { i.tokens = others; }).miss, RecordMiss::kOtherTokens);
  EXPECT_EQ(LoadWarm(Record(1)).outcome, kOk) << "it is still there";
}

TEST_F(WarmTest, DamageIsFoundAndForgotten) {
  OpenAlone(4);
  Prng prng(3);
  for (uint64_t i = 0; i < 40; ++i) {
    ASSERT_EQ(PutWarm(Record(1)), kOk);
    const std::span<std::byte> bytes = warm_->BytesOfForTest(Record(1).identity().key);
    // Of the header the first page's fields, of the payload a section's bytes.
    const uint64_t at =
        prng.NextChance(2) ? prng.NextBelow(200) : layout_.header_bytes() + prng.NextBelow(3000);
    bytes[at] ^= std::byte{1};
    const StoreCompletion ended = LoadWarm(Record(1));
    EXPECT_EQ(ended.outcome, kMiss) << "byte " << at;
    if (WarmHas(Record(1))) {  // a field that says it is another record: that is no damage
      bytes[at] ^= std::byte{1};
      EXPECT_EQ(LoadWarm(Record(1)).outcome, kOk);
      warm_.reset();
      OpenAlone(4);
    }
  }
}

TEST_F(WarmTest, ErasingForgetsAtOnceAndOlderEpochsAreRefused) {
  OpenAlone(4);
  ASSERT_EQ(PutWarm(Record(1, "a")), kOk);
  ASSERT_EQ(PutWarm(Record(1, "b")), kOk);
  warm_->Erase(PublisherOf("a"), 1, 9);
  EXPECT_EQ(WaitWarm().outcome, kOk);
  EXPECT_FALSE(WarmHas(Record(1, "a")));
  EXPECT_TRUE(WarmHas(Record(1, "b")));
  EXPECT_EQ(PutWarm(Record(1, "a")), kErased);
  EXPECT_EQ(LoadWarm(Record(1, "a")).outcome, kErased);
  EXPECT_EQ(PutWarm(Record(1, "a", 2)), kUnknownEpoch);
  EXPECT_EQ(PutWarm(Record(1, "a", 1)), kOk);
  EXPECT_EQ(warm_->EpochOf(PublisherOf("a")), 1u);
}

TEST_F(WarmTest, WhatIsRemovedIsGoneAloneAndInFrontOfAStore) {
  for (const bool alone : {true, false}) {
    alone ? OpenAlone(5) : OpenInFront(5);
    const auto remove = [&](uint64_t number) {
      warm_->Remove(Record(number).identity().key, 3);
      return WaitWarm().outcome;
    };
    EXPECT_EQ(PutWarm(Record(1)), kOk);
    EXPECT_EQ(PutWarm(Record(2)), kOk);
    EXPECT_EQ(warm_->RecordBytesOf(Record(1).identity().key), layout_.record_bytes());
    EXPECT_EQ(remove(1), kOk);
    EXPECT_EQ(warm_->RecordBytesOf(Record(1).identity().key), std::nullopt);
    EXPECT_EQ(LoadWarm(Record(1)).outcome, kAbsent);
    EXPECT_EQ(LoadWarm(Record(2)).outcome, kOk);
    EXPECT_EQ(remove(1), kAbsent);
    EXPECT_EQ(PutWarm(Record(1)), kOk);  // and may come again
    warm_.reset();
  }
}

TEST_F(WarmTest, QuotasAndFloorsHold) {
  OpenAlone(4);
  warm_->SetLimits({.publisher = PublisherOf("a"), .bytes_quota = BytesFor(2)});
  warm_->SetLimits({.publisher = PublisherOf("b"), .bytes_floor = BytesFor(2)});
  for (uint64_t i = 1; i <= 2; ++i) ASSERT_EQ(PutWarm(Record(i, "b")), kOk);
  for (uint64_t i = 1; i <= 3; ++i) ASSERT_EQ(PutWarm(Record(i, "a")), kOk);
  EXPECT_EQ(warm_->UsageOf(PublisherOf("a")).records, 2u);
  for (uint64_t i = 1; i <= 5; ++i) ASSERT_EQ(PutWarm(Record(i, "c")), kOk);
  EXPECT_EQ(warm_->UsageOf(PublisherOf("b")).records, 2u) << "others never make it less";
  warm_->SetLimits({.publisher = PublisherOf("d"), .bytes_quota = BytesFor(1) - 1});
  EXPECT_EQ(PutWarm(Record(1, "d")), kQuota);
}

TEST_F(WarmTest, WhatFindsNoRoomTakesNothing) {
  OpenAlone(3);
  warm_->SetLimits({.publisher = PublisherOf("b"), .bytes_floor = BytesFor(2)});
  ASSERT_EQ(PutWarm(Record(1, "c")), kOk);
  for (uint64_t i = 1; i <= 2; ++i) ASSERT_EQ(PutWarm(Record(i, "b")), kOk);
  const RecordLayout large = TestLayout(16, 2, 7000);  // more than c has, less than all
  EXPECT_EQ(PutWarm(TestRecord(7, large, "a")), kNoSpace);
  EXPECT_TRUE(WarmHas(Record(1, "c")));
  EXPECT_EQ(warm_->warm_stats().evicted, 0u);
}

TEST_F(WarmTest, AQuotaIsMadeByOwnRecordsAndWhatIsLeftByTheOldest) {
  OpenAlone(4);
  ASSERT_EQ(PutWarm(Record(1, "c")), kOk);  // the oldest
  for (uint64_t i = 1; i <= 2; ++i) ASSERT_EQ(PutWarm(Record(i, "a")), kOk);
  ASSERT_EQ(PutWarm(Record(2, "c")), kOk);
  warm_->SetLimits({.publisher = PublisherOf("a"), .bytes_quota = BytesFor(2) + 5000});
  const RecordLayout large = TestLayout(16, 2, 4000);  // one of its own is not enough for the cap
  ASSERT_EQ(PutWarm(TestRecord(7, large, "a")), kOk);
  EXPECT_FALSE(WarmHas(Record(1, "a")));
  EXPECT_TRUE(WarmHas(Record(2, "a")));
  EXPECT_FALSE(WarmHas(Record(1, "c")));
  EXPECT_TRUE(WarmHas(Record(2, "c")));
}

TEST_F(WarmTest, RootsAreThoseOfFirstBlocksThatAreThere) {
  OpenAlone(2);
  ASSERT_EQ(PutWarm(Record(7, "a")), kOk);  // block_index 0
  ASSERT_EQ(PutWarm(Record(8, "a")), kOk);
  const auto roots = warm_->RootsOf(PublisherOf("a"));
  ASSERT_EQ(roots.size(), 1u);
  EXPECT_EQ(roots[0].key, Record(7, "a").identity().parent);
  ASSERT_EQ(PutWarm(Record(9, "a")), kOk);
  EXPECT_TRUE(warm_->RootsOf(PublisherOf("a")).empty());
}

TEST_F(WarmTest, WhatHasGoneFromMemoryComesFromTheStoreBelowAndStays) {
  OpenInFront(2);
  for (uint64_t i = 1; i <= 5; ++i) EXPECT_EQ(PutWarm(Record(i)), kOk);
  for (uint64_t i = 1; i <= 5; ++i) EXPECT_TRUE(WarmHas(Record(i)));
  EXPECT_EQ(LoadWarm(Record(1)).outcome, kOk);
  EXPECT_EQ(warm_->warm_stats().promoted, 1u);
  EXPECT_EQ(warm_->warm_stats().loads, 0u);
  EXPECT_EQ(LoadWarm(Record(1)).outcome, kOk);
  EXPECT_EQ(warm_->warm_stats().loads, 1u);
  EXPECT_LE(warm_->warm_stats().bytes, warm_->warm_stats().bytes_cap);
}

TEST_F(WarmTest, DamageInMemoryIsMendedFromBelow) {
  OpenInFront(4);
  ASSERT_EQ(PutWarm(Record(1)), kOk);
  warm_->BytesOfForTest(Record(1).identity().key)[layout_.header_bytes()] ^= std::byte{1};
  EXPECT_EQ(LoadWarm(Record(1)).outcome, kOk);
  EXPECT_EQ(warm_->warm_stats().damaged, 1u);
  EXPECT_EQ(LoadWarm(Record(1)).outcome, kOk);
  EXPECT_EQ(warm_->warm_stats().loads, 1u);
}

TEST_F(WarmTest, WhatAPutCompletesWithIsTheStoresBelow) {
  OpenInFront(4);
  files_->set_rates({.write_error = 1});
  EXPECT_EQ(PutWarm(Record(1)), kIo) << "not durable";
  EXPECT_EQ(LoadWarm(Record(1)).outcome, kOk) << "and still in memory";
}

// What the disk refused is in memory, and a caller that loads or uses it hears that it is not
// durable.
TEST_F(WarmTest, WhatMemoryAloneHasIsNotCalledDurable) {
  OpenInFront(4);
  files_->set_rates({.write_error = 1});
  ASSERT_EQ(PutWarm(Record(1)), kIo);
  files_->set_rates({});
  Presence presence = Presence::kUnknown;
  const RecordUse use = {.key = Record(1).identity().key};
  const auto touch = [&] { warm_->Touch({&use, 1}, {&presence, 1}); };
  EXPECT_EQ(LoadWarm(Record(1)), (StoreCompletion{.tag = 1, .is_durable = false}));
  touch();
  EXPECT_EQ(presence, Presence::kAbsent);
  while (PutWarm(Record(1)) != kOk) clock_.Advance(1'000'000);
  EXPECT_EQ(LoadWarm(Record(1)), (StoreCompletion{.tag = 1, .is_durable = true}));
  touch();
  EXPECT_EQ(presence, Presence::kPresent);
  OpenAlone(4);
  ASSERT_EQ(PutWarm(Record(1)), kOk);
  EXPECT_EQ(LoadWarm(Record(1)), (StoreCompletion{.tag = 1, .is_durable = true}))
      << "for as long as it lives";
}

TEST_F(WarmTest, ErasingReachesBothAndARestartFindsNothing) {
  OpenInFront(4);
  ASSERT_EQ(PutWarm(Record(1, "a")), kOk);
  warm_->Erase(PublisherOf("a"), 1, 9);
  EXPECT_EQ(WaitWarm().outcome, kOk);
  EXPECT_FALSE(WarmHas(Record(1, "a")));
  warm_.reset();
  OpenInFront(4);
  EXPECT_EQ(LoadWarm(Record(1, "a")).outcome, kErased);
}

TEST_F(WarmTest, RecordsLieInOneRunOfPinnedMemory) {
  {
    WarmStore warm({.bytes_cap = BytesFor(3), .allocator = &pinned_}, clock_, nullptr);
    EXPECT_EQ(pinned_.asked, 1u);
    EXPECT_EQ(pinned_.bytes_out, BytesFor(3));
    EXPECT_EQ(warm.warm_stats().pinned_bytes, BytesFor(3));
    std::vector<StoreCompletion> done;
    for (uint64_t i = 1; i <= 9; ++i) {
      const TestRecord& record = Record(i);
      const PutRequest request = {.identity = record.identity(),
                                  .layout = &record.layout(),
                                  .sections = record.sections(),
                                  .tag = i};
      warm.Put({&request, 1});
    }
    warm.Tick(done, 0);
    for (const StoreCompletion& each : done) EXPECT_EQ(each.outcome, kOk);
    EXPECT_EQ(warm.warm_stats().records, 3u);
    EXPECT_EQ(pinned_.asked, 1u) << "nothing is pinned after the start";
  }
  EXPECT_EQ(pinned_.bytes_out, 0u);
}

TEST_F(WarmTest, WithoutPinnedMemoryItIsAsGood) {
  pinned_.empty = true;
  testing::internal::CaptureStderr();
  warm_ = std::make_unique<WarmStore>(WarmOptions{.bytes_cap = BytesFor(3), .allocator = &pinned_},
                                      clock_, nullptr);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("the warm tier: test: cannot pin"), std::string::npos) << said;
  EXPECT_EQ(warm_->warm_stats().pinned_bytes, 0u);
  EXPECT_EQ(PutWarm(Record(1)), kOk);
  EXPECT_EQ(LoadWarm(Record(1)).outcome, kOk);
}

TEST_F(WarmTest, ARecordIsMadeWhereItWillLie) {
  OpenAlone(3);
  const auto payload = Place(Record(1));
  ASSERT_EQ(payload.size(), layout_.payload_bytes());
  EXPECT_EQ(warm_->warm_stats().bytes, BytesFor(1)) << "it counts";
  EXPECT_EQ(warm_->UsageOf({}).bytes, BytesFor(1));
  EXPECT_FALSE(WarmHas(Record(1)));
  EXPECT_TRUE(Place(Record(1)).empty()) << "somebody is making it";
  ASSERT_EQ(PutInPlace(Record(1), payload), kOk);
  EXPECT_EQ(warm_->BytesOfForTest(Record(1).identity().key).data() + layout_.header_bytes(),
            payload.data());
  EXPECT_EQ(LoadWarm(Record(1)).outcome, kOk);
  EXPECT_EQ(warm_->warm_stats().bytes, BytesFor(1));
  EXPECT_EQ(
      warm_->UsageOf({}),
      (PublisherUsage{.records = 1, .bytes_live = layout_.record_bytes(), .bytes = BytesFor(1)}));
  EXPECT_TRUE(Place(Record(1)).empty()) << "it is there";
}

// Records of two lengths push each other out; after an erasure nothing of them is left anywhere.
TEST_F(WarmTest, NothingOfWhatWentIsLeftInMemory) {
  const RecordLayout other = TestLayout(16, 2, 1'000);
  ASSERT_NE(other.record_bytes(), layout_.record_bytes());
  for (uint64_t seed = 0; seed < 10; ++seed) {
    warm_ = std::make_unique<WarmStore>(
        WarmOptions{.bytes_cap = BytesFor(3), .allocator = &pinned_}, clock_, nullptr);
    Prng prng(seed);
    for (uint64_t i = 1; i < 40; ++i) {
      const TestRecord record(i, prng.NextBelow(2) == 0 ? layout_ : other);
      if (prng.NextBelow(2) == 0) {
        PutWarm(record);
      } else if (const auto place = Place(record); !place.empty()) {
        std::ranges::fill(place.first(100), std::byte{9});
        prng.NextBelow(2) == 0 ? static_cast<void>(PutInPlace(record, place))
                               : warm_->Withdraw(record.identity().key);
      }
    }
    warm_->Erase({}, 1, 9);
    EXPECT_EQ(WaitWarm().outcome, kOk);
    EXPECT_EQ(warm_->warm_stats().bytes, 0u);
    const std::span<const std::byte> all(pinned_.last.load(), BytesFor(3));
    EXPECT_EQ(std::ranges::count(all, std::byte{0}), static_cast<ptrdiff_t>(all.size()));
  }
}

TEST_F(WarmTest, WhatIsNotMadeGivesItsPlaceBack) {
  OpenAlone(2);
  for (int round = 0; round < 5; ++round) {
    const auto one = Place(Record(1));
    const auto two = Place(Record(2));
    ASSERT_FALSE(one.empty() || two.empty());
    EXPECT_TRUE(Place(Record(3)).empty()) << "no room, and nobody's place is taken";
    EXPECT_EQ(PutWarm(Record(3)), kNoSpace);
    std::ranges::fill(one, std::byte{7});
    warm_->Withdraw(Record(1).identity().key);
    warm_->Withdraw(Record(1).identity().key);
    EXPECT_EQ(warm_->warm_stats().bytes, BytesFor(1));
    EXPECT_TRUE(std::ranges::all_of(one, [](std::byte b) { return b == std::byte{0}; }))
        << "what lay there is overwritten";
    warm_->Withdraw(Record(2).identity().key);
    EXPECT_EQ(warm_->UsageOf({}).bytes, 0u);
  }
  ASSERT_EQ(PutWarm(Record(1)), kOk);
  ASSERT_EQ(PutWarm(Record(2)), kOk);
  EXPECT_FALSE(Place(Record(3)).empty()) << "the least recently used goes";
  EXPECT_FALSE(WarmHas(Record(1)));
}

// What refuses a record gives its place back after the store below has read it.
TEST_F(WarmTest, APlaceGoesWithWhatIsRefused) {
  OpenInFront(2);
  ASSERT_EQ(PutWarm(Record(5, "a")), kOk);
  const auto payload = Place(Record(1, "a"));
  ASSERT_FALSE(payload.empty());
  warm_->Erase(PublisherOf("a"), 1, 9);
  EXPECT_EQ(WaitWarm().outcome, kOk);
  EXPECT_EQ(PutInPlace(Record(1, "a"), payload), kErased);
  EXPECT_EQ(warm_->warm_stats().bytes, 0u);
  EXPECT_TRUE(Place(Record(1, "a")).empty());
  // Made twice: the second is there already when it is put, and the store below has it whole.
  const auto mine = Place(Record(2));
  ASSERT_FALSE(mine.empty());
  ASSERT_EQ(PutInPlace(Record(2), mine), kOk);
  for (const uint64_t other : {3, 4}) EXPECT_EQ(PutWarm(Record(other)), kOk);
  EXPECT_EQ(LoadWarm(Record(2)).outcome, kOk);
  EXPECT_EQ(warm_->warm_stats().promoted, 1u) << "it came from below";
}

TEST_F(WarmTest, QuotasHoldWhileRecordsAreMade) {
  OpenAlone(4);
  warm_->SetLimits({.publisher = PublisherOf("a"), .bytes_quota = BytesFor(2)});
  ASSERT_EQ(PutWarm(Record(1, "a")), kOk);
  ASSERT_FALSE(Place(Record(2, "a")).empty());
  EXPECT_EQ(PutWarm(Record(3, "a")), kOk) << "its own oldest goes";
  EXPECT_FALSE(WarmHas(Record(1, "a")));
  EXPECT_EQ(warm_->UsageOf(PublisherOf("a")).bytes, BytesFor(2));
  EXPECT_FALSE(Place(Record(4, "a")).empty());
  EXPECT_TRUE(Place(Record(5, "a")).empty()) << "nothing of its own is left to go";
  EXPECT_EQ(warm_->UsageOf(PublisherOf("a")).bytes, BytesFor(2));
}

TEST_F(WarmTest, WhatIsLentStaysWhereItIs) {
  OpenAlone(2);
  ASSERT_EQ(PutWarm(Record(1)), kOk);
  ASSERT_EQ(PutWarm(Record(2)), kOk);
  Loan loan;
  ASSERT_EQ(Borrow(Record(1), loan).outcome, kOk);
  ASSERT_NE(loan.number, 0u);
  EXPECT_TRUE(Has(loan, Record(1)));
  EXPECT_EQ(loaded_[2].crcs, Record(1).Crcs());
  EXPECT_EQ(loaded_[2].sections[0][0], std::byte{0}) << "nothing is copied";
  for (uint64_t i = 3; i < 9; ++i) {
    EXPECT_EQ(PutWarm(Record(i)), kOk);
    EXPECT_TRUE(WarmHas(Record(1)));
    EXPECT_TRUE(Has(loan, Record(1)));
  }
  Loan other;
  ASSERT_EQ(Borrow(Record(8), other).outcome, kOk);
  EXPECT_EQ(PutWarm(Record(9)), kNoSpace) << "all is lent";
  warm_->Return(other, /*damaged=*/false);
  warm_->Return(loan, /*damaged=*/false);
  EXPECT_EQ(PutWarm(Record(9)), kOk);
  EXPECT_EQ(PutWarm(Record(10)), kOk);
  EXPECT_FALSE(WarmHas(Record(1)));
}

TEST_F(WarmTest, WhatIsErasedWhileItIsLentGoesWhenItComesBack) {
  for (const bool in_front : {false, true}) {
    in_front ? OpenInFront(2) : OpenAlone(2);
    ASSERT_EQ(PutWarm(Record(1, "a")), kOk);
    Loan first;
    Loan second;
    ASSERT_EQ(Borrow(Record(1, "a"), first).outcome, kOk);
    ASSERT_EQ(Borrow(Record(1, "a"), second).outcome, kOk);
    warm_->Erase(PublisherOf("a"), 1, 9);
    EXPECT_EQ(WaitWarm().outcome, kOk);
    EXPECT_FALSE(WarmHas(Record(1, "a")));
    EXPECT_TRUE(Has(first, Record(1, "a")));
    EXPECT_EQ(warm_->warm_stats().records, 0u);
    EXPECT_EQ(warm_->warm_stats().bytes, BytesFor(1)) << "it still takes memory";
    warm_->Flush(11);
    std::vector<StoreCompletion> done;
    for (int i = 0; i < 100; ++i) {
      warm_->Tick(done, 1000);
      clock_.Advance(1000);
    }
    EXPECT_TRUE(done.empty()) << "it is not overwritten yet";
    warm_->Return(first, /*damaged=*/false);
    EXPECT_TRUE(Has(second, Record(1, "a")));
    warm_->Return(second, /*damaged=*/in_front);
    EXPECT_TRUE(std::ranges::all_of(second.payload, [](std::byte b) { return b == std::byte{0}; }));
    EXPECT_EQ(WaitWarm(), (StoreCompletion{.tag = 11, .outcome = kOk}));
    EXPECT_EQ(warm_->warm_stats().bytes, 0u);
    EXPECT_EQ(warm_->UsageOf(PublisherOf("a")).records, 0u);
  }
}

TEST_F(WarmTest, WhatComesBackDamagedIsForgottenAndMendedFromBelow) {
  OpenInFront(2);
  ASSERT_EQ(PutWarm(Record(1)), kOk);
  Loan loan;
  ASSERT_EQ(Borrow(Record(1), loan).outcome, kOk);
  warm_->Return(loan, /*damaged=*/true);
  EXPECT_EQ(warm_->warm_stats().damaged, 1u);
  EXPECT_EQ(warm_->warm_stats().bytes, 0u);
  loan = {};
  ASSERT_EQ(Borrow(Record(1), loan).outcome, kOk);
  EXPECT_EQ(loan.number, 0u) << "the store below copies";
  EXPECT_TRUE(Same(Record(1), 2));
  EXPECT_EQ(warm_->warm_stats().promoted, 1u);
}

// Whatever is made, lent, erased and given back in whatever order: nothing is lent that is not what
// was put, and the cap holds; at the end nothing is left.
TEST_F(WarmTest, PlacesAndLoansOfAllKindsLeaveNothingBehind) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    Prng prng(seed);
    OpenAlone(5);
    uint64_t epoch = 0;
    struct Made {
      const TestRecord* record;
      std::span<std::byte> payload;
    };
    struct Lent {
      const TestRecord* record;
      Loan loan;
    };
    std::map<uint64_t, Made> made;  // by number
    std::vector<Lent> lent;
    for (int step = 0; step < 400; ++step) {
      const uint64_t number = 1 + prng.NextBelow(9);
      const TestRecord& record = Record(number, "a", epoch);
      switch (prng.NextBelow(6)) {
        case 0:
          if (made.contains(number)) break;
          if (const auto place = Place(record); !place.empty()) made[number] = {&record, place};
          break;
        case 1:
        case 2:
          if (made.empty()) {
            PutWarm(record);
            break;
          }
          if (const auto [mine, payload] = made.begin()->second; prng.NextBelow(4) == 0) {
            warm_->Withdraw(mine->identity().key);
          } else {
            const bool is_of_now = mine->identity().erase_epoch == epoch;
            EXPECT_EQ(PutInPlace(*mine, payload), is_of_now ? kOk : kErased);
          }
          made.erase(made.begin());
          break;
        case 3:
          if (Loan loan; Borrow(record, loan).outcome == kOk) lent.push_back({&record, loan});
          break;
        case 4:
          if (lent.empty()) break;
          std::swap(lent[prng.NextBelow(lent.size())], lent.back());
          warm_->Return(lent.back().loan, /*damaged=*/prng.NextBelow(5) == 0);
          lent.pop_back();
          break;
        default:
          if (prng.NextBelow(10) != 0) break;
          warm_->Erase(PublisherOf("a"), ++epoch, 9);
          WaitWarm();
      }
      for (const auto& [its, loan] : lent) ASSERT_TRUE(Has(loan, *its)) << "seed " << seed;
      const WarmStats stats = warm_->warm_stats();
      ASSERT_LE(stats.bytes, stats.bytes_cap);
      ASSERT_EQ(warm_->UsageOf(PublisherOf("a")).bytes, stats.bytes);
      ASSERT_GE(stats.bytes, BytesFor(stats.records + made.size()));
    }
    for (const auto& [its, loan] : lent) warm_->Return(loan, /*damaged=*/false);
    for (const auto& [number, mine] : made) warm_->Withdraw(mine.record->identity().key);
    warm_->Erase(PublisherOf("a"), ++epoch, 9);
    WaitWarm();
    EXPECT_EQ(warm_->warm_stats().bytes, 0u);
    ASSERT_EQ(PutWarm(Record(1, "a", epoch)), kOk);
  }
}

// Records of several lengths come and go; whatever is there is what was put, and never more than
// the cap.
TEST_F(WarmTest, LongRecordsFindRoomAmongShortOnes) {
  OpenAlone(8);
  std::vector<RecordLayout> layouts;
  for (const uint64_t bytes : {5'000u, 9'000u, 30'000u})
    layouts.push_back(TestLayout(16, 2, bytes));
  Prng prng(11);
  std::map<uint64_t, size_t> put;  // layouts by record
  for (uint64_t i = 1; i <= 300; ++i) {
    const size_t layout = prng.NextBelow(layouts.size());
    const uint64_t needed = layouts[layout].record_bytes() + 512;
    const StoreOutcome outcome = PutWarm(TestRecord(i, layouts[layout]));
    ASSERT_EQ(outcome, needed > BytesFor(8) ? kTooLarge : kOk) << "record " << i;
    if (outcome == kOk) put[i] = layout;
    ASSERT_LE(warm_->warm_stats().bytes, warm_->warm_stats().bytes_cap);
    const uint64_t asked = 1 + prng.NextBelow(i);
    if (!put.contains(asked)) continue;
    const TestRecord record(asked, layouts[put[asked]]);
    if (WarmHas(record)) {
      ASSERT_EQ(LoadWarm(record).outcome, kOk) << "record " << asked;
    }
  }
  EXPECT_GT(warm_->warm_stats().evicted, 100u);
}

}  // namespace
}  // namespace quire::tier
