// A training run on a registry's budget: the forward pass writes K and V of its layers, the
// backward pass reads them back. Checkpoint layers hold nothing and are computed again from their
// inputs: half the bytes, the same weights bit for bit.
//
// The model is a toy: causal linear attention on a residual stream h,
// o(t) = sum over s <= t of (h(t) . k(s)) v(s) / (t + 1), and of each layer the matrix that makes v
// is trained.
#include <algorithm>
#include <cstdio>
#include <vector>

#include "quire/registry.h"

using namespace quire;

constexpr uint32_t kLayers = 4, kDim = 16;
constexpr uint64_t kTokens = 96;
constexpr int kSteps = 40;
constexpr float kRate = 0.5f;

using Rows = std::vector<float>;  // [tokens, kDim], or a matrix [kDim, kDim]

struct Layer {
  Rows key_weights, value_weights;
};
struct KeyValue {
  Rows key, value;
};

float Dot(const float* a, const float* b) {
  float sum = 0;
  for (uint32_t i = 0; i < kDim; ++i) sum += a[i] * b[i];
  return sum;
}

// to += factor * row
void Add(float* to, float factor, const float* row) {
  for (uint32_t i = 0; i < kDim; ++i) to[i] += factor * row[i];
}

// x * w, or with `transposed` x * w^T.
Rows Multiply(const Rows& x, const Rows& w, bool transposed = false) {
  Rows out(x.size());
  for (size_t row = 0; row < x.size(); row += kDim) {
    for (uint32_t i = 0; i < kDim; ++i) {
      if (transposed) {
        out[row + i] = Dot(&x[row], &w[i * kDim]);
      } else {
        Add(&out[row], x[row + i], &w[i * kDim]);
      }
    }
  }
  return out;
}

KeyValue Project(const Layer& layer, const Rows& input) {
  return {Multiply(input, layer.key_weights), Multiply(input, layer.value_weights)};
}

// input + attention
Rows Attend(const Rows& input, const KeyValue& kv) {
  Rows out = input;
  for (size_t t = 0; t < input.size(); t += kDim) {
    for (size_t s = 0; s <= t; s += kDim) {
      const float weight = Dot(&input[t], &kv.key[s]) / static_cast<float>(t / kDim + 1);
      Add(&out[t], weight, &kv.value[s]);
    }
  }
  return out;
}

// Of the layer's input, given the gradient of its output; moves the layer's weights.
Rows Backward(Layer& layer, const Rows& input, const KeyValue& kv, const Rows& of_out) {
  Rows of_input = of_out;
  Rows of_key(input.size()), of_value(input.size());
  for (size_t t = 0; t < input.size(); t += kDim) {
    const float mean = 1.0f / static_cast<float>(t / kDim + 1);
    for (size_t s = 0; s <= t; s += kDim) {
      const float of_weight = Dot(&of_out[t], &kv.value[s]) * mean;
      Add(&of_value[s], Dot(&input[t], &kv.key[s]) * mean, &of_out[t]);
      Add(&of_input[t], of_weight, &kv.key[s]);
      Add(&of_key[s], of_weight, &input[t]);
    }
  }
  const Rows through_key = Multiply(of_key, layer.key_weights, /*transposed=*/true);
  const Rows through_value = Multiply(of_value, layer.value_weights, /*transposed=*/true);
  for (size_t i = 0; i < of_input.size(); ++i) of_input[i] += through_key[i] + through_value[i];
  for (size_t t = 0; t < input.size(); t += kDim) {
    for (uint32_t i = 0; i < kDim; ++i) {
      Add(&layer.value_weights[i * kDim], -kRate * input[t + i], &of_value[t]);
    }
  }
  return of_input;
}

// Numbers in [-scale, scale) that depend on the seed alone.
Rows Some(size_t count, uint32_t seed, float scale) {
  Rows rows(count);
  for (float& value : rows) {
    seed = seed * 1664525 + 1013904223;
    value = scale * (static_cast<float>(seed >> 8) * 0x1p-23f - 1.0f);
  }
  return rows;
}

struct Trained {
  std::vector<Layer> layers;
  float first_loss = 0;
  float loss = 0;      // of the last step
  uint64_t bytes = 0;  // held at the end of a forward pass
};

Result<Trained> Train(Registry& registry, const TrainingOwner& name,
                      const std::vector<uint32_t>& checkpoint_layers) {
  QUIRE_ASSIGN(const auto owner,
               registry.GetOrCreate(name, {.checkpoint_layers = checkpoint_layers}));
  const auto is_checkpoint = [&](uint32_t layer) {
    return std::ranges::binary_search(checkpoint_layers, layer);
  };
  Trained run;
  for (uint32_t layer = 0; layer < kLayers; ++layer) {
    run.layers.push_back(
        {Some(kDim * kDim, 2 * layer, 0.2f), Some(kDim * kDim, 2 * layer + 1, 0.2f)});
  }
  std::vector<TokenId> tokens(kTokens);
  for (size_t t = 0; t < kTokens; ++t) tokens[t] = static_cast<TokenId>(t * t % 7);
  const Rows target = Some(kTokens * kDim, 100, 0.5f);
  for (int step = 0; step < kSteps; ++step) {
    std::vector<Rows> inputs = {Some(kTokens * kDim, 200, 1.0f)};
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      const KeyValue kv = Project(run.layers[layer], inputs[layer]);
      if (!is_checkpoint(layer)) {
        QUIRE_TRY(owner->Append(layer, {.key = {kv.key.data(), Codec::kF32, kDim, kDim},
                                        .value = {kv.value.data(), Codec::kF32, kDim, kDim},
                                        .tokens = kTokens}));
      }
      inputs.push_back(Attend(inputs[layer], kv));
    }
    QUIRE_TRY(owner->Commit(tokens));
    run.bytes = owner->bytes();

    run.loss = 0;
    Rows gradient(kTokens * kDim);
    for (size_t i = 0; i < gradient.size(); ++i) {
      const float off = inputs[kLayers][i] - target[i];
      run.loss += off * off / static_cast<float>(gradient.size());
      gradient[i] = 2 * off / static_cast<float>(gradient.size());
    }
    if (step == 0) run.first_loss = run.loss;
    for (uint32_t layer = kLayers; layer-- > 0;) {
      KeyValue kv{Rows(kTokens * kDim), Rows(kTokens * kDim)};
      if (is_checkpoint(layer)) {
        kv = Project(run.layers[layer], inputs[layer]);
      } else {
        QUIRE_TRY(owner->Gather(layer, StreamRole::kKey, 0, kTokens, kv.key));
        QUIRE_TRY(owner->Gather(layer, StreamRole::kValue, 0, kTokens, kv.value));
      }
      gradient = Backward(run.layers[layer], inputs[layer], kv, gradient);
    }
    QUIRE_TRY(owner->Clear());  // what it holds is of the old weights
  }
  return run;
}

Result<int> Run() {
  QUIRE_ASSIGN(const auto registry,
               Registry::Create({.geometry = Geometry::Uniform(kLayers, 1, kDim),
                                 .profile = NumericProfile::Uniform(Codec::kF32),
                                 .hot_bytes = 1 << 20}));
  QUIRE_ASSIGN(const Trained all, Train(*registry, {"all", 1}, {}));
  QUIRE_ASSIGN(const Trained half, Train(*registry, {"half", 1}, {1, 3}));
  std::printf("loss %.6f to %.6f in %d steps\n", all.first_loss, all.loss, kSteps);
  std::printf("K and V of all layers: %6d bytes\n", int(all.bytes));
  std::printf("of layers 0 and 2:     %6d bytes\n", int(half.bytes));
  bool same = all.loss == half.loss;
  for (uint32_t layer = 0; layer < kLayers; ++layer) {
    same = same && all.layers[layer].value_weights == half.layers[layer].value_weights;
  }
  std::printf("the same weights: %s\n", same ? "yes" : "no");
  return same && all.loss < all.first_loss && 2 * half.bytes == all.bytes ? 0 : 1;
}

int main() {
  const auto run = Run();
  if (!run) std::fprintf(stderr, "%s\n", run.error().message.c_str());
  return run.value_or(1);
}
