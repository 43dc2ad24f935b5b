#include "attention/importance.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "attention/shape.h"
#include "base/bits.h"
#include "base/check.h"
#include "codec/streams.h"

namespace quire::attention {
namespace {

/// Rows that share the widening of a block.
constexpr uint32_t kRowsPerChunk = 8;

float Dot(const float* a, const float* b, size_t count) {
  constexpr size_t kLanes = 8;  // that the compiler may keep in a vector
  std::array<float, kLanes> sums{};
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) sums[lane] += a[i + lane] * b[i + lane];
  }
  float sum = 0.0f;
  for (const float lane : sums) sum += lane;
  for (; i < count; ++i) sum += a[i] * b[i];
  return sum;
}

/// Of one worker; allocated before the work begins, which must not throw.
struct Scratch {
  Scratch(const AttentionShape& shape, const AttentionTask& task)
      : scores(size_t{std::min(task.rows, kRowsPerChunk)} * shape.query_heads *
               (task.first_position + task.rows)),
        keys(size_t{shape.key.heads} * shape.key.block_tokens * shape.key.dim) {}

  std::vector<float> scores;  // [rows, query_heads, tokens that the last row sees]
  std::vector<float> keys;    // [heads, block_tokens, dim] of one block
};

/// Rows [begin, end) of a task.
class ImportanceOfRows {
 public:
  ImportanceOfRows(const AttentionShape& shape, const BlockTables& tables,
                   const AttentionTask& task, uint32_t begin, uint32_t end, Scratch& scratch)
      : shape_(shape),
        tables_(tables),
        task_(task),
        begin_(begin),
        end_(end),
        tokens_(TokensSeen(end - 1)),
        scratch_(scratch) {}

  void AddTo(std::span<double> importance) {
    Score();
    for (uint32_t row = begin_; row < end_; ++row) {
      for (uint32_t head = 0; head < shape_.query_heads; ++head) AddSoftmax(row, head, importance);
    }
  }

 private:
  uint64_t TokensSeen(uint32_t row) const { return task_.first_position + row + 1; }
  float* Scores(uint32_t row, uint32_t head) {
    return scratch_.scores.data() + (size_t{row - begin_} * shape_.query_heads + head) * tokens_;
  }

  void Score() {
    const uint32_t block_tokens = shape_.key.block_tokens;
    std::vector<float>& keys = scratch_.keys;
    for (uint64_t block = 0; block * block_tokens < tokens_; ++block) {
      // A block that is written whole is sealed, and its open form may be gone.
      const bool open = (block + 1) * block_tokens > TokensSeen(task_.rows - 1);
      const StreamLayout& stream = open ? OpenKey(shape_) : shape_.key;
      const auto count =
          static_cast<uint32_t>(std::min<uint64_t>(block_tokens, tokens_ - block * block_tokens));
      const std::byte* slot = (open ? tables_.open : tables_.sealed).BlockAt(task_.sequence, block);
      codec::ReadRows(stream, slot, 0, count, keys.data(), int64_t{block_tokens} * stream.dim);
      ScoreBlock(block * block_tokens, count, keys);
    }
  }

  void ScoreBlock(uint64_t first, uint32_t count, const std::vector<float>& keys) {
    const uint32_t group = shape_.query_heads / shape_.key.heads;
    const size_t dim = shape_.key.dim;
    for (uint32_t row = begin_; row < end_; ++row) {
      for (uint32_t head = 0; head < shape_.query_heads; ++head) {
        const float* query = task_.queries + (size_t{row} * shape_.query_heads + head) * dim;
        const float* of_head = keys.data() + size_t{head / group} * shape_.key.block_tokens * dim;
        float* scores = Scores(row, head) + first;
        for (uint32_t t = 0; t < count; ++t) {
          scores[t] = shape_.scale * Dot(query, of_head + t * dim, dim);
        }
      }
    }
  }

  void AddSoftmax(uint32_t row, uint32_t head, std::span<double> importance) {
    float* scores = Scores(row, head);
    const uint64_t seen = TokensSeen(row);
    const float max = *std::max_element(scores, scores + seen);
    double sum = 0;
    for (uint64_t t = 0; t < seen; ++t) sum += scores[t] = std::exp(scores[t] - max);
    for (uint64_t t = 0; t < seen; ++t) importance[t / shape_.key.block_tokens] += scores[t] / sum;
  }

  const AttentionShape& shape_;
  const BlockTables& tables_;
  const AttentionTask& task_;
  const uint32_t begin_;
  const uint32_t end_;
  const uint64_t tokens_;  // that the last row sees
  Scratch& scratch_;
};

}  // namespace

void AddImportance(const AttentionShape& shape, const BlockTables& tables,
                   const AttentionTask& task, Executor& executor, std::span<double> importance) {
  QUIRE_CHECK(shape.window_tokens == 0);
  if (task.rows == 0) return;
  const uint64_t blocks = DivUp(task.first_position + task.rows, shape.key.block_tokens);
  QUIRE_CHECK(importance.size() >= blocks);
  const uint32_t chunks = DivUp(task.rows, kRowsPerChunk);
  std::vector<std::vector<double>> of_chunks(chunks, std::vector<double>(blocks));
  std::vector<Scratch> scratch(executor.worker_count(), Scratch(shape, task));
  executor.ParallelFor(chunks, [&](uint32_t chunk, uint32_t worker) {
    const uint32_t begin = chunk * kRowsPerChunk;
    ImportanceOfRows(shape, tables, task, begin, std::min(task.rows, begin + kRowsPerChunk),
                     scratch[worker])
        .AddTo(of_chunks[chunk]);
  });
  for (const std::vector<double>& of_chunk : of_chunks) {
    for (uint64_t block = 0; block < blocks; ++block) importance[block] += of_chunk[block];
  }
}

}  // namespace quire::attention
