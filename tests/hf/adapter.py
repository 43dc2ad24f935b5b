"""Compares `quire generate --adapter` with peft: the same adapter, written by peft, on the same model.

Prints one line per check and ends with `N passed, N failed`; exit 1 when a check failed.
"""

import os
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # every model is local; never ask the network

TESTS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS / "e2e"))

import numpy as np
import peft
import torch
import transformers

import quire_cli
import reference
import subjects

ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
ALL = ATTENTION + ["gate_proj", "up_proj", "down_proj"]
CASES = {
    "all": {"r": 16, "lora_alpha": 32, "target_modules": ALL},
    "attention": {"r": 7, "lora_alpha": 5, "target_modules": ATTENTION},
    "rslora": {"r": 64, "lora_alpha": 16, "target_modules": ALL, "use_rslora": True},
    "largest": {"r": 256, "lora_alpha": 16, "target_modules": ["q_proj", "down_proj"]},
    "patterns": {"r": 8, "lora_alpha": 8, "target_modules": "all-linear",
                 "rank_pattern": {"q_proj": 3, "layers.0.mlp.down_proj": 11},
                 "alpha_pattern": {"v_proj": 5, "^model.layers.1.self_attn.o_proj": 2}},
    "some_layers": {"r": 4, "lora_alpha": 8, "target_modules": ATTENTION,
                    "layers_to_transform": [1]},
}
TOKENS = 2
DIFFERENCE_MAX = 1e-4


def write_adapter(model, case: dict, folder: Path):
    """A peft model whose adapter changes the logits a lot, saved below `folder`."""
    torch.manual_seed(1)
    adapted = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", **case))
    with torch.no_grad():
        for name, value in adapted.named_parameters():
            if "lora_B" in name:  # zeros where training begins
                value.normal_(0, 0.02)
    adapted.save_pretrained(folder)
    return adapted.eval()


def compare(subject, base, name: str, case: dict, folder: Path) -> bool:
    adapted = write_adapter(reference.load(subject.model), case, folder / name)
    theirs = reference.greedy(adapted, subject.prompt, TOKENS)
    ours = quire_cli.generate(subject.model, subject.prompt, folder / "logits.npy",
                              max_tokens=TOKENS, temperature=0, compute="f32", kv="f32",
                              adapter=f"{name}={folder / name}")
    rows = len(subject.prompt)  # behind these a token may differ
    difference = float(np.abs(ours.logits[:rows] - theirs.logits[:rows]).max())
    change = float(np.abs(base.logits[:rows] - theirs.logits[:rows]).max())
    passed = difference <= DIFFERENCE_MAX and change > 100 * DIFFERENCE_MAX
    print(f"{subject.name:8} {name:12} max |diff| {difference:.2e}  change {change:.2e}  "
          f"{'ok' if passed else 'FAILED'}", flush=True)
    return passed


def main() -> int:
    transformers.utils.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as temporary:
        results = []
        for name in ("gqa", "qwen2", "tiny"):
            subject = subjects.prepare(name, 0, Path(temporary))
            base = reference.greedy(reference.load(subject.model), subject.prompt, TOKENS)
            for case_name, case in CASES.items():
                folder = Path(temporary) / f"{name}-adapters"
                folder.mkdir(exist_ok=True)
                results.append(compare(subject, base, case_name, case, folder))
    print(f"{sum(results)} passed, {len(results) - sum(results)} failed")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
