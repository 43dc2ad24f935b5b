// What every codec that encodes must do, seen through a slot: rows in, sealed, rows out.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <string>
#include <vector>

#include "base/prng.h"
#include "codec/formats.h"
#include "codec/slot_layout.h"
#include "codec/streams.h"
#include "tests/suite/codec_models.h"

namespace quire::codec {
namespace {

constexpr StreamRole kRoles[] = {StreamRole::kKey, StreamRole::kValue};

// A block of one layer with one head: 16 rows of `dim` values through both forms.
std::vector<float> ThroughABlock(Codec codec, Codec open_dtype, StreamRole role, uint32_t dim,
                                 const std::vector<float>& rows) {
  NumericProfile profile = NumericProfile::Uniform(codec);
  profile.open_dtype = open_dtype;
  const Geometry geometry = Geometry::Uniform(1, 1, dim);
  const auto sealed = SlotLayout::Create(geometry, profile, ArenaLayout::kBlockMajor).value();
  const auto open = SlotLayout::CreateOpen(geometry, profile).value();
  std::vector<std::byte> open_slot(open.slot_bytes(0));
  std::vector<std::byte> sealed_slot(sealed.slot_bytes(0));
  const StreamLayout from = open.Find(0, role).value();
  const StreamLayout to = sealed.Find(0, role).value();
  WriteRows(from, {.data = rows.data(), .token_stride = dim, .head_stride = dim}, 0, 16, 0,
            open_slot.data());
  EncodeBlock(from, open_slot.data(), to, sealed_slot.data());
  std::vector<float> read(rows.size());
  ReadRows(to, sealed_slot.data(), 0, 16, read.data(), int64_t{16} * dim);
  return read;
}

double NextNormal(Prng& prng) {
  double sum = -6.0;  // of twelve uniforms: variance 1
  for (int i = 0; i < 12; ++i) sum += prng.NextFloat(0.0f, 1.0f);
  return sum;
}

template <typename Model>
class CodecSuite : public testing::Test {
 protected:
  static constexpr Codec kCodec = Model::kCodec;

  /// In decibels, over many blocks of normal values of which `outliers` channels are 32 times
  /// larger.
  static double SignalToNoise(StreamRole role, uint32_t dim, uint32_t outliers) {
    Prng prng(dim);
    double signal = 0;
    double noise = 0;
    for (int block = 0; block < 20; ++block) {
      std::vector<float> rows(16 * dim);
      for (uint32_t i = 0; i < rows.size(); ++i) {
        const bool outlier = i % dim % 37 == 5 && i % dim / 37 < outliers;
        rows[i] = static_cast<float>(NextNormal(prng) * (outlier ? 32.0 : 1.0));
      }
      const auto read = ThroughABlock(kCodec, Codec::kF16, role, dim, rows);
      for (uint32_t i = 0; i < rows.size(); ++i) {
        signal += double{rows[i]} * rows[i];
        noise += (double{rows[i]} - read[i]) * (double{rows[i]} - read[i]);
      }
    }
    return 10 * std::log10(signal / noise);
  }
};

class ModelName {
 public:
  template <typename Model>
  static std::string GetName(int) {
    return std::string(CodecName(Model::kCodec));
  }
};

TYPED_TEST_SUITE(CodecSuite, CodecModels, ModelName);

TYPED_TEST(CodecSuite, StoresNoMoreBitsThanItSays) {
  constexpr Codec kModel = TypeParam::kCodec;
  EXPECT_LE(CodecBitsPerValue(kModel), TypeParam::kBitsMax);
  // A block of a real shape takes just that: nothing is padded.
  const auto layout = SlotLayout::Create(Geometry::Uniform(28, 8, 128),
                                         NumericProfile::Uniform(kModel), ArenaLayout::kBlockMajor)
                          .value();
  EXPECT_EQ(static_cast<double>(layout.slot_bytes(0)) * 8 / (28 * 2 * 8 * 128 * 16),
            CodecBitsPerValue(kModel));
  EXPECT_FALSE(layout.identity());
}

TYPED_TEST(CodecSuite, NormalValuesComeBackAsNearAsTheFormatAllows) {
  for (const StreamRole role : kRoles) {
    for (const uint32_t dim : {64u, 128u}) {
      EXPECT_GE(this->SignalToNoise(role, dim, 0), TypeParam::kDecibel) << "dim " << dim;
    }
  }
}

// The rotation makes outliers look like all others. The values of a row are then alike in size, if
// not normal: nf4 and its kind lose a little by it.
TYPED_TEST(CodecSuite, OutlierChannelsCostNoMore) {
  for (const StreamRole role : kRoles) {
    EXPECT_GE(this->SignalToNoise(role, 128, 3), TypeParam::kDecibel - 1.5);
  }
}

TYPED_TEST(CodecSuite, NoFiniteRowBecomesNanOrInfinite) {
  const float extremes[] = {0.0f,   -0.0f,   65504.0f, -65504.0f, 3.4e38f, -3.4e38f,
                            1e-45f, -1e-40f, 6e-8f,    1.0f,      1e-3f,   -2.5f};
  for (const StreamRole role : kRoles) {
    for (const Codec open : {Codec::kF16, Codec::kBf16, Codec::kF32}) {
      for (const uint32_t dim : {1u, 5u, 64u, 96u, 128u}) {
        Prng prng(dim);
        std::vector<float> rows(16 * dim);
        for (uint32_t t = 0; t < 16; ++t) {
          for (uint32_t d = 0; d < dim; ++d) {
            const size_t which = t < std::size(extremes) ? t : prng.NextBelow(std::size(extremes));
            rows[t * dim + d] = extremes[which];
          }
        }
        for (const float value : ThroughABlock(TypeParam::kCodec, open, role, dim, rows)) {
          ASSERT_TRUE(std::isfinite(value)) << "dim " << dim;
        }
      }
    }
  }
}

TYPED_TEST(CodecSuite, ZerosStayZeros) {
  for (const StreamRole role : kRoles) {
    for (const float value : ThroughABlock(TypeParam::kCodec, Codec::kF16, role, 128,
                                           std::vector<float>(16 * 128, 0.0f))) {
      EXPECT_EQ(value, 0.0f);
    }
  }
}

// Rotated, such a row is one spike. Points of the plane reach it least: q25 keeps half of it.
TYPED_TEST(CodecSuite, RowsOfOneValueComeBackNear) {
  const double share = TypeParam::kBitsMax < 4 ? 0.6 : 0.1;
  for (const StreamRole role : kRoles) {
    for (const float value : {1.0f, -3.5f, 1000.0f, 1e-3f}) {
      const std::vector<float> rows(16 * 128, value);
      double error = 0;
      for (const float read : ThroughABlock(TypeParam::kCodec, Codec::kF32, role, 128, rows)) {
        error += std::fabs(read - value) / 16 / 128;
      }
      EXPECT_LE(error, std::fabs(value) * share) << value;
    }
  }
}

TYPED_TEST(CodecSuite, ArenasThatAreNotBlockMajorAndLatentsAreRefused) {
  const NumericProfile profile = NumericProfile::Uniform(TypeParam::kCodec);
  for (const ArenaLayout arena : {ArenaLayout::kLayerMajor, ArenaLayout::kHeadMajor}) {
    const auto layout = SlotLayout::Create(Geometry::Uniform(1, 1, 64), profile, arena);
    ASSERT_FALSE(layout.has_value());
    EXPECT_EQ(layout.error().code, ErrorCode::kUnsupported);
  }
  Geometry latent = Geometry::Uniform(1, 1, 64);
  latent.groups[0].streams = {{.role = StreamRole::kLatent, .heads = 1, .dim = 576}};
  EXPECT_FALSE(SlotLayout::Create(latent, profile, ArenaLayout::kBlockMajor).has_value());
  EXPECT_FALSE(SlotLayout::CreateOpen(Geometry::Uniform(1, 1, 64), profile).has_value());
}

}  // namespace
}  // namespace quire::codec
