#include "store/opaque.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "base/hash.h"

namespace quire::store {
namespace {

TEST(Opaque, LengthsOfBlocksAndRecordsFitEachOther) {
  for (const uint64_t bytes : {0u, 1u, 4095u, 4096u, 4097u, 8191u, 8192u, 1u << 20, 1234567u}) {
    SCOPED_TRACE(bytes);
    const uint64_t record = RecordBytesOf(bytes);
    EXPECT_GE(BlockBytesIn(record), bytes);
    EXPECT_LE(BlockBytesIn(record), bytes + 4095);
    const auto body = BodyBytesOf(record);
    ASSERT_TRUE(body);
    EXPECT_EQ(*body, bytes / 4096 * 4096);
    EXPECT_EQ(LayoutOf(*body).record_bytes(), record);
    EXPECT_EQ(LayoutOf(*body).sections().size(), *body == 0 ? 1 : 2);
    EXPECT_EQ(LayoutOf(*body).header_bytes(), 4096);
  }
  EXPECT_FALSE(BodyBytesOf(0));
  EXPECT_FALSE(BodyBytesOf(4096));
  EXPECT_FALSE(BodyBytesOf(8192 + 1));
  EXPECT_FALSE(BodyBytesOf(uint64_t{1} << 33));
  const uint64_t longest = *BodyBytesOf((uint64_t{1} << 32) - 4096);
  EXPECT_EQ(LayoutOf(longest).record_bytes(), (uint64_t{1} << 32) - 4096);
}

TEST(Opaque, TheLastPageSaysHowMuchOfItIsTheBlocks) {
  LastPage page;
  for (uint64_t count = 0; count < page.size(); ++count) {
    for (const std::byte filler : {std::byte{0}, std::byte{0x80}, std::byte{0xFF}}) {
      page.fill(std::byte{0x55});  // of the block before
      const std::vector<std::byte> rest(count, filler);
      EncodeLastPage(rest, page);
      ASSERT_EQ(RestOf(page), count);
      ASSERT_TRUE(std::ranges::equal(rest, std::span(page).first(count)));
    }
  }
  page.fill(std::byte{0});
  EXPECT_EQ(RestOf(page), std::nullopt);
  page.back() = std::byte{1};
  EXPECT_EQ(RestOf(page), std::nullopt);
}

TEST(Opaque, NamespacesKeysAndEpochsAreApart) {
  std::set<Digest> keys;
  for (const auto& [name_space, key] : std::vector<std::pair<std::string_view, std::string_view>>{
           {"", ""}, {"", "a"}, {"a", ""}, {"a", "b"}, {"ab", ""}, {"", "ab"}, {"b", "a"}}) {
    keys.insert(IdentityOf(name_space, 0, key).key);
    keys.insert(IdentityOf(name_space, 1, key).key);
  }
  EXPECT_EQ(keys.size(), 14);
  EXPECT_EQ(PublisherOf(""), tier::PublisherId{});
  EXPECT_NE(PublisherOf("a"), PublisherOf("b"));
  // A namespace is never the domain of that name.
  EXPECT_NE(PublisherOf("a"), tier::PublisherOf("a"));
}

// What is on disks: changing any of it loses every store there is.
TEST(Opaque, TheIdentityIsFrozen) {
  const tier::RecordIdentity identity = IdentityOf("model", 2, "key");
  EXPECT_EQ(ToHex(identity.key),
            "baccac68afb7d33355e7b7ff26b1189226fae7b6492f436286073c72a40d080d");
  EXPECT_EQ(ToHex(identity.profile),
            "f5aa38dcdda8b22c3cf11525d5a80f6b2ac37f26d419f91509ab46728eaac5bb");
  EXPECT_EQ(ToHex(identity.publisher), "c44d26d4e6492dd26b9a89944ac92cc6");
  EXPECT_EQ(identity.parent, Digest{});
  EXPECT_EQ(identity.geometry, Digest{});
  EXPECT_EQ(identity.block_index, 0);
  EXPECT_EQ(identity.erase_epoch, 2);
}

}  // namespace
}  // namespace quire::store
