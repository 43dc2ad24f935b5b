#include "cuda/block_ops.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <new>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "codec/scalar.h"
#include "cuda/checksum-inl.h"
#include "env/host_buffer.h"

namespace quire::cuda {
namespace {

constexpr uint64_t kStagingBytes = uint64_t{4} << 20;  // of rows on their way
constexpr uint32_t kPieces = 4;                        // of them at once
constexpr uint64_t kResults = 1024;                    // that nobody has waited for yet

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

/// What an operation leaves in the staging memory of the host, and where its caller wants it.
struct DeviceResult {
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  CopyShape shape{};
  uint32_t added = 0;  // exclusive or, of a checksum

  void Deliver() const {
    if (added != 0) {
      uint32_t crc = 0;
      std::memcpy(&crc, from, sizeof(crc));
      crc ^= added;
      std::memcpy(to, &crc, sizeof(crc));
      return;
    }
    for (uint32_t i = 0; i < shape.count; ++i) {
      std::memcpy(to + i * shape.to_stride_bytes, from + i * shape.from_stride_bytes, shape.bytes);
    }
  }
};

/// Rows and results pass through pinned memory of the host, so nobody waits for a copy. What comes
/// back lies there until somebody sees a fence after it done: that one puts it where it belongs.
class DeviceBlockOps final : public BlockOps {
 public:
  explicit DeviceBlockOps(Device& device)
      : device_(device),
        host_(device.host_allocator(), kPieces * kStagingBytes + kResults * sizeof(uint32_t),
              "block operations"),
        staging_(device),
        sum_(device) {}

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
      Staged& staged = TakePiece();
      std::byte* to = staged.bytes;  // [token][head][dim]
      for (uint32_t token = piece.token_begin; token < piece.token_begin + piece.tokens; ++token) {
        for (uint32_t head = piece.head_begin; head < piece.head_begin + piece.heads; ++head) {
          const int64_t from = token * rows.token_stride + head * rows.head_stride;
          std::memcpy(to, first + from * value_bytes, row_bytes);
          to += row_bytes;
        }
      }
      device_.Copy(staged.bytes, staging_.as<void>(),
                   {.bytes = static_cast<uint64_t>(to - staged.bytes)});
      staged.fence = device_.Record();
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
    std::byte* const word = TakeWord();
    device_.Zero(sum_.as<void>(), {.bytes = sizeof(*crc)});
    device_.Launch(ChecksumArgs{.slot = slot,
                                .count = pieces.count,
                                .bytes = pieces.bytes,
                                .stride_bytes = pieces.stride_bytes,
                                .crc = sum_.as<uint32_t>()});
    device_.Copy(sum_.as<void>(), word, {.bytes = sizeof(*crc)});
    Expect({.from = word,
            .to = reinterpret_cast<std::byte*>(crc),
            .shape = {.bytes = sizeof(*crc)},
            .added = ChecksumStart(pieces.count * pieces.bytes)});
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
    device_.Order(Stream::kCompute, Stream::kOut);
    device_.Copy(slot, host, ShapeOf(pieces, pieces.stride_bytes, pieces.bytes), Stream::kOut);
  }
  void CopyIn(const std::byte* host, const SlotPieces& pieces, std::byte* slot) override {
    device_.Order(Stream::kCompute, Stream::kIn);
    device_.Copy(host, slot, ShapeOf(pieces, pieces.bytes, pieces.stride_bytes), Stream::kIn);
  }

  void ReadRows(const StreamLayout& stream, const std::byte* slot, TokensInBlock at, float* out,
                int64_t out_head_stride) override {
    if (at.count == 0) return;
    MutexLock lock(mutex_);
    const uint64_t row_bytes = uint64_t{stream.dim} * sizeof(float);
    for (const RowsPiece& piece : PiecesOf(stream.heads, at.count, row_bytes)) {
      const uint64_t head_bytes = piece.tokens * row_bytes;
      Staged& staged = TakePiece();
      MakeRoomForResult();
      device_.Launch(ReadArgs{.stream = HeadsOf(stream, piece),
                              .slot = slot,
                              .token_begin = at.begin + piece.token_begin,
                              .tokens = piece.tokens,
                              .out = staging_.as<float>()});
      device_.Copy(staging_.as<void>(), staged.bytes, {.bytes = piece.heads * head_bytes});
      staged.fence = device_.Record();
      float* const to =
          out + piece.head_begin * out_head_stride + uint64_t{piece.token_begin} * stream.dim;
      Expect(
          {.from = staged.bytes,
           .to = reinterpret_cast<std::byte*>(to),
           .shape = {.count = piece.heads,
                     .bytes = head_bytes,
                     .from_stride_bytes = head_bytes,
                     .to_stride_bytes = static_cast<uint64_t>(out_head_stride) * sizeof(float)}});
      staged.results_end = expected_;
    }
  }

  std::unique_ptr<Fence> Record() override {
    MutexLock lock(mutex_);
    auto done = device_.Record();
    std::unique_ptr<Fence> fence;
    if (done != nullptr) fence.reset(new (std::nothrow) ResultsFence(*this, done, expected_));
    if (fence != nullptr) return fence;
    if (done != nullptr) done->Wait();
    DeliverUpTo(expected_);
    return nullptr;
  }
  std::unique_ptr<Fence> RecordCopies(CopyWay way) override {
    return device_.Record(way == CopyWay::kIn ? Stream::kIn : Stream::kOut);
  }
  Result<void> outcome() const override { return device_.outcome(); }
  HostAllocator* host_allocator() override { return &device_.host_allocator(); }

 private:
  /// A piece of the host's staging memory.
  struct Staged {
    std::byte* bytes = nullptr;
    std::unique_ptr<Fence> fence{};  // the device reads or writes it until then
    uint64_t results_end = 0;        // results that lie in it are before this one
  };

  /// Of the device, with the results before it.
  class ResultsFence final : public Fence {
   public:
    // Takes `device`.
    ResultsFence(DeviceBlockOps& ops, std::unique_ptr<Fence>& device, uint64_t results_end)
        : ops_(ops), device_(std::move(device)), results_end_(results_end) {}
    bool IsDone() const override {
      if (!device_->IsDone()) return false;
      Deliver();
      return true;
    }
    void Wait() override {
      device_->Wait();
      Deliver();
    }

   private:
    void Deliver() const {
      MutexLock lock(ops_.mutex_);
      ops_.DeliverUpTo(results_end_);
    }

    DeviceBlockOps& ops_;
    const std::unique_ptr<Fence> device_;
    const uint64_t results_end_;
  };

  static CopyShape ShapeOf(const SlotPieces& pieces, uint64_t from_stride, uint64_t to_stride) {
    return {.count = pieces.count,
            .bytes = pieces.bytes,
            .from_stride_bytes = from_stride,
            .to_stride_bytes = to_stride};
  }

  // What a device left that failed is nothing, and nobody gets it.
  void DeliverUpTo(uint64_t end) QUIRE_REQUIRES(mutex_) {
    const bool good = device_.outcome().has_value();
    for (; delivered_ < end; ++delivered_) {
      if (good) results_[delivered_ % kResults].Deliver();
    }
  }
  // The next one in turn, when nothing uses it any more.
  Staged& TakePiece() QUIRE_REQUIRES(mutex_) {
    Staged& piece = pieces_[next_piece_++ % kPieces];
    if (piece.bytes == nullptr) {
      piece.bytes = host_.bytes().data() + (next_piece_ - 1) % kPieces * kStagingBytes;
    }
    if (piece.fence != nullptr) {
      piece.fence->Wait();
      DeliverUpTo(piece.results_end);
      piece.fence = nullptr;
    }
    piece.results_end = 0;
    return piece;
  }
  // Whoever asks for so many results without a fence waits here.
  void MakeRoomForResult() QUIRE_REQUIRES(mutex_) {
    if (expected_ - delivered_ < kResults) return;
    static_cast<void>(device_.Synchronize());
    DeliverUpTo(expected_);
  }
  std::byte* TakeWord() QUIRE_REQUIRES(mutex_) {
    MakeRoomForResult();
    return host_.bytes().data() + kPieces * kStagingBytes + expected_ % kResults * sizeof(uint32_t);
  }
  void Expect(const DeviceResult& result) QUIRE_REQUIRES(mutex_) {
    results_[expected_++ % kResults] = result;
  }

  Device& device_;
  Mutex mutex_{LockRank::kDeviceOps};
  const HostBuffer host_;  // [kPieces] of kStagingBytes, then words
  DeviceBuffer staging_ QUIRE_GUARDED_BY(mutex_);
  DeviceBuffer sum_ QUIRE_GUARDED_BY(mutex_);
  std::array<Staged, kPieces> pieces_ QUIRE_GUARDED_BY(mutex_);
  uint64_t next_piece_ QUIRE_GUARDED_BY(mutex_) = 0;
  std::array<DeviceResult, kResults> results_ QUIRE_GUARDED_BY(mutex_);  // by number
  uint64_t expected_ QUIRE_GUARDED_BY(mutex_) = 0;
  uint64_t delivered_ QUIRE_GUARDED_BY(mutex_) = 0;
};

}  // namespace

Result<std::unique_ptr<BlockOps>> MakeBlockOps(Device& device) {
  try {
    auto ops = std::make_unique<DeviceBlockOps>(device);
    QUIRE_TRY(ops->Reserve());
    return ops;
  } catch (const std::bad_alloc&) {
    return Fail(ErrorCode::kNoSpace, "no host memory for the operations of a device");
  }
}

}  // namespace quire::cuda
