#include "env/disk_image.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace quire {
namespace {

std::vector<std::byte> Bytes(size_t count, int value) {
  return std::vector<std::byte>(count, static_cast<std::byte>(value));
}

class DiskImageTest : public testing::Test {
 protected:
  DiskImage::File& Make(const std::string& name, const std::vector<std::byte>& bytes) {
    auto file = std::make_shared<DiskImage::File>();
    EXPECT_TRUE(disk_.Grow(*file, bytes.size()).has_value());
    DiskImage::Write(*file, 0, bytes);
    disk_.SetName(name, file);
    return *file;
  }

  Prng prng_{1};
  DiskImage disk_{4096, prng_};
};

TEST_F(DiskImageTest, SyncedBytesOutliveAPowerCut) {
  DiskImage::File& file = Make("a/x", Bytes(1000, 1));
  DiskImage::Sync(file);
  disk_.SyncNames("a");
  disk_.LosePower();
  ASSERT_NE(disk_.Find("a/x"), nullptr);
  EXPECT_EQ(disk_.Find("a/x")->contents, Bytes(1000, 1));
  disk_.SetName("a/x", nullptr);
  EXPECT_EQ(disk_.Find("a/x"), nullptr);
  disk_.SyncNames("b");  // another directory
  disk_.SyncNames("a");
  disk_.LosePower();
  EXPECT_EQ(disk_.Find("a/x"), nullptr);
}

// Of names a first part of the changes; of contents any sectors, old or new.
TEST_F(DiskImageTest, AnyPartOfTheRestStays) {
  std::set<size_t> names;
  std::set<std::vector<std::byte>> contents;
  for (int run = 0; run < 200; ++run) {
    DiskImage disk(1 << 20, prng_);
    auto file = std::make_shared<DiskImage::File>();
    DiskImage::Write(*file, 0, Bytes(1024, 1));
    disk.SetName("a/0", file);
    DiskImage::Sync(*file);
    disk.SyncNames("a");
    DiskImage::Write(*file, 0, Bytes(1024, 2));
    for (const char* const name : {"a/1", "a/2"}) {
      disk.SetName(name, std::make_shared<DiskImage::File>());
    }
    disk.LosePower();
    names.insert(disk.names().size());
    EXPECT_TRUE(disk.names().size() != 2 || disk.Find("a/1") != nullptr);
    contents.insert(file->contents);
    for (size_t sector = 0; sector < 1024; sector += 512) {
      const auto begin = file->contents.begin() + static_cast<ptrdiff_t>(sector);
      EXPECT_EQ(std::count(begin, begin + 512, *begin), 512) << "torn within a sector";
    }
  }
  EXPECT_EQ(names, (std::set<size_t>{1, 2, 3}));
  EXPECT_EQ(contents.size(), 4u);
}

TEST_F(DiskImageTest, ItHasSoMuchRoom) {
  DiskImage::File& file = Make("a", Bytes(4000, 1));
  EXPECT_EQ(disk_.Grow(file, 4097).error().code, ErrorCode::kNoSpace);
  EXPECT_EQ(disk_.Resize(file, 5000).error().code, ErrorCode::kNoSpace);
  EXPECT_EQ(file.contents, Bytes(4000, 1));
  EXPECT_TRUE(disk_.Grow(file, 4096).has_value());
  EXPECT_EQ(disk_.bytes_used(), 4096u);
  EXPECT_TRUE(disk_.Resize(file, 10).has_value());
  EXPECT_EQ(disk_.bytes_used(), 10u);
  disk_.set_bytes_max(5);  // present bytes stay
  EXPECT_EQ(disk_.Grow(file, 11).error().code, ErrorCode::kNoSpace);
  EXPECT_EQ(file.contents, Bytes(10, 1));
}

TEST_F(DiskImageTest, ATornWriteChangesNothingByItself) {
  DiskImage::File& file = Make("a", Bytes(2048, 1));
  std::set<std::vector<std::byte>> seen;
  for (int run = 0; run < 100; ++run) {
    const auto torn = disk_.Torn(file, 512, Bytes(1024, 2));
    EXPECT_EQ(torn.size(), 2048u);
    EXPECT_EQ(torn[511], std::byte{1});
    EXPECT_EQ(torn[1536], std::byte{1});
    seen.insert(torn);
  }
  EXPECT_EQ(seen.size(), 4u);
  EXPECT_EQ(file.contents, Bytes(2048, 1));
}

}  // namespace
}  // namespace quire
