"""Writes LoRA adapters as peft does, with numpy alone."""

import json
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "hf"))

import safetensors_np


def write(folder: Path, model: Path, seed: int, rank: int = 4) -> Path:
    """An adapter of the attention of every layer, with random weights, in `folder`."""
    config = json.loads((model / "config.json").read_text())
    hidden, head_dim = config["hidden_size"], config["head_dim"]
    outputs = {"q_proj": config["num_attention_heads"] * head_dim,
               "v_proj": config["num_key_value_heads"] * head_dim}
    random = np.random.default_rng(seed)
    tensors = {}
    for layer in range(config["num_hidden_layers"]):
        for module, width in outputs.items():
            name = f"base_model.model.model.layers.{layer}.self_attn.{module}"
            for part, shape in (("lora_A", (rank, hidden)), ("lora_B", (width, rank))):
                tensors[f"{name}.{part}.weight"] = random.normal(0, 0.2, shape).astype(np.float32)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_model.safetensors").write_bytes(safetensors_np.encode(tensors, "F32"))
    (folder / "adapter_config.json").write_text(json.dumps(
        {"peft_type": "LORA", "r": rank, "lora_alpha": 8, "target_modules": sorted(outputs),
         "bias": "none", "use_dora": False}))
    return folder
