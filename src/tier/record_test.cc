#include "tier/record.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <functional>

#include "env/file.h"
#include "tier/test_records.h"

namespace quire::tier {
namespace {

constexpr RecordLocation kLocation = {
    .segment = 3, .offset = 8192, .generation = 5, .sequence = 77};

class RecordTest : public testing::Test {
 protected:
  RecordMiss Match(std::span<const std::byte> bytes) const {
    return MatchHeader(bytes, record_.identity(), layout_, kLocation);
  }
  std::span<std::byte> header() { return std::span(encoded_).first(layout_.header_bytes()); }

  // Makes the checksums right again, as a writer of another record would.
  void Reseal() {
    const auto put = [&](size_t at, uint32_t crc) { std::memcpy(&encoded_[at], &crc, 4); };
    put(12, Crc32c(header().first(12)));
    put(252, 0);
    put(252, Crc32c(header()));
  }

  const RecordLayout layout_ = TestLayout(16, 3, 1000);
  TestRecord record_{9, layout_, "tenant", 4};
  std::vector<std::byte> encoded_ = record_.Encoded(kLocation);
};

TEST_F(RecordTest, LiesOnPagesInTheOrderOfItsLayout) {
  EXPECT_EQ(layout_.header_bytes(), 4096);
  EXPECT_EQ(layout_.offset(1), 1024);
  EXPECT_EQ(layout_.payload_bytes(), 8192);
  EXPECT_EQ(layout_.record_bytes(), 12288);
  EXPECT_EQ(TestLayout(256, 80, 64).header_bytes(), 12288);
}

TEST_F(RecordTest, LayoutsThatNoRecordCanHaveAreRefused) {
  EXPECT_FALSE(RecordLayout::Create(16, {}));
  EXPECT_FALSE(RecordLayout::Create(16, {SectionSpec{.bytes = 0}}));
  EXPECT_FALSE(RecordLayout::Create(16, {SectionSpec{.bytes = kPayloadBytesMax}}));
  EXPECT_FALSE(RecordLayout::Create(16, {SectionSpec{.bytes = 3ull << 30}, {.bytes = 1ull << 30}}));
  EXPECT_FALSE(RecordLayout::Create(16, std::vector<SectionSpec>(1400, {.bytes = 1})));
  EXPECT_FALSE(RecordLayout::Create(kRecordTokensMax + 1, {SectionSpec{.bytes = 1}}));
}

TEST_F(RecordTest, IsFoundByItsOwnIdentity) {
  EXPECT_EQ(Match(encoded_), RecordMiss::kNone);
  const auto summary = InspectHeader(encoded_);
  ASSERT_TRUE(summary);
  EXPECT_EQ(summary->key, record_.identity().key);
  EXPECT_EQ(summary->publisher, PublisherOf("tenant"));
  EXPECT_EQ(summary->erase_epoch, 4);
  EXPECT_EQ(summary->record_bytes(), layout_.record_bytes());
  EXPECT_EQ(summary->location, kLocation);
  EXPECT_FALSE(summary->is_void);
}

// An opaque block has none: the pointer to them is null.
TEST_F(RecordTest, ARecordMayHaveNoTokens) {
  const RecordLayout layout = TestLayout(0, 1, 100);
  const TestRecord record(3, layout);
  const auto encoded = record.Encoded(kLocation);
  EXPECT_EQ(MatchHeader(encoded, record.identity(), layout, kLocation), RecordMiss::kNone);
  const TestRecord other(4, layout_);
  EXPECT_EQ(MatchHeader(encoded, other.identity(), layout_, kLocation), RecordMiss::kOtherKey);
}

TEST_F(RecordTest, EveryPartOfTheIdentityIsCompared) {
  const auto match = [&](const std::function<void(RecordIdentity&)>& change) {
    RecordIdentity other = record_.identity();
    change(other);
    return MatchHeader(encoded_, other, layout_, kLocation);
  };
  using I = RecordIdentity;
  EXPECT_EQ(match([](I& i) { i.key[31] ^= 1; }), RecordMiss::kOtherKey);
  EXPECT_EQ(match([](I& i) { i.parent[0] ^= 1; }), RecordMiss::kOtherTokens);
  EXPECT_EQ(match([](I& i) { i.profile[5] ^= 1; }), RecordMiss::kOtherProfile);
  EXPECT_EQ(match([](I& i) { i.geometry[5] ^= 1; }), RecordMiss::kOtherGeometry);
  EXPECT_EQ(match([](I& i) { i.publisher = {}; }), RecordMiss::kOtherPublisher);
  EXPECT_EQ(match([](I& i) { i.erase_epoch = 5; }), RecordMiss::kErased);
  EXPECT_EQ(match([](I& i) { i.block_index = 3; }), RecordMiss::kOtherTokens);
  std::vector<TokenId> tokens(16, 1);
  EXPECT_EQ(match([&](I& i) { i.tokens = tokens; }), RecordMiss::kOtherTokens);
  EXPECT_EQ(match([&](I& i) { i.tokens = i.tokens.first(15); }), RecordMiss::kOtherTokens);
}

TEST_F(RecordTest, EveryPartOfTheLayoutIsCompared) {
  const auto match = [&](const std::function<void(SectionSpec&)>& change) {
    std::vector<SectionSpec> sections(layout_.sections().begin(), layout_.sections().end());
    change(sections[4]);
    return MatchHeader(encoded_, record_.identity(), *RecordLayout::Create(16, sections),
                       kLocation);
  };
  EXPECT_EQ(match([](SectionSpec&) {}), RecordMiss::kNone);
  for (const auto& change : std::vector<std::function<void(SectionSpec&)>>{
           [](SectionSpec& s) { s.group = 1; }, [](SectionSpec& s) { s.stream = 3; },
           [](SectionSpec& s) { s.encoding = 3; }, [](SectionSpec& s) { s.layout_revision = 2; },
           [](SectionSpec& s) { s.layer_first = 9; }, [](SectionSpec& s) { s.layer_count = 2; },
           [](SectionSpec& s) { s.head_first = 1; }, [](SectionSpec& s) { s.head_count = 1; },
           [](SectionSpec& s) { s.bytes = 999; }}) {
    EXPECT_EQ(match(change), RecordMiss::kOtherLayout);
  }
  EXPECT_EQ(MatchHeader(encoded_, record_.identity(), TestLayout(16, 2, 1000), kLocation),
            RecordMiss::kOtherLayout);
}

TEST_F(RecordTest, ARecordFoundElsewhereIsNone) {
  const auto match = [&](const RecordLocation& location) {
    return MatchHeader(encoded_, record_.identity(), layout_, location);
  };
  EXPECT_EQ(match({.segment = 4, .offset = 8192, .generation = 5}), RecordMiss::kOtherLocation);
  EXPECT_EQ(match({.segment = 3, .offset = 4096, .generation = 5}), RecordMiss::kOtherLocation);
  EXPECT_EQ(match({.segment = 3, .offset = 8192, .generation = 6}), RecordMiss::kOtherLocation);
}

TEST_F(RecordTest, NoFlippedBitOfAHeaderPasses) {
  for (size_t bit = 0; bit < layout_.header_bytes() * 8; ++bit) {
    encoded_[bit / 8] ^= std::byte{1} << (bit % 8);
    const RecordMiss miss = Match(encoded_);
    ASSERT_TRUE(miss == RecordMiss::kHeaderDamaged || (bit < 64 && miss == RecordMiss::kNotARecord))
        << bit << " " << RecordMissName(miss);
    ASSERT_FALSE(InspectHeader(encoded_)) << bit;
    encoded_[bit / 8] ^= std::byte{1} << (bit % 8);
  }
}

TEST_F(RecordTest, AnotherVersionIsAReasonAndNoDamage) {
  encoded_[8] = std::byte{2};
  Reseal();
  EXPECT_EQ(Match(encoded_), RecordMiss::kOtherVersion);
  EXPECT_EQ(InspectHeader(encoded_).error(), RecordMiss::kOtherVersion);
}

TEST_F(RecordTest, FieldsThatNoWriterWritesAreDamageWhateverTheChecksumSays) {
  const auto sealed = encoded_;
  const auto with = [&](size_t at, uint64_t value, size_t bytes) {
    encoded_ = sealed;
    std::memcpy(&encoded_[at], &value, bytes);
    Reseal();
    return InspectHeader(encoded_).error();
  };
  constexpr size_t kTable = 256 + 64;
  EXPECT_EQ(with(192, 8191, 8), RecordMiss::kHeaderDamaged);           // payload_bytes
  EXPECT_EQ(with(192, 1ull << 40, 8), RecordMiss::kHeaderDamaged);     //
  EXPECT_EQ(with(192, 4096, 8), RecordMiss::kHeaderDamaged);           // sections beyond it
  EXPECT_EQ(with(208, 5, 8), RecordMiss::kHeaderDamaged);              // segment_offset
  EXPECT_EQ(with(228, 4'000'000'000, 4), RecordMiss::kHeaderDamaged);  // token_count
  EXPECT_EQ(with(232, 4'000'000'000, 4), RecordMiss::kHeaderDamaged);  // section_count
  EXPECT_EQ(with(232, 0, 4), RecordMiss::kHeaderDamaged);              //
  EXPECT_EQ(with(236, 1 << 30, 4), RecordMiss::kHeaderDamaged);        // header_bytes
  EXPECT_EQ(with(240, 9, 4), RecordMiss::kHeaderDamaged);              // kind
  EXPECT_EQ(with(244, 1, 4), RecordMiss::kHeaderDamaged);              // reserved
  EXPECT_EQ(with(kTable + 48, 64, 8), RecordMiss::kHeaderDamaged);     // sections overlap
  EXPECT_EQ(with(kTable + 48, 1000, 8), RecordMiss::kHeaderDamaged);   // not aligned
  EXPECT_EQ(with(kTable + 56, ~uint64_t{0}, 8), RecordMiss::kHeaderDamaged);
  EXPECT_EQ(with(kTable + 56, 0, 8), RecordMiss::kHeaderDamaged);
  EXPECT_EQ(with(kTable + 44, 1, 4), RecordMiss::kHeaderDamaged);  // reserved of a section
}

TEST_F(RecordTest, NoPrefixOfAHeaderPasses) {
  for (size_t bytes = 0; bytes < layout_.header_bytes(); ++bytes) {
    ASSERT_EQ(Match(std::span(encoded_).first(bytes)), RecordMiss::kTruncated);
  }
}

TEST_F(RecordTest, SectionsAreCheckedInPiecesOfAnySize) {
  const auto sections = StoredSections(encoded_);
  const auto payload = std::span(encoded_).subspan(layout_.header_bytes());
  for (const size_t piece : {1, 7, 64, 1000, 4096, 8192}) {
    for (const bool damaged : {false, true}) {
      if (damaged) encoded_[layout_.header_bytes() + 5 * 1024 + 999] ^= std::byte{1};
      SectionChecker checker(sections, 0);
      for (size_t at = 0; at < payload.size(); at += piece) {
        EXPECT_FALSE(checker.Good(0, 6) && at < 5 * 1024 + 1000);
        checker.Feed(payload.subspan(at, std::min(piece, payload.size() - at)));
        if (at + piece >= 4 * 1024 + 1000 && at + piece < 5 * 1024) {
          EXPECT_TRUE(checker.Good(0, 5));
        }
      }
      EXPECT_EQ(checker.Good(0, 6), !damaged) << piece;
      if (damaged) encoded_[layout_.header_bytes() + 5 * 1024 + 999] ^= std::byte{1};
    }
  }
}

TEST_F(RecordTest, SectionsAreCheckedFromAnyPage) {
  const auto payload = std::span(encoded_).subspan(layout_.header_bytes());
  SectionChecker checker(StoredSections(encoded_), 4096);
  checker.Feed(payload.subspan(4096));
  EXPECT_TRUE(checker.Good(4, 2));
  encoded_[layout_.header_bytes() + 4096] ^= std::byte{1};
  SectionChecker damaged(StoredSections(encoded_), 4096);
  damaged.Feed(payload.subspan(4096));
  EXPECT_FALSE(damaged.Good(4, 2));
}

TEST_F(RecordTest, AVoidStretchIsNoRecord) {
  std::vector<std::byte> page(4096);
  EncodeVoid(kLocation, 3 * 4096, page);
  const auto summary = InspectHeader(page);
  ASSERT_TRUE(summary);
  EXPECT_TRUE(summary->is_void);
  EXPECT_EQ(summary->record_bytes(), 3 * 4096);
  EXPECT_EQ(Match(page), RecordMiss::kNotARecord);
}

// The bytes that every build of this version has written. QUIRE_WRITE_GOLDEN=1 writes the file
// anew, which only another version of the format may need.
TEST_F(RecordTest, GoldenBytes) {
  const std::string path = std::string(QUIRE_SOURCE_DIR) + "/tests/golden/record_v1.bin";
  const std::string_view text(reinterpret_cast<const char*>(encoded_.data()), encoded_.size());
  if (std::getenv("QUIRE_WRITE_GOLDEN") != nullptr) {
    ASSERT_TRUE(WriteFile(path, text));
  }
  const auto golden = ReadFile(path, 1 << 20);
  ASSERT_TRUE(golden) << golden.error().message;
  EXPECT_TRUE(*golden == text);
}

TEST_F(RecordTest, PublishersAreToldApart) {
  EXPECT_EQ(PublisherOf(""), PublisherId{});
  EXPECT_NE(PublisherOf("a"), PublisherOf("b"));
  EXPECT_NE(PublisherOf("a"), PublisherId{});
}

}  // namespace
}  // namespace quire::tier
