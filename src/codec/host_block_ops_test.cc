// The host's operations: pieces and nothing between them, rows as the codec's functions write them.
#include <gtest/gtest.h>

#include <vector>

#include "base/hash.h"
#include "codec/slot_layout.h"
#include "codec/streams.h"
#include "quire/block_ops.h"

namespace quire {
namespace {

constexpr SlotPieces kPieces{.count = 3, .bytes = 40, .stride_bytes = 100};

std::vector<std::byte> SomeBytes() {
  std::vector<std::byte> bytes(300);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i % 251 + 1);
  return bytes;
}

bool IsInPiece(size_t i) { return i % 100 < 40; }

TEST(HostBlockOps, ZeroesAndCopiesPiecesAndNothingElse) {
  const std::vector<std::byte> from = SomeBytes();
  std::vector<std::byte> to(300, std::byte{255});
  HostBlockOps().Copy(from.data(), to.data(), kPieces);
  for (size_t i = 0; i < to.size(); ++i) {
    EXPECT_EQ(to[i], IsInPiece(i) ? from[i] : std::byte{255}) << i;
  }
  HostBlockOps().Zero(to.data(), kPieces);
  for (size_t i = 0; i < to.size(); ++i) {
    EXPECT_EQ(to[i], IsInPiece(i) ? std::byte{0} : std::byte{255}) << i;
  }
}

TEST(HostBlockOps, CopiesPiecesOutOneAfterTheOtherAndBack) {
  const std::vector<std::byte> slot = SomeBytes();
  std::vector<std::byte> host(3 * 40 + 1, std::byte{255});
  HostBlockOps().CopyOut(slot.data(), kPieces, host.data());
  for (size_t i = 0; i < 3 * 40; ++i) EXPECT_EQ(host[i], slot[i / 40 * 100 + i % 40]) << i;
  EXPECT_EQ(host.back(), std::byte{255});
  std::vector<std::byte> back(300, std::byte{255});
  HostBlockOps().CopyIn(host.data(), kPieces, back.data());
  for (size_t i = 0; i < back.size(); ++i) {
    EXPECT_EQ(back[i], IsInPiece(i) ? slot[i] : std::byte{255}) << i;
  }
}

// The checksums are those of the bytes in the slot, so that a change on the way is noticed.
TEST(HostBlockOps, CopiesSectionsToWhereTheyBelongWithTheirChecksums) {
  const std::vector<std::byte> slot = SomeBytes();
  std::vector<std::byte> host(400, std::byte{255});
  std::vector<uint32_t> crcs(2);
  const SlotSection sections[] = {{.host = &host[250], .bytes = 100, .crc = &crcs[0]},
                                  {.host = &host[10], .bytes = 70},
                                  {.host = &host[80], .bytes = 130, .crc = &crcs[1]}};
  HostBlockOps().CopyOut(slot.data(), {.bytes = 300}, sections);
  for (size_t i = 0; i < 300; ++i) {
    EXPECT_EQ(host[i < 100 ? 250 + i : i - 90], slot[i]) << i;
  }
  EXPECT_EQ(crcs[0], Crc32c(std::span(slot).first(100)));
  EXPECT_EQ(crcs[1], Crc32c(std::span(slot).subspan(170)));
  std::vector<std::byte> back(300);
  host[260] = std::byte{0};
  HostBlockOps().CopyIn(sections, {.bytes = 300}, back.data());
  EXPECT_EQ(back[10], std::byte{0});
  back[10] = slot[10];
  EXPECT_EQ(back, slot);
  EXPECT_NE(crcs[0], Crc32c(std::span(slot).first(100)));
  EXPECT_EQ(crcs[1], Crc32c(std::span(slot).subspan(170)));
  const SlotSection all = {.host = host.data(), .bytes = 120, .crc = &crcs[0]};
  HostBlockOps().CopyOut(slot.data(), kPieces, {&all, 1});
  EXPECT_EQ(crcs[0], Crc32c(std::span(host).first(120)));
}

TEST(HostBlockOps, ChecksumsPiecesOneAfterTheOther) {
  const std::vector<std::byte> bytes = SomeBytes();
  std::vector<std::byte> joined;
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (IsInPiece(i)) joined.push_back(bytes[i]);
  }
  uint32_t crc = 0;
  HostBlockOps().Checksum(bytes.data(), kPieces, &crc);
  EXPECT_EQ(crc, Crc32c(joined));
  EXPECT_NE(crc, 0u);
}

TEST(HostBlockOps, WritesSealsAndReadsRowsBackAtOnce) {
  const Geometry geometry = Geometry::Uniform(/*layers=*/1, /*kv_heads=*/2, /*head_dim=*/32);
  NumericProfile profile = NumericProfile::Uniform(Codec::kF32);
  for (CodecRule& rule : profile.codecs) rule.codec = Codec::kInt8;
  const auto sealed =
      codec::SlotLayout::Create(geometry, profile, ArenaLayout::kBlockMajor).value();
  const auto open = codec::SlotLayout::CreateOpen(geometry, profile).value();
  const uint32_t tokens = sealed.block_tokens();
  std::vector<float> rows(uint64_t{tokens} * 2 * 32);  // [token][head][dim]
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<float>(i % 255) - 127.0f;
  const RowsView view{
      .data = rows.data(), .dtype = Codec::kF32, .token_stride = 64, .head_stride = 32};
  struct Slots {
    std::vector<std::byte> open;
    std::vector<std::byte> sealed;
    std::vector<float> read;  // [head][token][dim]
  };
  const Slots empty{.open = std::vector<std::byte>(open.slot_bytes(0)),
                    .sealed = std::vector<std::byte>(sealed.slot_bytes(0)),
                    .read = std::vector<float>(uint64_t{2} * 3 * 32)};
  Slots want = empty;
  codec::WriteRows(open.value(0), view, 0, tokens, 0, want.open.data());
  codec::EncodeBlock(open.value(0), want.open.data(), sealed.value(0), want.sealed.data());
  codec::ReadRows(sealed.value(0), want.sealed.data(), 4, 3, want.read.data(), 3 * 32);
  Slots got = empty;
  BlockOps& ops = HostBlockOps();
  ops.WriteRows(open.value(0), view, 0, {.begin = 0, .count = 5}, got.open.data());
  ops.WriteRows(open.value(0), view, 5, {.begin = 5, .count = tokens - 5}, got.open.data());
  ops.Encode(open.value(0), got.open.data(), sealed.value(0), got.sealed.data());
  ops.ReadRows(sealed.value(0), got.sealed.data(), {.begin = 4, .count = 3}, got.read.data(),
               3 * 32);
  EXPECT_EQ(ops.Record(), nullptr) << "done already";
  EXPECT_EQ(got.open, want.open);
  EXPECT_EQ(got.sealed, want.sealed);
  EXPECT_EQ(got.read, want.read);
  EXPECT_NE(want.sealed, empty.sealed);
  EXPECT_NE(want.read, empty.read);
}

}  // namespace
}  // namespace quire
