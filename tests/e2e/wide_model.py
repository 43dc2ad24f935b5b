"""A random model whose K and V are as large as a real one's: 8 layers with the 8 KV heads of 128 values of Qwen3-0.6B."""

import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/hf"))

import random_model  # noqa: E402

CASE = random_model.Case("wide", layers=8, hidden=128, heads=16, kv_heads=8, head_dim=128, intermediate=256, vocab=288,
                         rope_theta=1e6, tied=True, prompt_tokens=1, dtype="BF16",
                         fields={"max_position_embeddings": 1 << 16})


def write(folder):
    random_model.write_model(CASE, 1, folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((ROOT / "models/tiny" / name).read_bytes())
    return folder
