// What tests of matrix products share: a matrix with its panels, and products whose writes are
// looked at.
#ifndef QUIRE_MODEL_TEST_MATMUL_H_
#define QUIRE_MODEL_TEST_MATMUL_H_

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "base/prng.h"
#include "model/matmul.h"
#include "model/tensor_source.h"

namespace quire::model {

struct Problem {
  PackedMatrix w;
  std::vector<std::byte> rows;  // [n, k] as in a file
  std::vector<std::byte> panels;
};

/// `value()` gives the weights in turn.
template <typename Value>
Problem MakeProblem(uint32_t n, uint32_t k, ComputeType type, PanelOrder order,
                    const Value& value) {
  Problem problem;
  const uint32_t value_bytes = TypeBytes(type);
  problem.rows.resize(uint64_t{n} * k * value_bytes);
  for (uint64_t i = 0; i < uint64_t{n} * k; ++i) {
    StoreValue(type, value(), problem.rows.data() + i * value_bytes);
  }
  // Dirty memory, aligned as the promise says: padding must be written, not found.
  const uint64_t bytes = PackedBytes(n, k, type, order);
  problem.panels.assign(bytes + 64, std::byte{0xff});
  void* at = problem.panels.data();
  size_t room = problem.panels.size();
  std::align(64, bytes, at, room);
  problem.w = {static_cast<std::byte*>(at), n, k, type, order};
  PackRows(problem.w, problem.rows.data(), 0, n, static_cast<std::byte*>(at));
  return problem;
}

inline std::vector<float> RandomRows(uint32_t rows, uint32_t k, Prng& prng) {
  std::vector<float> x(uint64_t{rows} * k);
  for (float& value : x) value = prng.NextFloat(-2.0f, 2.0f);
  return x;
}

/// The product into rows that stand apart, so that a write past a row's end is seen.
inline std::vector<float> ProductOf(decltype(&Matmul) matmul, const Problem& problem,
                                    const std::vector<float>& x, uint32_t rows, ComputeType round,
                                    Executor& executor) {
  constexpr float kGuard = 12345.0f;
  const uint32_t stride = problem.w.n + 1;
  std::vector<float> y(uint64_t{rows} * stride, kGuard);
  std::vector<float*> pointers(rows);
  for (uint32_t r = 0; r < rows; ++r) pointers[r] = y.data() + uint64_t{r} * stride;
  MatmulScratch scratch;
  matmul(problem.w, x.data(), pointers, round, scratch, executor);
  std::vector<float> dense;
  for (uint32_t r = 0; r < rows; ++r) {
    dense.insert(dense.end(), pointers[r], pointers[r] + problem.w.n);
    EXPECT_EQ(pointers[r][problem.w.n], kGuard) << "row " << r;
  }
  return dense;
}

}  // namespace quire::model

#endif  // QUIRE_MODEL_TEST_MATMUL_H_
