// Attention of the class mma16: near the reference in f64, and the same bits however its work is cut.
#include <gtest/gtest.h>
// gtest before rapidcheck
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>

#include "attention/reference.h"
#include "cuda/test_attention.h"

namespace quire::cuda {
namespace {

using attention::MakeShape;
using attention::RandomFloats;
using attention::TestArena;
using attention::TestShape;

// What attention promises against the reference on the same stored bytes (docs/spec.md, P6).
constexpr double kErrorMax = 1e-4;

double ErrorOf(const std::vector<float>& got, const std::vector<double>& want) {
  double error = 0;
  double norm = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    error += (got[i] - want[i]) * (got[i] - want[i]);
    norm += want[i] * want[i];
  }
  return std::sqrt(error / norm);
}

class MmaAttention : public DeviceAttentionTest {
 protected:
  void SetUp() override {
    DeviceAttentionTest::SetUp();
    if (device_ == nullptr) return;
    folding_ = MakeAttention(*device_, {.arithmetic = Arithmetic::kMma16, .folded_tiles_min = 1});
    leaving_ =
        MakeAttention(*device_, {.arithmetic = Arithmetic::kMma16, .folded_tiles_min = UINT32_MAX});
  }

  /// Rows in calls of `chunk` each.
  std::vector<float> InChunks(AttentionBackend& backend, const AttentionShape& shape,
                              const TestSequence& sequence, uint64_t first, uint32_t rows,
                              const std::vector<float>& queries, uint32_t chunk) {
    const size_t floats = size_t{shape.query_heads} * shape.key.dim;
    std::vector<float> all;
    for (uint32_t row = 0; row < rows; row += chunk) {
      const uint32_t some = std::min(chunk, rows - row);
      const auto begin = queries.begin() + static_cast<ptrdiff_t>(row * floats);
      const auto part = Compute(backend, shape, sequence, first + row, some,
                                {begin, begin + static_cast<ptrdiff_t>(some * floats)});
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  }

  /// Rows in one call and one by one have the same bits, and are near the reference.
  void ExpectRight(const AttentionShape& shape, const TestSequence& sequence, uint64_t first,
                   uint32_t rows) {
    SCOPED_TRACE(testing::Message() << "position " << first << " rows " << rows);
    const std::vector<float> queries =
        RandomFloats(size_t{rows} * shape.query_heads * shape.key.dim, &prng_);
    const auto got = Compute(*folding_, shape, sequence, first, rows, queries);
    const AttentionTask task = sequence.Task(first, rows, queries.data(), nullptr);
    EXPECT_LT(ErrorOf(got, attention::ReferenceAttention(shape, sequence.tables(), task)),
              kErrorMax);
    if (rows == 1) return;
    EXPECT_TRUE(SameBits(InChunks(*folding_, shape, sequence, first, rows, queries, 1), got));
    EXPECT_TRUE(SameBits(Compute(*leaving_, shape, sequence, first, rows, queries), got));
  }

  std::unique_ptr<AttentionBackend> folding_;
  std::unique_ptr<AttentionBackend> leaving_;
};

constexpr Codec kHalfCodecs[] = {Codec::kF16,  Codec::kBf16, Codec::kFp8E4m3, Codec::kFp8E5m2,
                                 Codec::kInt8, Codec::kInt4, Codec::kNf4,     Codec::kFp4,
                                 Codec::kQ25};

TEST_F(MmaAttention, EveryCodecAndLengthAroundEveryEdge) {
  for (const Codec codec : kHalfCodecs) {
    SCOPED_TRACE(CodecName(codec));
    const AttentionShape shape = MakeShape({.kv_heads = 2,
                                            .group = 4,
                                            .key_dim = 64,
                                            .value_dim = 64,
                                            .key_codec = codec,
                                            .value_codec = codec,
                                            .rotated = codec == Codec::kNf4});
    TestSequence sequence(shape, 600, false, &prng_);
    for (const uint64_t length : {1, 15, 16, 17, 255, 256, 257, 512, 600}) {
      ExpectRight(shape, sequence, length - 1, 1);
    }
    ExpectRight(shape, sequence, 240, 33);
  }
}

}  // namespace
}  // namespace quire::cuda
