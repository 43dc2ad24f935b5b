"""Models with random weights as Hugging Face directories, the same bytes on every machine.

The numbers come from SHAKE-256 (FIPS 202), not from numpy's generators, so that no release of numpy
can change them. Scales are chosen so that attention is neither flat nor one-hot, every layer counts
and logits spread like those of a trained model (standard deviation about 3).
"""

import dataclasses
import hashlib
import json
import math
from pathlib import Path

import numpy as np

import safetensors_np


ARCHITECTURES = {"llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM",
                 "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}


@dataclasses.dataclass(frozen=True)
class Case:
    """One model and one prompt. Lengths in tokens; every id is drawn from the seed."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    rope_theta: float
    tied: bool
    prompt_tokens: int
    rms_eps: float = 1e-6
    dtype: str = "F32"
    # transformers 5 writes {"rope_parameters": {...}}, older ones a bare "rope_theta".
    rope_parameters: bool = False
    family: str = "qwen3"
    # What stretches the rotation: rope_type and its numbers.
    rope: dict = dataclasses.field(default_factory=dict)
    attention_bias: bool = False
    mlp_bias: bool = False  # Llama alone
    # Of config.json, beside or instead of the usual ones.
    fields: dict = dataclasses.field(default_factory=dict)
    drop: tuple = ()  # usual fields that are left out
    shards: int = 1
    # What checkpoints hold beside what their config calls for. transformers takes the head.
    head_though_tied: bool = False
    inv_freq: bool = False

    def qkv_bias(self) -> bool:
        return self.attention_bias or self.family == "qwen2"


# head_dim is never hidden / heads, and `odd` has widths that no vector divides. `long` passes 16
# splits of 256 tokens, so that attention lanes fold more than one split.
CASES = [
    Case("mha", layers=2, hidden=64, heads=4, kv_heads=4, head_dim=32, intermediate=160, vocab=320,
         rope_theta=2e4, tied=True, prompt_tokens=301),
    Case("gqa", layers=3, hidden=96, heads=6, kv_heads=2, head_dim=64, intermediate=224, vocab=320,
         rope_theta=1e6, tied=False, prompt_tokens=333),
    Case("mqa", layers=2, hidden=128, heads=4, kv_heads=1, head_dim=128, intermediate=256,
         vocab=320, rope_theta=5e5, tied=True, prompt_tokens=305, rope_parameters=True),
    Case("odd", layers=2, hidden=76, heads=6, kv_heads=3, head_dim=32, intermediate=149, vocab=323,
         rope_theta=3e4, tied=False, prompt_tokens=310, rms_eps=1e-5),
    Case("bf16", layers=2, hidden=128, heads=8, kv_heads=2, head_dim=64, intermediate=256,
         vocab=320, rope_theta=1e6, tied=True, prompt_tokens=320, dtype="BF16"),
    Case("f16", layers=2, hidden=80, heads=5, kv_heads=1, head_dim=64, intermediate=192, vocab=320,
         rope_theta=1e5, tied=False, prompt_tokens=303, dtype="F16"),
    Case("long", layers=2, hidden=64, heads=4, kv_heads=2, head_dim=32, intermediate=128, vocab=320,
         rope_theta=1e6, tied=False, prompt_tokens=4400),
    # The other families, each with what its checkpoints use. Windows are shorter than the texts,
    # and texts longer than the length that a stretched rotation was trained for.
    Case("llama", family="llama", layers=2, hidden=96, heads=4, kv_heads=4, head_dim=24,
         intermediate=160, vocab=130, rope_theta=1e4, tied=False, prompt_tokens=301, rms_eps=1e-5,
         drop=("head_dim", "rope_theta", "rope_scaling", "num_key_value_heads"), inv_freq=True),
    Case("llama3", family="llama", layers=3, hidden=96, heads=6, kv_heads=2, head_dim=64,
         intermediate=224, vocab=130, rope_theta=5e5, tied=True, prompt_tokens=333, dtype="BF16",
         rope={"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
               "high_freq_factor": 4.0, "original_max_position_embeddings": 128}, shards=3),
    Case("biased", family="llama", layers=2, hidden=80, heads=4, kv_heads=1, head_dim=80,
         intermediate=150, vocab=131, rope_theta=2e4, tied=False, prompt_tokens=310,
         rope_parameters=True, rope={"rope_type": "linear", "factor": 2.5}, attention_bias=True,
         mlp_bias=True),
    Case("mistral", family="mistral", layers=3, hidden=64, heads=8, kv_heads=2, head_dim=32,
         intermediate=160, vocab=130, rope_theta=1e4, tied=False, prompt_tokens=330,
         fields={"sliding_window": 48}),
    Case("nemo", family="mistral", layers=2, hidden=80, heads=5, kv_heads=1, head_dim=128,
         intermediate=192, vocab=130, rope_theta=1e6, tied=False, prompt_tokens=700, dtype="F16",
         rope_parameters=True, fields={"sliding_window": 300, "max_position_embeddings": 1024},
         rope={"rope_type": "yarn", "factor": 4.0, "attention_factor": 1.25,
               "original_max_position_embeddings": 256}, shards=2),
    Case("qwen2", family="qwen2", layers=2, hidden=112, heads=14, kv_heads=2, head_dim=64,
         intermediate=200, vocab=130, rope_theta=1e6, tied=True, prompt_tokens=320, dtype="BF16",
         rope={"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128},
         fields={"max_position_embeddings": 512}),
    Case("qwen2-mixed", family="qwen2", layers=4, hidden=96, heads=6, kv_heads=2, head_dim=16,
         intermediate=144, vocab=130, rope_theta=1e5, tied=False, prompt_tokens=400,
         fields={"use_sliding_window": True, "sliding_window": 40, "layer_types":
                 ["sliding_attention", "full_attention", "full_attention", "sliding_attention"]},
         drop=("head_dim",), shards=2),
    Case("qwen2-late", family="qwen2", layers=3, hidden=64, heads=2, kv_heads=1, head_dim=256,
         intermediate=128, vocab=130, rope_theta=1e6, tied=True, head_though_tied=True,
         prompt_tokens=350,
         fields={"use_sliding_window": True, "sliding_window": 100, "max_window_layers": 1}),
    Case("qwen3-all", family="qwen3", layers=3, hidden=72, heads=7, kv_heads=1, head_dim=32,
         intermediate=136, vocab=130, rope_theta=15e4, tied=False, prompt_tokens=600,
         rope_parameters=True, attention_bias=True,
         rope={"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512,
               "beta_fast": 16, "beta_slow": 2, "mscale": 0.707, "mscale_all_dim": 1.2,
               "truncate": False},
         fields={"use_sliding_window": True, "sliding_window": 257, "layer_types":
                 ["full_attention", "sliding_attention", "full_attention"],
                 "max_position_embeddings": 2048}),
]


def raw_u32(seed: int, name: str, count: int) -> np.ndarray:
    """`count` independent 32-bit numbers that belong to (seed, name)."""
    stream = hashlib.shake_256(f"quire/{seed}/{name}".encode())
    return np.frombuffer(stream.digest(4 * count), dtype="<u4")


def uniform(seed: int, name: str, shape: tuple) -> np.ndarray:
    """f32 values in [-1, 1), each a multiple of 2^-23: exact, so the same on every platform."""
    raw = raw_u32(seed, name, math.prod(shape)) >> np.uint32(8)
    return (raw.astype(np.float32) * np.float32(2.0**-23) - np.float32(1)).reshape(shape)


def linear(seed: int, name: str, rows: int, columns: int, gain: float) -> np.ndarray:
    """[rows, columns] with standard deviation gain / sqrt(columns)."""
    return uniform(seed, name, (rows, columns)) * np.float32(gain * math.sqrt(3.0 / columns))


def norm(seed: int, name: str, dim: int, low: float, high: float) -> np.ndarray:
    middle, half = np.float32((low + high) / 2), np.float32((high - low) / 2)
    return middle + half * uniform(seed, name, (dim,))


def tensors(case: Case, seed: int) -> dict:
    """Every weight by its Hugging Face name, f32."""
    query_dim, kv_dim = case.heads * case.head_dim, case.kv_heads * case.head_dim
    weights = {}

    def add_linear(name: str, rows: int, columns: int, gain: float) -> None:
        weights[name] = linear(seed, f"{case.name}/{name}", rows, columns, gain)

    def add_norm(name: str, dim: int, low: float, high: float) -> None:
        weights[name] = norm(seed, f"{case.name}/{name}", dim, low, high)

    def add_biases(names: tuple, dims: tuple) -> None:
        for name, dim in zip(names, dims):
            weights[f"{name}.bias"] = norm(seed, f"{case.name}/{name}.bias", dim, -0.5, 0.5)

    add_linear("model.embed_tokens.weight", case.vocab, case.hidden, 3.0)
    if not case.tied or case.head_though_tied:
        add_linear("lm_head.weight", case.vocab, case.hidden, 3.0)
    add_norm("model.norm.weight", case.hidden, 0.5, 1.5)
    for layer in range(case.layers):
        prefix = f"model.layers.{layer}."
        if case.inv_freq:
            add_norm(prefix + "self_attn.rotary_emb.inv_freq", case.head_dim // 2, 0, 1)
        add_norm(prefix + "input_layernorm.weight", case.hidden, 0.5, 1.5)
        add_norm(prefix + "post_attention_layernorm.weight", case.hidden, 0.5, 1.5)
        # Scores have standard deviation of about 2: sharp enough for the maximum to matter.
        sharp = 1.4
        if case.family == "qwen3":
            add_norm(prefix + "self_attn.q_norm.weight", case.head_dim, 0.5, 2.5)
            add_norm(prefix + "self_attn.k_norm.weight", case.head_dim, 0.5, 2.5)
            sharp = 1.0
        add_linear(prefix + "self_attn.q_proj.weight", query_dim, case.hidden, sharp)
        add_linear(prefix + "self_attn.k_proj.weight", kv_dim, case.hidden, sharp)
        add_linear(prefix + "self_attn.v_proj.weight", kv_dim, case.hidden, 1.0)
        # Averaging over tokens shrinks the values; the gain brings them back.
        add_linear(prefix + "self_attn.o_proj.weight", case.hidden, query_dim, 4.0)
        add_linear(prefix + "mlp.gate_proj.weight", case.intermediate, case.hidden, 1.5)
        add_linear(prefix + "mlp.up_proj.weight", case.intermediate, case.hidden, 1.5)
        add_linear(prefix + "mlp.down_proj.weight", case.hidden, case.intermediate, 1.5)
        if case.qkv_bias():
            add_biases(tuple(f"{prefix}self_attn.{x}_proj" for x in "qkv"),
                       (query_dim, kv_dim, kv_dim))
        if case.attention_bias:
            add_biases((prefix + "self_attn.o_proj",), (case.hidden,))
        if case.mlp_bias:
            add_biases(tuple(f"{prefix}mlp.{x}_proj" for x in ("gate", "up", "down")),
                       (case.intermediate, case.intermediate, case.hidden))
    return weights


def config(case: Case) -> dict:
    """config.json. No end-of-text token, so that greedy runs have a fixed length."""
    if case.rope_parameters:
        stretched = dict(case.rope) or {"rope_type": "default"}
        rope = {"rope_parameters": {"rope_theta": case.rope_theta, **stretched}}
    else:
        rope = {"rope_theta": case.rope_theta, "rope_scaling": dict(case.rope) or None}
    every = {
        "architectures": [ARCHITECTURES[case.family]], "model_type": case.family,
        "vocab_size": case.vocab,
        "hidden_size": case.hidden, "intermediate_size": case.intermediate,
        "num_hidden_layers": case.layers, "num_attention_heads": case.heads,
        "num_key_value_heads": case.kv_heads, "head_dim": case.head_dim, "hidden_act": "silu",
        "rms_norm_eps": case.rms_eps, **rope, "max_position_embeddings": 8192,
        "attention_bias": case.attention_bias, "attention_dropout": 0.0,
        "use_sliding_window": False,
        "sliding_window": None, "max_window_layers": case.layers,
        "tie_word_embeddings": case.tied, "use_cache": True,
        "torch_dtype": {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}[case.dtype],
    }
    if case.family == "llama":
        every["mlp_bias"] = case.mlp_bias
    every |= case.fields
    return {name: value for name, value in every.items() if name not in case.drop}


def write_model(case: Case, seed: int, folder: Path) -> None:
    """Writes config.json and the weights, in case.shards files, into `folder`, which it creates."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config(case), indent=2) + "\n", encoding="utf-8")
    weights = tensors(case, seed)
    if case.shards == 1:
        (folder / "model.safetensors").write_bytes(safetensors_np.encode(weights, case.dtype))
        return
    weight_map = {}
    for shard in range(case.shards):
        file = f"model-{shard + 1:05}-of-{case.shards:05}.safetensors"
        part = {name: weights[name] for name in sorted(weights)[shard :: case.shards]}
        (folder / file).write_bytes(safetensors_np.encode(part, case.dtype))
        weight_map |= dict.fromkeys(part, file)
    index = {"metadata": {"total_size": sum(values.size for values in weights.values())},
             "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")


def prompt_ids(case: Case, seed: int) -> list:
    return (raw_u32(seed, f"{case.name}/prompt", case.prompt_tokens) % case.vocab).tolist()
