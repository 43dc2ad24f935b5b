#include "store/socket/protocol.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

namespace quire::store {
namespace {

static_assert(std::endian::native == std::endian::little);

std::unexpected<Error> Corrupt(std::string_view what) {
  return Fail(ErrorCode::kCorrupt, fmt::format("store socket: {}", what));
}

bool HasBlocks(PacketKind kind) {
  return kind == PacketKind::kPut || kind == PacketKind::kGet || kind == PacketKind::kExists ||
         kind == PacketKind::kRemove;
}

bool HasPayload(PacketKind kind) { return kind == PacketKind::kPut || kind == PacketKind::kGet; }

bool HasNumbers(PacketKind kind) {
  return kind == PacketKind::kStats || kind == PacketKind::kUsage;
}

// In the order of the format.
constexpr std::array kStats = {&BlockStoreStats::blocks,
                               &BlockStoreStats::bytes,
                               &BlockStoreStats::bytes_cap,
                               &BlockStoreStats::bytes_live,
                               &BlockStoreStats::block_bytes_max,
                               &BlockStoreStats::memory_bytes,
                               &BlockStoreStats::bytes_written,
                               &BlockStoreStats::bytes_read,
                               &BlockStoreStats::evicted,
                               &BlockStoreStats::damaged,
                               &BlockStoreStats::puts,
                               &BlockStoreStats::puts_present,
                               &BlockStoreStats::puts_failed,
                               &BlockStoreStats::hits,
                               &BlockStoreStats::misses,
                               &BlockStoreStats::gets_failed,
                               &BlockStoreStats::removed,
                               &BlockStoreStats::puts_lost,
                               &BlockStoreStats::memory_hits,
                               &BlockStoreStats::clients};

}  // namespace

Result<void> ParseHello(std::span<const std::byte> packet) {
  PacketReader reader(packet);
  Hello hello;
  if (!reader.Read(hello) || hello.magic != kProtocolMagic) return Corrupt("no greeting");
  if (hello.version != kProtocolVersion) {
    return Fail(ErrorCode::kUnsupported,
                fmt::format("store socket: version {} of a client, {} here", hello.version,
                            kProtocolVersion));
  }
  return {};
}

Result<PacketRequest> ParseRequest(std::span<const std::byte> packet, uint64_t slab_bytes) {
  PacketReader reader(packet);
  RequestHeader header;
  if (!reader.Read(header)) return Corrupt("a request without a whole header");
  if (header.kind == 0 || header.kind > kPacketKindMax) return Corrupt("an unknown request");
  PacketRequest request = {
      .kind = static_cast<PacketKind>(header.kind),
      .number = header.number,
      .limits = {.bytes_quota = header.limits[0], .bytes_floor = header.limits[1]}};
  if (header.count > kPacketItemsMax || (header.count > 0) != HasBlocks(request.kind)) {
    return Corrupt(fmt::format("a request about {} blocks", header.count));
  }
  if (header.name_bytes > kNameBytesMax || !reader.Read(header.name_bytes, request.name_space)) {
    return Corrupt("a namespace that ends behind its packet");
  }
  if (reader.left() / sizeof(PacketItem) < header.count) return Corrupt("blocks are missing");
  request.blocks.reserve(header.count);
  std::vector<uint32_t> key_bytes;
  uint64_t left_bytes = slab_bytes;  // no byte of the slab is of two blocks
  for (uint32_t i = 0; i < header.count; ++i) {
    PacketItem item;
    (void)reader.Read(item);
    const bool fits = item.bytes <= left_bytes && item.offset <= slab_bytes - item.bytes;
    const bool has_payload = HasPayload(request.kind);
    if (!fits || (!has_payload && (item.bytes | item.offset) != 0)) {
      return Corrupt(fmt::format("{} bytes at {} of {}", item.bytes, item.offset, slab_bytes));
    }
    left_bytes -= item.bytes;
    key_bytes.push_back(item.key_bytes);
    request.blocks.push_back({.offset = item.offset, .bytes = item.bytes});
  }
  for (uint32_t i = 0; i < header.count; ++i) {
    if (!reader.Read(key_bytes[i], request.blocks[i].key)) {
      return Corrupt("a key that ends behind its packet");
    }
  }
  if (reader.left() > 0) return Corrupt("a request with something behind it");
  return request;
}

Result<PacketReply> ParseReply(std::span<const std::byte> packet) {
  PacketReader reader(packet);
  ReplyHeader header;
  if (!reader.Read(header) || header.kind == 0 || header.kind > kPacketKindMax) {
    return Corrupt("no answer");
  }
  PacketReply reply = {.kind = static_cast<PacketKind>(header.kind), .number = header.number};
  const bool numbers = HasNumbers(reply.kind);
  const uint64_t each = numbers ? sizeof(uint64_t) : sizeof(PacketResult);
  if (reader.left() != header.count * each) return Corrupt("an answer of another length");
  for (uint32_t i = 0; i < header.count; ++i) {
    if (numbers) {
      (void)reader.Read(reply.numbers.emplace_back());
      continue;
    }
    PacketResult result;
    (void)reader.Read(result);
    if (result.outcome >= kBlockOutcomeCount) return Corrupt("an unknown outcome");
    reply.results.push_back(
        {.outcome = static_cast<BlockOutcome>(result.outcome), .bytes = result.bytes});
  }
  return reply;
}

std::vector<std::byte> MakeReply(const PacketReply& reply) {
  PacketWriter writer;
  const size_t count = HasNumbers(reply.kind) ? reply.numbers.size() : reply.results.size();
  writer.Add(ReplyHeader{.kind = static_cast<uint32_t>(reply.kind),
                         .count = static_cast<uint32_t>(count),
                         .number = reply.number});
  for (const uint64_t number : reply.numbers) writer.Add(number);
  for (const BlockResult& result : reply.results) {
    writer.Add(
        PacketResult{.outcome = static_cast<uint32_t>(result.outcome), .bytes = result.bytes});
  }
  return writer.Take();
}

std::vector<uint64_t> NumbersOf(const BlockStoreStats& stats) {
  std::vector<uint64_t> numbers;
  for (const auto member : kStats) numbers.push_back(stats.*member);
  numbers.push_back(stats.disk_full ? 1 : 0);
  return numbers;
}

BlockStoreStats StatsOf(std::span<const uint64_t> numbers) {
  BlockStoreStats stats;
  const size_t known = std::min(numbers.size(), kStats.size());
  for (size_t i = 0; i < known; ++i) stats.*kStats[i] = numbers[i];
  stats.disk_full = numbers.size() > kStats.size() && numbers[kStats.size()] != 0;
  return stats;
}

}  // namespace quire::store
