// config.json of released checkpoints, as they were published: each must be read, and must call for
// exactly the parameters that the checkpoint has.
#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "model/config.h"
#include "model/random_model.h"
#include "model/weights.h"

namespace quire::model {
namespace {

struct Released {
  std::string_view name;
  std::string_view config;
  uint64_t parameters;  // as the checkpoint's page counts them
  uint32_t layers;
  uint32_t query_heads;
  uint32_t kv_heads;
  uint32_t head_dim;
  uint32_t window_tokens;  // of every layer
  std::string_view rope;
};

constexpr Released kReleased[] = {
    {"Llama-2-7b-hf", R"({"_name_or_path": "meta-llama/Llama-2-7b-hf",
  "architectures": ["LlamaForCausalLM"], "bos_token_id": 1, "eos_token_id": 2,
  "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
  "intermediate_size": 11008, "max_position_embeddings": 4096, "model_type": "llama",
  "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 32,
  "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling": null,
  "tie_word_embeddings": false, "torch_dtype": "float16",
  "transformers_version": "4.31.0.dev0", "use_cache": true, "vocab_size": 32000})",
     6'738'415'616, 32, 32, 32, 128, 0, "rope:theta=10000"},
    {"Meta-Llama-3-8B", R"({"architectures": ["LlamaForCausalLM"], "attention_bias": false,
  "attention_dropout": 0.0, "bos_token_id": 128000, "eos_token_id": 128001,
  "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
  "intermediate_size": 14336, "max_position_embeddings": 8192, "model_type": "llama",
  "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
  "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling": null, "rope_theta": 500000.0,
  "tie_word_embeddings": false, "torch_dtype": "bfloat16",
  "transformers_version": "4.40.0.dev0", "use_cache": true, "vocab_size": 128256})",
     8'030'261'248, 32, 32, 8, 128, 0, "rope:theta=500000"},
    {"Llama-3.1-8B-Instruct", R"({"architectures": ["LlamaForCausalLM"],
  "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 128000,
  "eos_token_id": [128001, 128008, 128009], "hidden_act": "silu", "hidden_size": 4096,
  "initializer_range": 0.02, "intermediate_size": 14336, "max_position_embeddings": 131072,
  "mlp_bias": false, "model_type": "llama", "num_attention_heads": 32,
  "num_hidden_layers": 32, "num_key_value_heads": 8, "pretraining_tp": 1,
  "rms_norm_eps": 1e-05, "rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0,
  "high_freq_factor": 4.0, "original_max_position_embeddings": 8192, "rope_type": "llama3"},
  "rope_theta": 500000.0, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
  "transformers_version": "4.42.3", "use_cache": true, "vocab_size": 128256})",
     8'030'261'248, 32, 32, 8, 128, 0,
     "rope:theta=500000 type=llama3 factor=8 original=8192 low=1 high=4"},
    {"Llama-3.2-1B", R"({"architectures": ["LlamaForCausalLM"], "attention_bias": false,
  "attention_dropout": 0.0, "bos_token_id": 128000, "eos_token_id": 128001, "head_dim": 64,
  "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02,
  "intermediate_size": 8192, "max_position_embeddings": 131072, "mlp_bias": false,
  "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 16,
  "num_key_value_heads": 8, "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling":
  {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
  "original_max_position_embeddings": 8192, "rope_type": "llama3"}, "rope_theta": 500000.0,
  "tie_word_embeddings": true, "torch_dtype": "bfloat16",
  "transformers_version": "4.45.0.dev0", "use_cache": true, "vocab_size": 128256})",
     1'235'814'400, 16, 32, 8, 64, 0,
     "rope:theta=500000 type=llama3 factor=32 original=8192 low=1 high=4"},
    {"Mistral-7B-v0.1", R"({"architectures": ["MistralForCausalLM"], "bos_token_id": 1,
  "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
  "intermediate_size": 14336, "max_position_embeddings": 32768, "model_type": "mistral",
  "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
  "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "sliding_window": 4096,
  "tie_word_embeddings": false, "torch_dtype": "bfloat16",
  "transformers_version": "4.34.0.dev0", "use_cache": true, "vocab_size": 32000})",
     7'241'732'096, 32, 32, 8, 128, 4096, "rope:theta=10000"},
    {"Mistral-7B-v0.3", R"({"architectures": ["MistralForCausalLM"], "attention_dropout": 0.0,
  "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 4096,
  "initializer_range": 0.02, "intermediate_size": 14336, "max_position_embeddings": 32768,
  "model_type": "mistral", "num_attention_heads": 32, "num_hidden_layers": 32,
  "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_theta": 1000000.0,
  "sliding_window": null, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
  "transformers_version": "4.42.0.dev0", "use_cache": true, "vocab_size": 32768})",
     7'248'023'552, 32, 32, 8, 128, 0, "rope:theta=1000000"},
    {"Mistral-Nemo-Base-2407", R"({"architectures": ["MistralForCausalLM"],
  "attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2, "head_dim": 128,
  "hidden_act": "silu", "hidden_size": 5120, "initializer_range": 0.02,
  "intermediate_size": 14336, "max_position_embeddings": 128000, "model_type": "mistral",
  "num_attention_heads": 32, "num_hidden_layers": 40, "num_key_value_heads": 8,
  "rms_norm_eps": 1e-05, "rope_theta": 1000000.0, "sliding_window": null,
  "tie_word_embeddings": false, "torch_dtype": "bfloat16",
  "transformers_version": "4.43.0.dev0", "use_cache": true, "vocab_size": 131072})",
     12'247'782'400, 40, 32, 8, 128, 0, "rope:theta=1000000"},
    {"Qwen2-0.5B", R"({"architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0,
  "bos_token_id": 151643, "eos_token_id": 151643, "hidden_act": "silu", "hidden_size": 896,
  "initializer_range": 0.02, "intermediate_size": 4864, "max_position_embeddings": 131072,
  "max_window_layers": 24, "model_type": "qwen2", "num_attention_heads": 14,
  "num_hidden_layers": 24, "num_key_value_heads": 2, "rms_norm_eps": 1e-06,
  "rope_theta": 1000000.0, "sliding_window": 131072, "tie_word_embeddings": true,
  "torch_dtype": "bfloat16", "transformers_version": "4.40.1", "use_cache": true,
  "use_sliding_window": false, "vocab_size": 151936})",
     494'032'768, 24, 14, 2, 64, 0, "rope:theta=1000000"},
    {"Qwen2.5-7B-Instruct, extended as its page says",
     R"({"architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0,
  "bos_token_id": 151643, "eos_token_id": 151645, "hidden_act": "silu", "hidden_size": 3584,
  "initializer_range": 0.02, "intermediate_size": 18944, "max_position_embeddings": 32768,
  "max_window_layers": 28, "model_type": "qwen2", "num_attention_heads": 28,
  "num_hidden_layers": 28, "num_key_value_heads": 4, "rms_norm_eps": 1e-06,
  "rope_theta": 1000000.0, "sliding_window": 131072, "tie_word_embeddings": false,
  "torch_dtype": "bfloat16", "transformers_version": "4.43.1", "use_cache": true,
  "use_sliding_window": false, "vocab_size": 152064, "rope_scaling": {"factor": 4.0,
  "original_max_position_embeddings": 32768, "type": "yarn"}})",
     7'615'616'512, 28, 28, 4, 128, 0,
     "rope:theta=1000000 type=yarn factor=4 original=32768 fast=32 slow=1 truncate=true "
     "attention=1.138629436111989"},
    {"Qwen2.5-7B-Instruct-1M", R"({"architectures": ["Qwen2ForCausalLM"],
  "attention_dropout": 0.0, "bos_token_id": 151643, "dual_chunk_attention_config":
  {"chunk_size": 262144, "local_size": 8192, "original_max_position_embeddings": 262144},
  "eos_token_id": 151645, "hidden_act": "silu", "hidden_size": 3584, "initializer_range": 0.02,
  "intermediate_size": 18944, "max_position_embeddings": 1010000, "max_window_layers": 28,
  "model_type": "qwen2", "num_attention_heads": 28, "num_hidden_layers": 28,
  "num_key_value_heads": 4, "rms_norm_eps": 1e-05, "rope_theta": 10000000.0,
  "sliding_window": 32768, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
  "transformers_version": "4.47.1", "use_cache": true, "use_sliding_window": false,
  "vocab_size": 152064})",
     7'615'616'512, 28, 28, 4, 128, 0, "rope:theta=10000000"},
    {"Qwen3-0.6B", R"({"architectures": ["Qwen3ForCausalLM"], "attention_bias": false,
  "attention_dropout": 0.0, "bos_token_id": 151643, "eos_token_id": 151645, "head_dim": 128,
  "hidden_act": "silu", "hidden_size": 1024, "initializer_range": 0.02,
  "intermediate_size": 3072, "max_position_embeddings": 40960, "max_window_layers": 28,
  "model_type": "qwen3", "num_attention_heads": 16, "num_hidden_layers": 28,
  "num_key_value_heads": 8, "rms_norm_eps": 1e-06, "rope_scaling": null,
  "rope_theta": 1000000, "sliding_window": null, "tie_word_embeddings": true,
  "torch_dtype": "bfloat16", "transformers_version": "4.51.0", "use_cache": true,
  "use_sliding_window": false, "vocab_size": 151936})",
     596'049'920, 28, 16, 8, 128, 0, "rope:theta=1000000"},
    {"Qwen3-8B", R"({"architectures": ["Qwen3ForCausalLM"], "attention_bias": false,
  "attention_dropout": 0.0, "bos_token_id": 151643, "eos_token_id": 151645, "head_dim": 128,
  "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
  "intermediate_size": 12288, "max_position_embeddings": 40960, "max_window_layers": 36,
  "model_type": "qwen3", "num_attention_heads": 32, "num_hidden_layers": 36,
  "num_key_value_heads": 8, "rms_norm_eps": 1e-06, "rope_scaling": null,
  "rope_theta": 1000000, "sliding_window": null, "tie_word_embeddings": false,
  "torch_dtype": "bfloat16", "transformers_version": "4.51.0", "use_cache": true,
  "use_sliding_window": false, "vocab_size": 151936})",
     8'190'735'360, 36, 32, 8, 128, 0, "rope:theta=1000000"},
};

uint64_t Parameters(const ModelConfig& config) {
  uint64_t total = 0;
  for (const TensorSpec& tensor : TensorsOf(config)) {
    uint64_t values = 1;
    for (const uint64_t extent : tensor.shape) values *= extent;
    total += values;
  }
  return total;
}

TEST(ReleasedTest, EveryConfigIsReadAndCallsForTheParametersPublished) {
  for (const Released& released : kReleased) {
    SCOPED_TRACE(released.name);
    const Result<ModelConfig> config = ParseConfig(released.config, "config.json");
    ASSERT_TRUE(config.has_value()) << config.error().message;
    EXPECT_EQ(Parameters(*config), released.parameters);
    EXPECT_EQ(config->query_heads, released.query_heads);
    EXPECT_EQ(RopeText(config->rope), released.rope);
    EXPECT_EQ(ParseConfig(ConfigJson(*config), "its own text").value(), *config);
    const Geometry geometry = GeometryOf(*config);
    EXPECT_TRUE(geometry.Validate().has_value());
    ASSERT_EQ(geometry.groups.size(), 1u);
    Geometry expected = Geometry::Uniform(released.layers, released.kv_heads, released.head_dim);
    if (released.window_tokens != 0) {
      expected.groups.front().kind = LayerKind::kWindow;
      expected.groups.front().window_tokens = released.window_tokens;
    }
    EXPECT_EQ(geometry, expected);
  }
}

}  // namespace
}  // namespace quire::model
