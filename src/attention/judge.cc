// The scalar judge: docs/numerics.md section 2 in plain loops. Every kernel must give these bits.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "attention/exp.h"
#include "attention/shape.h"
#include "attention/stored.h"
#include "codec/rotate.h"
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

/// Where the query at `position` finds one stream of a token.
struct Place {
  const StreamLayout& stream;
  const std::byte* slot;
  uint32_t in_block;
};

Place Find(const StreamLayout& sealed, const StreamLayout& open, const AttentionTask& task,
           uint64_t position, uint64_t token) {
  const uint64_t block = token / sealed.block_tokens;
  const bool own = block == position / sealed.block_tokens;
  return {own ? open : sealed, own ? task.open[block] : task.sealed[block],
          static_cast<uint32_t>(token % sealed.block_tokens)};
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

  float query_sum = 0.0f;
  for (const float q : query) query_sum += q;
  std::vector<float> scores;
  for (const uint64_t t : tokens) {
    const Place key = Find(shape.key, OpenKey(shape), task, position, t);
    float score = 0.0f;
    for (uint32_t d = 0; d < shape.key.dim; ++d) {
      score = std::fma(query[d], StoredCode(key.stream, key.slot, kv_head, key.in_block, d), score);
    }
    if (!IsIdentity(key.stream.codec)) {
      const auto [scale, mid] = LoadScale(key.stream, key.slot, kv_head, key.in_block);
      score = codec::HasMids(key.stream.codec) ? std::fma(scale, score, mid * query_sum)
                                               : score * scale;
    }
    scores.push_back(score);
    state.max = std::max(state.max, score);
  }
  state.max += 0.0f;
  std::array<float, 16> partial{};
  float mids = 0.0f;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const float e = Exp(scores[i] - state.max);
    partial[tokens[i] % 16] += e;
    const Place value = Find(shape.value, OpenValue(shape), task, position, tokens[i]);
    float weight = e;
    if (!IsIdentity(value.stream.codec)) {
      const auto [scale, mid] = LoadScale(value.stream, value.slot, kv_head, value.in_block);
      weight = e * scale;
      if (codec::HasMids(value.stream.codec)) mids = std::fma(e, mid, mids);
    }
    for (uint32_t d = 0; d < shape.value.dim; ++d) {
      const float code = StoredCode(value.stream, value.slot, kv_head, value.in_block, d);
      state.out[d] = std::fma(weight, code, state.out[d]);
    }
  }
  if (codec::HasMids(shape.value.codec)) {
    for (float& out : state.out) out += mids;
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
    if (shape.key.rotated) codec::Rotate(scaled.data(), 1, shape.key.dim);
    std::array<State, kLanes> lanes;
    for (uint64_t split = 0; split <= position / kSplitTokens; ++split) {
      State& lane = lanes[split % kLanes];
      lane = Merge(lane, Split(shape, task, kv_head, scaled, position, split));
    }
    for (uint32_t width = kLanes / 2; width > 0; width /= 2) {
      for (uint32_t j = 0; j < width; ++j) lanes[j] = Merge(lanes[j], lanes[j + width]);
    }
    for (uint32_t d = 0; d < shape.value.dim; ++d) out[d] = lanes[0].out[d] / lanes[0].sum;
    if (shape.value.rotated) codec::Rotate(out, 1, shape.value.dim);
  }
};

}  // namespace
}  // namespace attention

std::unique_ptr<AttentionBackend> MakeJudgeAttention() {
  return std::make_unique<attention::Judge>();
}

}  // namespace quire
