// A model whose pass, cache and attention are a device's gives the logits of the CPU, bit for bit.
#include "cuda/operators.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <stop_token>
#include <thread>

#include "base/prng.h"
#include "base/thorough.h"
#include "cuda/attention.h"
#include "cuda/block_ops.h"
#include "cuda/test_device.h"
#include "model/layers.h"
#include "model/test_cache.h"

namespace quire::cuda {
namespace {

using model::Family;
using model::Model;
using model::ModelConfig;
using model::StepItem;

struct Case {
  Family family = Family::kQwen3;
  ComputeType type = ComputeType::kBf16;
  Codec codec = Codec::kBf16;
  uint32_t residual_tokens = 0;
};

// Each family with its special features.
ModelConfig ConfigOf(Family family) {
  ModelConfig config = model::SmallConfig();
  config.family = family;
  if (family == Family::kLlama) {
    config.attention_bias = true;
    config.mlp_bias = true;
  }
  if (family == Family::kMistral) {
    config.window_tokens = 37;
    config.window_layers = {0, 1};
  }
  return config;
}

class CudaOperators : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    NeedDevice(device_.get());
    if (device_ == nullptr) return;
    ops_ = Must(MakeBlockOps(*device_));
#if defined(QUIRE_TEST_ON_CUDA)
    driver_ = Must(MakeCudaDriver(AskedNumber()));
    memory_ = MakeGranuleMemory("cuda:0", *driver_, *device_);
#endif
    attention_ = MakeAttention(*device_);
  }

  model::OperatorsFactory OnDevice(const OperatorsOptions& options = {}) {
    return [this, options](const model::ForwardModel& model) {
      return MakeOperators(*device_, model, options);
    };
  }

  std::unique_ptr<Cache> MakeCacheOf(const ModelConfig& config, bool on_device) {
    CacheOptions options;
    options.geometry = GeometryOf(config);
    options.profile = NumericProfile::Uniform(GetParam().codec);
    options.profile.residual_tokens = GetParam().residual_tokens;
    if (!IsIdentity(GetParam().codec)) options.profile.open_dtype = Codec::kF16;
    options.hot_bytes = 1 << 26;
    if (on_device) {
      options.memory = memory_.get();
      options.ops = ops_.get();
    }
    return Cache::Create(std::move(options)).value();
  }

  /// The prompt in chunks, then a few tokens one by one, beside another sequence.
  std::vector<float> Run(Model& model, Cache& cache, AttentionBackend& attention,
                         std::span<const TokenId> prompt, uint32_t chunk) {
    const auto executor = MakeThreadPool(1);
    const auto first = model::OpenSequence(cache, model, prompt.first(1));
    const auto second = model::OpenSequence(cache, model, prompt.first(1));
    const uint32_t vocab = model.config().vocab;
    std::vector<float> all;
    std::vector<float> logits(uint64_t{2} * chunk * vocab);
    for (size_t at = 0; at < prompt.size(); at += chunk) {
      const auto some = prompt.subspan(at, std::min<size_t>(chunk, prompt.size() - at));
      const StepItem items[] = {
          {.sequence = first.get(), .tokens = some, .logits = logits.data(), .all_logits = true},
          {.sequence = second.get(),
           .tokens = some.first(1),
           .logits = logits.data() + some.size() * vocab}};
      EXPECT_TRUE(model.Step(items, attention, *executor).has_value());
      all.insert(all.end(), logits.begin(), logits.begin() + (some.size() + 1) * vocab);
    }
    return all;
  }

  std::unique_ptr<Device> device_ = MakeTestDevice();
#if defined(QUIRE_TEST_ON_CUDA)
  std::unique_ptr<GranuleDriver> driver_;
#endif
  std::unique_ptr<DeviceMemory> memory_;  // null: the host's
  std::unique_ptr<BlockOps> ops_;
  std::unique_ptr<AttentionBackend> attention_;
};

TEST_P(CudaOperators, LogitsAreTheProcessors) {
  const ModelConfig config = ConfigOf(GetParam().family);
  const auto tensors = model::RandomTensors(config, GetParam().type, 3);
  const auto host = Model::Create(config, tensors, {}).value();
  const auto there = Model::Create(config, tensors, {.operators = OnDevice()}).value();
  const auto prompt = model::SomeTokens(300, config.vocab, 5);
  const auto host_cache = MakeCacheOf(config, /*on_device=*/false);
  const auto device_cache = MakeCacheOf(config, /*on_device=*/true);
  const auto cpu = MakeCpuAttention().value();
  const auto want = Run(*host, *host_cache, *cpu, prompt, 37);
  const auto got = Run(*there, *device_cache, *attention_, prompt, 37);
  ASSERT_EQ(got.size(), want.size());
  EXPECT_EQ(std::memcmp(got.data(), want.data(), want.size() * sizeof(float)), 0);
  // The blocks of the device's cache are undamaged after it found and checked them.
  EXPECT_EQ(device_cache->Verify().damaged, 0u);
}

// Rows pass from a stage on the device to one on the processor and to another on the device.
TEST_P(CudaOperators, StagesOnTheDeviceAndBesideItHaveTheBitsOfTheWhole) {
  ModelConfig config = ConfigOf(GetParam().family);
  config.layers = 3;
  if (!config.window_layers.empty()) config.window_layers = {0, 1, 2};
  const auto tensors = model::RandomTensors(config, GetParam().type, 3);
  const auto cpu = MakeCpuAttention().value();
  const auto executor = MakeThreadPool(1);
  const auto tokens = model::SomeTokens(60, config.vocab, 5);
  std::vector<float> want(tokens.size() * config.vocab);
  const auto whole = Model::Create(config, tensors, {}).value();
  const auto whole_cache = MakeCacheOf(config, /*on_device=*/false);
  const auto sequence = model::OpenSequence(*whole_cache, *whole, tokens);
  const StepItem item = {
      .sequence = sequence.get(), .tokens = tokens, .logits = want.data(), .all_logits = true};
  Must(whole->Step({&item, 1}, *cpu, *executor));

  std::vector<float> got(want.size());
  std::vector<float> in;
  for (uint32_t stage = 0; stage < 3; ++stage) {
    const bool on_device = stage != 1;
    model::LoadOptions options = {.stage = stage, .stages = 3};
    if (on_device) options.operators = OnDevice();
    const auto own = Model::Create(config, tensors, options).value();
    const auto cache = MakeCacheOf(own->config(), on_device);
    const auto opened = model::OpenSequence(*cache, *own, tokens);
    const bool is_last = stage == 2;
    std::vector<float> out(is_last ? 0 : tokens.size() * config.hidden);
    const StepItem some = {.sequence = opened.get(),
                           .tokens = tokens,
                           .logits = is_last ? got.data() : nullptr,
                           .all_logits = true};
    Must(own->StepStage(
        {&some, 1}, {.in = stage == 0 ? nullptr : in.data(), .out = is_last ? nullptr : out.data()},
        on_device ? *attention_ : *cpu, *executor));
    in = std::move(out);
  }
  EXPECT_EQ(std::memcmp(got.data(), want.data(), want.size() * sizeof(float)), 0);
}

// Tokens one by one, in chunks and beside others have the same bits, near those of the processor.
TEST_P(CudaOperators, LogitsOfMma16DependOnPositionAlone) {
  const bool computes = GetParam().type != ComputeType::kF32;
  if (computes && GetParam().family != Family::kQwen3 && Thorough(0, 1) == 0) {
    GTEST_SKIP() << "every night";
  }
  const ModelConfig config = ConfigOf(GetParam().family);
  const auto tensors = model::RandomTensors(config, GetParam().type, 3);
  const auto prompt = model::SomeTokens(270, config.vocab, 5);
  const auto mma = MakeAttention(*device_, {.arithmetic = Arithmetic::kMma16});
  const auto there =
      Model::Create(config, tensors, {.operators = OnDevice({.arithmetic = Arithmetic::kMma16})})
          .value();
  if (!computes) {
    const auto cache = MakeCacheOf(config, /*on_device=*/true);
    const auto sequence = model::OpenSequence(*cache, *there, std::span(prompt).first(1));
    const StepItem item{.sequence = sequence.get(), .tokens = std::span(prompt).first(1)};
    const auto done = there->Step({&item, 1}, *mma, *MakeThreadPool(1));
    ASSERT_FALSE(done.has_value());
    EXPECT_EQ(done.error().code, ErrorCode::kUnsupported);
    return;
  }
  /// The logits of the prompt's last tokens.
  const auto last = [&](uint32_t chunk) {
    constexpr uint32_t kLast = 20;
    const auto cache = MakeCacheOf(config, /*on_device=*/true);
    const auto executor = MakeThreadPool(1);
    const auto sequence = model::OpenSequence(*cache, *there, std::span(prompt).first(1));
    std::vector<float> logits(prompt.size() * config.vocab);
    for (size_t at = 0; at < prompt.size();) {
      const size_t some = at < prompt.size() - kLast ? prompt.size() - kLast : chunk;
      const StepItem item{
          .sequence = sequence.get(),
          .tokens = std::span(prompt).subspan(at, std::min(some, prompt.size() - at)),
          .logits = logits.data() + at * config.vocab,
          .all_logits = true};
      EXPECT_TRUE(there->Step({&item, 1}, *mma, *executor).has_value());
      at += item.tokens.size();
    }
    return std::vector<float>(logits.end() - kLast * config.vocab, logits.end());
  };
  const auto want = last(20);
  for (const uint32_t chunk : {1u, 7u}) {
    const auto got = last(chunk);
    EXPECT_EQ(std::memcmp(got.data(), want.data(), want.size() * sizeof(float)), 0) << chunk;
  }
  const auto host = Model::Create(config, tensors, {}).value();
  const auto host_cache = MakeCacheOf(config, /*on_device=*/false);
  const auto cpu = MakeCpuAttention().value();
  const auto executor = MakeThreadPool(1);
  const auto sequence = model::OpenSequence(*host_cache, *host, std::span(prompt).first(1));
  std::vector<float> near(prompt.size() * config.vocab);
  const StepItem item{
      .sequence = sequence.get(), .tokens = prompt, .logits = near.data(), .all_logits = true};
  ASSERT_TRUE(host->Step({&item, 1}, *cpu, *executor).has_value());
  double error = 0;
  double norm = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double exact = near[near.size() - want.size() + i];
    error += (want[i] - exact) * (want[i] - exact);
    norm += exact * exact;
  }
  // Both classes round rows to the compute type between operators, now and then to neighbours, and
  // encode what they have rounded, now and then into neighbouring codes of eight bits or less.
  const bool fine = GetParam().type == ComputeType::kF16 && IsIdentity(GetParam().codec);
  EXPECT_LT(std::sqrt(error / norm), fine ? 0x1p-9 : 0x1p-6);
  EXPECT_NE(error, 0.0) << "the classes have bits of their own";
}

// What the host asks a device for does not grow with sequences. (28 layers and 32 sequences, a step
// of Qwen3-0.6B, have 314: two minutes here.)
TEST_P(CudaOperators, AStepOfManySequencesHasFewCalls) {
  ModelConfig config = ConfigOf(GetParam().family);
  const auto there = Model::Create(config, model::RandomTensors(config, GetParam().type, 3),
                                   {.operators = OnDevice({.graphs = false})})
                         .value();
  const auto cache = MakeCacheOf(config, /*on_device=*/true);
  const auto executor = MakeThreadPool(1);
  constexpr uint32_t kSequences = 12;
  std::vector<std::unique_ptr<Sequence>> sequences;
  std::vector<std::vector<TokenId>> prompts;
  for (uint32_t i = 0; i < kSequences; ++i) {
    prompts.push_back(model::SomeTokens(16, config.vocab, i));
    sequences.push_back(model::OpenSequence(*cache, *there, prompts.back()));
  }
  std::vector<float> logits(uint64_t{kSequences} * config.vocab);
  const auto calls_of = [&](uint32_t begin, uint32_t end) {
    std::vector<StepItem> items;
    for (uint32_t i = 0; i < kSequences; ++i) {
      items.push_back({.sequence = sequences[i].get(),
                       .tokens = std::span(prompts[i]).subspan(begin, end - begin),
                       .logits = logits.data() + uint64_t{i} * config.vocab});
    }
    const uint64_t before = device_->calls();
    Must(there->Step(items, *attention_, *executor));
    return device_->calls() - before;
  };
  calls_of(0, 14);
  const uint64_t decoded = calls_of(14, 15);
  // Blocks end in this one: they are sealed where codecs encode, and their checksums are taken.
  const uint64_t sealed = calls_of(15, 16);
  // Where layers have windows of their own, so have plans.
  const uint64_t plans = config.window_tokens == 0 ? 1 : 2;
  EXPECT_LE(decoded, config.layers * 11 + 4 + plans * 2);
  const uint64_t forms = GetParam().residual_tokens == 0 ? 1 : 2;
  EXPECT_LE(sealed, decoded + config.layers + forms * kSequences);
}

// Sequences come and go, blocks end, a step is given up, and what repeats starts as graphs.
TEST_P(CudaOperators, PassesThatRepeatHaveTheSameBitsInFewerCalls) {
  ModelConfig config = ConfigOf(GetParam().family);
  const auto tensors = model::RandomTensors(config, GetParam().type, 3);
  constexpr uint32_t kSequences = 3;
  constexpr uint32_t kSteps = 24;
  constexpr uint32_t kRepeated = 12;  // a step like the two before it, in which no block ends
  uint64_t calls = 0;                 // of that step
  const auto run = [&](bool graphs) {
    const auto there =
        Model::Create(config, tensors, {.operators = OnDevice({.graphs = graphs})}).value();
    const auto cache = MakeCacheOf(config, /*on_device=*/true);
    const auto executor = MakeThreadPool(1);
    std::vector<std::unique_ptr<Sequence>> sequences;
    std::vector<std::vector<TokenId>> prompts;
    for (uint32_t i = 0; i < kSequences; ++i) {
      prompts.push_back(model::SomeTokens(kSteps + 40, config.vocab, i));
      sequences.push_back(model::OpenSequence(*cache, *there, prompts.back()));
    }
    std::vector<float> all;
    std::vector<float> some(uint64_t{kSequences} * config.vocab);
    for (uint32_t step = 0; step < kSteps; ++step) {
      std::vector<StepItem> items;
      for (uint32_t i = 0; i < kSequences; ++i) {
        if (i == 2 && step >= 16 && step < 20) continue;  // the others go on by themselves
        const uint64_t at = sequences[i]->length();
        items.push_back({.sequence = sequences[i].get(),
                         .tokens = std::span(prompts[i]).subspan(at, step == 0 ? 5 + 3 * i : 1),
                         .logits = some.data() + uint64_t{i} * config.vocab});
      }
      const std::atomic<bool> cancelled = true;
      if (step == 8) {
        EXPECT_FALSE(there->Step(items, *attention_, *executor, &cancelled)) << "given up";
      }
      const uint64_t before = device_->calls();
      const uint64_t bytes = kOnHost ? AllocatedBytes(*device_) : 0;
      Must(there->Step(items, *attention_, *executor));
      if (step == kRepeated) {
        calls = device_->calls() - before;
        EXPECT_EQ(kOnHost ? AllocatedBytes(*device_) : 0, bytes) << "nothing is allocated";
      }
      all.insert(all.end(), some.begin(), some.end());
    }
    return all;
  };
  const std::vector<float> want = run(/*graphs=*/false);
  const uint64_t single_calls = calls;
  EXPECT_EQ(run(/*graphs=*/true), want);
  // A graph for the launches before the plan's copy and one for those behind it, the rows of each
  // layer, and copies.
  const uint64_t plans = config.window_tokens == 0 ? 1 : 2;
  EXPECT_LE(calls, config.layers + 2 * plans + 3);
  EXPECT_GT(single_calls, 2 * calls);
  // Another thread asks the device for something now and then: lists of launches end there.
  const std::jthread other([&](const std::stop_token& stop) {
    Prng prng(5);
    while (!stop.stop_requested()) {
      if (prng.NextChance(4)) static_cast<void>(device_->Synchronize());
      device_->Order(Stream::kCompute, Stream::kOut);
      const auto fence = device_->Record(Stream::kOut);
      if (fence != nullptr) fence->Wait();
      std::this_thread::sleep_for(std::chrono::microseconds(prng.NextBelow(2000)));
    }
  });
  EXPECT_EQ(run(/*graphs=*/true), want) << "beside another thread";
}

#if !defined(QUIRE_TEST_ON_CUDA)
TEST_P(CudaOperators, APassTakesTheMemoryThatIsPlanned) {
  const ModelConfig config = ConfigOf(GetParam().family);
  const auto made = Model::Create(config, model::RandomTensors(config, GetParam().type, 3),
                                  {.operators = OnDevice()})
                        .value();
  const auto executor = MakeThreadPool(1);
  for (const uint32_t rows : {1u, 32u, 50u}) {
    const uint64_t before = AllocatedBytes(*device_);
    const auto operators = Must(made->MakeOperators());
    const uint64_t with_weights = AllocatedBytes(*device_);
    // Norms and biases are no matrices; each matrix is aligned.
    EXPECT_NEAR(static_cast<double>(with_weights - before),
                static_cast<double>(made->weight_bytes()), 0.1 * made->weight_bytes());
    const auto tokens = model::SomeTokens(rows, config.vocab, 1);
    std::vector<uint64_t> positions(rows);
    std::vector<uint32_t> wanted(rows);
    std::vector<float> logits(uint64_t{rows} * config.vocab);
    std::vector<float*> outputs(rows);
    for (uint32_t i = 0; i < rows; ++i) {
      positions[i] = wanted[i] = i;
      outputs[i] = logits.data() + uint64_t{i} * config.vocab;
    }
    Must(operators->Begin(tokens, positions, *executor));
    Must(operators->Logits(wanted, outputs));
    EXPECT_EQ(AllocatedBytes(*device_) - with_weights, PassBytes(config, rows));
  }
}
#endif

// More values than a block has in shared memory at a time, and a last part of any size.
TEST(CudaNorms, LongRowsHaveTheProcessorsBits) {
  const auto device = MakeTestDevice();
  NeedDevice(device.get());
  if (device == nullptr) return;
  constexpr uint32_t kRows = 3;
  Prng prng(5);
  for (const uint32_t n : {16u, 2048u, 2049u, 5000u}) {
    std::vector<float> x(kRows * n);
    std::vector<float> added(kRows * n);
    std::vector<float> weight(n);
    std::vector<float> got(kRows * n);
    for (auto* values : {&x, &added, &weight}) {
      for (float& value : *values) value = prng.NextFloat(-2.0f, 2.0f);
    }
    std::vector<float> want_x = x;
    std::vector<float> want(kRows * n);
    for (uint32_t row = 0; row < kRows; ++row) {
      float* const of_row = want_x.data() + uint64_t{row} * n;
      model::AddRow(added.data() + uint64_t{row} * n, n, ComputeType::kBf16, of_row);
      model::RmsNorm(of_row, weight.data(), n, 1e-6f, ComputeType::kBf16,
                     want.data() + uint64_t{row} * n);
    }
    {
      Mirror x_there(*device, x.data(), x.size() * 4);
      Mirror added_there(*device, added.data(), added.size() * 4);
      Mirror weight_there(*device, weight.data(), weight.size() * 4);
      Mirror out_there(*device, got.data(), got.size() * 4);
      device->Launch(NormArgs{.x = x_there.there<float>(),
                              .added = added_there.there<float>(),
                              .weight = weight_there.there<float>(),
                              .out = out_there.there<float>(),
                              .n = n,
                              .rows = kRows,
                              .eps = 1e-6f,
                              .round = Round::kBf16});
      out_there.Fetch();
      x_there.Fetch();
    }
    EXPECT_EQ(std::memcmp(got.data(), want.data(), got.size() * 4), 0) << n;
    EXPECT_EQ(std::memcmp(x.data(), want_x.data(), x.size() * 4), 0) << n;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, CudaOperators,
                         testing::Values(Case{Family::kQwen3, ComputeType::kBf16, Codec::kBf16},
                                         Case{Family::kQwen3, ComputeType::kF16, Codec::kInt8},
                                         Case{Family::kLlama, ComputeType::kF32, Codec::kF32},
                                         Case{Family::kLlama, ComputeType::kBf16, Codec::kNf4, 48},
                                         Case{Family::kMistral, ComputeType::kF16, Codec::kF16},
                                         Case{Family::kQwen2, ComputeType::kBf16, Codec::kQ25}));

}  // namespace
}  // namespace quire::cuda
