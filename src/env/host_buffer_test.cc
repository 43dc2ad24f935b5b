// Memory for a device: pinned where possible, else ordinary memory.
#include "env/host_buffer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "env/pinned_memory.h"

namespace quire {
namespace {

TEST(HostBuffer, IsPinnedAndGivenBack) {
  PinnedMemory pinned;
  {
    HostBuffer buffer(pinned, 10'000, "a test");
    EXPECT_TRUE(buffer.pinned());
    ASSERT_EQ(buffer.bytes().size(), 10'000u);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.bytes().data()) % 4096, 0u);
    std::ranges::fill(buffer.bytes(), std::byte{1});
    EXPECT_EQ(pinned.bytes_out, 10'000u);
    HostBuffer moved = std::move(buffer);
    EXPECT_TRUE(buffer.bytes().empty());  // NOLINT(bugprone-use-after-move)
    EXPECT_EQ(moved.bytes()[9'999], std::byte{1});
    EXPECT_EQ(pinned.bytes_out, 10'000u);
  }
  EXPECT_EQ(pinned.bytes_out, 0u);
}

TEST(HostBuffer, IsOrdinaryMemoryWhereNoneCanBePinned) {
  PinnedMemory pinned;
  pinned.empty = true;
  testing::internal::CaptureStderr();
  {
    const HostBuffer buffer(pinned, 10'000, "a test");
    EXPECT_FALSE(buffer.pinned());
    EXPECT_EQ(buffer.bytes().size(), 10'000u);
    EXPECT_EQ(buffer.bytes()[9'999], std::byte{0});
  }
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("a test: test: cannot pin 10000 bytes; ordinary memory is used"),
            std::string::npos)
      << said;
  EXPECT_EQ(std::ranges::count(said, '\n'), 1);
  EXPECT_EQ(pinned.asked, 1u);
}

TEST(HostBuffer, OrdinaryMemoryRefusesMoreThanAnyMachineHas) {
  const auto refused = PlainHostAllocator().Allocate(uint64_t{1} << 60);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kNoSpace);
  EXPECT_THROW(HostBuffer(PlainHostAllocator(), uint64_t{1} << 60, "a test"), std::bad_alloc);
}

}  // namespace
}  // namespace quire
