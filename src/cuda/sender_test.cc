// The device gets the bytes that the host had when they were sent, however late it reads them.
#include "cuda/sender.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/prng.h"
#include "cuda/host/host_device.h"

namespace quire::cuda {
namespace {

TEST(Sender, SendsWhatTheHostHadThen) {
  for (uint64_t seed = 0; seed < 30; ++seed) {
    LateStreams streams("emulated", seed);
    const auto device = MakeHostDevice(&streams);
    Sender sender(*device, 64);
    Prng prng(seed);
    std::vector<std::vector<std::byte>> want;
    std::vector<std::byte*> there;
    std::vector<std::byte> host;
    uint64_t late = 0;
    for (int i = 0; i < 60; ++i) {  // many more pieces than there are
      host.resize(prng.NextBelow(300));
      for (std::byte& byte : host) byte = static_cast<std::byte>(prng.NextBelow(256));
      want.push_back(host);
      there.push_back(static_cast<std::byte*>(device->Allocate(host.size() + 1).value()));
      sender.Send(host.data(), host.size(), there.back());
      late += streams.enqueued_total() - streams.done_total();
    }
    EXPECT_GT(late, 60u) << "nobody waited for each";
    EXPECT_TRUE(device->Synchronize().has_value());
    for (size_t i = 0; i < want.size(); ++i) {
      EXPECT_EQ(std::vector<std::byte>(there[i], there[i] + want[i].size()), want[i]) << i;
      device->Free(there[i]);
    }
  }
}

}  // namespace
}  // namespace quire::cuda
