#include "cuda/block_ops.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/mutex.h"
#include "codec/scalar.h"
#include "cuda/checksum-inl.h"

namespace quire::cuda {
namespace {

constexpr uint64_t kStagingBytes = uint64_t{4} << 20;  // of rows on their way

/// Some heads and tokens of a stream at a time, so that their rows fit in the staging memory.
struct RowsPiece {
  uint32_t head_begin = 0;
  uint32_t heads = 0;
  uint32_t token_begin = 0;
  uint32_t tokens = 0;
};

/// All of them, in pieces of at most kStagingBytes.
std::vector<RowsPiece> PiecesOf(uint32_t heads, uint32_t tokens, uint64_t row_bytes) {
  const auto rows_max = static_cast<uint32_t>(kStagingBytes / row_bytes);
  const uint32_t heads_at_once = std::min(heads, rows_max);
  const uint32_t tokens_at_once = std::min(tokens, rows_max / heads_at_once);
  std::vector<RowsPiece> pieces;
  for (uint32_t token = 0; token < tokens; token += tokens_at_once) {
    for (uint32_t head = 0; head < heads; head += heads_at_once) {
      pieces.push_back({.head_begin = head,
                        .heads = std::min(heads_at_once, heads - head),
                        .token_begin = token,
                        .tokens = std::min(tokens_at_once, tokens - token)});
    }
  }
  return pieces;
}

/// A stream of some of its heads.
StreamLayout HeadsOf(StreamLayout stream, const RowsPiece& piece) {
  stream.offset_bytes += piece.head_begin * stream.head_stride_bytes;
  stream.scale_offset_bytes += piece.head_begin * stream.scale_head_stride_bytes;
  stream.heads = piece.heads;
  return stream;
}

class DeviceBlockOps final : public BlockOps {
 public:
  explicit DeviceBlockOps(Device& device) : device_(device), staging_(device), sum_(device) {}

  Result<void> Reserve() {
    MutexLock lock(mutex_);
    QUIRE_TRY(staging_.Reserve(kStagingBytes));
    return sum_.Reserve(sizeof(uint32_t));
  }

  void WriteRows(const StreamLayout& stream, const RowsView& rows, uint32_t row_begin,
                 TokensInBlock at, std::byte* slot) override {
    if (at.count == 0) return;
    const auto value_bytes = static_cast<int64_t>(codec::ValueBytes(rows.dtype));
    const auto* const first = static_cast<const std::byte*>(rows.data) +
                              int64_t{row_begin} * rows.token_stride * value_bytes;
    if (device_.Owns(first)) {
      return device_.Launch(WriteArgs{.stream = stream,
                                      .rows = first,
                                      .dtype = rows.dtype,
                                      .token_stride = rows.token_stride,
                                      .head_stride = rows.head_stride,
                                      .token_begin = at.begin,
                                      .tokens = at.count,
                                      .slot = slot});
    }
    MutexLock lock(mutex_);
    const uint64_t row_bytes = stream.dim * static_cast<uint64_t>(value_bytes);
    for (const RowsPiece& piece : PiecesOf(stream.heads, at.count, row_bytes)) {
      host_rows_.resize(row_bytes * piece.heads * piece.tokens);  // [token][head][dim]
      std::byte* to = host_rows_.data();
      for (uint32_t token = piece.token_begin; token < piece.token_begin + piece.tokens; ++token) {
        for (uint32_t head = piece.head_begin; head < piece.head_begin + piece.heads; ++head) {
          const int64_t from = token * rows.token_stride + head * rows.head_stride;
          std::memcpy(to, first + from * value_bytes, row_bytes);
          to += row_bytes;
        }
      }
      device_.CopyIn(host_rows_.data(), host_rows_.size(), staging_.as<void>());
      device_.Launch(WriteArgs{.stream = HeadsOf(stream, piece),
                               .rows = staging_.as<std::byte>(),
                               .dtype = rows.dtype,
                               .token_stride = int64_t{stream.dim} * piece.heads,
                               .head_stride = stream.dim,
                               .token_begin = at.begin + piece.token_begin,
                               .tokens = piece.tokens,
                               .slot = slot});
    }
  }

  void Encode(const StreamLayout& open, const std::byte* open_slot, const StreamLayout& sealed,
              std::byte* sealed_slot) override {
    device_.Launch(EncodeArgs{
        .open = open, .sealed = sealed, .open_slot = open_slot, .sealed_slot = sealed_slot});
  }

  void Checksum(const std::byte* slot, const SlotPieces& pieces, uint32_t* crc) override {
    MutexLock lock(mutex_);
    const uint32_t start = ChecksumStart(pieces.count * pieces.bytes);
    device_.CopyIn(&start, sizeof(start), sum_.as<void>());
    device_.Launch(ChecksumArgs{.slot = slot,
                                .count = pieces.count,
                                .bytes = pieces.bytes,
                                .stride_bytes = pieces.stride_bytes,
                                .crc = sum_.as<uint32_t>()});
    device_.Copy(sum_.as<void>(), crc, {.bytes = sizeof(*crc)});
  }

  void Zero(std::byte* slot, const SlotPieces& pieces) override {
    device_.Zero(
        slot,
        {.count = pieces.count, .bytes = pieces.bytes, .to_stride_bytes = pieces.stride_bytes});
  }

  void Copy(const std::byte* from, std::byte* to, const SlotPieces& pieces) override {
    device_.Copy(from, to, ShapeOf(pieces, pieces.stride_bytes, pieces.stride_bytes));
  }
  void CopyOut(const std::byte* slot, const SlotPieces& pieces, std::byte* host) override {
    device_.Copy(slot, host, ShapeOf(pieces, pieces.stride_bytes, pieces.bytes));
  }
  void CopyIn(const std::byte* host, const SlotPieces& pieces, std::byte* slot) override {
    device_.Copy(host, slot, ShapeOf(pieces, pieces.bytes, pieces.stride_bytes));
  }

  void ReadRows(const StreamLayout& stream, const std::byte* slot, TokensInBlock at, float* out,
                int64_t out_head_stride) override {
    if (at.count == 0) return;
    MutexLock lock(mutex_);
    const uint64_t row_bytes = uint64_t{stream.dim} * sizeof(float);
    for (const RowsPiece& piece : PiecesOf(stream.heads, at.count, row_bytes)) {
      device_.Launch(ReadArgs{.stream = HeadsOf(stream, piece),
                              .slot = slot,
                              .token_begin = at.begin + piece.token_begin,
                              .tokens = piece.tokens,
                              .out = staging_.as<float>()});
      float* const to =
          out + piece.head_begin * out_head_stride + uint64_t{piece.token_begin} * stream.dim;
      device_.Copy(staging_.as<void>(), to,
                   {.count = piece.heads,
                    .bytes = piece.tokens * row_bytes,
                    .from_stride_bytes = piece.tokens * row_bytes,
                    .to_stride_bytes = static_cast<uint64_t>(out_head_stride) * sizeof(float)});
    }
  }

  std::unique_ptr<Fence> Record() override { return device_.Record(); }

 private:
  static CopyShape ShapeOf(const SlotPieces& pieces, uint64_t from_stride, uint64_t to_stride) {
    return {.count = pieces.count,
            .bytes = pieces.bytes,
            .from_stride_bytes = from_stride,
            .to_stride_bytes = to_stride};
  }

  Device& device_;
  Mutex mutex_{LockRank::kDeviceOps};
  DeviceBuffer staging_ QUIRE_GUARDED_BY(mutex_);
  DeviceBuffer sum_ QUIRE_GUARDED_BY(mutex_);
  std::vector<std::byte> host_rows_ QUIRE_GUARDED_BY(mutex_);
};

}  // namespace

Result<std::unique_ptr<BlockOps>> MakeBlockOps(Device& device) {
  auto ops = std::make_unique<DeviceBlockOps>(device);
  QUIRE_TRY(ops->Reserve());
  return ops;
}

}  // namespace quire::cuda
