#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "pool/pool.h"

namespace quire::pool {
namespace {

std::unique_ptr<Pool> Make(DeviceMemory& memory, uint32_t slots_max, uint32_t used) {
  auto pool = Pool::Create({.name = "p", .slot_bytes = 64, .slots_max = slots_max}, memory).value();
  std::vector<SlotId> slots(used);
  EXPECT_TRUE(pool->Allocate(slots));
  return pool;
}

char Digit(SlotId, uint32_t references) { return static_cast<char>('0' + references); }

TEST(BlockMap, ShowsEverySlotOfASmallPool) {
  const auto memory = MakeHostMemory(false);
  const auto pool = Make(*memory, 22, 9);
  pool->Retain(SlotId(1));
  pool->Release(SlotId(8));
  pool->Release(SlotId(3));
  EXPECT_EQ(pool->Map(Digit, 8),
            " 0  121.1111\n"
            " 8  ........\n"
            "16  ......\n");
  EXPECT_EQ(pool->Map(Digit), " 0  121.1111..............\n");
}

TEST(BlockMap, FoldsEqualRowsOfALargePool) {
  const auto memory = MakeHostMemory(false);
  const auto pool = Make(*memory, 803, 200);
  pool->Release(SlotId(80));
  for (uint32_t slot = 120; slot < 128; ++slot) pool->Release(SlotId(slot));
  EXPECT_EQ(pool->Map(Digit, 8),
            "  0  11111111  x10\n"
            " 80  .1111111\n"
            " 88  11111111  x4\n"
            "120  ........\n"
            "128  11111111  x9\n"
            "200  ........  x75\n"
            "800  ...\n");
}

TEST(BlockMap, JoinsFreedAndNeverUsedRows) {
  const auto memory = MakeHostMemory(false);
  const auto pool = Make(*memory, 800, 16);
  for (uint32_t slot = 8; slot < 16; ++slot) pool->Release(SlotId(slot));
  EXPECT_EQ(pool->Map(Digit, 8), "  0  11111111\n  8  ........  x99\n");
}

TEST(BlockMap, OfMillionsOfSlotsIsAFewRows) {
  const auto memory = MakeHostMemory(false);
  const auto pool = Make(*memory, 3'000'001, 3);
  EXPECT_EQ(pool->Map(Digit), "      0  111" + std::string(61, '.') + "\n" +  //
                                  "     64  " + std::string(64, '.') + "  x46874\n" +
                                  "3000000  .\n");
}

// A mark looks up its owner's state, under the owner's lock, which ranks below the pool's.
TEST(BlockMap, AMarkMayTakeLocks) {
  const auto memory = MakeHostMemory(false);
  const auto pool = Make(*memory, 4, 2);
  Mutex owner(LockRank{20});
  const auto mark = [&](SlotId slot, uint32_t) {
    MutexLock lock(owner);
    return pool->references(slot) == 1 ? 'p' : '?';
  };
  EXPECT_EQ(pool->Map(mark), "0  pp..\n");
}

}  // namespace
}  // namespace quire::pool
