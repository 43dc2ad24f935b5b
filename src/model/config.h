// config.json of a model in Hugging Face form: the numbers that shape its forward pass and its
// cache.
#ifndef QUIRE_MODEL_CONFIG_H_
#define QUIRE_MODEL_CONFIG_H_

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "model/rope.h"
#include "quire/error.h"
#include "quire/geometry.h"
#include "quire/identity.h"

namespace quire::model {

/// Model families this build can run.
enum class Family : uint8_t { kLlama, kMistral, kQwen2, kQwen3 };

/// model_type of the family in config.json: "llama", "mistral", "qwen2", "qwen3".
std::string_view FamilyName(Family family);
/// Its one name in `architectures`, for example "LlamaForCausalLM".
std::string_view ArchitectureName(Family family);

struct ModelConfig {
  Family family = Family::kQwen3;
  uint32_t layers = 0;
  uint32_t hidden = 0;        // width of the residual stream
  uint32_t intermediate = 0;  // width inside the feed-forward
  uint32_t query_heads = 0;   // a multiple of kv_heads
  uint32_t kv_heads = 0;
  uint32_t head_dim = 0;       // even; independent of hidden / query_heads
  uint32_t vocab = 0;          // rows of the embedding
  uint32_t positions_max = 0;  // longest sequence it was trained for
  RopeConfig rope;
  float norm_eps = 0;
  bool attention_bias = false;          // as the file says; qkv_bias and out_bias say what it means
  bool mlp_bias = false;                // gate, up and down
  uint32_t window_tokens = 0;           // of window_layers: a query and window_tokens - 1 before it
  std::vector<uint32_t> window_layers;  // ascending; the others see everything
  uint32_t sink_tokens = 0;             // of window_layers: the first ones, which all queries see
  bool tied_embeddings = false;         // the output matrix is the embedding
  std::optional<ComputeType> dtype;     // what the config says; the tensors decide
  std::optional<TokenId> bos;
  std::vector<TokenId> eos;  // any of them ends a text

  uint32_t query_dim() const { return query_heads * head_dim; }
  uint32_t kv_dim() const { return kv_heads * head_dim; }
  /// Queries and keys are normed by head before they are rotated.
  bool head_norms() const { return family == Family::kQwen3; }
  bool qkv_bias() const { return attention_bias || family == Family::kQwen2; }
  bool out_bias() const { return attention_bias; }
  /// Tokens a query of the layer sees, itself included; 0: all.
  uint32_t window_of(uint32_t layer) const;

  bool operator==(const ModelConfig&) const = default;
};

/// Reads config.json; what is absent means what it means to transformers. Everything in it that
/// would change the result and that this build does not do is an error, never ignored.
///
/// Errors:  kCorrupt broken JSON, a field missing, of a wrong type or out of range; kUnsupported an
///          architecture or feature this build lacks. The message names file_name and the field
/// Threads: any
Result<ModelConfig> ParseConfig(std::string_view json, std::string_view file_name);

/// The window that a user gives to a model without one: in every layer a query sees the first
/// sink_tokens, itself and the window_tokens - 1 before it. The answers are not those of the whole
/// context.
struct Window {
  uint32_t window_tokens = 0;  // 0: none is given
  uint32_t sink_tokens = 0;
};

/// Gives every layer this window.
///
/// Errors: kInvalidArgument sinks without a window; kUnsupported the model has a window of its own
Result<void> SetWindow(const Window& window, ModelConfig& config);

/// Shape of the model's KV cache: the layers that see everything, then those with a window.
Geometry GeometryOf(const ModelConfig& config);

}  // namespace quire::model

#endif  // QUIRE_MODEL_CONFIG_H_
