"""Random tiny models, and generate with and without Quire."""

from __future__ import annotations

import pytest
import torch
from transformers import (BloomConfig, BloomForCausalLM, GptOssConfig, GptOssForCausalLM,
                          LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM,
                          Qwen3Config, Qwen3ForCausalLM)

from quire.transformers import PromptCache

torch.set_num_threads(1)

SIZES = dict(vocab_size=500, hidden_size=128, intermediate_size=256, num_hidden_layers=3,
             num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=4096,
             pad_token_id=0, bos_token_id=1, eos_token_id=None)
WINDOW = 24  # of the Mistral model: prompts are longer


def make_model(name, dtype=torch.float32, seed=0):
    torch.manual_seed(seed)
    if name == "llama":
        model = LlamaForCausalLM(LlamaConfig(**SIZES))
    elif name == "llama-mha":
        model = LlamaForCausalLM(LlamaConfig(**{**SIZES, "num_key_value_heads": 4}))
    elif name == "qwen3":
        model = Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=64))
    elif name == "qwen3-mixed":  # a window in some layers only
        model = Qwen3ForCausalLM(Qwen3Config(
            **SIZES, head_dim=64, use_sliding_window=True, sliding_window=WINDOW,
            layer_types=["full_attention", "sliding_attention", "full_attention"]))
    elif name == "gpt-oss":  # sinks, and a window in one layer
        # All experts compute each token: a choice among them would be one of roundings.
        model = GptOssForCausalLM(GptOssConfig(
            **SIZES, head_dim=64, num_local_experts=2, num_experts_per_tok=2, sliding_window=WINDOW,
            layer_types=["full_attention", "sliding_attention", "full_attention"]))
    elif name == "bloom":  # ALiBi; 6 heads, so that not all slopes are powers of two
        model = BloomForCausalLM(BloomConfig(
            vocab_size=500, hidden_size=192, n_layer=3, n_head=6, tie_word_embeddings=False,
            pad_token_id=0, bos_token_id=1, eos_token_id=None))
    else:
        model = MistralForCausalLM(MistralConfig(**SIZES, sliding_window=WINDOW))
    for weight in model.parameters():
        weight.data.mul_(4)  # else the logits of a random model are nearly tied
    return with_sinks(model).to(dtype).eval()


def with_sinks(model):
    """The model, whose sinks, where it has any, take a good part of the weights."""
    for name, weight in model.named_parameters():
        if name.endswith("sinks"):
            weight.data.normal_(mean=2.0)
    return model


MODELS = ["llama", "llama-mha", "qwen3", "qwen3-mixed", "mistral", "gpt-oss", "bloom"]


@pytest.fixture(scope="module", params=MODELS)
def model(request):
    return make_model(request.param)


@pytest.fixture(scope="module")
def llama():
    return make_model("llama")


def prompt(tokens, seed=1, rows=1):
    return torch.randint(2, 500, (rows, tokens), generator=torch.Generator().manual_seed(seed))


def padded(lengths, seed=2):
    """Rows of these lengths that share their beginning, padded on the left."""
    ids = prompt(max(lengths), seed).repeat(len(lengths), 1)
    rows = torch.zeros_like(ids)
    mask = torch.zeros_like(ids)
    for row, length in enumerate(lengths):
        rows[row, ids.shape[1] - length:] = ids[row, :length]
        mask[row, ids.shape[1] - length:] = 1
    return rows, mask


def generate(model, ids, mask=None, cache=None, tokens=20, **options):
    return model.generate(
        input_ids=ids, attention_mask=torch.ones_like(ids) if mask is None else mask,
        past_key_values=cache, max_new_tokens=tokens, do_sample=False, **options)


def clear(model, make, tokens, margin):
    """The first (ids, mask) of make(seed) whose greedy tokens no rounding decides, with them.

    At each step the two largest logits are `margin` standard deviations apart at least. Half
    precision has many near ties: there transformers' own eager and sdpa differ too.
    """
    for seed in range(200):
        ids, mask = make(seed)
        out = model.generate(input_ids=ids, attention_mask=mask, max_new_tokens=tokens,
                             do_sample=False, output_logits=True, return_dict_in_generate=True)
        logits = torch.stack(out.logits, 1).float()
        best = logits.topk(2).values
        if ((best[..., 0] - best[..., 1]) / logits.std(-1)).min() >= margin:
            return ids, mask, out.sequences
    raise AssertionError("no such prompt")


class Forwards:
    """Counts the tokens of each forward that is called with a cache of Quire's.

    Without a hook at the model: that would make it another model.
    """

    def __init__(self):
        self.tokens = []
        self.begin = PromptCache.begin

    def __enter__(self):
        def begin(cache, ids, options):
            options = self.begin(cache, ids, options)
            self.tokens.append(options["input_ids"].shape[1])
            return options

        PromptCache.begin = begin
        return self.tokens

    def __exit__(self, *exception):
        PromptCache.begin = self.begin
