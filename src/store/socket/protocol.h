// What a client and the owner of a store say to each other (docs/format/store-socket.md). Packets
// are little-endian and frozen for a version; payloads lie in memory that both have.
#ifndef QUIRE_STORE_SOCKET_PROTOCOL_H_
#define QUIRE_STORE_SOCKET_PROTOCOL_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <type_traits>
#include <vector>

#include "quire/error.h"
#include "quire/store.h"

namespace quire::store {

inline constexpr std::array<char, 8> kProtocolMagic = {'Q', 'U', 'I', 'R', 'E', 'S', 'O', 'C'};
inline constexpr uint32_t kProtocolVersion = 1;
inline constexpr size_t kPacketBytesMax = 65'536;
inline constexpr size_t kPacketItemsMax = 1024;
inline constexpr size_t kNameBytesMax = 8192;   // of a namespace
inline constexpr size_t kKeyBytesMax = 32'768;  // so that a name and a key fit into a packet
inline constexpr uint64_t kSlabAlignment = 4096;

/// What a client asks for. The numbers are frozen.
enum class PacketKind : uint32_t {
  kPut = 1,
  kGet = 2,
  kExists = 3,
  kRemove = 4,
  kFlush = 5,
  kErase = 6,   // of the namespace that is named
  kLimits = 7,  // likewise
  kUsage = 8,   // likewise
  kStats = 9,
};
inline constexpr uint32_t kPacketKindMax = 9;

/// The client's first packet.
struct Hello {
  std::array<char, 8> magic = kProtocolMagic;
  uint32_t version = kProtocolVersion;
  uint32_t reserved = 0;
};

/// The owner's answer, with the memory's descriptor; or why there is none, followed by a text.
struct Welcome {
  std::array<char, 8> magic = kProtocolMagic;
  uint32_t version = kProtocolVersion;
  uint32_t refused = 0;  // an ErrorCode; 0: welcome
  uint64_t slab_bytes = 0;
  uint64_t block_bytes_max = 0;
  uint32_t blocks_max = 0;  // of one client, under way at once
  uint32_t reserved = 0;
};

/// Begins every later packet of the client. Behind it: the namespace, `count` PacketItem, the keys.
struct RequestHeader {
  uint32_t kind = 0;
  uint32_t count = 0;
  uint64_t number = 0;  // the client's; the answer has it
  uint32_t name_bytes = 0;
  uint32_t reserved = 0;
  std::array<uint64_t, 2> limits{};  // kLimits: quota, floor
};

struct PacketItem {
  uint64_t offset = 0;  // kPut, kGet: in the slab
  uint64_t bytes = 0;   //
  uint32_t key_bytes = 0;
  uint32_t reserved = 0;
};

/// Begins every later packet of the owner. Behind it: `count` PacketResult, or with kStats and
/// kUsage so many numbers of 64 bits.
struct ReplyHeader {
  uint32_t kind = 0;
  uint32_t count = 0;
  uint64_t number = 0;
};

struct PacketResult {
  uint32_t outcome = 0;  // a BlockOutcome
  uint32_t reserved = 0;
  uint64_t bytes = 0;
};

template <typename T>
inline constexpr bool kIsFrozen =
    std::is_trivially_copyable_v<T> && std::has_unique_object_representations_v<T>;
static_assert(kIsFrozen<Hello> && sizeof(Hello) == 16);
static_assert(kIsFrozen<Welcome> && sizeof(Welcome) == 40);
static_assert(kIsFrozen<RequestHeader> && sizeof(RequestHeader) == 40);
static_assert(kIsFrozen<PacketItem> && sizeof(PacketItem) == 24);
static_assert(kIsFrozen<ReplyHeader> && sizeof(ReplyHeader) == 16);
static_assert(kIsFrozen<PacketResult> && sizeof(PacketResult) == 16);
static_assert(offsetof(Welcome, slab_bytes) == 16 && offsetof(Welcome, blocks_max) == 32);
static_assert(offsetof(RequestHeader, number) == 8 && offsetof(RequestHeader, limits) == 24);
static_assert(offsetof(PacketItem, key_bytes) == 16 && offsetof(PacketResult, bytes) == 8);
static_assert(sizeof(RequestHeader) + sizeof(PacketItem) + kNameBytesMax + kKeyBytesMax <=
              kPacketBytesMax);

/// A packet as it is written.
class PacketWriter {
 public:
  template <typename T>
    requires kIsFrozen<T>
  void Add(const T& value) {
    Add(std::string_view(reinterpret_cast<const char*>(&value), sizeof(T)));
  }
  void Add(std::string_view text) {
    const auto* const begin = reinterpret_cast<const std::byte*>(text.data());
    bytes_.insert(bytes_.end(), begin, begin + text.size());
  }
  std::vector<std::byte> Take() { return std::move(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

/// A packet as it is read: a copy of each value, as nothing says that it is aligned.
class PacketReader {
 public:
  explicit PacketReader(std::span<const std::byte> packet) : rest_(packet) {}

  /// False: the packet ends before.
  template <typename T>
    requires kIsFrozen<T>
  bool Read(T& value) {
    if (rest_.size() < sizeof(T)) return false;
    std::memcpy(&value, rest_.data(), sizeof(T));
    rest_ = rest_.subspan(sizeof(T));
    return true;
  }
  bool Read(size_t bytes, std::string_view& text) {
    if (rest_.size() < bytes) return false;
    text = {reinterpret_cast<const char*>(rest_.data()), bytes};
    rest_ = rest_.subspan(bytes);
    return true;
  }
  size_t left() const { return rest_.size(); }

 private:
  std::span<const std::byte> rest_;
};

/// A client's packet that keeps its word: every range lies in the slab, every text in the packet.
struct PacketRequest {
  struct Block {
    std::string_view key{};
    uint64_t offset = 0;
    uint64_t bytes = 0;
  };

  PacketKind kind = PacketKind::kFlush;
  uint64_t number = 0;
  std::string_view name_space{};  // in the packet, as the keys
  NamespaceLimits limits{};
  std::vector<Block> blocks{};
};

/// Errors: kCorrupt what no client of this version sends
Result<PacketRequest> ParseRequest(std::span<const std::byte> packet, uint64_t slab_bytes);
/// Errors: kCorrupt no client's greeting; kUnsupported another version's
Result<void> ParseHello(std::span<const std::byte> packet);

/// What an owner answers to a request.
struct PacketReply {
  PacketKind kind = PacketKind::kFlush;
  uint64_t number = 0;
  std::vector<BlockResult> results{};
  std::vector<uint64_t> numbers{};  // kStats, kUsage
};

/// Errors: kCorrupt what no owner of this version sends
Result<PacketReply> ParseReply(std::span<const std::byte> packet);
std::vector<std::byte> MakeReply(const PacketReply& reply);

// Numbers in their order in packets: more may follow in later versions, and none goes.
std::vector<uint64_t> NumbersOf(const BlockStoreStats& stats);
BlockStoreStats StatsOf(std::span<const uint64_t> numbers);

}  // namespace quire::store

#endif  // QUIRE_STORE_SOCKET_PROTOCOL_H_
