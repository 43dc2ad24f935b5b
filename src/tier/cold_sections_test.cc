// Records of a cold store that are read section by section: their headers are read and compared
// once, and what is compared with them is the same every time.
#include <gtest/gtest.h>

#include "tier/cold.h"
#include "tier/cold_test_util.h"

namespace quire::tier {
namespace {

using enum StoreOutcome;

constexpr uint64_t kPage = kRecordAlignment;

class ColdSectionsTest : public ColdTest {
 protected:
  /// Sections that lie on pages of their own.
  ColdSectionsTest() : paged_(TestLayout(16, 2, kPage)) {}

  TestRecord Paged(uint64_t number, std::string_view domain = {}) {
    return TestRecord(number, paged_, domain);
  }
  void PutPaged(uint64_t first, uint64_t count, std::string_view domain = {}) {
    for (uint64_t i = first; i < first + count; ++i) {
      Put(Paged(i, domain), i);
      EXPECT_EQ(WaitOne().outcome, kOk);
    }
  }
  StoreCompletion LoadSection(const TestRecord& record, uint32_t section) {
    Get(record, 5, 0, section, 1);
    const StoreCompletion ended = WaitOne();
    if (ended.outcome == kOk) {
      EXPECT_TRUE(Same(record, 5, section));
    }
    return ended;
  }
  struct Cost {
    uint64_t requests = 0;
    uint64_t bytes = 0;

    bool operator==(const Cost&) const = default;
  };
  Cost CostOf(const TestRecord& record, uint32_t section) {
    const StoreStats before = store_->Stats();
    EXPECT_EQ(LoadSection(record, section).outcome, kOk);
    const StoreStats after = store_->Stats();
    return {.requests = after.read_requests - before.read_requests,
            .bytes = after.bytes_read - before.bytes_read};
  }

  const RecordLayout paged_;
};

TEST_F(ColdSectionsTest, AHeaderIsReadOnce) {
  Open();
  PutPaged(1, 3);
  EXPECT_EQ(CostOf(Paged(2), 1), (Cost{.requests = 2, .bytes = 2 * kPage}));
  for (const uint32_t section : {1u, 0u, 3u, 2u}) {
    EXPECT_EQ(CostOf(Paged(2), section), (Cost{.requests = 1, .bytes = kPage})) << section;
  }
  EXPECT_EQ(CostOf(Paged(3), 3), (Cost{.requests = 2, .bytes = 2 * kPage}));
  EXPECT_EQ(Load(Paged(2)).outcome, kOk);  // all of a record whose header is known
}

TEST_F(ColdSectionsTest, WhatIsReadWholeLeavesNoHeader) {
  Open();
  PutPaged(1, 1);
  const uint64_t before = store_->Stats().memory_bytes;
  EXPECT_EQ(Load(Paged(1)).outcome, kOk);
  EXPECT_EQ(store_->Stats().memory_bytes, before);
  EXPECT_EQ(LoadSection(Paged(1), 0).outcome, kOk);
  EXPECT_GT(store_->Stats().memory_bytes, before);
}

TEST_F(ColdSectionsTest, NoMoreAreKeptThanMayBe) {
  for (const uint64_t kept : {0, 2}) {
    options_.headers_bytes_max = kept * 5000;
    store_.reset();
    Open();
    if (kept == 0) PutPaged(1, 4);
    for (int round = 0; round < 5; ++round) {
      for (uint64_t i = 1; i <= 4; ++i) EXPECT_EQ(LoadSection(Paged(i), 2).outcome, kOk);
    }
    const uint64_t requests = store_->Stats().read_requests;
    if (kept == 0) {
      EXPECT_EQ(requests, 40);
    } else {
      EXPECT_LT(requests, 40);
      EXPECT_GT(requests, 24);
    }
  }
}

TEST_F(ColdSectionsTest, AnotherIdentityIsAMissAlsoWhereTheHeaderIsKnown) {
  Open();
  PutPaged(1, 1);
  EXPECT_EQ(LoadSection(Paged(1), 0).outcome, kOk);
  const auto load_as = [&](const std::function<void(RecordIdentity&)>& change) {
    TestRecord other = Paged(1);
    change(other.identity());
    return LoadSection(other, 1).miss;
  };
  EXPECT_EQ(load_as([](RecordIdentity& i) { i.profile[0] ^= 1; }), RecordMiss::kOtherProfile);
  EXPECT_EQ(load_as([](RecordIdentity& i) { i.geometry[0] ^= 1; }), RecordMiss::kOtherGeometry);
  EXPECT_EQ(load_as([](RecordIdentity& i) { i.key[31] ^= 1; }), RecordMiss::kOtherKey);
  EXPECT_EQ(load_as([](RecordIdentity& i) { i.block_index = 99; }), RecordMiss::kOtherTokens);
  EXPECT_EQ(load_as([](RecordIdentity& i) { i.publisher = PublisherOf("x"); }),
            RecordMiss::kOtherPublisher);
  EXPECT_EQ(store_->Stats().damaged, 0);
  EXPECT_EQ(LoadSection(Paged(1), 1).outcome, kOk);
}

TEST_F(ColdSectionsTest, DamageOfASectionIsAMissAlsoWhereTheHeaderIsKnown) {
  Open();
  PutPaged(1, 2);
  EXPECT_EQ(LoadSection(Paged(1), 0).outcome, kOk);
  (*files_->Contents("store/segment-000000"))[3 * kPage + 9] ^= std::byte{2};  // section 2
  EXPECT_EQ(LoadSection(Paged(1), 1).outcome, kOk);
  EXPECT_EQ(LoadSection(Paged(1), 2).miss, RecordMiss::kPayloadDamaged);
  EXPECT_FALSE(Has(Paged(1)));
  EXPECT_EQ(LoadSection(Paged(2), 2).outcome, kOk);
}

// A later record in the place of an earlier one is another record.
TEST_F(ColdSectionsTest, AHeaderIsNotTakenForThatOfWhatIsWrittenOverIt) {
  options_ = Options(2);
  Open();
  for (uint64_t i = 0; i < 60; ++i) {
    PutPaged(i, 1);
    EXPECT_EQ(LoadSection(Paged(i), i % 4).outcome, kOk) << i;
    EXPECT_EQ(LoadSection(Paged(i), (i + 1) % 4).outcome, kOk) << i;
  }
  EXPECT_GT(store_->Stats().evicted, 30);
  EXPECT_EQ(store_->Stats().damaged, 0);
}

TEST_F(ColdSectionsTest, AnErasureForgetsThem) {
  Open();
  PutPaged(1, 3, "a");
  const uint64_t before = store_->Stats().memory_bytes;
  for (uint64_t i = 1; i <= 3; ++i) EXPECT_EQ(LoadSection(Paged(i, "a"), 1).outcome, kOk);
  EXPECT_GE(store_->Stats().memory_bytes, before + 3 * kPage);
  const TestRecord under_way = Paged(2, "a");
  Get(under_way, 5, 0, 2, 1);
  store_->Erase(PublisherOf("a"), 1, 1000);
  const auto ended = Wait(2);
  EXPECT_EQ(ended.at(1000).outcome, kOk);
  EXPECT_EQ(ended.at(5).outcome, kErased);
  EXPECT_EQ(Flush(), kOk);
  EXPECT_LE(store_->Stats().memory_bytes, before);
}

TEST_F(ColdSectionsTest, ALoadOfSeveralSectionsBeginsAtItsFirst) {
  Open();
  PutAll(1, 1);  // sections that share pages
  for (uint32_t first = 0; first < 4; ++first) {
    for (uint32_t count = 1; first + count <= 4; ++count) {
      Get(Record(1), 5, 0, first, count);
      EXPECT_EQ(WaitOne().outcome, kOk);
      EXPECT_TRUE(Same(Record(1), 5, first)) << first << " " << count;
    }
  }
}

}  // namespace
}  // namespace quire::tier
