// What threads ask a device for at once: each call takes place, none waits for ever.
#include "cuda/device.h"

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

#include "base/prng.h"
#include "cuda/host/host_device.h"

namespace quire::cuda {
namespace {

constexpr uint32_t kRounds = 300;
constexpr uint32_t kOfPass = 100;  // launches
const AddArgs kSome{.count = 16};

TEST(Device, CountsWhatItWasAskedFor) {
  const auto device = MakeIdleDevice();
  for (uint32_t i = 0; i < 3; ++i) device->Launch(kSome);
  device->Zero(nullptr, {.bytes = 8});
  EXPECT_EQ(device->calls(), 4u);
  std::vector<uint64_t> calls;  // of each pass
  for (int pass = 0; pass < 3; ++pass) {
    const uint64_t before = device->calls();
    device->BeginPass(nullptr);
    for (uint32_t i = 0; i < kOfPass; ++i) device->Launch(kSome);
    device->EndPass();
    calls.push_back(device->calls() - before);
  }
  // The lists end after 16, 32, 64 and 100 launches: single ones first, then as graphs, each of
  // which is made before it starts.
  EXPECT_EQ(calls, (std::vector<uint64_t>{kOfPass, 8, 4}));
}

// What comes later in a pass has its place, also where another thread ends the wait of some rows.
TEST(Device, AnotherThreadThatEndsAWaitShiftsNothing) {
  const auto device = MakeIdleDevice();
  std::array<std::byte, 64> slots{};
  const auto pass = [&](const std::function<void()>& between) {
    const uint64_t before = device->calls();
    device->BeginPass(nullptr);
    for (uint32_t layer = 0; layer < 10; ++layer) {
      for (uint32_t i = 0; i < 10; ++i) device->Launch(kSome);
      device->LetWait();
      for (std::byte& slot : slots) {
        device->Write({.layout = {.heads = 1, .dim = 8, .block_tokens = 16}},
                      {.slot = &slot, .tokens = 1});
        if (layer == 2 && &slot == &slots[5]) between();
      }
    }
    device->EndPass();
    return device->calls() - before;
  };
  const auto nothing = [] {};
  EXPECT_EQ(pass(nothing), 110u);
  pass(nothing);
  const uint64_t repeated = pass(nothing);
  EXPECT_LT(repeated, 10u) << "some graphs";
  const auto another_thread = [&] {
    std::jthread([&] { static_cast<void>(device->Synchronize()); }).join();
  };
  // The list that is cut has the launches 33 to 64, and the rows before the cut are one more.
  EXPECT_LE(pass(another_thread), 32 + 1 + repeated);
  EXPECT_LT(pass(nothing), 10u);
}

TEST(Device, ThreadsMayAskBesideAPass) {
  const auto device = MakeIdleDevice();
  const auto in_passes = [&] {
    for (uint32_t round = 0; round < kRounds; ++round) {
      device->BeginPass(nullptr);
      for (uint32_t i = 0; i < kOfPass; ++i) {
        device->Launch(kSome);
        if (i % 10 == 0) device->LetWait();
      }
      device->EndPass();
    }
  };
  std::array<std::byte, 64> slots{};
  const auto others = [&](uint64_t seed) {
    Prng prng(seed);
    uint32_t sums[4] = {};
    for (uint32_t i = 0; i < kRounds * 10; ++i) {
      switch (prng.NextBelow(7)) {
        case 0: device->Launch(kSome); break;
        case 1: device->Order(Stream::kCompute, Stream::kIn); break;
        case 2: static_cast<void>(device->Record(Stream::kOut)); break;
        case 3: EXPECT_TRUE(device->Synchronize().has_value()); break;
        case 4: device->Zero(slots.data(), {.bytes = 8}, Stream::kIn); break;
        case 5:
          device->Write({.layout = {.heads = 1, .dim = 8, .block_tokens = 16}},
                        {.slot = &slots[prng.NextBelow(64)], .tokens = 1});
          break;
        default:
          device->Sum({.slots = {slots.data()},
                       .slot_count = 1,
                       .count = 1,
                       .bytes = 64,
                       .sections = 1,
                       .ends = {64},
                       .blocks = 1,
                       .results = sums});
      }
    }
  };
  {
    std::vector<std::jthread> threads;
    threads.emplace_back(in_passes);
    threads.emplace_back(in_passes);
    threads.emplace_back(others, 1);
    threads.emplace_back(others, 2);
  }
  EXPECT_GT(device->calls(), 0u);
}

}  // namespace
}  // namespace quire::cuda
