#include "cuda/operators.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <unordered_map>
#include <vector>

#include "base/bits.h"
#include "cuda/sender.h"
#include "env/host_buffer.h"

namespace quire::cuda {
namespace {

using model::ForwardModel;
using model::LayerWeights;
using model::ModelConfig;
using model::PackedMatrix;
using model::Rows;

constexpr uint32_t kLogitRows = 32;  // at a time

constexpr Round RoundOf(ComputeType type) { return static_cast<Round>(type); }
static_assert(RoundOf(ComputeType::kF32) == Round::kF32 &&
              RoundOf(ComputeType::kF16) == Round::kF16 &&
              RoundOf(ComputeType::kBf16) == Round::kBf16);

class DeviceOperators final : public model::Operators {
 public:
  DeviceOperators(Device& device, const ForwardModel& model, Arithmetic arithmetic)
      : device_(device),
        model_(model),
        arithmetic_(arithmetic),
        sender_(device),
        tokens_(device),
        angles_(device),
        wanted_(device),
        logits_(device),
        outgoing_(device.host_allocator(),
                  uint64_t{kLogitRows} * model.config.vocab * sizeof(float), "logits") {
    for (auto& rows : rows_) rows = std::make_unique<DeviceBuffer>(device);
  }
  ~DeviceOperators() override {
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
    count_ = static_cast<uint32_t>(tokens.size());
    for (size_t kind = 0; kind < model::kRowsKinds; ++kind) {
      const uint64_t values = RowValues(config(), static_cast<Rows>(kind));
      QUIRE_TRY(rows_[kind]->Reserve(count_ * values * sizeof(float)));
    }
    QUIRE_TRY(tokens_.Reserve(tokens.size_bytes()));
    sender_.Send(tokens.data(), tokens.size_bytes(), tokens_.as<void>());
    // Cosines are the host's: docs/numerics.md has them from its library.
    host_angles_.resize(uint64_t{count_} * head_dim);
    executor.ParallelFor(count_, [&](uint32_t row, uint32_t) {
      model_.rope.Angles(positions[row], host_angles_.data() + uint64_t{row} * head_dim);
    });
    QUIRE_TRY(angles_.Reserve(host_angles_.size() * sizeof(float)));
    sender_.Send(host_angles_.data(), host_angles_.size() * sizeof(float), angles_.as<void>());
    if (model_.weights.embedding().panels == nullptr) return {};
    device_.Launch(EmbedArgs{.embedding = PanelsOf(model_.weights.embedding()),
                             .tokens = tokens_.as<int32_t>(),
                             .hidden = Data(Rows::kHidden),
                             .rows = count_});
    return {};
  }

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
    return {};
  }

  void Norm(const std::vector<float>& weight) override {
    device_.Launch(NormOf(weight, Data(Rows::kNormed), count_));
  }

  void Multiply(const PackedMatrix& matrix, const std::vector<float>& bias, Rows x,
                Rows y) override {
    device_.Launch(MatmulArgs{.w = PanelsOf(matrix),
                              .x = Data(x),
                              .bias = There(bias),
                              .y = Data(y),
                              .rows = count_,
                              .round = RoundOf(model_.compute),
                              .mma = IsMma(matrix)});
  }

  void Rotate(const LayerWeights& layer, bool factors) override {
    const uint64_t qkv = RowValues(config(), Rows::kQkv);
    HeadsArgs args{.x = Data(Rows::kQkv),
                   .out = Data(Rows::kQueries),
                   .angles = angles_.as<float>(),
                   .weight = There(layer.q_norm),
                   .factors = factors ? There(layer.query_factors) : nullptr,
                   .x_stride = qkv,
                   .out_stride = config().query_dim(),
                   .rows = count_,
                   .heads = config().query_heads,
                   .head_dim = config().head_dim,
                   .eps = config().norm_eps,
                   .round = RoundOf(model_.compute)};
    device_.Launch(args);
    args.out = Data(Rows::kQkv) + config().query_dim();
    args.x = args.out;
    args.out_stride = qkv;
    args.heads = config().kv_heads;
    args.weight = There(layer.k_norm);
    args.factors = factors ? There(layer.key_factors) : nullptr;
    device_.Launch(args);
  }

  void RoundAttended() override {
    if (model_.compute == ComputeType::kF32) return;
    device_.Launch(AddArgs{.x = Data(Rows::kAttended),
                           .count = count_ * uint64_t{config().query_dim()},
                           .round = RoundOf(model_.compute)});
  }

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

  Result<void> Logits(std::span<const uint32_t> rows, std::span<float* const> outputs) override {
    const uint64_t vocab_bytes = config().vocab * sizeof(float);
    const auto at_once = static_cast<uint32_t>(std::min<size_t>(rows.size(), kLogitRows));
    QUIRE_TRY(wanted_.Reserve(at_once * sizeof(uint32_t)));
    QUIRE_TRY(logits_.Reserve(at_once * vocab_bytes));
    for (size_t begin = 0; begin < rows.size(); begin += kLogitRows) {
      const auto some = rows.subspan(begin, std::min<size_t>(kLogitRows, rows.size() - begin));
      const auto count = static_cast<uint32_t>(some.size());
      sender_.Send(some.data(), some.size_bytes(), wanted_.as<void>());
      NormArgs norm = NormOf(model_.weights.final_norm(), Data(Rows::kNormed), count);
      norm.row_numbers = wanted_.as<uint32_t>();
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
      for (uint32_t i = 0; i < count; ++i) {
        std::memcpy(outputs[begin + i], here + i * vocab_bytes, vocab_bytes);
      }
    }
    return device_.Synchronize();  // a pass may want none
  }

 private:
  const ModelConfig& config() const { return model_.config; }

  /// Inputs are rounded to the type that the model computes in: products take them as they are.
  bool IsMma(const PackedMatrix& matrix) const {
    return arithmetic_ == Arithmetic::kMma16 && matrix.type != ComputeType::kF32 &&
           matrix.type == model_.compute && matrix.k % kProductDepth == 0;
  }

  NormArgs NormOf(const std::vector<float>& weight, float* out, uint32_t rows) {
    return {.x = Data(Rows::kHidden),
            .row_numbers = nullptr,
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
  const Arithmetic arithmetic_;
  std::unordered_map<const void*, void*> weights_;  // by where the host has them
  uint32_t count_ = 0;                              // rows of the pass
  std::array<std::unique_ptr<DeviceBuffer>, model::kRowsKinds> rows_;
  Sender sender_;
  DeviceBuffer tokens_;
  DeviceBuffer angles_;
  DeviceBuffer wanted_;
  DeviceBuffer logits_;
  const HostBuffer outgoing_;       // [kLogitRows, vocab]: one copy, and no row waits for another
  std::vector<float> host_angles_;  // [rows, head_dim]
};

}  // namespace

Result<std::unique_ptr<model::Operators>> MakeOperators(Device& device, const ForwardModel& model,
                                                        Arithmetic arithmetic) {
  auto operators = std::make_unique<DeviceOperators>(device, model, arithmetic);
  QUIRE_TRY(operators->CopyWeights());
  return operators;
}

}  // namespace quire::cuda
