#include "attention/reference.h"

#include <algorithm>
#include <cmath>

#include "codec/scalar.h"

namespace quire::attention {
namespace {

double Load(const StreamLayout& stream, const std::byte* slot, uint32_t head, uint64_t token,
            uint32_t d) {
  const std::byte* plane = slot + stream.offset_bytes + head * stream.head_stride_bytes;
  const uint64_t in_block = token % stream.block_tokens;
  return codec::LoadValue(stream.codec, plane,
                          stream.inner == InnerAxis::kToken ? d * stream.block_tokens + in_block
                                                            : in_block * stream.dim + d);
}

void AttendOne(const AttentionShape& shape, const AttentionTask& task, uint32_t head,
               uint64_t position, const float* query, double* out) {
  const uint64_t own_block = position / shape.key.block_tokens;
  std::vector<uint64_t> tokens;
  std::vector<double> scores;
  for (uint64_t t = 0; t <= position; ++t) {
    const bool in_window = shape.window_tokens == 0 || position - t < shape.window_tokens;
    if (!in_window && t >= shape.sink_tokens) continue;
    const uint64_t block = t / shape.key.block_tokens;
    const std::byte* slot = block == own_block ? task.open[block] : task.sealed[block];
    double score = 0;
    for (uint32_t d = 0; d < shape.key.dim; ++d) {
      score += double{query[d]} * Load(shape.key, slot, head, t, d);
    }
    tokens.push_back(t);
    scores.push_back(score * double{shape.scale});
  }
  const double max = *std::ranges::max_element(scores);
  double sum = 0;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const double weight = std::exp(scores[i] - max);
    const uint64_t block = tokens[i] / shape.key.block_tokens;
    const std::byte* slot = block == own_block ? task.open[block] : task.sealed[block];
    sum += weight;
    for (uint32_t d = 0; d < shape.value.dim; ++d) {
      out[d] += weight * Load(shape.value, slot, head, tokens[i], d);
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
