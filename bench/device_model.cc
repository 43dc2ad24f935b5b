// A decoded token of every sequence of a batch on a device, from the host's call until all logits
// are the host's, beside reading the weights and all K and V once. Layers of Qwen3-0.6B with random
// bf16 weights and a small vocabulary; contexts are different prompts, computed on the device.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>
#include <vector>

#include "bench/bench.h"
#include "bench/must.h"
#include "bench/sequence.h"
#include "bench/shapes.h"
#include "cuda/backend.h"
#include "cuda/host/host_device.h"
#include "cuda/kernels/floors.h"
#include "model/model.h"
#include "model/random_model.h"
#include "quire/cache.h"

namespace quire::bench {
namespace {

constexpr uint32_t kDecoded = 8;     // of each sequence, that are decoded in a round
constexpr uint32_t kRowsMax = 8192;  // of one step of a prompt

struct StepShape {
  model::ModelConfig config{};
  uint32_t depth = 0;  // tokens of a context before the first that is decoded
  uint32_t batch = 1;
};

/// Seconds for reading so many bytes once, without a rest of fewer than 16.
double SecondsToRead(cuda::Device& device, const cuda::DeviceBuffer& from, uint64_t bytes,
                     const cuda::DeviceBuffer& sink) {
  return Must(device.Seconds(cuda::Stream::kCompute, [&] {
    device.Launch(cuda::ReadFloorArgs{
        .from = from.as<std::byte>(), .bytes = bytes / 16 * 16, .sink = sink.as<uint32_t>()});
  }));
}

/// A model and a cache on the device, and sequences that share nothing.
class Batch {
 public:
  static Result<std::shared_ptr<Batch>> Create(cuda::Backend& backend, const StepShape& of) {
    auto made = std::make_shared<Batch>(backend, of);
    QUIRE_ASSIGN(
        made->model_,
        model::Model::Create(of.config, model::RandomTensors(of.config, ComputeType::kBf16, 1),
                             {.operators = backend.operators()}));
    const uint64_t token_bytes = uint64_t{4} * of.config.layers * of.config.kv_dim();
    made->bytes_ = made->model_->weight_bytes() + of.batch * uint64_t{of.depth} * token_bytes;
    CacheOptions options;
    options.geometry = model::GeometryOf(of.config);
    options.profile = NumericProfile::Uniform(Codec::kBf16);
    backend.Choose(options);
    options.hot_bytes = of.batch * uint64_t{of.depth + 64} * token_bytes * 9 / 8;
    QUIRE_ASSIGN(made->cache_, Cache::Create(std::move(options)));
    QUIRE_TRY(made->read_.Reserve(made->bytes_));
    QUIRE_TRY(made->sink_.Reserve(sizeof(uint32_t)));
    made->logits_.resize(size_t{of.batch} * of.config.vocab);
    QUIRE_TRY(made->Open());
    return made;
  }
  Batch(cuda::Backend& backend, const StepShape& of)
      : of_(of),
        device_(backend.device()),
        attention_(backend.MakeAttention()),
        read_(backend.device()),
        sink_(backend.device()) {}

  uint64_t bytes() const { return bytes_; }
  /// What a step asks the device for when it repeats those before it.
  uint64_t Calls() {
    for (uint32_t at = 0; at + 1 < kDecoded; ++at) Decode(at);
    const uint64_t before = device_.calls();
    Decode(kDecoded - 1);
    return device_.calls() - before;
  }

  /// Seconds for token `at` of each sequence; they come in order.
  double Decode(uint32_t at) {
    for (const auto& sequence : sequences_) {
      if (at == 0) Must(sequence->Rollback(of_.depth));
    }
    std::vector<model::StepItem> items;
    for (uint32_t i = 0; i < of_.batch; ++i) {
      items.push_back({.sequence = sequences_[i].get(),
                       .tokens = std::span(prompts_[i]).subspan(of_.depth + at, 1),
                       .logits = logits_.data() + size_t{i} * of_.config.vocab});
    }
    const auto begin = std::chrono::steady_clock::now();
    Must(model_->Step(items, *attention_, *executor_));
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }

  double Read() { return SecondsToRead(device_, read_, bytes_, sink_); }

 private:
  /// Every context is there but for the tokens of a round.
  Result<void> Open() {
    const Identity identity{.weights = model_->fingerprint()};
    for (uint32_t i = 0; i < of_.batch; ++i) {
      std::vector<TokenId>& prompt = prompts_.emplace_back(of_.depth + kDecoded);
      for (uint32_t t = 0; t < prompt.size(); ++t) {
        prompt[t] = static_cast<TokenId>((t * 7919 + i * 104729) % of_.config.vocab);
      }
      QUIRE_ASSIGN(auto plan,
                   cache_->Acquire({.identity = &identity, .tokens = prompt, .reuse = false}));
      QUIRE_ASSIGN(auto sequence, cache_->Open(std::move(plan), {.publish = false}));
      sequences_.push_back(std::move(sequence));
    }
    const uint32_t chunk = std::min(of_.depth, kRowsMax / of_.batch);
    for (uint32_t at = 0; at < of_.depth; at += chunk) {
      std::vector<model::StepItem> items;
      for (uint32_t i = 0; i < of_.batch; ++i) {
        items.push_back(
            {.sequence = sequences_[i].get(),
             .tokens = std::span(prompts_[i]).subspan(at, std::min(chunk, of_.depth - at))});
      }
      QUIRE_TRY(model_->Step(items, *attention_, *executor_));
    }
    return {};
  }

  const StepShape of_;
  cuda::Device& device_;
  std::unique_ptr<model::Model> model_;
  std::unique_ptr<AttentionBackend> attention_;
  std::unique_ptr<Cache> cache_;
  std::unique_ptr<Executor> executor_ = MakeThreadPool(1);
  std::vector<std::unique_ptr<Sequence>> sequences_;
  std::vector<std::vector<TokenId>> prompts_;
  std::vector<float> logits_;
  uint64_t bytes_ = 0;  // of weights, K and V
  cuda::DeviceBuffer read_;
  cuda::DeviceBuffer sink_;
};

Result<Subject> Step(cuda::Backend& backend, const StepShape& of) {
  QUIRE_ASSIGN(const auto batch, Batch::Create(backend, of));
  return Timed{.unit = "ms/step",
               .less_is_better = true,
               .amount = 1e3 / kDecoded,
               .places = kDecoded,
               .slice = fmt::format(
                   "1 token of {} sequences after {} tokens, {} layers, {} MB, {} calls", of.batch,
                   of.depth, of.config.layers, batch->bytes() >> 20, batch->Calls()),
               .work = [=](uint32_t token) { return batch->Decode(token); },
               .floor = [=](uint32_t) { return batch->Read(); }};
}

/// The products of the layers of a step, each of whose matrices is read once.
class Products {
 public:
  static Result<std::shared_ptr<Products>> Create(cuda::Backend& backend,
                                                  const model::ModelConfig& config, uint32_t rows,
                                                  uint32_t tile_rows) {
    auto made = std::make_shared<Products>(backend.device());
    const uint32_t heads = config.query_dim() + 2 * config.kv_dim();
    const std::pair<uint32_t, uint32_t> shapes[] = {{heads, config.hidden},
                                                    {config.hidden, config.query_dim()},
                                                    {2 * config.intermediate, config.hidden},
                                                    {config.hidden, config.intermediate}};
    uint32_t largest = 0;
    for (const auto& [n, k] : shapes) {
      made->layer_bytes_ += model::PackedBytes(n, k, ComputeType::kBf16);
      largest = std::max({largest, n, k});
    }
    made->layers_ = config.layers;
    const uint64_t row_bytes = uint64_t{rows} * largest * sizeof(float);
    QUIRE_TRY(made->weights_.Reserve(made->bytes()));
    QUIRE_TRY(made->x_.Reserve(row_bytes));
    QUIRE_TRY(made->y_.Reserve(row_bytes));
    QUIRE_TRY(made->sink_.Reserve(sizeof(uint32_t)));
    made->device_.Zero(made->weights_.as<void>(), {.bytes = made->bytes()});
    made->device_.Zero(made->x_.as<void>(), {.bytes = row_bytes});
    const std::byte* weights = made->weights_.as<std::byte>();
    for (uint32_t layer = 0; layer < config.layers; ++layer) {
      for (const auto& [n, k] : shapes) {
        made->launches_.push_back(
            {.w = {.data = weights, .n = n, .k = k, .type = cuda::Round::kBf16},
             .x = made->x_.as<float>(),
             .y = made->y_.as<float>(),
             .rows = rows,
             .round = cuda::Round::kBf16,
             .mma = true,
             .tile_rows = tile_rows});
        weights += model::PackedBytes(n, k, ComputeType::kBf16);
      }
    }
    return made;
  }
  explicit Products(cuda::Device& device)
      : device_(device), weights_(device), x_(device), y_(device), sink_(device) {}

  uint64_t bytes() const { return layer_bytes_ * layers_; }
  double Multiply() {
    return Must(device_.Seconds(cuda::Stream::kCompute, [&] {
      for (const cuda::MatmulArgs& launch : launches_) device_.Launch(launch);
    }));
  }
  double Read() { return SecondsToRead(device_, weights_, bytes(), sink_); }

 private:
  cuda::Device& device_;
  uint32_t layers_ = 0;
  uint64_t layer_bytes_ = 0;
  std::vector<cuda::MatmulArgs> launches_;
  cuda::DeviceBuffer weights_;
  cuda::DeviceBuffer x_;
  cuda::DeviceBuffer y_;
  cuda::DeviceBuffer sink_;
};

Result<Subject> ProductsOfStep(cuda::Backend& backend, const model::ModelConfig& config,
                               uint32_t rows, uint32_t tile_rows) {
  QUIRE_ASSIGN(const auto products, Products::Create(backend, config, rows, tile_rows));
  return Timed{.unit = "ms/step",
               .less_is_better = true,
               .amount = 1e3,
               .slice = fmt::format("the products of {} layers for {} rows, {} MB", config.layers,
                                    rows, products->bytes() >> 20),
               .work = [=](uint32_t) { return products->Multiply(); },
               .floor = [=](uint32_t) { return products->Read(); }};
}

/// A batch on a device that does nothing.
struct IdleBatch {
  std::unique_ptr<cuda::Backend> backend;
  std::shared_ptr<Batch> batch;
};
Result<IdleBatch> OnIdleDevice(const StepShape& of, bool graphs) {
  IdleBatch made;
  QUIRE_ASSIGN(made.backend,
               cuda::Backend::Make("idle", cuda::MakeIdleDevice(), /*driver=*/nullptr,
                                   {.arithmetic = cuda::Arithmetic::kMma16, .graphs = graphs}));
  QUIRE_ASSIGN(made.batch, Batch::Create(*made.backend, of));
  return made;
}

Result<Subject> HostOfStep(const StepShape& of) {
  QUIRE_ASSIGN(auto together, OnIdleDevice(of, /*graphs=*/true));
  QUIRE_ASSIGN(auto single, OnIdleDevice(of, /*graphs=*/false));
  const uint64_t calls = together.batch->Calls();
  const uint64_t single_calls = single.batch->Calls();
  const auto kept =
      std::make_shared<std::pair<IdleBatch, IdleBatch>>(std::move(together), std::move(single));
  return Timed{.unit = "us/step",
               .less_is_better = true,
               .amount = 1e6 / kDecoded,
               .places = kDecoded,
               .slice = fmt::format("1 token of {} sequences after {} tokens, {} layers, on a "
                                    "device that does nothing: {} calls",
                                    of.batch, of.depth, of.config.layers, calls),
               .work = [=](uint32_t token) { return kept->first.batch->Decode(token); },
               .floor = [=](uint32_t token) { return kept->second.batch->Decode(token); },
               .note =
                   [=] {
                     return fmt::format(
                         "without graphs, {} calls; what CUDA needs for a call comes "
                         "on top of both",
                         single_calls);
                   }};
}

}  // namespace

std::vector<Case> HostOfStepCases() {
  std::vector<Case> cases;
  for (const uint32_t batch : {1u, 32u}) {
    const StepShape of{.config = LargeShape(kModelLayers), .depth = 4096, .batch = batch};
    cases.push_back({.name = fmt::format("host_of_step/bf16/{}/b{}", of.depth, batch),
                     .prepare = [=] { return HostOfStep(of); }});
  }
  return cases;
}

std::vector<Case> DeviceModelCases(cuda::Backend& backend) {
  const bool emulated = backend.device().target() == "host";
  std::vector<StepShape> shapes;
  if (emulated) {
    shapes = {{.config = TinyShape(), .depth = 40, .batch = 2}};
  } else {
    for (const uint32_t depth : {512u, 4096u}) {
      for (const uint32_t batch : {1u, 32u}) {
        shapes.push_back({.config = LargeShape(kModelLayers), .depth = depth, .batch = batch});
      }
    }
  }
  std::vector<Case> cases;
  for (const StepShape& of : shapes) {
    cases.push_back(
        {.name = fmt::format("step/bf16/{}/b{}/{}", of.depth, of.batch, backend.device().target()),
         .prepare = [=, &backend] { return Step(backend, of); }});
  }
  const model::ModelConfig config = emulated ? TinyShape() : LargeShape(kModelLayers);
  for (const uint32_t rows : emulated ? std::vector{16u} : std::vector{1u, 32u, 256u, 2048u}) {
    for (const uint32_t tile_rows : {16u, 32u, 64u, 128u}) {
      if (rows == 1 && tile_rows > 16) continue;
      cases.push_back(
          {.name = fmt::format("sweep/products/bf16/{}/tile{}/{}", rows, tile_rows,
                               backend.device().target()),
           .prepare = [=, &backend] { return ProductsOfStep(backend, config, rows, tile_rows); }});
    }
  }
  return cases;
}

}  // namespace quire::bench
