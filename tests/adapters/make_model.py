"""A tiny random model: `make_model.py FOLDER KIND SEED`. KIND: llama, window (every second layer
has a window of 64 tokens), mla."""

import sys

import torch
from transformers import (
    DeepseekV2Config,
    DeepseekV2ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Olmo3Config,
    Olmo3ForCausalLM,
)

SHAPE = {"vocab_size": 512, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 4,
         "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
         "max_position_embeddings": 4096, "bos_token_id": 1, "eos_token_id": 2,
         "tie_word_embeddings": False}


def made(kind):
    if kind == "llama":
        return LlamaForCausalLM(LlamaConfig(**SHAPE))
    if kind == "window":
        return Olmo3ForCausalLM(Olmo3Config(**SHAPE | {"hidden_size": 256}, sliding_window=64,
                                            layer_types=2 * ["sliding_attention",
                                                             "full_attention"]))
    shape = SHAPE | {"num_key_value_heads": 4}
    del shape["head_dim"]
    return DeepseekV2ForCausalLM(DeepseekV2Config(
        **shape, kv_lora_rank=512, q_lora_rank=None, qk_rope_head_dim=64, qk_nope_head_dim=32,
        v_head_dim=32, first_k_dense_replace=4, n_routed_experts=2, num_experts_per_tok=1,
        moe_intermediate_size=64))


def main(folder, kind, seed):
    torch.manual_seed(seed)
    model = made(kind)
    for parameter in model.parameters():
        parameter.data.mul_(3)  # so that tokens differ
    model.float().save_pretrained(folder)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
