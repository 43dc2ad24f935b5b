#include "attention/reference.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "attention/shape.h"
#include "codec/rotate.h"

namespace quire::attention {
namespace {

/// Element (token, d) of one stream as the query at `position` sees it.
double Load(const AttentionShape& shape, const StreamLayout& sealed, const StreamLayout& open,
            const BlockTables& tables, uint32_t sequence, uint32_t head, uint64_t position,
            uint64_t token, uint32_t d) {
  const uint64_t block = token / sealed.block_tokens;
  const auto in_block = static_cast<uint32_t>(token % sealed.block_tokens);
  const std::byte* const in_open = tables.open.BlockAt(sequence, block);
  const bool is_open = IsReadOpen(shape, position, block, in_open != nullptr);
  const StreamLayout& stream = is_open ? open : sealed;
  const std::byte* slot = is_open ? in_open : tables.sealed.BlockAt(sequence, block);
  const double code = StoredCode(stream, slot, head, in_block, d);
  if (IsIdentity(stream.codec)) return code;
  const auto [scale, mid] = LoadScale(stream, slot, head, in_block);
  return double{mid} + double{scale} * code;
}

/// The rotation of codec/rotate.h by its definition: entry (i, j) of the Hadamard matrix is
/// negative where i & j has an odd number of ones.
std::vector<double> Rotated(const std::vector<double>& x) {
  const uint32_t n = codec::RotationDim(static_cast<uint32_t>(x.size()));
  std::vector<double> y(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    const size_t block = i / n * n;
    for (size_t j = block; j < block + n; ++j) {
      y[i] += std::popcount(i % n & j % n) % 2 == 0 ? x[j] : -x[j];
    }
    y[i] /= std::sqrt(static_cast<double>(n));
  }
  return y;
}

void AttendOne(const AttentionShape& shape, const BlockTables& tables, uint32_t sequence,
               uint32_t query_head, uint64_t position, const float* query_row, double* out) {
  const uint32_t head = query_head / (shape.query_heads / shape.key.heads);
  std::vector<double> query(query_row, query_row + shape.key.dim);
  if (shape.key.rotated) query = Rotated(query);
  std::vector<double> sums(shape.value.dim);
  std::vector<uint64_t> tokens;
  std::vector<double> scores;
  for (uint64_t t = 0; t <= position; ++t) {
    const bool in_window = shape.window_tokens == 0 || position - t < shape.window_tokens;
    if (!in_window && t >= shape.sink_tokens) continue;
    double score = 0;
    for (uint32_t d = 0; d < shape.key.dim; ++d) {
      score += query[d] *
               Load(shape, shape.key, OpenKey(shape), tables, sequence, head, position, t, d);
    }
    tokens.push_back(t);
    score *= double{shape.scale};
    if (shape.alibi_slopes != nullptr) {
      score -= double{shape.alibi_slopes[query_head]} * static_cast<double>(position - t);
    }
    scores.push_back(score);
  }
  double max = *std::ranges::max_element(scores);
  double sum = 0;
  if (shape.sink_logits != nullptr) {
    max = std::max(max, double{shape.sink_logits[query_head]});
    sum = std::exp(double{shape.sink_logits[query_head]} - max);
  }
  for (size_t i = 0; i < tokens.size(); ++i) {
    const double weight = std::exp(scores[i] - max);
    sum += weight;
    for (uint32_t d = 0; d < shape.value.dim; ++d) {
      sums[d] += weight * Load(shape, shape.value, OpenValue(shape), tables, sequence, head,
                               position, tokens[i], d);
    }
  }
  if (shape.value.rotated) sums = Rotated(sums);
  for (uint32_t d = 0; d < shape.value.dim; ++d) out[d] = sums[d] / sum;
}

}  // namespace

std::vector<double> ReferenceAttention(const AttentionShape& shape, const BlockTables& tables,
                                       const AttentionTask& task) {
  std::vector<double> out(size_t{task.rows} * shape.query_heads * shape.value.dim);
  for (uint32_t row = 0; row < task.rows; ++row) {
    for (uint32_t head = 0; head < shape.query_heads; ++head) {
      const uint64_t vector = uint64_t{row} * shape.query_heads + head;
      AttendOne(shape, tables, task.sequence, head, task.first_position + row,
                task.queries + vector * shape.key.dim, out.data() + vector * shape.value.dim);
    }
  }
  return out;
}

}  // namespace quire::attention
