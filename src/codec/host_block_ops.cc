// The operations on blocks in host memory: done at once, on the calling thread.
#include <cstring>
#include <span>

#include "base/hash.h"
#include "codec/streams.h"
#include "quire/block_ops.h"

namespace quire {
namespace {

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
    uint32_t sum = 0;
    for (uint32_t i = 0; i < pieces.count; ++i) {
      sum = Crc32c({slot + i * pieces.stride_bytes, pieces.bytes}, sum);
    }
    *crc = sum;
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

  void CopyOut(const std::byte* slot, const SlotPieces& pieces, std::byte* host) override {
    for (uint32_t i = 0; i < pieces.count; ++i) {
      std::memcpy(host + i * pieces.bytes, slot + i * pieces.stride_bytes, pieces.bytes);
    }
  }

  void CopyIn(const std::byte* host, const SlotPieces& pieces, std::byte* slot) override {
    for (uint32_t i = 0; i < pieces.count; ++i) {
      std::memcpy(slot + i * pieces.stride_bytes, host + i * pieces.bytes, pieces.bytes);
    }
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
