// An opaque block as a record of the cold tier (docs/format/record.md, "Opaque blocks").
#ifndef QUIRE_STORE_OPAQUE_H_
#define QUIRE_STORE_OPAQUE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "tier/record.h"

namespace quire::store {

/// A block's last page: what does not fill a page of its own, one byte 0x80, then zeros. So a block
/// has any length, and its record's length says where that page is.
using LastPage = std::array<std::byte, tier::kRecordAlignment>;

/// Longest block whose record fits `bytes`, which must hold the shortest one.
uint64_t BlockBytesIn(uint64_t record_bytes);
/// Bytes of the record of a block.
uint64_t RecordBytesOf(uint64_t block_bytes);
inline constexpr uint64_t kRecordBytesMin = 2 * tier::kRecordAlignment;

/// Bytes of a record that lie in whole pages before the last one.
/// Nothing when no opaque block has a record of that length.
std::optional<uint64_t> BodyBytesOf(uint64_t record_bytes);

/// The layout of a block by its body: a section for it, unless it is empty, and one for the last
/// page. Needs body_bytes to be what BodyBytesOf gives.
tier::RecordLayout LayoutOf(uint64_t body_bytes);

/// Writes the last page of a block. Needs rest.size() < 4096.
void EncodeLastPage(std::span<const std::byte> rest, LastPage& page);
/// How many bytes of a last page are the block's; nothing when no block ends like this.
std::optional<uint64_t> RestOf(const LastPage& page);

/// The publisher of a namespace's records. The namespaces of blocks and the domains of KV records
/// never have one in common.
tier::PublisherId PublisherOf(std::string_view name_space);
/// Everything a record of this key is compared with.
tier::RecordIdentity IdentityOf(std::string_view name_space, uint64_t erase_epoch,
                                std::string_view key);

}  // namespace quire::store

#endif  // QUIRE_STORE_OPAQUE_H_
