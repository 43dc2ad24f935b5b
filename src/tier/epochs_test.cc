// Files of erase epochs: what they hold comes back, a change that was torn does not, and no damage
// makes an epoch lower than a copy that is whole.
#include "tier/epochs.h"

#include <gtest/gtest.h>

#include <cstring>

#include "base/hash.h"
#include "env/clock.h"
#include "env/faulty_files.h"

namespace quire::tier {
namespace {

PublisherId Publisher(uint64_t number) { return PublisherOf("tenant-" + std::to_string(number)); }

EpochTable Table(uint64_t publishers) {
  EpochTable table;
  for (uint64_t i = 0; i < publishers; ++i) table.Raise({Publisher(i), 1 + i % 3});
  return table;
}

void Append(std::vector<std::byte>& bytes, const std::vector<std::byte>& more) {
  bytes.insert(bytes.end(), more.begin(), more.end());
}

TEST(EpochsTest, ATableAndItsChangesComeBack) {
  for (const uint64_t publishers : {0, 1, 100}) {
    EpochTable table = Table(publishers);
    std::vector<std::byte> bytes = EncodeEpochs(table);
    uint32_t checksum = EpochChecksum(bytes);
    for (uint64_t round = 0; round < 5; ++round) {
      const auto image = DecodeEpochs(bytes);
      ASSERT_TRUE(image);
      EXPECT_EQ(image->table, table);
      EXPECT_TRUE(image->is_whole);
      EXPECT_EQ(image->bytes, bytes.size());
      EXPECT_EQ(image->checksum, checksum);
      std::vector<EpochChange> changes;
      for (uint64_t i = 0; i < round; ++i) changes.push_back({Publisher(i), 10 + round});
      Append(bytes, EncodeEpochChanges(changes, table.version, checksum));
      for (const EpochChange& change : changes) table.Raise(change);
    }
  }
}

TEST(EpochsTest, ATornChangeIsNoneAndSaysSo) {
  EpochTable table = Table(3);
  std::vector<std::byte> bytes = EncodeEpochs(table);
  uint32_t checksum = EpochChecksum(bytes);
  const std::vector<EpochChange> changes = {{Publisher(0), 7}, {Publisher(9), 1}};
  const auto more = EncodeEpochChanges(changes, table.version, checksum);
  for (size_t cut = 1; cut < more.size(); ++cut) {
    std::vector<std::byte> torn = bytes;
    Append(torn, {more.begin(), more.begin() + static_cast<ptrdiff_t>(cut)});
    const auto image = DecodeEpochs(torn);
    ASSERT_TRUE(image);
    EXPECT_EQ(image->is_whole, cut == more.size() / 2) << cut;
    EXPECT_EQ(image->table.version, table.version + cut / (more.size() / 2));
  }
}

TEST(EpochsTest, NoFlippedBitIsBelieved) {
  EpochTable table = Table(3);
  std::vector<std::byte> bytes = EncodeEpochs(table);
  uint32_t checksum = EpochChecksum(bytes);
  const std::vector<EpochChange> changes = {{Publisher(0), 7}, {Publisher(9), 1}};
  Append(bytes, EncodeEpochChanges(changes, table.version, checksum));
  for (size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    bytes[bit / 8] ^= std::byte{1} << (bit % 8);
    const auto image = DecodeEpochs(bytes);
    EXPECT_TRUE(!image || !image->is_whole) << bit;
    bytes[bit / 8] ^= std::byte{1} << (bit % 8);
  }
}

// The bytes of a store that an older version wrote: format 1, and the rest of a longer table.
TEST(EpochsTest, AnOldFileIsRead) {
  const EpochTable table = Table(5);
  std::vector<std::byte> bytes = EncodeEpochs(table);
  const uint32_t format = 1, none = 0;
  std::memcpy(bytes.data() + 8, &format, 4);
  std::memcpy(bytes.data() + 12, &none, 4);
  const uint32_t crc = Crc32c(bytes);
  std::memcpy(bytes.data() + 12, &crc, 4);
  Append(bytes, std::vector<std::byte>(48, std::byte{3}));
  const auto image = DecodeEpochs(bytes);
  ASSERT_TRUE(image);
  EXPECT_EQ(image->table, table);
  EXPECT_TRUE(image->is_old);
  EXPECT_TRUE(image->is_whole);
}

TEST(EpochsTest, AFileNeverGetsLongerThanItsShare) {
  for (const uint64_t publishers : {0, 1, 1000, 100'000}) {
    uint64_t changes = 0;
    while (!IsLong(changes + 1, publishers)) ++changes;
    const uint64_t file = EncodeEpochs({}).size() + publishers * 24 + changes * 40;
    EXPECT_LE(2 * file + EncodeEpochs({}).size() + publishers * 24, EpochBytesMax(publishers));
  }
}

class EpochCopiesTest : public testing::Test {
 protected:
  void Write(size_t copy, std::span<const std::byte> bytes) {
    const auto file = ReplaceEpochFile(files_, "store", copy, bytes);
    ASSERT_TRUE(file) << file.error().message;
    files_.Close(*file);
  }
  static std::vector<std::byte> Torn(const EpochTable& table) {
    std::vector<std::byte> bytes = EncodeEpochs(table);
    bytes.resize(bytes.size() + 17);
    return bytes;
  }

  ManualClock clock_;
  FaultyFiles files_{{}, clock_};
};

TEST_F(EpochCopiesTest, TheNewestIsBelievedAndATornOneOnlyBesideAWholeOne) {
  EXPECT_FALSE(ReadEpochs(files_, "store").table);
  Write(0, EncodeEpochs(Table(3)));
  EXPECT_EQ(ReadEpochs(files_, "store").table, Table(3));
  Write(1, EncodeEpochs(Table(5)));
  EXPECT_EQ(ReadEpochs(files_, "store").table, Table(5));
  Write(1, Torn(Table(5)));
  EXPECT_EQ(ReadEpochs(files_, "store").table, Table(5));
  files_.Damage("store/epochs-0", 0, 1, BadSectors::kForGood);
  EXPECT_FALSE(ReadEpochs(files_, "store").table);
  Write(0, Torn(Table(4)));
  EXPECT_FALSE(ReadEpochs(files_, "store").table);
}

TEST_F(EpochCopiesTest, WhateverIsInItsPlaceIsReplaced) {
  for (int round = 0; round < 2; ++round) {
    files_.Obstruct("store/epochs-0");
    if (round > 0) files_.Obstruct("store/epochs-1.new");
    Write(0, EncodeEpochs(Table(2)));
    EXPECT_EQ(ReadEpochs(files_, "store").table, Table(2));
    if (round > 0) {
      EXPECT_FALSE(ReplaceEpochFile(files_, "store", 1, EncodeEpochs(Table(3))));
    }
    files_.MendDisk();
  }
}

}  // namespace
}  // namespace quire::tier
