// Session files: what is written is what is read, and nothing else is a session.
#include "serve/session_record.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "base/hash.h"
#include "serve/adapters.h"

namespace quire::serve {
namespace {

SessionRecord Some() {
  model::Sampler sampler(
      {.temperature = 0.75f, .seed = 9, .top_k = 40, .top_p = 0.5f, .min_p = 0.25f});
  sampler.Next(std::vector<float>{1, 2, 3});
  return {.head = {.name = "sess_1",
                   .tenant = "alice",
                   .fingerprint = FingerprintOf({.position_encoding = "rope"}, "{}"),
                   .opened_unix_us = 5,
                   .used_unix_us = 7},
          .sampler = sampler.state(),
          .text = {1, 2, 3, 500'000}};
}

TEST(SessionRecordTest, ComesBackAsItWas) {
  const SessionRecord written = Some();
  const auto bytes = EncodeSession(written);
  const SessionRecord read = DecodeSession(bytes).value();
  EXPECT_EQ(read.head.name, "sess_1");
  EXPECT_EQ(read.head.tenant, "alice");
  EXPECT_EQ(read.head.fingerprint, written.head.fingerprint);
  EXPECT_EQ(read.head.tokens, 4u);
  EXPECT_EQ(read.head.opened_unix_us, 5u);
  EXPECT_EQ(read.head.used_unix_us, 7u);
  EXPECT_EQ(read.text, written.text);
  EXPECT_EQ(read.sampler.prng, written.sampler.prng);
  EXPECT_EQ(read.sampler.options.temperature, 0.75f);
  EXPECT_EQ(read.sampler.options.seed, 9u);
  EXPECT_EQ(read.sampler.options.top_k, 40u);
  EXPECT_EQ(read.sampler.options.top_p, 0.5f);
  EXPECT_EQ(read.sampler.options.min_p, 0.25f);
  const auto head = DecodeSessionHead(
      std::span(bytes).first(std::min<size_t>(bytes.size(), kSessionHeadBytesMax)), bytes.size());
  EXPECT_EQ(head.value().tokens, 4u);
}

TEST(SessionRecordTest, AnAdapterMakesItFormatThree) {
  SessionRecord written = Some();
  const auto format = [](const std::vector<std::byte>& bytes) {
    return std::to_integer<int>(bytes[8]);
  };
  EXPECT_EQ(format(EncodeSession(written)), 2);  // as before there were adapters
  written.head.adapter = "org/one";
  written.head.adapter_digest = {7};
  const auto bytes = EncodeSession(written);
  EXPECT_EQ(format(bytes), 3);
  const SessionRecord read = DecodeSession(bytes).value();
  EXPECT_EQ(read.head.adapter, "org/one");
  EXPECT_EQ(read.head.adapter_digest, written.head.adapter_digest);
  EXPECT_EQ(read.head.tenant, "alice");
  EXPECT_EQ(read.text, written.text);
  for (size_t at = 140; at < 176; ++at) {  // the length of its name, and its digest
    auto damaged = bytes;
    damaged[at] ^= std::byte{1};
    EXPECT_FALSE(DecodeSession(damaged).has_value()) << at;
  }
}

TEST(SessionRecordTest, TheLongestNamesAndNoTextComeBack) {
  SessionRecord written = Some();
  written.head.name = std::string(kSessionNameBytesMax, 'n');
  written.head.tenant = std::string(kSessionTenantBytesMax, 't');
  written.head.adapter = std::string(kAdapterNameBytesMax, 'a');
  written.text.clear();
  const auto bytes = EncodeSession(written);
  EXPECT_EQ(bytes.size(), kSessionHeadBytesMax);
  const SessionRecord read = DecodeSession(bytes).value();
  EXPECT_EQ(read.head.name, written.head.name);
  EXPECT_EQ(read.head.tenant, written.head.tenant);
  EXPECT_EQ(read.head.adapter, written.head.adapter);
  EXPECT_TRUE(read.text.empty());
}

// Files outlive the program that wrote them.
TEST(SessionRecordTest, TheFormatIsFrozen) {
  EXPECT_EQ(kSessionHeadBytesMax, 176u + 64 + 256 + 64);
  SessionRecord record = Some();
  record.sampler.prng = {1, 2, 3, 4};
  EXPECT_EQ(Crc32c(EncodeSession(record)), 0x486869cfu);
  EXPECT_EQ(Crc32c(std::as_bytes(std::span(record.head.fingerprint))), 0x42c9dadfu);
}

// It ended before min_p.
TEST(SessionRecordTest, TheFirstFormatIsRead) {
  SessionRecord record = Some();
  record.sampler.prng = {1, 2, 3, 4};
  auto bytes = EncodeSession(record);
  bytes.erase(bytes.begin() + 136, bytes.begin() + 144);
  bytes[8] = std::byte{1};
  std::fill_n(bytes.begin() + 12, 4, std::byte{0});
  const uint32_t head_crc = Crc32c(std::span(bytes).first(136 + 11));
  std::memcpy(bytes.data() + 12, &head_crc, 4);
  EXPECT_EQ(Crc32c(bytes), 0x37a6f93cu) << "what was written then";
  const SessionRecord read = DecodeSession(bytes).value();
  EXPECT_EQ(read.head.name, "sess_1");
  EXPECT_EQ(read.head.tenant, "alice");
  EXPECT_EQ(read.text, record.text);
  EXPECT_EQ(read.sampler.options.top_p, 0.5f);
  EXPECT_EQ(read.sampler.options.min_p, 0.0f);
  EXPECT_EQ(DecodeSessionHead(std::span(bytes).first(136 + 11), bytes.size()).value().tokens, 4u);
}

TEST(SessionRecordTest, AnyDamageIsRefused) {
  const auto bytes = EncodeSession(Some());
  for (size_t at = 0; at < bytes.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      auto flipped = bytes;
      flipped[at] ^= std::byte{1} << bit;
      ASSERT_FALSE(DecodeSession(flipped).has_value()) << at << " " << bit;
    }
    const auto cut = DecodeSession(std::span(bytes).first(at));
    ASSERT_FALSE(cut.has_value()) << at;
    const bool has_header = at >= 144;
    EXPECT_EQ(cut.error().message.ends_with("bytes are no session"), !has_header) << at;
    EXPECT_EQ(cut.error().message == "it ends within its names", has_header && at < 144 + 11) << at;
    auto zeroed = bytes;
    std::fill(zeroed.begin() + static_cast<ptrdiff_t>(at), zeroed.end(), std::byte{0});
    ASSERT_TRUE(!DecodeSession(zeroed) || zeroed == bytes) << at;
  }
  auto longer = bytes;
  longer.push_back({});
  EXPECT_EQ(DecodeSession(longer).error().code, ErrorCode::kCorrupt);
}

TEST(SessionRecordTest, LengthsFromAFileAreChecked) {
  // All fields of 4 and 8 bytes at their largest, one after the other.
  const auto bytes = EncodeSession(Some());
  for (size_t at = 8; at + 8 <= 144; at += 4) {
    auto large = bytes;
    std::fill_n(large.begin() + static_cast<ptrdiff_t>(at), 8, std::byte{0xff});
    EXPECT_FALSE(DecodeSession(large).has_value()) << at;
    EXPECT_FALSE(DecodeSessionHead(std::span(large).first(148), large.size()).has_value()) << at;
  }
}

TEST(SessionRecordTest, ANewerVersionIsSaidToBeOne) {
  auto bytes = EncodeSession(Some());
  bytes[8] = std::byte{4};
  EXPECT_EQ(DecodeSession(bytes).error().code, ErrorCode::kUnsupported);
}

TEST(SessionRecordTest, NamesAreFileNames) {
  for (const char* const good : {"a", "sess_0123456789abcdef", "A-b_9", "azAZ09_-"}) {
    EXPECT_TRUE(IsSessionName(good)) << good;
  }
  for (const char* const bad :
       {"", ".", "..", "a/b", "a.b", "a b", "\n", "é", "`", "{", "@", "[", "/", ":"}) {
    EXPECT_FALSE(IsSessionName(bad)) << bad;
  }
  EXPECT_TRUE(IsSessionName(std::string(64, 'x')));
  EXPECT_FALSE(IsSessionName(std::string(65, 'x')));
}

TEST(SessionRecordTest, AnotherModelOrTokenizerHasAnotherFingerprint) {
  const Identity identity{.position_encoding = "rope"};
  Identity other = identity;
  other.weights[0] = 1;
  EXPECT_NE(FingerprintOf(identity, "{}"), FingerprintOf(other, "{}"));
  EXPECT_NE(FingerprintOf(identity, "{}"), FingerprintOf(identity, "{ }"));
  EXPECT_NE(FingerprintOf(identity, "{}"), FingerprintOf({}, "{}"));
  EXPECT_NE(FingerprintOf({.position_encoding = "a"}, "b"),
            FingerprintOf({.position_encoding = "ab"}, ""));
  EXPECT_EQ(FingerprintOf(identity, "{}"), FingerprintOf(identity, "{}"));
}

}  // namespace
}  // namespace quire::serve
