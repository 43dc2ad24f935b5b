#include "base/stream_copy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "base/prng.h"

namespace quire {
namespace {

TEST(StreamCopy, CopiesAnyBytesToAnyPlaceAndNothingBeside) {
  Prng prng(1);
  std::vector<std::byte> from(4096);
  for (std::byte& byte : from) byte = static_cast<std::byte>(prng.Next64());
  for (int i = 0; i < 2000; ++i) {
    const size_t bytes = prng.NextBelow(i % 2 == 0 ? 200 : 3000);
    const size_t begin = prng.NextBelow(from.size() - bytes);
    const size_t at = prng.NextBelow(100);
    std::vector<std::byte> to(4096, std::byte{7});
    std::vector<std::byte> want = to;
    std::copy_n(from.begin() + static_cast<ptrdiff_t>(begin), bytes,
                want.begin() + static_cast<ptrdiff_t>(at));
    StreamCopy(std::span(from).subspan(begin, bytes), to.data() + at);
    ASSERT_EQ(to, want) << bytes << " bytes at " << at;
  }
}

}  // namespace
}  // namespace quire
