// The device on which the suites run again faults where it must, and is late where it may be.
#include "cache/test_device.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <span>
#include <vector>

#include "base/hash.h"
#include "cache/core.h"
#include "cache/test_util.h"

namespace quire::cache {
namespace {

constexpr uint64_t kPageBytes = 4096;

TEST(ProtectedMemory, FaultsWhenTheHostTouchesIt) {
  ProtectedMemory memory;
  std::byte* const base = memory.Reserve(2 * kPageBytes).value();
  ASSERT_TRUE(memory.Commit(base, kPageBytes).has_value());
  volatile std::byte* const touched = base;
  EXPECT_DEATH(touched[0] = std::byte{1}, "");
  EXPECT_DEATH(static_cast<void>(std::byte{touched[0]}), "");
  *memory.Window(base) = std::byte{7};
  volatile std::byte* const beyond = memory.Window(base) + kPageBytes;
  EXPECT_DEATH(beyond[0] = std::byte{1}, "") << "not committed: no operation may go there";
  EXPECT_EQ(memory.Find(base + 2 * kPageBytes), nullptr);
  memory.Discard(base, kPageBytes);
  EXPECT_EQ(*memory.Window(base), std::byte{0});
  memory.Decommit(base, kPageBytes);
  EXPECT_DEATH(*memory.Window(base) = std::byte{1}, "");
  memory.Release(base, 2 * kPageBytes);
}

TEST(DelayedOps, AreLateAndInOrder) {
  ProtectedMemory memory;
  DelayedOps ops(memory, 1);
  std::byte* const base = memory.Reserve(2 * kPageBytes).value();
  ASSERT_TRUE(memory.Commit(base, 2 * kPageBytes).has_value());
  *memory.Window(base) = std::byte{7};
  const SlotPieces page{.count = 1, .bytes = kPageBytes};
  std::array<uint32_t, 40> crcs{};
  uint64_t late = 0;
  for (uint32_t i = 0; i < crcs.size(); i += 2) {  // the byte moves forth and back
    std::byte* const from = base + i / 2 % 2 * kPageBytes;
    std::byte* const to = base + (i / 2 + 1) % 2 * kPageBytes;
    ops.Copy(from, to, page);
    ops.Zero(from, page);
    ops.Checksum(to, page, &crcs[i]);
    ops.Checksum(from, page, &crcs[i + 1]);
    late += ops.streams().enqueued_total() - ops.streams().done_total();
  }
  EXPECT_GT(late, 20u);
  const auto fence = ops.Record();
  uint64_t polls = 0;
  while (!fence->IsDone()) ++polls;
  EXPECT_GT(polls, 0u);
  EXPECT_EQ(ops.streams().done_total(), ops.streams().enqueued_total());
  std::vector<std::byte> bytes(kPageBytes);
  const uint32_t crc_of_zeros = Crc32c(bytes);
  bytes[0] = std::byte{7};
  const uint32_t crc_of_byte = Crc32c(bytes);
  for (uint32_t i = 0; i < crcs.size(); ++i) {
    EXPECT_EQ(crcs[i], i % 2 == 0 ? crc_of_byte : crc_of_zeros) << i;
  }
  memory.Release(base, 2 * kPageBytes);
}

// The suites get the device that the environment asks for.
TEST(TestDevice, HasTheCachesOfThisRunIfAskedFor) {
  const bool asked = std::getenv("QUIRE_TEST_DEVICE") != nullptr;
  EXPECT_EQ(OnTestDevice({}).memory != nullptr, asked);
  TestCache cache(8);
  const uint64_t before = asked ? DeviceOfTests()->ops.streams().enqueued_total() : 0;
  const auto tokens = SomeTokens(2 * kBlock, 1);
  const auto sequence = cache.Run(tokens);
  EXPECT_EQ(cache.model.Differs(*sequence, tokens), "");
  if (!asked) return;
  // Rows of K and V of two layers, checksums of two blocks, and what was read back.
  EXPECT_EQ(DeviceOfTests()->ops.streams().enqueued_total() - before, 8u + 2 + 8);
  const BlockListView view = Must(sequence->View(0, StreamRole::kKey));
  volatile const std::byte* const touched = view.slots()[0];
  EXPECT_DEATH(static_cast<void>(std::byte{touched[0]}), "");
}

TEST(TestDevice, MemoryWithoutOperationsThatReachItIsRefused) {
  TestDevice device;
  CacheOptions options{.geometry = SmallGeometry(),
                       .profile = NumericProfile::Uniform(Codec::kF16),
                       .hot_bytes = 1 << 20,
                       .memory = &device.memory};
  const auto refused = Cache::Create(options);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(refused.error().message.find("protected"), std::string::npos);
  options.ops = &device.ops;
  EXPECT_TRUE(Cache::Create(options).has_value());
  options.huge_pages = true;
  EXPECT_EQ(Cache::Create(options).error().code, ErrorCode::kInvalidArgument);
}

// Slots of several pieces share pages: those beyond a shrunken end go with their bytes also where
// the page stays for others.
TEST(TestDevice, NothingIsLeftBeyondAShrunkenEnd) {
  TestDevice device;
  const FakeModel model(SmallGeometry());
  const NumericProfile profile = NumericProfile::Uniform(Codec::kF32);
  CacheOptions options{.geometry = model.geometry(),
                       .profile = profile,
                       .layout = ArenaLayout::kLayerMajor,
                       .hot_bytes = 1 << 20,
                       .memory = &device.memory,
                       .ops = &device.ops};
  const auto core = Must(Core::Make(options));
  const Identity identity = SomeIdentity();
  const auto tokens = SomeTokens(20 * kBlock, 1);
  auto sequence = Must(core->Open(Must(core->Acquire({.identity = &identity, .tokens = tokens})),
                                  {.publish = false}));
  Must(model.Feed(*sequence, tokens));
  const uint64_t charge_bytes = SlotCharges(core->stats()) / 20;
  sequence.reset();
  const auto is_zero = [&](uint32_t slot) {
    device.ops.streams().RunAll();
    const std::span bytes(device.memory.Window(core->state().slots().data(SlotId(slot))), 512);
    return std::ranges::all_of(bytes, [](std::byte byte) { return byte == std::byte{0}; });
  };
  ASSERT_FALSE(is_zero(5));
  ASSERT_FALSE(is_zero(19));
  Must(core->Resize(5 * charge_bytes + charge_bytes / 2));
  ASSERT_EQ(core->stats().sealed.slots_max, 5u);
  Must(core->Resize(1 << 20));
  EXPECT_FALSE(is_zero(4)) << "it stayed, with its writer";
  for (uint32_t slot = 5; slot < 20; ++slot) EXPECT_TRUE(is_zero(slot)) << slot;
}

// The bits do not depend on where blocks lie: a cache on each, fed the same, has the same checksums
// and reads back the same values.
TEST(TestDevice, BlocksHaveTheSameBytesAsOnTheHost) {
  const auto tokens = SomeTokens(3 * kBlock + 5, 1);
  for (const Codec codec : {Codec::kF16, Codec::kInt8, Codec::kNf4, Codec::kQ25}) {
    NumericProfile profile = NumericProfile::Uniform(Codec::kF16);
    for (CodecRule& rule : profile.codecs) rule.codec = codec;
    const FakeModel model(Geometry::Uniform(2, 2, 32));
    TestDevice device;
    const Identity identity = SomeIdentity();
    std::vector<std::vector<float>> read;
    for (const bool on_device : {false, true}) {
      CacheOptions options{.geometry = model.geometry(), .profile = profile, .hot_bytes = 1 << 20};
      if (on_device) {
        options.memory = &device.memory;
        options.ops = &device.ops;
      }
      const auto cache = Must(Cache::Create(options));
      const auto sequence =
          Must(cache->Open(Must(cache->Acquire({.identity = &identity, .tokens = tokens})), {}));
      Must(model.Feed(*sequence, tokens));
      for (const StreamRole role : {StreamRole::kKey, StreamRole::kValue}) {
        std::vector<float>& out = read.emplace_back(tokens.size() * 2 * 32);
        Must(sequence->Gather(1, role, 0, tokens.size(), out));
      }
      EXPECT_EQ(cache->Verify().damaged, 0u);
    }
    EXPECT_EQ(read[0], read[2]) << CodecName(codec);
    EXPECT_EQ(read[1], read[3]) << CodecName(codec);
  }
}

}  // namespace
}  // namespace quire::cache
