"""Two questions about one document, on a random tiny Llama of transformers: the second finds it."""

from __future__ import annotations

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from quire.transformers import attach


def main() -> None:
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=500, hidden_size=128, intermediate_size=256, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, eos_token_id=None, pad_token_id=0)).eval()
    document = torch.randint(2, 500, (1, 200))
    with attach(model, hot_bytes=100_000_000, kv="int8") as cache:
        for question in ([11, 12, 13], [21, 22]):
            ids = torch.cat([document, torch.tensor([question])], 1)
            out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=8,
                                 do_sample=False, past_key_values=cache.for_prompt(ids))
            print(f"{cache.stats()['hit_tokens']} tokens found so far, answer", out[0, -8:].tolist())


if __name__ == "__main__":
    main()
