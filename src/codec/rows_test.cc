#include "codec/streams.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "base/prng.h"
#include "codec/scalar.h"
#include "codec/test_util.h"

namespace quire::codec {
namespace {

constexpr Codec kCodecs[] = {Codec::kF32, Codec::kF16, Codec::kBf16};
constexpr std::byte kUntouched{0xa5};

// Bits that tell conversions apart: any pattern, and the edges of the f16 and bf16 ranges.
float TrickyValue(Prng& prng) {
  const float edges[] = {0.0f,
                         -0.0f,
                         65504.0f,
                         65519.0f,
                         65520.0f,
                         -70000.0f,
                         3.4e38f,
                         -3.39e38f,
                         1e-40f,
                         6e-8f,
                         5.9e-8f,
                         1e-5f,
                         1.0f,
                         std::numeric_limits<float>::infinity(),
                         -std::numeric_limits<float>::infinity(),
                         std::numeric_limits<float>::quiet_NaN()};
  const uint64_t kind = prng.NextBelow(3);
  if (kind == 0) return edges[prng.NextBelow(std::size(edges))];
  if (kind == 1) return prng.NextFloat(-4.0f, 4.0f);
  return std::bit_cast<float>(static_cast<uint32_t>(prng.Next64()));
}

struct Case {
  Codec dtype = Codec::kF32;  // of the rows
  StreamLayout stream;
  uint32_t row_begin = 0;
  uint32_t tokens = 0;
  uint32_t token_in_block = 0;
  uint32_t padding = 0;       // between heads and tokens of the rows, in values
  uint32_t misalignment = 0;  // of rows and slot, in values
};

uint64_t IndexInPlane(const StreamLayout& stream, uint32_t token, uint32_t dim) {
  return stream.inner == InnerAxis::kToken ? uint64_t{dim} * stream.block_tokens + token
                                           : uint64_t{token} * stream.dim + dim;
}

// Writes with WriteRows and with one loop over values, compares every byte of the slot, then reads.
void Check(const Case& c, Prng& prng) {
  const uint32_t dtype_bytes = ValueBytes(c.dtype);
  const uint32_t bytes = ValueBytes(c.stream.codec);
  RowsView rows{.dtype = c.dtype};
  rows.head_stride = c.stream.dim + c.padding;
  rows.token_stride = rows.head_stride * c.stream.heads + c.padding;
  std::vector<std::byte> data((c.misalignment + (c.row_begin + c.tokens) * rows.token_stride) *
                              dtype_bytes);
  for (size_t i = 0; i < data.size() / dtype_bytes; ++i) {
    if (c.dtype == Codec::kF32) {
      StoreValue(Codec::kF32, TrickyValue(prng), data.data(), i);
    } else {
      const auto code = static_cast<uint16_t>(prng.Next64());
      std::memcpy(data.data() + i * 2, &code, 2);
    }
  }
  rows.data = data.data() + c.misalignment * dtype_bytes;

  const uint64_t slot_bytes =
      c.stream.offset_bytes + c.stream.heads * c.stream.head_stride_bytes + 64;
  std::vector<std::byte> want(c.misalignment * bytes + slot_bytes, kUntouched);
  std::vector<std::byte> got = want;
  WriteRows(c.stream, rows, c.row_begin, c.tokens, c.token_in_block,
            got.data() + c.misalignment * bytes);
  for (uint32_t h = 0; h < c.stream.heads; ++h) {
    std::byte* plane = want.data() + c.misalignment * bytes + c.stream.offset_bytes +
                       h * c.stream.head_stride_bytes;
    for (uint32_t t = 0; t < c.tokens; ++t) {
      for (uint32_t d = 0; d < c.stream.dim; ++d) {
        const auto* from = static_cast<const std::byte*>(rows.data);
        const int64_t i = (c.row_begin + t) * rows.token_stride + h * rows.head_stride + d;
        const uint64_t index = IndexInPlane(c.stream, c.token_in_block + t, d);
        if (c.dtype == c.stream.codec) {
          std::memcpy(plane + index * bytes, from + i * bytes, bytes);
        } else {
          StoreValue(c.stream.codec, LoadValue(c.dtype, from, i), plane, index);
        }
      }
    }
  }
  ASSERT_EQ(std::memcmp(got.data(), want.data(), want.size()), 0);

  const int64_t out_head_stride = int64_t{c.tokens} * c.stream.dim + c.padding;
  std::vector<float> read(c.stream.heads * out_head_stride + 1, 7.0f);
  std::vector<float> want_read = read;
  ReadRows(c.stream, got.data() + c.misalignment * bytes, c.token_in_block, c.tokens, read.data(),
           out_head_stride);
  for (uint32_t h = 0; h < c.stream.heads; ++h) {
    const std::byte* plane = want.data() + c.misalignment * bytes + c.stream.offset_bytes +
                             h * c.stream.head_stride_bytes;
    for (uint32_t t = 0; t < c.tokens; ++t) {
      for (uint32_t d = 0; d < c.stream.dim; ++d) {
        const float value =
            LoadValue(c.stream.codec, plane, IndexInPlane(c.stream, c.token_in_block + t, d));
        want_read[h * out_head_stride + t * c.stream.dim + d] = value;
      }
    }
  }
  ASSERT_EQ(std::memcmp(read.data(), want_read.data(), read.size() * sizeof(float)), 0);
}

StreamLayout MakeStream(Codec codec, InnerAxis inner, uint32_t heads, uint32_t dim,
                        uint32_t block_tokens) {
  return {.codec = codec,
          .inner = inner,
          .heads = heads,
          .dim = dim,
          .block_tokens = block_tokens,
          .offset_bytes = 64,
          .head_stride_bytes = uint64_t{dim} * block_tokens * ValueBytes(codec)};
}

TEST(Rows, EveryLengthAndPlaceEqualsTheLoop) {
  ForEachTarget([] {
    Prng prng(1);
    for (const InnerAxis inner : {InnerAxis::kToken, InnerAxis::kDim}) {
      for (uint32_t tokens = 0; tokens <= 16; ++tokens) {
        for (const Codec codec : kCodecs) {
          for (const Codec dtype : kCodecs) {
            Case c{.dtype = dtype, .stream = MakeStream(codec, inner, 2, 12, 16)};
            c.tokens = tokens;
            c.token_in_block = static_cast<uint32_t>(prng.NextBelow(17 - tokens));
            c.misalignment = static_cast<uint32_t>(prng.NextBelow(4));
            ASSERT_NO_FATAL_FAILURE(Check(c, prng)) << "tokens " << tokens;
          }
        }
      }
    }
  });
}

TEST(Rows, EveryDimEqualsTheLoop) {
  ForEachTarget([] {
    Prng prng(2);
    for (uint32_t dim = 1; dim <= 140; ++dim) {
      Case c;
      c.dtype = kCodecs[prng.NextBelow(3)];
      c.stream = MakeStream(
          kCodecs[prng.NextBelow(3)], prng.NextChance(2) ? InnerAxis::kToken : InnerAxis::kDim,
          1 + static_cast<uint32_t>(prng.NextBelow(3)), dim, 16u << prng.NextBelow(3));
      c.row_begin = static_cast<uint32_t>(prng.NextBelow(4));
      c.tokens = static_cast<uint32_t>(prng.NextBelow(c.stream.block_tokens + 1));
      c.token_in_block =
          static_cast<uint32_t>(prng.NextBelow(c.stream.block_tokens + 1 - c.tokens));
      c.padding = static_cast<uint32_t>(prng.NextBelow(3));
      c.misalignment = static_cast<uint32_t>(prng.NextBelow(5));
      ASSERT_NO_FATAL_FAILURE(Check(c, prng)) << "dim " << dim;
    }
  });
}

TEST(Rows, LargestShapeEqualsTheLoop) {
  ForEachTarget([] {
    Prng prng(3);
    for (const InnerAxis inner : {InnerAxis::kToken, InnerAxis::kDim}) {
      Case c{.dtype = Codec::kF32, .stream = MakeStream(Codec::kF16, inner, 1, 512, 256)};
      c.tokens = 256;
      ASSERT_NO_FATAL_FAILURE(Check(c, prng));
    }
  });
}

TEST(Rows, F16SaturatesFiniteValuesOnly) {
  ForEachTarget([] {
    const float infinity = std::numeric_limits<float>::infinity();
    // Sixteen, so that the vector path takes them.
    const std::vector<float> row = {65519.9f,  65520.0f, -65520.0f, 3.4e38f,  -3.4e38f, infinity,
                                    -infinity, 65504.0f, -65504.0f, 65505.0f, 1e30f,    -1e30f,
                                    0.0f,      -0.0f,    1.0f,      -1.0f};
    const std::vector<float> want = {65504.0f,  65504.0f, -65504.0f, 65504.0f, -65504.0f, infinity,
                                     -infinity, 65504.0f, -65504.0f, 65504.0f, 65504.0f,  -65504.0f,
                                     0.0f,      -0.0f,    1.0f,      -1.0f};
    const StreamLayout stream = MakeStream(Codec::kF16, InnerAxis::kDim, 1, 16, 16);
    std::vector<std::byte> slot(64 + stream.head_stride_bytes);
    WriteRows(stream, {.data = row.data(), .token_stride = 16, .head_stride = 16}, 0, 1, 0,
              slot.data());
    std::vector<float> read(16);
    ReadRows(stream, slot.data(), 0, 1, read.data(), 16);
    EXPECT_EQ(read, want);
    for (size_t i = 0; i < row.size(); ++i) {
      EXPECT_EQ(F16ToF32(F32ToStoredF16(row[i])), want[i]);
    }
  });
}

}  // namespace
}  // namespace quire::codec
