// The operations on blocks in host memory: done at once, on the calling thread.
#include <cstring>
#include <span>

#include "base/hash.h"
#include "codec/streams.h"
#include "quire/block_ops.h"

namespace quire {
namespace {

uint32_t SumOf(const std::byte* slot, const SlotPieces& pieces) {
  uint32_t sum = 0;
  for (uint32_t i = 0; i < pieces.count; ++i) {
    sum = Crc32c({slot + i * pieces.stride_bytes, pieces.bytes}, sum);
  }
  return sum;
}

/// f(address, pieces, section) for every section of a slot.
template <typename Byte, typename F>
void ForEachSection(Byte* slot, const SlotPieces& pieces, std::span<const SlotSection> sections,
                    const F& f) {
  for (const SlotSection& section : sections) {
    f(slot, sections.size() == 1 ? pieces : SlotPieces{.bytes = section.bytes}, section);
    slot += section.bytes;
  }
}

class HostOps final : public BlockOps {
 public:
  void WriteRows(const StreamLayout& stream, const RowsView& rows, uint32_t row_begin,
                 TokensInBlock at, std::byte* slot) override {
    codec::WriteRows(stream, rows, row_begin, at.count, at.begin, slot);
  }

  void Encode(const StreamLayout& open, const std::byte* open_slot, const StreamLayout& sealed,
              std::byte* sealed_slot) override {
    codec::EncodeBlock(open, open_slot, sealed, sealed_slot);
  }

  void Checksum(const std::byte* slot, const SlotPieces& pieces, uint32_t* crc) override {
    *crc = SumOf(slot, pieces);
  }

  void Zero(std::byte* slot, const SlotPieces& pieces) override {
    for (uint32_t i = 0; i < pieces.count; ++i) {
      std::memset(slot + i * pieces.stride_bytes, 0, pieces.bytes);
    }
  }

  void Copy(const std::byte* from, std::byte* to, const SlotPieces& pieces) override {
    for (uint32_t i = 0; i < pieces.count; ++i) {
      const uint64_t offset_bytes = i * pieces.stride_bytes;
      std::memcpy(to + offset_bytes, from + offset_bytes, pieces.bytes);
    }
  }

  void CopyOut(const std::byte* slot, const SlotPieces& pieces,
               std::span<const SlotSection> sections) override {
    ForEachSection(slot, pieces, sections,
                   [](const std::byte* from, const SlotPieces& of, const SlotSection& section) {
                     for (uint32_t i = 0; i < of.count; ++i) {
                       std::memcpy(section.host + i * of.bytes, from + i * of.stride_bytes,
                                   of.bytes);
                     }
                     if (section.crc != nullptr) *section.crc = SumOf(from, of);
                   });
  }

  void CopyIn(std::span<const SlotSection> sections, const SlotPieces& pieces,
              std::byte* slot) override {
    ForEachSection(slot, pieces, sections,
                   [](std::byte* to, const SlotPieces& of, const SlotSection& section) {
                     for (uint32_t i = 0; i < of.count; ++i) {
                       std::memcpy(to + i * of.stride_bytes, section.host + i * of.bytes, of.bytes);
                     }
                     if (section.crc != nullptr) *section.crc = SumOf(to, of);
                   });
  }

  void ReadRows(const StreamLayout& stream, const std::byte* slot, TokensInBlock at, float* out,
                int64_t out_head_stride) override {
    codec::ReadRows(stream, slot, at.begin, at.count, out, out_head_stride);
  }

  std::unique_ptr<Fence> Record() override { return nullptr; }
};

}  // namespace

BlockOps& HostBlockOps() {
  static HostOps ops;
  return ops;
}

}  // namespace quire
