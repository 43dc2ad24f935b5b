// The scalar judge: docs/numerics.md section 2 in plain loops. Every kernel must give these bits.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "attention/plan.h"
#include "attention/reference.h"
#include "attention/scalar.h"
#include "attention/shape.h"
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

/// What a query vector looks at.
struct Context {
  const AttentionShape& shape;
  const BlockTables& tables;
  uint32_t sequence;
  uint64_t position;
  uint32_t query_head;

  uint32_t kv_head() const { return query_head / (shape.query_heads / shape.key.heads); }
};

/// Where it finds one stream of a token.
struct Place {
  const StreamLayout& stream;
  const std::byte* slot;
  uint32_t in_block;
};

Place Find(const Context& context, const StreamLayout& sealed, const StreamLayout& open,
           uint64_t token) {
  const uint64_t block = token / sealed.block_tokens;
  const std::byte* const in_open = context.tables.open.BlockAt(context.sequence, block);
  const bool is_open = IsReadOpen(context.shape, context.position, block, in_open != nullptr);
  return {is_open ? open : sealed,
          is_open ? in_open : context.tables.sealed.BlockAt(context.sequence, block),
          static_cast<uint32_t>(token % sealed.block_tokens)};
}

float Tree16(std::array<float, 16> x) {
  for (int width = 8; width > 0; width /= 2) {
    for (int j = 0; j < width; ++j) x[j] += x[j + width];
  }
  return x[0];
}

/// A row in fixed point (scalar.h).
struct FixedRow {
  std::vector<int32_t> numbers;
  float unit = 0.0f;
};

FixedRow ToFixed(const std::vector<float>& row) {
  uint32_t largest_bits = 0;
  for (const float value : row) largest_bits = std::max(largest_bits, MagnitudeBits(value));
  const FixedScale scale = FixedScaleOf(largest_bits);
  FixedRow fixed{.numbers = std::vector<int32_t>(row.size()), .unit = scale.unit};
  if (std::isnan(scale.unit)) return fixed;
  for (size_t i = 0; i < row.size(); ++i) {
    fixed.numbers[i] = static_cast<int32_t>(std::nearbyint(row[i] * scale.inverse));
  }
  return fixed;
}

int32_t IntegerAt(const Place& place, uint32_t head, uint32_t d) {
  const StreamLayout& stream = place.stream;
  const std::byte* plane = place.slot + stream.offset_bytes + head * stream.head_stride_bytes;
  return codec::IntegerOf(stream.codec, codec::LoadCode(stream, plane, place.in_block, d));
}

/// A scaled query vector, both as it is and in fixed point, and the sum of its channels.
struct Query {
  explicit Query(std::vector<float> scaled) : values(std::move(scaled)), fixed(ToFixed(values)) {
    for (const float q : values) sum += q;
  }

  std::vector<float> values;
  FixedRow fixed;
  float sum = 0.0f;
};

float Score(const Query& query, const Place& key, uint32_t head) {
  const Codec codec = key.stream.codec;
  float score = 0.0f;
  if (codec::HasIntegerCodes(codec)) {
    int32_t sum = 0;
    for (uint32_t d = 0; d < key.stream.dim; ++d) {
      sum += query.fixed.numbers[d] * IntegerAt(key, head, d);
    }
    score = static_cast<float>(sum) * (query.fixed.unit * codec::IntegerUnit(codec));
  } else {
    for (uint32_t d = 0; d < key.stream.dim; ++d) {
      score =
          std::fma(query.values[d], StoredCode(key.stream, key.slot, head, key.in_block, d), score);
    }
  }
  if (IsIdentity(codec)) return score;
  const auto [scale, mid] = LoadScale(key.stream, key.slot, head, key.in_block);
  return codec::HasMids(codec) ? std::fma(scale, score, mid * query.sum) : score * scale;
}

/// What the values of one split add up to, in the order of docs/numerics.md.
class ValueSum {
 public:
  ValueSum(uint32_t head, std::vector<float>* out) : head_(head), out_(*out) {}

  /// Tokens ascend; those of one form come before those of the other.
  void Add(const Place& value, uint32_t token, float e) {
    const Codec codec = value.stream.codec;
    const bool whole = codec::HasIntegerCodes(codec);
    if (!whole || &value.stream != form_) FlushForm();
    if (whole && token / kGroupTokens != group_) FlushGroup();
    float weight = e;
    if (!IsIdentity(codec)) {
      const auto [scale, mid] = LoadScale(value.stream, value.slot, head_, value.in_block);
      weight = e * scale;
      if (codec::HasMids(codec)) mids_[token % 16] = std::fma(e, mid, mids_[token % 16]);
    }
    if (whole) {
      form_ = &value.stream;
      group_ = token / kGroupTokens;
      places_.push_back(value);
      weights_.push_back(weight);
      return;
    }
    for (uint32_t d = 0; d < value.stream.dim; ++d) {
      const float code = StoredCode(value.stream, value.slot, head_, value.in_block, d);
      out_[d] = std::fma(weight, code, out_[d]);
    }
  }

  /// After the last token. `mids`: the codec has them.
  void Finish(bool mids) {
    FlushForm();
    if (!mids) return;
    for (float& out : out_) out += mid_sum_;
  }

 private:
  void FlushForm() {
    FlushGroup();
    mid_sum_ += Tree16(mids_);
    mids_ = {};
  }

  void FlushGroup() {
    if (places_.empty()) return;
    const FixedRow fixed = ToFixed(weights_);
    const float unit = fixed.unit * codec::IntegerUnit(places_[0].stream.codec);
    for (uint32_t d = 0; d < places_[0].stream.dim; ++d) {
      int32_t sum = 0;
      for (size_t i = 0; i < places_.size(); ++i) {
        sum += fixed.numbers[i] * IntegerAt(places_[i], head_, d);
      }
      out_[d] = std::fma(static_cast<float>(sum), unit, out_[d]);
    }
    places_.clear();
    weights_.clear();
  }

  const uint32_t head_;
  std::vector<float>& out_;
  const StreamLayout* form_ = nullptr;
  uint32_t group_ = 0;
  std::vector<Place> places_;   // of the group
  std::vector<float> weights_;  // of the group
  std::array<float, 16> mids_{};
  float mid_sum_ = 0.0f;
};

/// What ALiBi adds to the score of a token.
float WithDistance(const Context& context, uint64_t token, float score) {
  if (context.shape.alibi_slopes == nullptr) return score;
  const uint64_t first = token / kSplitTokens * kSplitTokens;
  const float distance =
      -static_cast<float>(context.position - first) + static_cast<float>(token - first);
  return std::fma(context.shape.alibi_slopes[context.query_head], distance, score);
}

State Split(const Context& context, const Query& query, uint64_t split) {
  const AttentionShape& shape = context.shape;
  const uint32_t kv_head = context.kv_head();
  State state;
  state.out.assign(shape.value.dim, 0.0f);
  std::vector<uint64_t> tokens;
  for (uint64_t t = split * kSplitTokens; t < (split + 1) * kSplitTokens; ++t) {
    if (Visible(shape, context.position, t)) tokens.push_back(t);
  }
  if (tokens.empty()) return state;

  std::vector<float> scores;
  for (const uint64_t t : tokens) {
    const float score = Score(query, Find(context, shape.key, OpenKey(shape), t), kv_head);
    scores.push_back(WithDistance(context, t, score));
    state.max = std::max(state.max, scores.back());
  }
  state.max += 0.0f;
  std::array<float, 16> partial{};
  ValueSum values(kv_head, &state.out);
  for (size_t i = 0; i < tokens.size(); ++i) {
    const float e = Exp(scores[i] - state.max);
    partial[tokens[i] % 16] += e;
    values.Add(Find(context, shape.value, OpenValue(shape), tokens[i]),
               static_cast<uint32_t>(tokens[i] % kSplitTokens), e);
  }
  values.Finish(codec::HasMids(shape.value.codec));
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

  Result<void> Attend(const AttentionShape& shape, const BlockTables& tables,
                      std::span<const AttentionTask> tasks, Executor& executor) override {
    (void)executor;
    QUIRE_TRY(Supports(shape));
    QUIRE_TRY(ValidateTasks(shape, tables, tasks));
    for (const AttentionTask& task : tasks) {
      for (uint32_t row = 0; row < task.rows; ++row) {
        const SplitRange splits = SplitsOf(task);
        for (uint32_t head = 0; head < shape.query_heads; ++head) {
          const uint64_t vector = uint64_t{row} * shape.query_heads + head;
          const Context context{shape, tables, task.sequence, task.first_position + row, head};
          std::array<State, kLanes> lanes = Taken(task, vector, shape.value.dim);
          if (splits.begin < splits.end) {
            Fold(context, task.queries + vector * shape.key.dim, splits, &lanes);
          }
          if (task.out == nullptr) {
            Leave(lanes, vector, shape.value.dim, task.to);
          } else {
            Finish(lanes, shape, head, task.out + vector * shape.value.dim);
          }
        }
      }
    }
    return {};
  }

 private:
  /// The states that query vector `vector` continues from.
  static std::array<State, kLanes> Taken(const AttentionTask& task, uint64_t vector, uint32_t dim) {
    std::array<State, kLanes> lanes;
    for (State& lane : lanes) lane.out.assign(dim, 0.0f);
    const LaneStates& from = task.from;
    uint64_t at = vector * LaneCount(from.lanes);
    for (uint32_t l = 0; l < kLanes; ++l) {
      if ((from.lanes >> l & 1) == 0) continue;
      lanes[l].max = from.max[at];
      lanes[l].sum = from.sum[at];
      lanes[l].out.assign(from.out + at * dim, from.out + (at + 1) * dim);
      ++at;
    }
    return lanes;
  }

  static void Fold(const Context& context, const float* query, const SplitRange& splits,
                   std::array<State, kLanes>* lanes) {
    const AttentionShape& shape = context.shape;
    std::vector<float> scaled(query, query + shape.key.dim);
    for (float& value : scaled) value *= shape.scale;
    if (shape.key.rotated) codec::Rotate(scaled.data(), 1, shape.key.dim);
    const Query row(std::move(scaled));
    const uint64_t end = std::min(splits.end, context.position / kSplitTokens + 1);
    for (uint64_t split = splits.begin; split < end; ++split) {
      State& lane = (*lanes)[split % kLanes];
      lane = Merge(lane, Split(context, row, split));
    }
  }

  /// Lanes that are not in `to` are left out.
  static void Leave(const std::array<State, kLanes>& lanes, uint64_t vector, uint32_t dim,
                    const LaneStates& to) {
    uint64_t at = vector * LaneCount(to.lanes);
    for (uint32_t l = 0; l < kLanes; ++l) {
      if ((to.lanes >> l & 1) == 0) continue;
      to.max[at] = lanes[l].max;
      to.sum[at] = lanes[l].sum;
      std::ranges::copy(lanes[l].out, to.out + at * dim);
      ++at;
    }
  }

  static void Finish(std::array<State, kLanes>& lanes, const AttentionShape& shape,
                     uint32_t query_head, float* out) {
    const StreamLayout& value = shape.value;
    for (uint32_t width = kLanes / 2; width > 0; width /= 2) {
      for (uint32_t j = 0; j < width; ++j) lanes[j] = Merge(lanes[j], lanes[j + width]);
    }
    if (shape.sink_logits != nullptr) {
      const State sink{
          .max = shape.sink_logits[query_head], .sum = 1.0f, .out = std::vector<float>(value.dim)};
      lanes[0] = Merge(lanes[0], sink);
    }
    const bool empty = lanes[0].max == kEmptyMax;
    for (uint32_t d = 0; d < value.dim; ++d) out[d] = empty ? 0.0f : lanes[0].out[d] / lanes[0].sum;
    if (value.rotated && !empty) codec::Rotate(out, 1, value.dim);
  }
};

}  // namespace
}  // namespace attention

std::unique_ptr<AttentionBackend> MakeJudgeAttention() {
  return std::make_unique<attention::Judge>();
}

}  // namespace quire
