#include "cuda/block_ops.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <new>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "codec/scalar.h"
#include "cuda/kernels/checksum-inl.h"
#include "env/host_buffer.h"

namespace quire::cuda {
namespace {

constexpr uint64_t kStagingBytes = uint64_t{4} << 20;  // of rows on their way
constexpr uint32_t kPieces = 4;                        // of them at once
constexpr uint64_t kSums = 4096;                       // that no call has waited for yet
constexpr uint64_t kSumsBytes = kSums * sizeof(uint32_t);

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

/// The checksums that one stream takes. They lie in memory of the host until a caller sees a later
/// fence done; that call writes them to their destinations. Kernels write them there: a copy would
/// wait for the large ones that the device's queue of copies has before it.
///
/// Threads: one at a time
class Checksums {
 public:
  /// `reached`: by kernels. Shape: words [kSums]
  Checksums(Device& device, Stream stream, std::byte* words, bool reached)
      : device_(device),
        stream_(stream),
        words_(words),
        reached_(reached),
        sums_(device),
        wanted_(kSums) {}

  Result<void> Reserve() {
    QUIRE_TRY(sums_.Reserve(kSumWords * sizeof(uint32_t)));
    device_.Zero(sums_.as<void>(), {.bytes = kSumWords * sizeof(uint32_t)});
    return {};
  }

  /// Takes the checksums of those sections of a slot that have a destination.
  void Take(const std::byte* slot, const SlotPieces& pieces,
            std::span<const SlotSection> sections) {
    static constexpr ChecksumArgs kPowers = ChecksumPowers();
    ChecksumArgs args = kPowers;
    args.slots[0] = slot;
    args.slot_count = 1;
    args.count = pieces.count;
    args.bytes = pieces.bytes;
    args.stride_bytes = pieces.stride_bytes;
    uint64_t end = 0;
    for (const SlotSection& section : sections) {
      const uint64_t begin = end;
      end += section.bytes;
      // The words of a launch follow one another.
      const bool ends =
          args.sections == kChecksumsOfLaunch || (taken_ + args.sections) % kSums == 0;
      if (ends || section.crc == nullptr) Launch(args);
      if (section.crc == nullptr) continue;
      if (taken_ + args.sections - delivered_ == kSums) {
        static_cast<void>(device_.Synchronize(stream_));  // a caller with so many waits here
        DeliverUpTo(taken_);
      }
      if (args.sections == 0) args.begin = begin;
      wanted_[(taken_ + args.sections) % kSums] = {.crc = section.crc, .bytes = section.bytes};
      args.ends[args.sections++] = end;
    }
    Launch(args);
  }

  /// Checksums so far.
  uint64_t taken() const { return taken_; }
  /// Results that a failed device left are dropped.
  void DeliverUpTo(uint64_t end) {
    const bool good = device_.outcome().has_value();
    for (; delivered_ < end; ++delivered_) {
      const Wanted& wanted = wanted_[delivered_ % kSums];
      uint32_t sum = 0;
      std::memcpy(&sum, WordOf(delivered_), sizeof(sum));
      if (good) *wanted.crc = ChecksumOf(sum, wanted.bytes);
    }
  }

 private:
  struct Wanted {
    uint32_t* crc = nullptr;
    uint64_t bytes = 0;
  };

  /// What launches share, then results of one that does not reach the host's.
  static constexpr uint32_t kSumWords = kChecksumsOfLaunch + 1 + kChecksumsOfLaunch;

  std::byte* WordOf(uint64_t number) const { return words_ + number % kSums * sizeof(uint32_t); }

  void Launch(ChecksumArgs& args) {
    if (args.sections == 0) return;
    args.blocks = ChecksumBlocks(args);
    args.sums = sums_.as<uint32_t>();
    std::byte* const words = WordOf(taken_);
    const uint64_t bytes = args.sections * sizeof(uint32_t);
    if (args.blocks == 0) {
      std::memset(words, 0, bytes);
    } else if (reached_) {
      args.results = reinterpret_cast<uint32_t*>(words);
      stream_ == Stream::kCompute ? device_.Sum(args) : device_.Launch(args, stream_);
    } else {
      args.results = args.sums + kChecksumsOfLaunch + 1;
      device_.Launch(args, stream_);
      device_.Copy(args.results, words, {.bytes = bytes}, stream_);
    }
    taken_ += args.sections;
    args.sections = 0;
  }

  Device& device_;
  const Stream stream_;
  std::byte* const words_;
  const bool reached_;
  DeviceBuffer sums_;
  std::vector<Wanted> wanted_;  // by number
  uint64_t taken_ = 0;
  uint64_t delivered_ = 0;
};

/// Rows that a device left in the staging memory of the host, and their destination.
struct DeviceRows {
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  CopyShape shape{};

  void Deliver() const {
    for (uint32_t i = 0; i < shape.count; ++i) {
      std::memcpy(to + i * shape.to_stride_bytes, from + i * shape.from_stride_bytes, shape.bytes);
    }
  }
};

/// Rows and results pass through pinned memory of the host, so no call waits for a copy. Results
/// stay there until a caller sees a later fence done; that call copies them to their destination.
class DeviceBlockOps final : public BlockOps {
 public:
  explicit DeviceBlockOps(Device& device)
      : device_(device),
        host_(device.host_allocator(), kPieces * kStagingBytes + 3 * kSumsBytes,
              "block operations"),
        staging_(device),
        sums_(device, Stream::kCompute, WordsAt(0), device.Reaches(host_)),
        sums_in_(device, Stream::kInSums, WordsAt(1), device.Reaches(host_)),
        sums_out_(device, Stream::kOutSums, WordsAt(2), device.Reaches(host_)) {}

  ~DeviceBlockOps() override {
    for (const Stream stream : kStreams) static_cast<void>(device_.Synchronize(stream));
  }

  Result<void> Reserve() {
    MutexLock lock(mutex_);
    QUIRE_TRY(staging_.Reserve(kStagingBytes));
    QUIRE_TRY(sums_.Reserve());
    QUIRE_TRY(sums_in_.Reserve());
    QUIRE_TRY(sums_out_.Reserve());
    return device_.Synchronize();  // it is there for the other streams, too
  }

  void WriteRows(const StreamLayout& stream, const RowsView& rows, uint32_t row_begin,
                 TokensInBlock at, std::byte* slot) override {
    if (at.count == 0) return;
    const auto value_bytes = static_cast<int64_t>(codec::ValueBytes(rows.dtype));
    const auto* const first = static_cast<const std::byte*>(rows.data) +
                              int64_t{row_begin} * rows.token_stride * value_bytes;
    if (device_.Owns(first)) {
      return device_.Write({.layout = stream,
                            .dtype = rows.dtype,
                            .token_stride = rows.token_stride,
                            .head_stride = rows.head_stride},
                           {.rows = first,
                            .slot = slot,
                            .token_begin = at.begin,
                            .tokens = static_cast<uint16_t>(at.count)});
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
      device_.Write({.layout = HeadsOf(stream, piece),
                     .dtype = rows.dtype,
                     .token_stride = int64_t{stream.dim} * piece.heads,
                     .head_stride = stream.dim},
                    {.rows = staging_.as<std::byte>(),
                     .slot = slot,
                     .token_begin = at.begin + piece.token_begin,
                     .tokens = static_cast<uint16_t>(piece.tokens)});
    }
  }

  void Encode(const StreamLayout& open, const std::byte* open_slot, const StreamLayout& sealed,
              std::byte* sealed_slot) override {
    device_.Seal({.open = open, .sealed = sealed},
                 {.open_slot = open_slot, .sealed_slot = sealed_slot});
  }

  void Checksum(const std::byte* slot, const SlotPieces& pieces, uint32_t* crc) override {
    const SlotSection all = {.bytes = pieces.count * pieces.bytes, .crc = crc};
    MutexLock lock(mutex_);
    sums_.Take(slot, pieces, {&all, 1});
  }

  void Zero(std::byte* slot, const SlotPieces& pieces) override {
    device_.Zero(
        slot,
        {.count = pieces.count, .bytes = pieces.bytes, .to_stride_bytes = pieces.stride_bytes});
  }

  void Copy(const std::byte* from, std::byte* to, const SlotPieces& pieces) override {
    device_.Copy(from, to, ShapeOf(pieces, pieces.stride_bytes, pieces.stride_bytes));
  }
  // Checksums are taken beside the copies: they do not delay a link.
  void CopyOut(const std::byte* slot, const SlotPieces& pieces,
               std::span<const SlotSection> sections) override {
    device_.Order(Stream::kCompute, Stream::kOut);
    ForEachRun(pieces, sections, [&](std::byte* host, uint64_t offset, const SlotPieces& run) {
      device_.Copy(slot + offset, host, ShapeOf(run, run.stride_bytes, run.bytes), Stream::kOut);
    });
    if (NobodyWantsSums(sections)) return;
    MutexLock lock(mutex_);
    device_.Order(Stream::kCompute, Stream::kOutSums);
    sums_out_.Take(slot, pieces, sections);
  }
  void CopyIn(std::span<const SlotSection> sections, const SlotPieces& pieces,
              std::byte* slot) override {
    device_.Order(Stream::kCompute, Stream::kIn);
    ForEachRun(
        pieces, sections, [&](const std::byte* host, uint64_t offset, const SlotPieces& run) {
          device_.Copy(host, slot + offset, ShapeOf(run, run.bytes, run.stride_bytes), Stream::kIn);
        });
    if (NobodyWantsSums(sections)) return;
    MutexLock lock(mutex_);
    device_.Order(Stream::kIn, Stream::kInSums);
    sums_in_.Take(slot, pieces, sections);
  }

  void ReadRows(const StreamLayout& stream, const std::byte* slot, TokensInBlock at, float* out,
                int64_t out_head_stride) override {
    if (at.count == 0) return;
    MutexLock lock(mutex_);
    const uint64_t row_bytes = uint64_t{stream.dim} * sizeof(float);
    for (const RowsPiece& piece : PiecesOf(stream.heads, at.count, row_bytes)) {
      const uint64_t head_bytes = piece.tokens * row_bytes;
      Staged& staged = TakePiece();
      device_.Launch(ReadArgs{.stream = HeadsOf(stream, piece),
                              .slot = slot,
                              .token_begin = at.begin + piece.token_begin,
                              .tokens = piece.tokens,
                              .out = staging_.as<float>()});
      device_.Copy(staging_.as<void>(), staged.bytes, {.bytes = piece.heads * head_bytes});
      staged.fence = device_.Record();
      float* const to =
          out + piece.head_begin * out_head_stride + uint64_t{piece.token_begin} * stream.dim;
      staged.rows = {
          .from = staged.bytes,
          .to = reinterpret_cast<std::byte*>(to),
          .shape = {.count = piece.heads,
                    .bytes = head_bytes,
                    .from_stride_bytes = head_bytes,
                    .to_stride_bytes = static_cast<uint64_t>(out_head_stride) * sizeof(float)}};
    }
  }

  std::unique_ptr<Fence> Record() override {
    MutexLock lock(mutex_);
    return FenceOf(Stream::kCompute, sums_, next_piece_);
  }
  // Checksums come after the copies that they belong to, and before the fence of those.
  std::unique_ptr<Fence> RecordCopies(CopyWay way) override {
    const bool in = way == CopyWay::kIn;
    const Stream sums = in ? Stream::kInSums : Stream::kOutSums;
    MutexLock lock(mutex_);
    device_.Order(in ? Stream::kIn : Stream::kOut, sums);
    return FenceOf(sums, in ? sums_in_ : sums_out_, /*pieces_end=*/0);
  }
  Result<void> outcome() const override { return device_.outcome(); }
  HostAllocator* host_allocator() override { return &device_.host_allocator(); }

 private:
  /// A piece of the host's staging memory.
  struct Staged {
    std::byte* bytes = nullptr;
    std::unique_ptr<Fence> fence{};    // the device reads or writes it until then
    std::optional<DeviceRows> rows{};  // with a destination
  };

  /// Of the device, with the results before it.
  class ResultsFence final : public Fence {
   public:
    // Takes `device`.
    ResultsFence(DeviceBlockOps& ops, std::unique_ptr<Fence>& device, Checksums& sums,
                 uint64_t pieces_end)
        : ops_(ops),
          device_(std::move(device)),
          sums_(sums),
          sums_end_(sums.taken()),
          pieces_end_(pieces_end) {}
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
      sums_.DeliverUpTo(sums_end_);
      ops_.DeliverRowsUpTo(pieces_end_);
    }

    DeviceBlockOps& ops_;
    const std::unique_ptr<Fence> device_;
    Checksums& sums_;
    const uint64_t sums_end_;
    const uint64_t pieces_end_;
  };

  /// A fence of everything that the stream, its checksums and the pieces before `pieces_end` have.
  std::unique_ptr<Fence> FenceOf(Stream stream, Checksums& sums, uint64_t pieces_end)
      QUIRE_REQUIRES(mutex_) {
    auto done = device_.Record(stream);
    std::unique_ptr<Fence> fence;
    if (done != nullptr)
      fence.reset(new (std::nothrow) ResultsFence(*this, done, sums, pieces_end));
    if (fence != nullptr) return fence;
    // Its constructor has not run, so nothing was moved.
    if (done != nullptr) done->Wait();  // NOLINT(clang-analyzer-cplusplus.Move)
    sums.DeliverUpTo(sums.taken());
    DeliverRowsUpTo(pieces_end);
    return nullptr;
  }

  static bool NobodyWantsSums(std::span<const SlotSection> sections) {
    return std::ranges::all_of(sections,
                               [](const SlotSection& section) { return section.crc == nullptr; });
  }

  /// f(host, offset in the slot, pieces) for the bytes of one copy: sections that also follow one
  /// another on the host are copied together.
  template <typename F>
  static void ForEachRun(const SlotPieces& pieces, std::span<const SlotSection> sections,
                         const F& f) {
    if (sections.size() == 1) return f(sections[0].host, 0, pieces);
    uint64_t offset = 0;
    for (size_t i = 0; i < sections.size();) {
      std::byte* const host = sections[i].host;
      uint64_t bytes = 0;
      for (; i < sections.size() && sections[i].host == host + bytes; ++i)
        bytes += sections[i].bytes;
      f(host, offset, {.bytes = bytes});
      offset += bytes;
    }
  }

  static CopyShape ShapeOf(const SlotPieces& pieces, uint64_t from_stride, uint64_t to_stride) {
    return {.count = pieces.count,
            .bytes = pieces.bytes,
            .from_stride_bytes = from_stride,
            .to_stride_bytes = to_stride};
  }

  std::byte* WordsAt(uint64_t number) {
    return host_.bytes().data() + kPieces * kStagingBytes + number * kSumsBytes;
  }

  // Results that a failed device left are dropped.
  void DeliverRowsUpTo(uint64_t end) QUIRE_REQUIRES(mutex_) {
    const bool good = device_.outcome().has_value();
    for (; delivered_pieces_ < end; ++delivered_pieces_) {
      Staged& piece = pieces_[delivered_pieces_ % kPieces];
      if (good && piece.rows) piece.rows->Deliver();
      piece.rows.reset();
    }
  }
  // The next piece in the ring, once nothing uses it any more.
  Staged& TakePiece() QUIRE_REQUIRES(mutex_) {
    const uint64_t number = next_piece_++;
    Staged& piece = pieces_[number % kPieces];
    if (piece.bytes == nullptr) {
      piece.bytes = host_.bytes().data() + number % kPieces * kStagingBytes;
    }
    if (piece.fence != nullptr) piece.fence->Wait();
    if (number >= kPieces) DeliverRowsUpTo(number - kPieces + 1);
    piece.fence = nullptr;
    return piece;
  }

  Device& device_;
  Mutex mutex_{LockRank::kDeviceOps};
  const HostBuffer host_;  // [kPieces] of kStagingBytes, then [3][kSums] words
  DeviceBuffer staging_ QUIRE_GUARDED_BY(mutex_);
  Checksums sums_ QUIRE_GUARDED_BY(mutex_);
  Checksums sums_in_ QUIRE_GUARDED_BY(mutex_);
  Checksums sums_out_ QUIRE_GUARDED_BY(mutex_);
  std::array<Staged, kPieces> pieces_ QUIRE_GUARDED_BY(mutex_);  // by number
  uint64_t next_piece_ QUIRE_GUARDED_BY(mutex_) = 0;
  uint64_t delivered_pieces_ QUIRE_GUARDED_BY(mutex_) = 0;  // rows of earlier pieces were delivered
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
