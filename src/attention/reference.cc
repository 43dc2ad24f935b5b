#include "attention/reference.h"

#include <algorithm>
#include <cmath>

#include "attention/shape.h"
#include "attention/stored.h"

namespace quire::attention {
namespace {

/// Element (token, d) as the query at `position` sees it.
double Load(const StreamLayout& sealed, const StreamLayout& open, const AttentionTask& task,
            uint32_t head, uint64_t position, uint64_t token, uint32_t d) {
  const uint64_t block = token / sealed.block_tokens;
  const uint64_t in_block = token % sealed.block_tokens;
  const bool own = block == position / sealed.block_tokens;
  const StreamLayout& stream = own ? open : sealed;
  const std::byte* slot = own ? task.open[block] : task.sealed[block];
  const double code = StoredCode(stream, slot, head, in_block, d);
  if (IsIdentity(stream.codec)) return code;
  const auto [scale, mid] = StoredScale(stream, slot, head, in_block);
  return double{mid} + double{scale} * code;
}

void AttendOne(const AttentionShape& shape, const AttentionTask& task, uint32_t head,
               uint64_t position, const float* query, double* out) {
  std::vector<uint64_t> tokens;
  std::vector<double> scores;
  for (uint64_t t = 0; t <= position; ++t) {
    const bool in_window = shape.window_tokens == 0 || position - t < shape.window_tokens;
    if (!in_window && t >= shape.sink_tokens) continue;
    double score = 0;
    for (uint32_t d = 0; d < shape.key.dim; ++d) {
      score += query[d] * Load(shape.key, OpenKey(shape), task, head, position, t, d);
    }
    tokens.push_back(t);
    scores.push_back(score * double{shape.scale});
  }
  const double max = *std::ranges::max_element(scores);
  double sum = 0;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const double weight = std::exp(scores[i] - max);
    sum += weight;
    for (uint32_t d = 0; d < shape.value.dim; ++d) {
      out[d] += weight * Load(shape.value, OpenValue(shape), task, head, position, tokens[i], d);
    }
  }
  for (uint32_t d = 0; d < shape.value.dim; ++d) out[d] /= sum;
}

}  // namespace

std::vector<double> ReferenceAttention(const AttentionShape& shape, const AttentionTask& task) {
  std::vector<double> out(size_t{task.rows} * shape.query_heads * shape.value.dim);
  const uint32_t group = shape.query_heads / shape.key.heads;
  for (uint32_t row = 0; row < task.rows; ++row) {
    for (uint32_t head = 0; head < shape.query_heads; ++head) {
      const uint64_t vector = uint64_t{row} * shape.query_heads + head;
      AttendOne(shape, task, head / group, task.first_position + row,
                task.queries + vector * shape.key.dim, out.data() + vector * shape.value.dim);
    }
  }
  return out;
}

}  // namespace quire::attention
