#include "base/hash.h"

#include <gtest/gtest.h>

#include <rapidcheck/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

namespace quire {
namespace {

std::span<const std::byte> Bytes(std::string_view text) { return std::as_bytes(std::span(text)); }

TEST(Blake2b, KnownAnswers) {
  Blake2b<64> rfc7693;  // RFC 7693, appendix A
  rfc7693.Update("abc");
  EXPECT_EQ(ToHex(rfc7693.Finish()),
            "ba80a53f981c4d0d6a2797b69f12f6e94c212f14685ac4b74b12bb6fdbffa2d1"
            "7d87c5392aab792dc252d5de4533cc9518d38aa8dbf1925ab92386edd4009923");

  Blake2b<32> plain;  // b2sum -l 256
  plain.Update("abc");
  EXPECT_EQ(ToHex(plain.Finish()),
            "bddd813c634239723171ef3fee98579b94964e3bb1cb3e427262c8c068d52319");

  std::array<uint8_t, 64> key;  // blake2-kat.json of the reference code: key 00..3f, empty input
  std::iota(key.begin(), key.end(), uint8_t{0});
  Blake2b<64> keyed(key);
  EXPECT_EQ(ToHex(keyed.Finish()),
            "10ebb67700b1868efb4417987acf4690ae9d972fb7a590c2f02871799aaa4786"
            "b5e996e8f0f4eb981fc214b005f42d2ff4233499391653df7aefcbc13fc51568");
}

TEST(Blake2b, KeyAndLengthMatter) {
  const std::array<uint8_t, 32> one = {1};
  const std::array<uint8_t, 32> two = {2};
  EXPECT_NE(Blake2b<32>(one).Finish(), Blake2b<32>(two).Finish());
  EXPECT_NE(Blake2b<32>(one).Finish(), Blake2b<32>().Finish());
  const auto longer = Blake2b<32>().Finish();
  EXPECT_NE(ToHex(Blake2b<16>().Finish()), ToHex(longer).substr(0, 32));
}

TEST(Blake2b, NumbersAreLittleEndianBytes) {
  Blake2b<16> number;
  number.UpdateNumber(uint32_t{0x64636261});
  Blake2b<16> text;
  text.Update("abcd");
  EXPECT_EQ(number.Finish(), text.Finish());
}

RC_GTEST_PROP(Blake2bProperty, PartsAndCopiesDoNotShow, (const std::string& text)) {
  const size_t cut = *rc::gen::inRange<size_t>(0, text.size() + 1);
  Blake2b<32> whole;
  whole.Update(text);
  Blake2b<32> parts;
  parts.Update(text.substr(0, cut));
  Blake2b<32> copy = parts;
  parts.Update(text.substr(cut));
  copy.Update(text.substr(cut));
  const auto digest = whole.Finish();
  RC_ASSERT(parts.Finish() == digest);
  RC_ASSERT(copy.Finish() == digest);
}

TEST(Crc32c, KnownAnswers) {
  EXPECT_EQ(Crc32c({}), 0u);
  EXPECT_EQ(Crc32c(Bytes("123456789")), 0xe3069283u);
  const std::vector<std::byte> zeros(32);  // RFC 3720, B.4
  EXPECT_EQ(Crc32c(zeros), 0x8a9136aau);
  const std::vector<std::byte> ones(32, std::byte{0xff});
  EXPECT_EQ(Crc32c(ones), 0x62a8ab43u);
}

// CRC32C by its definition, one bit at a time.
uint32_t SlowCrc32c(std::span<const std::byte> bytes) {
  uint32_t crc = 0xffffffff;
  for (const std::byte byte : bytes) {
    crc ^= static_cast<uint32_t>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82f63b78 : 0);
  }
  return ~crc;
}

RC_GTEST_PROP(Crc32cProperty, EqualsTheDefinitionInAnyParts, (const std::string& text)) {
  const size_t cut = *rc::gen::inRange<size_t>(0, text.size() + 1);
  const auto bytes = Bytes(text);
  RC_ASSERT(Crc32c(bytes) == SlowCrc32c(bytes));
  RC_ASSERT(Crc32c(bytes.subspan(cut), Crc32c(bytes.first(cut))) == Crc32c(bytes));
}

RC_GTEST_PROP(Crc32cProperty, JoinsStretches, (const std::vector<std::string>& parts)) {
  Crc32cJoiner joiner;
  std::string all;
  for (const std::string& part : parts) {
    joiner.Add(Crc32c(Bytes(part)), part.size());
    all += part;
    RC_ASSERT(joiner.value() == Crc32c(Bytes(all)));
  }
}

TEST(Crc32c, JoinsStretchesOfAnyLength) {
  const std::vector<std::byte> bytes(100'000, std::byte{0x5a});
  const auto all = std::span<const std::byte>(bytes);
  Crc32cJoiner joiner;
  size_t done = 0;
  for (const size_t length : {0, 1, 32'768, 32'768, 0, 4'095, 30'368}) {
    joiner.Add(Crc32c(all.subspan(done, length)), length);
    done += length;
    EXPECT_EQ(joiner.value(), Crc32c(all.first(done))) << done;
  }
  EXPECT_EQ(done, bytes.size());
}

TEST(Crc32c, EveryLengthAndAlignment) {
  std::vector<std::byte> buffer(600);
  for (size_t i = 0; i < buffer.size(); ++i) buffer[i] = static_cast<std::byte>(i * 131 + 7);
  for (size_t offset = 0; offset < 16; ++offset) {
    for (size_t length = 0; length <= 560; length += 7) {
      const auto part = std::span<const std::byte>(buffer).subspan(offset, length);
      ASSERT_EQ(Crc32c(part), SlowCrc32c(part)) << "offset " << offset << " length " << length;
    }
  }
}

TEST(ToHex, TwoDigitsPerByte) {
  const std::array<uint8_t, 3> bytes = {0x00, 0x0f, 0xa5};
  EXPECT_EQ(ToHex(bytes), "000fa5");
}

}  // namespace
}  // namespace quire
