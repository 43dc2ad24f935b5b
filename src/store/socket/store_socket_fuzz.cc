// Any bytes are a packet that keeps its word or a reason, on both sides of the socket.
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/check.h"
#include "store/socket/protocol.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t count) {
  using namespace quire::store;
  const auto* begin = reinterpret_cast<const std::byte*>(data);
  const std::vector<std::byte> packet(begin, begin + count);  // its end is guarded
  constexpr uint64_t kSlabBytes = 1 << 20;
  (void)ParseHello(packet);
  if (const auto request = ParseRequest(packet, kSlabBytes)) {
    const auto within = [&](std::string_view text) {
      const auto* const at = reinterpret_cast<const std::byte*>(text.data());
      return text.empty() || (at >= packet.data() && at + text.size() <= packet.data() + count);
    };
    QUIRE_CHECK(within(request->name_space));
    uint64_t payload = 0;
    for (const auto& block : request->blocks) {
      QUIRE_CHECK(within(block.key));
      QUIRE_CHECK(block.bytes <= kSlabBytes && block.offset <= kSlabBytes - block.bytes);
      payload += block.bytes;
    }
    QUIRE_CHECK(payload <= kSlabBytes);
  }
  if (const auto reply = ParseReply(packet)) {
    QUIRE_CHECK(MakeReply(*reply).size() <= count);
    (void)StatsOf(reply->numbers);
  }
  return 0;
}
