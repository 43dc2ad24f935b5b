// The scalar judge: docs/numerics.md section 2 in plain loops. Every kernel must give these bits.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "attention/exp.h"
#include "attention/shape.h"
#include "codec/scalar.h"
#include "quire/attention.h"
#include "quire/identity.h"

namespace quire {
namespace attention {
namespace {

constexpr float kEmptyMax = -std::numeric_limits<float>::infinity();

struct State {
  float max = kEmptyMax;
  float sum = 0.0f;
  std::vector<float> out;  // [value.dim]
};

bool Visible(const AttentionShape& shape, uint64_t position, uint64_t token) {
  if (token > position) return false;
  return shape.window_tokens == 0 || token + shape.window_tokens > position ||
         token < shape.sink_tokens;
}

/// Element (token, d) of KV head `head` as the query at `position` sees it.
float Load(const StreamLayout& stream, const AttentionTask& task, uint32_t head, uint64_t position,
           uint64_t token, uint32_t d) {
  const uint64_t block = token / stream.block_tokens;
  const uint64_t in_block = token % stream.block_tokens;
  const bool own = block == position / stream.block_tokens;
  const std::byte* slot = own ? task.open[block] : task.sealed[block];
  const uint64_t index = stream.inner == InnerAxis::kToken ? d * stream.block_tokens + in_block
                                                           : in_block * stream.dim + d;
  return codec::LoadValue(stream.codec,
                          slot + stream.offset_bytes + head * stream.head_stride_bytes, index);
}

float Tree16(std::array<float, 16> x) {
  for (int width = 8; width > 0; width /= 2) {
    for (int j = 0; j < width; ++j) x[j] += x[j + width];
  }
  return x[0];
}

State Split(const AttentionShape& shape, const AttentionTask& task, uint32_t kv_head,
            const std::vector<float>& query, uint64_t position, uint64_t split) {
  State state;
  state.out.assign(shape.value.dim, 0.0f);
  std::vector<uint64_t> tokens;
  for (uint64_t t = split * kSplitTokens; t < (split + 1) * kSplitTokens; ++t) {
    if (Visible(shape, position, t)) tokens.push_back(t);
  }
  if (tokens.empty()) return state;

  std::vector<float> scores;
  for (const uint64_t t : tokens) {
    float score = 0.0f;
    for (uint32_t d = 0; d < shape.key.dim; ++d) {
      score = std::fma(query[d], Load(shape.key, task, kv_head, position, t, d), score);
    }
    scores.push_back(score);
    state.max = std::max(state.max, score);
  }
  state.max += 0.0f;
  std::array<float, 16> partial{};
  for (size_t i = 0; i < tokens.size(); ++i) {
    const float e = Exp(scores[i] - state.max);
    partial[tokens[i] % 16] += e;
    for (uint32_t d = 0; d < shape.value.dim; ++d) {
      const float value = Load(shape.value, task, kv_head, position, tokens[i], d);
      state.out[d] = std::fma(e, value, state.out[d]);
    }
  }
  state.sum = Tree16(partial);
  return state;
}

State Merge(State a, State b) {
  if (a.max == kEmptyMax) return b;
  if (b.max == kEmptyMax) return a;
  const float max = std::max(a.max, b.max);
  const float ea = Exp(a.max - max);
  const float eb = Exp(b.max - max);
  a.max = max;
  a.sum = std::fma(a.sum, ea, b.sum * eb);
  for (size_t d = 0; d < a.out.size(); ++d) a.out[d] = std::fma(a.out[d], ea, b.out[d] * eb);
  return a;
}

class Judge final : public AttentionBackend {
 public:
  std::string_view name() const override { return "cpu"; }
  std::string_view target() const override { return "judge"; }
  Result<void> Supports(const AttentionShape& shape) const override { return ValidateShape(shape); }

  void Attend(const AttentionShape& shape, std::span<const AttentionTask> tasks,
              Executor& executor) override {
    (void)executor;
    const uint32_t group = shape.query_heads / shape.key.heads;
    for (const AttentionTask& task : tasks) {
      for (uint32_t row = 0; row < task.rows; ++row) {
        for (uint32_t head = 0; head < shape.query_heads; ++head) {
          const uint64_t vector = uint64_t{row} * shape.query_heads + head;
          AttendOne(shape, task, head / group, task.first_position + row,
                    task.queries + vector * shape.key.dim, task.out + vector * shape.value.dim);
        }
      }
    }
  }

 private:
  static void AttendOne(const AttentionShape& shape, const AttentionTask& task, uint32_t kv_head,
                        uint64_t position, const float* query, float* out) {
    std::vector<float> scaled(query, query + shape.key.dim);
    for (float& value : scaled) value *= shape.scale;
    std::array<State, kLanes> lanes;
    for (uint64_t split = 0; split <= position / kSplitTokens; ++split) {
      State& lane = lanes[split % kLanes];
      lane = Merge(lane, Split(shape, task, kv_head, scaled, position, split));
    }
    for (uint32_t width = kLanes / 2; width > 0; width /= 2) {
      for (uint32_t j = 0; j < width; ++j) lanes[j] = Merge(lanes[j], lanes[j + width]);
    }
    for (uint32_t d = 0; d < shape.value.dim; ++d) out[d] = lanes[0].out[d] / lanes[0].sum;
  }
};

}  // namespace
}  // namespace attention

std::unique_ptr<AttentionBackend> MakeJudgeAttention() {
  return std::make_unique<attention::Judge>();
}

}  // namespace quire
