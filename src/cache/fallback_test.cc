// Codecs that cannot be used give way to others, never in silence.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "quire/attention.h"
#include "quire/cache.h"

namespace quire::cache {
namespace {

using ::testing::HasSubstr;

/// A device whose kernels lack some codecs.
class PoorKernels final : public AttentionBackend {
 public:
  explicit PoorKernels(std::vector<Codec> missing) : missing_(std::move(missing)) {}

  std::string_view name() const override { return "poor"; }
  std::string_view target() const override { return "poor"; }
  Result<void> Supports(const AttentionShape& shape) const override {
    for (const StreamLayout* stream :
         {&shape.key, &shape.value, &shape.open_key, &shape.open_value}) {
      if (std::ranges::count(missing_, stream->codec) == 0) continue;
      return Fail(ErrorCode::kUnsupported,
                  "poor: no kernel for " + std::string(CodecName(stream->codec)));
    }
    return {};
  }
  Result<void> Attend(const AttentionShape&, const BlockTables&, std::span<const AttentionTask>,
                      Executor&) override {
    return {};
  }

 private:
  const std::vector<Codec> missing_;
};

CacheOptions OptionsOf(Codec k, Codec v, Codec open = Codec::kBf16) {
  CacheOptions options{.geometry = Geometry::Uniform(2, 2, 64), .hot_bytes = 1 << 20};
  options.profile = NumericProfile::Uniform(open);
  options.profile.codecs = {{StreamRole::kKey, k}, {StreamRole::kValue, v}};
  return options;
}

struct Made {
  Codec k;
  Codec v;
  Codec open;
  uint64_t fallbacks;
  std::string warning;
};

Made Make(CacheOptions options, const AttentionBackend& kernels) {
  options.fallback_kernels = &kernels;
  testing::internal::CaptureStderr();
  const auto cache = Cache::Create(std::move(options));
  const std::string warning = testing::internal::GetCapturedStderr();
  EXPECT_TRUE(cache.has_value()) << cache.error().message;
  EXPECT_EQ((*cache)->options().fallback_kernels, nullptr);
  const NumericProfile& profile = (*cache)->options().profile;
  return {.k = profile.CodecFor(StreamRole::kKey).value(),
          .v = profile.CodecFor(StreamRole::kValue).value(),
          .open = profile.open_dtype,
          .fallbacks = (*cache)->stats().codec_fallbacks,
          .warning = warning};
}

TEST(Fallback, NothingIsReplacedWhereAllIsThere) {
  const Made made = Make(OptionsOf(Codec::kFp8E4m3, Codec::kQ25), PoorKernels({}));
  EXPECT_EQ(made.k, Codec::kFp8E4m3);
  EXPECT_EQ(made.v, Codec::kQ25);
  EXPECT_EQ(made.open, Codec::kBf16);
  EXPECT_EQ(made.fallbacks, 0u);
  EXPECT_EQ(made.warning, "");
}

TEST(Fallback, Fp8GoesToInt8ThenToF16) {
  Made made = Make(OptionsOf(Codec::kFp8E4m3, Codec::kNf4), PoorKernels({Codec::kFp8E4m3}));
  EXPECT_EQ(made.k, Codec::kInt8);
  EXPECT_EQ(made.v, Codec::kNf4);
  EXPECT_EQ(made.open, Codec::kBf16);
  EXPECT_EQ(made.fallbacks, 1u);
  EXPECT_THAT(made.warning, HasSubstr("K in int8 instead of fp8_e4m3 (poor: no kernel for fp8"));
  EXPECT_EQ(std::ranges::count(made.warning, '\n'), 1);

  made = Make(OptionsOf(Codec::kFp8E4m3, Codec::kFp8E5m2),
              PoorKernels({Codec::kFp8E4m3, Codec::kFp8E5m2, Codec::kInt8}));
  EXPECT_EQ(made.k, Codec::kF16);
  EXPECT_EQ(made.v, Codec::kF16);
  EXPECT_EQ(made.open, Codec::kF16);  // one form, open and sealed
  EXPECT_EQ(made.fallbacks, 2u);
  EXPECT_EQ(std::ranges::count(made.warning, '\n'), 1);  // one for all
}

TEST(Fallback, LayoutsThatCannotEncodeStoreF16) {
  for (const ArenaLayout layout : {ArenaLayout::kLayerMajor, ArenaLayout::kHeadMajor}) {
    CacheOptions options = OptionsOf(Codec::kInt4, Codec::kInt8);
    options.layout = layout;
    const Made made = Make(options, PoorKernels({}));
    EXPECT_EQ(made.k, Codec::kF16);
    EXPECT_EQ(made.v, Codec::kF16);
    EXPECT_EQ(made.fallbacks, 2u);
    EXPECT_THAT(made.warning, HasSubstr("needs block_major"));
    // Not asked for: refused.
    const auto refused = Cache::Create(options);
    ASSERT_FALSE(refused.has_value());
    EXPECT_EQ(refused.error().code, ErrorCode::kUnsupported);
  }
}

TEST(Fallback, WhereNothingIsEncodedNothingIsKeptOpen) {
  CacheOptions options = OptionsOf(Codec::kInt8, Codec::kInt8);
  options.profile.residual_tokens = 128;
  const PoorKernels none({Codec::kInt8});
  options.fallback_kernels = &none;
  testing::internal::CaptureStderr();
  auto cache = Cache::Create(options);
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr("residual_tokens 0 instead of 128 (nothing is encoded)"));
  ASSERT_TRUE(cache.has_value()) << cache.error().message;
  EXPECT_EQ((*cache)->options().profile.residual_tokens, 0u);
  EXPECT_EQ((*cache)->stats().codec_fallbacks, 2u);

  options.profile.codecs[0].codec = Codec::kInt4;  // which these kernels can do
  cache = Cache::Create(options);
  ASSERT_TRUE(cache.has_value()) << cache.error().message;
  EXPECT_EQ((*cache)->options().profile.residual_tokens, 128u);
}

TEST(Fallback, ALatentIsStoredInF16) {
  LayerGroup group{.layers = {0},
                   .streams = {{.role = StreamRole::kLatent, .heads = 1, .dim = 64}}};
  CacheOptions options{.geometry = {.groups = {group}}, .hot_bytes = 1 << 20};
  options.profile = NumericProfile::Uniform(Codec::kF16);
  for (CodecRule& rule : options.profile.codecs) rule.codec = Codec::kInt8;
  const PoorKernels kernels({});
  options.fallback_kernels = &kernels;
  const auto cache = Cache::Create(options);
  ASSERT_TRUE(cache.has_value()) << cache.error().message;
  EXPECT_EQ((*cache)->options().profile.CodecFor(StreamRole::kLatent).value(), Codec::kF16);
  EXPECT_EQ((*cache)->stats().codec_fallbacks, 1u);
  EXPECT_THAT(ToJson((*cache)->stats()), HasSubstr("\"codec_fallbacks\":1"));
}

TEST(Fallback, AGeometryThatNoCodecFitsIsStillRefused) {
  CacheOptions options = OptionsOf(Codec::kInt8, Codec::kInt8);
  options.geometry.groups.front().streams[0].heads = 0;
  const PoorKernels kernels({});
  options.fallback_kernels = &kernels;
  EXPECT_EQ(Cache::Create(options).error().code, ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace quire::cache
