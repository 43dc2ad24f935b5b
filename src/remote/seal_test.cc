#include "remote/seal.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <thread>

#include "base/prng.h"
#include "remote/epochs.h"
#include "remote/test_fleet.h"

namespace quire::remote {
namespace {

using tier::RecordLayout;
using tier::TestLayout;
using tier::TestRecord;

/// Where sections [first, first + count) of a record are opened.
struct Opened {
  Opened(const RecordLayout& layout, size_t first, size_t count) : memory(count), crcs(count) {
    for (size_t i = 0; i < count; ++i) {
      memory[i].resize(layout.sections()[first + i].bytes);
      sections.emplace_back(memory[i]);
    }
  }

  std::vector<std::vector<std::byte>> memory;
  std::vector<std::span<std::byte>> sections{};
  std::vector<uint32_t> crcs;
};

tier::LoadRequest LoadOf(const tier::RecordIdentity& identity, const RecordLayout& layout,
                         uint32_t first, Opened& to) {
  return {.identity = identity,
          .layout = &layout,
          .section_first = first,
          .section_count = static_cast<uint32_t>(to.sections.size()),
          .out = to.sections,
          .crcs = to.crcs};
}

class SealTest : public testing::Test {
 protected:
  std::vector<std::byte> Closed(const TestRecord& record) const {
    return seal_.Close(record.identity(), record.layout(), record.sections());
  }
  static bool Opens(const Seal& seal, const tier::RecordIdentity& identity,
                    const RecordLayout& layout, std::vector<std::byte> object) {
    Opened out(layout, 0, layout.sections().size());
    SealedReader reader(seal, LoadOf(identity, layout, 0, out));
    reader.TakeObject(object);
    return reader.is_whole();
  }
  bool Opens(const tier::RecordIdentity& identity, std::vector<std::byte> object) const {
    return Opens(seal_, identity, layout_, std::move(object));
  }

  const RecordLayout layout_ = TestLayout(16, 3, 1000);
  const FleetKeys keys_{TestFleetKey()};
  const Seal seal_{keys_, Incarnation{1}};
  const TestRecord record_{1, layout_, "tenant", 2};
};

TEST_F(SealTest, WhatWasClosedOpens) {
  std::vector<std::byte> object = Closed(record_);
  EXPECT_EQ(object.size(), Seal::ObjectBytes(layout_));
  EXPECT_TRUE(Opens(record_.identity(), object));
  // Sections in the middle open alone, and are what was closed.
  const SealedRange range = Seal::RangeOf(layout_, 2, 2);
  const std::span<const std::byte> part = std::span(object).subspan(range.offset, range.bytes);
  const auto head = std::span(object).first(kSealedHeadBytes);
  Opened out(layout_, 2, 2);
  SealedReader reader(seal_, LoadOf(record_.identity(), layout_, 2, out));
  reader.TakeHead(head);
  EXPECT_FALSE(reader.is_whole());
  reader.Take(part);
  ASSERT_TRUE(reader.is_whole());
  reader.End(/*keeps=*/true);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_TRUE(std::ranges::equal(record_.sections()[2 + i], out.sections[i]));
    EXPECT_EQ(out.crcs[i], Crc32c(record_.sections()[2 + i]));
  }
  SealedReader others(seal_, LoadOf(record_.identity(), layout_, 1, out));
  others.TakeHead(head);
  others.Take(part);
  EXPECT_FALSE(others.is_whole()) << "others in their place";
  std::vector<std::byte> no_magic(head.begin(), head.end());
  no_magic[0] ^= std::byte{1};
  SealedReader other(seal_, LoadOf(record_.identity(), layout_, 2, out));
  other.TakeHead(no_magic);
  other.Take(part);
  EXPECT_FALSE(other.is_whole()) << "no head of ours";
  EXPECT_NE(Closed(record_), object) << "the same record twice under one key";
}

TEST_F(SealTest, OpensInAnyPiecesAndOrderOfTheHead) {
  const std::vector<std::byte> object = Closed(record_);
  const auto all = std::span<const std::byte>(object);
  const auto sections = all.subspan(kSealedHeadBytes);
  const auto in_pieces = [](std::span<const std::byte> bytes, size_t piece, auto take) {
    for (size_t at = 0; at < bytes.size(); at += piece) {
      take(bytes.subspan(at, std::min(piece, bytes.size() - at)));
    }
  };
  for (const size_t piece : {size_t{1}, size_t{15}, size_t{97}, size_t{1000}}) {
    for (const bool head_last : {false, true}) {
      Opened out(layout_, 0, layout_.sections().size());
      SealedReader reader(seal_, LoadOf(record_.identity(), layout_, 0, out));
      if (head_last) {
        in_pieces(sections, piece, [&](auto bytes) { reader.Take(bytes); });
        in_pieces(all.first(kSealedHeadBytes), piece, [&](auto bytes) { reader.TakeHead(bytes); });
      } else {
        in_pieces(all, piece, [&](auto bytes) { reader.TakeObject(bytes); });
      }
      EXPECT_TRUE(reader.is_whole()) << piece;
      EXPECT_EQ(reader.received(), object.size());
      EXPECT_EQ(out.crcs[1], Crc32c(record_.sections()[1]));
      reader.TakeObject(all.first(1));
      EXPECT_FALSE(reader.is_whole()) << "longer than it can be";
    }
  }
}

TEST_F(SealTest, WhatComesAfterItsEndTouchesNothing) {
  const std::vector<std::byte> object = Closed(record_);
  for (int i = 0; i < 50; ++i) {
    Opened out(layout_, 0, layout_.sections().size());
    SealedReader reader(seal_, LoadOf(record_.identity(), layout_, 0, out));
    std::atomic<bool> half_came = false;
    std::thread service([&] {
      for (size_t at = 0; at < object.size(); at += 100) {
        reader.TakeObject(std::span(object).subspan(at, std::min<size_t>(100, object.size() - at)));
        half_came = at >= object.size() / 2;
      }
    });
    while (!half_came) std::this_thread::yield();
    reader.End(/*keeps=*/false);
    const auto is_zero = [](std::byte byte) { return byte == std::byte{0}; };
    for (const auto section : out.sections) EXPECT_TRUE(std::ranges::all_of(section, is_zero));
    service.join();
  }
}

TEST_F(SealTest, WhatIsNotKeptIsWiped) {
  const std::vector<std::byte> object = Closed(record_);
  const auto all = std::span<const std::byte>(object);
  const auto is_zero = [](std::byte byte) { return byte == std::byte{0}; };
  for (const size_t bytes : {object.size(), object.size() - 1, size_t{1500}}) {
    Opened out(layout_, 0, layout_.sections().size());
    SealedReader reader(seal_, LoadOf(record_.identity(), layout_, 0, out));
    reader.TakeObject(all.first(bytes));
    EXPECT_FALSE(std::ranges::all_of(out.sections[0], is_zero));
    reader.End(/*keeps=*/bytes < object.size());
    reader.TakeObject(all.subspan(bytes));
    for (const auto section : out.sections) EXPECT_TRUE(std::ranges::all_of(section, is_zero));
    EXPECT_EQ(reader.received(), bytes) << "after its end";
  }
}

TEST_F(SealTest, AnyChangedBitIsNoticed) {
  const std::vector<std::byte> object = Closed(record_);
  Prng prng(1);
  for (int i = 0; i < 400; ++i) {
    std::vector<std::byte> changed = object;
    // The sealed part of the head is compared by OpenHead.
    uint64_t at = prng.NextBelow(object.size());
    if (at >= 40 && at < kSealedHeadBytes) at = prng.NextBelow(40);
    changed[at] ^= std::byte{1} << prng.NextBelow(8);
    EXPECT_FALSE(Opens(record_.identity(), changed)) << at;
  }
  for (const uint64_t bytes : {uint64_t{0}, uint64_t{50}, kSealedHeadBytes, object.size() - 1}) {
    EXPECT_FALSE(Opens(record_.identity(), {object.begin(), object.begin() + bytes})) << bytes;
  }
}

TEST_F(SealTest, AnythingElseOfAnIdentityDoesNotOpen) {
  const std::vector<std::byte> object = Closed(record_);
  const auto differs = [&](auto change) {
    tier::RecordIdentity other = record_.identity();
    change(other);
    return !Opens(other, object);
  };
  EXPECT_TRUE(differs([](auto& id) { id.key[3] ^= 1; }));
  EXPECT_TRUE(differs([](auto& id) { id.parent[3] ^= 1; }));
  EXPECT_TRUE(differs([](auto& id) { id.profile[3] ^= 1; })) << "another arithmetic or revision";
  EXPECT_TRUE(differs([](auto& id) { id.geometry[3] ^= 1; }));
  EXPECT_TRUE(differs([](auto& id) { id.publisher[3] ^= 1; }));
  EXPECT_TRUE(differs([](auto& id) { ++id.erase_epoch; }));
  EXPECT_TRUE(differs([](auto& id) { ++id.block_index; }));
  std::vector<TokenId> tokens(record_.identity().tokens.begin(), record_.identity().tokens.end());
  ++tokens[5];
  EXPECT_TRUE(differs([&](auto& id) { id.tokens = tokens; }));
  auto sections = std::vector(layout_.sections().begin(), layout_.sections().end());
  sections[1].encoding = 9;
  const auto other = RecordLayout::Create(16, sections);
  EXPECT_FALSE(Opens(seal_, record_.identity(), *other, object)) << "another codec";
  EXPECT_FALSE(
      Opens(Seal(FleetKeys(TestFleetKey(8)), Incarnation{1}), record_.identity(), layout_, object));
  EXPECT_FALSE(Opens(Seal(keys_, Incarnation{2}), record_.identity(), layout_, object));
}

TEST_F(SealTest, NamesAndBytesSayNothing) {
  const std::string name = seal_.NameOf(record_.identity().key);
  EXPECT_EQ(name.size(), 64u);
  EXPECT_EQ(name.find(ToHex(record_.identity().key)), std::string::npos);
  EXPECT_NE(Seal(keys_, Incarnation{2}).NameOf(record_.identity().key), name);
  const std::vector<std::byte> object = Closed(record_);
  const auto contains = [&](std::span<const std::byte> bytes) {
    return !std::ranges::search(object, bytes).empty();
  };
  EXPECT_FALSE(contains(std::as_bytes(std::span(record_.identity().publisher))));
  EXPECT_FALSE(contains(std::as_bytes(std::span(record_.identity().key))));
  EXPECT_FALSE(contains(std::as_bytes(record_.identity().tokens.first(4))));
  EXPECT_FALSE(contains(record_.sections()[0].first(16)));
}

TEST_F(SealTest, AHeadSaysWhoseARecordIsToTheFleetAlone) {
  const std::vector<std::byte> object = Closed(record_);
  const auto head = std::span(object).first(kSealedHeadBytes);
  const std::string name = seal_.NameOf(record_.identity().key);
  const auto opened = seal_.OpenHead(name, head);
  ASSERT_TRUE(opened);
  EXPECT_EQ(*opened, (SealedHead{.publisher = record_.identity().publisher,
                                 .erase_epoch = 2,
                                 .object_bytes = object.size()}));
  EXPECT_FALSE(seal_.OpenHead("another name", head));
  EXPECT_FALSE(Seal(FleetKeys(TestFleetKey(8)), Incarnation{1}).OpenHead(name, head));
}

TEST_F(SealTest, EpochTablesOpenForTheirFleetAlone) {
  EpochTable table = EpochTable::New();
  table.Raise(tier::PublisherOf("a"), 3);
  table.Raise(tier::PublisherOf("b"), 1);
  table.Raise(tier::PublisherOf("a"), 2);
  EXPECT_EQ(table.EpochOf(tier::PublisherOf("a")), 4u) << "above what it was";
  std::vector<std::byte> sealed = CloseEpochs(keys_, table);
  EXPECT_EQ(OpenEpochs(keys_, sealed), table);
  EXPECT_FALSE(OpenEpochs(FleetKeys(TestFleetKey(8)), sealed));
  EXPECT_FALSE(OpenEpochs(keys_, std::span(sealed).first(sealed.size() - 1)));
  sealed[60] ^= std::byte{1};
  EXPECT_FALSE(OpenEpochs(keys_, sealed));
  EXPECT_FALSE(OpenEpochs(keys_, {}));
}

TEST_F(SealTest, KeyFiles) {
  const std::string path = testing::TempDir() + "/fleet_key";
  const auto read = [&](const std::string& text) {
    std::ofstream(path, std::ios::binary) << text;
    return ReadFleetKey(path);
  };
  EXPECT_EQ(read(std::string(32, '\x07')), TestFleetKey());
  std::string hex;
  for (int i = 0; i < 32; ++i) hex += "07";
  EXPECT_EQ(read(hex + "\n"), TestFleetKey());
  for (const std::string& bad : {std::string(), std::string("short"), hex + "0",
                                 std::string(64, 'g'), std::string(5000, 'a')}) {
    const auto key = read(bad);
    ASSERT_FALSE(key) << bad;
    EXPECT_NE(key.error().message.find(path), std::string::npos);
  }
  EXPECT_EQ(ReadFleetKey(path + "no").error().code, ErrorCode::kNotFound);
}

}  // namespace
}  // namespace quire::remote
