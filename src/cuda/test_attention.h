// Attention of a device in tests: sequences of the host's, mirrored there.
#ifndef QUIRE_CUDA_TEST_ATTENTION_H_
#define QUIRE_CUDA_TEST_ATTENTION_H_

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <vector>

#include "attention/test_sequence.h"
#include "cuda/attention.h"
#include "cuda/test_device.h"

namespace quire::cuda {

class DeviceAttentionTest : public testing::Test {
 protected:
  using AttentionShape = quire::AttentionShape;
  using TestSequence = attention::TestSequence;

  void SetUp() override {
    if (device_ == nullptr) GTEST_SKIP() << "no CUDA device here: these kernels have not run";
  }

  /// Tables of the host with slots that the device has.
  static BlockTables There(BlockTables tables, const Mirror& arena) {
    tables.sealed.base = tables.open.base = arena.there();
    return tables;
  }

  /// What `backend` computes for rows from `first_position` on, in one call.
  /// Shape: queries and result [rows, query_heads, dim]
  std::vector<float> Compute(AttentionBackend& backend, const AttentionShape& shape,
                             const TestSequence& sequence, uint64_t first_position, uint32_t rows,
                             std::vector<float> queries) {
    std::vector<float> out(size_t{rows} * shape.query_heads * shape.value.dim, -7.0f);
    const Mirror arena(*device_, attention::TestArena::Get().base(),
                       attention::TestArena::Get().used_bytes());
    const Mirror asked(*device_, queries.data(), queries.size() * sizeof(float));
    Mirror answered(*device_, out.data(), out.size() * sizeof(float));
    const AttentionTask task =
        sequence.Task(first_position, rows, asked.there<float>(), answered.there<float>());
    attention::Attend(backend, shape, There(sequence.tables(), arena), {&task, 1}, *executor_);
    answered.Fetch();
    return out;
  }

  static bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
  }

  std::unique_ptr<Device> device_ = MakeTestDevice();
  std::unique_ptr<Executor> executor_ = MakeThreadPool(1);
  Prng prng_{17};
};

}  // namespace quire::cuda

#endif  // QUIRE_CUDA_TEST_ATTENTION_H_
