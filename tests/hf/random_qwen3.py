"""Qwen3 models with random weights as Hugging Face directories, the same bytes on every machine.

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

    add_linear("model.embed_tokens.weight", case.vocab, case.hidden, 3.0)
    if not case.tied:
        add_linear("lm_head.weight", case.vocab, case.hidden, 3.0)
    add_norm("model.norm.weight", case.hidden, 0.5, 1.5)
    for layer in range(case.layers):
        prefix = f"model.layers.{layer}."
        add_norm(prefix + "input_layernorm.weight", case.hidden, 0.5, 1.5)
        add_norm(prefix + "post_attention_layernorm.weight", case.hidden, 0.5, 1.5)
        # Scores have standard deviation of about 2: sharp enough for the maximum to matter.
        add_norm(prefix + "self_attn.q_norm.weight", case.head_dim, 0.5, 2.5)
        add_norm(prefix + "self_attn.k_norm.weight", case.head_dim, 0.5, 2.5)
        add_linear(prefix + "self_attn.q_proj.weight", query_dim, case.hidden, 1.0)
        add_linear(prefix + "self_attn.k_proj.weight", kv_dim, case.hidden, 1.0)
        add_linear(prefix + "self_attn.v_proj.weight", kv_dim, case.hidden, 1.0)
        # Averaging over tokens shrinks the values; the gain brings them back.
        add_linear(prefix + "self_attn.o_proj.weight", case.hidden, query_dim, 4.0)
        add_linear(prefix + "mlp.gate_proj.weight", case.intermediate, case.hidden, 1.5)
        add_linear(prefix + "mlp.up_proj.weight", case.intermediate, case.hidden, 1.5)
        add_linear(prefix + "mlp.down_proj.weight", case.hidden, case.intermediate, 1.5)
    return weights


def config(case: Case) -> dict:
    """config.json. No end-of-text token, so that greedy runs have a fixed length."""
    if case.rope_parameters:
        rope = {"rope_parameters": {"rope_theta": case.rope_theta, "rope_type": "default"}}
    else:
        rope = {"rope_theta": case.rope_theta, "rope_scaling": None}
    return {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": case.vocab,
        "hidden_size": case.hidden, "intermediate_size": case.intermediate,
        "num_hidden_layers": case.layers, "num_attention_heads": case.heads,
        "num_key_value_heads": case.kv_heads, "head_dim": case.head_dim, "hidden_act": "silu",
        "rms_norm_eps": case.rms_eps, **rope, "max_position_embeddings": 8192,
        "attention_bias": False, "attention_dropout": 0.0, "use_sliding_window": False,
        "sliding_window": None, "max_window_layers": case.layers,
        "tie_word_embeddings": case.tied, "use_cache": True,
        "torch_dtype": {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}[case.dtype],
    }


def write_model(case: Case, seed: int, folder: Path) -> None:
    """Writes config.json and model.safetensors into `folder`, which it creates."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config(case), indent=2) + "\n", encoding="utf-8")
    blob = safetensors_np.encode(tensors(case, seed), case.dtype)
    (folder / "model.safetensors").write_bytes(blob)


def prompt_ids(case: Case, seed: int) -> list:
    return (raw_u32(seed, f"{case.name}/prompt", case.prompt_tokens) % case.vocab).tolist()
