// How K and V come to the kernels of the class mma16 is chosen for each call, and never shows in
// the bits.
#include <gtest/gtest.h>
// gtest before rapidcheck
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <set>
#include <utility>

#include "cuda/mma_tasks.h"
#include "cuda/test_attention.h"

namespace quire::cuda {
namespace {

using attention::MakeShape;
using attention::RandomFloats;
using attention::TestShape;

/// A device that records how attention of the class mma16 was launched on it.
class WatchedDevice final : public Device {
 public:
  WatchedDevice(Device& of, bool has_bulk_copies) : of_(of), has_bulk_copies_(has_bulk_copies) {}

  /// Since the last call.
  std::set<Staging> TakeLaunched() { return std::exchange(launched_, {}); }
  uint32_t TakeFolds() { return std::exchange(folds_, 0); }

  bool has_bulk_copies() const override { return has_bulk_copies_ && of_.has_bulk_copies(); }
  Result<TensorMap> MakeMap(const BoxedArray& array) override { return of_.MakeMap(array); }
  void MakeLaunch(const MmaArgs& args, const MmaLaunch& how, LaunchSink& sink) override {
    launched_.insert(how.staging);
    of_.MakeLaunch(args, how, sink);
  }

  std::string_view target() const override { return of_.target(); }
  uint32_t shared_bytes_max() const override { return of_.shared_bytes_max(); }
  Result<void*> Allocate(uint64_t bytes) override { return of_.Allocate(bytes); }
  void Free(void* memory) override { of_.Free(memory); }
  bool Owns(const void* address) const override { return of_.Owns(address); }
  HostAllocator& host_allocator() override { return of_.host_allocator(); }
  bool Reaches(const HostBuffer& memory) const override { return of_.Reaches(memory); }
  void CopyIn(const void* host, uint64_t bytes, void* device) override {
    of_.CopyIn(host, bytes, device);
  }
  void Copy(const void* from, void* to, const CopyShape& shape, Stream stream) override {
    of_.Copy(from, to, shape, stream);
  }
  void Zero(void* to, const CopyShape& shape, Stream stream) override {
    of_.Zero(to, shape, stream);
  }
  void Order(Stream before, Stream after) override { of_.Order(before, after); }
  std::unique_ptr<Fence> Record(Stream stream) override { return of_.Record(stream); }
  Result<void> outcome() const override { return of_.outcome(); }
  Result<void> Synchronize(Stream stream) override { return of_.Synchronize(stream); }
  Result<double> Seconds(Stream stream, const std::function<void()>& work) override {
    return of_.Seconds(stream, work);
  }
  void StartNow(const KernelLaunch& launch, Stream stream) override {
    of_.StartNow(launch, stream);
  }
  std::unique_ptr<LaunchGraph> MakeGraph(const LaunchList& launches) override {
    return of_.MakeGraph(launches);
  }
  void MakeLaunch(const SplitsArgs& args, const SplitsLaunch& how, LaunchSink& sink) override {
    of_.MakeLaunch(args, how, sink);
  }
  void MakeLaunch(const FoldArgs& args, uint32_t vectors, LaunchSink& sink) override {
    ++folds_;
    of_.MakeLaunch(args, vectors, sink);
  }
  void MakeLaunch(const WriteArgs& args, LaunchSink& sink) override { of_.MakeLaunch(args, sink); }
  void MakeLaunch(const ReadArgs& args, LaunchSink& sink) override { of_.MakeLaunch(args, sink); }
  void MakeLaunch(const EncodeArgs& args, LaunchSink& sink) override { of_.MakeLaunch(args, sink); }
  void MakeLaunch(const ChecksumArgs& args, LaunchSink& sink) override {
    of_.MakeLaunch(args, sink);
  }
  void MakeLaunch(const MatmulArgs& args, LaunchSink& sink) override { of_.MakeLaunch(args, sink); }
  void MakeLaunch(const EmbedArgs& args, LaunchSink& sink) override { of_.MakeLaunch(args, sink); }
  void MakeLaunch(const NormArgs& args, LaunchSink& sink) override { of_.MakeLaunch(args, sink); }
  void MakeLaunch(const HeadsArgs& args, LaunchSink& sink) override { of_.MakeLaunch(args, sink); }
  void MakeLaunch(const GateArgs& args, LaunchSink& sink) override { of_.MakeLaunch(args, sink); }
  void MakeLaunch(const AddArgs& args, LaunchSink& sink) override { of_.MakeLaunch(args, sink); }
  void MakeLaunch(const ReadFloorArgs& args, LaunchSink& sink) override {
    of_.MakeLaunch(args, sink);
  }
  void MakeLaunch(const MultiplyFloorArgs& args, LaunchSink& sink) override {
    of_.MakeLaunch(args, sink);
  }
  void MakeLaunch(const MatrixFloorArgs& args, LaunchSink& sink) override {
    of_.MakeLaunch(args, sink);
  }

 private:
  Device& of_;
  const bool has_bulk_copies_;
  std::set<Staging> launched_;
  uint32_t folds_ = 0;
};

class MmaStaging : public DeviceAttentionTest {
 protected:
  void SetUp() override {
    DeviceAttentionTest::SetUp();
    if (device_ == nullptr) return;
    if (!device_->has_bulk_copies()) {
      // The hardware has tensor maps from here on: then it is the driver that has none.
      ASSERT_LT(device_->target(), "sm_90") << "cuda: the driver makes no tensor maps";
      GTEST_SKIP() << device_->target() << " has no bulk copies: not compared";
    }
    bulk_ = std::make_unique<WatchedDevice>(*device_, true);
    plain_ = std::make_unique<WatchedDevice>(*device_, false);
  }

  /// Tiles are folded where they are computed, or not.
  std::vector<float> On(Device& device, bool folds, const AttentionShape& shape,
                        const TestSequence& sequence, uint64_t first, uint32_t rows,
                        const std::vector<float>& queries, uint32_t buffers = 0) {
    const auto backend = MakeAttention(device, {.arithmetic = Arithmetic::kMma16,
                                                .folded_tiles_min = folds ? 1 : UINT32_MAX,
                                                .buffers = buffers});
    return Compute(*backend, shape, sequence, first, rows, queries);
  }

  /// Whether both stagings of stored numbers give the same bits, in any number of buffers.
  bool IsSame(const AttentionShape& shape, const TestSequence& sequence, uint64_t first,
              uint32_t rows) {
    const std::vector<float> queries =
        RandomFloats(size_t{rows} * shape.query_heads * shape.key.dim, &prng_);
    for (const bool folds : {false, true}) {
      const auto want = On(*plain_, folds, shape, sequence, first, rows, queries);
      if (plain_->TakeLaunched() != std::set{Staging::kCopied}) return false;
      for (uint32_t buffers = 2; buffers <= kBuffersMax; ++buffers) {
        const auto got = On(*bulk_, folds, shape, sequence, first, rows, queries, buffers);
        if (bulk_->TakeLaunched() != std::set{Staging::kBulk}) return false;
        if (!SameBits(got, want)) return false;
      }
    }
    return true;
  }

  std::unique_ptr<WatchedDevice> bulk_;
  std::unique_ptr<WatchedDevice> plain_;
};

// Ends inside a box, at its edge, in its first token; bytes behind the end are NaNs.
TEST_F(MmaStaging, BulkCopiesHaveTheBitsOfOthersAtEveryEnd) {
  for (const uint32_t block_tokens : {16u, 32u, 64u, 256u}) {
    for (const uint32_t dim : {16u, 80u}) {
      const AttentionShape shape = MakeShape({.kv_heads = 2,
                                              .group = 2,
                                              .key_dim = dim,
                                              .value_dim = dim,
                                              .block_tokens = block_tokens});
      for (const uint64_t length : {1, 15, 16, 17, 33, 64, 95, 257}) {
        SCOPED_TRACE(testing::Message()
                     << "blocks of " << block_tokens << " dim " << dim << " length " << length);
        TestSequence sequence(shape, length, false, &prng_);
        const uint64_t rows = std::min<uint64_t>(length, 9);
        EXPECT_TRUE(IsSame(shape, sequence, length - rows, static_cast<uint32_t>(rows)));
      }
    }
  }
}

TEST_F(MmaStaging, BulkCopiesHaveTheBitsOfOthersInEveryShapeOfHeads) {
  for (const TestShape& test : {TestShape{.group = 20, .key_dim = 32, .value_dim = 16},
                                {.group = 2, .key_dim = 192, .value_dim = 128},
                                {.group = 2, .key_dim = 128, .value_dim = 192},
                                {.group = 2, .key_dim = 256, .value_dim = 256}}) {
    const AttentionShape shape = MakeShape(test);
    TestSequence sequence(shape, 290, false, &prng_);
    EXPECT_TRUE(IsSame(shape, sequence, 270, 20)) << test.key_dim << " " << test.value_dim;
  }
}

/// Blocks that are read open have another type, and lie elsewhere in their slots.
AttentionShape WithOpenForm(AttentionShape shape) {
  shape.open_key = shape.key;
  shape.open_value = shape.value;
  for (StreamLayout* stream : {&shape.open_key, &shape.open_value}) {
    stream->codec = Codec::kBf16;
    stream->offset_bytes -= 64;
    stream->scale_offset_bytes -= 64;
  }
  return shape;
}

// Windows, sinks, blocks without a slot, forms that differ, types that differ.
RC_GTEST_FIXTURE_PROP(MmaStaging, BulkCopiesHaveTheBitsOfOthers, ()) {
  if (bulk_ == nullptr) return;
  TestShape test;
  test.kv_heads = *rc::gen::inRange(1u, 3u);
  test.group = *rc::gen::element(1u, 2u, 3u, 8u, 17u);
  test.key_dim = *rc::gen::element(16u, 32u, 48u, 64u, 144u);
  test.value_dim = *rc::gen::element(16u, 32u, 48u, 64u, 144u);
  test.block_tokens = *rc::gen::element(16u, 32u, 64u, 256u);
  test.key_codec = *rc::gen::element(Codec::kF16, Codec::kBf16);
  test.value_codec = *rc::gen::element(Codec::kF16, Codec::kBf16);
  if (*rc::gen::inRange(0, 2) == 0) {
    test.window_tokens = *rc::gen::element(1u, 17u, 64u, 255u, 256u, 300u);
    test.sink_tokens = *rc::gen::element(0u, 1u, 20u, 300u);
  }
  test.rotated = *rc::gen::inRange(0, 2) == 0;
  test.open_blocks = *rc::gen::element(0u, 0u, 1u, 2u, 8u);
  const uint64_t first = *rc::gen::element<uint64_t>(0, 16, 256, 512) + *rc::gen::inRange(0, 40);
  const uint32_t rows = *rc::gen::element(1u, 2u, 5u, 17u);
  const bool two_forms = *rc::gen::inRange(0, 2) == 0;
  prng_ = Prng(*rc::gen::arbitrary<uint64_t>());
  const AttentionShape shape = two_forms ? WithOpenForm(MakeShape(test)) : MakeShape(test);
  TestSequence sequence(shape, first + rows, two_forms, &prng_);
  sequence.DropInvisible(first);
  RC_ASSERT(IsSame(shape, sequence, first, rows));
}

TEST_F(MmaStaging, CascadesHaveTheSameBits) {
  const AttentionShape shape = CascadeShape(Codec::kBf16);
  Cascade cascade = MakeCascade(shape);
  const auto bulk = MakeAttention(*bulk_, {.arithmetic = Arithmetic::kMma16});
  const auto plain = MakeAttention(*plain_, {.arithmetic = Arithmetic::kMma16});
  EXPECT_TRUE(SameBits(Compute(*bulk, shape, cascade), Compute(*plain, shape, cascade)));
  EXPECT_EQ(bulk_->TakeLaunched(), std::set{Staging::kBulk});
}

// Several blocks of a tile, of which the last one merges their states.
TEST_F(MmaStaging, TilesMergeTheirStatesOrAKernelDoes) {
  const auto folds = [&](const TestShape& test, uint64_t tokens, uint32_t lane_blocks_wanted) {
    const AttentionShape shape = MakeShape(test);
    TestSequence sequence(shape, tokens, false, &prng_);
    const auto backend = MakeAttention(
        *bulk_, {.arithmetic = Arithmetic::kMma16, .lane_blocks_wanted = lane_blocks_wanted});
    Compute(*backend, shape, sequence, tokens - 1, 1,
            RandomFloats(size_t{shape.query_heads} * shape.key.dim, &prng_));
    return bulk_->TakeFolds();
  };
  constexpr uint64_t kMore = kLanes * kSplitTokens + 1;
  EXPECT_EQ(folds({.group = 4}, 3 * kSplitTokens + 40, UINT32_MAX), 0u);
  EXPECT_EQ(folds({.group = 4}, kMore, 1), 0u) << "blocks of lanes leave one state each";
  EXPECT_EQ(folds({.group = 4}, kMore, UINT32_MAX), 1u);
  EXPECT_EQ(folds({.value_dim = 144}, 300, UINT32_MAX), 1u) << "more channels than a warp has";
}

// Codes come as they are; K whose channels are neighbours is copied; a
// caller may turn bulk copies off.
TEST_F(MmaStaging, BulkCopiesAreForStoredNumbersTokenByToken) {
  const auto launched = [&](const TestShape& test, bool bulk_copies) {
    const AttentionShape shape = MakeShape(test);
    TestSequence sequence(shape, 40, false, &prng_);
    const auto backend =
        MakeAttention(*bulk_, {.arithmetic = Arithmetic::kMma16, .bulk_copies = bulk_copies});
    Compute(*backend, shape, sequence, 39, 1,
            RandomFloats(size_t{shape.query_heads} * shape.key.dim, &prng_));
    return bulk_->TakeLaunched();
  };
  EXPECT_EQ(launched({}, true), std::set{Staging::kBulk});
  EXPECT_EQ(launched({}, false), std::set{Staging::kCopied});
  EXPECT_EQ(launched({.key_inner = InnerAxis::kDim}, true), std::set{Staging::kCopied});
  EXPECT_EQ(launched({.key_codec = Codec::kInt8}, true), std::set{Staging::kCodes});
  EXPECT_EQ(launched({.value_codec = Codec::kFp8E4m3}, true), std::set{Staging::kCodes});
  EXPECT_EQ(launched({.value_codec = Codec::kQ25}, true), std::set{Staging::kCodes});
}

TEST(MmaStagings, AreChosenByTheLayout) {
  const auto chosen = [](const AttentionShape& shape, uint64_t stride_bytes) {
    const std::byte base[16]{};
    const BlockTable table{.base = base, .slot_stride_bytes = stride_bytes};
    return StagingOf(shape, {.sealed = table, .open = table}, /*bulk_copies=*/true);
  };
  EXPECT_EQ(chosen(MakeShape({}), 4096), Staging::kBulk);
  EXPECT_EQ(chosen(MakeShape({}), uint64_t{1} << 32), Staging::kCopied) << "of no tensor map";
  EXPECT_EQ(StagingOf(MakeShape({}), {}, true), Staging::kCopied) << "a table without slots";
}

TEST(MmaStagings, ColumnsAreThoseOfTheSlots) {
  for (const Codec codec : {Codec::kInt8, Codec::kInt4, Codec::kNf4, Codec::kFp4, Codec::kQ25}) {
    for (const InnerAxis inner : {InnerAxis::kToken, InnerAxis::kDim}) {
      for (uint32_t dim = kMmaDimStep; dim <= kMmaDimMax; dim += kMmaDimStep) {
        EXPECT_EQ(ColumnBytes(codec, dim), codec::ColumnBytes(codec, inner, dim))
            << CodecName(codec) << " " << dim;
      }
    }
  }
}

// The other memory of a block leaves room for its boxes, whatever is multiplied.
TEST(MmaStagings, BoxesFitIntoSharedMemory) {
  for (uint32_t key = kMmaDimStep; key <= kMmaDimMax; key += kMmaDimStep) {
    for (uint32_t value = kMmaDimStep; value <= kMmaDimMax; value += kMmaDimStep) {
      AttentionShape shape = MakeShape({.key_dim = key, .value_dim = value});
      shape.open_key = shape.key;
      shape.open_key.codec = Codec::kBf16;  // queries in two types
      for (const bool folds : {false, true}) {
        if (folds && !CanFold(shape)) continue;
        const MmaShared shared = SharedOf(shape, folds, Staging::kBulk);
        EXPECT_LE(shared.bytes, folds ? kSm90SharedMax / 2 : kSm90SharedMax) << key << " " << value;
        EXPECT_EQ(shared.stage_at % kBulkAlignment, 0u);
        EXPECT_EQ(shared.stage_bytes % kBulkAlignment, 0u);
        EXPECT_EQ(shared.barriers_at % 8, 0u);
      }
    }
  }
}

// As many as the registers allow (src/cuda/runtime/mma_attend.cu), with heads of most models as
// caches lay them out.
TEST(MmaStagings, FourBlocksShareAProcessorInDecode) {
  constexpr uint32_t kProcessor = kSm90SharedMax + 1024;
  for (const Codec codec : kCodecs) {
    if (codec == Codec::kF32) continue;
    const AttentionShape shape = MakeShape({.key_dim = 128,
                                            .value_dim = 128,
                                            .key_codec = codec,
                                            .value_codec = codec,
                                            .rotated = codec > Codec::kBf16});
    const Staging staging = codec > Codec::kBf16 ? Staging::kCodes : Staging::kBulk;
    const MmaShared shared = SharedOf(shape, /*folds=*/false, staging, /*query_tiles=*/1);
    EXPECT_LE(4 * (shared.bytes + 1024), kProcessor) << CodecName(codec);
    EXPECT_LE(kMmaWarps * shared.row_floats * 4, SharedOutBytes(shared.queries));
    EXPECT_EQ(shared.has_code_buffers, codec > Codec::kBf16) << CodecName(codec);
  }
}

// What other architectures have is enough for the shapes of most models.
TEST(MmaStagings, ShapesThatDoNotFitAreRefusedByName) {
  const auto refused = [](uint32_t dim, Codec codec, bool rotated) {
    const AttentionShape shape = MakeShape({.key_dim = dim,
                                            .value_dim = dim,
                                            .key_codec = codec,
                                            .value_codec = codec,
                                            .rotated = rotated});
    EXPECT_TRUE(SupportsMma(shape, kSm90SharedMax));
    const auto supports = SupportsMma(shape, kMmaSharedMax);
    return supports ? std::string() : supports.error().message;
  };
  for (const Codec codec : {Codec::kBf16, Codec::kInt8, Codec::kNf4}) {
    for (uint32_t dim = kMmaDimStep; dim <= 192; dim += kMmaDimStep) {
      EXPECT_EQ(refused(dim, codec, codec != Codec::kBf16), "") << CodecName(codec) << " " << dim;
    }
    const std::string told = refused(256, codec, codec != Codec::kBf16);
    EXPECT_NE(told.find("256 and 256 channels take"), std::string::npos) << CodecName(codec);
    EXPECT_NE(told.find("--arithmetic fma32"), std::string::npos) << CodecName(codec);
  }
}

}  // namespace
}  // namespace quire::cuda
