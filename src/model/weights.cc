#include "model/weights.h"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <span>

#include "base/bits.h"
#include "base/check.h"
#include "base/hash.h"
#include "model/tensor_source.h"

namespace quire::model {
namespace {

constexpr uint64_t kReadBytes = 4 << 20;  // read, hashed and packed at a time
constexpr uint64_t kMatrixAlignment = 4096;
constexpr const char* kEmbedding = "model.embed_tokens.weight";
constexpr const char* kHead = "lm_head.weight";

// Where a tensor goes: rows of a matrix, or values of a vector of f32.
struct Target {
  PackedMatrix* matrix = nullptr;
  std::vector<float>* vector = nullptr;
  uint32_t first = 0;  // row or value
};

// Tensors that a file may hold beside the model's own: they do not shape any value.
bool IsHarmless(std::string_view name, const ModelConfig& config) {
  return (config.tied_embeddings && name == kHead) || name.contains("rotary_emb.inv_freq");
}

// Calls visit(name, shape, target) for every tensor of a stage. The one list of names: what is
// loaded, expected and made up by tests.
template <typename Visit>
void ForEachTensor(const ModelConfig& config, const LayerRange& range,
                   std::vector<LayerWeights>& layers, PackedMatrix& embedding, PackedMatrix& head,
                   std::vector<float>& final_norm, const Visit& visit) {
  using Shape = std::vector<uint64_t>;
  const uint64_t hidden = config.hidden;
  const uint32_t query_dim = config.query_dim();
  const uint32_t kv_dim = config.kv_dim();
  const uint32_t wide = config.intermediate;
  const auto values = [&](std::string name, uint64_t n, std::vector<float>& to,
                          uint32_t first = 0) {
    visit(std::move(name), Shape{n}, Target{.matrix = nullptr, .vector = &to, .first = first});
  };
  const auto rows = [&](std::string name, uint32_t n, uint32_t k, PackedMatrix& to,
                        uint32_t first = 0) {
    visit(std::move(name), Shape{n, k}, Target{.matrix = &to, .vector = nullptr, .first = first});
  };
  if (range.is_first()) rows(kEmbedding, config.vocab, config.hidden, embedding);
  if (range.is_last()) {
    const bool tied = config.tied_embeddings;
    if (!tied || !range.is_first()) {
      rows(tied ? kEmbedding : kHead, config.vocab, config.hidden, head);
    }
    values("model.norm.weight", hidden, final_norm);
  }
  for (uint32_t i = 0; i < range.count; ++i) {
    LayerWeights& layer = layers[i];
    const std::string at = fmt::format("model.layers.{}.", range.first + i);
    values(at + "input_layernorm.weight", hidden, layer.input_norm);
    values(at + "post_attention_layernorm.weight", hidden, layer.attention_norm);
    if (config.head_norms()) {
      values(at + "self_attn.q_norm.weight", config.head_dim, layer.q_norm);
      values(at + "self_attn.k_norm.weight", config.head_dim, layer.k_norm);
    }
    rows(at + "self_attn.q_proj.weight", query_dim, config.hidden, layer.qkv);
    rows(at + "self_attn.k_proj.weight", kv_dim, config.hidden, layer.qkv, query_dim);
    rows(at + "self_attn.v_proj.weight", kv_dim, config.hidden, layer.qkv, query_dim + kv_dim);
    rows(at + "self_attn.o_proj.weight", config.hidden, query_dim, layer.out);
    rows(at + "mlp.gate_proj.weight", wide, config.hidden, layer.gate_up);
    rows(at + "mlp.up_proj.weight", wide, config.hidden, layer.gate_up, wide);
    rows(at + "mlp.down_proj.weight", config.hidden, wide, layer.down);
    if (config.qkv_bias()) {
      values(at + "self_attn.q_proj.bias", query_dim, layer.qkv_bias);
      values(at + "self_attn.k_proj.bias", kv_dim, layer.qkv_bias, query_dim);
      values(at + "self_attn.v_proj.bias", kv_dim, layer.qkv_bias, query_dim + kv_dim);
    }
    if (config.out_bias()) values(at + "self_attn.o_proj.bias", hidden, layer.out_bias);
    if (config.mlp_bias) {
      values(at + "mlp.gate_proj.bias", wide, layer.gate_up_bias);
      values(at + "mlp.up_proj.bias", wide, layer.gate_up_bias, wide);
      values(at + "mlp.down_proj.bias", hidden, layer.down_bias);
    }
  }
}

// What the fingerprint says about the config, each field with its length or of fixed size.
void HashConfig(const ModelConfig& config, Blake2b<32>& hash) {
  for (const std::string& text : {std::string(FamilyName(config.family)), RopeText(config.rope)}) {
    hash.UpdateNumber(uint64_t{text.size()});
    hash.Update(text);
  }
  for (const uint32_t number :
       {config.layers, config.hidden, config.intermediate, config.query_heads, config.kv_heads,
        config.head_dim, config.vocab, uint32_t{config.attention_bias}, uint32_t{config.mlp_bias},
        uint32_t{config.tied_embeddings}, std::bit_cast<uint32_t>(config.norm_eps)}) {
    hash.UpdateNumber(number);
  }
  for (uint32_t layer = 0; layer < config.layers; ++layer) {
    hash.UpdateNumber(config.window_of(layer));
  }
  // No config.json has any, so what was stored without them keeps its name.
  if (config.sink_tokens != 0) {
    hash.Update("sink_tokens");
    hash.UpdateNumber(config.sink_tokens);
  }
}

// Every matrix of a stage: visit(matrix, outputs, inputs).
template <typename Visit>
void ForEachMatrix(const ModelConfig& config, const LayerRange& range,
                   std::vector<LayerWeights>& layers, PackedMatrix& embedding, PackedMatrix& head,
                   const Visit& visit) {
  const bool shares = range.is_first() && config.tied_embeddings;
  if (range.is_first()) visit(embedding, config.vocab, config.hidden);
  if (range.is_last() && !shares) visit(head, config.vocab, config.hidden);
  for (LayerWeights& layer : layers) {
    visit(layer.qkv, config.query_dim() + 2 * config.kv_dim(), config.hidden);
    visit(layer.out, config.hidden, config.query_dim());
    visit(layer.gate_up, 2 * config.intermediate, config.hidden);
    visit(layer.down, config.hidden, config.intermediate);
  }
}

uint64_t AlignedBytes(const PackedMatrix& matrix) {
  return RoundUp(PackedBytes(matrix.n, matrix.k, matrix.type, matrix.order), kMatrixAlignment);
}

void HashTensorHeader(const TensorInfo& tensor, Blake2b<32>& hash) {
  hash.UpdateNumber(uint64_t{tensor.name.size()});
  hash.Update(tensor.name);
  hash.UpdateNumber(tensor.type);
  hash.UpdateNumber(uint64_t{tensor.shape.size()});
  for (const uint64_t extent : tensor.shape) hash.UpdateNumber(extent);
  hash.UpdateNumber(tensor.bytes);
}

}  // namespace

std::vector<TensorSpec> TensorsOf(const ModelConfig& config) {
  std::vector<LayerWeights> layers(config.layers);
  PackedMatrix embedding;
  PackedMatrix head;
  std::vector<float> norm;
  std::vector<TensorSpec> specs;
  ForEachTensor(config, AllLayers(config), layers, embedding, head, norm,
                [&](std::string name, std::vector<uint64_t> shape, const Target&) {
                  specs.push_back({std::move(name), std::move(shape)});
                });
  std::ranges::sort(specs, {}, &TensorSpec::name);
  return specs;
}

uint64_t MatrixBytes(const ModelConfig& config, const LayerRange& range, ComputeType type) {
  std::vector<LayerWeights> layers(range.count);
  PackedMatrix embedding;
  PackedMatrix head;
  uint64_t bytes = 0;
  ForEachMatrix(config, range, layers, embedding, head, [&](PackedMatrix&, uint32_t n, uint32_t k) {
    bytes += AlignedBytes({.n = n, .k = k, .type = type});
  });
  return bytes;
}

class Weights::Loader {
 public:
  Loader(const TensorSource& source, const ModelConfig& config, const LayerRange& range,
         const WeightsOptions& options)
      : source_(source),
        config_(config),
        range_(range),
        options_(options),
        weights_(new Weights()) {}

  Result<std::unique_ptr<Weights>> Load() {
    weights_->layers_.resize(range_.count);
    if (range_.is_last()) QUIRE_TRY(UntieIfTheHeadDiffers());
    QUIRE_TRY(Check());
    ListWants();
    QUIRE_TRY(Allocate());
    Blake2b<32> hash;
    HashConfig(config_, hash);
    if (!range_.is_whole()) {
      hash.Update("layers");
      hash.UpdateNumber(range_.first);
      hash.UpdateNumber(range_.count);
    }
    for (const Want& want : wants_) QUIRE_TRY(LoadTensor(want, hash));
    for (LayerWeights& layer : weights_->layers_) {
      FindKeyFactors(config_, layer);
      hash.Update(std::as_bytes(std::span(layer.key_factors)));
    }
    weights_->fingerprint_ = hash.Finish();
    return std::move(weights_);
  }

 private:
  struct Want {
    const TensorInfo* tensor;
    Target target;
  };

  std::unexpected<Error> Bad(ErrorCode code, std::string_view tensor, std::string_view why) const {
    return Fail(code, fmt::format("{}: tensor {}: {}", source_.path(), tensor, why));
  }

  // A config may tie the output matrix to the embedding while the checkpoint holds another one.
  // transformers then takes what the checkpoint holds.
  Result<void> UntieIfTheHeadDiffers() {
    const TensorInfo* head = source_.Find(kHead);
    if (!config_.tied_embeddings || head == nullptr) return {};
    const TensorInfo* embedding = source_.Find(kEmbedding);
    config_.tied_embeddings = false;
    if (embedding == nullptr || embedding->type != head->type || embedding->shape != head->shape) {
      return {};
    }
    std::vector<std::byte> of_embedding;
    std::vector<std::byte> of_head;
    for (uint64_t at = 0; at < head->bytes; at += of_head.size()) {
      of_head.resize(std::min(kReadBytes, head->bytes - at));
      of_embedding.resize(of_head.size());
      QUIRE_TRY(source_.Read(*head, at, of_head));
      QUIRE_TRY(source_.Read(*embedding, at, of_embedding));
      if (of_head != of_embedding) return {};
    }
    config_.tied_embeddings = true;
    return {};
  }

  // Everything else that can be wrong is found before a byte is read or reserved.
  Result<void> Check() {
    const std::vector<TensorSpec> expected = TensorsOf(config_);
    const TensorInfo* first_matrix = nullptr;
    for (const auto& [name, shape] : expected) {
      const TensorInfo* tensor = source_.Find(name);
      if (tensor == nullptr) {
        return Bad(ErrorCode::kCorrupt, name,
                   fmt::format("missing; expected shape {}", ShapeText(shape)));
      }
      if (tensor->shape != shape) {
        return Bad(
            ErrorCode::kCorrupt, name,
            fmt::format("has shape {}, expected {}", ShapeText(tensor->shape), ShapeText(shape)));
      }
      if (shape.size() == 1) continue;
      if (first_matrix == nullptr) first_matrix = tensor;
      if (tensor->type != first_matrix->type) {
        return Bad(
            ErrorCode::kUnsupported, name,
            fmt::format("is {}, but {} is {}; all matrices must have one type",
                        TypeName(tensor->type), first_matrix->name, TypeName(first_matrix->type)));
      }
    }
    for (const TensorInfo& tensor : source_.tensors()) {
      if (!std::ranges::binary_search(expected, tensor.name, {}, &TensorSpec::name) &&
          !IsHarmless(tensor.name, config_)) {
        return Bad(
            ErrorCode::kUnsupported, tensor.name,
            fmt::format("shape {}: the config calls for no such tensor", ShapeText(tensor.shape)));
      }
    }
    QUIRE_CHECK(first_matrix != nullptr);  // the embedding
    if (options_.order == PanelOrder::kPairs && first_matrix->type != ComputeType::kBf16) {
      return Bad(ErrorCode::kUnsupported, first_matrix->name,
                 fmt::format("is {}, but arithmetic dot16 multiplies matrices of bf16; use "
                             "--arithmetic fma32",
                             TypeName(first_matrix->type)));
    }
    weights_->type_ = first_matrix->type;
    return {};
  }

  // What of it the stage has, by name.
  void ListWants() {
    ForEachTensor(config_, range_, weights_->layers_, weights_->embedding_, weights_->head_,
                  weights_->final_norm_,
                  [&](const std::string& name, const std::vector<uint64_t>&, const Target& target) {
                    wants_.push_back({source_.Find(name), target});
                    total_bytes_ += wants_.back().tensor->bytes;
                  });
    std::ranges::sort(wants_, {},
                      [](const Want& want) -> const std::string& { return want.tensor->name; });
  }

  // One reservation for all matrices, so that huge pages serve the small ones too.
  Result<void> Allocate() {
    std::vector<PackedMatrix*> matrices;
    uint64_t bytes = 0;
    ForEachMatrix(config_, range_, weights_->layers_, weights_->embedding_, weights_->head_,
                  [&](PackedMatrix& matrix, uint32_t n, uint32_t k) {
                    matrix = {.n = n, .k = k, .type = weights_->type_, .order = options_.order};
                    matrices.push_back(&matrix);
                    bytes += AlignedBytes(matrix);
                  });
    weights_->memory_ = MakeHostMemory(/*huge_pages=*/true);
    QUIRE_ASSIGN(Reservation arena, Reservation::CreateCommitted(*weights_->memory_, bytes));
    weights_->arena_.emplace(std::move(arena));
    std::byte* at = weights_->arena_->base();
    for (PackedMatrix* matrix : matrices) {
      matrix->panels = at;
      at += AlignedBytes(*matrix);
    }
    if (range_.is_whole() && config_.tied_embeddings) weights_->head_ = weights_->embedding_;
    return {};
  }

  Result<void> LoadTensor(const Want& want, Blake2b<32>& hash) {
    const TensorInfo& tensor = *want.tensor;
    HashTensorHeader(tensor, hash);
    const uint64_t row_bytes =
        want.target.matrix != nullptr ? tensor.shape[1] * TypeBytes(tensor.type) : tensor.bytes;
    const uint64_t rows = tensor.bytes / row_bytes;
    const uint64_t rows_per_read = std::max<uint64_t>(1, kReadBytes / row_bytes);
    buffer_.resize(std::max<size_t>(buffer_.size(), rows_per_read * row_bytes));
    for (uint64_t row = 0; row < rows; row += rows_per_read) {
      const uint64_t count = std::min(rows_per_read, rows - row);
      const std::span<std::byte> bytes(buffer_.data(), count * row_bytes);
      QUIRE_TRY(source_.Read(tensor, row * row_bytes, bytes));
      hash.Update(bytes);
      Store(want.target, tensor.type, static_cast<uint32_t>(row), static_cast<uint32_t>(count),
            bytes);
      done_bytes_ += bytes.size();
      if (options_.progress) options_.progress(done_bytes_, total_bytes_);
    }
    return {};
  }

  void Store(const Target& target, ComputeType type, uint32_t row, uint32_t count,
             std::span<const std::byte> bytes) {
    if (target.matrix != nullptr) {
      auto* panels = const_cast<std::byte*>(target.matrix->panels);  // of our own arena
      PackRows(*target.matrix, bytes.data(), target.first + row, count, panels);
      return;
    }
    const size_t end = target.first + bytes.size() / TypeBytes(type);
    if (target.vector->size() < end) target.vector->resize(end);
    for (size_t at = 0; at < bytes.size(); at += TypeBytes(type)) {
      (*target.vector)[target.first + at / TypeBytes(type)] = LoadValue(type, bytes.data() + at);
    }
  }

  const TensorSource& source_;
  ModelConfig config_;  // of the whole model; tied only if the weights are
  const LayerRange range_;
  const WeightsOptions& options_;
  std::unique_ptr<Weights> weights_;
  std::vector<Want> wants_;  // by name
  std::vector<std::byte> buffer_;
  uint64_t total_bytes_ = 0;
  uint64_t done_bytes_ = 0;
};

Result<std::unique_ptr<Weights>> Weights::Load(const TensorSource& source,
                                               const ModelConfig& config, const LayerRange& layers,
                                               const WeightsOptions& options) {
  return Loader(source, config, layers, options).Load();
}

}  // namespace quire::model
