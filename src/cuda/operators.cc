#include "cuda/operators.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <unordered_map>
#include <vector>

#include "base/bits.h"
#include "cuda/sender.h"
#include "cuda/upload.h"
#include "env/host_buffer.h"

namespace quire::cuda {
namespace {

using model::ForwardModel;
using model::LayerWeights;
using model::ModelConfig;
using model::PackedMatrix;
using model::Rows;

// Of tokens and angles: 127 rows of 128 channels.
constexpr uint64_t kIncomingBytes = uint64_t{64} << 10;

constexpr Round RoundOf(ComputeType type) { return static_cast<Round>(type); }
static_assert(RoundOf(ComputeType::kF32) == Round::kF32 &&
              RoundOf(ComputeType::kF16) == Round::kF16 &&
              RoundOf(ComputeType::kBf16) == Round::kBf16);

class DeviceOperators final : public model::Operators {
 public:
  DeviceOperators(Device& device, const ForwardModel& model, const OperatorsOptions& options)
      : device_(device),
        model_(model),
        options_(options),
        sender_(device),
        incoming_(device.host_allocator(), kIncomingBytes, "tokens of a step"),
        inputs_(device),
        logits_(device),
        outgoing_(device.host_allocator(),
                  uint64_t{kPickedMax} * model.config.vocab * sizeof(float), "logits") {
    for (auto& rows : rows_) rows = std::make_unique<DeviceBuffer>(device);
  }
  ~DeviceOperators() override {
    if (is_reading_) static_cast<void>(device_.Synchronize());
    for (const auto& [host, there] : weights_) device_.Free(there);
  }
  DeviceOperators(const DeviceOperators&) = delete;
  DeviceOperators& operator=(const DeviceOperators&) = delete;

  Result<void> CopyWeights() {
    const model::Weights& weights = model_.weights;
    QUIRE_TRY(CopyMatrix(weights.embedding()));
    QUIRE_TRY(CopyMatrix(weights.head()));
    QUIRE_TRY(CopyVector(weights.final_norm()));
    for (const LayerWeights& layer : weights.layers()) {
      for (const PackedMatrix* matrix : {&layer.qkv, &layer.out, &layer.gate_up, &layer.down}) {
        QUIRE_TRY(CopyMatrix(*matrix));
      }
      for (const std::vector<float>* values :
           {&layer.input_norm, &layer.attention_norm, &layer.q_norm, &layer.k_norm, &layer.qkv_bias,
            &layer.out_bias, &layer.gate_up_bias, &layer.down_bias, &layer.key_factors,
            &layer.query_factors}) {
        QUIRE_TRY(CopyVector(*values));
      }
    }
    return device_.Synchronize();
  }

  bool on_host() const override { return false; }

  Result<void> Begin(std::span<const TokenId> tokens, std::span<const uint64_t> positions,
                     Executor& executor) override {
    const uint32_t head_dim = config().head_dim;
    executor_ = &executor;
    count_ = static_cast<uint32_t>(tokens.size());
    for (size_t kind = 0; kind < model::kRowsKinds; ++kind) {
      const uint64_t values = RowValues(config(), static_cast<Rows>(kind));
      QUIRE_TRY(rows_[kind]->Reserve(count_ * values * sizeof(float)));
    }
    // Cosines are the host's: docs/numerics.md has them from its library.
    angles_.resize(uint64_t{count_} * head_dim);
    executor.ParallelFor(count_, [&](uint32_t row, uint32_t) {
      model_.rope.Angles(positions[row], angles_.data() + uint64_t{row} * head_dim);
    });
    upload_.Clear();
    upload_.Add(angles_);
    const uint64_t tokens_at = upload_.Add(tokens.data(), tokens.size());
    const std::vector<std::byte>& bytes = upload_.bytes();
    QUIRE_TRY(inputs_.Reserve(bytes.size()));
    if (is_reading_) QUIRE_TRY(device_.Synchronize());  // a pass before this one was given up
    const bool embeds = model_.weights.embedding().panels != nullptr;
    // A few rows are read where the host has them: a copy takes longer.
    is_reading_ = embeds && bytes.size() <= kIncomingBytes && device_.Reaches(incoming_);
    if (is_reading_) {
      std::ranges::copy(bytes, incoming_.bytes().begin());
    } else {
      sender_.Send(bytes.data(), bytes.size(), inputs_.as<void>());
    }
    if (options_.graphs) device_.BeginPass(this);
    if (!embeds) return {};
    const std::byte* const from = is_reading_ ? incoming_.bytes().data() : inputs_.as<std::byte>();
    device_.Launch(EmbedArgs{.embedding = PanelsOf(model_.weights.embedding()),
                             .tokens = reinterpret_cast<const int32_t*>(from + tokens_at),
                             .hidden = Data(Rows::kHidden),
                             .rows = count_,
                             .angles_from = reinterpret_cast<const float*>(from),
                             .angles = inputs_.as<float>(),
                             .angle_values = is_reading_ ? head_dim : 0});
    return {};
  }

  void StopWaiting() override { device_.EndPass(); }

  float* Data(Rows rows) override { return rows_[static_cast<size_t>(rows)]->as<float>(); }

  void PutHidden(std::span<const float> rows) override {
    sender_.Send(rows.data(), rows.size_bytes(), Data(Rows::kHidden));
  }

  Result<void> TakeHidden(std::span<float> rows) override {
    const std::span<std::byte> here = outgoing_.bytes();
    const std::span<std::byte> out = std::as_writable_bytes(rows);
    for (size_t done = 0; done < out.size(); done += here.size()) {
      const size_t bytes = std::min(here.size(), out.size() - done);
      const auto* const from = reinterpret_cast<const std::byte*>(Data(Rows::kHidden)) + done;
      device_.Copy(from, here.data(), {.bytes = bytes});
      QUIRE_TRY(device_.Synchronize());
      std::memcpy(out.data() + done, here.data(), bytes);
    }
    is_reading_ = false;
    device_.EndPass();
    return {};
  }

  void Norm(const std::vector<float>& weight) override {
    device_.Launch(NormOf(weight, Data(Rows::kNormed), count_));
  }

  void Multiply(const PackedMatrix& matrix, const std::vector<float>& bias, Rows x,
                Rows y) override {
    device_.Launch(
        MatmulArgs{.w = PanelsOf(matrix),
                   .x = Data(x),
                   .x_round = RoundOf(x == Rows::kAttended ? model_.compute : ComputeType::kF32),
                   .bias = There(bias),
                   .y = Data(y),
                   .rows = count_,
                   .round = RoundOf(model_.compute),
                   .mma = IsMma(matrix)});
  }

  void Rotate(const LayerWeights& layer, bool factors) override {
    const uint64_t qkv = RowValues(config(), Rows::kQkv);
    device_.Launch(HeadsArgs{.x = Data(Rows::kQkv),
                             .queries = {.out = Data(Rows::kQueries),
                                         .weight = There(layer.q_norm),
                                         .factors = factors ? There(layer.query_factors) : nullptr,
                                         .out_stride = config().query_dim(),
                                         .heads = config().query_heads},
                             .keys = {.out = Data(Rows::kQkv) + config().query_dim(),
                                      .weight = There(layer.k_norm),
                                      .factors = factors ? There(layer.key_factors) : nullptr,
                                      .out_stride = qkv,
                                      .heads = config().kv_heads},
                             .angles = inputs_.as<float>(),
                             .x_stride = qkv,
                             .rows = count_,
                             .head_dim = config().head_dim,
                             .eps = config().norm_eps,
                             .round = RoundOf(model_.compute)});
    device_.LetWait();  // the rows of all sequences
  }

  // The product rounds what it reads of them.
  void RoundAttended() override {}

  void Gate() override {
    device_.Launch(GateArgs{.gate_up = Data(Rows::kGateUp),
                            .out = Data(Rows::kGated),
                            .n = config().intermediate,
                            .rows = count_,
                            .round = RoundOf(model_.compute)});
  }

  void Add() override {
    device_.Launch(AddArgs{.x = Data(Rows::kHidden),
                           .y = Data(Rows::kAdded),
                           .count = count_ * uint64_t{config().hidden},
                           .round = RoundOf(model_.compute)});
  }

  void AddNorm(const std::vector<float>& weight) override {
    NormArgs args = NormOf(weight, Data(Rows::kNormed), count_);
    args.added = Data(Rows::kAdded);
    device_.Launch(args);
  }

  Result<void> Logits(std::span<const uint32_t> rows, std::span<float* const> outputs) override {
    const uint64_t vocab_bytes = config().vocab * sizeof(float);
    QUIRE_TRY(logits_.Reserve(std::min<size_t>(rows.size(), kPickedMax) * vocab_bytes));
    for (size_t begin = 0; begin < rows.size(); begin += kPickedMax) {
      const auto some = rows.subspan(begin, std::min<size_t>(kPickedMax, rows.size() - begin));
      const auto count = static_cast<uint32_t>(some.size());
      NormArgs norm = NormOf(model_.weights.final_norm(), Data(Rows::kNormed), count);
      norm.picks = true;
      std::ranges::copy(some, norm.picked);
      device_.Launch(norm);
      device_.Launch(MatmulArgs{.w = PanelsOf(model_.weights.head()),
                                .x = Data(Rows::kNormed),
                                .y = logits_.as<float>(),
                                .rows = count,
                                .round = Round::kF32,
                                .mma = IsMma(model_.weights.head())});
      std::byte* const here = outgoing_.bytes().data();
      device_.Copy(logits_.as<void>(), here, {.bytes = count * vocab_bytes});
      QUIRE_TRY(device_.Synchronize());
      executor_->ParallelFor(count, [&](uint32_t i, uint32_t) {
        std::memcpy(outputs[begin + i], here + i * vocab_bytes, vocab_bytes);
      });
    }
    device_.EndPass();
    QUIRE_TRY(device_.Synchronize());  // a pass may want none
    is_reading_ = false;
    return {};
  }

 private:
  const ModelConfig& config() const { return model_.config; }

  bool IsMma(const PackedMatrix& matrix) const {
    return options_.arithmetic == Arithmetic::kMma16 && matrix.type != ComputeType::kF32 &&
           matrix.type == model_.compute && matrix.k % kProductDepth == 0;
  }

  NormArgs NormOf(const std::vector<float>& weight, float* out, uint32_t rows) {
    return {.x = Data(Rows::kHidden),
            .weight = There(weight),
            .out = out,
            .n = config().hidden,
            .rows = rows,
            .eps = config().norm_eps,
            .round = RoundOf(model_.compute)};
  }

  Result<void> CopyMatrix(const PackedMatrix& matrix) {
    return Copy(matrix.panels, model::PackedBytes(matrix.n, matrix.k, matrix.type));
  }
  Result<void> CopyVector(const std::vector<float>& values) {
    return Copy(values.data(), values.size() * sizeof(float));
  }
  Result<void> Copy(const void* host, uint64_t bytes) {
    if (bytes == 0 || host == nullptr || weights_.contains(host)) return {};  // another stage's
    QUIRE_ASSIGN(void* const there, device_.Allocate(bytes));
    weights_[host] = there;
    device_.CopyIn(host, bytes, there);
    return {};
  }

  Panels PanelsOf(const PackedMatrix& matrix) const {
    return {.data = static_cast<const std::byte*>(weights_.at(matrix.panels)),
            .n = matrix.n,
            .k = matrix.k,
            .type = RoundOf(matrix.type)};
  }
  /// Null: the model has none.
  const float* There(const std::vector<float>& values) const {
    return values.empty() ? nullptr : static_cast<const float*>(weights_.at(values.data()));
  }

  Device& device_;
  const ForwardModel model_;
  const OperatorsOptions options_;
  std::unordered_map<const void*, void*> weights_;  // by where the host has them
  Executor* executor_ = nullptr;                    // of the pass
  uint32_t count_ = 0;                              // rows of it
  std::array<std::unique_ptr<DeviceBuffer>, model::kRowsKinds> rows_;
  Sender sender_;
  Upload upload_;
  const HostBuffer incoming_;  // the same bytes as in inputs_, of passes of few rows
  bool is_reading_ = false;    // the device may read them
  DeviceBuffer inputs_;        // angles [rows, head_dim], then tokens [rows]
  DeviceBuffer logits_;
  const HostBuffer outgoing_;  // [kPickedMax, vocab]: one copy, and no row waits for another
  std::vector<float> angles_;  // [rows, head_dim]
};

}  // namespace

uint64_t PassBytes(const ModelConfig& config, uint32_t rows) {
  uint64_t values = config.head_dim + 1;  // angles, and the token
  for (size_t kind = 0; kind < model::kRowsKinds; ++kind) {
    values += RowValues(config, static_cast<Rows>(kind));
  }
  return (rows * values + uint64_t{std::min(rows, kPickedMax)} * config.vocab) * sizeof(float);
}

Result<std::unique_ptr<model::Operators>> MakeOperators(Device& device, const ForwardModel& model,
                                                        const OperatorsOptions& options) {
  auto operators = std::make_unique<DeviceOperators>(device, model, options);
  QUIRE_TRY(operators->CopyWeights());
  return operators;
}

}  // namespace quire::cuda
