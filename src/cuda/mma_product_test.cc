// Products in matrix instructions: near the sum in f64, and the same bits however many rows there
// are.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/float_bits.h"
#include "base/prng.h"
#include "cuda/test_device.h"
#include "model/matmul.h"

namespace quire::cuda {
namespace {

class MmaProducts : public testing::TestWithParam<Round> {
 protected:
  void SetUp() override { NeedDevice(device_.get()); }

  static float Rounded(float value) {
    return GetParam() == Round::kF16 ? F16ToF32(F32ToF16(value)) : Bf16ToF32(F32ToBf16(value));
  }
  std::vector<float> Numbers(size_t count) {
    std::vector<float> numbers(count);
    for (float& number : numbers) number = Rounded(prng_.NextFloat(-1.0f, 1.0f));
    return numbers;
  }

  /// x times w, [rows, n], in one launch.
  std::vector<float> Product(const std::vector<float>& w, const std::vector<float>& x, uint32_t n,
                             uint32_t k, const std::vector<float>& bias = {},
                             Round round = Round::kF32, uint32_t tile_rows = 0) {
    const auto type = static_cast<ComputeType>(GetParam());
    std::vector<uint16_t> codes(w.size());
    for (size_t i = 0; i < w.size(); ++i) {
      codes[i] = GetParam() == Round::kF16 ? F32ToF16(w[i]) : F32ToBf16(w[i]);
    }
    const uint64_t bytes = model::PackedBytes(n, k, type);
    std::vector<std::byte> memory(bytes + 64);
    std::byte* const panels =
        memory.data() + (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64) % 64;
    model::PackRows({.panels = panels, .n = n, .k = k, .type = type},
                    reinterpret_cast<const std::byte*>(codes.data()), 0, n, panels);
    const auto rows = static_cast<uint32_t>(x.size() / k);
    std::vector<float> inputs = x;
    std::vector<float> added = bias;
    std::vector<float> y(size_t{rows} * n, -7.0f);
    const Mirror weights(*device_, panels, bytes);
    const Mirror asked(*device_, inputs.data(), inputs.size() * sizeof(float));
    const Mirror joined(*device_, added.data(), added.size() * sizeof(float));
    Mirror answered(*device_, y.data(), y.size() * sizeof(float));
    device_->Launch(MatmulArgs{.w = {.data = weights.there(), .n = n, .k = k, .type = GetParam()},
                               .x = asked.there<float>(),
                               .bias = bias.empty() ? nullptr : joined.there<float>(),
                               .y = answered.there<float>(),
                               .rows = rows,
                               .round = round,
                               .mma = true,
                               .tile_rows = tile_rows});
    answered.Fetch();
    return y;
  }

  std::unique_ptr<Device> device_ = MakeTestDevice();
  Prng prng_{23};
};

TEST_P(MmaProducts, AreNearTheSumInF64) {
  for (const auto& [rows, n, k] :
       {std::tuple{1u, 16u, 64u}, {16u, 40u, 128u}, {17u, 200u, 320u}, {70u, 129u, 192u}}) {
    const auto w = Numbers(size_t{n} * k);
    const auto x = Numbers(size_t{rows} * k);
    const auto got = Product(w, x, n, k);
    double error = 0;
    double norm = 0;
    for (uint32_t i = 0; i < rows; ++i) {
      for (uint32_t j = 0; j < n; ++j) {
        double sum = 0;
        for (uint32_t d = 0; d < k; ++d) sum += double{x[i * k + d]} * w[j * k + d];
        error += (got[i * n + j] - sum) * (got[i * n + j] - sum);
        norm += sum * sum;
      }
    }
    EXPECT_LT(std::sqrt(error / norm), 1e-5) << rows << " rows, n " << n << " k " << k;
  }
}

TEST_P(MmaProducts, RowsDoNotKnowOfEachOther) {
  constexpr uint32_t kRows = 70;
  constexpr uint32_t kN = 150;
  constexpr uint32_t kK = 256;
  const auto w = Numbers(size_t{kN} * kK);
  const auto x = Numbers(size_t{kRows} * kK);
  const auto bias = Numbers(kN);
  const auto want = Product(w, x, kN, kK, bias, GetParam());
  for (const uint32_t tile_rows : {16u, 32u, 64u}) {
    const auto got = Product(w, x, kN, kK, bias, GetParam(), tile_rows);
    EXPECT_EQ(std::memcmp(got.data(), want.data(), want.size() * sizeof(float)), 0) << tile_rows;
  }
  for (const uint32_t chunk : {1u, 5u, 16u, 17u, 33u, 64u}) {  // every shape of blocks
    std::vector<float> got;
    for (uint32_t row = 0; row < kRows; row += chunk) {
      const uint32_t end = std::min(kRows, row + chunk);
      const auto some =
          Product(w, {x.begin() + row * kK, x.begin() + end * kK}, kN, kK, bias, GetParam());
      got.insert(got.end(), some.begin(), some.end());
    }
    EXPECT_EQ(std::memcmp(got.data(), want.data(), want.size() * sizeof(float)), 0) << chunk;
  }
}

TEST_P(MmaProducts, BiasJoinsTheSumBeforeItIsRounded) {
  constexpr uint32_t kN = 33;
  constexpr uint32_t kK = 64;
  const auto w = Numbers(size_t{kN} * kK);
  const auto x = Numbers(kK);
  const auto bias = Numbers(kN);
  const auto sums = Product(w, x, kN, kK);
  const auto got = Product(w, x, kN, kK, bias, GetParam());
  for (uint32_t j = 0; j < kN; ++j) EXPECT_EQ(got[j], Rounded(sums[j] + bias[j]));
}

// Equal bits of hit and miss need this (docs/numerics.md section 5): a product with a zero adds
// nothing, whatever the other factor is.
TEST_P(MmaProducts, ZerosCountForNothing) {
  constexpr uint32_t kN = 64;
  constexpr uint32_t kK = 256;
  auto w = Numbers(size_t{kN} * kK);
  auto x = Numbers(size_t{20} * kK);
  for (size_t i = 0; i < x.size(); ++i) {
    if (i / 3 % 2 == 0) x[i] = 0.0f;
    if (i / kK % 2 != 0) x[i] *= 0x1p-12f;
  }
  const auto want = Product(w, x, kN, kK);
  auto large = w;
  for (uint32_t i = 0; i < 20; ++i) {
    for (uint32_t j = 0; j < kN; ++j) {
      for (uint32_t d = 0; d < kK; ++d) {
        const bool zero = x[i * kK + d] == 0.0f;
        large[j * kK + d] = zero ? (d % 2 == 0 ? 61440.0f : -0.0f) : w[j * kK + d];
      }
    }
    const std::vector<float> row(x.begin() + i * kK, x.begin() + (i + 1) * kK);
    const auto got = Product(large, row, kN, kK);
    EXPECT_EQ(std::memcmp(got.data(), want.data() + i * kN, kN * sizeof(float)), 0) << "row " << i;
  }
}

// Attention has its query vectors as columns (docs/numerics.md section 5), products of the model
// have rows: what an instruction adds up is the same either way.
TEST_P(MmaProducts, FactorsChangePlaces) {
  constexpr uint32_t kRows = 40;
  constexpr uint32_t kN = 56;
  constexpr uint32_t kK = 320;
  auto w = Numbers(size_t{kN} * kK);
  auto x = Numbers(size_t{kRows} * kK);
  for (size_t i = 0; i < x.size(); ++i) x[i] *= std::ldexp(1.0f, static_cast<int>(i / 5 % 9) - 6);
  for (size_t i = 0; i < w.size(); ++i) w[i] *= std::ldexp(1.0f, static_cast<int>(i / 7 % 5) - 3);
  const auto there = Product(w, x, kN, kK);
  const auto back = Product(x, w, kRows, kK);
  for (uint32_t i = 0; i < kRows; ++i) {
    for (uint32_t j = 0; j < kN; ++j) {
      ASSERT_EQ(std::bit_cast<uint32_t>(there[i * kN + j]),
                std::bit_cast<uint32_t>(back[j * kRows + i]))
          << "row " << i << ", column " << j;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, MmaProducts, testing::Values(Round::kF16, Round::kBf16));

}  // namespace
}  // namespace quire::cuda
