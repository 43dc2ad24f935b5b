#include "codec/rotate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/prng.h"
#include "codec/scalar.h"
#include "codec/streams.h"
#include "codec/test_util.h"

namespace quire::codec {
namespace {

// The judge: the butterflies of rotate.h in plain loops.
void RotateByLoops(float* row, uint32_t dim) {
  const uint32_t n = RotationDim(dim);
  const auto factor = static_cast<float>(1.0 / std::sqrt(static_cast<double>(n)));
  for (float* x = row; x < row + dim && n > 1; x += n) {
    for (uint32_t h = 1; h < n; h *= 2) {
      for (uint32_t i = 0; i < n; ++i) {
        if ((i & h) != 0) continue;
        const float a = x[i];
        const float b = x[i + h];
        x[i] = a + b;
        x[i + h] = a - b;
      }
    }
    for (uint32_t i = 0; i < n; ++i) x[i] *= factor;
  }
}

std::vector<float> RandomRows(uint32_t count, uint32_t dim, Prng& prng) {
  std::vector<float> rows(uint64_t{count} * dim);
  for (float& value : rows) value = prng.NextFloat(-4.0f, 4.0f);
  return rows;
}

TEST(Rotate, EveryDimEqualsTheLoops) {
  ForEachTarget([] {
    Prng prng(1);
    for (uint32_t dim = 1; dim <= 300; ++dim) {
      const auto count = static_cast<uint32_t>(prng.NextBelow(4));
      const std::vector<float> rows = RandomRows(count, dim, prng);
      std::vector<float> want = rows;
      for (uint32_t r = 0; r < count; ++r) RotateByLoops(want.data() + r * dim, dim);
      const size_t bytes = rows.size() * sizeof(float);
      for (const bool at_front : {false, true}) {
        const GuardedBytes guarded(bytes, at_front);
        auto* got = reinterpret_cast<float*>(guarded.data());
        if (bytes > 0) std::memcpy(got, rows.data(), bytes);
        Rotate(got, count, dim);
        if (bytes == 0) continue;
        ASSERT_EQ(std::memcmp(got, want.data(), bytes), 0) << "dim " << dim;
      }
    }
  });
}

TEST(Rotate, LargestRunsEqualTheLoops) {
  ForEachTarget([] {
    Prng prng(2);
    for (const uint32_t dim : {512u, 1024u, 2048u, 3072u}) {
      std::vector<float> rows = RandomRows(2, dim, prng);
      std::vector<float> want = rows;
      for (uint32_t r = 0; r < 2; ++r) RotateByLoops(want.data() + r * dim, dim);
      Rotate(rows.data(), 2, dim);
      ASSERT_EQ(std::memcmp(rows.data(), want.data(), rows.size() * sizeof(float)), 0);
    }
  });
}

TEST(Rotate, KeepsLengthsAndUndoesItself) {
  Prng prng(3);
  for (const uint32_t dim : {1u, 2u, 7u, 48u, 64u, 80u, 128u, 576u, 1024u}) {
    const std::vector<float> rows = RandomRows(1, dim, prng);
    std::vector<float> rotated = rows;
    Rotate(rotated.data(), 1, dim);
    double before = 0;
    double after = 0;
    for (uint32_t d = 0; d < dim; ++d) {
      before += double{rows[d]} * rows[d];
      after += double{rotated[d]} * rotated[d];
    }
    EXPECT_NEAR(after / before, 1.0, 1e-6) << "dim " << dim;
    Rotate(rotated.data(), 1, dim);
    for (uint32_t d = 0; d < dim; ++d) EXPECT_NEAR(rotated[d], rows[d], 1e-5) << "dim " << dim;
  }
}

TEST(Rotate, SpreadsAnOutlierOverAllChannels) {
  for (const uint32_t dim : {64u, 128u, 1024u}) {
    std::vector<float> row(dim);
    row[dim / 3] = 32.0f;
    Rotate(row.data(), 1, dim);
    for (const float value : row) EXPECT_NEAR(std::fabs(value), 32.0 / std::sqrt(dim), 1e-5);
  }
}

// Their sums would be infinite, and finite values must not read as NaN.
TEST(Rotate, FiniteValuesAreLimitedBeforeIt) {
  constexpr float kLimit = 0x1p116f;
  const float infinity = std::numeric_limits<float>::infinity();
  ForEachTarget([&] {
    // Vectors and what they leave over.
    for (const uint32_t dim : {1u, 3u, 16u, 64u, 67u}) {
      StreamLayout stream = OnlyStream(Codec::kF32, InnerAxis::kDim, 1, dim, 16, 0);
      stream.rotated = true;
      for (const float value : {kLimit, -kLimit, 3.4e38f, -3.4e38f, 0x1.8p116f, infinity, -infinity,
                                std::nextafter(kLimit, infinity), std::nextafter(kLimit, 0.0f)}) {
        for (const uint32_t at : {0u, dim / 2, dim - 1}) {
          std::vector<float> row(dim, 1.0f);
          row[at] = value;
          std::vector<std::byte> slot(EndOf(stream));
          WriteRows(stream, {.data = row.data(), .token_stride = dim, .head_stride = dim}, 0, 1, 0,
                    slot.data());
          if (std::isfinite(value) && std::fabs(value) > kLimit) {
            row[at] = std::copysign(kLimit, value);
          }
          RotateByLoops(row.data(), dim);
          for (uint32_t d = 0; d < dim; ++d) {
            const float got = LoadValue(Codec::kF32, slot.data(), d);
            if (std::isnan(row[d])) {
              ASSERT_TRUE(std::isnan(got));
            } else {
              ASSERT_EQ(got, row[d]) << "dim " << dim << " value " << value;
            }
          }
        }
      }
    }
  });
}

// Rows written to a rotated stream lie there as the rotation and then the narrowing leave them, and
// come back turned the other way.
TEST(Rotate, RowsOfARotatedStreamAreRotatedOnTheWay) {
  ForEachTarget([] {
    Prng prng(4);
    for (const InnerAxis inner : {InnerAxis::kToken, InnerAxis::kDim}) {
      for (const uint32_t dim : {1u, 6u, 24u, 80u, 128u, 1024u, 1536u}) {
        for (const Codec codec : {Codec::kF32, Codec::kF16, Codec::kBf16}) {
          StreamLayout stream = OnlyStream(codec, inner, 2, dim, 16, 0);
          stream.rotated = true;
          const uint32_t tokens = 11;
          const std::vector<float> rows = RandomRows(tokens * 2, dim, prng);
          std::vector<std::byte> slot(EndOf(stream));
          WriteRows(stream, {.data = rows.data(), .token_stride = 2 * dim, .head_stride = dim}, 0,
                    tokens, 3, slot.data());
          std::vector<float> read(rows.size());
          ReadRows(stream, slot.data(), 3, tokens, read.data(), int64_t{tokens} * dim);
          for (uint32_t head = 0; head < 2; ++head) {
            for (uint32_t t = 0; t < tokens; ++t) {
              std::vector<float> want(rows.begin() + (t * 2 + head) * dim,
                                      rows.begin() + (t * 2 + head + 1) * dim);
              RotateByLoops(want.data(), dim);
              for (uint32_t d = 0; d < dim; ++d) {
                std::byte stored[4];
                StoreValue(codec, want[d], stored, 0);
                want[d] = LoadValue(codec, stored, 0);
                ASSERT_EQ(LoadValue(codec, slot.data() + head * stream.head_stride_bytes,
                                    PositionOf(stream, t + 3, d).byte),
                          want[d]);
              }
              RotateByLoops(want.data(), dim);
              ASSERT_EQ(std::memcmp(read.data() + (head * tokens + t) * dim, want.data(), dim * 4),
                        0);
            }
          }
        }
      }
    }
  });
}

}  // namespace
}  // namespace quire::codec
