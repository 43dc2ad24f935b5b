// Bulk copies of the host's grid: which bytes land where and when, and that misuse stops the
// program.
#include "cuda/host/host_grid.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

namespace quire::cuda {
namespace {

constexpr uint32_t kBarrierAt = 32 << 10;
constexpr uint32_t kSharedBytes = kBarrierAt + 16;

using Thread = HostGrid::Thread;

uint64_t* BarrierOf(Thread& self, uint32_t which = 0) {
  return reinterpret_cast<uint64_t*>(self.shared() + kBarrierAt) + which;
}
uint16_t* NumbersOf(Thread& self) { return reinterpret_cast<uint16_t*>(self.shared()); }

/// An array of [3][2][rows][columns] numbers, each its own place in it.
class BulkCopies : public testing::Test {
 protected:
  static constexpr uint32_t kRows = 40;
  static constexpr uint32_t kColumns = 80;
  static constexpr uint64_t kRowBytes = uint64_t{kColumns} * 2;

  void SetUp() override {
    numbers_.resize(size_t{3} * 2 * kRows * kColumns);
    for (size_t i = 0; i < numbers_.size(); ++i) numbers_[i] = static_cast<uint16_t>(i + 1);
  }

  TensorMap Map(uint32_t width, uint32_t rows) const {
    return MapOnHost({.base = reinterpret_cast<const std::byte*>(numbers_.data()),
                      .counts = {kColumns, kRows, 2, 3},
                      .strides_bytes = {kRowBytes, kRows * kRowBytes, 2 * kRows * kRowBytes},
                      .box = {width, rows}});
  }
  uint16_t At(int32_t x, int32_t y, uint32_t z, uint32_t w) const {
    if (x < 0 || y < 0 || x >= int32_t{kColumns} || y >= int32_t{kRows}) return 0;
    return static_cast<uint16_t>(((w * 2 + z) * kRows + static_cast<uint32_t>(y)) * kColumns +
                                 static_cast<uint32_t>(x) + 1);
  }

  static void Ready(Thread& self) {
    if (self.id() == 0) {
      self.InitBarrier(BarrierOf(self, 0));
      self.InitBarrier(BarrierOf(self, 1));
      self.FenceBulk();
    }
    self.Sync();
  }
  static void Run(uint32_t threads, const std::function<void(Thread&)>& kernel) {
    HostGrid grid;
    grid.Run(1, threads, kSharedBytes, kernel);
  }

  std::vector<uint16_t> numbers_;
};

// Eight rows that are read at once lie in different banks, whatever the width of a box.
TEST_F(BulkCopies, LandSwizzledAndZeroOutsideTheArray) {
  for (const uint32_t width : {16u, 32u, 64u}) {
    SCOPED_TRACE(width);
    constexpr uint32_t kBoxRows = 16;
    const TensorMap map = Map(width, kBoxRows);
    for (const BoxCorner& corner :
         {BoxCorner{{0, 0, 1, 2}}, BoxCorner{{48, 32, 1, 2}}, BoxCorner{{-8, -3, 1, 2}}}) {
      Run(1, [&](Thread& self) {
        Ready(self);
        uint16_t* const to = NumbersOf(self) + size_t{width} * kBoxRows;
        self.ExpectBytes(BarrierOf(self), width * kBoxRows * 2);
        self.CopyBulk(to, map, corner, BarrierOf(self));
        self.WaitBytes(BarrierOf(self), 0);
        for (uint32_t row = 0; row < kBoxRows; ++row) {
          for (uint32_t i = 0; i < width; ++i) {
            const uint16_t got = to[Swizzled(width, row * width + i)];
            ASSERT_EQ(got, At(corner.at[0] + static_cast<int32_t>(i),
                              corner.at[1] + static_cast<int32_t>(row), 1, 2));
          }
        }
      });
    }
    for (uint32_t run = 0; run < width / 8; ++run) {
      uint32_t banks = 0;  // a bit for every sixteen bytes of 128
      for (uint32_t row = 0; row < 8; ++row) {
        const uint32_t at = Swizzled(width, row * width + run * 8);
        EXPECT_EQ(at, row * width + (run ^ row * width / 64 % (width / 8)) * 8);
        banks |= 1u << at / 8 % 8;
      }
      EXPECT_EQ(banks, 0xffu);
    }
  }
}

TEST_F(BulkCopies, SlotsBelowTheFirstAreZeros) {
  const TensorMap map = Map(16, 16);
  Run(1, [&](Thread& self) {
    Ready(self);
    self.ExpectBytes(BarrierOf(self), 16 * 16 * 2);
    self.CopyBulk(NumbersOf(self), map, {{0, 0, 0, -1}}, BarrierOf(self));
    self.WaitBytes(BarrierOf(self), 0);
    for (uint32_t i = 0; i < 16 * 16; ++i) ASSERT_EQ(NumbersOf(self)[i], 0);
  });
}

// Until a thread waits there is garbage, even where the bytes were before; also when those of
// another barrier have come.
TEST_F(BulkCopies, LandWhenTheirBarrierIsWaitedFor) {
  const TensorMap map = Map(16, 16);
  Run(2, [&](Thread& self) {
    Ready(self);
    for (uint32_t phase = 0; phase < 5; ++phase) {
      if (self.id() == 1) {
        for (uint32_t i = 0; i < 2; ++i) {
          self.ExpectBytes(BarrierOf(self, i), 16 * 16 * 2);
          self.CopyBulk(NumbersOf(self) + size_t{i} * 256, map, {{0, 0, 0, 0}}, BarrierOf(self, i));
        }
      }
      self.WaitBytes(BarrierOf(self, 1), phase % 2);
      self.Sync();
      ASSERT_EQ(NumbersOf(self)[0], 0xffff);
      ASSERT_EQ(NumbersOf(self)[256], At(0, 0, 0, 0));
      self.Sync();
      self.WaitBytes(BarrierOf(self, 0), phase % 2);
      ASSERT_EQ(NumbersOf(self)[0], At(0, 0, 0, 0));
      self.Sync();
    }
  });
}

TEST_F(BulkCopies, MisuseStops) {
  const TensorMap map = Map(16, 16);
  constexpr uint32_t kBytes = 16 * 16 * 2;
  const auto stops = [&](const char* why, const std::function<void(Thread&)>& kernel) {
    EXPECT_DEATH(Run(1, kernel), why);
  };
  const BoxCorner corner{{0, 0, 0, 0}};
  stops("nobody asks for", [&](Thread& self) {
    Ready(self);
    self.ExpectBytes(BarrierOf(self), kBytes + 16);
    self.CopyBulk(self.shared(), map, corner, BarrierOf(self));
    self.WaitBytes(BarrierOf(self), 0);
  });
  stops("nobody asks for", [&](Thread& self) {
    Ready(self);
    self.WaitBytes(BarrierOf(self), 0);
  });
  stops("nobody expects", [&](Thread& self) {
    Ready(self);
    self.ExpectBytes(BarrierOf(self), kBytes - 16);
    self.CopyBulk(self.shared(), map, corner, BarrierOf(self));
  });
  stops("has not ended", [&](Thread& self) {
    Ready(self);
    self.ExpectBytes(BarrierOf(self), kBytes);
    self.ExpectBytes(BarrierOf(self), kBytes);
  });
  stops("on their way to its memory", [&](Thread& self) {
    Ready(self);
    self.ExpectBytes(BarrierOf(self), kBytes);
    self.CopyBulk(self.shared(), map, corner, BarrierOf(self));
  });
  stops("not ready", [&](Thread& self) {
    self.InitBarrier(BarrierOf(self));
    self.ExpectBytes(BarrierOf(self), kBytes);
    self.CopyBulk(self.shared(), map, corner, BarrierOf(self));
  });
  stops("threads have written here", [&](Thread& self) {
    Ready(self);
    NumbersOf(self)[3] = 5;
    self.ExpectBytes(BarrierOf(self), kBytes);
    self.CopyBulk(self.shared(), map, corner, BarrierOf(self));
  });
  stops("bytes are on their way", [&](Thread& self) {
    Ready(self);
    self.ExpectBytes(BarrierOf(self), kBytes);
    self.CopyBulk(self.shared(), map, corner, BarrierOf(self));
    NumbersOf(self)[3] = 5;
    self.WaitBytes(BarrierOf(self), 0);
  });
  stops("no barrier", [&](Thread& self) { self.WaitBytes(BarrierOf(self), 0); });
}

// Bytes that threads write come before copies that are requested after their fence.
TEST_F(BulkCopies, FollowFencedWrites) {
  const TensorMap map = Map(16, 16);
  Run(2, [&](Thread& self) {
    Ready(self);
    if (self.id() == 1) {
      NumbersOf(self)[3] = 5;
      self.FenceBulk();
    }
    self.Sync();
    if (self.id() == 0) {
      self.ExpectBytes(BarrierOf(self), 16 * 16 * 2);
      self.CopyBulk(self.shared(), map, {{0, 0, 0, 0}}, BarrierOf(self));
    }
    self.WaitBytes(BarrierOf(self), 0);
    ASSERT_EQ(NumbersOf(self)[3], At(3, 0, 0, 0));
  });
}

}  // namespace
}  // namespace quire::cuda
