#include "base/stream_copy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "base/prng.h"

namespace quire {
namespace {

TEST(StreamCopy, CopiesAnyBytesToAnyPlaceAndNothingBeside) {
  constexpr size_t kBytes = 40'000;
  Prng prng(1);
  std::vector<std::byte> from(kBytes);
  for (std::byte& byte : from) byte = static_cast<std::byte>(prng.Next64());
  for (int i = 0; i < 2000; ++i) {
    const size_t bytes = prng.NextBelow(i % 2 == 0 ? 5000 : kBytes);
    const size_t begin = prng.NextBelow(from.size() - bytes);
    const size_t at = prng.NextBelow(100);
    std::vector<std::byte> to(kBytes + 200, std::byte{7});
    std::vector<std::byte> want = to;
    std::copy_n(from.begin() + static_cast<ptrdiff_t>(begin), bytes,
                want.begin() + static_cast<ptrdiff_t>(at));
    const auto part = std::span(from).subspan(begin, bytes);
    if (i % 4 < 2) {
      StreamCopy(part, to.data() + at);
    } else {
      ASSERT_EQ(StreamCopyCrc(part, to.data() + at), Crc32c(part));
    }
    ASSERT_EQ(to, want) << bytes << " bytes at " << at;
  }
}

}  // namespace
}  // namespace quire
