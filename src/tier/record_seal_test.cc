#include "tier/record_seal.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <memory>
#include <vector>

#include "env/clock.h"
#include "env/faulty_files.h"
#include "tier/test_records.h"

namespace quire::tier {
namespace {

class RecordSealTest : public testing::Test {
 protected:
  RecordSealTest() {
    EXPECT_TRUE(files_.MakeDirectory("d"));
    keys_ = keys::KeyRing::Open(files_, {.directory = "d"},
                                {.key = std::vector<uint8_t>(keys::kKeyBytes, 7)})
                .value();
  }

  ManualClock clock_;
  FaultyFiles files_{{.seed = 3}, clock_};
  std::unique_ptr<keys::KeyRing> keys_;
};

TEST_F(RecordSealTest, NoDifferenceOfTwoRecordsIsLost) {
  const RecordLayout layout = TestLayout(16, 2, 3000);
  TestRecord record(7, layout);  // the first block of its prompt
  const auto same = Disguise(*keys_, record.identity(), layout);
  ASSERT_TRUE(same);
  const auto miss = [&](const RecordIdentity& identity, const RecordLayout& of) {
    std::vector<std::byte> header(same->layout.header_bytes());
    const std::vector<uint32_t> crcs(same->layout.sections().size());
    EncodeHeader(same->identity, same->layout, {}, crcs, header);
    const auto sealed = Disguise(*keys_, identity, of);
    return sealed ? MatchHeader(header, sealed->identity, sealed->layout, {})
                  : RecordMiss::kTruncated;
  };
  EXPECT_EQ(miss(record.identity(), layout), RecordMiss::kNone);
  const auto changed = [&](auto change) {
    RecordIdentity identity = record.identity();
    change(identity);
    return miss(identity, layout);
  };
  EXPECT_EQ(changed([](auto& id) { id.key[31] ^= 1; }), RecordMiss::kOtherKey);
  EXPECT_EQ(changed([](auto& id) { id.parent[31] ^= 1; }), RecordMiss::kOtherTokens);
  EXPECT_EQ(changed([](auto& id) { id.profile[31] ^= 1; }), RecordMiss::kOtherProfile);
  EXPECT_EQ(changed([](auto& id) { id.geometry[31] ^= 1; }), RecordMiss::kOtherGeometry);
  EXPECT_EQ(changed([](auto& id) { id.publisher[15] ^= 1; }), RecordMiss::kOtherPublisher);
  EXPECT_EQ(changed([](auto& id) { ++id.erase_epoch; }), RecordMiss::kErased);
  EXPECT_EQ(changed([](auto& id) { ++id.block_index; }), RecordMiss::kOtherTokens);
  std::vector<TokenId> tokens(record.identity().tokens.begin(), record.identity().tokens.end());
  ++tokens[15];
  EXPECT_EQ(changed([&](auto& id) { id.tokens = tokens; }), RecordMiss::kOtherTokens);
  // Sections of the same lengths that mean something else.
  std::vector<SectionSpec> sections(layout.sections().begin(), layout.sections().end());
  ++sections[0].encoding;
  const auto other = RecordLayout::Create(16, sections);
  ASSERT_TRUE(other);
  EXPECT_EQ(miss(record.identity(), *other), RecordMiss::kOtherGeometry);
  // Of a later block the parent is in the digest of its tokens alone.
  record.identity().block_index = 1;
  RecordIdentity later = record.identity();
  later.parent[0] ^= 1;
  const auto one = Disguise(*keys_, record.identity(), layout);
  const auto two = Disguise(*keys_, later, layout);
  EXPECT_EQ(one->identity.parent, Digest{});
  EXPECT_NE(one->tokens, two->tokens);
}

TEST_F(RecordSealTest, NothingIsSealedTwiceAlike) {
  const RecordLayout layout = TestLayout(16, 2, 3000);
  const TestRecord record(7, layout);
  const auto sealed = Disguise(*keys_, record.identity(), layout);
  const auto key = keys_->KeyFor(sealed->identity.publisher);
  ASSERT_TRUE(key);
  const auto seal = [&] {
    RecordSealer sealer(*key, sealed->identity, sealed->layout);
    std::vector<std::byte> bytes(sealed->layout.payload_bytes());
    for (uint32_t i = 0; i < record.sections().size(); ++i) {
      // In pieces that end anywhere, also in what is behind the bytes.
      const auto section =
          std::span(bytes).subspan(sealed->layout.offset(i), sealed->layout.sections()[i].bytes);
      const std::array pieces = {section.first(10 + i), section.subspan(10 + i, 3000 - i),
                                 section.subspan(3010)};
      sealer.Seal(i, record.sections()[i], pieces);
      RecordOpener opener(*keys_, sealed->identity, sealed->layout);
      std::vector<std::byte> plain(record.sections()[i].size());
      EXPECT_TRUE(opener.Open(i, pieces, plain));
      EXPECT_TRUE(std::ranges::equal(plain, record.sections()[i]));
      EXPECT_FALSE(opener.Open(i + 1, pieces, plain));
    }
    return bytes;
  };
  const auto first = seal();
  const auto second = seal();
  uint64_t equal = 0;
  for (size_t i = 0; i < first.size(); ++i) equal += first[i] == second[i] ? 1 : 0;
  EXPECT_LT(equal, first.size() / 16);
}

TEST_F(RecordSealTest, TheBoundsOfLengthsHold) {
  for (const uint32_t layers : {1, 2, 28, 300}) {
    for (const uint64_t bytes : {1, 16, 64, 1000, 4096, 4033, 65'536}) {
      const RecordLayout layout = TestLayout(16, layers, bytes);
      const TestRecord record(7, layout);
      const auto sealed = Disguise(*keys_, record.identity(), layout);
      ASSERT_TRUE(sealed);
      EXPECT_LE(sealed->layout.record_bytes(), SealedBytesMax(layout.record_bytes()));
    }
  }
  for (uint64_t most = 8192; most < 4 << 20; most += 4096 * 7) {
    EXPECT_LE(SealedBytesMax(UnsealedBytesMin(most)), most);
    EXPECT_LT(UnsealedBytesMin(most), most);
  }
}

}  // namespace
}  // namespace quire::tier
