// The kernels of devices, run on the host: they equal the scalar judge in every bit.
#include "cuda/attention.h"

#include <gtest/gtest.h>
// gtest before rapidcheck
#include <rapidcheck/gtest.h>

#include "attention/test_sequence.h"
#include "cuda/host_device.h"

namespace quire::cuda {
namespace {

using attention::MakeShape;
using attention::RandomFloats;
using attention::TestSequence;
using attention::TestShape;

class CudaAttention : public testing::Test {
 protected:
  std::vector<float> Compute(AttentionBackend& backend, const AttentionShape& shape,
                             const TestSequence& sequence, uint64_t first_position, uint32_t rows,
                             const std::vector<float>& queries) {
    std::vector<float> out(size_t{rows} * shape.query_heads * shape.value.dim, -7.0f);
    const AttentionTask task = sequence.Task(first_position, rows, queries.data(), out.data());
    attention::Attend(backend, shape, sequence.tables(), {&task, 1}, *executor_);
    return out;
  }

  /// Both compute `rows` rows from `first_position` on.
  void ExpectTheJudgesBits(const AttentionShape& shape, const TestSequence& sequence,
                           uint64_t first_position, uint32_t rows) {
    const std::vector<float> queries =
        RandomFloats(size_t{rows} * shape.query_heads * shape.key.dim, &prng_);
    const auto want = Compute(*judge_, shape, sequence, first_position, rows, queries);
    const auto got = Compute(*backend_, shape, sequence, first_position, rows, queries);
    EXPECT_EQ(std::memcmp(got.data(), want.data(), want.size() * sizeof(float)), 0)
        << "position " << first_position << " rows " << rows;
  }

  std::unique_ptr<Device> device_ = MakeHostDevice();
  std::unique_ptr<AttentionBackend> backend_ = MakeAttention(*device_);
  std::unique_ptr<AttentionBackend> judge_ = MakeJudgeAttention();
  std::unique_ptr<Executor> executor_ = MakeThreadPool(1);
  Prng prng_{17};
};

TEST_F(CudaAttention, EveryCodecAndLengthAroundEveryEdge) {
  for (const Codec codec : kCodecs) {
    SCOPED_TRACE(CodecName(codec));
    const AttentionShape shape = MakeShape({.kv_heads = 2,
                                            .group = 4,
                                            .key_dim = 64,
                                            .value_dim = 64,
                                            .key_codec = codec,
                                            .value_codec = codec,
                                            .rotated = codec == Codec::kNf4});
    TestSequence sequence(shape, 600, false, &prng_);
    for (const uint64_t length : {1, 15, 16, 17, 255, 256, 257, 512, 513, 600}) {
      ExpectTheJudgesBits(shape, sequence, length - 1, 1);
    }
    ExpectTheJudgesBits(shape, sequence, 240, 33);
  }
}

}  // namespace
}  // namespace quire::cuda
