// Any bytes, in any pieces, are replies or an end; neither how they are cut nor a sink changes
// anything.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/check.h"
#include "remote/resp.h"

namespace {

using quire::remote::RespReader;
using quire::remote::RespValue;

size_t Read(std::span<const uint8_t> input, size_t piece, const quire::remote::ObjectSink& sink,
            RespReader::Step& end) {
  constexpr uint64_t kBulkMax = 1 << 16;
  RespReader reader;
  size_t values = 0;
  while (true) {
    RespValue value;
    end = reader.Next(kBulkMax, value, sink);
    if (end == RespReader::Step::kValue) {
      ++values;
      continue;
    }
    if (end != RespReader::Step::kMore || input.empty()) return values;
    const std::span<std::byte> room = reader.Room();
    QUIRE_CHECK(!room.empty());
    const size_t bytes = std::min({piece, input.size(), room.size()});
    std::ranges::copy(std::as_bytes(input.first(bytes)), room.begin());
    reader.Received(bytes);
    input = input.subspan(bytes);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  RespReader::Step whole{};
  RespReader::Step cut{};
  size_t sunk = 0;
  const auto sink = [&](std::span<const std::byte> came) { sunk += came.size(); };
  const size_t values = Read({data, bytes}, bytes, {}, whole);
  QUIRE_CHECK(Read({data, bytes}, 3, sink, cut) == values && cut == whole && sunk <= bytes);
  return 0;
}
